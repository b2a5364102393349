//! The part that writes: keeps the lease alive, and the store told of what is ours. First registration and registration
//! after any loss are the same code: whatever is unwritten is written.

use super::super::layout::{BLOBS, Blob, Entries};
use super::super::{Error, check};
use super::client::{Client, Fault};
use super::wire::{Transaction, count_below, grant, lease, put};
use super::{BLOB_LEASES, Store, backoff, pieces, snapshot};
use crate::sync::lock;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, sleep_until};

/// Between two renewals at least.
const RENEWAL_MIN: Duration = Duration::from_millis(100);

/// A lease of ours.
#[derive(Clone, Copy, Debug)]
struct Held {
    id: i64,
    ttl: Duration,
    /// Counted from when we asked, which is before the store did.
    expires: Instant,
    /// When we last asked.
    asked: Instant,
}

impl Held {
    /// A third of the lease after it was renewed; or, if that failed, half of what is left of it.
    fn renewal(&self, now: Instant) -> Instant {
        let regular = self.asked + self.ttl / 3;
        if regular > now {
            return regular;
        }
        now + (self.expires.saturating_duration_since(now) / 2).clamp(RENEWAL_MIN, self.ttl / 3)
    }
}

/// Runs until it is aborted.
pub(super) async fn keep(store: Arc<Store>) {
    let mut client = Client::new(store.access.clone());
    let mut held: Option<Held> = None;
    let mut failures = 0;
    loop {
        match round(&store, &mut client, &mut held).await {
            Ok(()) => {
                failures = 0;
                let renewal = held.map(|held| held.renewal(Instant::now()));
                tokio::select! {
                    () = store.changed.notified() => {}
                    () = sleep_until(renewal.unwrap_or_else(Instant::now).into()), if renewal.is_some() => {}
                }
            }
            Err(fault) => {
                store.tell(&fault);
                // A lease that is gone says nothing about the connection.
                if !fault.is_not_found() {
                    client.reset();
                }
                let left =
                    held.map(|held| held.renewal(Instant::now()).saturating_duration_since(Instant::now()));
                sleep(backoff(failures).min(left.unwrap_or(Duration::MAX))).await;
                failures += 1;
            }
        }
    }
}

async fn round(store: &Arc<Store>, client: &mut Client, held: &mut Option<Held>) -> Result<(), Fault> {
    let abandoned = lock(&store.own).abandoned();
    abandoned.into_iter().for_each(|id| store.withdraw(id));
    remove(store, client).await?;
    if lock(&store.own).is_idle() {
        if let Some(held) = held.take() {
            match client.revoke(&lease(held.id)).await {
                Err(fault) if !fault.is_not_found() => return Err(fault),
                _ => {}
            }
        }
        return Ok(());
    }
    let lease = renew(store, client, held).await?;
    admit(store, client).await?;
    let written = write(store, client, lease).await;
    if written.as_ref().is_err_and(Fault::is_not_found) {
        *held = None;
    }
    written
}

async fn remove(store: &Store, client: &mut Client) -> Result<(), Fault> {
    loop {
        let Some(removal) = lock(&store.own).next_removal() else { break };
        let Entries { instance, model, .. } = &removal.entries;
        // Somebody else may be registered under the same key by now.
        let transaction = Transaction::new()
            .only(&super::wire::If::BelongsTo(&instance.0, removal.lease))
            .delete(&model.0)
            .delete(&instance.0);
        let done = client.transact(&transaction).await?;
        lock(&store.own).removed(done.revision);
    }
    store.settled.notify_waiters();
    Ok(())
}

/// The lease to write under, renewed if that is due.
async fn renew(store: &Store, client: &mut Client, held: &mut Option<Held>) -> Result<i64, Fault> {
    let now = Instant::now();
    if let Some(known) = held {
        if now < known.asked + known.ttl / 3 {
            return Ok(known.id);
        }
        let granted = client.keep_alive(&lease(known.id)).await?;
        if granted.ttl_s > 0 {
            let ttl = seconds(granted.ttl_s);
            *known = Held { id: known.id, ttl, expires: now + ttl, asked: now };
            let id = known.id;
            let blobs = lock(&store.own).blobs();
            for blob in blobs {
                keep_blob(store, client, &blob).await?;
            }
            return Ok(id);
        }
        *held = None;
    }
    let ttl_s = i64::try_from(store.options.lease.as_secs().max(1)).unwrap_or(i64::MAX);
    let granted = client.grant(&grant(ttl_s, 0)).await?;
    let ttl = seconds(granted.ttl_s);
    *held = Some(Held { id: granted.id, ttl, expires: now + ttl, asked: now });
    // What was written under another one goes with it.
    lock(&store.own).all_unwritten();
    Ok(granted.id)
}

fn seconds(ttl_s: i64) -> Duration {
    Duration::from_secs(ttl_s.max(1).unsigned_abs())
}

/// Looks at what is offered, next to what the store holds now.
async fn admit(store: &Store, client: &mut Client) -> Result<(), Fault> {
    if !lock(&store.own).has_offers() {
        return Ok(());
    }
    let snapshot = snapshot(client).await?;
    let mut existing = super::Picture::default();
    existing.list(snapshot, false, vec![], (Instant::now(), store.options.lease));
    // Their texts do not matter here.
    for hash in existing.missing_blobs() {
        existing.add_blob(hash, "".into());
    }
    let (existing, _) = existing.records(Instant::now());
    let limit = store.options.view.max_records;
    loop {
        let own = &mut *lock(&store.own);
        let Some(offer) = own.next_offer() else { return Ok(()) };
        // Ours that are withdrawn are removed from the store by now.
        let others =
            existing.iter().filter(|record| own.records().all(|own| own.instance.id != record.instance.id));
        let admitted = check(own.records().chain(others), &offer.record);
        let outcome = if existing.len() >= limit { Err(Error::Full { limit }) } else { admitted };
        match outcome {
            // Nobody waits for it.
            _ if offer.reply.is_closed() => {}
            Ok(()) => {
                store.view.put(offer.record.clone());
                own.admit(offer);
            }
            Err(error) => {
                let _ = offer.reply.send(Err(error));
            }
        }
    }
}

async fn write(store: &Arc<Store>, client: &mut Client, lease: i64) -> Result<(), Fault> {
    loop {
        let Some((id, entries)) = lock(&store.own).next_unwritten(lease) else { return Ok(()) };
        if let Some(blob) = &entries.blob {
            keep_blob(store, client, blob).await?;
        }
        let Entries { instance, model, .. } = &entries;
        let transaction = Transaction::new().put(&instance.0, instance.1.as_bytes(), lease).put(
            &model.0,
            model.1.as_bytes(),
            lease,
        );
        match client.transact(&transaction).await {
            Ok(done) => {
                let reply = lock(&store.own).wrote(id, &entries, done.revision);
                if let Some(reply) = reply {
                    // What nobody takes is dropped, which withdraws it.
                    let _ = reply.send(Ok(store.registration(id)));
                }
            }
            Err(fault) if fault.is_final() => {
                store.tell(&fault);
                if let Some(reply) = lock(&store.own).refused(id) {
                    let _ = reply.send(Err(Error::Store(fault.to_string())));
                    store.withdraw(id);
                }
            }
            Err(fault) => return Err(fault),
        }
    }
}

/// A large text is there as long as anybody who refers to it keeps its lease alive, whose id all know from the text's.
async fn keep_blob(store: &Store, client: &mut Client, blob: &Blob) -> Result<(), Fault> {
    let id = blob_lease(&blob.hash);
    let key = format!("{BLOBS}{}", blob.hash);
    let pieces: Vec<&[u8]> = pieces(&blob.content).collect();
    let is_leased = client.keep_alive(&lease(id)).await?.ttl_s > 0;
    if is_leased && client.range(&count_below(&key)).await?.count == pieces.len() as i64 + 1 {
        return Ok(());
    }
    let ttl_s = store.options.lease.as_secs().max(1).saturating_mul(BLOB_LEASES);
    match client.grant(&grant(i64::try_from(ttl_s).unwrap_or(i64::MAX), id)).await {
        Err(fault) if !fault.exists() => return Err(fault),
        _ => {}
    }
    for (number, piece) in pieces.iter().enumerate() {
        client.put(&put(&format!("{key}/{number}"), piece, id)).await?;
    }
    // Last, so that whoever finds it finds all.
    client.put(&put(&key, pieces.len().to_string().as_bytes(), id)).await
}

fn blob_lease(hash: &str) -> i64 {
    let digits = hash.get(..15).unwrap_or(hash);
    i64::from_str_radix(digits, 16).unwrap_or_default().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r24_renewals_come_well_before_the_lease_ends() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let held = Held { id: 1, ttl: Duration::from_secs(9), expires: at(9000), asked: start };
        assert_eq!(held.renewal(at(0)), at(3000));
        // Refused at 3 s and later: again and again in half of what is left.
        assert_eq!(held.renewal(at(3000)), at(6000));
        assert_eq!(held.renewal(at(6000)), at(7500));
        assert_eq!(held.renewal(at(8900)), at(9000));
        assert_eq!(held.renewal(at(20_000)), at(20_100));
    }
}
