//! What every store that several processes share must do, as one suite. `open` opens one more view of the same store, as
//! another process would.

use super::fixture::record;
use super::{Discovery, Error, Event, Watch};
use dynamo_types::{InstanceId, ModelRecord, TokenizerSpec, Transport, draw};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What a store under test must offer the suite.
pub(super) trait Bench {
    type Store: Discovery;
    /// One more process's view of the store.
    async fn open(&self) -> Self::Store;
    /// The same; its watches get a full list again every so often, whether or not anything is told.
    async fn open_listing(&self, every: Duration) -> Self::Store;
}

/// What a store can be made to suffer.
pub(super) trait Faults: Bench {
    const LEASE: Duration;
    /// Nobody reaches the store from now on.
    async fn leave(&self);
    /// It is there again, with what it held.
    async fn come_back(&self);
    /// It is there, and holds nothing.
    async fn lose_everything(&self);
}

/// A record that can be reached from other processes.
pub(super) fn remote(id: u64, model: &str, block_size: u32) -> ModelRecord {
    let mut record = record(id, model, block_size);
    record.instance.transport = Transport::Tcp(format!("127.0.0.1:{}", 1000 + id));
    record
}

/// Follows a watch until it says that these, and only these, are there. The limit only bounds a failing test.
pub(super) async fn until(
    watch: &mut Watch,
    told: &mut BTreeMap<InstanceId, ModelRecord>,
    expected: &[ModelRecord],
) {
    let wanted: BTreeMap<InstanceId, ModelRecord> =
        expected.iter().map(|record| (record.instance.id, record.clone())).collect();
    while *told != wanted {
        let next = tokio::time::timeout(Duration::from_secs(20), watch.next()).await;
        let Ok(Some(event)) = next else { panic!("told {:?}, expected {:?}", told.keys(), wanted.keys()) };
        match event {
            Event::List(records) => {
                *told = records.into_iter().map(|record| (record.instance.id, record)).collect();
            }
            Event::Put(record) => {
                told.insert(record.instance.id, record);
            }
            Event::Delete(id) => {
                told.remove(&id);
            }
        }
    }
}

pub(super) async fn suite(bench: &impl Bench) {
    others_see_what_comes_changes_and_goes(bench).await;
    r35_contracts_and_ids_are_checked_across_processes(bench).await;
    r25_a_late_start_sees_everything(bench).await;
    large_cards_cross(bench).await;
    flapping_workers_and_reused_addresses_converge(bench).await;
    r26_a_silent_watch_is_listed_again(bench).await;
}

async fn others_see_what_comes_changes_and_goes(bench: &impl Bench) {
    let (here, there) = (bench.open().await, bench.open().await);
    let mut watch = there.watch().await;
    let mut told = BTreeMap::new();
    until(&mut watch, &mut told, &[]).await;
    let first = here.register(remote(1, "m", 16)).await.unwrap();
    let second = there.register(remote(2, "m", 16)).await.unwrap();
    until(&mut watch, &mut told, &[remote(1, "m", 16), remote(2, "m", 16)]).await;
    first.set_fault(Some("it coughs"));
    let mut ill = remote(1, "m", 16);
    ill.instance.fault = Some("it coughs".into());
    until(&mut watch, &mut told, &[ill, remote(2, "m", 16)]).await;
    first.set_fault(None);
    until(&mut watch, &mut told, &[remote(1, "m", 16), remote(2, "m", 16)]).await;
    first.set_draining();
    let mut draining = remote(1, "m", 16);
    draining.instance.draining = true;
    until(&mut watch, &mut told, &[draining, remote(2, "m", 16)]).await;
    drop(first);
    until(&mut watch, &mut told, &[remote(2, "m", 16)]).await;
    drop(second);
    until(&mut watch, &mut told, &[]).await;
    there.settled().await;
}

async fn r35_contracts_and_ids_are_checked_across_processes(bench: &impl Bench) {
    let (here, there) = (bench.open().await, bench.open().await);
    let held = here.register(remote(1, "m", 16)).await.unwrap();
    let refused = there.register(remote(2, "m", 64)).await.err().unwrap();
    assert!(matches!(refused, Error::Contract { .. }), "{refused}");
    let refused = there.register(remote(1, "other", 16)).await.err().unwrap();
    assert_eq!(refused, Error::Duplicate(InstanceId(1)));
    drop(held);
    here.settled().await;
}

async fn r25_a_late_start_sees_everything(bench: &impl Bench) {
    let here = bench.open().await;
    let mut held = Vec::new();
    for id in 1..=5 {
        held.push(here.register(remote(id, &format!("model-{id}"), 16)).await.unwrap());
    }
    let late = bench.open().await;
    let mut watch = late.watch().await;
    let expected: Vec<ModelRecord> = (1..=5).map(|id| remote(id, &format!("model-{id}"), 16)).collect();
    until(&mut watch, &mut BTreeMap::new(), &expected).await;
    drop(held);
    here.settled().await;
}

async fn large_cards_cross(bench: &impl Bench) {
    let (here, there) = (bench.open().await, bench.open().await);
    let mut records = Vec::new();
    let mut held = Vec::new();
    for id in 1..=3 {
        let mut record = remote(id, "large", 16);
        let mut card = (*record.card).clone();
        card.tokenizer = TokenizerSpec::HuggingFace { json: "\"token\" ".repeat(400_000).into() };
        record.card = Arc::new(card);
        held.push(here.register(record.clone()).await.unwrap());
        records.push(record);
    }
    let mut watch = there.watch().await;
    until(&mut watch, &mut BTreeMap::new(), &records).await;
    drop(held);
    here.settled().await;
}

/// Whoever comes and goes how often, and whatever addresses are used again: watchers end up with what is there.
async fn flapping_workers_and_reused_addresses_converge(bench: &impl Bench) {
    let (here, there) = (bench.open().await, bench.open().await);
    let mut watch = there.watch().await;
    let mut told = BTreeMap::new();
    for case in 0..4u64 {
        let mut held = BTreeMap::new();
        for step in 0..24u64 {
            let id = case * 100 + draw::index(case, step, 4) as u64;
            if held.remove(&id).is_none() {
                let mut record = remote(id, "m", 16);
                record.instance.transport = Transport::Tcp("127.0.0.1:1".into());
                let store = if step % 2 == 0 { &here } else { &there };
                // Refused for as long as the other process has not seen that the earlier one is gone.
                let mut registered = store.register(record.clone()).await;
                while let Err(Error::Duplicate(_)) = registered {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    registered = store.register(record.clone()).await;
                }
                held.insert(id, (registered.unwrap(), record));
            }
        }
        let expected: Vec<ModelRecord> = held.values().map(|(_, record)| record.clone()).collect();
        until(&mut watch, &mut told, &expected).await;
        drop(held);
        until(&mut watch, &mut told, &[]).await;
    }
}

/// A watch that is told of nothing hears all there is from time to time, so whatever it missed is repaired.
async fn r26_a_silent_watch_is_listed_again(bench: &impl Bench) {
    let here = bench.open().await;
    let there = bench.open_listing(Duration::from_millis(200)).await;
    let mut watch = there.watch().await;
    let mut told = BTreeMap::new();
    let held = here.register(remote(1, "m", 16)).await.unwrap();
    until(&mut watch, &mut told, &[remote(1, "m", 16)]).await;
    for _ in 0..3 {
        assert_eq!(next(&mut watch).await, Event::List(vec![remote(1, "m", 16)]));
    }
    drop(held);
    until(&mut watch, &mut told, &[]).await;
    // Whoever forgot to listen is told again.
    assert_eq!(next(&mut watch).await, Event::List(vec![]));
    here.settled().await;
}

/// What a watch says next. The limit only bounds a failing test.
pub(super) async fn next(watch: &mut Watch) -> Event {
    let next = tokio::time::timeout(Duration::from_secs(60), watch.next()).await;
    next.expect("a watch says something within a minute").expect("discovery was not shut down")
}

pub(super) async fn dead_owners_leave_and_living_ones_stay(bench: &impl Faults) {
    let (here, there) = (bench.open().await, bench.open().await);
    let _living = here.register(remote(1, "m", 16)).await.unwrap();
    let mut watch = here.watch().await;
    let mut told = BTreeMap::new();
    // Killed: it says no goodbye.
    std::mem::forget(there.register(remote(2, "m", 16)).await.unwrap());
    until(&mut watch, &mut told, &[remote(1, "m", 16), remote(2, "m", 16)]).await;
    drop(there);
    until(&mut watch, &mut told, &[remote(1, "m", 16)]).await;
    quiet(&mut watch, bench).await;
    // Its place is taken by another, at the same address.
    let again = bench.open().await;
    let mut record = remote(3, "m", 16);
    record.instance.transport = remote(2, "m", 16).instance.transport;
    let _held = again.register(record.clone()).await.unwrap();
    until(&mut watch, &mut told, &[remote(1, "m", 16), record]).await;
}

/// For longer than a lease nobody notices anything.
async fn quiet<B: Faults>(watch: &mut Watch, _: &B) {
    let seen = tokio::time::timeout(B::LEASE * 3 / 2, watch.next()).await;
    assert!(seen.is_err(), "{seen:?}");
}

pub(super) async fn r24_a_store_that_cannot_be_reached_takes_nobody_away(bench: &impl Faults) {
    let (here, there) = (bench.open().await, bench.open().await);
    let held = here.register(remote(1, "m", 16)).await.unwrap();
    let mut watch = there.watch().await;
    let mut told = BTreeMap::new();
    until(&mut watch, &mut told, &[remote(1, "m", 16)]).await;
    bench.leave().await;
    quiet(&mut watch, bench).await;
    bench.come_back().await;
    quiet(&mut watch, bench).await;
    // Whoever comes sees everybody, and is seen.
    let late = bench.open().await;
    let _joined = late.register(remote(2, "m", 16)).await.unwrap();
    until(&mut watch, &mut told, &[remote(1, "m", 16), remote(2, "m", 16)]).await;
    until(&mut late.watch().await, &mut BTreeMap::new(), &[remote(1, "m", 16), remote(2, "m", 16)]).await;
    drop(held);
    until(&mut watch, &mut told, &[remote(2, "m", 16)]).await;
}

pub(super) async fn r24_a_store_that_lost_everything_is_written_again(bench: &impl Faults) {
    let (here, there) = (bench.open().await, bench.open().await);
    let held = here.register(remote(1, "m", 16)).await.unwrap();
    // It will not write itself down again.
    let dead = bench.open().await;
    std::mem::forget(dead.register(remote(2, "m", 16)).await.unwrap());
    let mut watch = there.watch().await;
    let mut told = BTreeMap::new();
    until(&mut watch, &mut told, &[remote(1, "m", 16), remote(2, "m", 16)]).await;
    drop(dead);
    bench.lose_everything().await;
    // The dead one goes, and nobody else.
    assert_eq!(next(&mut watch).await, Event::Delete(InstanceId(2)));
    quiet(&mut watch, bench).await;
    let late = bench.open().await;
    until(&mut late.watch().await, &mut BTreeMap::new(), &[remote(1, "m", 16)]).await;
    drop(held);
    told.remove(&InstanceId(2));
    until(&mut watch, &mut told, &[]).await;
}
