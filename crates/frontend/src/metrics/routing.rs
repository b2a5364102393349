//! What is counted of the router's choices: in a frontend for each attempt, in a router of its own for each call.

use dynamo_router::{Lap, Selection};
use dynamo_runtime::metrics::names::{frontend, label, router};
use dynamo_runtime::metrics::{
    Buckets, Error, Histogram, HistogramVec, IntCounter, IntCounterVec, Registry, powers, shares,
};
use dynamo_types::Class;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Blocks: one to as many as 32 thousand tokens have.
const LOST_BLOCKS: [f64; 12] = [1., 2., 4., 8., 16., 32., 64., 128., 256., 512., 1024., 2048.];

/// The families.
pub(crate) struct Routing {
    pub(crate) kv_hit_rate: Histogram,
    pub(crate) hashing_ms: Histogram,
    seq_hashing_ms: Histogram,
    find_matches_ms: Histogram,
    scheduling_ms: Histogram,
    total_ms: Histogram,
    overlap_blocks_lost: Histogram,
    placements: IntCounterVec,
    started: IntCounterVec,
    input_tokens: HistogramVec,
    selected_cached: IntCounterVec,
    best_cached: IntCounterVec,
    not_best: IntCounterVec,
    reused: IntCounterVec,
    received: IntCounter,
    rejected: IntCounter,
}

/// Those of one model.
pub(crate) struct ModelRouting {
    placements: IntCounter,
    started: IntCounter,
    input_tokens: Histogram,
    selected_cached: IntCounter,
    best_cached: IntCounter,
    not_best: IntCounter,
    /// Prompt tokens that workers said they had cached.
    pub(crate) reused: IntCounter,
}

impl Routing {
    pub(crate) fn new(registry: &Registry) -> Result<Self, Error> {
        // Of hashing, and of what takes longer.
        let short = || powers(0.001, 2.0, 15);
        let long = || powers(0.01, 3.0, 17);
        let counters = |name, help| registry.counters(name, help, &[label::MODEL]);
        Ok(Self {
            kv_hit_rate: registry.histogram_at(
                router::KV_HIT_RATE,
                "Share of the prompt's blocks that the chosen worker is known to hold.",
                shares(),
            )?,
            hashing_ms: registry.histogram_at(
                router::OVERHEAD_BLOCK_HASHING_MS,
                "Hashing a prompt's blocks.",
                short(),
            )?,
            seq_hashing_ms: registry.histogram_at(
                router::OVERHEAD_SEQ_HASHING_MS,
                "Chaining the hashes of a prompt's blocks.",
                short(),
            )?,
            find_matches_ms: registry.histogram_at(
                router::OVERHEAD_FIND_MATCHES_MS,
                "Walking the prefix index.",
                long(),
            )?,
            scheduling_ms: registry.histogram_at(
                router::OVERHEAD_SCHEDULING_MS,
                "Choosing a worker by what it has cached and how busy it is.",
                long(),
            )?,
            total_ms: registry.histogram_at(
                router::OVERHEAD_TOTAL_MS,
                "A choice from end to end, but for hashing blocks.",
                long(),
            )?,
            overlap_blocks_lost: registry.histogram_at(
                router::OVERLAP_BLOCKS_LOST,
                "Cached blocks that a choice forwent, of choices that forwent any.",
                LOST_BLOCKS.to_vec(),
            )?,
            placements: counters(router::REQUESTS_TOTAL, "Placements made by the router.")?,
            started: counters(router::REQUESTS_STARTED_TOTAL, "Requests the router was asked to place.")?,
            input_tokens: registry.histograms(
                router::INPUT_SEQUENCE_TOKENS,
                "Prompt length of placements.",
                &[label::MODEL],
                Buckets::INPUT_SEQUENCE,
            )?,
            selected_cached: counters(
                router::KV_SELECTED_CACHED_PREFIX_TOKENS_TOTAL,
                "Prompt tokens cached where placements went.",
            )?,
            best_cached: counters(
                router::KV_BEST_ELIGIBLE_CACHED_PREFIX_TOKENS_TOTAL,
                "The same had each gone where most was cached.",
            )?,
            not_best: counters(
                router::NON_MAX_OVERLAP_SELECTIONS_TOTAL,
                "Placements that went where less was cached than elsewhere.",
            )?,
            reused: counters(
                router::KV_WORKER_REUSED_TOKENS_TOTAL,
                "Prompt tokens that workers said they had cached.",
            )?,
            received: registry.counter(
                frontend::ROUTER_ADMISSION_RECEIVED_TOTAL,
                "Requests the router was asked to place, of all models.",
            )?,
            rejected: registry.counter(
                frontend::ROUTER_ADMISSION_REJECTED_TOTAL,
                "Of those, turned away because everybody was busy.",
            )?,
        })
    }

    pub(crate) fn of(&self, model: &str) -> ModelRouting {
        let one = &[model];
        ModelRouting {
            placements: self.placements.with_label_values(one),
            started: self.started.with_label_values(one),
            input_tokens: self.input_tokens.with_label_values(one),
            selected_cached: self.selected_cached.with_label_values(one),
            best_cached: self.best_cached.with_label_values(one),
            not_best: self.not_best.with_label_values(one),
            reused: self.reused.with_label_values(one),
        }
    }

    /// One request was placed, or was not.
    pub(crate) fn count(&self, model: &ModelRouting, prompt: Prompt, made: &dynamo_types::Result<Selection>) {
        self.received.inc();
        model.started.inc();
        let selection = match made {
            Ok(selection) => selection,
            Err(error) => {
                self.rejected.inc_by(u64::from(error.class() == Class::Overloaded));
                return;
            }
        };
        model.placements.inc();
        model.input_tokens.observe(prompt.tokens as f64);
        let Some(blocks) = prompt.blocks else { return };
        let (chosen, best) = (selection.overlap_blocks, selection.best_overlap_blocks);
        let tokens = |blocks: u32| u64::from(blocks) * u64::from(prompt.block_size);
        self.kv_hit_rate.observe(f64::from(chosen) / blocks.max(1) as f64);
        model.selected_cached.inc_by(tokens(chosen));
        model.best_cached.inc_by(tokens(best));
        if best > chosen {
            model.not_best.inc();
            self.overlap_blocks_lost.observe(f64::from(best - chosen));
        }
    }
}

/// What is counted of a prompt that was placed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prompt {
    /// Its length.
    pub(crate) tokens: u64,
    /// Its complete blocks; None where nobody looks at them.
    pub(crate) blocks: Option<usize>,
    pub(crate) block_size: u32,
}

/// Times one choice.
pub(crate) struct Stopwatch {
    begun: Instant,
    hashed: Cell<Option<Instant>>,
    matched: Cell<Option<Instant>>,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self { begun: Instant::now(), hashed: Cell::new(None), matched: Cell::new(None) }
    }

    pub(crate) fn lap(&self, lap: Lap) {
        let now = Some(Instant::now());
        match lap {
            Lap::Hashed => self.hashed.set(now),
            Lap::Matched => self.matched.set(now),
        }
    }

    /// Of modes that look at blocks only, as in the reference system.
    pub(crate) fn stop(self, routing: &Routing) {
        let (Some(hashed), Some(matched)) = (self.hashed.get(), self.matched.get()) else { return };
        let end = Instant::now();
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        routing.seq_hashing_ms.observe(ms(hashed - self.begun));
        routing.find_matches_ms.observe(ms(matched - hashed));
        routing.scheduling_ms.observe(ms(end - matched));
        routing.total_ms.observe(ms(end - self.begun));
    }
}
