//! Where a publisher's numbering stands (DESIGN 3.5, R32, R33).

use crate::report::Gap;
use dynamo_types::{KvEvent, KvEventBatch};

/// The epoch of publishers that have none (engines' own event sockets). Their numbering starts at 0 with every life,
/// so 0 itself announces a new one; and a repeated 0 followed by the rest of a replay ends in the same state.
const NO_EPOCH: u64 = 0;

/// Former lives whose stragglers are known as such: an engine that begins anew more often while its words are on the way
/// has other troubles.
const LIVES: usize = 4;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watermark {
    started: bool,
    epoch: u64,
    /// The sequence expected next.
    next: u64,
    /// The lives before this one, the latest first; their stragglers must not look like another.
    past: [Option<u64>; LIVES],
}

/// What to do with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Apply,
    Duplicate,
    Gap(Gap),
}

impl Watermark {
    /// Takes note of the batch. The flag says that a new life began and what the old one said is void. A batch that
    /// starts with `Cleared` needs nothing before it, so it is a snapshot and never a gap.
    pub(crate) fn admit(&mut self, batch: &KvEventBatch, past_gaps: bool) -> (Verdict, bool) {
        if !self.started {
            *self = Self { started: true, epoch: batch.epoch, next: 0, past: [None; LIVES] };
        }
        if self.past.contains(&Some(batch.epoch)) {
            return (Verdict::Duplicate, false);
        }
        let new_epoch = batch.epoch != self.epoch;
        let counts_anew = batch.epoch == NO_EPOCH && batch.sequence == 0 && self.next > 0;
        if new_epoch {
            self.past.rotate_right(1);
            if let Some(latest) = self.past.first_mut() {
                *latest = Some(self.epoch);
            }
            (self.epoch, self.next) = (batch.epoch, 0);
        } else if counts_anew {
            self.next = 0;
        }
        let restarted = new_epoch || counts_anew;
        if batch.sequence < self.next {
            return (Verdict::Duplicate, restarted);
        }
        let snapshot = matches!(batch.events.first(), Some(KvEvent::Cleared));
        if batch.sequence > self.next && !snapshot && !past_gaps {
            return (Verdict::Gap(Gap { expected: self.next, found: batch.sequence }), restarted);
        }
        self.next = batch.sequence.saturating_add(1);
        (Verdict::Apply, restarted)
    }
}
