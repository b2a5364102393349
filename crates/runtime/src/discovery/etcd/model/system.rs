//! The store as everybody sees it, and a process as its own side sees it.

use super::super::super::conformance::remote;
use super::super::super::layout::Entries;
use super::super::own::{Offer, Own};
use super::super::picture::{Picture, Snapshot};
use super::super::wire::{Changes, Pair};
use dynamo_types::ModelRecord;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// In ticks. Whoever is connected does all that is due before the next tick.
pub(super) const LEASE: u32 = 2;
pub(super) const TICK: Duration = Duration::from_secs(1);
/// A rule that is not ours, to see that it would be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// A list after a silence is taken for all there is.
    HeardAllTheWhile,
    /// What was written under a lease that ended is held for written.
    ForgetsWhatALeaseHeld,
    /// What is removed is gone, whatever became of the store.
    BelievesRemovals,
    /// The store says what is ours.
    ShowsWhatWasWithdrawn,
    /// What is ours is kept after a loss as what others have is.
    RemembersItsOwn,
    /// What ours lacks in the store is not looked at.
    NeverCompares,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Store {
    Up,
    /// Says nothing; leases run on.
    Frozen,
    /// Leases begin again when it is back.
    Down,
}

#[derive(Clone)]
pub(super) struct Server {
    pub(super) state: Store,
    pub(super) identity: Option<u8>,
    pub(super) identities: u8,
    pub(super) revision: i64,
    /// The record's entries, and the lease they belong to.
    pub(super) entries: Option<(Vec<Pair>, i64)>,
    /// Ticks left.
    pub(super) leases: BTreeMap<i64, u32>,
    pub(super) next_lease: i64,
    /// What watches are told, oldest first.
    pub(super) log: Vec<Changes>,
}

/// A process: its side of discovery.
#[derive(Clone, Default)]
pub(super) struct Process {
    pub(super) own: Own,
    pub(super) picture: Picture,
    pub(super) shown: Vec<ModelRecord>,
    pub(super) connected: bool,
    pub(super) watching: bool,
    pub(super) unheard: bool,
}

pub(super) fn base() -> Instant {
    static BASE: OnceLock<Instant> = OnceLock::new();
    *BASE.get_or_init(Instant::now)
}

pub(super) fn at(tick: u32) -> Instant {
    base() + TICK * tick
}

pub(super) fn record(draining: bool) -> ModelRecord {
    static RECORD: OnceLock<ModelRecord> = OnceLock::new();
    let mut record = RECORD.get_or_init(|| remote(1, "m", 16)).clone();
    record.instance.draining = draining;
    record
}

pub(super) fn offer() -> Offer {
    let record = record(false);
    let entries = Entries::of(&record).unwrap();
    Offer { record, entries, reply: oneshot::channel().0 }
}

pub(super) fn pairs(entries: &Entries, revision: i64) -> Vec<Pair> {
    let pair =
        |(key, value): &(String, String)| Pair { key: key.clone(), value: value.clone().into(), revision };
    vec![pair(&entries.instance), pair(&entries.model)]
}

impl Server {
    pub(super) fn tell(&mut self, is_put: bool, pairs: Vec<Pair>) {
        let events = pairs.into_iter().map(|pair| (is_put, pair)).collect();
        self.log.push(Changes { revision: self.revision, events, ..Changes::default() });
    }

    pub(super) fn write(&mut self, entries: &Entries, lease: i64) -> i64 {
        self.revision += 1;
        let written = pairs(entries, self.revision);
        self.entries = Some((written.clone(), lease));
        self.tell(true, written);
        self.revision
    }

    /// Removes the entries if they belong to `lease`. The revision after it.
    pub(super) fn remove(&mut self, lease: i64) -> i64 {
        if let Some((pairs, _)) = self.entries.take_if(|(_, owner)| *owner == lease) {
            self.revision += 1;
            self.tell(false, pairs);
        }
        self.revision
    }

    pub(super) fn snapshot(&mut self) -> Snapshot {
        if self.identity.is_none() {
            self.identities += 1;
            self.revision += 1;
            self.identity = Some(self.identities);
        }
        let pairs = self.entries.iter().flat_map(|(pairs, _)| pairs.clone()).collect();
        Snapshot {
            revision: self.revision,
            identity: self.identity.map(|id| vec![id]).unwrap_or_default(),
            pairs,
        }
    }

    pub(super) fn is_of(&self, picture: &Picture) -> bool {
        self.identity.map(|identity| vec![identity]) == picture.identity
    }

    pub(super) fn expired(&self) -> Option<i64> {
        self.leases.iter().find(|(_, left)| **left == 0).map(|(&lease, _)| lease)
    }
}

impl Process {
    /// As `follow::publish`.
    pub(super) fn publish(&mut self, now: u32, wrong: Option<Wrong>) -> Result<(), String> {
        let (mut records, faults) = self.picture.records(at(now));
        if !faults.is_empty() {
            return Err(format!("{faults:?}"));
        }
        if wrong != Some(Wrong::ShowsWhatWasWithdrawn) {
            self.own.merge(self.picture.revision, &mut records, 10);
        }
        self.shown = records;
        if wrong != Some(Wrong::NeverCompares) {
            let picture = &self.picture;
            self.own.compare(picture.revision, |key| picture.holds(key));
        }
        Ok(())
    }

    /// As `follow::session` begins.
    pub(super) fn list(&mut self, server: &mut Server, now: u32, wrong: Option<Wrong>) -> Result<(), String> {
        let unheard = self.unheard && wrong != Some(Wrong::HeardAllTheWhile);
        let moment = (at(now), TICK * LEASE);
        let others = match wrong {
            Some(Wrong::RemembersItsOwn) => self.shown.clone(),
            _ => self.own.others(self.shown.clone()),
        };
        if self.picture.list(server.snapshot(), unheard, others, moment) {
            self.own.replaced();
        }
        (self.unheard, self.watching) = (false, true);
        self.publish(now, wrong)
    }

    /// As `follow::take_in`.
    pub(super) fn hear(&mut self, server: &Server, now: u32, wrong: Option<Wrong>) -> Result<(), String> {
        let Some(changes) = self.next(server).cloned() else { return Ok(()) };
        let removes = changes.events.iter().any(|(is_put, _)| !is_put);
        if removes && !server.is_of(&self.picture) && wrong != Some(Wrong::BelievesRemovals) {
            self.watching = false;
            return Ok(());
        }
        self.picture.apply(changes);
        self.publish(now, wrong)
    }

    pub(super) fn next<'a>(&self, server: &'a Server) -> Option<&'a Changes> {
        server.log.iter().find(|changes| changes.revision > self.picture.revision).filter(|_| self.watching)
    }

    pub(super) fn disconnect(&mut self) {
        (self.watching, self.unheard) = (false, true);
    }

    pub(super) fn is_busy(&self, server: &Server) -> bool {
        self.connected && (!self.watching || self.next(server).is_some() || !server.is_of(&self.picture))
    }

    pub(super) fn key(&self, now: u32, key: &mut String) {
        let shown: Vec<bool> = self.shown.iter().map(|record| record.instance.draining).collect();
        let flags = (self.connected, self.watching, self.unheard);
        let _ = write!(key, "{:?} {} {shown:?} {flags:?};", self.own, self.picture.key(at(now)));
    }
}
