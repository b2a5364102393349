use super::*;
use crate::events::Mirror;
use dynamo_types::draw;
use dynamo_types::hash::{SEED, Scope, local_hash};
use dynamo_types::{StorageTier, StoredBlock};
use proptest::prelude::*;
use serde_json::{Value, json};

const BLOCK: u32 = 4;

fn source() -> Source {
    Source { worker: InstanceId(7), rank: 0, block_size: BLOCK, epoch: 100 }
}

/// A message in either form, with a time that tells lives apart.
fn message(sequence: u64, life: u64, events: &Value) -> Message {
    let payload = rmp_serde::to_vec(&json!([life as f64, events, null])).unwrap();
    Message { sequence, payload }
}

fn tokens(block: u64) -> Vec<u32> {
    vec![block as u32; BLOCK as usize]
}

fn stored(block: u64) -> Value {
    json!({"type": "BlockStored", "block_hashes": [block], "parent_block_hash": null, "token_ids": tokens(block),
           "block_size": BLOCK})
}

fn removed(block: u64) -> Value {
    json!(["BlockRemoved", [block], "GPU"])
}

/// A feed, the engine's ring, and what a router would hold.
struct Bench {
    feed: Feed,
    ring: Vec<Message>,
    mirror: Mirror,
    epoch: u64,
    expected: BTreeMap<WorkerRank, u64>,
    replays: u32,
}

impl Bench {
    fn new(can_replay: bool) -> Self {
        let feed = Feed::new(source(), can_replay);
        Self {
            feed,
            ring: Vec::new(),
            mirror: Mirror::new(1000),
            epoch: 0,
            expected: BTreeMap::new(),
            replays: 0,
        }
    }

    fn step(&mut self, mut step: Step) {
        while let Step::Replay { from } = step {
            self.replays += 1;
            let answer: Vec<Message> =
                self.ring.iter().filter(|message| message.sequence >= from).cloned().collect();
            step = self.feed.replayed(&answer);
        }
        for batch in self.feed.take() {
            if batch.epoch != self.epoch {
                assert!(batch.epoch > self.epoch, "epochs grow");
                (self.epoch, self.expected) = (batch.epoch, BTreeMap::new());
                self.mirror = Mirror::new(1000);
            }
            let expected = self.expected.entry(batch.source).or_default();
            assert_eq!(batch.sequence, *expected, "without a gap");
            *expected += 1;
            batch.events.iter().for_each(|event| self.mirror.apply(event));
        }
    }

    fn live(&mut self, message: Message) {
        let step = self.feed.live(message);
        self.step(step);
    }

    fn connect(&mut self) {
        let step = self.feed.connected();
        self.step(step);
    }

    fn blocks(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self
            .mirror
            .snapshot()
            .iter()
            .flat_map(|event| match event {
                KvEvent::Stored { blocks, .. } => blocks.iter().map(|block| block.block_hash).collect(),
                _ => Vec::new(),
            })
            .collect();
        all.sort_unstable();
        all
    }
}

#[test]
fn r32_late_start_and_gap_are_replayed_once_each() {
    let mut bench = Bench::new(true);
    bench.ring = (0..10).map(|i| message(i, 1, &json!([stored(i)]))).collect();
    for sequence in [5, 6, 9] {
        // What has not happened yet is in no ring.
        let all = bench.ring.clone();
        bench.ring.retain(|message| message.sequence <= sequence);
        let live = all[sequence as usize].clone();
        bench.live(live);
        bench.ring = all;
    }
    assert_eq!(bench.blocks(), (0..10).collect::<Vec<_>>());
    let counts = bench.feed.counts();
    assert_eq!((counts.recoveries, counts.lost, counts.restarts), (2, 0, 0));
    assert_eq!(bench.replays, 2);
}

#[test]
fn r32_without_a_replay_what_is_known_stays() {
    let mut bench = Bench::new(false);
    for sequence in [3, 4, 8] {
        bench.live(message(sequence, 1, &json!([stored(sequence)])));
    }
    assert_eq!(bench.blocks(), [3, 4, 8]);
    assert_eq!(bench.feed.counts().lost, 3 + 3);
}

#[test]
fn r33_a_restart_voids_and_a_duplicate_does_not() {
    for can_replay in [false, true] {
        let mut bench = Bench::new(can_replay);
        let first: Vec<Message> = (0..=50).map(|i| message(i, 1, &json!([stored(i)]))).collect();
        bench.ring.clone_from(&first);
        first.iter().for_each(|message| bench.live(message.clone()));
        bench.live(first[50].clone());
        bench.live(first[17].clone());
        assert_eq!(bench.blocks().len(), 51);
        assert_eq!((bench.feed.counts().duplicates, bench.feed.counts().restarts), (2, 0));
        bench.ring = vec![message(0, 2, &json!([stored(99)]))];
        bench.live(bench.ring[0].clone());
        assert_eq!(bench.blocks(), [99]);
        assert_eq!(bench.feed.counts().restarts, 1);
    }
}

/// The engine was restarted while nobody listened, and is past where it was: its numbers alone say nothing.
#[test]
fn r33_a_restart_behind_a_gap_is_seen_by_the_last_message() {
    for reconnects in [true, false] {
        let mut bench = Bench::new(true);
        (0..3).for_each(|i| bench.live(message(i, 1, &json!([stored(i)]))));
        bench.ring = (0..9).map(|i| message(i, 2, &json!([stored(40 + i)]))).collect();
        if reconnects {
            bench.connect();
        } else {
            bench.live(bench.ring[8].clone());
        }
        assert_eq!(bench.blocks(), (40..49).collect::<Vec<_>>());
        assert_eq!((bench.feed.counts().restarts, bench.feed.counts().lost), (1, 0));
    }
    // Or is not that far yet, and answers nothing.
    let mut bench = Bench::new(true);
    (0..30).for_each(|i| bench.live(message(i, 1, &json!([stored(i)]))));
    bench.ring = vec![message(0, 2, &json!([stored(77)]))];
    bench.connect();
    assert_eq!(bench.blocks(), [77]);
}

#[test]
fn a_ring_that_has_moved_on_loses_and_keeps_the_rest() {
    let mut bench = Bench::new(true);
    (0..3).for_each(|i| bench.live(message(i, 1, &json!([stored(i)]))));
    bench.ring = (10..13).map(|i| message(i, 1, &json!([stored(i)]))).collect();
    bench.live(bench.ring[2].clone());
    assert_eq!(bench.blocks(), [0, 1, 2, 10, 11, 12]);
    assert_eq!((bench.feed.counts().lost, bench.feed.counts().restarts), (7, 0));
}

#[test]
fn what_is_stored_twice_is_gone_when_removed_twice() {
    let mut bench = Bench::new(false);
    bench.live(message(0, 1, &json!([stored(1), stored(1), removed(1)])));
    assert_eq!(bench.blocks(), [1]);
    bench.live(message(1, 1, &json!([removed(1), stored(2)])));
    assert_eq!(bench.blocks(), [2]);
    bench.live(message(2, 1, &json!([["AllBlocksCleared"]])));
    assert_eq!(bench.blocks(), Vec::<u64>::new());
}

fn events_of(events: &Value) -> Vec<KvEvent> {
    let mut feed = Feed::new(source(), false);
    feed.live(message(0, 1, events));
    feed.take().into_iter().flat_map(|batch| batch.events).collect()
}

fn chain(parent: Option<u64>, blocks: &[(u64, u64)], tier: StorageTier) -> KvEvent {
    let blocks = blocks.iter().map(|&(block_hash, tokens_hash)| StoredBlock { block_hash, tokens_hash });
    KvEvent::Stored { parent, blocks: blocks.collect(), tier }
}

/// Of one prompt of eight tokens, as each engine and form says it.
#[test]
fn both_forms_of_both_engines_mean_the_same() {
    let hashes = [local_hash(&[1, 2, 3, 4], SEED), local_hash(&[5, 6, 7, 8], SEED)];
    let expected = vec![
        chain(None, &[(11, hashes[0]), (12, hashes[1])], StorageTier::Device),
        KvEvent::Removed { hashes: vec![12], tier: StorageTier::Device },
    ];
    for events in [
        json!([
            ["BlockStored", [11, 12], null, [1, 2, 3, 4, 5, 6, 7, 8], 4, null, "GPU"],
            ["BlockRemoved", [12], "GPU"]
        ]),
        json!([
            [
                "BlockStored",
                [11, 12],
                null,
                [1, 2, 3, 4, 5, 6, 7, 8],
                4,
                null,
                "GPU",
                null,
                [null, null],
                0,
                "full_attention",
                null
            ],
            ["BlockRemoved", [12], "GPU", 0],
            ["Unheard", 3]
        ]),
        json!([{"type": "BlockStored", "block_hashes": [11, 12], "token_ids": [1, 2, 3, 4, 5, 6, 7, 8], "block_size": 4,
                "medium": "GPU", "kv_cache_spec_kind": "full_attention", "group_idx": 0, "colour": "green"},
               {"type": "BlockRemoved", "block_hashes": [12], "medium": "GPU"}]),
    ] {
        assert_eq!(events_of(&events), expected, "{events}");
    }
    let signed = json!([{"type": "BlockRemoved", "block_hashes": [-2], "medium": "CPU_PINNED"}]);
    let expected = KvEvent::Removed { hashes: vec![u64::MAX - 1], tier: StorageTier::HostPinned };
    assert_eq!(events_of(&signed), [expected]);
}

#[test]
fn salts_and_adapters_reach_the_blocks_that_follow() {
    let block = |scope: Scope<'_>, tokens: &[u32]| local_hash(tokens, scope.seed());
    let salted = Scope { lora: None, salt: Some("tenantA") };
    let ones = [1, 1, 1, 1];
    let says = |fields: Value| {
        let mut event =
            json!({"type": "BlockStored", "block_hashes": [1], "token_ids": ones, "block_size": 4});
        event.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        event
    };
    let follows = json!({"type": "BlockStored", "block_hashes": [2], "parent_block_hash": 1, "token_ids": ones, "block_size": 4});
    for (first, scope) in [
        (says(json!({"extra_keys": [["tenantA"]]})), salted),
        (says(json!({"cache_salt": "tenantA"})), salted),
        (says(json!({"lora_name": "poet", "lora_id": 3})), Scope { lora: Some("poet"), salt: None }),
        (
            says(json!({"lora_name": "poet", "extra_keys": [["poet", "tenantA"]]})),
            Scope { lora: Some("poet"), salt: Some("tenantA") },
        ),
        (says(json!({"lora_id": 3})), Scope { lora: Some("3"), salt: None }),
        (says(json!({"extra_keys": [null]})), Scope::default()),
    ] {
        let expected = block(scope, &ones);
        let events = events_of(&json!([first, follows]));
        let found = |event: &KvEvent| match event {
            KvEvent::Stored { blocks, .. } => blocks[0].tokens_hash,
            _ => 0,
        };
        assert_eq!(events.iter().map(found).collect::<Vec<_>>(), [expected, expected], "{first}");
    }
    // Media are no salt, and two of them are not the same.
    let media: Vec<_> = ["image-a", "image-b"].map(|name| says(json!({"extra_keys": [[[name, 0]]]}))).into();
    let hashes: Vec<_> = media.iter().map(|event| events_of(&json!([event]))).collect();
    assert_ne!(hashes[0], hashes[1]);
    assert_ne!(hashes[0], events_of(&json!([says(json!({}))])));
}

#[test]
fn what_no_prompt_can_find_is_left_out_and_counted() {
    let mut bench = Bench::new(false);
    let window = json!({"type": "BlockStored", "block_hashes": [5], "token_ids": [1, 2, 3, 4], "block_size": 4,
                        "group_idx": 1, "kv_cache_spec_kind": "sliding_window"});
    let gone = json!({"type": "BlockRemoved", "block_hashes": [1], "group_idx": 1});
    bench.live(message(0, 1, &json!([stored(1), window, gone])));
    assert_eq!((bench.blocks(), bench.feed.counts().skipped), (vec![1], 0));
    let other_size =
        json!({"type": "BlockStored", "block_hashes": [6], "token_ids": [1, 2], "block_size": 2});
    let short =
        json!({"type": "BlockStored", "block_hashes": [6, 7], "token_ids": [1, 2, 3, 4], "block_size": 4});
    let shapeless = json!(["BlockStored", "what"]);
    bench.live(message(1, 1, &json!([other_size, short, shapeless, stored(2)])));
    assert_eq!((bench.blocks(), bench.feed.counts().skipped), (vec![1, 2], 3));
    bench.live(Message { sequence: 2, payload: vec![0xC1] });
    assert_eq!(bench.feed.counts().skipped, 4);
}

#[test]
fn a_message_names_its_rank() {
    let mut feed = Feed::new(source(), false);
    let payload = rmp_serde::to_vec(&json!([0.5, [stored(1)], 3])).unwrap();
    feed.live(Message { sequence: 0, payload });
    assert_eq!(feed.take()[0].source, WorkerRank::new(InstanceId(7), 3));
}

proptest! {
    /// Whatever is lost, comes twice or is restarted on the way: in the end the router holds what the engine holds, if the
    /// ring reaches back.
    #[test]
    fn r32_r33_any_history_ends_in_the_engines_own_view(seed in any::<u64>(), steps in 1u64..80) {
        let mut bench = Bench::new(true);
        let (mut life, mut held) = (0u64, std::collections::BTreeSet::new());
        for step in 0..steps {
            let roll = draw::index(seed, 10 * step, 10);
            if roll == 0 {
                life += 1;
                bench.ring.clear();
                held.clear();
            }
            let block = draw::index(seed, 10 * step + 1, 12) as u64;
            let event = if held.remove(&block) { removed(block) } else { held.insert(block); stored(block) };
            let new = message(bench.ring.len() as u64, life, &json!([event]));
            bench.ring.push(new.clone());
            match roll {
                1..=3 => {}
                4 => bench.connect(),
                5 => { bench.live(new.clone()); bench.live(new) }
                _ => bench.live(new),
            }
        }
        bench.connect();
        prop_assert_eq!(bench.blocks(), held.into_iter().collect::<Vec<_>>());
    }

    /// Any bytes, and messages with a few bytes changed: nothing panics, and our numbers stay without a gap.
    #[test]
    fn any_bytes_do_no_harm(seed in any::<u64>(), noise in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bench = Bench::new(false);
        bench.live(Message { sequence: 0, payload: noise });
        let events = json!([
            stored(1),
            {"type": "BlockStored", "block_hashes": [1, -2], "parent_block_hash": 9, "token_ids": [1, 2, 3, 4, 5, 6, 7, 8],
             "block_size": 4, "lora_name": "poet", "extra_keys": [["a", ["b", 3]], null], "medium": "CPU", "group_idx": 2},
            removed(1), ["AllBlocksCleared"],
        ]);
        for sequence in 1..30u64 {
            let mut live = message(sequence, 1, &events);
            for change in 0..1 + draw::index(seed, sequence, 4) as u64 {
                let at = draw::index(seed, sequence * 100 + change, live.payload.len());
                live.payload[at] = draw::bits(seed, sequence * 100 + 50 + change) as u8;
            }
            let cut = draw::index(seed, sequence * 100 + 99, 3 * live.payload.len());
            live.payload.truncate(cut);
            bench.live(live);
        }
    }
}
