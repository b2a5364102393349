//! Workers that are named by hand, taken out, and what the router tells of their caches.

use crate::client::{Client, Reply};
use crate::harness::{Ending, Harness, all_pieces, card, eventually};
use crate::selection::{model, router, send};
use dynamo_frontend::SelectionConfig;
use dynamo_runtime::events::EventPlane;
use dynamo_types::{
    BlockContract, InstanceId, KvEvent, KvEventBatch, ModelCard, StorageTier, StoredBlock, WorkerRank,
};
use serde_json::{Value, json};

async fn patch(harness: &Harness, worker: u64, body: &Value) -> Reply {
    let mut client = Client::connect(harness.address).await;
    let headers = [("content-type", "application/json")];
    client.send("PATCH", &format!("/workers/{worker}"), &headers, body.to_string().as_bytes()).await;
    client.reply("PATCH").await
}

/// Lifecycle and first reason of each worker.
async fn workers(harness: &Harness) -> Vec<(u64, String, String)> {
    let rows = harness.get("/workers").await.json();
    let row = |row: &Value| {
        let reason = row["not_schedulable_reasons"][0].as_str().unwrap_or_default().to_owned();
        (row["worker_id"].as_u64().unwrap(), row["lifecycle"].as_str().unwrap().to_owned(), reason)
    };
    rows.as_array().unwrap().iter().map(row).collect()
}

async fn becomes(harness: &Harness, expected: &[(u64, &str, &str)]) {
    let mut found = Vec::new();
    for _ in 0..2000 {
        found = workers(harness).await;
        let same = |((id, lifecycle, reason), (other, state, word)): (
            &(u64, String, String),
            &(u64, &str, &str),
        )| { id == other && lifecycle == state && reason.contains(word) };
        if found.len() == expected.len() && found.iter().zip(expected).all(same) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("expected {expected:?}, found {found:?}");
}

#[tokio::test]
async fn a_worker_named_by_hand_is_chosen_by_its_load_once_enough_is_known() {
    let harness = router(SelectionConfig::default()).await;
    let added = harness.post("/workers", &json!({ "worker_id": 7, "model_name": "x" })).await;
    assert_eq!((added.status, &added.json()["lifecycle"]), (201, &json!("incomplete")), "{}", added.text());
    becomes(&harness, &[(7, "incomplete", "endpoint")]).await;
    assert_eq!(harness.get("/ready").await.status, 503);
    let more = patch(&harness, 7, &json!({ "endpoint": "http://engine:8000", "block_size": 4 })).await;
    assert_eq!((more.status, &more.json()["lifecycle"]), (200, &json!("schedulable")), "{}", more.text());
    let twin =
        json!({ "worker_id": "8", "model_name": "x", "endpoint": "http://other:8000", "block_size": 4 });
    assert_eq!(harness.post("/workers", &twin).await.status, 201);
    becomes(&harness, &[(7, "schedulable", "tokens"), (8, "schedulable", "tokens")]).await;
    assert_eq!(harness.post("/workers", &twin).await.status, 409);
    assert_eq!(harness.get("/ready").await.status, 200);

    let body = json!({ "token_ids": [1, 2, 3, 4, 5] });
    let first = harness.post("/select_and_reserve", &body).await.json();
    let second = harness.post("/select_and_reserve", &body).await.json();
    let mut chosen = [first["worker_id"].as_u64().unwrap(), second["worker_id"].as_u64().unwrap()];
    chosen.sort_unstable();
    assert_eq!(chosen, [7, 8], "the second goes where the first did not");
    assert_eq!(harness.post("/select", &json!({ "prompt": "text" })).await.status, 503);
    for id in [&first["selection_id"], &second["selection_id"]] {
        let path = format!("/reservations/{}", id.as_str().unwrap());
        assert_eq!(send(&harness, "DELETE", &path).await.status, 200);
    }
    assert_eq!(send(&harness, "DELETE", "/workers/7").await.status, 200);
    assert_eq!(send(&harness, "DELETE", "/workers/7").await.status, 404);
    becomes(&harness, &[(8, "schedulable", "tokens")]).await;
    assert!(harness.frontend.ledger().is_balanced());
}

#[tokio::test]
async fn who_is_taken_out_gets_nothing_until_he_is_let_in_again() {
    let harness = router(SelectionConfig::default()).await;
    let _one = harness.worker(1, model(), all_pieces(1, Ending::Hang)).await;
    let _two = harness.worker(2, model(), all_pieces(1, Ending::Hang)).await;
    let out = patch(&harness, 1, &json!({ "schedulable": false })).await;
    assert_eq!((out.status, &out.json()["lifecycle"]), (200, &json!("unschedulable")), "{}", out.text());
    becomes(&harness, &[(1, "unschedulable", "by hand"), (2, "schedulable", "")]).await;
    let body = json!({ "token_ids": [1, 2, 3, 4, 5] });
    let mut held = Vec::new();
    for _ in 0..4 {
        let chosen = harness.post("/select_and_reserve", &body).await.json();
        assert_eq!(chosen["worker_id"], json!(2));
        held.push(chosen["selection_id"].as_str().unwrap().to_owned());
    }
    assert_eq!(harness.post("/potential_loads", &body).await.json()["loads"].as_array().unwrap().len(), 1);
    let pinned = json!({ "token_ids": [1], "pinned_worker": { "worker_id": 1 } });
    assert_eq!(harness.post("/select", &pinned).await.status, 503);
    assert_eq!(patch(&harness, 1, &json!({ "schedulable": true })).await.status, 200);
    assert_eq!(harness.post("/select", &body).await.json()["worker_id"], json!(1));
    for id in held {
        assert_eq!(send(&harness, "DELETE", &format!("/reservations/{id}")).await.status, 200);
    }
    // Who registers himself describes himself.
    assert_eq!(patch(&harness, 1, &json!({ "block_size": 8 })).await.status, 409);
    assert_eq!(send(&harness, "DELETE", "/workers/1").await.status, 409);
    assert_eq!(harness.post("/workers", &json!({ "worker_id": 1 })).await.status, 409);
    assert_eq!(patch(&harness, 99, &json!({ "schedulable": false })).await.status, 404);
    assert_eq!(send(&harness, "DELETE", "/workers/abc").await.status, 404);
}

#[tokio::test]
async fn a_worker_that_registers_itself_has_the_last_word_about_its_model() {
    let harness = router(SelectionConfig::default()).await;
    let named = |id: u64, block_size: u32| json!({ "worker_id": id, "model_name": "m", "endpoint": "e", "block_size": block_size });
    assert_eq!(harness.post("/workers", &named(7, 4)).await.status, 201);
    becomes(&harness, &[(7, "schedulable", "tokens")]).await;
    let worker = harness.worker(1, model(), all_pieces(1, Ending::Hang)).await;
    becomes(&harness, &[(1, "schedulable", ""), (7, "unschedulable", "differs")]).await;
    // Said once more it goes along, and with other blocks it cannot.
    assert_eq!(patch(&harness, 7, &json!({ "total_kv_blocks": 9 })).await.status, 200);
    becomes(&harness, &[(1, "schedulable", ""), (7, "schedulable", "")]).await;
    let other = harness.post("/workers", &named(8, 16)).await;
    assert_eq!(other.status, 400, "{}", other.text());
    assert!(other.text().contains("block_size"), "{}", other.text());
    drop(worker);
    becomes(&harness, &[(7, "schedulable", "")]).await;
}

#[tokio::test]
async fn a_dump_is_what_the_workers_cache() {
    let harness = router(SelectionConfig::default()).await;
    let card = ModelCard { blocks: BlockContract::xxh3(4), ..card("m", &[b"a"]) };
    let _one = harness.worker(1, card.clone(), all_pieces(1, Ending::Hang)).await;
    let _two = harness.worker(2, card, all_pieces(1, Ending::Hang)).await;
    let stored = |worker: u64, hash: u64| KvEventBatch {
        source: WorkerRank::new(InstanceId(worker), 0),
        epoch: 5,
        sequence: 0,
        events: vec![KvEvent::Stored {
            parent: None,
            blocks: vec![StoredBlock { block_hash: hash, tokens_hash: hash }],
            tier: StorageTier::Device,
        }],
    };
    (1..=2).for_each(|worker| harness.events.publish_kv(stored(worker, 10 + worker)));
    eventually("both are known", || {
        let mut subscription = harness.events.subscribe();
        std::iter::from_fn(|| subscription.try_next()).count() >= 2
    })
    .await;
    let all = harness.get("/dump").await.json();
    let mut seen: Vec<u64> =
        all["workers"].as_array().unwrap().iter().map(|row| row["worker_id"].as_u64().unwrap()).collect();
    seen.sort_unstable();
    assert_eq!(seen, [1, 2]);
    let one = harness.get("/workers/2/dump").await.json();
    let rows = one["workers"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[0]["epoch"], &rows[0]["model_name"]), (1, &json!(5), &json!("m")));
    let events: Vec<KvEvent> = serde_json::from_value(rows[0]["events"].clone()).unwrap();
    let holds =
        |event: &KvEvent| matches!(event, KvEvent::Stored { blocks, .. } if blocks[0].block_hash == 12);
    assert!(events.iter().any(holds), "{events:?}");
    assert_eq!(harness.get("/workers/9/dump").await.status, 404);
}
