//! The forward pass of Llama-family decoders over a flat batch of paged sequences.

use crate::kernels::attention::{Scratch, Task, attend};
use crate::kernels::{
    Isa, QuantisedRows, TILE_ROWS, Team, accumulate, multiply, quantise, rms_norm, rotate, swiglu, to_half,
};
use crate::kv::{KvOptions, KvStore};
use crate::model::{Error, Logits, Model, Segment};
use crate::weights::{Layer, Weights};
use dynamo_blocks::BlockId;
use dynamo_types::KvLayout;
use std::cell::RefCell;
use std::sync::Arc;

/// Rows of one attention task: enough to use keys and values several times while they are in the cache.
const ATTENTION_ROWS: usize = 16;

/// A decoder with its own KV blocks over shared weights.
pub struct Llama {
    weights: Arc<Weights>,
    kv: KvStore,
    isa: Isa,
    team: Team,
    frequencies: Vec<f64>,
    workspace: Workspace,
}

/// Memory that steps share; it grows to the largest step.
#[derive(Default)]
struct Workspace {
    rows: Vec<Row>,
    /// `[row][half a head]`.
    cosines: Vec<f32>,
    sines: Vec<f32>,
    /// The residual stream, `[row][hidden]`.
    residual: Vec<f32>,
    quantised: QuantisedRows,
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    half_key: Vec<u16>,
    half_value: Vec<u16>,
    /// `[kv head][row, padded to ATTENTION_ROWS][query head of the group][head_dim]`.
    attended: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    /// What a block of a layer adds to the residual stream.
    update: Vec<f32>,
}

/// One token of a step.
#[derive(Clone, Copy)]
struct Row {
    segment: usize,
    position: usize,
}

impl Llama {
    /// A decoder with `options.total_blocks` KV blocks that computes with `threads` threads (0 counts as 1).
    pub fn new(weights: Arc<Weights>, options: KvOptions, threads: usize) -> Result<Self, Error> {
        Self::with_isa(weights, options, threads, Isa::detect())
    }

    /// The same on a given instruction set.
    pub fn with_isa(
        weights: Arc<Weights>,
        options: KvOptions,
        threads: usize,
        isa: Isa,
    ) -> Result<Self, Error> {
        let config = weights.config();
        if !config.head_dim.is_multiple_of(32) {
            let message = format!("head dimension: expected a multiple of 32, found {}", config.head_dim);
            return Err(Error::Options { message });
        }
        let kv = KvStore::new(config.layers, config.kv_heads, config.head_dim, options)?;
        let team = Team::new(threads)?;
        let frequency = |pair: usize| {
            let factor = config.rope_factors.as_ref().and_then(|factors| factors.get(pair)).copied();
            let exponent = -2.0 * pair as f64 / config.head_dim as f64;
            config.rope_theta.powf(exponent) / f64::from(factor.unwrap_or(1.0))
        };
        let frequencies = (0..config.head_dim / 2).map(frequency).collect();
        tracing::debug!(isa = isa.name(), threads = team.threads(), "decoder ready");
        Ok(Self { weights, kv, isa, team, frequencies, workspace: Workspace::default() })
    }

    /// Shape of a KV block, for the model card.
    pub fn kv_layout(&self) -> KvLayout {
        self.kv.description()
    }

    /// The instruction set in use, for logs.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    fn check(&self, segments: &[Segment<'_>]) -> Result<(), Error> {
        let (vocab_size, context_length) = (self.vocab_size(), self.context_length());
        let block_size = self.kv.layout().block_size;
        for segment in segments {
            if segment.tokens.is_empty() {
                return Err(Error::Empty);
            }
            if let Some(&token) = segment.tokens.iter().find(|token| **token as usize >= vocab_size) {
                return Err(Error::Token { token, vocab_size });
            }
            let end = segment.start.saturating_add(segment.tokens.len());
            if end > context_length {
                return Err(Error::Context { end, context_length });
            }
            if end > segment.blocks.len().saturating_mul(block_size) {
                return Err(Error::Table { end, blocks: segment.blocks.len(), block_size });
            }
            segment.blocks.iter().try_for_each(|block| self.kv.check(*block))?;
        }
        Ok(())
    }
}

impl Model for Llama {
    fn vocab_size(&self) -> usize {
        self.weights.config().vocab_size
    }

    fn context_length(&self) -> usize {
        self.weights.config().context_length
    }

    fn hidden_size(&self) -> usize {
        self.weights.config().hidden
    }

    fn forward(&mut self, segments: &[Segment<'_>], logits: &mut Vec<f32>) -> Result<(), Error> {
        logits.clear();
        self.check(segments)?;
        if segments.is_empty() {
            return Ok(());
        }
        let mut step = Step {
            weights: &self.weights,
            kv: &mut self.kv,
            isa: self.isa,
            team: &self.team,
            segments,
            work: &mut self.workspace,
        };
        step.begin(&self.frequencies);
        for (index, layer) in step.weights.layers().iter().enumerate() {
            step.attention(index, layer);
            step.feed_forward(layer);
        }
        step.logits(logits);
        step.states(logits);
        Ok(())
    }

    fn block_bytes(&self) -> usize {
        self.kv.block_bytes()
    }

    fn export_block(&self, block: BlockId, bytes: &mut [u8]) -> Result<(), Error> {
        self.kv.export(block, bytes)
    }

    fn import_block(&mut self, block: BlockId, bytes: &[u8]) -> Result<(), Error> {
        self.kv.import(block, bytes)
    }
}

/// One forward pass.
struct Step<'a> {
    weights: &'a Weights,
    kv: &'a mut KvStore,
    isa: Isa,
    team: &'a Team,
    segments: &'a [Segment<'a>],
    work: &'a mut Workspace,
}

impl Step<'_> {
    /// Rows, rotations and embeddings.
    fn begin(&mut self, frequencies: &[f64]) {
        let config = self.weights.config();
        let work = &mut *self.work;
        work.rows.clear();
        work.cosines.clear();
        work.sines.clear();
        let count: usize = self.segments.iter().map(|segment| segment.tokens.len()).sum();
        work.residual.resize(count * config.hidden, 0.0);
        let mut residual = work.residual.chunks_exact_mut(config.hidden);
        for (index, segment) in self.segments.iter().enumerate() {
            for (offset, token) in segment.tokens.iter().enumerate() {
                let position = segment.start + offset;
                work.rows.push(Row { segment: index, position });
                for frequency in frequencies {
                    let (sine, cosine) = (position as f64 * frequency).sin_cos();
                    work.cosines.push(cosine as f32);
                    work.sines.push(sine as f32);
                }
                if let Some(row) = residual.next() {
                    self.weights.embedding().row(*token as usize, row);
                }
            }
        }
        let (query, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        work.query.resize(count * query, 0.0);
        work.key.resize(count * kv, 0.0);
        work.value.resize(count * kv, 0.0);
        work.half_key.resize(kv, 0);
        work.half_value.resize(kv, 0);
        work.attended.resize(count.next_multiple_of(ATTENTION_ROWS) * query, 0.0);
        work.gate.resize(count * config.feed_forward, 0.0);
        work.up.resize(count * config.feed_forward, 0.0);
        work.update.resize(count * config.hidden, 0.0);
    }

    fn attention(&mut self, index: usize, layer: &Layer) {
        let config = self.weights.config();
        let (isa, team) = (self.isa, self.team);
        let (query, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let work = &mut *self.work;
        normalise(isa, team, &work.residual, &layer.attention_norm, config.norm_epsilon, &mut work.quantised);
        multiply(isa, team, &layer.query, &work.quantised, &mut work.query, query);
        multiply(isa, team, &layer.key, &work.quantised, &mut work.key, kv);
        multiply(isa, team, &layer.value, &work.quantised, &mut work.value, kv);
        let half = config.head_dim / 2;
        let scale = 1.0 / (config.head_dim as f32).sqrt();
        let (cosines, sines) = (&work.cosines, &work.sines);
        for (values, width, scale) in [(&mut work.query, query, scale), (&mut work.key, kv, 1.0)] {
            team.chunks(values, width, |row, values| {
                let range = row * half..(row + 1) * half;
                rotate(isa, values, &cosines[range.clone()], &sines[range], scale);
            });
        }
        let block_size = self.kv.layout().block_size;
        let rows = work.rows.iter().zip(work.key.chunks_exact(kv)).zip(work.value.chunks_exact(kv));
        for ((row, key), value) in rows {
            to_half(isa, key, &mut work.half_key);
            to_half(isa, value, &mut work.half_value);
            let block = self.segments[row.segment].blocks[row.position / block_size];
            self.kv.write(block, index, row.position % block_size, &work.half_key, &work.half_value);
        }
        self.attend(index);
        self.collect_heads();
        let work = &mut *self.work;
        multiply(isa, team, &layer.attention_output, &work.quantised, &mut work.update, config.hidden);
        add_rows(isa, team, &mut work.residual, &work.update);
    }

    /// All rows over their blocks, into `attended`.
    fn attend(&mut self, layer: usize) {
        thread_local! {
            static SCRATCH: RefCell<Scratch> = RefCell::default();
        }
        let config = self.weights.config();
        let (isa, segments, kv) = (self.isa, self.segments, &*self.kv);
        let Workspace { rows, query, attended, .. } = &mut *self.work;
        let group = config.heads / config.kv_heads;
        let (width, stride) = (group * config.head_dim, config.heads * config.head_dim);
        let pieces = rows.len().div_ceil(ATTENTION_ROWS);
        self.team.chunks(attended, ATTENTION_ROWS * width, |piece, out| {
            let kv_head = piece / pieces;
            let mut first = piece % pieces * ATTENTION_ROWS;
            let rows = &rows[..rows.len().min(first + ATTENTION_ROWS)];
            let mut out = out;
            while let Some(row) = rows.get(first) {
                let run = rows[first..].iter().take_while(|other| other.segment == row.segment).count();
                let (now, later) = std::mem::take(&mut out).split_at_mut(run * width);
                let task = Task {
                    store: kv.elements(),
                    layout: kv.layout(),
                    layer,
                    kv_head,
                    group,
                    table: segments[row.segment].blocks,
                    queries: &query[first * stride + kv_head * width..],
                    stride,
                    first_position: row.position,
                    out: now,
                };
                SCRATCH.with_borrow_mut(|scratch| attend(isa, task, scratch));
                out = later;
                first += run;
            }
        });
    }

    /// Quantises `attended`, all heads of a row side by side.
    fn collect_heads(&mut self) {
        let config = self.weights.config();
        let isa = self.isa;
        let Workspace { rows, attended, quantised, .. } = &mut *self.work;
        let width = config.heads / config.kv_heads * config.head_dim;
        let plane = rows.len().next_multiple_of(ATTENTION_ROWS) * width;
        quantised.resize(rows.len(), config.heads * config.head_dim);
        let blocks = quantised.tile_blocks();
        self.team.chunks(quantised.blocks_mut(), blocks, |tile, blocks| {
            for slot in 0..TILE_ROWS.min(rows.len() - tile * TILE_ROWS) {
                let row = tile * TILE_ROWS + slot;
                for (plane, blocks) in attended.chunks_exact(plane).zip(blocks.chunks_exact_mut(width / 32)) {
                    quantise(isa, &plane[row * width..(row + 1) * width], blocks, slot);
                }
            }
        });
    }

    fn feed_forward(&mut self, layer: &Layer) {
        let config = self.weights.config();
        let (isa, team, width) = (self.isa, self.team, config.feed_forward);
        let work = &mut *self.work;
        normalise(
            isa,
            team,
            &work.residual,
            &layer.feed_forward_norm,
            config.norm_epsilon,
            &mut work.quantised,
        );
        multiply(isa, team, &layer.gate, &work.quantised, &mut work.gate, width);
        multiply(isa, team, &layer.up, &work.quantised, &mut work.up, width);
        let up = &work.up;
        team.chunks(&mut work.gate, width, |row, gate| {
            swiglu(isa, gate, &up[row * width..(row + 1) * width]);
        });
        work.quantised.resize(work.rows.len(), width);
        let (blocks, gate) = (work.quantised.tile_blocks(), &work.gate);
        team.chunks(work.quantised.blocks_mut(), blocks, |tile, blocks| {
            for (slot, row) in gate.chunks_exact(width).skip(tile * TILE_ROWS).take(TILE_ROWS).enumerate() {
                quantise(isa, row, blocks, slot);
            }
        });
        multiply(isa, team, &layer.down, &work.quantised, &mut work.update, config.hidden);
        add_rows(isa, team, &mut work.residual, &work.update);
    }

    /// Scores of the requested rows.
    fn logits(&mut self, logits: &mut Vec<f32>) {
        let config = self.weights.config();
        let hidden = config.hidden;
        let work = &mut *self.work;
        work.update.clear();
        let mut first = 0;
        for segment in self.segments {
            let end = first + segment.tokens.len();
            let from = match segment.logits {
                Logits::None | Logits::States => end,
                Logits::Last => end - 1,
                Logits::All => first,
            };
            work.update.extend_from_slice(&work.residual[from * hidden..end * hidden]);
            first = end;
        }
        let count = work.update.len() / hidden;
        if count == 0 {
            return;
        }
        let norm = self.weights.output_norm();
        normalise(self.isa, self.team, &work.update, norm, config.norm_epsilon, &mut work.quantised);
        logits.resize(count * config.vocab_size, 0.0);
        multiply(self.isa, self.team, self.weights.output(), &work.quantised, logits, config.vocab_size);
    }

    /// Hidden states of the segments that want them, behind the scores.
    fn states(&self, out: &mut Vec<f32>) {
        let config = self.weights.config();
        let hidden = config.hidden;
        let mut rows = self.work.residual.chunks_exact(hidden);
        for segment in self.segments {
            for row in rows.by_ref().take(segment.tokens.len()) {
                if segment.logits == Logits::States {
                    let at = out.len();
                    out.resize(at + hidden, 0.0);
                    let norm = self.weights.output_norm();
                    rms_norm(self.isa, row, norm, config.norm_epsilon, &mut out[at..]);
                }
            }
        }
    }
}

/// Normalises rows and quantises them.
fn normalise(
    isa: Isa,
    team: &Team,
    rows: &[f32],
    weight: &[f32],
    epsilon: f32,
    quantised: &mut QuantisedRows,
) {
    let width = weight.len();
    quantised.resize(rows.len() / width, width);
    let blocks = quantised.tile_blocks();
    team.chunks(quantised.blocks_mut(), blocks, |tile, blocks| {
        let mut normalised = vec![0.0; width];
        for (slot, row) in rows.chunks_exact(width).skip(tile * TILE_ROWS).take(TILE_ROWS).enumerate() {
            rms_norm(isa, row, weight, epsilon, &mut normalised);
            quantise(isa, &normalised, blocks, slot);
        }
    });
}

fn add_rows(isa: Isa, team: &Team, residual: &mut [f32], update: &[f32]) {
    // Large pieces: the work per element is tiny.
    const PIECE: usize = 1 << 14;
    team.chunks(residual, PIECE, |index, residual| {
        let from = index * PIECE;
        accumulate(isa, residual, &update[from..from + residual.len()]);
    });
}

#[cfg(test)]
#[path = "llama_tests.rs"]
mod tests;
