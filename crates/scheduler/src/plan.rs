//! What one step computes, and what came of it.

use crate::slab::SequenceId;
use dynamo_types::FinishReason;

/// Consecutive tokens of one sequence to compute in this step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub sequence: SequenceId,
    /// Position of the first token; all before it are in the sequence's blocks already.
    pub start: usize,
    /// How many tokens; at least 1.
    pub len: usize,
    /// The last of them is the newest of the sequence: sample the next one from its logits.
    pub sample: bool,
    /// A single generated token, as opposed to a piece of a prompt (or of what is computed again after a preemption).
    pub decode: bool,
}

impl Segment {
    /// Position after the last token.
    pub fn end(&self) -> usize {
        self.start + self.len
    }
}

/// One step: a flat batch. At most one segment per sequence, decode rows first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub segments: Vec<Segment>,
    /// Sequences that lost their blocks to others in this step. They wait at the head of the queue, keep their tokens, and are
    /// computed again later; nothing they emitted is emitted again.
    pub preempted: Vec<SequenceId>,
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Rows of the flat batch.
    pub fn tokens(&self) -> usize {
        self.segments.iter().map(|segment| segment.len).sum()
    }

    /// Rows that are not decode rows.
    pub fn prefill_tokens(&self) -> usize {
        self.segments.iter().filter(|segment| !segment.decode).map(|segment| segment.len).sum()
    }

    /// Tokens that will be sampled.
    pub fn samples(&self) -> usize {
        self.segments.iter().filter(|segment| segment.sample).count()
    }
}

/// The token chosen for a segment with `sample` set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    pub sequence: SequenceId,
    pub token: u32,
    /// The token ends the answer (end token or stop id).
    pub end: bool,
}

/// A sequence that is over. Its blocks are given back and its id is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    pub sequence: SequenceId,
    pub reason: FinishReason,
}
