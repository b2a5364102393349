//! Blocks whose parent is not known yet (an event was lost or came late). They wait, linked to each other by the
//! engine's hashes, until the parent is stored; then all that hang below it get their place at once.

use crate::rank::Counts;
use dynamo_types::{StorageTier, StoredBlock};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct Orphan {
    parent: u64,
    pub(crate) local: u64,
    /// All zero: removed meanwhile, kept as the link to those that wait for it.
    pub(crate) counts: Counts,
}

#[derive(Debug, Default)]
pub(crate) struct Orphans {
    /// By the engine's hash.
    blocks: FxHashMap<u64, Orphan>,
    /// Who waits for a hash. No list is empty.
    waiting: FxHashMap<u64, Vec<u64>>,
    /// Oldest first; may name blocks that found their parent since.
    order: VecDeque<u64>,
}

impl Orphans {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        // Entry, control byte, and one list of at least four per waited-for hash.
        self.blocks.capacity() * (size_of::<(u64, Orphan)>() + 1)
            + self.waiting.capacity() * (size_of::<(u64, Vec<u64>)>() + 1 + 32)
            + self.order.capacity() * 8
    }

    /// Holds one announcement of a block below an unknown parent; beyond `limit` blocks the oldest are forgotten.
    pub(crate) fn add(&mut self, parent: u64, block: StoredBlock, tier: StorageTier, limit: usize) {
        let hash = block.block_hash;
        let known = self
            .blocks
            .get_mut(&hash)
            .filter(|orphan| orphan.parent == parent && orphan.local == block.tokens_hash);
        if let Some(orphan) = known {
            orphan.counts.add(tier);
            return;
        }
        self.forget(hash);
        let mut counts = Counts::default();
        counts.add(tier);
        self.blocks.insert(hash, Orphan { parent, local: block.tokens_hash, counts });
        self.waiting.entry(parent).or_default().push(hash);
        self.order.push_back(hash);
        while self.blocks.len() > limit || self.order.len() > limit.saturating_mul(2) {
            let Some(oldest) = self.order.pop_front() else { break };
            self.forget(oldest);
        }
    }

    /// Takes one announcement back; false if there was none.
    pub(crate) fn remove(&mut self, hash: u64, tier: StorageTier) -> bool {
        let Some(orphan) = self.blocks.get_mut(&hash) else { return false };
        if !orphan.counts.take(tier) {
            return false;
        }
        if orphan.counts.is_zero() && !self.waiting.contains_key(&hash) {
            self.forget(hash);
        }
        true
    }

    /// Those that wait for `parent`, which are orphans no longer.
    pub(crate) fn adopt(&mut self, parent: u64) -> Vec<(u64, Orphan)> {
        let children = self.waiting.remove(&parent).unwrap_or_default();
        let adopted =
            children.into_iter().filter_map(|hash| Some((hash, self.blocks.remove(&hash)?))).collect();
        if self.blocks.is_empty() {
            *self = Self::default();
        }
        adopted
    }

    /// Drops a block, and removed blocks above it that were kept for its sake only. Those below go on waiting.
    pub(crate) fn forget(&mut self, hash: u64) {
        let mut next = Some(hash);
        while let Some(hash) = next.take() {
            let Some(orphan) = self.blocks.remove(&hash) else { break };
            let Some(siblings) = self.waiting.get_mut(&orphan.parent) else { break };
            siblings.retain(|sibling| *sibling != hash);
            if siblings.is_empty() {
                self.waiting.remove(&orphan.parent);
                next = self
                    .blocks
                    .get(&orphan.parent)
                    .filter(|above| above.counts.is_zero())
                    .map(|_| orphan.parent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_links_go_with_the_last_block_that_needs_them() {
        let mut orphans = Orphans::default();
        let device = StorageTier::Device;
        for hash in 10..13 {
            orphans.add(hash - 1, StoredBlock { block_hash: hash, tokens_hash: hash }, device, 100);
        }
        assert!(orphans.remove(10, device) && orphans.remove(11, device));
        assert!(!orphans.remove(11, device), "removed already, kept as a link only");
        assert_eq!(orphans.blocks.len(), 3);
        assert!(orphans.remove(12, device));
        assert!(orphans.is_empty() && orphans.waiting.is_empty());
    }

    #[test]
    fn the_oldest_are_forgotten_beyond_the_limit() {
        let mut orphans = Orphans::default();
        for hash in 0..100 {
            orphans.add(
                1000 + hash,
                StoredBlock { block_hash: hash, tokens_hash: 1 },
                StorageTier::Device,
                7,
            );
        }
        assert_eq!((orphans.blocks.len(), orphans.waiting.len()), (7, 7));
        assert!(orphans.order.len() <= 14);
        assert!((93..100).all(|hash| orphans.blocks.contains_key(&hash)));
    }
}
