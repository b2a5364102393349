//! What one engine says, in its order: late starts, gaps, duplicates and restarts of a publisher that knows no epochs (R32, R33).
//!
//! A message is known by its number and a fingerprint of its bytes, which have a time in them. So a number that comes again is a
//! duplicate if its bytes are the same, and else another life of the engine. Whoever asks for a replay asks from the last message that it
//! knows on: if that one is another now, or nothing comes, the engine's life is another one.

use super::ledger::Ledger;
use super::wire;
use dynamo_types::{InstanceId, KvEvent, KvEventBatch, WorkerRank};
use std::collections::{BTreeMap, VecDeque};
use xxhash_rust::xxh3::xxh3_64;

/// Fingerprints that are kept: further back than any message comes late on one connection.
const MAX_RECENT: usize = 1024;

/// Ranks of one publisher; engines have one each.
const MAX_RANKS: usize = 64;

/// Whose events they are.
#[derive(Clone, Debug)]
pub struct Source {
    pub worker: InstanceId,
    /// Where a message names no rank of its own.
    pub rank: u32,
    /// Tokens per block. Blocks of another size are left out, for no prompt would be cut like them.
    pub block_size: u32,
    /// Names this life of the feed; higher than that of any before it. The time of the start serves.
    pub epoch: u64,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub messages: u64,
    pub duplicates: u64,
    /// Replays that were asked for because messages were missing.
    pub recoveries: u64,
    /// Messages that could not be had any more.
    pub lost: u64,
    pub restarts: u64,
    /// Messages and events that could not be understood, or do not fit the block size.
    pub skipped: u64,
}

/// A message without its topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) sequence: u64,
    pub(super) payload: Vec<u8>,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Done,
    /// Ask for all from this number on, and give the answer to [`Feed::replayed`].
    Replay {
        from: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Next,
    Duplicate,
    /// Messages before it are missing.
    Gap,
    /// Another life of the engine.
    Restart,
}

/// One publisher's messages on their way to the event plane.
pub(super) struct Feed {
    source: Source,
    /// There is somebody to ask for a replay.
    can_replay: bool,
    /// The number that comes next; none before the first.
    next: Option<u64>,
    recent: VecDeque<(u64, u64)>,
    /// Came after a gap and waits for what was missing. Nothing else is read meanwhile.
    pending: Option<Message>,
    /// A replay of everything was asked for, so the answer is all there is.
    asked_all: bool,
    ranks: BTreeMap<u32, Rank>,
    out: Vec<KvEventBatch>,
    counts: Counts,
}

#[derive(Default)]
struct Rank {
    ledger: Ledger,
    /// Of our next batch in this epoch.
    sequence: u64,
}

impl Feed {
    pub(super) fn new(source: Source, can_replay: bool) -> Self {
        Self {
            source,
            can_replay,
            next: None,
            recent: VecDeque::new(),
            pending: None,
            asked_all: false,
            ranks: BTreeMap::new(),
            out: Vec::new(),
            counts: Counts::default(),
        }
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Batches to publish, in their order.
    pub(super) fn take(&mut self) -> Vec<KvEventBatch> {
        std::mem::take(&mut self.out)
    }

    /// A connection was made: what was said before, and while there was none, is asked for.
    pub(super) fn connected(&mut self) -> Step {
        self.pending = None;
        if self.can_replay { self.ask() } else { Step::Done }
    }

    fn ask(&mut self) -> Step {
        let from = self.next.map_or(0, |next| next.saturating_sub(1));
        self.asked_all = from == 0;
        Step::Replay { from }
    }

    /// A message came.
    pub(super) fn live(&mut self, message: Message) -> Step {
        self.counts.messages += 1;
        match self.judge(&message) {
            Verdict::Next => self.accept(&message),
            Verdict::Duplicate => self.counts.duplicates += 1,
            Verdict::Gap if self.can_replay => return self.recover(message),
            Verdict::Gap => self.accept(&message),
            Verdict::Restart => {
                self.restart();
                // The life before is void; this one may have said more before.
                return self.live_again(message);
            }
        }
        Step::Done
    }

    fn live_again(&mut self, message: Message) -> Step {
        if message.sequence > 0 && self.can_replay {
            return self.recover(message);
        }
        self.accept(&message);
        Step::Done
    }

    fn recover(&mut self, message: Message) -> Step {
        self.counts.recoveries += 1;
        self.pending = Some(message);
        self.ask()
    }

    /// The answer to a replay, in its order.
    pub(super) fn replayed(&mut self, messages: &[Message]) -> Step {
        let asked_all = std::mem::take(&mut self.asked_all);
        if let Some(last) = self.next.map(|next| next.saturating_sub(1)) {
            let same = |message: &Message| match self.judge(message) {
                Verdict::Restart => Some(false),
                _ => Some(true),
            };
            let known = messages.iter().find(|message| message.sequence == last).and_then(same);
            // A publisher that lives has what it said last; a ring that has moved on past it begins later.
            let is_another = known == Some(false) || messages.is_empty();
            if is_another {
                self.restart();
                if !asked_all {
                    return self.ask();
                }
            }
        }
        messages.iter().for_each(|message| self.catch_up(message));
        self.end_replay();
        Step::Done
    }

    /// Nobody answered, so what is missing is lost.
    pub(super) fn not_replayed(&mut self) {
        self.asked_all = false;
        self.end_replay();
    }

    fn end_replay(&mut self) {
        if let Some(message) = self.pending.take() {
            self.catch_up(&message);
        }
    }

    /// Applies a message, whatever is missing before it.
    fn catch_up(&mut self, message: &Message) {
        match self.judge(message) {
            Verdict::Next | Verdict::Gap => self.accept(message),
            Verdict::Duplicate => {}
            Verdict::Restart => {
                self.restart();
                self.accept(message);
            }
        }
    }

    fn judge(&self, message: &Message) -> Verdict {
        let Some(next) = self.next else {
            return if message.sequence == 0 { Verdict::Next } else { Verdict::Gap };
        };
        if message.sequence >= next {
            return if message.sequence == next { Verdict::Next } else { Verdict::Gap };
        }
        let fingerprint = xxh3_64(&message.payload);
        match self.recent.iter().find(|(sequence, _)| *sequence == message.sequence) {
            Some((_, known)) if *known == fingerprint => Verdict::Duplicate,
            // One that was lost comes late: it cannot be put in its place any more.
            None if self.recent.front().is_some_and(|(oldest, _)| *oldest < message.sequence) => {
                Verdict::Duplicate
            }
            _ => Verdict::Restart,
        }
    }

    /// Whatever was said is void, and routers are told so.
    fn restart(&mut self) {
        self.counts.restarts += 1;
        self.next = None;
        self.recent.clear();
        self.source.epoch += 1;
        let ranks: Vec<u32> = self.ranks.keys().copied().collect();
        for rank in ranks {
            self.ranks.insert(rank, Rank::default());
            self.publish(rank, vec![KvEvent::Cleared]);
        }
    }

    fn accept(&mut self, message: &Message) {
        self.counts.lost += message.sequence - self.next.unwrap_or(0).min(message.sequence);
        self.next = Some(message.sequence.saturating_add(1));
        if self.recent.len() >= MAX_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((message.sequence, xxh3_64(&message.payload)));
        let Some(payload) = wire::decode(&message.payload) else {
            self.counts.skipped += 1;
            return;
        };
        self.counts.skipped += payload.skipped;
        let rank = payload.dp_rank.unwrap_or(self.source.rank);
        if !self.ranks.contains_key(&rank) && self.ranks.len() >= MAX_RANKS {
            self.counts.skipped += 1;
            return;
        }
        let ledger = &mut self.ranks.entry(rank).or_default().ledger;
        let mut events = Vec::new();
        for event in &payload.events {
            if !ledger.apply(event, self.source.block_size, &mut events) {
                self.counts.skipped += 1;
            }
        }
        if !events.is_empty() {
            self.publish(rank, events);
        }
    }

    fn publish(&mut self, rank: u32, events: Vec<KvEvent>) {
        let state = self.ranks.entry(rank).or_default();
        self.out.push(KvEventBatch {
            source: WorkerRank::new(self.source.worker, rank),
            epoch: self.source.epoch,
            sequence: state.sequence,
            events,
        });
        state.sequence += 1;
    }
}

#[cfg(test)]
mod tests;
