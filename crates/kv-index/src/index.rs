//! The index: registered ranks, their events in order, and queries.

use crate::holders::Slot;
use crate::prefix::{Lengths, PrefixMap};
use crate::rank::{Rank, RankLimits};
use crate::report::{Applied, Matches};
use crate::watermark::Verdict;
use dynamo_types::hash::sequence_hash;
use dynamo_types::{InstanceId, KvEvent, KvEventBatch, WorkerRank};
use std::collections::BTreeMap;

/// Bounds on what publishers can make the index hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Ranks of all workers.
    pub ranks: usize,
    pub blocks_per_rank: usize,
    /// Blocks with an unknown parent that a rank may have waiting.
    pub orphans_per_rank: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // A bitset over all ranks stays at 2 KiB per widely shared block.
            ranks: 16_384,
            // A quarter of a billion tokens in blocks of 16: beyond the largest host tiers in use.
            blocks_per_rank: 1 << 24,
            // What a long prompt or two produce while the batch before theirs is being replayed.
            orphans_per_rank: 8_192,
        }
    }
}

/// Which rank holds which blocks, as told by events.
#[derive(Debug)]
pub struct Index {
    map: PrefixMap,
    /// By slot.
    ranks: Vec<Option<Rank>>,
    by_source: BTreeMap<WorkerRank, Slot>,
    free: Vec<Slot>,
    limits: Limits,
}

impl Default for Index {
    fn default() -> Self {
        Self::new()
    }
}

impl Index {
    pub fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    pub fn with_limits(limits: Limits) -> Self {
        Self {
            map: PrefixMap::new(),
            ranks: Vec::new(),
            by_source: BTreeMap::new(),
            free: Vec::new(),
            limits,
        }
    }

    /// Gives the rank its slot, which stays the same until it is removed. None if there are too many ranks.
    pub fn register(&mut self, source: WorkerRank) -> Option<Slot> {
        if let Some(slot) = self.by_source.get(&source) {
            return Some(*slot);
        }
        if self.by_source.len() >= self.limits.ranks {
            return None;
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.ranks.push(None);
                Slot::try_from(self.ranks.len() - 1).ok()?
            }
        };
        self.ranks[slot as usize] = Some(Rank::new(source, slot));
        self.by_source.insert(source, slot);
        Some(slot)
    }

    pub fn is_registered(&self, source: WorkerRank) -> bool {
        self.by_source.contains_key(&source)
    }

    /// Applies a batch, registering its source if need be. A gap is reported and the batch left out; see
    /// [`Applied::gap`].
    pub fn apply(&mut self, batch: &KvEventBatch) -> Applied {
        self.apply_batch(batch, false)
    }

    /// As [`Index::apply`], but accepts that batches before this one are lost for good.
    pub fn apply_past_gap(&mut self, batch: &KvEventBatch) -> Applied {
        self.apply_batch(batch, true)
    }

    fn apply_batch(&mut self, batch: &KvEventBatch, past_gaps: bool) -> Applied {
        let mut applied = Applied::default();
        let rank = self.register(batch.source).and_then(|slot| self.ranks[slot as usize].as_mut());
        let Some(rank) = rank else {
            applied.unknown_source = true;
            return applied;
        };
        let (verdict, restarted) = rank.watermark.admit(batch, past_gaps);
        if restarted {
            rank.clear(&mut self.map);
            applied.restarted = true;
        }
        match verdict {
            Verdict::Duplicate => {
                applied.duplicate = true;
                return applied;
            }
            Verdict::Gap(gap) => {
                applied.gap = Some(gap);
                return applied;
            }
            Verdict::Apply => {}
        }
        let limits =
            RankLimits { blocks: self.limits.blocks_per_rank, orphans: self.limits.orphans_per_rank };
        for event in &batch.events {
            match event {
                KvEvent::Stored { parent, blocks, tier } => {
                    rank.store(&mut self.map, *parent, blocks, *tier, limits, &mut applied);
                }
                KvEvent::Removed { hashes, tier } => {
                    rank.remove(&mut self.map, hashes, *tier, &mut applied);
                }
                KvEvent::Cleared => rank.clear(&mut self.map),
            }
        }
        applied
    }

    /// Longest cached prefix of a prompt on each rank, from the local hashes of its complete blocks.
    pub fn matches(&self, local_hashes: &[u64]) -> Matches {
        let sequences = local_hashes.iter().scan(None, |parent, local| {
            let hash = sequence_hash(*parent, *local);
            *parent = Some(hash);
            Some(hash)
        });
        let mut lengths = Lengths::default();
        self.map.walk(sequences, self.ranks.len(), &mut lengths);
        let ranks = lengths.nonzero().filter_map(|(slot, overlap)| {
            let rank = self.ranks.get(slot as usize)?.as_ref()?;
            Some((rank.source, overlap))
        });
        Matches { ranks: ranks.collect() }
    }

    /// As [`Index::matches`], from sequence hashes, by slot, into memory that is used again.
    pub fn lookup(&self, sequence_hashes: &[u64], lengths: &mut Lengths) {
        self.map.walk(sequence_hashes.iter().copied(), self.ranks.len(), lengths);
    }

    /// Forgets a worker with all its ranks. Costs its own blocks.
    pub fn remove_worker(&mut self, worker: InstanceId) {
        let all = WorkerRank::new(worker, 0)..=WorkerRank::new(worker, u32::MAX);
        let sources: Vec<WorkerRank> = self.by_source.range(all).map(|(source, _)| *source).collect();
        sources.into_iter().for_each(|source| self.remove_rank(source));
    }

    /// Forgets one rank.
    pub fn remove_rank(&mut self, source: WorkerRank) {
        let Some(slot) = self.by_source.remove(&source) else { return };
        if let Some(mut rank) = self.ranks[slot as usize].take() {
            rank.clear(&mut self.map);
        }
        self.free.push(slot);
        if self.by_source.is_empty() {
            self.ranks = Vec::new();
            self.free = Vec::new();
        }
    }

    /// Distinct blocks held by anyone.
    pub fn node_count(&self) -> usize {
        self.map.len()
    }

    /// Heap bytes of the index, within a few percent.
    pub fn memory_bytes(&self) -> usize {
        let ranks: usize = self.ranks.iter().flatten().map(Rank::memory_bytes).sum();
        self.map.memory_bytes() + ranks + self.ranks.capacity() * size_of::<Option<Rank>>()
    }
}
