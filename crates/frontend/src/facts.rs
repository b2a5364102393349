//! What an answer may tell of how it was made, where a client asks (behaviour.md 1.7).

use dynamo_types::WorkerRank;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// Where a choice was placed, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) target: WorkerRank,
    /// Sent to that worker.
    pub(crate) sent: Instant,
    /// Its first token came.
    pub(crate) first: Option<Instant>,
    /// Share of the prompt's blocks that the router found there. None if it did not look.
    pub(crate) hit_rate: Option<f64>,
}

/// The same, as of now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) placed: Placed,
    pub(crate) received: Instant,
    pub(crate) now: Instant,
}

impl Facts {
    /// When the request was received, in Unix time.
    pub(crate) fn received_unix_ms(&self) -> u64 {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(unix.saturating_sub(self.received.elapsed()).as_millis()).unwrap_or(u64::MAX)
    }
}
