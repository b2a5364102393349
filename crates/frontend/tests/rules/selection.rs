//! Selection as a service: golden answers of the reference (behaviour.md 13.6), the life of a reservation, and that
//! nothing stays on the books.

use crate::client::{Client, PATIENCE, Reply};
use crate::harness::{Ending, FIRST_PIECE, Harness, all_pieces, card, config, eventually};
use dynamo_frontend::SelectionConfig;
use dynamo_runtime::events::EventPlane;
use dynamo_types::hash::{Scope, local_hashes, sequence_hashes};
use dynamo_types::{
    BlockContract, InstanceId, KvEvent, KvEventBatch, ModelCard, StorageTier, StoredBlock, WorkerRank,
};
use serde_json::{Value, json};
use std::time::Duration;

const BLOCK: u32 = 4;

pub(crate) fn model() -> ModelCard {
    ModelCard { blocks: BlockContract::xxh3(BLOCK), ..card("m", &[b"a"]) }
}

pub(crate) async fn router(selection: SelectionConfig) -> Harness {
    let selection = SelectionConfig { port: 0, ..selection };
    Harness::router(config(), selection, dynamo_router::Config::default()).await
}

/// Loads by worker: prefill tokens and decode blocks.
async fn loads(harness: &Harness) -> Vec<(u64, u64, f64)> {
    let answer = harness.get("/loads").await.json();
    let rows = answer[0]["loads"].as_array().unwrap().iter();
    let row = |row: &Value| {
        (
            row["worker_id"].as_u64().unwrap(),
            row["potential_prefill_tokens"].as_u64().unwrap(),
            row["potential_decode_blocks"].as_f64().unwrap(),
        )
    };
    rows.map(row).collect()
}

async fn two(harness: &Harness) -> [crate::harness::Worker; 2] {
    [
        harness.worker(1, model(), all_pieces(1, Ending::Hang)).await,
        harness.worker(2, model(), all_pieces(1, Ending::Hang)).await,
    ]
}

/// Without a body.
pub(crate) async fn send(harness: &Harness, method: &str, path: &str) -> Reply {
    let mut client = Client::connect(harness.address).await;
    client.send(method, path, &[], b"").await;
    client.reply(method).await
}

async fn delete(harness: &Harness, path: &str) -> Reply {
    send(harness, "DELETE", path).await
}

#[tokio::test]
async fn golden_selection_service() {
    let harness = router(SelectionConfig::default()).await;
    let _workers = two(&harness).await;
    let eight: Vec<u32> = (1..9).collect();
    let nine: Vec<u32> = (1..10).collect();
    let chosen = harness.post("/select", &json!({ "token_ids": eight })).await;
    assert_eq!(chosen.status, 200, "{}", chosen.text());
    let chosen = chosen.json();
    assert_eq!(
        (&chosen["effective_prefill_tokens"], &chosen["potential_decode_blocks"]),
        (&json!(8), &json!(2.0))
    );
    assert_eq!(loads(&harness).await, [(1, 0, 0.0), (2, 0, 0.0)], "a selection books nothing");

    let reserve =
        |id: &str, tokens: &[u32]| json!({ "token_ids": tokens, "selection_id": id, "model_name": "m" });
    let first = harness.post("/select_and_reserve", &reserve("s1", &eight)).await.json();
    let one = first["worker_id"].as_u64().unwrap();
    let other = 3 - one;
    let second = harness.post("/select_and_reserve", &reserve("s2", &nine)).await.json();
    assert_eq!((&second["worker_id"], &second["potential_decode_blocks"]), (&json!(other), &json!(3.0)));
    let mut expected = vec![(one, 8, 2.0), (other, 9, 2.0)];
    expected.sort_by_key(|row| row.0);
    assert_eq!(loads(&harness).await, expected, "only full blocks are charged");
    assert_eq!(harness.post("/select_and_reserve", &reserve("s1", &eight)).await.status, 409);

    assert_eq!(delete(&harness, "/reservations/s1").await.status, 200);
    assert_eq!(delete(&harness, "/reservations/s1").await.status, 404);
    let four = harness.post("/potential_loads", &json!({ "token_ids": [1, 2, 3, 4] })).await.json();
    let rows = four["loads"].as_array().unwrap();
    let of = |id: u64| rows.iter().find(|row| row["worker_id"] == json!(id)).unwrap();
    let both =
        |row: &Value| (row["potential_prefill_tokens"].clone(), row["potential_decode_blocks"].clone());
    assert_eq!(both(of(one)), (json!(4), json!(1.0)));
    assert_eq!(both(of(other)), (json!(13), json!(2.0)));

    let done = send(&harness, "POST", "/reservations/s2/prefill_complete").await;
    assert_eq!((done.status, &done.json()["worker_id"]), (200, &json!(other)));
    assert!(loads(&harness).await.contains(&(other, 0, 2.0)));
    let grown = harness.post("/reservations/s2/output_block", &json!({ "decay_fraction": 0.5 })).await;
    assert_eq!(grown.status, 200);
    assert!(loads(&harness).await.contains(&(other, 0, 2.5)));
    assert_eq!(delete(&harness, "/reservations/s2").await.status, 200);
    assert!(harness.frontend.ledger().is_balanced());
    assert_eq!(harness.metric("dynamo_component_router_reservations", &[]).await, 0.0);
}

#[tokio::test]
async fn a_selection_becomes_a_reservation_once_and_bookings_of_others_are_counted() {
    let harness = router(SelectionConfig::default()).await;
    let _workers = two(&harness).await;
    let body = json!({ "prompt": "abcdefgh", "selection_id": "a/b" });
    let chosen = harness.post("/select", &body).await.json();
    let booked = harness.post("/reservations", &json!({ "selection_id": "a/b" })).await;
    assert_eq!((booked.status, &booked.json()["worker_id"]), (201, &chosen["worker_id"]));
    for path in ["/reservations", "/select", "/select_and_reserve"] {
        assert_eq!(harness.post(path, &body).await.status, 409, "{path}");
    }
    assert_eq!(delete(&harness, "/reservations/a%2Fb").await.status, 200);
    assert_eq!(harness.post("/reservations", &json!({ "selection_id": "a/b" })).await.status, 404);

    let add = json!({ "request_id": "r", "worker_id": "2", "sequence_hashes": [-1, 5], "isl_tokens": 10 });
    assert_eq!(harness.post("/add", &add).await.status, 201);
    assert_eq!(loads(&harness).await, [(1, 0, 0.0), (2, 10, 2.0)]);
    assert_eq!(harness.post("/add", &add).await.status, 409);
    let nobody = json!({ "request_id": "x", "worker_id": 9, "token_ids": [1] });
    assert_eq!(harness.post("/add", &nobody).await.status, 404);
    let free = |id: &str| json!({ "request_id": id });
    assert_eq!(harness.post("/prefill_complete", &free("r")).await.status, 200);
    assert_eq!(harness.post("/prefill_complete", &free("x")).await.status, 404);
    for freed in [true, false] {
        assert_eq!(harness.post("/free", &free("r")).await.json()["freed"], json!(freed));
    }
    assert!(harness.frontend.ledger().is_balanced());
}

#[tokio::test]
async fn what_the_workers_have_is_told_in_tokens_and_in_blocks() {
    let harness = router(SelectionConfig::default()).await;
    let _workers = two(&harness).await;
    let tokens: Vec<u32> = (1..13).collect();
    let locals = local_hashes(&tokens[..8], BLOCK as usize, &Scope::default());
    let blocks = sequence_hashes(&locals).into_iter().zip(&locals);
    let blocks = blocks.map(|(block_hash, &tokens_hash)| StoredBlock { block_hash, tokens_hash }).collect();
    harness.events.publish_kv(KvEventBatch {
        source: WorkerRank::new(InstanceId(2), 0),
        epoch: 1,
        sequence: 0,
        events: vec![KvEvent::Stored { parent: None, blocks, tier: StorageTier::Device }],
    });
    let applied = async {
        let query = json!({ "token_ids": tokens });
        while harness.post("/query", &query).await.json()["scores"] != json!({ "2": { "0": 8 } }) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, applied).await.expect("the events are applied");
    let hashes: Vec<i64> = locals.iter().map(|hash| hash.cast_signed()).collect();
    let found = harness.post("/query_by_hash", &json!({ "block_hashes": hashes })).await.json();
    let summary = json!({ "longest_matched": 8, "gpu": 8, "dp": { "0": 8 }, "cpu": 8, "disk": 8 });
    assert_eq!(found["instances"], json!({ "2": summary }));
    let salted = json!({ "block_hashes": hashes, "cache_salt": "t" });
    assert_eq!(harness.post("/query_by_hash", &salted).await.status, 400);
    let salted = json!({ "token_ids": tokens, "cache_salt": "t" });
    assert_eq!(harness.post("/query", &salted).await.json()["scores"], json!({}));
    let scores = harness.post("/overlap_scores", &json!({ "token_ids": tokens })).await.json();
    assert_eq!((&scores["num_blocks"], &scores["workers"][1]["device_blocks"]), (&json!(3), &json!(2)));
    let chosen = harness.post("/select", &json!({ "token_ids": tokens })).await.json();
    assert_eq!((&chosen["worker_id"], &chosen["overlap"]["gpu"]), (&json!(2), &json!(8)));
    assert_eq!(chosen["effective_prefill_tokens"], json!(4));
    let pinned = json!({ "token_ids": tokens, "allowed_worker_ids": [1] });
    assert_eq!(harness.post("/select", &pinned).await.json()["worker_id"], json!(1));
}

#[tokio::test]
async fn abandoned_reservations_come_back_and_the_limit_holds() {
    let harness =
        router(SelectionConfig { expiry_ms: 1, max_reservations: 2, ..SelectionConfig::default() }).await;
    let _workers = two(&harness).await;
    let body = json!({ "token_ids": [1, 2, 3, 4, FIRST_PIECE] });
    for _ in 0..2 {
        let held = harness.post("/select_and_reserve", &body).await;
        assert!(matches!(held.status, 200 | 529), "{}", held.text());
    }
    eventually("they expire", || harness.frontend.ledger().is_balanced()).await;
    assert_eq!(harness.metric("dynamo_component_router_reservations_expired_total", &[]).await, 2.0);

    let harness = router(SelectionConfig { max_reservations: 2, ..SelectionConfig::default() }).await;
    let _workers = two(&harness).await;
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(harness.post("/select_and_reserve", &body).await.status);
    }
    assert_eq!(statuses, [200, 200, 529]);
}

#[tokio::test]
async fn faults_are_told_and_nothing_else_is_served() {
    let harness = router(SelectionConfig::default()).await;
    let nobody = harness.post("/select", &json!({ "token_ids": [1] })).await;
    assert_eq!(nobody.status, 503, "{}", nobody.text());
    assert_eq!(harness.get("/ready").await.status, 503);
    let _workers = two(&harness).await;
    let ready = harness.get("/ready").await;
    assert_eq!((ready.status, &ready.json()["schedulable_workers"]), (200, &json!(2)));
    assert_eq!(harness.get("/workers").await.json()[0]["lifecycle"], json!("schedulable"));
    for (body, status) in [
        (json!({}), 400),
        (json!({ "token_ids": [] }), 400),
        (json!({ "token_ids": [1], "prompt": "a" }), 400),
        (json!({ "block_hashes": [1], "isl_tokens": 8 }), 400),
        (json!({ "token_ids": [1], "model_name": "x" }), 404),
        (json!({ "token_ids": [1], "pinned_worker": { "worker_id": 7 } }), 404),
        (json!({ "token_ids": [1], "allowed_worker_ids": [] }), 503),
    ] {
        let refused = harness.post("/select", &body).await;
        assert_eq!(refused.status, status, "{body}: {}", refused.text());
        assert!(refused.json()["error"].is_string(), "{}", refused.text());
    }
    let ignored = harness.post("/select", &json!({ "token_ids": [1], "priority_jump": 2 })).await;
    assert_eq!(ignored.header("x-dynamo-ignored-fields"), Some("priority_jump"));
    assert_eq!(harness.post("/v1/completions", &json!({})).await.status, 404);
    assert_eq!(harness.get("/select").await.status, 405);
}
