//! Discovery over etcd v3: for processes on several hosts.
//!
//! Entries belong to one lease per process, which the process keeps alive. Two tasks with a connection each serve a
//! process: [`keep`] writes, [`follow`] reads. Neither ever gives up: what the store does not answer is asked again, of the
//! next endpoint, after at most [`BACKOFF_MAX`]. Meanwhile the view stays as it is, and serving goes on (R24).
//!
//! A store that was not heard for a while, or lost its data, may lack those who live. So after that, whoever is not listed
//! stays in the view for one lease, in which owners write themselves down again.

use super::layout::{self, Entries};
use super::{Discovery, Error, Lease, Registration, View, Watch};
use crate::BoxFuture;
use crate::sync::lock;
use client::{Access, Client, Fault};
use dynamo_types::{Instance, InstanceId, ModelRecord};
use own::{Offer, Own};
use picture::{Picture, Snapshot};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use wire::{If, Transaction, range_between, range_of};

mod client;
mod follow;
mod keep;
mod own;
mod picture;
mod wire;

/// An entry that is there as long as nobody emptied the store. Whoever makes it writes something new into it.
const MARKER: &str = "v1/store";

/// A large text is written in pieces of this size: etcd refuses requests of more than 1.5 MB.
const PIECE_BYTES: usize = 1 << 20;

/// A large text is none of ours above this: more than every tokenizer there is.
const MAX_BLOB_BYTES: usize = 256 << 20;

/// A large text outlives the last who refers to it by this many leases.
const BLOB_LEASES: u64 = 6;

/// The wait before the store is asked again doubles up to this.
const BACKOFF_MAX: Duration = Duration::from_secs(2);
const BACKOFF_MIN: Duration = Duration::from_millis(50);

/// One call may take this part of a lease, so that a renewal that fails can be tried again.
const CALLS_PER_LEASE: u32 = 4;

/// Where etcd listens unless told otherwise.
const DEFAULT_PORT: u16 = 2379;

/// Times and limits of [`Etcd`], and where the store is.
#[derive(Clone, Debug)]
pub struct Options {
    /// `host:port`, or `http://host:port`; one that answers is enough.
    pub endpoints: Vec<String>,
    /// User and password, if the store wants them.
    pub login: Option<(String, String)>,
    /// The entries of a process that says nothing for this long go. Whole seconds.
    pub lease: Duration,
    /// The store is listed this often, should its watch have missed something (R26).
    pub relist_every: Duration,
    /// Limit for the first contact, and for a registration.
    pub connect_timeout: Duration,
    /// As for every view.
    pub view: super::Options,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            endpoints: vec!["localhost:2379".into()],
            login: None,
            lease: Duration::from_secs(10),
            relist_every: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(120),
            view: super::Options::default(),
        }
    }
}

/// Discovery over etcd. Dropping it ends every watch.
pub struct Etcd {
    store: Arc<Store>,
    tasks: [AbortHandle; 2],
}

struct Store {
    access: Access,
    options: Options,
    view: Arc<View>,
    /// Held for moments only.
    own: Mutex<Own>,
    /// There is something to write.
    changed: Notify,
    /// What was withdrawn is removed.
    settled: Notify,
    /// Whether there was a list.
    heard: watch::Sender<bool>,
    /// Faults told already, so that each is told once.
    told: Mutex<Vec<String>>,
}

impl Etcd {
    /// Returns when the store was listed.
    ///
    /// # Errors
    /// An endpoint is none, or the store was not heard within [`Options::connect_timeout`].
    pub async fn open(options: Options) -> Result<Self, Error> {
        let endpoints: Result<Vec<String>, Error> =
            options.endpoints.iter().map(|endpoint| host_and_port(endpoint)).collect();
        let endpoints = endpoints?;
        if endpoints.is_empty() {
            return Err(Error::Store("etcd: expected at least one endpoint, found none".into()));
        }
        let patience = options.lease / CALLS_PER_LEASE;
        let store = Arc::new(Store {
            access: Access { endpoints, login: options.login.clone(), patience },
            view: View::new(options.view.watch_queue),
            options,
            own: Mutex::default(),
            changed: Notify::new(),
            settled: Notify::new(),
            heard: watch::Sender::new(false),
            told: Mutex::default(),
        });
        let tasks = [
            tokio::spawn(follow::follow(Arc::clone(&store))).abort_handle(),
            tokio::spawn(keep::keep(Arc::clone(&store))).abort_handle(),
        ];
        let etcd = Self { store, tasks };
        let mut heard = etcd.store.heard.subscribe();
        match timeout(etcd.store.options.connect_timeout, heard.wait_for(|heard| *heard)).await {
            Ok(Ok(_)) => {}
            _ => return Err(etcd.store.unheard()),
        }
        Ok(etcd)
    }

    /// All records, by instance id.
    pub fn list(&self) -> Vec<ModelRecord> {
        self.store.view.list()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.store.view.close();
    }
}

impl Discovery for Etcd {
    fn register(&self, record: ModelRecord) -> BoxFuture<'_, Result<Registration, Error>> {
        Box::pin(async move {
            let store = &self.store;
            let limit = store.options.view.max_records;
            let entries = Entries::of(&record).map_err(|error| Error::Store(error.to_string()))?;
            let (reply, outcome) = oneshot::channel();
            if !lock(&store.own).offer(Offer { record, entries, reply }, limit) {
                return Err(Error::Full { limit });
            }
            store.changed.notify_one();
            let outcome = timeout(store.options.connect_timeout, outcome).await;
            // That nobody waits any more is noticed there.
            store.changed.notify_one();
            match outcome {
                Ok(Ok(outcome)) => outcome,
                _ => Err(store.unheard()),
            }
        })
    }

    fn watch(&self) -> BoxFuture<'_, Watch> {
        Box::pin(std::future::ready(self.store.view.watch(self.store.options.view.relist)))
    }

    fn settled(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let mut told = std::pin::pin!(self.store.settled.notified());
            while !lock(&self.store.own).is_settled() {
                told.as_mut().await;
                told.set(self.store.settled.notified());
            }
        })
    }
}

impl Store {
    fn registration(self: &Arc<Self>, id: InstanceId) -> Registration {
        Registration::new(Entry { store: Arc::clone(self), id })
    }

    fn withdraw(&self, id: InstanceId) {
        let mut own = lock(&self.own);
        if own.withdraw(id) {
            self.view.delete(id);
            self.changed.notify_one();
        }
    }

    fn change(&self, id: InstanceId, change: impl Fn(&mut Instance)) {
        let mut own = lock(&self.own);
        let Some(owned) = own.get_mut(id) else { return };
        change(&mut owned.record.instance);
        match Entries::of(&owned.record) {
            Ok(entries) => owned.change(entries),
            Err(error) => tracing::warn!(%error, "a record cannot be written"),
        }
        self.view.update(id, |record| change(&mut record.instance));
        self.changed.notify_one();
    }

    fn tell(&self, fault: &Fault) {
        self.remember(fault.to_string());
    }

    /// Logs a fault that was not logged lately.
    fn remember(&self, fault: String) {
        const REMEMBERED: usize = 64;
        let mut told = lock(&self.told);
        if let Some(place) = told.iter().position(|known| *known == fault) {
            // The last one is the one that counts.
            told.remove(place);
        } else {
            tracing::warn!(%fault, "discovery");
            if told.len() >= REMEMBERED {
                told.remove(0);
            }
        }
        told.push(fault);
    }

    fn unheard(&self) -> Error {
        let last = lock(&self.told).last().cloned();
        Error::Store(
            last.unwrap_or_else(|| format!("etcd at {}: no answer", self.access.endpoints.join(", "))),
        )
    }
}

/// All entries, and the marker, which is made if there is none.
async fn snapshot(client: &mut Client) -> Result<Snapshot, Fault> {
    let everything =
        Transaction::new().range(&range_of(MARKER)).range(&range_between(layout::INSTANCES, layout::MODELS));
    loop {
        let mut done = client.transact(&everything).await?;
        let entries = done.found.pop().unwrap_or_default();
        let marker = done.found.pop().and_then(|mut marker| marker.pairs.pop());
        if let Some(marker) = marker {
            return Ok(Snapshot { revision: done.revision, identity: marker.value, pairs: entries.pairs });
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let unique = format!("{} {}", std::process::id(), now.as_nanos());
        let mark = Transaction::new().only(&If::IsAbsent(MARKER)).put(MARKER, unique.as_bytes(), 0);
        client.transact(&mark).await?;
    }
}

fn pieces(content: &str) -> impl Iterator<Item = &[u8]> {
    content.as_bytes().chunks(PIECE_BYTES)
}

/// The wait after so many failures in a row.
fn backoff(failures: u32) -> Duration {
    BACKOFF_MIN.saturating_mul(1 << failures.min(10)).min(BACKOFF_MAX)
}

/// # Errors
/// It is none, or asks for what we cannot do.
fn host_and_port(endpoint: &str) -> Result<String, Error> {
    let wrong =
        || Error::Store(format!("etcd: expected an endpoint such as http://host:2379, found `{endpoint}`"));
    let rest = match endpoint.trim().split_once("://") {
        None => endpoint.trim(),
        Some(("http", rest)) => rest,
        Some(_) => return Err(wrong()),
    };
    let rest = rest.trim_end_matches('/');
    let authority: hyper::http::uri::Authority = rest.parse().map_err(|_| wrong())?;
    let port = match authority.port_u16() {
        Some(port) => port,
        None if authority.as_str() == authority.host() => DEFAULT_PORT,
        None => return Err(wrong()),
    };
    if authority.host().is_empty() || authority.as_str().contains('@') {
        return Err(wrong());
    }
    Ok(format!("{}:{port}", authority.host()))
}

/// What is kept for one registered record.
struct Entry {
    store: Arc<Store>,
    id: InstanceId,
}

impl Lease for Entry {
    fn set_draining(&self) {
        self.store.change(self.id, |instance| instance.draining = true);
    }

    fn set_fault(&self, fault: Option<&str>) {
        self.store.change(self.id, |instance| instance.fault = fault.map(str::to_owned));
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.store.withdraw(self.id);
    }
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
