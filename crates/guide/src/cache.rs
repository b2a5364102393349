//! The most recently used entries of a map.

/// Remembers up to `capacity` entries, the last used first. So few that a walk through them is the quickest search.
#[derive(Debug)]
pub(crate) struct Cache<K, V> {
    entries: Vec<(K, V)>,
    capacity: usize,
}

impl<K: Eq + Clone, V> Cache<K, V> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { entries: Vec::new(), capacity }
    }

    /// The entry of `key`, which from now on is the last used.
    pub(crate) fn get(&mut self, key: &K) -> Option<&V> {
        let place = self.entries.iter().position(|(known, _)| known == key)?;
        self.entries[..=place].rotate_right(1);
        self.entries.first().map(|(_, value)| value)
    }

    /// Adds an entry, and forgets what was not used for longest when there are too many.
    pub(crate) fn insert(&mut self, key: &K, value: V) {
        self.entries.retain(|(known, _)| known != key);
        self.entries.truncate(self.capacity.saturating_sub(1));
        if self.capacity > 0 {
            self.entries.insert(0, (key.clone(), value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_unused_entry_goes() {
        let mut cache = Cache::new(2);
        cache.insert(&1, 'a');
        cache.insert(&2, 'b');
        assert_eq!(cache.get(&1), Some(&'a'));
        cache.insert(&3, 'c');
        assert_eq!([1, 2, 3].map(|key| cache.get(&key).copied()), [Some('a'), None, Some('c')]);
        cache.insert(&3, 'd');
        assert_eq!([1, 3].map(|key| cache.get(&key).copied()), [Some('a'), Some('d')]);
    }
}
