//! What is asked of the router and what it answers.

use crate::booking::Booking;
use dynamo_types::{InstanceId, Load, WorkerRank};
use serde::Serialize;
use std::fmt;

/// What of a selection is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lap {
    /// The prompt's blocks have their sequence hashes.
    Hashed,
    /// The prefix index was walked.
    Matched,
}

/// Told of each [`Lap`] of a selection, in modes that look at blocks: whoever asks has the clock.
#[derive(Clone, Copy, Default)]
pub struct Laps<'a>(Option<&'a dyn Fn(Lap)>);

impl<'a> Laps<'a> {
    pub fn new(told: &'a dyn Fn(Lap)) -> Self {
        Self(Some(told))
    }

    pub(crate) fn tell(self, lap: Lap) {
        if let Some(told) = self.0 {
            told(lap);
        }
    }
}

impl fmt::Debug for Laps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Laps")
    }
}

/// One request to place. Build it with `..Query::default()`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Query<'a> {
    /// The prompt.
    pub tokens: &'a [u32],
    /// Local hashes of the prompt's complete blocks under its LoRA and salt
    /// ([`dynamo_types::hash::local_hashes`]). None: computed here, without LoRA and salt.
    pub local_hashes: Option<&'a [u64]>,
    /// Sequence hashes of the same blocks, where the caller has chained them already; they win over the local ones.
    pub sequence_hashes: Option<&'a [u64]>,
    /// Length of the prompt, in tokens, where the tokens themselves are not at hand.
    pub length: Option<u32>,
    /// Expected answer length, in tokens: output blocks then weigh less the nearer the end is.
    pub expected_output_tokens: Option<u32>,
    /// Worker, and rank if it matters, that the client insists on.
    pub pinned: Option<(InstanceId, Option<u32>)>,
    /// The rank it has to be where no worker is pinned.
    pub rank: Option<u32>,
    /// Workers that failed this request already.
    pub excluded: &'a [InstanceId],
    /// Goes on with an answer that another worker began: where all are busy it is let in all the same.
    pub begun: bool,
    /// Length of the prefix, in blocks, found in a cache that all workers share.
    pub shared_blocks: u32,
    /// The caller's monotonic clock, in milliseconds; suspensions are measured against it.
    pub now_ms: u64,
    /// Fill [`Selection::explain`].
    pub explain: bool,
    pub laps: Laps<'a>,
}

impl Query<'_> {
    /// Length of the prompt, in tokens.
    pub fn prompt_tokens(&self) -> u64 {
        self.length.map_or(self.tokens.len() as u64, u64::from)
    }
}

/// The answer: where to send the request, with its load already booked there.
#[derive(Debug)]
pub struct Selection {
    pub target: WorkerRank,
    /// Prompt blocks cached on the target's device.
    pub overlap_blocks: u32,
    /// The most that any of the candidates has of them.
    pub best_overlap_blocks: u32,
    /// How many candidates there were to choose from.
    pub candidates: u32,
    /// One row per eligible candidate, if asked for.
    pub explain: Option<Vec<Terms>>,
    /// Holds the load on the target until dropped.
    pub booking: Booking,
}

/// The cost of one candidate, term by term (behaviour.md 2.2). Loads in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Terms {
    pub target: WorkerRank,
    /// Prefill queued on the candidate plus this prompt, before any credit.
    pub raw_prefill_blocks: f64,
    pub device_blocks: u32,
    pub host_blocks: u32,
    pub disk_blocks: u32,
    pub shared_blocks: u32,
    /// Factor on the device credit.
    pub decay: f64,
    pub credit: f64,
    /// `max(0, raw_prefill_blocks - credit)`.
    pub adjusted_prefill_blocks: f64,
    pub potential_decode_blocks: f64,
    pub active_requests: u32,
    pub cost: f64,
}

/// What is booked on a rank, and what its engine last said of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BookedLoad {
    /// Requests in flight.
    pub requests: u32,
    /// How many of them other routers placed.
    pub peer_requests: u32,
    /// Prompt tokens to compute, of requests without a first token yet.
    pub prefill_tokens: u64,
    /// Complete prompt blocks in use; shared ones once.
    pub decode_blocks: u64,
    /// Blocks of answers (`track_output_blocks`), weighted by what is still expected.
    pub output_blocks: f64,
    pub draining: bool,
    /// None until the first report.
    pub reported: Option<Load>,
}

impl BookedLoad {
    /// Is anything booked?
    pub fn is_idle(&self) -> bool {
        self.requests == 0 && self.prefill_tokens == 0 && self.decode_blocks == 0 && self.output_blocks == 0.0
    }
}

/// What a rank would carry were a request sent there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PotentialLoad {
    pub target: WorkerRank,
    pub prefill_tokens: u64,
    pub decode_blocks: f64,
}

/// Size of the prefix index, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexSize {
    pub nodes: usize,
    pub bytes: usize,
}
