//! From sequence hash to the ranks that hold the block, and the walk that finds the longest prefix of each rank.
//!
//! A sequence hash names a block together with all before it, so blocks need no links: a hole in a chain stops the
//! walk, and closing it makes what lies behind visible again.

use crate::holders::{DEVICE, DISK, HOST, Holders, Slot, Tiers, ones};
use crate::report::Overlap;
use crate::table::Table;

/// 256 shards: at ten million blocks a rebuild still moves one megabyte only.
const SHARD_BITS: u32 = 8;

#[derive(Debug)]
pub(crate) struct PrefixMap {
    table: Table<Holders>,
    /// Heap bytes behind the sets in `table`.
    heap_bytes: usize,
    /// How many (block, rank) pairs there are in host memory and on disk; without any, one walk serves all tiers.
    host: usize,
    disk: usize,
}

/// Overlap of every slot, and the memory a walk works in. Reuse it to look up without allocation.
#[derive(Clone, Debug, Default)]
pub struct Lengths {
    overlaps: Vec<Overlap>,
    active: Vec<u64>,
}

impl Lengths {
    /// Zero for slots that hold nothing or do not exist.
    pub fn of(&self, slot: Slot) -> Overlap {
        self.overlaps.get(slot as usize).copied().unwrap_or_default()
    }

    /// Starts over for `slots` slots.
    pub(crate) fn reset(&mut self, slots: usize) -> (&mut [Overlap], &mut Vec<u64>) {
        self.overlaps.clear();
        self.overlaps.resize(slots, Overlap::default());
        (&mut self.overlaps, &mut self.active)
    }

    /// Those that hold something.
    pub(crate) fn nonzero(&self) -> impl Iterator<Item = (Slot, Overlap)> {
        (0..)
            .zip(&self.overlaps)
            .filter(|(_, overlap)| overlap.disk > 0)
            .map(|(slot, overlap)| (slot, *overlap))
    }
}

impl PrefixMap {
    pub(crate) fn new() -> Self {
        Self { table: Table::new(SHARD_BITS), heap_bytes: 0, host: 0, disk: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.table.memory_bytes() + self.heap_bytes
    }

    /// `slot` holds the block in `tier` (one bit); false if it did already.
    pub(crate) fn set(&mut self, sequence: u64, slot: Slot, tier: Tiers) -> bool {
        let (new, grown) = self.table.update(sequence, |holders| {
            let before = holders.heap_bytes();
            (holders.set(slot, tier), holders.heap_bytes() - before)
        });
        self.heap_bytes += grown;
        if new {
            self.host += usize::from(tier == HOST);
            self.disk += usize::from(tier == DISK);
        }
        new
    }

    /// `slot` holds the block in `tier` (one bit) no longer.
    pub(crate) fn clear(&mut self, sequence: u64, slot: Slot, tier: Tiers) {
        let Some((had, shrunk)) = self.table.update_existing(sequence, |holders| {
            let before = holders.heap_bytes();
            (holders.clear(slot, tier), before - holders.heap_bytes())
        }) else {
            return;
        };
        self.heap_bytes -= shrunk;
        if had {
            self.host -= usize::from(tier == HOST);
            self.disk -= usize::from(tier == DISK);
        }
    }

    /// Longest prefix of `sequences` on each of the first `slots` slots.
    pub(crate) fn walk(
        &self,
        sequences: impl Iterator<Item = u64> + Clone,
        slots: usize,
        lengths: &mut Lengths,
    ) {
        let (overlaps, active) = lengths.reset(slots);
        self.walk_tiers(DEVICE, sequences.clone(), slots, active, |slot, len| overlaps[slot].device = len);
        if self.host > 0 {
            self.walk_tiers(DEVICE | HOST, sequences.clone(), slots, active, |slot, len| {
                overlaps[slot].host = len;
            });
        } else {
            overlaps.iter_mut().for_each(|overlap| overlap.host = overlap.device);
        }
        if self.disk > 0 {
            self.walk_tiers(DEVICE | HOST | DISK, sequences, slots, active, |slot, len| {
                overlaps[slot].disk = len;
            });
        } else {
            overlaps.iter_mut().for_each(|overlap| overlap.disk = overlap.host);
        }
    }

    /// Asks for blocks that will be changed or looked up soon.
    pub(crate) fn touch(&self, sequences: impl Iterator<Item = u64>) {
        self.table.touch(sequences);
    }

    /// Calls `ended` once for each slot with a prefix, with its length.
    fn walk_tiers(
        &self,
        tiers: Tiers,
        mut sequences: impl Iterator<Item = u64>,
        slots: usize,
        words: &mut Vec<u64>,
        mut ended: impl FnMut(usize, u32),
    ) {
        let mut active = Active::new(words, slots);
        let mut group = [0; GROUP];
        // Most lookups miss at once or go far, so the first group is small.
        let mut size = FIRST_GROUP;
        loop {
            let mut filled = 0;
            for (slot, sequence) in group[..size].iter_mut().zip(&mut sequences) {
                *slot = sequence;
                filled += 1;
            }
            self.table.touch(group[..filled].iter().copied());
            for sequence in &group[..filled] {
                let Some(holders) = self.table.get(*sequence) else { return active.end(ended) };
                if !active.narrow(1, |word| holders.word(word, tiers), &mut ended) {
                    return;
                }
            }
            if filled < size {
                return active.end(ended);
            }
            size = GROUP;
        }
    }
}

/// How many blocks are asked for before they are needed.
const GROUP: usize = 16;
const FIRST_GROUP: usize = 4;

/// The slots that hold all blocks of a walk so far.
pub(crate) struct Active<'a> {
    words: &'a mut [u64],
    /// Words outside `low..high` are zero.
    low: usize,
    high: usize,
    length: u32,
}

impl<'a> Active<'a> {
    pub(crate) fn new(words: &'a mut Vec<u64>, slots: usize) -> Self {
        words.clear();
        words.resize(slots.div_ceil(64), 0);
        Self { low: 0, high: words.len(), words, length: 0 }
    }

    /// Goes on by `blocks`, which the slots in `held` hold; false if nobody is left.
    pub(crate) fn narrow(
        &mut self,
        blocks: u32,
        held: impl Fn(usize) -> u64,
        ended: &mut impl FnMut(usize, u32),
    ) -> bool {
        for word in self.low..self.high {
            let held = held(word);
            let alive = if self.length == 0 { held } else { self.words[word] };
            for bit in ones(alive & !held) {
                ended(word * 64 + bit as usize, self.length);
            }
            self.words[word] = alive & held;
        }
        while self.low < self.high && self.words[self.low] == 0 {
            self.low += 1;
        }
        while self.low < self.high && self.words[self.high - 1] == 0 {
            self.high -= 1;
        }
        self.length += blocks;
        self.low < self.high
    }

    /// The chain ends here for all that are left.
    pub(crate) fn end(&self, mut ended: impl FnMut(usize, u32)) {
        for word in self.low..self.high {
            for bit in ones(self.words[word]) {
                ended(word * 64 + bit as usize, self.length);
            }
        }
    }
}
