//! What is held for a while under a name: bounded in number and weight, each entry with a deadline. Plain data over the
//! caller's clock.

use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Entries by id.
#[derive(Debug)]
pub(super) struct Table<T> {
    entries: FxHashMap<Arc<str>, Entry<T>>,
    /// Deadline and id, soonest first.
    due: BTreeSet<(u64, Arc<str>)>,
    weight: usize,
    limits: Limits,
}

/// Bounds of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) entries: usize,
    pub(super) weight: usize,
    /// An entry that nobody touches for this long is dropped.
    pub(super) idle_ms: u64,
}

#[derive(Debug)]
struct Entry<T> {
    value: T,
    weight: usize,
    deadline_ms: u64,
}

/// Why an entry was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The id is in use.
    Taken,
    /// The table has as many as it may.
    Full,
}

impl<T> Table<T> {
    pub(super) fn new(limits: Limits) -> Self {
        Self { entries: FxHashMap::default(), due: BTreeSet::new(), weight: 0, limits }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn contains(&self, id: &str) -> bool {
        self.entries.contains_key(id)
    }

    /// # Errors
    /// The id is in use, or the table is full.
    pub(super) fn insert(&mut self, id: Arc<str>, value: T, now_ms: u64) -> Result<(), Refused> {
        if self.entries.contains_key(&id) {
            return Err(Refused::Taken);
        }
        if self.entries.len() >= self.limits.entries {
            return Err(Refused::Full);
        }
        self.put(id, value, 0, now_ms);
        Ok(())
    }

    /// Takes the place of an entry of the same id, and of the ones that would expire first if there is no room. An entry
    /// that is heavier than the whole table is not kept.
    pub(super) fn replace(&mut self, id: Arc<str>, value: T, weight: usize, now_ms: u64) {
        self.remove(&id);
        if weight > self.limits.weight {
            return;
        }
        while self.entries.len() >= self.limits.entries || self.weight + weight > self.limits.weight {
            let Some((_, oldest)) = self.due.first().cloned() else { return };
            self.remove(&oldest);
        }
        self.put(id, value, weight, now_ms);
    }

    fn put(&mut self, id: Arc<str>, value: T, weight: usize, now_ms: u64) {
        let deadline_ms = now_ms.saturating_add(self.limits.idle_ms);
        self.weight += weight;
        self.due.insert((deadline_ms, Arc::clone(&id)));
        self.entries.insert(id, Entry { value, weight, deadline_ms });
    }

    /// The entry, whose time begins anew.
    pub(super) fn touch(&mut self, id: &str, now_ms: u64) -> Option<&mut T> {
        let (key, entry) = self.entries.get_key_value(id)?;
        let key = Arc::clone(key);
        self.due.remove(&(entry.deadline_ms, Arc::clone(&key)));
        let deadline_ms = now_ms.saturating_add(self.limits.idle_ms);
        self.due.insert((deadline_ms, key));
        let entry = self.entries.get_mut(id)?;
        entry.deadline_ms = deadline_ms;
        Some(&mut entry.value)
    }

    pub(super) fn get(&self, id: &str) -> Option<&T> {
        self.entries.get(id).map(|entry| &entry.value)
    }

    pub(super) fn remove(&mut self, id: &str) -> Option<T> {
        let (key, entry) = self.entries.remove_entry(id)?;
        self.due.remove(&(entry.deadline_ms, key));
        self.weight -= entry.weight;
        Some(entry.value)
    }

    /// Takes out what is past its deadline.
    pub(super) fn expire(&mut self, now_ms: u64) -> Vec<(Arc<str>, T)> {
        let mut gone = Vec::new();
        while let Some((deadline_ms, id)) = self.due.first().cloned()
            && deadline_ms <= now_ms
        {
            match self.remove(&id) {
                Some(value) => gone.push((id, value)),
                // The two agree, so this is never reached; if they did not, the loop would not end without it.
                None => {
                    self.due.pop_first();
                }
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(entries: usize, weight: usize) -> Table<u32> {
        Table::new(Limits { entries, weight, idle_ms: 100 })
    }

    #[test]
    fn an_id_is_taken_once_and_the_limit_holds() {
        let mut table = table(2, 0);
        assert_eq!(table.insert("a".into(), 1, 0), Ok(()));
        assert_eq!(table.insert("a".into(), 2, 0), Err(Refused::Taken));
        assert_eq!(table.insert("b".into(), 3, 0), Ok(()));
        assert_eq!(table.insert("c".into(), 4, 0), Err(Refused::Full));
        assert_eq!(table.remove("a"), Some(1));
        assert_eq!(table.remove("a"), None);
        assert_eq!(table.insert("c".into(), 4, 0), Ok(()));
    }

    #[test]
    fn what_is_touched_lives_on() {
        let mut table = table(9, 0);
        table.insert("a".into(), 1, 0).unwrap();
        table.insert("b".into(), 2, 0).unwrap();
        assert_eq!(table.touch("b", 60), Some(&mut 2));
        assert_eq!(table.touch("c", 60), None);
        assert!(table.expire(99).is_empty());
        assert_eq!(table.expire(100), [("a".into(), 1)]);
        assert!(table.expire(159).is_empty());
        assert_eq!(table.expire(160), [("b".into(), 2)]);
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn the_oldest_make_room_by_number_and_by_weight() {
        let mut table = table(3, 10);
        for (now, id) in (0..).zip(["a", "b", "c", "d"]) {
            table.replace(id.into(), 1, 3, now);
        }
        assert!(!table.contains("a") && table.contains("b"));
        table.replace("e".into(), 5, 7, 9);
        assert_eq!((table.len(), table.get("d"), table.get("e")), (2, Some(&1), Some(&5)));
        table.replace("f".into(), 6, 11, 9);
        assert!(!table.contains("f") && table.contains("e"));
        table.replace("e".into(), 8, 10, 9);
        assert_eq!((table.len(), table.get("e")), (1, Some(&8)));
    }

    proptest! {
        /// Entries, deadlines and weight always tell the same, and nothing outlives its time.
        #[test]
        fn the_parts_agree(steps in prop::collection::vec((0u8..5, 0u8..6, 0usize..6), 0..200)) {
            let mut table = table(4, 12);
            for (now, (step, name, weight)) in (0u64..).step_by(17).zip(steps) {
                let id: Arc<str> = name.to_string().into();
                match step {
                    0 => drop(table.insert(id, 0, now)),
                    1 => table.replace(id, 0, weight, now),
                    2 => drop(table.touch(&id, now)),
                    3 => drop(table.remove(&id)),
                    _ => drop(table.expire(now)),
                }
                let weights: usize = table.entries.values().map(|entry| entry.weight).sum();
                prop_assert_eq!(table.weight, weights);
                prop_assert!(table.len() <= 4 && table.weight <= 12);
                let mut due: Vec<_> =
                    table.entries.iter().map(|(id, entry)| (entry.deadline_ms, Arc::clone(id))).collect();
                due.sort();
                prop_assert_eq!(due, table.due.iter().cloned().collect::<Vec<_>>());
            }
            table.expire(u64::MAX);
            prop_assert_eq!((table.len(), table.weight), (0, 0));
        }
    }
}
