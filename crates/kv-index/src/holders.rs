//! The set of ranks that hold one block, each with the tiers it holds it in.

use crate::table::Vacant;
use dynamo_types::StorageTier;

/// Position of a rank in the sets of this index.
pub type Slot = u32;

/// A set of tiers, as bits.
pub(crate) type Tiers = u32;

pub(crate) const DEVICE: Tiers = 1;
pub(crate) const HOST: Tiers = 2;
pub(crate) const DISK: Tiers = 4;

/// Bits a tier takes in a [`Holders::Few`] item.
const TIER_BITS: u32 = 3;

/// Most blocks are held by very few ranks; that many fit beside the length without a heap block.
const FEW: usize = 3;

/// The bit of a tier; None for one whose blocks no rank can claim for itself.
pub(crate) fn tier_bit(tier: StorageTier) -> Option<Tiers> {
    match tier {
        StorageTier::Device => Some(DEVICE),
        StorageTier::HostPinned => Some(HOST),
        StorageTier::Disk => Some(DISK),
        StorageTier::External => None,
    }
}

#[derive(Debug)]
pub(crate) enum Holders {
    /// `slot << TIER_BITS | tiers`, unordered.
    Few {
        len: u8,
        items: [u32; FEW],
    },
    Dense(Box<Dense>),
}

/// One bit per slot and tier. The planes are as long as their highest bit needs.
#[derive(Debug, Default)]
pub(crate) struct Dense {
    planes: [Vec<u64>; TIER_BITS as usize],
    /// Bits set in all planes.
    bits: u32,
}

impl Default for Holders {
    fn default() -> Self {
        Self::Few { len: 0, items: [0; FEW] }
    }
}

impl Vacant for Holders {
    fn is_vacant(&self) -> bool {
        matches!(self, Self::Few { len: 0, .. })
    }
}

impl Holders {
    /// Adds; false if it was there.
    pub(crate) fn set(&mut self, slot: Slot, tier: Tiers) -> bool {
        if let Self::Few { len, items } = self {
            let used = &mut items[..usize::from(*len)];
            if let Some(item) = used.iter_mut().find(|item| **item >> TIER_BITS == slot) {
                let new = *item & tier == 0;
                *item |= tier;
                return new;
            }
            if let Some(item) = items.get_mut(usize::from(*len)) {
                *item = slot << TIER_BITS | tier;
                *len += 1;
                return true;
            }
            let mut dense = Dense::default();
            for item in items {
                (0..TIER_BITS).map(|bit| 1 << bit).filter(|tier| *item & tier != 0).for_each(|tier| {
                    dense.set(*item >> TIER_BITS, tier);
                });
            }
            *self = Self::Dense(Box::new(dense));
        }
        match self {
            Self::Dense(dense) => dense.set(slot, tier),
            Self::Few { .. } => false,
        }
    }

    /// Takes away; false if it was not there.
    pub(crate) fn clear(&mut self, slot: Slot, tier: Tiers) -> bool {
        match self {
            Self::Few { len, items } => {
                let used = usize::from(*len);
                let Some(at) = items[..used].iter().position(|item| item >> TIER_BITS == slot) else {
                    return false;
                };
                let had = items[at] & tier != 0;
                items[at] &= !tier;
                if items[at] & ((1 << TIER_BITS) - 1) == 0 {
                    items[at] = items[used - 1];
                    *len -= 1;
                }
                had
            }
            Self::Dense(dense) => {
                let had = dense.clear(slot, tier);
                // One fewer than fit, so that a set on the edge does not flip with every event.
                if had && dense.bits < FEW as u32 {
                    *self = dense.to_few();
                }
                had
            }
        }
    }

    /// The slots `64 * word..64 * word + 64` that hold the block in any of `tiers`.
    pub(crate) fn word(&self, word: usize, tiers: Tiers) -> u64 {
        match self {
            Self::Few { len, items } => items[..usize::from(*len)]
                .iter()
                .filter(|item| **item & tiers != 0 && (**item >> TIER_BITS) as usize / 64 == word)
                .fold(0, |bits, item| bits | 1 << ((item >> TIER_BITS) % 64)),
            Self::Dense(dense) => dense.word(word, tiers),
        }
    }

    /// Heap bytes behind this set.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::Few { .. } => 0,
            Self::Dense(dense) => {
                size_of::<Dense>() + dense.planes.iter().map(|plane| plane.capacity() * 8).sum::<usize>()
            }
        }
    }
}

impl Dense {
    fn set(&mut self, slot: Slot, tier: Tiers) -> bool {
        let plane = &mut self.planes[tier.trailing_zeros() as usize];
        let (word, bit) = (slot as usize / 64, 1u64 << (slot % 64));
        if plane.len() <= word {
            plane.reserve_exact(word + 1 - plane.len());
            plane.resize(word + 1, 0);
        }
        let new = plane[word] & bit == 0;
        plane[word] |= bit;
        self.bits += u32::from(new);
        new
    }

    fn clear(&mut self, slot: Slot, tier: Tiers) -> bool {
        let plane = &mut self.planes[tier.trailing_zeros() as usize];
        let bit = 1u64 << (slot % 64);
        let Some(word) = plane.get_mut(slot as usize / 64) else { return false };
        let had = *word & bit != 0;
        *word &= !bit;
        self.bits -= u32::from(had);
        had
    }

    fn word(&self, word: usize, tiers: Tiers) -> u64 {
        let plane = |bit: usize| match self.planes[bit].get(word) {
            Some(bits) if tiers & 1 << bit != 0 => *bits,
            _ => 0,
        };
        plane(0) | plane(1) | plane(2)
    }

    /// For fewer than [`FEW`] bits.
    fn to_few(&self) -> Holders {
        let mut few = Holders::default();
        for (bit, plane) in self.planes.iter().enumerate() {
            for (index, word) in plane.iter().enumerate() {
                for slot in ones(*word) {
                    few.set(index as u32 * 64 + slot, 1 << bit);
                }
            }
        }
        few
    }
}

/// Positions of the set bits.
pub(crate) fn ones(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_like_a_set(
            operations in prop::collection::vec((0u32..9, 0u32..3, any::<bool>()), 0..200),
            stride in prop_oneof![Just(1u32), Just(40)],
        ) {
            let mut holders = Holders::default();
            let mut model = BTreeSet::new();
            for (slot, bit, add) in operations {
                let (slot, tier) = (slot * stride, 1 << bit);
                if add {
                    prop_assert_eq!(holders.set(slot, tier), model.insert((slot, tier)));
                } else {
                    prop_assert_eq!(holders.clear(slot, tier), model.remove(&(slot, tier)));
                }
                prop_assert_eq!(holders.is_vacant(), model.is_empty());
                for tiers in 1..8 {
                    let found: BTreeSet<u32> = (0..6)
                        .flat_map(|word| ones(holders.word(word, tiers)).map(move |bit| word as u32 * 64 + bit))
                        .collect();
                    let expected = model.iter().filter(|(_, tier)| tier & tiers != 0).map(|(slot, _)| *slot);
                    prop_assert_eq!(found, expected.collect::<BTreeSet<_>>());
                }
            }
        }
    }
}
