//! Load shedding through the whole frontend: every router mode, every route, and the limits' own API.

use crate::client::Client;
use crate::harness::{ALL_ROUTES, Behaviour, Ending, Harness, all_pieces, ask, card, config, eventually};
use dynamo_frontend::{Config, SelectionConfig};
use dynamo_router::Mode;
use dynamo_runtime::events::EventPlane;
use dynamo_types::FinishReason::Stop;
use dynamo_types::{Error, InstanceId, Load, WorkerRank};
use serde_json::{Value, json};
use std::sync::Arc;

const PATH: &str = "/busy_threshold";
const REJECTIONS: &str = "dynamo_frontend_model_rejection_total";

fn limits(model: &str, decode: &Value, tokens: &Value, share: &Value) -> Value {
    json!({
        "model": model,
        "active_decode_blocks_threshold": decode,
        "active_prefill_tokens_threshold": tokens,
        "active_prefill_tokens_threshold_frac": share,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_workers_refuse_with_529_in_every_mode_until_they_have_room() {
    for mode in Mode::ALL {
        let router =
            dynamo_router::Config { mode, active_prefill_tokens_threshold: Some(100), ..Default::default() };
        let harness = Harness::with(config(), router).await;
        let hang: Behaviour = Arc::new(|_| Ok((vec![], Ending::Hang)));
        let mut workers = Vec::new();
        for id in 1..=2 {
            workers.push(harness.worker(id, card("m", &[b"ok"]), hang.clone()).await);
        }
        let mut held = Vec::new();
        for index in 0..2 {
            let mut client = Client::connect(harness.address).await;
            let body = ask("/v1/completions", true, &format!("{index:0200}"), json!({})).to_string();
            client.send("POST", "/v1/completions", &[], body.as_bytes()).await;
            held.push(client);
            let open = || workers.iter().map(|worker| worker.open()).sum::<usize>();
            eventually("it is placed", || open() == index + 1).await;
        }
        assert_eq!(workers.iter().map(|worker| worker.open()).collect::<Vec<_>>(), [1, 1], "{mode}");
        for (route, stream) in ALL_ROUTES {
            let reply = harness.post(route, &ask(route, stream, "more", json!({}))).await;
            assert_eq!(reply.status, 529, "{mode} {route}: {}", reply.text());
            assert_eq!(reply.header("retry-after"), Some("1"));
            assert_eq!(reply.error()["message"], "Service temporarily overloaded", "{}", reply.text());
        }
        assert_eq!(harness.metric(REJECTIONS, &["model=\"m\""]).await, ALL_ROUTES.len() as f64);
        drop(held);
        harness.balanced().await;
        let answers = harness.worker(3, card("m", &[b"ok"]), all_pieces(1, Ending::Finish(Stop))).await;
        drop(workers);
        let reply = harness.post("/v1/completions", &ask("/v1/completions", false, "x", json!({}))).await;
        assert_eq!((reply.status, answers.requests().len()), (200, 1), "{mode}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reported_load_counts_and_the_status_can_be_set() {
    let settings = Config { overload_status: 429, ..config() };
    let harness = Harness::with(settings, dynamo_router::Config::default()).await;
    let _worker = harness.script(&[b"ok"], Ending::Finish(Stop)).await;
    let set = limits("m", &json!(0.5), &Value::Null, &Value::Null);
    assert_eq!(harness.post(PATH, &set).await.status, 200);
    let source = WorkerRank::new(InstanceId(1), 0);
    let body = ask("/v1/completions", false, "x", json!({}));
    for (active_blocks, status) in [(51, 429), (50, 200), (100, 429), (0, 200)] {
        let load = Load { active_blocks, total_blocks: 100, ..Load::default() };
        harness.events.publish_load(source, load);
        eventually("the report arrives", || {
            harness.frontend.ledger().booked.iter().any(|(_, booked)| booked.reported == Some(load))
        })
        .await;
        assert_eq!(harness.post("/v1/completions", &body).await.status, status, "{active_blocks}");
    }
    // Limits of one kind do not touch another's: this worker prefills, which nobody limited.
    let load = Load { prefill_tokens: 1_000_000, ..Load::default() };
    harness.events.publish_load(source, load);
    assert_eq!(harness.post("/v1/completions", &body).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_are_read_and_set_per_model() {
    let router = dynamo_router::Config { active_prefill_tokens_threshold: Some(7000), ..Default::default() };
    let harness = Harness::with(config(), router).await;
    let mut named = card("m", &[b"ok"]);
    named.aliases.push("alias".into());
    let _worker = harness.worker(1, named, all_pieces(1, Ending::Finish(Stop))).await;
    let start = limits("m", &Value::Null, &json!(7000), &Value::Null);
    assert_eq!(harness.get(PATH).await.json(), json!({ "thresholds": [start] }));
    // What says nothing reads, explicit nulls included (R09).
    for body in [json!({"model": "m"}), limits("m", &Value::Null, &Value::Null, &Value::Null)] {
        assert_eq!(harness.post(PATH, &body).await.json(), start);
    }
    let reply = harness.post(PATH, &json!({"model": "alias", "active_decode_blocks_threshold": 0.85})).await;
    assert_eq!(reply.json(), limits("m", &json!(0.85), &json!(7000), &Value::Null));
    let reply = harness.post(PATH, &json!({"model": "m", "active_prefill_tokens_threshold_frac": 1.5})).await;
    let set = limits("m", &json!(0.85), &json!(7000), &json!(1.5));
    assert_eq!(reply.json(), set);
    assert_eq!(harness.post(PATH, &json!({"model": "m"})).await.json(), set);
    // A model that is not there yet has its limits when it comes.
    let later = limits("later", &Value::Null, &json!(0), &Value::Null);
    let reply = harness.post(PATH, &json!({"model": "later", "active_prefill_tokens_threshold": 0})).await;
    assert_eq!((reply.status, reply.json()), (200, later.clone()));
    assert_eq!(harness.get(PATH).await.json(), json!({ "thresholds": [later, set] }));
    let hang: Behaviour = Arc::new(|_| Ok((vec![], Ending::Hang)));
    let worker = harness.worker(2, card("later", &[b"ok"]), hang).await;
    let mut client = Client::connect(harness.address).await;
    let body = json!({"model": "later", "prompt": "x"});
    client.send("POST", "/v1/completions", &[], body.to_string().as_bytes()).await;
    eventually("it is placed", || worker.open() == 1).await;
    assert_eq!(harness.post("/v1/completions", &body).await.status, 529);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn senseless_limits_are_refused_and_change_nothing() {
    let harness = Harness::new().await;
    let _worker = harness.script(&[b"ok"], Ending::Finish(Stop)).await;
    for (bad, named) in [
        (json!({"model": "m", "active_decode_blocks_threshold": 1.1}), "between 0 and 1, found 1.1"),
        (json!({"model": "m", "active_decode_blocks_threshold": -0.1}), "active_decode_blocks_threshold"),
        (
            json!({"model": "m", "active_decode_blocks_threshold": "half"}),
            "threshold must be a number, found \"half\"",
        ),
        (
            json!({"model": "m", "active_prefill_tokens_threshold": -1}),
            "tokens_threshold must be a whole number of at least 0, found -1",
        ),
        (
            json!({"model": "m", "active_prefill_tokens_threshold": 1.5}),
            "tokens_threshold must be a whole number of at least 0, found 1.5",
        ),
        (json!({"model": ["m"]}), "model must be a string"),
        (json!({"model": "m", "x".repeat(5000): 1}), "unknown field `xxx"),
        (json!({"model": "m", "active_decode_blocks_threshold": "x".repeat(5000)}), "found \"xxx"),
        (json!({"model": "m", "active_prefill_tokens_threshold_frac": -1}), "threshold_frac"),
        (json!({"model": "m", "active_decode_block_threshold": 0.5}), "active_decode_block_threshold"),
        (json!({"active_decode_blocks_threshold": 0.5}), "model"),
        (json!({"model": ""}), "model"),
        (json!({"model": "x".repeat(513)}), "513"),
        (json!([]), "JSON object"),
    ] {
        let reply = harness.post(PATH, &bad).await;
        assert_eq!(reply.status, 400, "{bad}");
        let text = reply.json()["error"].as_str().unwrap().to_owned();
        assert!(text.contains(named) && text.len() < 300, "{bad}: {text}");
    }
    // Nobody needs so much to say so little.
    let long = format!("{{\"model\": \"m\"}}{}", " ".repeat(16 * 1024));
    let mut client = Client::connect(harness.address).await;
    let reply = client.ask("POST", PATH, &[], long.as_bytes()).await;
    assert_eq!(reply.status, 413, "{}", reply.text());
    let nothing = limits("m", &Value::Null, &Value::Null, &Value::Null);
    assert_eq!(harness.get(PATH).await.json(), json!({ "thresholds": [nothing] }));
    let mut client = Client::connect(harness.address).await;
    let reply = client.ask("DELETE", PATH, &[], b"").await;
    assert_eq!((reply.status, reply.header("allow")), (405, Some("GET, HEAD, POST")));
    assert!(reply.json()["error"].is_string());
}

/// Names are the client's: those that nobody serves cannot keep an operator from setting limits for those that are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_nobody_serves_fill_only_their_own_room() {
    let harness = Harness::new().await;
    let _worker = harness.script(&[b"ok"], Ending::Finish(Stop)).await;
    let mut client = Client::connect(harness.address).await;
    let mut statuses = Vec::new();
    for name in
        (0..1026).map(|index| format!("nobody-{index}")).chain(["m".to_owned(), "nobody-0".to_owned()])
    {
        let body = limits(&name, &json!(0.5), &Value::Null, &Value::Null).to_string();
        statuses.push(client.ask("POST", PATH, &[], body.as_bytes()).await.status);
    }
    let mut expected = vec![200; 1024];
    expected.extend([400, 400, 200, 200]);
    assert_eq!(statuses, expected);
}

/// Whatever name a model was given before it came.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_wait_for_their_model_under_an_alias_too() {
    let harness = Harness::new().await;
    let set = limits("alias", &json!(0.5), &Value::Null, &Value::Null);
    assert_eq!(harness.post(PATH, &set).await.status, 200);
    let mut named = card("m", &[b"ok"]);
    named.aliases.push("alias".into());
    let _worker = harness.worker(1, named, all_pieces(1, Ending::Finish(Stop))).await;
    let set = limits("m", &json!(0.5), &Value::Null, &Value::Null);
    assert_eq!(harness.get(PATH).await.json(), json!({ "thresholds": [set] }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_can_be_switched_off() {
    let settings = Config { disable_admin_api: true, ..config() };
    let harness = Harness::with(settings, dynamo_router::Config::default()).await;
    let _worker = harness.script(&[b"ok"], Ending::Finish(Stop)).await;
    assert_eq!(harness.get("/openapi.json").await.json()["paths"].get(PATH), None);
    assert_eq!(harness.get(PATH).await.status, 404);
    assert_eq!(harness.post(PATH, &json!({"model": "m"})).await.status, 404);
}

/// Queues that are full are passed over as long as another has room, and then refuse with the same words; in every mode.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_queues_of_engines_are_tried_elsewhere_and_then_refused_in_every_mode() {
    for mode in Mode::ALL {
        let router = dynamo_router::Config { mode, ..Default::default() };
        let harness = Harness::with(config(), router).await;
        let full: Behaviour =
            Arc::new(|_| Err(Error::overloaded("the engine's queue is full").with_retry_after_s(2)));
        let mut workers = vec![harness.worker(1, card("m", &[b"ok"]), full.clone()).await];
        for (route, stream) in ALL_ROUTES {
            let reply = harness.post(route, &ask(route, stream, "x", json!({}))).await;
            assert_eq!(reply.status, 529, "{mode} {route}: {}", reply.text());
            assert!(reply.header("retry-after").is_some(), "{mode} {route}");
        }
        workers.push(harness.worker(2, card("m", &[b"ok"]), full).await);
        let roomy = harness.worker(3, card("m", &[b"ok"]), all_pieces(1, Ending::Finish(Stop))).await;
        for (route, stream) in ALL_ROUTES {
            let reply = harness.post(route, &ask(route, stream, "x", json!({}))).await;
            assert_eq!(reply.status, 200, "{mode} {route}: {}", reply.text());
        }
        assert_eq!(roomy.requests().len(), ALL_ROUTES.len(), "{mode}");
        // A full queue is no fault of its worker.
        let suspended = harness.get("/status.json").await.json();
        let suspended =
            suspended["workers"].as_array().unwrap().iter().filter(|worker| worker["suspended"] == true);
        assert_eq!(suspended.count(), 0, "{mode}");
        harness.balanced().await;
    }
}

/// The router as a service sheds as the frontend does, in every mode.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_selection_service_sheds_in_every_mode() {
    for mode in Mode::ALL {
        let router =
            dynamo_router::Config { mode, active_prefill_tokens_threshold: Some(100), ..Default::default() };
        let selection = SelectionConfig { port: 0, ..SelectionConfig::default() };
        let harness = Harness::router(config(), selection, router).await;
        let mut workers = Vec::new();
        for id in 1..=2 {
            workers.push(harness.worker(id, card("m", &[b"ok"]), all_pieces(1, Ending::Finish(Stop))).await);
        }
        let call = |number: u32| {
            let tokens: Vec<u32> = (0..160).map(|at| (number * 50 + at) % 256).collect();
            json!({"model_name": "m", "token_ids": tokens, "request_id": format!("r{number}")})
        };
        let mut chosen = Vec::new();
        for number in 0..2 {
            let reply = harness.post("/select_and_reserve", &call(number)).await;
            assert!((200..300).contains(&reply.status), "{mode}: {}", reply.text());
            chosen.push(reply.json()["worker_id"].as_u64().unwrap());
        }
        chosen.sort_unstable();
        assert_eq!(chosen, [1, 2], "{mode}: a busy worker is passed over");
        for path in ["/select", "/select_and_reserve"] {
            let reply = harness.post(path, &call(3)).await;
            assert_eq!(
                (reply.status, reply.header("retry-after").is_some()),
                (529, true),
                "{mode} {path}: {}",
                reply.text()
            );
        }
        assert!(harness.metric("dynamo_frontend_router_admission_rejected_total", &[]).await >= 2.0);
        drop(workers);
    }
}
