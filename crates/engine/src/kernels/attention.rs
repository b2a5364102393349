//! Causal attention of query rows over the paged keys and values of their sequence.
//!
//! Two passes: all scores of a tile of query rows and their softmax, then the weighted values. Positions in order, one
//! fused multiply-add each; a score sums over the head's dimensions in order. So a row's result depends on its own
//! sequence alone, not on chunks, tiles or block ids.

use super::isa::per_isa;
use super::lanes::{LANES, Lanes, exp};
use crate::kv::Layout;
use dynamo_blocks::BlockId;

/// Query rows a tile may have at most.
const MAX_TILE: usize = 6;

/// Memory that calls of one thread share.
#[derive(Default)]
pub(crate) struct Scratch {
    /// `[dimension][query row]`.
    queries: Vec<[f32; MAX_TILE]>,
    /// `[group of 16 positions][query row]`.
    scores: Vec<[f32; LANES]>,
}

/// Consecutive rows of one sequence, all query heads of one key/value head.
pub(crate) struct Task<'a> {
    /// All blocks.
    pub(crate) store: &'a [u16],
    pub(crate) layout: &'a Layout,
    pub(crate) layer: usize,
    pub(crate) kv_head: usize,
    /// Query heads per key/value head.
    pub(crate) group: usize,
    /// The sequence's blocks.
    pub(crate) table: &'a [BlockId],
    /// Rotated and scaled queries: row r, head h of the group at `r * stride + h * head_dim`.
    pub(crate) queries: &'a [f32],
    pub(crate) stride: usize,
    /// Position of the first row; row r attends to positions `0..=first_position + r`.
    pub(crate) first_position: usize,
    /// `[row][head of the group][head_dim]`.
    pub(crate) out: &'a mut [f32],
}

per_isa! {
    pub(crate) fn attend(task: Task<'_>, scratch: &mut Scratch) = attend_body
}

#[inline(always)]
fn attend_body<L: Lanes>(l: L, task: Task<'_>, scratch: &mut Scratch) {
    let mut task = task;
    let count = task.out.len() / task.layout.head_dim;
    let mut first = 0;
    while first < count {
        let rows = L::ATTENTION_ROWS.min(count - first);
        if L::ATTENTION_ROWS == MAX_TILE {
            match rows {
                1 => tile::<L, 1>(l, &mut task, first, scratch),
                2 => tile::<L, 2>(l, &mut task, first, scratch),
                3 => tile::<L, 3>(l, &mut task, first, scratch),
                4 => tile::<L, 4>(l, &mut task, first, scratch),
                5 => tile::<L, 5>(l, &mut task, first, scratch),
                _ => tile::<L, 6>(l, &mut task, first, scratch),
            }
        } else {
            match rows {
                1 => tile::<L, 1>(l, &mut task, first, scratch),
                2 => tile::<L, 2>(l, &mut task, first, scratch),
                _ => tile::<L, 3>(l, &mut task, first, scratch),
            }
        }
        first += rows;
    }
}

/// `R` query rows, numbered `row * group + head`, from `first` on.
#[inline(always)]
fn tile<L: Lanes, const R: usize>(l: L, task: &mut Task<'_>, first: usize, scratch: &mut Scratch) {
    let head_dim = task.layout.head_dim;
    let limits: [usize; R] = std::array::from_fn(|r| task.first_position + (first + r) / task.group + 1);
    let groups = limits[R - 1].div_ceil(LANES);
    scratch.queries.resize(head_dim, [0.0; MAX_TILE]);
    for r in 0..R {
        let from = (first + r) / task.group * task.stride + (first + r) % task.group * head_dim;
        for (column, value) in scratch.queries.iter_mut().zip(&task.queries[from..from + head_dim]) {
            column[r] = *value;
        }
    }
    if scratch.scores.len() < groups * R {
        scratch.scores.resize(groups * R, [0.0; LANES]);
    }
    let scores = &mut scratch.scores[..groups * R];
    fill_scores::<L, R>(l, task, &scratch.queries, scores);
    for (r, limit) in limits.into_iter().enumerate() {
        for position in limit..groups * LANES {
            scores[position / LANES * R + r][position % LANES] = f32::NEG_INFINITY;
        }
    }
    let inverse_sums = softmax::<L, R>(l, scores);
    if L::WIDE_VALUES && head_dim.is_multiple_of(4 * LANES) {
        weigh::<L, R, 4>(l, task, first, scores, inverse_sums);
    } else if L::WIDE_VALUES {
        weigh::<L, R, 2>(l, task, first, scores, inverse_sums);
    } else {
        weigh::<L, R, 1>(l, task, first, scores, inverse_sums);
    }
}

/// `scores[group][r][lane] = query r . key at 16 * group + lane`.
#[inline(always)]
fn fill_scores<L: Lanes, const R: usize>(
    l: L,
    task: &Task<'_>,
    queries: &[[f32; MAX_TILE]],
    scores: &mut [[f32; LANES]],
) {
    let mut groups = scores.chunks_exact_mut(2 * R);
    let mut index = 0;
    for pair in &mut groups {
        let (first, second) = (keys(task, index), keys(task, index + 1));
        let mut sums = [[l.splat(0.0); R]; 2];
        for ((first, second), query) in first.iter().zip(second).zip(queries) {
            let (first, second) = (l.load_half(first), l.load_half(second));
            for r in 0..R {
                let query = l.splat(query[r]);
                sums[0][r] = l.fma(query, first, sums[0][r]);
                sums[1][r] = l.fma(query, second, sums[1][r]);
            }
        }
        for (i, score) in pair.iter_mut().enumerate() {
            l.store(sums[i / R][i % R], score);
        }
        index += 2;
    }
    let last = groups.into_remainder();
    if !last.is_empty() {
        let mut sums = [l.splat(0.0); R];
        for (keys, query) in keys(task, index).iter().zip(queries) {
            let keys = l.load_half(keys);
            for r in 0..R {
                sums[r] = l.fma(l.splat(query[r]), keys, sums[r]);
            }
        }
        for (sum, score) in sums.into_iter().zip(last) {
            l.store(sum, score);
        }
    }
}

/// The keys of sixteen positions, `[dimension][position]`.
#[inline(always)]
fn keys<'a>(task: &Task<'a>, group: usize) -> &'a [[u16; LANES]] {
    let (block, within) = block_of(task, group);
    let from = task.layout.key(block, task.layer, task.kv_head, within);
    task.store[from..from + task.layout.head_dim * LANES].as_chunks::<LANES>().0
}

/// The values of sixteen positions, `[position][dimension]`.
#[inline(always)]
fn values<'a>(task: &Task<'a>, group: usize) -> &'a [[u16; LANES]] {
    let (block, within) = block_of(task, group);
    let from = task.layout.value(block, task.layer, task.kv_head, within);
    task.store[from..from + task.layout.head_dim * LANES].as_chunks::<LANES>().0
}

#[inline(always)]
fn block_of(task: &Task<'_>, group: usize) -> (BlockId, usize) {
    let position = group * LANES;
    (task.table[position / task.layout.block_size], position % task.layout.block_size)
}

/// Scores become `e^(score - largest)`; returns one over their sums.
#[inline(always)]
fn softmax<L: Lanes, const R: usize>(l: L, scores: &mut [[f32; LANES]]) -> [f32; R] {
    let mut inverse_sums = [0.0; R];
    for (r, inverse_sum) in inverse_sums.iter_mut().enumerate() {
        let mut largest = l.splat(f32::NEG_INFINITY);
        for group in scores.chunks_exact(R) {
            largest = l.max(l.load(&group[r]), largest);
        }
        let largest = l.splat(l.reduce_max(largest));
        let mut sum = l.splat(0.0);
        for group in scores.chunks_exact_mut(R) {
            let weight = exp(l, l.sub(l.load(&group[r]), largest));
            sum = l.add(sum, weight);
            l.store(weight, &mut group[r]);
        }
        *inverse_sum = 1.0 / l.reduce_add(sum);
    }
    inverse_sums
}

/// Weighted sums of the values, `C` vectors of the head at a time.
#[inline(always)]
fn weigh<L: Lanes, const R: usize, const C: usize>(
    l: L,
    task: &mut Task<'_>,
    first: usize,
    scores: &[[f32; LANES]],
    inverse_sums: [f32; R],
) {
    let head_dim = task.layout.head_dim;
    let vectors = head_dim / LANES;
    for column in (0..vectors).step_by(C) {
        let mut sums = [[l.splat(0.0); C]; R];
        for (index, weights) in scores.as_chunks::<R>().0.iter().enumerate() {
            for (position, values) in values(task, index).chunks_exact(vectors).enumerate() {
                let Some(values) = values[column..].first_chunk::<C>() else { continue };
                let position = position % LANES;
                let mut loaded = [l.splat(0.0); C];
                for c in 0..C {
                    loaded[c] = l.load_half(&values[c]);
                }
                for r in 0..R {
                    let weight = l.splat(weights[r][position]);
                    for c in 0..C {
                        sums[r][c] = l.fma(weight, loaded[c], sums[r][c]);
                    }
                }
            }
        }
        for r in 0..R {
            let from = (first + r) * head_dim + column * LANES;
            let out = task.out[from..from + C * LANES].as_chunks_mut::<LANES>().0;
            for (c, out) in out.iter_mut().enumerate() {
                l.store(l.mul(sums[r][c], l.splat(inverse_sums[r])), out);
            }
        }
    }
}
