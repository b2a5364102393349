//! What routers tell each other about the load they placed (behaviour.md 2.8).

use crate::ids::WorkerRank;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What one request takes of the rank it was sent to, in the words of the router that sent it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub target: WorkerRank,
    /// Prompt tokens to compute; 0 once the first token is there.
    #[serde(default)]
    pub prefill_tokens: u64,
    /// Sequence hashes of the prompt's complete blocks, from the root on: requests share those they have in common.
    #[serde(default)]
    pub blocks: Arc<[u64]>,
    /// Blocks of the prompt that are counted and not named.
    #[serde(default)]
    pub anonymous_blocks: u64,
    /// Thousandths of blocks that its answer takes.
    #[serde(default)]
    pub output_millis: u64,
}

/// Is told what a router places. Called on the path of requests: it must not block.
pub trait Placements: Send + Sync {
    /// A request was placed; the answer names it from now on.
    fn placed(&self, placement: Placement) -> u64;

    /// What it takes is this much now; its blocks stay.
    fn changed(&self, id: u64, prefill_tokens: u64, output_millis: u64);

    /// It is over.
    fn ended(&self, id: u64);
}
