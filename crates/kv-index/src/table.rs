//! A flat hash table from 64-bit hashes to small values, made for what the index needs and the standard map lacks:
//! memory that follows the live entries in both directions, growth in small steps (no pause for millions of entries),
//! and one cache miss per lookup.
//!
//! Ordered linear probing: the position of a key is monotone in its mixed hash, so the slots are sorted, a miss ends
//! at the first larger key, and a rebuild is one sequential copy. The key space is cut into shards that are rebuilt on
//! their own.

/// A value with a state that means "nothing here". The table drops an entry whose value becomes vacant.
pub(crate) trait Vacant: Default {
    fn is_vacant(&self) -> bool;
}

/// Above this load a shard is rebuilt larger, below [`MIN_LOAD`] smaller; a rebuild lands at [`BUILD_LOAD`].
const MAX_LOAD: f64 = 0.8;
const BUILD_LOAD: f64 = 0.6;
const MIN_LOAD: f64 = 0.4;

/// Positions of the smallest shard that holds anything.
const MIN_CAPACITY: usize = 4;

/// Room behind the last position, so that a run may reach over it without a reallocation.
const TAIL: usize = 4;

#[derive(Debug)]
pub(crate) struct Table<V> {
    shards: Vec<Shard<V>>,
    /// The upper bits of a mixed hash that name the shard.
    shard_bits: u32,
    len: usize,
}

#[derive(Debug)]
struct Shard<V> {
    /// Mixed hash and value.
    slots: Vec<(u64, V)>,
    /// Number of home positions.
    capacity: usize,
    len: usize,
}

/// One-to-one, so equal mixed hashes mean equal keys. Engines' own hashes may be small consecutive numbers.
fn mix(key: u64) -> u64 {
    (key ^ (key >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl<V: Vacant> Table<V> {
    pub(crate) fn new(shard_bits: u32) -> Self {
        let shards = (0..1usize << shard_bits).map(|_| Shard { slots: Vec::new(), capacity: 0, len: 0 });
        Self { shards: shards.collect(), shard_bits, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Heap bytes of the table itself.
    pub(crate) fn memory_bytes(&self) -> usize {
        let slots: usize = self.shards.iter().map(|shard| shard.slots.capacity()).sum();
        slots * size_of::<(u64, V)>() + self.shards.capacity() * size_of::<Shard<V>>()
    }

    pub(crate) fn get(&self, key: u64) -> Option<&V> {
        let mixed = mix(key);
        let shard = &self.shards[self.shard_of(mixed)];
        let at = shard.find(mixed, self.shard_bits).ok()?;
        Some(&shard.slots[at].1)
    }

    /// Reads where the keys should be and does nothing with it, so that the cache misses of keys to come run side by
    /// side instead of one after the other.
    pub(crate) fn touch(&self, keys: impl Iterator<Item = u64>) {
        let mut seen = 0;
        for key in keys {
            let mixed = mix(key);
            let shard = &self.shards[self.shard_of(mixed)];
            seen ^= shard.slots.get(shard.home(mixed, self.shard_bits)).map_or(0, |(key, _)| *key);
        }
        std::hint::black_box(seen);
    }

    /// Changes the value of `key`, which starts vacant if the key is new; dropped if it ends vacant.
    pub(crate) fn update<R>(&mut self, key: u64, change: impl FnOnce(&mut V) -> R) -> R {
        let (mixed, bits) = (mix(key), self.shard_bits);
        let index = self.shard_of(mixed);
        let shard = &mut self.shards[index];
        let at = match shard.find(mixed, bits) {
            Ok(at) => at,
            Err(at) => {
                self.len += 1;
                shard.insert(at, mixed, bits)
            }
        };
        self.change_at(index, at, change)
    }

    /// As [`Table::update`], for keys that are there only.
    pub(crate) fn update_existing<R>(&mut self, key: u64, change: impl FnOnce(&mut V) -> R) -> Option<R> {
        let mixed = mix(key);
        let index = self.shard_of(mixed);
        let at = self.shards[index].find(mixed, self.shard_bits).ok()?;
        Some(self.change_at(index, at, change))
    }

    /// All values, in no useful order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.shards.iter().flat_map(|shard| &shard.slots).map(|(_, value)| value).filter(|v| !v.is_vacant())
    }

    fn change_at<R>(&mut self, index: usize, at: usize, change: impl FnOnce(&mut V) -> R) -> R {
        let shard = &mut self.shards[index];
        let result = change(&mut shard.slots[at].1);
        if shard.slots[at].1.is_vacant() {
            shard.remove(at, self.shard_bits);
            self.len -= 1;
        }
        result
    }

    fn shard_of(&self, mixed: u64) -> usize {
        // Two shifts, because a shift by 64 (no shard bits) is not defined.
        ((mixed >> 1) >> (63 - self.shard_bits)) as usize
    }
}

impl<V: Vacant> Shard<V> {
    fn home(&self, mixed: u64, bits: u32) -> usize {
        ((u128::from(mixed << bits) * self.capacity as u128) >> 64) as usize
    }

    /// Where the key is, or where it belongs.
    fn find(&self, mixed: u64, bits: u32) -> Result<usize, usize> {
        let mut at = self.home(mixed, bits);
        while let Some((key, value)) = self.slots.get(at) {
            if value.is_vacant() || *key > mixed {
                break;
            }
            if *key == mixed {
                return Ok(at);
            }
            at += 1;
        }
        Err(at)
    }

    /// Makes room for a new key at `at` (from [`Shard::find`]) and says where it went.
    fn insert(&mut self, mut at: usize, mixed: u64, bits: u32) -> usize {
        self.len += 1;
        if self.len as f64 > self.capacity as f64 * MAX_LOAD {
            self.rebuild(bits);
            at = self.find(mixed, bits).unwrap_or_else(|at| at);
        }
        let mut end = at;
        while self.slots.get(end).is_some_and(|(_, value)| !value.is_vacant()) {
            end += 1;
        }
        if end == self.slots.len() {
            if self.slots.len() == self.slots.capacity() {
                self.slots.reserve_exact(TAIL);
            }
            self.slots.push((0, V::default()));
        }
        self.slots[at..=end].rotate_right(1);
        self.slots[at].0 = mixed;
        at
    }

    /// Closes the gap that the vacant value at `at` leaves in its run.
    fn remove(&mut self, at: usize, bits: u32) {
        self.len -= 1;
        let mut end = at;
        while let Some((key, value)) = self.slots.get(end + 1) {
            if value.is_vacant() || self.home(*key, bits) > end {
                break;
            }
            end += 1;
        }
        self.slots[at..=end].rotate_left(1);
        if self.len == 0
            || (self.capacity > MIN_CAPACITY && (self.len as f64) < self.capacity as f64 * MIN_LOAD)
        {
            self.rebuild(bits);
        }
    }

    fn rebuild(&mut self, bits: u32) {
        let old = std::mem::take(&mut self.slots);
        if self.len == 0 {
            self.capacity = 0;
            return;
        }
        self.capacity = MIN_CAPACITY.max((self.len as f64 / BUILD_LOAD) as usize);
        self.slots.reserve_exact(self.capacity + TAIL);
        for (key, value) in old {
            if !value.is_vacant() {
                let home = self.home(key, bits);
                while self.slots.len() < home {
                    self.slots.push((0, V::default()));
                }
                self.slots.push((key, value));
            }
        }
        while self.slots.len() < self.capacity {
            self.slots.push((0, V::default()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Debug, Default, PartialEq)]
    struct Count(u32);

    impl Vacant for Count {
        fn is_vacant(&self) -> bool {
            self.0 == 0
        }
    }

    fn check(operations: &[(u64, bool)], shard_bits: u32) -> Result<(), TestCaseError> {
        let mut table = Table::<Count>::new(shard_bits);
        let mut model = BTreeMap::<u64, u32>::new();
        for &(key, up) in operations {
            if up {
                table.update(key, |count| count.0 += 1);
                *model.entry(key).or_default() += 1;
            } else {
                let found = table.update_existing(key, |count| count.0 -= 1);
                prop_assert_eq!(found.is_some(), model.contains_key(&key));
                if let Some(count) = model.get_mut(&key) {
                    *count -= 1;
                }
                model.retain(|_, count| *count > 0);
            }
            prop_assert_eq!(table.len(), model.len());
            prop_assert_eq!(table.get(key).map(|count| count.0), model.get(&key).copied());
        }
        for (key, count) in &model {
            prop_assert_eq!(table.get(*key).map(|count| count.0), Some(*count));
        }
        let total: u32 = table.values().map(|count| count.0).sum();
        prop_assert_eq!(total, model.values().sum::<u32>());
        Ok(())
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(
            operations in prop::collection::vec((0u64..60, prop::bool::weighted(0.6)), 0..400),
            spread in prop_oneof![Just(1u64), Just(1 << 20), Just(1 << 56), Just(0x9E37_79B9_7F4A_7C15)],
            shard_bits in 0u32..5,
        ) {
            let operations: Vec<_> = operations.iter().map(|&(key, up)| (key.wrapping_mul(spread), up)).collect();
            check(&operations, shard_bits)?;
        }
    }

    #[test]
    fn memory_follows_the_live_entries_down_to_nothing() {
        let mut table = Table::<Count>::new(4);
        let empty = table.memory_bytes();
        (0..100_000u64).for_each(|key| table.update(key, |count| count.0 = 1));
        let per_entry = table.memory_bytes() as f64 / 100_000.0;
        assert!(per_entry <= 16.0 / BUILD_LOAD + 2.0, "{per_entry} bytes per entry");
        for key in 0..100_000u64 {
            table.update_existing(key, |count| count.0 = 0);
            let live = 99_999 - key as usize;
            assert!(table.memory_bytes() <= empty + 16 * (live as f64 / MIN_LOAD) as usize + 16 * 16 * 16);
        }
        assert_eq!(table.memory_bytes(), empty);
    }
}
