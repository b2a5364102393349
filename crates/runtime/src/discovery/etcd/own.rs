//! What this process has registered, asks to have registered, and took back: plain data.

use super::super::layout::Entries;
use super::super::{Error, Registration};
use dynamo_types::{InstanceId, ModelRecord};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tokio::sync::oneshot;

/// Where the outcome of a registration goes. Closed: nobody waits for it any more.
pub(super) type Reply = oneshot::Sender<Result<Registration, Error>>;

/// A record that is not admitted yet.
pub(super) struct Offer {
    pub(super) record: ModelRecord,
    pub(super) entries: Entries,
    pub(super) reply: Reply,
}

pub(super) struct Owned {
    pub(super) record: ModelRecord,
    pub(super) entries: Entries,
    /// The store's revision that holds this state. None: it holds an older one, or none.
    written: Option<i64>,
    /// The lease that its entries were last written under; 0: none.
    lease: i64,
    /// Of a first registration.
    reply: Option<Reply>,
}

/// Entries that are to be removed.
#[derive(Clone)]
pub(super) struct Removal {
    pub(super) id: InstanceId,
    pub(super) entries: Entries,
    pub(super) lease: i64,
}

#[derive(Default)]
pub(super) struct Own {
    records: BTreeMap<InstanceId, Owned>,
    /// At most as many as records there may be.
    offers: VecDeque<Offer>,
    /// Bounded by the records there were.
    removals: VecDeque<Removal>,
    /// Withdrawn, and perhaps still in what a reader found; with the revision that removed it once that is known.
    withdrawn: BTreeMap<InstanceId, Option<i64>>,
}

impl Own {
    /// True: it fits.
    pub(super) fn offer(&mut self, offer: Offer, limit: usize) -> bool {
        let fits = self.offers.len() + self.records.len() < limit;
        if fits {
            self.offers.push_back(offer);
        }
        fits
    }

    pub(super) fn next_offer(&mut self) -> Option<Offer> {
        self.offers.pop_front()
    }

    pub(super) fn has_offers(&self) -> bool {
        !self.offers.is_empty()
    }

    /// Nothing is registered, and nothing is to be.
    pub(super) fn is_idle(&self) -> bool {
        self.records.is_empty() && self.offers.is_empty()
    }

    /// Nothing waits for the store.
    pub(super) fn is_settled(&self) -> bool {
        self.removals.is_empty()
    }

    pub(super) fn records(&self) -> impl ExactSizeIterator<Item = &ModelRecord> {
        self.records.values().map(|owned| &owned.record)
    }

    pub(super) fn admit(&mut self, offer: Offer) {
        let Offer { record, entries, reply } = offer;
        let id = record.instance.id;
        self.withdrawn.remove(&id);
        self.records.insert(id, Owned { record, entries, written: None, lease: 0, reply: Some(reply) });
    }

    /// False: there is none of that id.
    pub(super) fn withdraw(&mut self, id: InstanceId) -> bool {
        let Some(owned) = self.records.remove(&id) else { return false };
        self.withdrawn.insert(id, None);
        self.removals.push_back(Removal { id, entries: owned.entries, lease: owned.lease });
        true
    }

    pub(super) fn next_removal(&self) -> Option<Removal> {
        self.removals.front().cloned()
    }

    /// The next removal was done, by this revision of the store.
    pub(super) fn removed(&mut self, revision: i64) {
        let Some(removal) = self.removals.pop_front() else { return };
        if let Some(removed) = self.withdrawn.get_mut(&removal.id) {
            *removed = Some(revision);
        }
    }

    pub(super) fn get_mut(&mut self, id: InstanceId) -> Option<&mut Owned> {
        self.records.get_mut(&id)
    }

    pub(super) fn all_unwritten(&mut self) {
        self.records.values_mut().for_each(|owned| owned.written = None);
    }

    /// Registrations nobody waits for any more.
    pub(super) fn abandoned(&self) -> Vec<InstanceId> {
        let is_abandoned = |owned: &Owned| owned.reply.as_ref().is_some_and(oneshot::Sender::is_closed);
        self.records.iter().filter(|(_, owned)| is_abandoned(owned)).map(|(&id, _)| id).collect()
    }

    /// A record that the store is to be told of. `lease`: the one it is going to be written under.
    pub(super) fn next_unwritten(&mut self, lease: i64) -> Option<(InstanceId, Entries)> {
        let (&id, owned) = self.records.iter_mut().find(|(_, owned)| owned.written.is_none())?;
        owned.lease = lease;
        Some((id, owned.entries.clone()))
    }

    /// Entries were written. Whoever waits for that is to be told.
    pub(super) fn wrote(&mut self, id: InstanceId, entries: &Entries, revision: i64) -> Option<Reply> {
        let owned = self.records.get_mut(&id)?;
        if owned.entries == *entries {
            owned.written = Some(revision);
        }
        owned.reply.take()
    }

    /// A record cannot be written, ever.
    pub(super) fn refused(&mut self, id: InstanceId) -> Option<Reply> {
        let owned = self.records.get_mut(&id)?;
        // It is written again with the next loss of the store, or change of its own.
        owned.written = Some(i64::MAX);
        owned.reply.take()
    }

    /// The large texts that the records refer to.
    pub(super) fn blobs(&self) -> Vec<super::super::layout::Blob> {
        let mut told = BTreeSet::new();
        let blobs = self.records.values().filter_map(|owned| owned.entries.blob.as_ref());
        blobs.filter(|blob| told.insert(blob.hash.clone())).cloned().collect()
    }

    /// Compares with what the store holds at `revision`. True: something of ours that was written is not there.
    pub(super) fn compare(&mut self, revision: i64, holds: impl Fn(&str) -> bool) -> bool {
        let mut lacks = false;
        for owned in self.records.values_mut() {
            let is_due = owned.written.is_some_and(|written| written <= revision);
            if is_due && !(holds(&owned.entries.instance.0) && holds(&owned.entries.model.0)) {
                owned.written = None;
                lacks = true;
            }
        }
        lacks
    }

    /// What is ours is there, and what we took away is not, whatever the store said at `revision`.
    pub(super) fn merge(&mut self, revision: i64, records: &mut Vec<ModelRecord>, limit: usize) {
        self.withdrawn.retain(|_, removed| removed.is_none_or(|removed| removed > revision));
        records.retain(|record| {
            let id = &record.instance.id;
            !self.records.contains_key(id) && !self.withdrawn.contains_key(id)
        });
        records.truncate(limit.saturating_sub(self.records.len()));
        records.extend(self.records.values().map(|owned| owned.record.clone()));
    }

    /// Those of a list that others have registered. What is ours needs nobody to remember it.
    pub(super) fn others(&self, mut records: Vec<ModelRecord>) -> Vec<ModelRecord> {
        records.retain(|record| !self.records.contains_key(&record.instance.id));
        records
    }

    /// Another store stands in the place of the one that was: nothing of ours is in it, and its revisions are others.
    pub(super) fn replaced(&mut self) {
        self.all_unwritten();
        self.withdrawn.retain(|_, removed| removed.is_none());
    }
}

impl Owned {
    pub(super) fn change(&mut self, entries: Entries) {
        self.entries = entries;
        self.written = None;
    }
}

/// For a model's states: nobody waits for a copy.
#[cfg(test)]
impl Clone for Own {
    fn clone(&self) -> Self {
        let copy = |owned: &Owned| {
            let Owned { record, entries, written, lease, .. } = owned;
            let (record, entries) = (record.clone(), entries.clone());
            Owned { record, entries, written: *written, lease: *lease, reply: None }
        };
        Self {
            records: self.records.iter().map(|(&id, owned)| (id, copy(owned))).collect(),
            offers: VecDeque::new(),
            removals: self.removals.clone(),
            withdrawn: self.withdrawn.clone(),
        }
    }
}

/// For what makes two states of a model the same.
#[cfg(test)]
impl std::fmt::Debug for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let records = self.records.values();
        let records = records.map(|owned| (owned.record.instance.draining, owned.written, owned.lease));
        let removals = self.removals.iter().map(|removal| removal.lease);
        f.debug_list().entries(records).entries(removals).entries(&self.withdrawn).finish()
    }
}
