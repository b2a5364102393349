//! What the index answers: the outcome of a batch of events, and overlap lengths.

use dynamo_types::WorkerRank;

/// A hole in a publisher's numbering: batches `expected..found` never arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub expected: u64,
    pub found: u64,
}

/// What became of one batch. Counters are blocks, not events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Blocks stored or removed as told.
    pub ok: u32,
    /// Stored blocks whose parent is not known; they wait for it (bounded).
    pub parent_missing: u32,
    /// Removed blocks that were not held.
    pub block_missing: u32,
    /// Stored blocks beyond the limit of blocks per rank; not taken.
    pub over_limit: u32,
    /// The whole batch was seen before (or belongs to a past life of the publisher) and changed nothing.
    pub duplicate: bool,
    /// The source is not registered and cannot be; the batch changed nothing.
    pub unknown_source: bool,
    /// The publisher started a new life: all it said before was forgotten first.
    pub restarted: bool,
    /// Batches are missing before this one, so **it was not applied** and the watermark stands. Replay from `expected`
    /// (this batch included), or send a snapshot (a batch that starts with `Cleared`), or accept the loss with
    /// `apply_past_gap`.
    pub gap: Option<Gap>,
}

/// Length of the longest cached prefix of a prompt on one rank, in blocks, by tier. Each length includes those before
/// it, so `device <= host <= disk`: a host block counts where the device prefix (and what host continued) ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    pub device: u32,
    pub host: u32,
    pub disk: u32,
}

impl Overlap {
    /// Blocks that only host memory adds to the device prefix.
    pub fn host_beyond(&self) -> u32 {
        self.host.saturating_sub(self.device)
    }

    /// Blocks that only disk adds to the prefix in device and host memory.
    pub fn disk_beyond(&self) -> u32 {
        self.disk.saturating_sub(self.host)
    }
}

/// The ranks that hold a prefix of a prompt. Ranks with nothing are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matches {
    pub ranks: Vec<(WorkerRank, Overlap)>,
}

impl Matches {
    /// Overlap of one rank; zero if it holds nothing.
    pub fn of(&self, source: WorkerRank) -> Overlap {
        self.ranks.iter().find(|(rank, _)| *rank == source).map(|(_, overlap)| *overlap).unwrap_or_default()
    }
}
