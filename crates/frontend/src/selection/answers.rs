//! What calls answer, as users of the reference system know it (behaviour.md 2.11, 13.6). Lengths of cached prefixes are
//! in tokens where a field does not say blocks, and each tier includes those before it.

use super::prompt::Prompt;
use super::roster::Named;
use crate::model::Worker;
use dynamo_router::{BookedLoad, Overlap, PotentialLoad, Router, Terms};
use dynamo_types::{KvEvent, KvEventBatch, Load, WorkerRank};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where a prompt goes.
#[derive(Serialize)]
pub(super) struct Chosen<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) selection_id: Option<&'a str>,
    pub(super) model_name: &'a str,
    pub(super) worker_id: u64,
    pub(super) dp_rank: u32,
    /// How the worker is reached.
    pub(super) endpoint: String,
    pub(super) block_size: u32,
    pub(super) isl_tokens: u32,
    pub(super) overlap: Summary,
    /// Prompt tokens that the worker has to compute.
    pub(super) effective_prefill_tokens: u64,
    /// Blocks in use there once this one is decoded, its own included.
    pub(super) potential_decode_blocks: f64,
    /// Ranks there were to choose from.
    pub(super) candidates: u32,
    /// Of the reservation, unless it is mentioned before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_in_ms: Option<u64>,
}

/// A booking that was made.
#[derive(Serialize)]
pub(super) struct Reserved<'a> {
    pub(super) selection_id: &'a str,
    pub(super) model_name: &'a str,
    pub(super) worker_id: u64,
    pub(super) dp_rank: u32,
    pub(super) endpoint: String,
    pub(super) expires_in_ms: u64,
}

/// What became of a reservation.
#[derive(Serialize)]
pub(super) struct Told<'a> {
    pub(super) selection_id: &'a str,
    pub(super) worker_id: u64,
    pub(super) dp_rank: u32,
}

/// Was there anything to give back?
#[derive(Serialize)]
pub(super) struct Freed<'a> {
    pub(super) request_id: &'a str,
    pub(super) freed: bool,
}

/// What one instance has of a prompt, in tokens.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Summary {
    pub(super) longest_matched: u64,
    pub(super) gpu: u64,
    /// On the device of each rank.
    pub(super) dp: BTreeMap<String, u64>,
    pub(super) cpu: u64,
    pub(super) disk: u64,
}

impl Summary {
    /// Adds a rank of the instance.
    pub(super) fn add(&mut self, rank: u32, overlap: Overlap, prompt: &Prompt) {
        let [gpu, cpu, disk] =
            [overlap.device, overlap.host, overlap.disk].map(|blocks| prompt.tokens(blocks));
        self.gpu = self.gpu.max(gpu);
        self.cpu = self.cpu.max(cpu);
        self.disk = self.disk.max(disk);
        self.longest_matched = self.longest_matched.max(gpu).max(cpu).max(disk);
        self.dp.insert(rank.to_string(), gpu);
    }
}

/// Overlap of a candidate, put together again from what each tier adds.
pub(super) fn overlap(terms: &Terms) -> Overlap {
    let host = terms.device_blocks + terms.host_blocks;
    Overlap { device: terms.device_blocks, host, disk: host + terms.disk_blocks }
}

/// How much of a prompt a rank has, in blocks.
#[derive(Serialize)]
pub(super) struct Score {
    pub(super) worker_id: u64,
    pub(super) dp_rank: u32,
    pub(super) device_blocks: u32,
    pub(super) host_pinned_blocks: u32,
    pub(super) disk_blocks: u32,
    /// What a tier adds to those before it.
    pub(super) host_pinned_extension_blocks: u32,
    pub(super) disk_extension_blocks: u32,
    /// Blocks of prefill that this is worth to the router.
    pub(super) router_credit_blocks: f64,
}

impl Score {
    pub(super) fn new(source: WorkerRank, overlap: Overlap, router: &Router) -> Self {
        Self {
            worker_id: source.worker.0,
            dp_rank: source.rank,
            device_blocks: overlap.device,
            host_pinned_blocks: overlap.host,
            disk_blocks: overlap.disk,
            host_pinned_extension_blocks: overlap.host_beyond(),
            disk_extension_blocks: overlap.disk_beyond(),
            router_credit_blocks: router.credit(overlap),
        }
    }
}

#[derive(Serialize)]
pub(super) struct Scores {
    pub(super) model_name: Arc<str>,
    pub(super) block_size: u32,
    pub(super) num_blocks: usize,
    pub(super) workers: Vec<Score>,
}

/// As the indexer answers: instances and ranks that have nothing are left out.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Found {
    /// By instance and rank, what lies on the device.
    pub(super) scores: BTreeMap<String, BTreeMap<String, u64>>,
    pub(super) instances: BTreeMap<String, Summary>,
}

impl Found {
    pub(super) fn new(ranks: Vec<(WorkerRank, Overlap)>, prompt: &Prompt) -> Self {
        let mut found = Self::default();
        for (source, overlap) in ranks.into_iter().filter(|(_, overlap)| overlap.disk > 0) {
            let instance = source.worker.0.to_string();
            if overlap.device > 0 {
                let ranks = found.scores.entry(instance.clone()).or_default();
                ranks.insert(source.rank.to_string(), prompt.tokens(overlap.device));
            }
            found.instances.entry(instance).or_default().add(source.rank, overlap, prompt);
        }
        found
    }
}

/// What is booked on the ranks of a model, or would be.
#[derive(Serialize)]
pub(super) struct Loads {
    pub(super) model_name: Arc<str>,
    pub(super) loads: Vec<RankLoad>,
}

#[derive(Serialize)]
pub(super) struct RankLoad {
    worker_id: u64,
    dp_rank: u32,
    potential_prefill_tokens: u64,
    potential_decode_blocks: f64,
    /// Only of what is booked.
    #[serde(skip_serializing_if = "Option::is_none")]
    active_requests: Option<u32>,
    /// What the engine says of itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    reported: Option<Load>,
}

impl RankLoad {
    pub(super) fn booked((source, load): (WorkerRank, BookedLoad)) -> Self {
        Self {
            worker_id: source.worker.0,
            dp_rank: source.rank,
            potential_prefill_tokens: load.prefill_tokens,
            potential_decode_blocks: load.decode_blocks as f64 + load.output_blocks,
            active_requests: Some(load.requests),
            reported: load.reported,
        }
    }

    pub(super) fn potential(load: &PotentialLoad) -> Self {
        Self {
            worker_id: load.target.worker.0,
            dp_rank: load.target.rank,
            potential_prefill_tokens: load.prefill_tokens,
            potential_decode_blocks: load.decode_blocks,
            active_requests: None,
            reported: None,
        }
    }
}

/// A worker of the catalog.
#[derive(Serialize)]
pub(super) struct Record {
    pub(super) worker_id: u64,
    pub(super) model_name: Arc<str>,
    /// `schedulable`, `draining`, `unschedulable`, or `incomplete` for one named by hand of which too little is known.
    pub(super) lifecycle: &'static str,
    /// Nothing of a worker that was refused.
    #[serde(flatten)]
    pub(super) described: Option<Described>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) not_schedulable_reasons: Vec<String>,
}

/// What the workers cache.
#[derive(Serialize)]
pub(super) struct Dump {
    pub(super) workers: Vec<Cache>,
}

/// What one rank caches: `events` make an empty index hold it, and stand for everything up to `sequence`.
#[derive(Serialize)]
pub(super) struct Cache {
    worker_id: u64,
    dp_rank: u32,
    model_name: Arc<str>,
    block_size: u32,
    epoch: u64,
    sequence: u64,
    events: Vec<KvEvent>,
}

impl Cache {
    pub(super) fn new(model_name: Arc<str>, block_size: u32, batch: Arc<KvEventBatch>) -> Self {
        let KvEventBatch { source, epoch, sequence, events } = Arc::unwrap_or_clone(batch);
        Self {
            worker_id: source.worker.0,
            dp_rank: source.rank,
            model_name,
            block_size,
            epoch,
            sequence,
            events,
        }
    }
}

#[derive(Serialize)]
pub(super) struct Described {
    endpoint: String,
    block_size: u32,
    data_parallel_start_rank: u32,
    data_parallel_size: usize,
    max_num_batched_tokens: u32,
    total_kv_blocks: u32,
}

impl Described {
    /// One named by hand, as far as it is known.
    pub(super) fn named(named: &Named) -> Self {
        Self {
            endpoint: named.endpoint.clone().unwrap_or_default(),
            block_size: named.block_size.unwrap_or_default(),
            data_parallel_start_rank: 0,
            data_parallel_size: 1,
            max_num_batched_tokens: named.max_num_batched_tokens.unwrap_or_default(),
            total_kv_blocks: named.total_kv_blocks.unwrap_or_default(),
        }
    }

    pub(super) fn new(worker: &Worker, ranks: usize) -> Self {
        Self {
            endpoint: worker.instance.transport.to_string(),
            block_size: worker.card.blocks.block_size,
            data_parallel_start_rank: 0,
            data_parallel_size: ranks,
            max_num_batched_tokens: worker.card.max_num_batched_tokens,
            total_kv_blocks: worker.card.total_kv_blocks,
        }
    }
}
