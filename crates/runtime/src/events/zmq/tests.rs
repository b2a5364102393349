//! The sockets, against libzmq and against each other. What messages mean is tested beside the feed.

use super::{Attach, Counts, Endpoint, PublishOptions, Publisher, Relay, RelayOptions, Source};
use crate::events::{Event, EventPlane, Local, Mirror};
use crate::python::Python;
use dynamo_types::hash::{SEED, local_hash};
use dynamo_types::{InstanceId, KvEvent, StorageTier, StoredBlock, WorkerRank};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: u32 = 2;
const RANK: WorkerRank = WorkerRank::new(InstanceId(7), 0);

/// Waits for what another process does. The limit only bounds a failing test.
async fn eventually(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..6000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}: not within thirty seconds");
}

/// A folder of its own for sockets, gone with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("zmq-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn ipc(&self, name: &str) -> String {
        format!("ipc://{}", self.0.join(name).display())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn relay(events: &str, attach: Attach, replay: Option<&str>, plane: &Arc<Local>) -> Relay {
    let options = RelayOptions {
        events: events.parse().unwrap(),
        attach,
        replay: replay.map(|replay| replay.parse().unwrap()),
        topic: "kv".into(),
        source: Source { worker: RANK.worker, rank: RANK.rank, block_size: BLOCK, epoch: 1 },
    };
    Relay::start(options, Arc::clone(plane) as Arc<dyn EventPlane>).await.unwrap()
}

/// The blocks that a new subscriber of this plane would learn of.
fn blocks(plane: &Local) -> Vec<u64> {
    let mut mirror = Mirror::new(10_000);
    let mut subscription = plane.subscribe();
    while let Some(event) = subscription.try_next() {
        if let Event::Snapshot(batch) | Event::Kv(batch) = event {
            batch.events.iter().for_each(|event| mirror.apply(event));
        }
    }
    let held = |event: &KvEvent| match event {
        KvEvent::Stored { blocks, .. } => blocks.iter().map(|block| block.block_hash).collect(),
        _ => Vec::new(),
    };
    let mut all: Vec<u64> = mirror.snapshot().iter().flat_map(held).collect();
    all.sort_unstable();
    all
}

/// As vLLM says it now, with names, and as it said it before, by place.
fn stored(block: u64) -> Value {
    if block.is_multiple_of(2) {
        json!({"type": "BlockStored", "block_hashes": [block], "parent_block_hash": null, "token_ids": [block, 1],
               "block_size": BLOCK, "lora_id": null, "medium": "GPU", "lora_name": null})
    } else {
        json!(["BlockStored", [block], null, [block, 1], BLOCK, null, "GPU"])
    }
}

fn engine() -> Python {
    let engine = Python::start("events/zmq/engine.py", &[]);
    assert_eq!(engine.line(), "ready");
    engine
}

fn open(engine: &Python, events: &str, binds: bool, replay: &str) -> (String, String) {
    let endpoints = engine.tell(&json!(["open", events, binds, replay]));
    let text = |index: usize| endpoints[index].as_str().unwrap().to_owned();
    (text(0), text(1))
}

/// An engine that is there first, is missed, repeats itself, and is restarted.
async fn follows(engine: &Python, relay: &Relay, plane: &Local, replay: &str, events: &str, binds: bool) {
    assert_eq!(engine.tell(&json!(["subscribed"])), "kv");
    eventually("a late start is replayed", || blocks(plane) == [0, 1, 2]).await;
    engine.tell(&json!(["store", 3, [stored(3)]]));
    eventually("what happens comes", || blocks(plane) == [0, 1, 2, 3]).await;
    engine.tell(&json!(["store", 4, [stored(4)], null, false]));
    engine.tell(&json!(["without_topic"]));
    engine.tell(&json!(["store", 5, [["BlockRemoved", [0], "GPU"]]]));
    eventually("a gap is filled", || blocks(plane) == [1, 2, 3, 4]).await;
    engine.tell(&json!(["resend", 5]));
    engine.tell(&json!(["resend", 1]));
    eventually("duplicates are seen", || relay.counts().duplicates == 2).await;
    assert_eq!(blocks(plane), [1, 2, 3, 4], "and change nothing");
    let before = relay.counts();
    assert_eq!((before.recoveries, before.lost, before.restarts, before.skipped), (1, 0, 0, 0));
    engine.tell(&json!(["close"]));
    engine.tell(&json!(["forget"]));
    open(engine, events, binds, replay);
    engine.tell(&json!(["subscribed"]));
    engine.tell(&json!(["store", 0, [stored(50)]]));
    eventually("another life of the engine begins anew", || blocks(plane) == [50]).await;
    eventually("which is a restart", || relay.counts().restarts == 1).await;
}

// The engine's answers block a thread; the relay has its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r32_r33_an_engine_that_is_bound_is_followed() {
    let (engine, plane) = (engine(), Arc::new(Local::default()));
    let (events, replay) = open(&engine, "tcp://127.0.0.1:*", true, "tcp://127.0.0.1:*");
    for sequence in 0..3u64 {
        engine.tell(&json!(["store", sequence, [stored(sequence)]]));
    }
    let relay = relay(&events, Attach::Connect, Some(&replay), &plane).await;
    follows(&engine, &relay, &plane, &replay, &events, true).await;
    assert_eq!(plane.source_count(), 1);
    drop(relay);
    eventually("what it said is forgotten with the relay", || plane.source_count() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r32_r33_an_engine_that_connects_is_followed() {
    let folder = Folder::new("connects");
    let (engine, plane) = (engine(), Arc::new(Local::default()));
    let replay = folder.ipc("replay");
    let relay = relay("tcp://127.0.0.1:0", Attach::Bind, Some(&replay), &plane).await;
    let events = relay.endpoint().to_string();
    open(&engine, &events, false, &replay);
    for sequence in 0..3u64 {
        engine.tell(&json!(["store", sequence, [stored(sequence)], null, false]));
    }
    // Whether they were there before the connection or not, the next message tells of them.
    engine.tell(&json!(["subscribed"]));
    engine.tell(&json!(["store", 3, [stored(3)]]));
    eventually("all four are there", || blocks(&plane) == [0, 1, 2, 3]).await;
    engine.tell(&json!(["close"]));
    engine.tell(&json!(["forget"]));
    open(&engine, &events, false, &replay);
    engine.tell(&json!(["subscribed"]));
    engine.tell(&json!(["store", 0, [stored(9)]]));
    eventually("another life begins anew", || blocks(&plane) == [9]).await;
}

/// A chain of blocks and its tokens, as our engines report them.
fn step(first: u64, count: u64) -> (Vec<KvEvent>, Vec<u32>) {
    let tokens: Vec<u32> = (first..first + count).flat_map(|block| [block as u32, 1]).collect();
    let block =
        |number: u64| StoredBlock { block_hash: number, tokens_hash: local_hash(&[number as u32, 1], SEED) };
    let blocks = (first..first + count).map(block).collect();
    (vec![KvEvent::Stored { parent: None, blocks, tier: StorageTier::Device }], tokens)
}

async fn publisher(events: &Endpoint, replay: &Endpoint) -> Publisher {
    let options = PublishOptions { events: events.clone(), replay: Some(replay.clone()), rank: 0 };
    for _ in 0..1000 {
        if let Ok(publisher) = Publisher::bind(options.clone()).await {
            return publisher;
        }
        // The one before is not gone yet.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{events} cannot be bound");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r32_r33_what_we_publish_we_understand() {
    let folder = Folder::new("ours");
    for events in ["tcp://127.0.0.1:0".to_owned(), folder.ipc("events")] {
        let plane = Arc::new(Local::default());
        let replay: Endpoint = folder.ipc("replay").parse().unwrap();
        let first = publisher(&events.parse().unwrap(), &replay).await;
        let events = first.endpoint().clone();
        let (report, tokens) = step(10, 3);
        first.publish(&report, &tokens, 1.0);
        let relay = relay(&events.to_string(), Attach::Connect, Some(&replay.to_string()), &plane).await;
        eventually("a late start is replayed", || blocks(&plane) == [10, 11, 12]).await;
        let removed = KvEvent::Removed { hashes: vec![12], tier: StorageTier::Device };
        let (mut report, tokens) = step(20, 1);
        report.insert(0, removed);
        first.publish(&report, &tokens, 2.0);
        // Before the subscription is there, only the next one tells of it.
        for time in 0..6000u32 {
            if blocks(&plane) == [10, 11, 20] {
                break;
            }
            first.publish(
                &[KvEvent::Removed { hashes: vec![999], tier: StorageTier::Disk }],
                &[],
                time.into(),
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(blocks(&plane), [10, 11, 20]);
        drop(first);
        let second = publisher(&events, &replay).await;
        let (report, tokens) = step(30, 2);
        second.publish(&report, &tokens, 3.0);
        eventually("another life begins anew", || blocks(&plane) == [30, 31]).await;
        let Counts { lost, restarts, skipped, .. } = relay.counts();
        assert_eq!((lost, restarts, skipped), (0, 1, 0));
    }
}

#[test]
fn only_blocks_that_are_their_tokens_are_published() {
    let (mut events, tokens) = step(1, 3);
    if let KvEvent::Stored { blocks, .. } = &mut events[0] {
        // As with a salt: the hash is of more than the tokens.
        blocks[1].tokens_hash ^= 1;
    }
    let payload = super::wire::encode(&events, &tokens, 0.5, 3).unwrap();
    let decoded = super::wire::decode(&payload).unwrap();
    assert_eq!((decoded.dp_rank, decoded.events.len(), decoded.skipped), (Some(3), 1, 0));
    let super::wire::EngineEvent::Stored(stored) = &decoded.events[0] else { panic!("a chain") };
    assert_eq!((&stored.hashes[..], &stored.tokens[..], stored.block_size), (&[1][..], &[1, 1][..], 2));
    assert_eq!(super::wire::encode(&events[..0], &[], 0.5, 3), None);
    assert_eq!(super::wire::encode(&events, &[], 0.5, 3), None, "an engine that reports no tokens");
}

#[test]
fn endpoints_are_taken_apart() {
    for text in ["tcp://127.0.0.1:5557", "tcp://*:5557", "tcp://[::1]:7", "ipc:///tmp/kv.ipc"] {
        assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
    }
    assert_eq!("tcp://*:*".parse::<Endpoint>().unwrap().to_string(), "tcp://*:0");
    for text in ["", "5557", "tcp://:5557", "tcp://host", "tcp://host:99999", "ipc://", "inproc://x"] {
        assert!(text.parse::<Endpoint>().unwrap_err().to_string().contains("expected tcp://"), "{text}");
    }
}
