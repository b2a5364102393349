//! What workers say about their KV cache and load (behaviour.md 2.6, DESIGN 3.5).

use crate::ids::WorkerRank;
use serde::{Deserialize, Serialize};

/// Where a block lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StorageTier {
    #[default]
    Device,
    HostPinned,
    Disk,
    External,
}

/// One block of a [`KvEvent::Stored`] chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredBlock {
    /// The engine's own name for the block; opaque, unique per worker. Ours is the sequence hash.
    pub block_hash: u64,
    /// Local hash of the block's tokens ([`crate::hash::local_hash`]).
    pub tokens_hash: u64,
}

/// A change of one worker's cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvEvent {
    /// A chain of blocks became available, first one after `parent` (none: at the root).
    Stored { parent: Option<u64>, blocks: Vec<StoredBlock>, tier: StorageTier },
    /// Blocks are gone, by the engine's own names.
    Removed { hashes: Vec<u64>, tier: StorageTier },
    /// The rank forgot everything.
    Cleared,
}

/// What one engine step changed. `sequence` grows by one per batch within an `epoch`; a new epoch is a new life of
/// the publisher, and everything it said before is void (R33).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvEventBatch {
    pub source: WorkerRank,
    pub epoch: u64,
    pub sequence: u64,
    pub events: Vec<KvEvent>,
}

/// How busy a rank is, as seen by its engine after a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// Requests that hold blocks and advance.
    pub running: u32,
    /// Requests accepted and not started.
    pub waiting: u32,
    /// Prompt tokens accepted and not computed yet.
    pub prefill_tokens: u32,
    /// Blocks held by running requests (shared ones once).
    pub active_blocks: u32,
    /// Blocks kept for reuse, free to take.
    pub cached_blocks: u32,
    pub total_blocks: u32,
}

/// What an engine reports after each step that changed something.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepReport {
    pub events: Vec<KvEvent>,
    /// Tokens of all blocks that `events` stored, one block after another; empty unless the observer wants them.
    pub stored_tokens: Vec<u32>,
    pub load: Load,
    /// Rows of the step's flat batch: prompt tokens computed, and tokens sampled.
    pub prefill_tokens: u32,
    pub decode_tokens: u32,
    pub step_us: u32,
    /// Running requests that lost their blocks to others and will be recomputed.
    pub preempted: u32,
}

/// Listens to an engine. Called on the engine's thread after the deltas of a step were pushed, so it must not block;
/// a transport uses it to write one frame per step.
pub trait StepObserver: Send + Sync {
    fn on_step(&self, report: StepReport);

    /// Are the tokens of stored blocks to be reported? Asked once, before the first step.
    fn wants_tokens(&self) -> bool {
        false
    }
}
