//! The event plane: what workers say about their KV cache and load (DESIGN 3.5).
//!
//! Every source has an epoch and a sequence. A subscriber says where it stands with each source (nowhere, at first)
//! and gets what it misses: the batches themselves while the publisher still has them, else a snapshot. So start-up,
//! a subscriber that fell behind, and a publisher that restarted are one and the same code (R25, R32, R33).

mod local;
mod mirror;
pub mod zmq;

pub use local::{Local, Options, Subscription};
pub use mirror::Mirror;

use dynamo_types::{KvEventBatch, Load, WorkerRank};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A bus between the workers and the routers of one deployment. Publishing never blocks and never fails: a subscriber
/// that cannot take it now gets it later.
pub trait EventPlane: Send + Sync {
    /// Publishes what one engine step changed. Batches of a source come in the order of their sequence.
    fn publish_kv(&self, batch: KvEventBatch);

    /// Publishes a rank's load; only the latest value counts.
    fn publish_load(&self, source: WorkerRank, load: Load);

    /// Forgets a source whose worker is gone, ring and snapshot included.
    fn retire(&self, source: WorkerRank);

    /// Subscribes to all sources, from these positions on.
    fn subscribe_from(&self, positions: &[(WorkerRank, Position)]) -> Subscription;

    /// Subscribes to all sources: a snapshot of each first, then what follows.
    fn subscribe(&self) -> Subscription {
        self.subscribe_from(&[])
    }
}

/// The last batch of a source that a subscriber has applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    pub epoch: u64,
    pub sequence: u64,
}

/// May a batch of this epoch be taken by who stands at `known`? A life begins with a snapshot. What comes before it is of a
/// subscription that was made for others, and would hide what the source held until then.
pub fn continues(known: Option<Position>, epoch: u64) -> bool {
    known.is_some_and(|known| known.epoch == epoch)
}

/// What a subscriber gets.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Everything the source holds: `Cleared`, then the chains, parents first. It stands for all batches up to and
    /// including its sequence.
    Snapshot(Arc<KvEventBatch>),
    /// The batch after the one before.
    Kv(Arc<KvEventBatch>),
    /// The latest load of a rank.
    Load(WorkerRank, Load),
}
