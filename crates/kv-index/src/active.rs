//! Which ranks use which blocks for requests in flight: the unique block set behind a router's load accounting
//! (behaviour.md 2.3).
//!
//! Requests come and go as whole chains, so chains are kept as runs that part where requests part: booking a prompt of
//! any length touches as many runs as it shares with others, not as many as it has blocks. A run is split where a
//! chain leaves it or ends in it, so there are never more runs than blocks in use.

use crate::holders::Slot;
use crate::prefix::{Active, Lengths};
use rustc_hash::FxHashMap;

type RunId = u32;

/// Blocks that follow each other and are used by the same requests.
#[derive(Debug, Default)]
struct Run {
    /// Sequence hashes; not empty while in use.
    hashes: Vec<u64>,
    parent: Option<RunId>,
    /// How many requests of each slot, sorted by slot; none is zero.
    users: Vec<(Slot, u32)>,
    /// The slots in `users`, as bits.
    slots: Vec<u64>,
}

impl Run {
    /// One more request of `slot`; true if it is the first.
    fn add(&mut self, slot: Slot) -> bool {
        match self.users.binary_search_by_key(&slot, |(user, _)| *user) {
            Ok(at) => {
                self.users[at].1 += 1;
                false
            }
            Err(at) => {
                self.users.insert(at, (slot, 1));
                let word = slot as usize / 64;
                if self.slots.len() <= word {
                    self.slots.resize(word + 1, 0);
                }
                self.slots[word] |= 1 << (slot % 64);
                true
            }
        }
    }

    fn position(&self, slot: Slot) -> Option<usize> {
        self.users.binary_search_by_key(&slot, |(user, _)| *user).ok()
    }

    fn word(&self, word: usize) -> u64 {
        self.slots.get(word).copied().unwrap_or(0)
    }
}

/// What a request uses: give it back to [`ActiveBlocks::release`]. Void once its slot was cleared.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ticket(Option<RunId>);

/// Reference-counted blocks by slot.
#[derive(Debug, Default)]
pub struct ActiveBlocks {
    /// Those in `free` are empty.
    runs: Vec<Run>,
    free: Vec<RunId>,
    /// By first hash, which names its place in all chains.
    heads: FxHashMap<u64, RunId>,
    /// Distinct blocks in use, by slot.
    counts: Vec<u64>,
}

impl ActiveBlocks {
    pub fn new() -> Self {
        Self::default()
    }

    /// A request on `slot` begins to use a chain that starts at the root.
    pub fn acquire(&mut self, slot: Slot, sequence_hashes: &[u64]) -> Ticket {
        if self.counts.len() <= slot as usize {
            self.counts.resize(slot as usize + 1, 0);
        }
        let mut rest = sequence_hashes;
        let mut last = None;
        while let Some(head) = rest.first() {
            let run = match self.heads.get(head) {
                Some(run) => {
                    let shared = common(&self.runs[*run as usize].hashes, rest);
                    self.split(*run, shared)
                }
                None => self.insert(Run { hashes: rest.to_vec(), parent: last, ..Run::default() }),
            };
            let added = &mut self.runs[run as usize];
            let blocks = added.hashes.len();
            if added.add(slot) {
                self.counts[slot as usize] += blocks as u64;
            }
            rest = &rest[blocks..];
            last = Some(run);
        }
        Ticket(last)
    }

    /// It is done with them.
    #[expect(clippy::needless_pass_by_value, reason = "a ticket is good for one release")]
    pub fn release(&mut self, slot: Slot, ticket: Ticket) {
        let Ticket(mut next) = ticket;
        while let Some(id) = next {
            let run = &mut self.runs[id as usize];
            let Some(at) = run.position(slot) else { return };
            next = run.parent;
            run.users[at].1 -= 1;
            if run.users[at].1 == 0 {
                self.drop_user(id, at);
            }
        }
    }

    /// Forgets what `slot` uses.
    pub fn clear(&mut self, slot: Slot) {
        for id in 0..self.runs.len() {
            if let Some(at) = self.runs[id].position(slot) {
                self.drop_user(id as RunId, at);
            }
        }
    }

    /// Distinct blocks in use on `slot`.
    pub fn count(&self, slot: Slot) -> u64 {
        self.counts.get(slot as usize).copied().unwrap_or(0)
    }

    /// How many of the prompt's blocks each slot uses already ([`Lengths::of`], `device`).
    pub fn overlap(&self, sequence_hashes: &[u64], lengths: &mut Lengths) {
        let (overlaps, words) = lengths.reset(self.counts.len());
        let mut ended = |slot: usize, len| overlaps[slot].device = len;
        let mut active = Active::new(words, self.counts.len());
        let mut rest = sequence_hashes;
        while let Some(run) = rest.first().and_then(|head| self.heads.get(head)) {
            let run = &self.runs[*run as usize];
            let shared = common(&run.hashes, rest);
            rest = &rest[shared..];
            if !active.narrow(shared as u32, |word| run.word(word), &mut ended) {
                return;
            }
            if shared < run.hashes.len() {
                break;
            }
        }
        active.end(ended);
    }

    /// The run of the first `len` blocks of `run`. What is behind them keeps the id, which tickets and children know.
    fn split(&mut self, run: RunId, len: usize) -> RunId {
        let lower = &mut self.runs[run as usize];
        if len == lower.hashes.len() {
            return run;
        }
        let rest = lower.hashes.split_off(len);
        let mut hashes = std::mem::replace(&mut lower.hashes, rest);
        hashes.shrink_to_fit();
        let upper =
            Run { hashes, parent: lower.parent, users: lower.users.clone(), slots: lower.slots.clone() };
        self.heads.insert(lower.hashes[0], run);
        let upper = self.insert(upper);
        self.runs[run as usize].parent = Some(upper);
        upper
    }

    fn insert(&mut self, run: Run) -> RunId {
        let head = run.hashes[0];
        let id = match self.free.pop() {
            Some(id) => {
                self.runs[id as usize] = run;
                id
            }
            None => {
                self.runs.push(run);
                (self.runs.len() - 1) as RunId
            }
        };
        self.heads.insert(head, id);
        id
    }

    fn drop_user(&mut self, id: RunId, at: usize) {
        let run = &mut self.runs[id as usize];
        let (slot, _) = run.users.remove(at);
        run.slots[slot as usize / 64] &= !(1 << (slot % 64));
        self.counts[slot as usize] -= run.hashes.len() as u64;
        if run.users.is_empty() {
            self.heads.remove(&run.hashes[0]);
            *run = Run::default();
            self.free.push(id);
        }
    }

    #[cfg(test)]
    fn run_count(&self) -> usize {
        self.heads.len()
    }
}

/// Length of the common prefix.
fn common(left: &[u64], right: &[u64]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dynamo_types::hash::sequence_hashes;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn equals_reference_counted_sets(
            steps in prop::collection::vec((0u8..8, 0u32..4, prop::collection::vec(0u64..2, 0..9)), 1..120),
        ) {
            let mut active = ActiveBlocks::new();
            let mut held: Vec<(Slot, Vec<u64>, Ticket)> = Vec::new();
            let mut lengths = Lengths::default();
            for (action, slot, locals) in steps {
                let chain = sequence_hashes(&locals);
                match action {
                    0..4 => {
                        let ticket = active.acquire(slot, &chain);
                        held.push((slot, chain.clone(), ticket));
                    }
                    4..7 if !held.is_empty() => {
                        let (slot, _, ticket) = held.swap_remove(locals.len() % held.len());
                        active.release(slot, ticket);
                    }
                    7 if locals.len() > 6 => {
                        active.clear(slot);
                        held.retain(|(user, ..)| *user != slot);
                    }
                    _ => {}
                }
                active.overlap(&chain, &mut lengths);
                let mut all = BTreeSet::new();
                for slot in 0..4 {
                    let chains = held.iter().filter(|(user, ..)| *user == slot).map(|(_, chain, _)| chain);
                    let used: BTreeSet<u64> = chains.flatten().copied().collect();
                    prop_assert_eq!(active.count(slot) as usize, used.len());
                    let shared = chain.iter().take_while(|hash| used.contains(*hash)).count();
                    prop_assert_eq!(lengths.of(slot).device as usize, shared);
                    all.extend(used);
                }
                prop_assert!(active.run_count() <= all.len());
                prop_assert_eq!(active.run_count() == 0, all.is_empty());
            }
            held.into_iter().for_each(|(slot, _, ticket)| active.release(slot, ticket));
            prop_assert_eq!((active.run_count(), active.counts.iter().sum::<u64>()), (0, 0));
        }
    }
}
