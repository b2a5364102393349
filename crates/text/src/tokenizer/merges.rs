//! Byte-pair merges of one word.

use super::bytes::{Alphabet, ByteTable};
use super::description::Bpe;
use rustc_hash::{FxHashMap, FxHasher};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::Hasher;
use std::sync::atomic::{AtomicU8, Ordering};

/// Not a token, not a merge.
const NONE: u32 = u32::MAX;
/// Up to this many bytes a scan for the best merge beats a heap.
const SCAN_MAX: usize = 48;

/// What merging a word that is in the vocabulary gives. Found out on first use; a race finds the same twice.
const UNKNOWN: u8 = 0;
const WHOLE: u8 = 1;
const SPLIT: u8 = 2;

/// The merge that a pair of neighbours allows.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Position in the list of merges: the smallest goes first.
    rank: u32,
    merged: u32,
}

const NO_MERGE: Candidate = Candidate { rank: NONE, merged: NONE };

/// Vocabulary and merges, over bytes.
#[derive(Debug)]
pub(super) struct Merges {
    /// A vocabulary may lack bytes that its training never saw; such bytes are dropped.
    byte_ids: [u32; 256],
    pairs: FxHashMap<u64, Candidate>,
    /// Open addressing from the bytes of a token to its id, at most half full.
    slots: Vec<u32>,
    /// One state per id.
    whole: Vec<AtomicU8>,
    /// A word in the vocabulary is taken whole, whatever the merges say.
    ignore_merges: bool,
}

/// Buffers that live as long as one text.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    ids: Vec<u32>,
    next: Vec<Candidate>,
    links: Vec<(u32, u32)>,
    heap: BinaryHeap<Reverse<(u32, u32)>>,
}

impl Merges {
    /// None if the vocabulary is not byte-level in every detail that counts.
    pub(super) fn build(model: &Bpe<'_>, table: &ByteTable) -> Option<Self> {
        let alphabet = Alphabet::new();
        let mut byte_ids = [NONE; 256];
        for (char, byte) in alphabet.chars().iter().zip(0usize..) {
            match model.vocab.get(char.encode_utf8(&mut [0; 4]) as &str) {
                Some(&id) => byte_ids[byte] = id,
                None if model.has_unknown_token() => return None,
                None => {}
            }
        }
        let mut merges = Self {
            byte_ids,
            pairs: FxHashMap::with_capacity_and_hasher(model.merges.len(), Default::default()),
            slots: vec![NONE; (model.vocab.len() * 2).next_power_of_two()],
            whole: (0..table.len()).map(|_| AtomicU8::new(UNKNOWN)).collect(),
            ignore_merges: model.ignore_merges(),
        };
        let mut bytes = Vec::new();
        for (token, &id) in &model.vocab {
            bytes.clear();
            if !alphabet.append(&token.0, &mut bytes) {
                // No word of the text can be this.
                continue;
            }
            if table.bytes(id) != bytes {
                return None;
            }
            merges.insert(&bytes, id);
        }
        let mut joined = String::new();
        for (merge, rank) in model.merges.iter().zip(0u32..) {
            let (left, right) = merge.parts()?;
            let pair = key(*model.vocab.get(left)?, *model.vocab.get(right)?);
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            let merged = *model.vocab.get(joined.as_str())?;
            merges.pairs.insert(pair, Candidate { rank, merged });
        }
        Some(merges)
    }

    fn insert(&mut self, bytes: &[u8], id: u32) {
        let mask = self.slots.len() - 1;
        let mut slot = hash(bytes) & mask;
        while self.slots[slot] != NONE {
            slot = (slot + 1) & mask;
        }
        self.slots[slot] = id;
    }

    /// The token of exactly these bytes.
    pub(super) fn token(&self, bytes: &[u8], table: &ByteTable) -> Option<u32> {
        let mask = self.slots.len() - 1;
        let mut slot = hash(bytes) & mask;
        loop {
            match self.slots[slot] {
                NONE => return None,
                id if table.bytes(id) == bytes => return Some(id),
                _ => slot = (slot + 1) & mask,
            }
        }
    }

    /// Appends the tokens of one word.
    pub(super) fn encode(&self, word: &[u8], table: &ByteTable, scratch: &mut Scratch, out: &mut Vec<u32>) {
        if let &[byte] = word {
            out.extend(Some(self.byte_ids[byte as usize]).filter(|&id| id != NONE));
            return;
        }
        let Some(token) = self.token(word, table) else {
            self.merge(word, scratch);
            out.extend_from_slice(&scratch.ids);
            return;
        };
        let state = self.whole.get(token as usize);
        let known = state.map_or(UNKNOWN, |state| state.load(Ordering::Relaxed));
        if self.ignore_merges || known == WHOLE {
            out.push(token);
            return;
        }
        self.merge(word, scratch);
        if let Some(state) = state.filter(|_| known == UNKNOWN) {
            let found = if scratch.ids == [token] { WHOLE } else { SPLIT };
            state.store(found, Ordering::Relaxed);
        }
        out.extend_from_slice(&scratch.ids);
    }

    /// Leaves the tokens of a word in `scratch.ids`: as long as any neighbours merge, those of the smallest rank do,
    /// the leftmost first.
    fn merge(&self, word: &[u8], scratch: &mut Scratch) {
        let Scratch { ids, next, .. } = scratch;
        ids.clear();
        ids.extend(word.iter().map(|&byte| self.byte_ids[byte as usize]).filter(|&id| id != NONE));
        next.clear();
        next.extend(ids.windows(2).map(|pair| self.candidate(pair[0], pair[1])));
        next.push(NO_MERGE);
        if ids.len() > SCAN_MAX {
            return self.merge_long(scratch);
        }
        loop {
            let mut best = 0;
            for at in 1..next.len() {
                if next[at].rank < next[best].rank {
                    best = at;
                }
            }
            let Candidate { rank, merged } = next[best];
            if rank == NONE {
                return;
            }
            // A merge has a right part, so `best + 1` exists.
            ids[best] = merged;
            ids.remove(best + 1);
            next.remove(best + 1);
            next[best] = ids.get(best + 1).map_or(NO_MERGE, |&right| self.candidate(merged, right));
            if best > 0 {
                next[best - 1] = self.candidate(ids[best - 1], merged);
            }
        }
    }

    /// The same with a heap and linked neighbours, for words of any length.
    fn merge_long(&self, scratch: &mut Scratch) {
        let Scratch { ids, next, links, heap } = scratch;
        let len = u32::try_from(ids.len()).unwrap_or(NONE);
        links.clear();
        links.extend((0..len).map(|at| (at.wrapping_sub(1), at + 1)));
        heap.clear();
        heap.extend(
            (0..len)
                .filter(|&at| next[at as usize].rank != NONE)
                .map(|at| Reverse((next[at as usize].rank, at))),
        );
        while let Some(Reverse((rank, at))) = heap.pop() {
            let left = at as usize;
            // Outdated entries name a rank that the place no longer has.
            if next[left].rank != rank {
                continue;
            }
            let merged = next[left].merged;
            let right = links[left].1 as usize;
            let after = links[right].1;
            ids[left] = merged;
            ids[right] = NONE;
            next[right] = NO_MERGE;
            links[left].1 = after;
            next[left] = NO_MERGE;
            if after < len {
                links[after as usize].0 = at;
                next[left] = self.candidate(merged, ids[after as usize]);
                if next[left].rank != NONE {
                    heap.push(Reverse((next[left].rank, at)));
                }
            }
            let before = links[left].0;
            if before < len {
                next[before as usize] = self.candidate(ids[before as usize], merged);
                if next[before as usize].rank != NONE {
                    heap.push(Reverse((next[before as usize].rank, before)));
                }
            }
        }
        ids.retain(|&id| id != NONE);
    }

    fn candidate(&self, left: u32, right: u32) -> Candidate {
        self.pairs.get(&key(left, right)).copied().unwrap_or(NO_MERGE)
    }
}

fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

fn hash(bytes: &[u8]) -> usize {
    let mut hasher = FxHasher::default();
    hasher.write(bytes);
    hasher.finish() as usize
}
