//! What one rank holds, by the engine's own hashes.

use crate::holders::{Slot, tier_bit};
use crate::orphans::Orphans;
use crate::prefix::PrefixMap;
use crate::report::Applied;
use crate::table::{Table, Vacant};
use crate::watermark::Watermark;
use dynamo_types::hash::sequence_hash;
use dynamo_types::{StorageTier, StoredBlock, WorkerRank};
use rustc_hash::FxHashMap;

/// What a block hangs below: the sequence hash of its parent (none at the root), or the engine's name of a parent that
/// has no place yet.
type Above = Result<Option<u64>, u64>;

/// How many blocks are asked for before they are needed.
const GROUP: usize = 16;

/// 16 shards: small for a rank with few blocks, and rebuilds stay short for one with millions.
const SHARD_BITS: u32 = 4;

const TIERS: [StorageTier; 4] =
    [StorageTier::Device, StorageTier::HostPinned, StorageTier::Disk, StorageTier::External];

/// How often a block was announced, by tier: engines announce a block twice, and then remove it twice. Saturates; an
/// engine with more copies of one block than that would lose sight of it early, which is a miss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts([u16; 4]);

impl Counts {
    pub(crate) fn of(&self, tier: StorageTier) -> u16 {
        self.0[tier as usize]
    }

    pub(crate) fn add(&mut self, tier: StorageTier) {
        let count = &mut self.0[tier as usize];
        *count = count.saturating_add(1);
    }

    /// False if there is nothing to take.
    pub(crate) fn take(&mut self, tier: StorageTier) -> bool {
        let count = &mut self.0[tier as usize];
        let some = *count > 0;
        *count = count.saturating_sub(1);
        some
    }

    pub(crate) fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// A block with a place in the prefix map.
#[derive(Debug, Default)]
struct Held {
    sequence: u64,
    counts: Counts,
}

impl Vacant for Held {
    fn is_vacant(&self) -> bool {
        self.counts.is_zero()
    }
}

#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) source: WorkerRank,
    slot: Slot,
    pub(crate) watermark: Watermark,
    blocks: Table<Held>,
    /// How many further engine hashes stand for the same (sequence, tier). Empty for engines that name each block once.
    aliases: FxHashMap<(u64, u32), u32>,
    orphans: Orphans,
}

/// Bounds of one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankLimits {
    pub(crate) blocks: usize,
    pub(crate) orphans: usize,
}

impl Rank {
    pub(crate) fn new(source: WorkerRank, slot: Slot) -> Self {
        Self {
            source,
            slot,
            watermark: Watermark::default(),
            blocks: Table::new(SHARD_BITS),
            aliases: FxHashMap::default(),
            orphans: Orphans::default(),
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.blocks.memory_bytes()
            + self.orphans.memory_bytes()
            + self.aliases.capacity() * (size_of::<((u64, u32), u32)>() + 1)
    }

    /// Everything it holds is gone. Costs its own blocks.
    pub(crate) fn clear(&mut self, map: &mut PrefixMap) {
        let blocks = std::mem::replace(&mut self.blocks, Table::new(SHARD_BITS));
        for held in blocks.values() {
            for tier in TIERS {
                if let Some(bit) = tier_bit(tier).filter(|_| held.counts.of(tier) > 0) {
                    map.clear(held.sequence, self.slot, bit);
                }
            }
        }
        self.aliases = FxHashMap::default();
        self.orphans = Orphans::default();
    }

    pub(crate) fn store(
        &mut self,
        map: &mut PrefixMap,
        parent: Option<u64>,
        blocks: &[StoredBlock],
        tier: StorageTier,
        limits: RankLimits,
        applied: &mut Applied,
    ) {
        let mut above: Above = match parent {
            None => Ok(None),
            Some(hash) => self.blocks.get(hash).map(|held| Some(held.sequence)).ok_or(hash),
        };
        for group in blocks.chunks(GROUP) {
            self.touch(map, above, group);
            for block in group {
                above = self.store_one(map, above, *block, tier, limits, applied);
            }
        }
    }

    /// Stores the block below `above` and says what the next one is below.
    fn store_one(
        &mut self,
        map: &mut PrefixMap,
        above: Above,
        block: StoredBlock,
        tier: StorageTier,
        limits: RankLimits,
        applied: &mut Applied,
    ) -> Above {
        let hash = block.block_hash;
        let sequence = match above {
            Ok(parent) => sequence_hash(parent, block.tokens_hash),
            // The engine's name stands for one content, so a block that has a place keeps it.
            Err(parent) => match self.blocks.get(hash) {
                Some(held) => held.sequence,
                None => {
                    self.orphans.add(parent, block, tier, limits.orphans);
                    applied.parent_missing += 1;
                    return Err(hash);
                }
            },
        };
        if self.blocks.len() >= limits.blocks && self.blocks.get(hash).is_none() {
            applied.over_limit += 1;
        } else {
            self.place(map, hash, sequence, tier);
            applied.ok += 1;
        }
        Ok(Some(sequence))
    }

    fn touch(&self, map: &PrefixMap, above: Above, group: &[StoredBlock]) {
        self.blocks.touch(group.iter().map(|block| block.block_hash));
        if let Ok(parent) = above {
            map.touch(group.iter().scan(parent, |parent, block| {
                *parent = Some(sequence_hash(*parent, block.tokens_hash));
                *parent
            }));
        }
    }

    pub(crate) fn remove(
        &mut self,
        map: &mut PrefixMap,
        hashes: &[u64],
        tier: StorageTier,
        applied: &mut Applied,
    ) {
        for group in hashes.chunks(GROUP) {
            self.blocks.touch(group.iter().copied());
            map.touch(group.iter().filter_map(|hash| Some(self.blocks.get(*hash)?.sequence)));
            for hash in group {
                if self.remove_one(map, *hash, tier) {
                    applied.ok += 1;
                } else {
                    applied.block_missing += 1;
                }
            }
        }
    }

    fn remove_one(&mut self, map: &mut PrefixMap, hash: u64, tier: StorageTier) -> bool {
        let taken = self.blocks.update_existing(hash, |held| {
            held.counts.take(tier).then(|| (held.sequence, held.counts.of(tier) == 0))
        });
        match taken {
            Some(Some((sequence, last))) => {
                if last {
                    self.unset(map, sequence, tier);
                }
                true
            }
            Some(None) => false,
            None => self.orphans.remove(hash, tier),
        }
    }

    fn place(&mut self, map: &mut PrefixMap, hash: u64, sequence: u64, tier: StorageTier) {
        let (before, new, first) = self.blocks.update(hash, |held| {
            let before = if held.is_vacant() || held.sequence == sequence {
                None
            } else {
                // The engine uses the name for another block now: the last word counts.
                Some(std::mem::take(held))
            };
            let new = held.is_vacant();
            held.sequence = sequence;
            held.counts.add(tier);
            (before, new, held.counts.of(tier) == 1)
        });
        if let Some(before) = before {
            for tier in TIERS.into_iter().filter(|tier| before.counts.of(*tier) > 0) {
                self.unset(map, before.sequence, tier);
            }
        }
        if first {
            self.set(map, sequence, tier);
        }
        if new && !self.orphans.is_empty() {
            self.orphans.forget(hash);
            self.adopt(map, hash, sequence);
        }
    }

    /// Gives a place to all that waited below `hash`.
    fn adopt(&mut self, map: &mut PrefixMap, hash: u64, sequence: u64) {
        let mut parents = vec![(hash, sequence)];
        while let Some((parent, sequence)) = parents.pop() {
            for (hash, orphan) in self.orphans.adopt(parent) {
                let sequence = sequence_hash(Some(sequence), orphan.local);
                parents.push((hash, sequence));
                self.blocks.update(hash, |held| {
                    held.sequence = sequence;
                    held.counts = orphan.counts;
                });
                for tier in TIERS.into_iter().filter(|tier| orphan.counts.of(*tier) > 0) {
                    self.set(map, sequence, tier);
                }
            }
        }
    }

    fn set(&mut self, map: &mut PrefixMap, sequence: u64, tier: StorageTier) {
        let Some(bit) = tier_bit(tier) else { return };
        if !map.set(sequence, self.slot, bit) {
            *self.aliases.entry((sequence, bit)).or_default() += 1;
        }
    }

    fn unset(&mut self, map: &mut PrefixMap, sequence: u64, tier: StorageTier) {
        let Some(bit) = tier_bit(tier) else { return };
        match self.aliases.get_mut(&(sequence, bit)) {
            None => map.clear(sequence, self.slot, bit),
            Some(1) => {
                self.aliases.remove(&(sequence, bit));
                if self.aliases.is_empty() {
                    self.aliases = FxHashMap::default();
                }
            }
            Some(further) => *further -= 1,
        }
    }
}
