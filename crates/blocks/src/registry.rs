//! Sequence hash to block: open addressing with linear probing and backward-shift deletion.
//!
//! A general hash map would do, but under constant insertion and removal it leaves tombstones and now and then
//! rehashes everything, a pause of milliseconds at a million blocks. This one is sized once (at most half full),
//! never moves as a whole, and costs 8 to 16 bytes per block because the keys lie in the block table already.

use crate::list::NONE;

#[derive(Debug)]
pub(crate) struct Registry {
    /// Block index, or [`NONE`]. The length is a power of two.
    slots: Vec<u32>,
    len: u32,
}

impl Registry {
    pub(crate) fn new(total_blocks: u32) -> Self {
        let slots = (total_blocks as usize * 2).next_power_of_two().max(2);
        Self { slots: vec![NONE; slots], len: 0 }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Where a hash would like to be. Fibonacci hashing: callers may use hashes with weak low bits.
    fn home(&self, hash: u64) -> usize {
        let bits = self.slots.len().trailing_zeros();
        (hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - bits)) as usize
    }

    fn after(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    /// The slot with this hash, or the empty one where it belongs.
    fn find(&self, hash: u64, hash_of: impl Fn(u32) -> u64) -> usize {
        let mut slot = self.home(hash);
        while self.slots[slot] != NONE && hash_of(self.slots[slot]) != hash {
            slot = self.after(slot);
        }
        slot
    }

    pub(crate) fn get(&self, hash: u64, hash_of: impl Fn(u32) -> u64) -> Option<u32> {
        let index = self.slots[self.find(hash, hash_of)];
        (index != NONE).then_some(index)
    }

    /// The hash must not be there yet, and no more entries than blocks may be held.
    pub(crate) fn insert(&mut self, hash: u64, index: u32, hash_of: impl Fn(u32) -> u64) {
        let slot = self.find(hash, hash_of);
        self.slots[slot] = index;
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, hash: u64, hash_of: impl Fn(u32) -> u64) {
        let mut hole = self.find(hash, &hash_of);
        if self.slots[hole] == NONE {
            return;
        }
        self.len -= 1;
        let mut slot = hole;
        loop {
            self.slots[hole] = NONE;
            // Close the gap: move the next entry whose home is not between the hole and itself.
            loop {
                slot = self.after(slot);
                if self.slots[slot] == NONE {
                    return;
                }
                let home = self.home(hash_of(self.slots[slot]));
                let mask = self.slots.len() - 1;
                let from_home = slot.wrapping_sub(home) & mask;
                let from_hole = slot.wrapping_sub(hole) & mask;
                if from_home >= from_hole {
                    break;
                }
            }
            self.slots[hole] = self.slots[slot];
            hole = slot;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.slots.fill(NONE);
        self.len = 0;
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.slots.len() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Few distinct hashes in a small table: long probe chains, wrap-around, deletions in their middle.
        #[test]
        fn behaves_like_a_map(total in 1u32..20, steps in prop::collection::vec((any::<bool>(), 0u64..40), 1..300)) {
            let mut registry = Registry::new(total);
            let mut model = BTreeMap::new();
            // Index i stands for hash i, so the key of an entry can be read back from it.
            let hash_of = |index: u32| u64::from(index) << 40;
            for (insert, key) in steps {
                let hash = key << 40;
                if insert && !model.contains_key(&hash) && model.len() < total as usize {
                    registry.insert(hash, key as u32, hash_of);
                    model.insert(hash, key as u32);
                } else if !insert {
                    registry.remove(hash, hash_of);
                    model.remove(&hash);
                }
                prop_assert_eq!(registry.len() as usize, model.len());
                for key in 0..40u64 {
                    prop_assert_eq!(registry.get(key << 40, hash_of), model.get(&(key << 40)).copied());
                }
            }
        }
    }
}
