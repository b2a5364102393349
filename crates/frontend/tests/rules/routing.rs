//! R37 and prefix routing, through the whole frontend.

use crate::client::Client;
use crate::harness::{Behaviour, Ending, Harness, ROUTES, all_pieces, ask, card, config, eventually};
use dynamo_router::Mode;
use dynamo_runtime::events::EventPlane;
use dynamo_types::FinishReason::Stop;
use dynamo_types::hash::{Scope, local_hashes, sequence_hashes};
use dynamo_types::{InstanceId, KvEvent, KvEventBatch, StorageTier, StoredBlock, WorkerRank};
use serde_json::json;
use std::sync::Arc;

/// Distinct prompts: no two share a block.
fn distinct(index: usize, blocks: usize) -> String {
    format!("{index:016}").repeat(blocks)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r37_ties_are_broken_fairly() {
    for mode in Mode::ALL {
        let router = dynamo_router::Config { mode, ..Default::default() };
        let harness = Harness::with(config(), router).await;
        let mut workers = Vec::new();
        for id in 1..=4 {
            workers.push(harness.worker(id, card("m", &[b"ok"]), all_pieces(1, Ending::Finish(Stop))).await);
        }
        let mut client = Client::connect(harness.address).await;
        for index in 0..400 {
            let body = ask("/v1/completions", index % 2 == 0, &distinct(index, 1), json!({})).to_string();
            assert_eq!(client.ask("POST", "/v1/completions", &[], body.as_bytes()).await.status, 200);
        }
        let counts: Vec<usize> = workers.iter().map(|worker| worker.requests().len()).collect();
        // More than five standard deviations: what is drawn by chance is never outside, who favours one always is.
        assert!(counts.iter().all(|count| (50..=150).contains(count)), "{mode}: {counts:?}");
        harness.balanced().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r37_load_is_booked_at_selection() {
    for mode in [Mode::Kv, Mode::LeastLoaded, Mode::RoundRobin] {
        let router = dynamo_router::Config { mode, ..Default::default() };
        let harness = Harness::with(config(), router).await;
        let silent: Behaviour = Arc::new(|_| Ok((vec![], Ending::Hang)));
        let mut workers = Vec::new();
        for id in 1..=4 {
            workers.push(harness.worker(id, card("m", &[b"ok"]), silent.clone()).await);
        }
        let mut clients = Vec::new();
        for index in 0..40 {
            let mut client = Client::connect(harness.address).await;
            let (route, stream) = ROUTES[index % 4];
            let body = ask(route, stream, &distinct(index, 2000), json!({"max_tokens": 1})).to_string();
            client.send("POST", route, &[], body.as_bytes()).await;
            clients.push(client);
        }
        let open = || workers.iter().map(|worker| worker.open()).sum::<usize>();
        eventually("all are placed", || open() == 40).await;
        assert!(workers.iter().all(|worker| worker.open() <= 13), "{mode}");
        let booked = harness.frontend.ledger();
        assert_eq!(booked.requests, 40);
        assert_eq!(booked.booked.iter().map(|(_, load)| load.requests).sum::<u32>(), 40);
        assert!(
            harness.metric("dynamo_frontend_worker_active_prefill_tokens", &[]).await > 0.0
                || mode != Mode::Kv
        );
        drop(clients);
        harness.balanced().await;
        eventually("all engines are told", || open() == 0).await;
    }
}

/// What worker `id` would announce after computing `prompt`.
fn stored(id: u64, sequence: u64, prompt: &str) -> KvEventBatch {
    let tokens: Vec<u32> = prompt.bytes().map(u32::from).collect();
    let locals = local_hashes(&tokens, 16, &Scope::default());
    let blocks = sequence_hashes(&locals)
        .into_iter()
        .zip(&locals)
        .map(|(block_hash, &tokens_hash)| StoredBlock { block_hash, tokens_hash })
        .collect();
    KvEventBatch {
        source: WorkerRank::new(InstanceId(id), 0),
        epoch: 1,
        sequence,
        events: vec![KvEvent::Stored { parent: None, blocks, tier: StorageTier::Device }],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_go_where_their_prefix_is() {
    let harness = Harness::new().await;
    // Before its worker is known: the frontend asks for a snapshot once it is.
    harness.events.publish_kv(stored(3, 0, &distinct(3, 20)));
    let mut workers = Vec::new();
    for id in 1..=3 {
        workers.push(harness.worker(id, card("m", &[b"ok"]), all_pieces(1, Ending::Finish(Stop))).await);
    }
    for id in 1..=2 {
        harness.events.publish_kv(stored(id, 0, &distinct(id as usize, 20)));
    }
    let mut applied = 0.0;
    while applied < 3.0 {
        applied = harness
            .metric("dynamo_component_kv_cache_events_applied", &["status=\"ok\"", "event_type=\"stored\""])
            .await;
    }
    for index in 1..=3usize {
        for _ in 0..5 {
            let prompt = format!("{} and more", distinct(index, 20));
            let reply =
                harness.post("/v1/completions", &ask("/v1/completions", false, &prompt, json!({}))).await;
            assert_eq!(reply.status, 200);
        }
        assert_eq!(workers[index - 1].requests().len(), 5, "prefix of worker {index}");
    }
    assert!(harness.metric("dynamo_component_router_kv_hit_rate_sum", &[]).await > 14.0);
    assert_eq!(harness.metric("dynamo_component_router_requests_total", &[]).await, 15.0);
}
