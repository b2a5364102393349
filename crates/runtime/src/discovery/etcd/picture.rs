//! What the store was last heard to hold, and what it may have lost: plain data, with the time as an argument.

use super::super::layout::{self, INSTANCES};
use super::wire::{Changes, Pair};
use dynamo_types::{InstanceId, ModelRecord};
use rustc_hash::FxHashMap;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// All entries at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Snapshot {
    pub(super) revision: i64,
    /// What stands in the marker, which whoever finds a store without one makes anew.
    pub(super) identity: Vec<u8>,
    pub(super) pairs: Vec<Pair>,
}

#[derive(Clone, Default)]
pub(super) struct Picture {
    pub(super) revision: i64,
    pub(super) identity: Option<Vec<u8>>,
    entries: BTreeMap<String, String>,
    /// Large texts by hash; only those that entries refer to.
    blobs: FxHashMap<String, Arc<str>>,
    kept: Kept,
}

impl Picture {
    /// Takes over a list. `unheard`: we have not heard the store all the while since the last one. `shown`: what the view
    /// shows of others. True: it is another store than before.
    pub(super) fn list(
        &mut self,
        snapshot: Snapshot,
        unheard: bool,
        shown: Vec<ModelRecord>,
        (now, lease): (Instant, Duration),
    ) -> bool {
        let same = self.identity.as_ref().is_none_or(|known| *known == snapshot.identity);
        let replaced = !same || snapshot.revision < self.revision;
        self.identity = Some(snapshot.identity);
        self.revision = snapshot.revision;
        if replaced || unheard {
            self.kept.begin(shown, now, lease, self.revision);
        }
        snapshot.pairs.iter().for_each(|pair| self.kept.written(pair));
        self.entries = snapshot.pairs.into_iter().map(|pair| (pair.key, text(&pair.value))).collect();
        replaced
    }

    pub(super) fn apply(&mut self, changes: Changes) {
        self.revision = self.revision.max(changes.revision);
        for (is_put, pair) in changes.events {
            if is_put {
                self.kept.written(&pair);
                self.entries.insert(pair.key, text(&pair.value));
            } else {
                self.entries.remove(&pair.key);
            }
        }
    }

    pub(super) fn holds(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// Forgets texts that nothing refers to, and says which are missing.
    pub(super) fn missing_blobs(&mut self) -> Vec<String> {
        let models = self.entries.iter().filter(|(key, _)| !key.starts_with(INSTANCES));
        let wanted: BTreeSet<String> = models.filter_map(|(_, value)| layout::blob_of(value)).collect();
        self.blobs.retain(|hash, _| wanted.contains(hash));
        wanted.into_iter().filter(|hash| !self.blobs.contains_key(hash)).collect()
    }

    pub(super) fn add_blob(&mut self, hash: String, content: Arc<str>) {
        self.blobs.insert(hash, content);
    }

    /// The records there are, with those that may still come again; and what cannot be read.
    pub(super) fn records(&mut self, now: Instant) -> (Vec<ModelRecord>, Vec<String>) {
        let entries = || self.entries.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let (mut records, faults) = layout::assemble(
            entries().filter(|(key, _)| key.starts_with(INSTANCES)),
            entries().filter(|(key, _)| key.starts_with(layout::MODELS)),
            |hash| self.blobs.get(hash).cloned(),
        );
        self.kept.merge(&mut records, now);
        (records, faults)
    }

    /// When the next of those that may still come again is given up.
    pub(super) fn due(&self) -> Option<Instant> {
        self.kept.records.values().map(|kept| kept.until).min()
    }
}

#[cfg(test)]
impl Picture {
    /// What makes two of them the same, as seen at `now`.
    pub(super) fn key(&self, now: Instant) -> String {
        let kept = self.kept.records.values().map(|kept| {
            let left = kept.until.saturating_duration_since(now);
            (kept.record.instance.draining, left, kept.since, kept.is_written)
        });
        let entries = self.entries.values().map(String::len);
        let known = (self.revision, &self.identity);
        format!("{known:?} {:?} {:?}", entries.collect::<Vec<_>>(), kept.collect::<Vec<_>>())
    }
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

/// Records that were there before we lost the store, or the store its data. Their owners may have lost it too, and may
/// still be listed under leases that have ended already. So each stays for one lease, whatever the store says, or until its
/// owner has written all of it again: nobody is taken away who only was not heard.
#[derive(Clone, Default)]
struct Kept {
    records: BTreeMap<String, Keeping>,
    /// When we last heard the store.
    heard: Option<Instant>,
}

#[derive(Clone)]
struct Keeping {
    record: ModelRecord,
    until: Instant,
    /// The revision at which we heard the store again.
    since: i64,
    /// Its owner has written an entry since then; a text it refers to may be missing yet.
    is_written: bool,
}

impl Kept {
    /// Who is kept already is not kept longer, but for the time that nobody could be heard in: a store that comes and goes
    /// does not keep the dead, nor take away those who live.
    fn begin(&mut self, shown: Vec<ModelRecord>, now: Instant, lease: Duration, since: i64) {
        let silence = self.heard.map_or(Duration::ZERO, |heard| now.saturating_duration_since(heard));
        for kept in self.records.values_mut() {
            (kept.since, kept.is_written) = (since, false);
            kept.until += silence;
        }
        for record in shown {
            let id = record.instance.id.to_string();
            self.records.entry(id).or_insert(Keeping {
                record,
                until: now + lease,
                since,
                is_written: false,
            });
        }
    }

    fn written(&mut self, pair: &Pair) {
        let id = pair.key.rsplit('/').next().unwrap_or_default();
        if let Some(kept) = self.records.get_mut(id) {
            kept.is_written |= pair.revision > kept.since;
        }
    }

    fn merge(&mut self, listed: &mut Vec<ModelRecord>, now: Instant) {
        self.heard = Some(now);
        self.records.retain(|_, kept| kept.until > now);
        let mut absent: BTreeSet<InstanceId> =
            self.records.values().map(|kept| kept.record.instance.id).collect();
        for record in listed.iter() {
            if absent.remove(&record.instance.id)
                && let Entry::Occupied(mut kept) = self.records.entry(record.instance.id.to_string())
            {
                if kept.get().is_written {
                    kept.remove();
                } else {
                    kept.get_mut().record = record.clone();
                }
            }
        }
        let kept = self.records.values().filter(|kept| absent.contains(&kept.record.instance.id));
        listed.extend(kept.map(|kept| kept.record.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::conformance::remote;
    use super::super::super::layout::Entries;
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    fn snapshot(identity: &str, revision: i64, records: &[ModelRecord]) -> Snapshot {
        let pairs = records.iter().flat_map(|record| {
            let entries = Entries::of(record).unwrap();
            [entries.instance, entries.model]
        });
        let pairs = pairs.map(|(key, value)| Pair { key, value: value.into(), revision }).collect();
        Snapshot { revision, identity: identity.into(), pairs }
    }

    fn removal(record: &ModelRecord, revision: i64) -> Changes {
        let entries = Entries::of(record).unwrap();
        let events =
            [entries.instance.0, entries.model.0].map(|key| (false, Pair { key, ..Pair::default() }));
        Changes { revision, events: events.into(), ..Changes::default() }
    }

    #[test]
    fn r24_a_lost_store_takes_nobody_away_who_can_still_come() {
        let (one, two) = (remote(1, "m", 16), remote(2, "m", 16));
        let start = Instant::now();
        let at = |s: u64| (start + Duration::from_secs(s), LEASE);
        let mut picture = Picture::default();
        assert!(!picture.list(snapshot("a", 5, &[one.clone(), two.clone()]), false, vec![], at(0)));
        assert_eq!(picture.records(at(0).0).0, [one.clone(), two.clone()]);
        // Emptied: both are kept, for one lease after it was found, however often it is listed again.
        let shown = vec![one.clone(), two.clone()];
        assert!(picture.list(snapshot("b", 2, &[]), true, shown.clone(), at(100)));
        assert_eq!(picture.records(at(100).0).0, shown);
        assert_eq!(picture.due(), Some(at(110).0));
        // One writes itself down again, and then leaves: that is believed.
        assert!(!picture.list(snapshot("b", 3, std::slice::from_ref(&one)), false, shown.clone(), at(105)));
        assert_eq!(picture.records(at(105).0).0, shown);
        picture.apply(removal(&one, 4));
        assert_eq!(picture.records(at(106).0).0, std::slice::from_ref(&two));
        assert_eq!(picture.records(at(111).0).0, []);
        assert_eq!(picture.due(), None);
    }

    #[test]
    fn r24_a_store_that_is_lost_again_takes_nobody_away_who_could_not_come() {
        let one = remote(1, "m", 16);
        let shown = std::slice::from_ref(&one);
        let start = Instant::now();
        let at = |s: u64| (start + Duration::from_secs(s), LEASE);
        let mut picture = Picture::default();
        picture.list(snapshot("a", 5, shown), false, vec![], at(0));
        picture.list(snapshot("a", 5, shown), true, shown.to_vec(), at(1));
        assert_eq!(picture.records(at(2).0).0, shown);
        // Longer than a lease, and with nothing in it then.
        picture.list(snapshot("b", 1, &[]), true, shown.to_vec(), at(50));
        assert_eq!(picture.records(at(50).0).0, shown);
        assert_eq!(picture.due(), Some(at(59).0));
        assert_eq!(picture.records(at(59).0).0, []);
    }

    #[test]
    fn r24_a_lease_that_ended_unheard_is_listed_for_a_moment_and_takes_nobody_away() {
        let one = remote(1, "m", 16);
        let start = Instant::now();
        let at = |s: u64| (start + Duration::from_secs(s), LEASE);
        let mut picture = Picture::default();
        picture.list(snapshot("a", 5, std::slice::from_ref(&one)), false, vec![], at(0));
        // The store was frozen: it answers before it looks at its leases.
        picture.list(snapshot("a", 5, std::slice::from_ref(&one)), true, vec![one.clone()], at(20));
        picture.apply(removal(&one, 6));
        assert_eq!(picture.records(at(21).0).0, std::slice::from_ref(&one));
        // Its owner did not live.
        assert_eq!(picture.records(at(31).0).0, []);
    }

    #[test]
    fn r24_who_was_written_again_in_part_is_kept_until_all_of_it_is_there() {
        let mut one = remote(1, "m", 16);
        let mut card = (*one.card).clone();
        let content: Arc<str> = "\"t\" ".repeat(9000).into();
        card.tokenizer = dynamo_types::TokenizerSpec::HuggingFace { json: Arc::clone(&content) };
        one.card = Arc::new(card);
        let hash = Entries::of(&one).unwrap().blob.unwrap().hash;
        let start = Instant::now();
        let at = |s: u64| (start + Duration::from_secs(s), LEASE);
        let mut picture = Picture::default();
        picture.list(snapshot("b", 1, &[]), false, vec![], at(0));
        picture.list(snapshot("c", 1, &[]), true, vec![one.clone()], at(1));
        let pairs = snapshot("c", 2, std::slice::from_ref(&one)).pairs;
        let events = pairs.into_iter().map(|pair| (true, pair)).collect();
        picture.apply(Changes { revision: 2, events, ..Changes::default() });
        assert_eq!(picture.missing_blobs(), std::slice::from_ref(&hash));
        assert_eq!(picture.records(at(2).0).0, std::slice::from_ref(&one));
        picture.add_blob(hash, content);
        assert_eq!(picture.records(at(3).0).0, std::slice::from_ref(&one));
        picture.apply(removal(&one, 3));
        assert_eq!(picture.records(at(4).0).0, []);
    }

    #[test]
    fn r26_what_a_list_lacks_is_gone_if_the_store_was_heard_all_the_while() {
        let one = remote(1, "m", 16);
        let now = (Instant::now(), LEASE);
        let mut picture = Picture::default();
        picture.list(snapshot("a", 5, std::slice::from_ref(&one)), true, vec![], now);
        assert!(!picture.list(snapshot("a", 6, &[]), false, vec![one.clone()], now));
        assert_eq!(picture.records(now.0).0, []);
        // A backup that was played back is another store, whatever it calls itself.
        assert!(picture.list(snapshot("a", 4, &[]), false, vec![one.clone()], now));
        assert_eq!(picture.records(now.0).0, [one]);
    }
}

#[cfg(test)]
mod laws;
