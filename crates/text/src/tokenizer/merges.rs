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

/// A token of up to [`Short::MAX`] bytes, compared where it is found: a quarter of a cache line, and no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Short {
    /// All the bytes, some of them twice. Together with the length they name one word.
    head: u64,
    tail: u32,
    /// Length in the low bits, id above them. A length of 0: nothing here.
    entry: u32,
}

impl Short {
    const MAX: usize = 12;
    const LENGTH_BITS: u32 = 4;
    const EMPTY: Self = Self { head: 0, tail: 0, entry: 0 };

    /// Of a word, with no id. None if it is too long, or a single byte.
    #[inline]
    fn of(word: &[u8]) -> Option<Self> {
        let entry = word.len() as u32;
        let pair = |at: usize| word.get(at..).and_then(<[u8]>::first_chunk).map(|b| u16::from_le_bytes(*b));
        let four = |at: usize| word.get(at..).and_then(<[u8]>::first_chunk).map(|b| u32::from_le_bytes(*b));
        let (head, tail) = match word.len() {
            8..=Self::MAX => (u64::from_le_bytes(*word.first_chunk()?), four(word.len() - 4)?),
            4..8 => (u64::from(four(0)?), four(word.len() - 4)?),
            2..4 => (u64::from(pair(0)?), u32::from(pair(word.len() - 2)?)),
            _ => return None,
        };
        Some(Self { head, tail, entry })
    }

    fn id(self) -> u32 {
        self.entry >> Self::LENGTH_BITS
    }

    /// The place in a table of so many slots where a search for it begins.
    #[inline]
    fn slot(self, slots: usize) -> usize {
        let mixed = (self.head ^ u64::from(self.tail).rotate_left(40) ^ u64::from(self.entry))
            .wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((u128::from(mixed) * slots as u128) >> 64) as usize
    }
}

/// Vocabulary and merges, over bytes.
#[derive(Debug)]
pub(super) struct Merges {
    /// A vocabulary may lack bytes that its training never saw; such bytes are dropped.
    byte_ids: [u32; 256],
    pairs: FxHashMap<u64, Candidate>,
    /// Open addressing, at most half full: tokens of few bytes themselves, and the ids of longer ones by their bytes.
    short: Vec<Short>,
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
    /// Bytes of `text` that become tokens, or parts of them.
    pub(super) fn known_bytes(&self, text: &str) -> usize {
        text.bytes().filter(|&byte| self.byte_ids[byte as usize] != NONE).count()
    }

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
            short: Vec::new(),
            slots: Vec::new(),
            whole: (0..table.len()).map(|_| AtomicU8::new(UNKNOWN)).collect(),
            ignore_merges: model.ignore_merges(),
        };
        let mut bytes = Vec::new();
        let mut ids = Vec::with_capacity(model.vocab.len());
        for (token, &id) in &model.vocab {
            bytes.clear();
            if !alphabet.append(&token.0, &mut bytes) {
                // No word of the text can be this.
                continue;
            }
            if table.bytes(id) != bytes {
                return None;
            }
            ids.push(id);
        }
        merges.fill(&ids, table);
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

    /// Puts these tokens where [`Merges::token`] looks for them. Single bytes have a table of their own.
    fn fill(&mut self, ids: &[u32], table: &ByteTable) {
        let (short, long): (Vec<u32>, Vec<u32>) =
            ids.iter().partition(|&&id| table.bytes(id).len() <= Short::MAX);
        self.short = vec![Short::EMPTY; short.len() * 2 + 1];
        for id in short {
            let Some(mut word) = Short::of(table.bytes(id)) else { continue };
            let mut slot = word.slot(self.short.len());
            while self.short[slot] != Short::EMPTY {
                slot = (slot + 1) % self.short.len();
            }
            word.entry |= id << Short::LENGTH_BITS;
            self.short[slot] = word;
        }
        self.slots = vec![NONE; (long.len() * 2 + 1).next_power_of_two()];
        let mask = self.slots.len() - 1;
        for id in long {
            let mut slot = hash(table.bytes(id)) & mask;
            while self.slots[slot] != NONE {
                slot = (slot + 1) & mask;
            }
            self.slots[slot] = id;
        }
    }

    /// The token of exactly these bytes.
    #[inline]
    pub(super) fn token(&self, bytes: &[u8], table: &ByteTable) -> Option<u32> {
        match Short::of(bytes) {
            Some(word) => self.short_token(word),
            None => match *bytes {
                [byte] => Some(self.byte_ids[byte as usize]).filter(|&id| id != NONE),
                _ => self.long_token(bytes, table),
            },
        }
    }

    #[inline]
    fn short_token(&self, word: Short) -> Option<u32> {
        const LENGTH: u32 = (1 << Short::LENGTH_BITS) - 1;
        let mut slot = word.slot(self.short.len());
        loop {
            let found = self.short.get(slot)?;
            if found.head == word.head && found.tail == word.tail && found.entry & LENGTH == word.entry {
                return Some(found.id());
            }
            if found.entry == 0 {
                return None;
            }
            slot = if slot + 1 == self.short.len() { 0 } else { slot + 1 };
        }
    }

    fn long_token(&self, bytes: &[u8], table: &ByteTable) -> Option<u32> {
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
