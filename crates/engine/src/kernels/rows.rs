//! Activations: quantised for the matrix products, and the elementwise steps between those.

use super::isa::per_isa;
use super::lanes::{LANES, Lanes, exp};
use super::matrix::BLOCK;

/// Rows of activations that are stored side by side.
pub(crate) const TILE_ROWS: usize = 8;

/// Below this magnitude a block counts as zero: 127 divided by it would no longer be finite.
const SMALLEST: f32 = 1e-30;

/// Largest f16: keys and values beyond it are clamped, so that no stored number is infinite.
const LARGEST_HALF: f32 = 65_504.0;

/// Eight rows x 32 columns as i8 with a scale for each row: value = `scale * i8`.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(crate) struct TileBlock {
    /// `[g][row]`: the i8 of columns 4g..4g+4.
    pub(crate) quads: [[i32; TILE_ROWS]; 8],
    pub(crate) scales: [f32; TILE_ROWS],
    /// `scale * sum of the i8`: what a weight's minimum is multiplied with.
    pub(crate) scaled_sums: [f32; TILE_ROWS],
    /// `-128 * sum of the i8`: takes the offset of byte weights back out.
    pub(crate) offsets: [i32; TILE_ROWS],
}

const EMPTY: TileBlock = TileBlock {
    quads: [[0; TILE_ROWS]; 8],
    scales: [0.0; TILE_ROWS],
    scaled_sums: [0.0; TILE_ROWS],
    offsets: [0; TILE_ROWS],
};

/// Quantised rows in tiles of [`TILE_ROWS`]; a tile's blocks follow each other along the columns.
#[derive(Default)]
pub(crate) struct QuantisedRows {
    blocks: Vec<TileBlock>,
    rows: usize,
    columns: usize,
}

impl QuantisedRows {
    /// Makes room for a matrix; its content is what was there before. `columns` is a multiple of 32.
    pub(crate) fn resize(&mut self, rows: usize, columns: usize) {
        (self.rows, self.columns) = (rows, columns);
        self.blocks.resize(rows.div_ceil(TILE_ROWS) * (columns / BLOCK), EMPTY);
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Blocks of one tile.
    pub(crate) fn tile_blocks(&self) -> usize {
        self.columns / BLOCK
    }

    pub(crate) fn blocks(&self) -> &[TileBlock] {
        &self.blocks
    }

    pub(crate) fn blocks_mut(&mut self) -> &mut [TileBlock] {
        &mut self.blocks
    }
}

per_isa! {
    /// Quantises a row into `slot` of a tile, from the first of `blocks` on: for each 32 values
    /// `scale = largest magnitude / 127`, values rounded to nearest, ties to even.
    pub(crate) fn quantise(values: &[f32], blocks: &mut [TileBlock], slot: usize) = quantise_body
}

#[inline(always)]
fn quantise_body<L: Lanes>(l: L, values: &[f32], blocks: &mut [TileBlock], slot: usize) {
    let slot = slot % TILE_ROWS;
    for (values, block) in values.as_chunks::<BLOCK>().0.iter().zip(blocks) {
        let [low, high] = values.as_chunks::<LANES>().0 else { continue };
        let (low, high) = (l.load(low), l.load(high));
        let zero = l.splat(0.0);
        let magnitude_low = l.max(low, l.sub(zero, low));
        let magnitude_high = l.max(high, l.sub(zero, high));
        let largest = l.reduce_max(l.max(magnitude_low, magnitude_high));
        let (scale, inverse) =
            if largest > SMALLEST { (largest / 127.0, 127.0 / largest) } else { (0.0, 0.0) };
        let inverse = l.splat(inverse);
        let low = l.round(l.mul(low, inverse));
        let high = l.round(l.mul(high, inverse));
        let sum = l.sum(low).wrapping_add(l.sum(high));
        for (i, quad) in l.quads(low).into_iter().chain(l.quads(high)).enumerate() {
            block.quads[i][slot] = quad;
        }
        block.scales[slot] = scale;
        block.scaled_sums[slot] = scale * sum as f32;
        block.offsets[slot] = sum.wrapping_mul(-128);
    }
}

per_isa! {
    /// `out = x / sqrt(mean(x^2) + epsilon) * weight`. Lengths are equal and multiples of 16.
    pub(crate) fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) = rms_norm_body
}

#[inline(always)]
fn rms_norm_body<L: Lanes>(l: L, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let mut squares = l.splat(0.0);
    for x in x.as_chunks::<LANES>().0 {
        let x = l.load(x);
        squares = l.fma(x, x, squares);
    }
    let mean = l.reduce_add(squares) / x.len() as f32;
    let factor = l.splat(1.0 / (mean + epsilon).sqrt());
    let (x, weight) = (x.as_chunks::<LANES>().0, weight.as_chunks::<LANES>().0);
    for ((x, weight), out) in x.iter().zip(weight).zip(out.as_chunks_mut::<LANES>().0) {
        l.store(l.mul(l.mul(l.load(x), factor), l.load(weight)), out);
    }
}

per_isa! {
    /// Rotates the heads of one row and multiplies them by `scale`. Pair i of a head is (i, i + half) with
    /// `half = cosines.len()`, a multiple of 16.
    pub(crate) fn rotate(heads: &mut [f32], cosines: &[f32], sines: &[f32], scale: f32) = rotate_body
}

#[inline(always)]
fn rotate_body<L: Lanes>(l: L, heads: &mut [f32], cosines: &[f32], sines: &[f32], scale: f32) {
    let half = cosines.len();
    let scale = l.splat(scale);
    let (cosines, sines) = (cosines.as_chunks::<LANES>().0, sines.as_chunks::<LANES>().0);
    for head in heads.chunks_exact_mut(2 * half) {
        let (first, second) = head.split_at_mut(half);
        let (first, second) = (first.as_chunks_mut::<LANES>().0, second.as_chunks_mut::<LANES>().0);
        for (((a, b), cosine), sine) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
            let (x, y) = (l.load(a), l.load(b));
            let (cosine, sine) = (l.mul(l.load(cosine), scale), l.mul(l.load(sine), scale));
            l.store(l.sub(l.mul(x, cosine), l.mul(y, sine)), a);
            l.store(l.fma(x, sine, l.mul(y, cosine)), b);
        }
    }
}

per_isa! {
    /// `gate = gate / (1 + e^-gate) * up`. Lengths are equal and multiples of 16.
    pub(crate) fn swiglu(gate: &mut [f32], up: &[f32]) = swiglu_body
}

#[inline(always)]
fn swiglu_body<L: Lanes>(l: L, gate: &mut [f32], up: &[f32]) {
    let one = l.splat(1.0);
    for (gate, up) in gate.as_chunks_mut::<LANES>().0.iter_mut().zip(up.as_chunks::<LANES>().0) {
        let x = l.load(gate);
        let sigmoid_inverse = l.add(one, exp(l, l.sub(l.splat(0.0), x)));
        l.store(l.mul(l.div(x, sigmoid_inverse), l.load(up)), gate);
    }
}

per_isa! {
    /// `sum += x`. Lengths are equal and multiples of 16.
    pub(crate) fn accumulate(sum: &mut [f32], x: &[f32]) = accumulate_body
}

#[inline(always)]
fn accumulate_body<L: Lanes>(l: L, sum: &mut [f32], x: &[f32]) {
    for (sum, x) in sum.as_chunks_mut::<LANES>().0.iter_mut().zip(x.as_chunks::<LANES>().0) {
        l.store(l.add(l.load(sum), l.load(x)), sum);
    }
}

per_isa! {
    /// To f16, clamped to what is finite. Lengths are equal and multiples of 16.
    pub(crate) fn to_half(x: &[f32], out: &mut [u16]) = to_half_body
}

#[inline(always)]
fn to_half_body<L: Lanes>(l: L, x: &[f32], out: &mut [u16]) {
    for (x, out) in x.as_chunks::<LANES>().0.iter().zip(out.as_chunks_mut::<LANES>().0) {
        let clamped = l.max(l.min(l.load(x), l.splat(LARGEST_HALF)), l.splat(-LARGEST_HALF));
        l.store_half(clamped, out);
    }
}
