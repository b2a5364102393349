use super::super::Event;
use super::super::conformance::{self, Bench, Faults, remote, until};
use super::fixture::{Proxy, Store, Way};
use super::wire::Message;
use super::*;
use std::collections::BTreeMap;

fn quick(proxy: &Proxy) -> Options {
    Options {
        endpoints: vec![proxy.address.clone()],
        lease: Duration::from_secs(5),
        connect_timeout: Duration::from_secs(60),
        view: super::super::Options { relist: None, ..super::super::Options::default() },
        ..Options::default()
    }
}

impl Bench for Arc<Store> {
    type Store = Etcd;

    async fn open(&self) -> Etcd {
        Etcd::open(quick(&self.proxy)).await.unwrap()
    }

    async fn open_listing(&self, every: Duration) -> Etcd {
        let view = super::super::Options { relist: Some(every), ..super::super::Options::default() };
        Etcd::open(Options { view, ..quick(&self.proxy) }).await.unwrap()
    }
}

impl Faults for Arc<Store> {
    const LEASE: Duration = Duration::from_secs(5);

    async fn leave(&self) {
        self.proxy.set(Way::Cut);
    }

    async fn come_back(&self) {
        self.proxy.set(Way::Open);
    }

    async fn lose_everything(&self) {
        let mut server = self.server.lock().await;
        server.kill();
        server.empty();
        server.run().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms() {
    conformance::suite(&Store::start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_owners_leave_and_living_ones_stay() {
    conformance::dead_owners_leave_and_living_ones_stay(&Store::start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r24_a_store_that_cannot_be_reached_takes_nobody_away() {
    conformance::r24_a_store_that_cannot_be_reached_takes_nobody_away(&Store::start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r24_a_store_that_lost_everything_is_written_again() {
    conformance::r24_a_store_that_lost_everything_is_written_again(&Store::start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r26_what_left_while_we_were_not_there_goes() {
    let store = Store::start().await;
    let owner = Etcd::open(quick(&store.undisturbed)).await.unwrap();
    let reader = store.open().await;
    let leaving = owner.register(remote(1, "m", 16)).await.unwrap();
    let _staying = owner.register(remote(2, "m", 16)).await.unwrap();
    let mut watch = reader.watch().await;
    let mut told = BTreeMap::new();
    until(&mut watch, &mut told, &[remote(1, "m", 16), remote(2, "m", 16)]).await;
    store.proxy.set(Way::Cut);
    drop(leaving);
    owner.settled().await;
    let _joined = owner.register(remote(3, "m", 16)).await.unwrap();
    store.proxy.set(Way::Open);
    until(&mut watch, &mut told, &[remote(2, "m", 16), remote(3, "m", 16)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r26_a_watch_that_says_nothing_is_listed_on_a_timer() {
    let store = Store::start().await;
    let owner = Etcd::open(quick(&store.undisturbed)).await.unwrap();
    let options = Options { relist_every: Duration::from_secs(1), ..quick(&store.proxy) };
    let reader = Etcd::open(options).await.unwrap();
    let mut watch = reader.watch().await;
    let mut told = BTreeMap::new();
    until(&mut watch, &mut told, &[]).await;
    store.proxy.set(Way::Mute);
    let held = owner.register(remote(1, "m", 16)).await.unwrap();
    until(&mut watch, &mut told, &[remote(1, "m", 16)]).await;
    drop(held);
    until(&mut watch, &mut told, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r24_a_store_that_was_frozen_for_longer_than_leases_takes_nobody_away() {
    let store = Store::start().await;
    let (here, there) = (store.open().await, store.open().await);
    let _held = here.register(remote(1, "m", 16)).await.unwrap();
    let mut watch = there.watch().await;
    until(&mut watch, &mut BTreeMap::new(), &[remote(1, "m", 16)]).await;
    store.server.lock().await.signal("-STOP");
    tokio::time::sleep(quick(&store.proxy).lease * 3 / 2).await;
    store.server.lock().await.signal("-CONT");
    let seen = tokio::time::timeout(quick(&store.proxy).lease * 3 / 2, watch.next()).await;
    assert!(seen.is_err(), "{seen:?}");
    let late = store.open().await;
    assert_eq!(late.list(), [remote(1, "m", 16)], "written again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r24_entries_that_others_removed_are_written_again() {
    let store = Store::start().await;
    let (here, there) = (store.open().await, store.open().await);
    let _held = here.register(remote(1, "m", 16)).await.unwrap();
    let mut client = Client::new(there.store.access.clone());
    let mut watch = there.watch().await;
    let mut told = BTreeMap::new();
    until(&mut watch, &mut told, &[remote(1, "m", 16)]).await;
    // One of them: it is gone, and comes back.
    let entries = Entries::of(&remote(1, "m", 16)).unwrap();
    client.transact(&Transaction::new().delete(&entries.model.0)).await.unwrap();
    assert_eq!(watch.next().await, Some(Event::Delete(InstanceId(1))));
    until(&mut watch, &mut BTreeMap::new(), &[remote(1, "m", 16)]).await;
    // All, with the marker: nobody notices.
    let emptied = Transaction::new().delete(MARKER).delete(&entries.model.0).delete(&entries.instance.0);
    client.transact(&emptied).await.unwrap();
    let seen = tokio::time::timeout(quick(&store.proxy).lease * 3 / 2, watch.next()).await;
    assert!(seen.is_err(), "{seen:?}");
    assert_eq!(store.open().await.list(), [remote(1, "m", 16)], "written again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registration_waits_for_the_store_and_a_shared_tokenizer_outlives_one_owner() {
    let store = Store::start().await;
    let large = |id| {
        let mut record = remote(id, "large", 16);
        let mut card = (*record.card).clone();
        card.tokenizer = dynamo_types::TokenizerSpec::HuggingFace { json: "\"t\" ".repeat(900_000).into() };
        record.card = Arc::new(card);
        record
    };
    let dying = Etcd::open(quick(&store.undisturbed)).await.unwrap();
    std::mem::forget(dying.register(large(1)).await.unwrap());
    let living = store.open().await;
    store.proxy.set(Way::Cut);
    let registration = tokio::join!(living.register(large(2)), async { store.proxy.set(Way::Open) }).0;
    let _held = registration.unwrap();
    drop(dying);
    let mut watch = living.watch().await;
    until(&mut watch, &mut BTreeMap::new(), &[large(2)]).await;
    // Half of it goes: whoever refers to it notices.
    let hash = Entries::of(&large(2)).unwrap().blob.unwrap().hash;
    let mut client = Client::new(living.store.access.clone());
    let half = Transaction::new().delete(&format!("{}{hash}/1", layout::BLOBS));
    client.transact(&half).await.unwrap();
    let late = store.open().await;
    let mut watch = late.watch().await;
    until(&mut watch, &mut BTreeMap::new(), &[large(2)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_log_in_and_dead_endpoints_are_passed_over() {
    let store = Store::start().await;
    let mut client = Client::new(store.open().await.store.access.clone());
    let two =
        |first: &str, second: &str| Message::new().bytes(1, first.as_bytes()).bytes(2, second.as_bytes());
    client.call("Auth/UserAdd", &two("root", "secret")).await.unwrap();
    client.call("Auth/UserGrantRole", &two("root", "root")).await.unwrap();
    client.call("Auth/AuthEnable", &Message::new()).await.unwrap();
    // Bound, and nobody accepts.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    let endpoints = vec![silent, format!("http://{}/", store.proxy.address)];
    let login = Some(("root".into(), "secret".into()));
    let options = Options { endpoints, login, ..quick(&store.proxy) };
    let etcd = Etcd::open(options.clone()).await.unwrap();
    let _held = etcd.register(remote(1, "m", 16)).await.unwrap();
    let wrong = Some(("root".into(), "guess".into()));
    let options = Options { login: wrong, connect_timeout: Duration::from_secs(2), ..options };
    let error = Etcd::open(options).await.err().unwrap().to_string();
    assert!(error.starts_with("discovery store: etcd at 127.0.0.1:"), "{error}");
}

#[tokio::test]
async fn a_store_that_is_not_there_is_one_clear_line() {
    let closed =
        tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let options = |endpoint: &str| Options {
        endpoints: vec![endpoint.into()],
        connect_timeout: Duration::from_millis(300),
        ..Options::default()
    };
    let error = Etcd::open(options(&closed)).await.err().unwrap().to_string();
    assert!(error.contains(&closed) && !error.contains('\n'), "{error}");
    for wrong in ["ftp://host:1", "", "http://", "http://user@host:1", "host:port"] {
        let error = Etcd::open(options(wrong)).await.err().unwrap().to_string();
        assert!(error.contains("expected an endpoint"), "{wrong}: {error}");
    }
}

#[tokio::test]
async fn r26_a_watch_from_what_is_not_kept_any_more_asks_for_a_list() {
    let access = Access { endpoints: vec![], login: None, patience: Duration::from_secs(1) };
    let mut client = Client::new(access);
    let compacted = wire::Changes { compacted: 7, canceled: Some(String::new()), ..Default::default() };
    let taken = follow::take_in(&mut client, &mut Picture::default(), vec![compacted]).await;
    assert_eq!(taken, Ok(false));
}
