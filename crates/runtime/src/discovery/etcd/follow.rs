//! The part that reads: a list, then a watch from where the list ends, and a list again on a timer, whatever the watch
//! says (R26).

use super::super::layout::{self, BLOBS, INSTANCES, MODELS};
use super::client::{Client, Fault};
use super::wire::{Changes, range_between, range_of, watch};
use super::{MARKER, Picture, Store, backoff, snapshot};
use crate::sync::lock;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::time::{sleep, sleep_until};

/// A text that was not whole is looked for again after this time.
const BLOB_RETRY: Duration = Duration::from_millis(500);

/// The store is asked whether it is there this often within a lease, so that its silence is noticed before leases end
/// because of it.
const PROBES_PER_LEASE: u32 = 4;

/// Runs until it is aborted.
pub(super) async fn follow(store: Arc<Store>) {
    let mut client = Client::new(store.access.clone());
    let mut picture = Picture::default();
    let (mut unheard, mut failures) = (false, 0);
    loop {
        match session(&store, &mut client, &mut picture, &mut unheard).await {
            Ok(()) => failures = 0,
            Err(fault) => {
                store.tell(&fault);
                client.reset();
                failures = if unheard { failures + 1 } else { 0 };
                unheard = true;
                sleep(backoff(failures)).await;
            }
        }
    }
}

/// One list and what is said until the next one is due. `unheard` is set false when the list was taken over.
async fn session(
    store: &Store,
    client: &mut Client,
    picture: &mut Picture,
    unheard: &mut bool,
) -> Result<(), Fault> {
    let listed = snapshot(client).await?;
    let relist = Instant::now() + store.options.relist_every;
    let moment = (Instant::now(), store.options.lease);
    let others = lock(&store.own).others(store.view.list());
    if picture.list(listed, *unheard, others, moment) {
        lock(&store.own).replaced();
        store.changed.notify_one();
    }
    *unheard = false;
    publish(store, picture);
    store.heard.send_replace(true);
    let mut watching = client.watch(&watch(range_between(INSTANCES, MODELS), picture.revision)).await?;
    let probe_every = store.options.lease / PROBES_PER_LEASE;
    let mut probe = Instant::now() + probe_every;
    loop {
        let is_missing = fetch_blobs(store, client, picture).await?;
        let retry = is_missing.then(|| Instant::now() + BLOB_RETRY);
        let due =
            [Some(probe), Some(relist), picture.due(), retry].into_iter().flatten().min().unwrap_or(relist);
        tokio::select! {
            changes = watching.next() => {
                let mut said = vec![changes?];
                // Whatever has come since is taken in at once: to put all records together is what costs.
                while let Some(more) = ready(watching.next()) {
                    said.push(more?);
                }
                if !take_in(client, picture, said).await? {
                    return Ok(());
                }
                publish(store, picture);
            }
            () = sleep_until(due.into()) => {
                if Instant::now() >= probe {
                    if !is_same(client, picture).await? {
                        return Ok(());
                    }
                    probe = Instant::now() + probe_every;
                }
                if Instant::now() >= relist {
                    return Ok(());
                }
                publish(store, picture);
            }
        }
    }
}

/// What a future that can be given up has to say now.
fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// False: only a new list can tell what there is now.
pub(super) async fn take_in(
    client: &mut Client,
    picture: &mut Picture,
    said: Vec<Changes>,
) -> Result<bool, Fault> {
    let removes = said.iter().flat_map(|changes| &changes.events).any(|(is_put, _)| !is_put);
    // A store that is emptied removes everybody before it says that it was.
    if removes && !is_same(client, picture).await? {
        return Ok(false);
    }
    for changes in said {
        if changes.compacted != 0 {
            return Ok(false);
        }
        if let Some(reason) = changes.canceled {
            return Err(Fault::Connection(format!("etcd ended a watch: {reason}")));
        }
        picture.apply(changes);
    }
    Ok(true)
}

/// Is it still the store that was listed?
async fn is_same(client: &mut Client, picture: &Picture) -> Result<bool, Fault> {
    let marker = client.range(&range_of(MARKER)).await?.pairs.pop().map(|pair| pair.value);
    Ok(marker == picture.identity)
}

/// Brings the view to what the store was heard to hold.
fn publish(store: &Store, picture: &mut Picture) {
    let _ = picture.missing_blobs();
    let (mut records, faults) = picture.records(Instant::now());
    {
        let mut own = lock(&store.own);
        own.merge(picture.revision, &mut records, store.options.view.max_records);
        store.view.reconcile(records);
        if own.compare(picture.revision, |key| picture.holds(key)) {
            store.changed.notify_one();
        }
    }
    for fault in faults {
        store.remember(fault);
    }
}

/// Reads the texts that records refer to and that are not here yet. True: some are not whole.
async fn fetch_blobs(store: &Store, client: &mut Client, picture: &mut Picture) -> Result<bool, Fault> {
    let mut is_missing = false;
    for hash in picture.missing_blobs() {
        match fetch_blob(client, &hash).await? {
            Some(content) => {
                picture.add_blob(hash, content);
                publish(store, picture);
            }
            None => is_missing = true,
        }
    }
    Ok(is_missing)
}

/// None: it is not whole.
async fn fetch_blob(client: &mut Client, hash: &str) -> Result<Option<Arc<str>>, Fault> {
    let key = format!("{BLOBS}{hash}");
    let read = async |client: &mut Client, key: &str| {
        let found = client.range(&range_of(key)).await?;
        Ok::<_, Fault>(found.pairs.into_iter().next().map(|pair| pair.value))
    };
    let count = read(client, &key).await?.and_then(|count| String::from_utf8(count).ok()?.parse().ok());
    let Some(count): Option<usize> = count else { return Ok(None) };
    let mut content = Vec::new();
    for number in 0..count {
        let Some(piece) = read(client, &format!("{key}/{number}")).await? else { return Ok(None) };
        content.extend_from_slice(&piece);
        if content.len() > super::MAX_BLOB_BYTES {
            return Ok(None);
        }
    }
    let content = String::from_utf8(content).ok().filter(|content| layout::is_named(content, hash));
    Ok(content.map(Arc::from))
}
