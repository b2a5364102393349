//! R25, R27-R29, R35: which models can be asked for, and when.

use crate::client::{Client, PATIENCE, get};
use crate::harness::{Behaviour, Ending, Harness, ROUTES, all_pieces, ask, card, config, eventually, read};
use dynamo_frontend::Config;
use dynamo_types::FinishReason::Stop;
use dynamo_types::{BlockContract, InstanceId, SpecialTokens, TokenizerSpec};
use serde_json::{Value, json};
use std::sync::Arc;

const STOPPED: Ending = Ending::Finish(Stop);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r28_listed_means_routable_now() {
    let harness = Harness::new().await;
    let health = harness.get("/health").await;
    assert_eq!((health.status, &health.json()["status"]), (503, &json!("not_ready")));
    assert!(health.json()["message"].is_string());
    let mut client = Client::connect(harness.address).await;
    for round in 0..50u64 {
        let name = format!("model-{round}");
        let worker = harness.start_worker(round, card(&name, &[b"ok"]), all_pieces(1, STOPPED)).await;
        loop {
            let list = client.ask("GET", "/v1/models", &[], b"").await.json();
            let listed = list["data"].as_array().unwrap().iter().any(|model| model["id"] == json!(name));
            if listed {
                break;
            }
        }
        let (route, stream) = ROUTES[(round % 4) as usize];
        let body = ask(route, stream, "x", json!({"model": name})).to_string();
        assert_eq!(read(&client.ask("POST", route, &[], body.as_bytes()).await, 0).0, "ok", "round {round}");
        let ready = client.ask("GET", &format!("/v1/models/{name}/ready"), &[], b"").await;
        assert_eq!((ready.status, &ready.json()["ready"]), (200, &json!(true)));
        assert_eq!(client.ask("GET", "/health", &[], b"").await.status, 200);
        drop(worker);
        eventually("the model is gone from the list", || !harness.frontend.models().contains(&name)).await;
        let ready = client.ask("GET", &format!("/v1/models/{name}/ready"), &[], b"").await;
        assert!(ready.status == 503 || ready.status == 404, "{}", ready.text());
        let late = client.ask("POST", route, &[], body.as_bytes()).await;
        assert!(late.status == 503 || late.status == 404, "{}", late.text());
        assert_eq!(client.ask("GET", "/live", &[], b"").await.status, 200);
    }
    assert_eq!(harness.get("/health").await.status, 503);
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn model_routes_take_names_with_slashes_and_aliases() {
    let harness = Harness::new().await;
    let mut named = card("org/model-1", &[b"ok"]);
    named.aliases = vec!["short".into()];
    let _worker = harness.worker(1, named, all_pieces(1, STOPPED)).await;
    for path in ["/v1/models/org/model-1", "/v1/models/org%2Fmodel-1", "/v1/models/short"] {
        let model = harness.get(path).await.json();
        assert_eq!(model["id"], "org/model-1", "{path}");
        assert_eq!((&model["object"], &model["created"]), (&json!("model"), &json!(1_700_000_000)));
        assert_eq!(harness.get(&format!("{path}/ready")).await.json()["ready"], json!(true));
    }
    let reply = harness.post(ROUTES[0].0, &ask(ROUTES[0].0, false, "x", json!({"model": "short"}))).await;
    assert_eq!(reply.json()["model"], "org/model-1");
    for path in ["/v1/models/none", "/v1/models/none/ready", "/v1/models/org"] {
        let reply = harness.get(path).await;
        assert_eq!((reply.status, &reply.error()["code"]), (404, &json!("model_not_found")), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r27_a_draining_worker_gets_nothing_new_and_finishes_what_it_has() {
    let harness = Harness::new().await;
    let slow: Behaviour = Arc::new(|_| all_pieces(1, Ending::Hang)(&blank()));
    let leaving = harness.worker(1, card("m", &[b"ok"]), slow).await;
    let mut running = Client::connect(harness.address).await;
    running
        .send("POST", ROUTES[1].0, &[], ask(ROUTES[1].0, true, "x", json!({})).to_string().as_bytes())
        .await;
    running.read_until("ok").await;
    leaving.registration.as_ref().unwrap().set_draining();
    eventually("the model is not listed", || harness.frontend.models().is_empty()).await;
    let reply = harness.post(ROUTES[0].0, &ask(ROUTES[0].0, false, "x", json!({}))).await;
    assert_eq!((reply.status, reply.header("retry-after").is_some()), (503, true), "{}", reply.text());
    let staying = harness.worker(2, card("m", &[b"ok"]), all_pieces(1, STOPPED)).await;
    for _ in 0..100 {
        harness.post(ROUTES[2].0, &ask(ROUTES[2].0, false, "x", json!({}))).await;
    }
    assert_eq!((leaving.requests().len(), staying.requests().len()), (1, 100));
    assert_eq!(leaving.open(), 1);
    drop(running);
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_finds_itself_ill_is_shown_and_gets_nothing_until_it_is_well() {
    let harness = Harness::new().await;
    let ill = harness.worker(1, card("m", &[b"ok"]), all_pieces(1, STOPPED)).await;
    let well = harness.worker(2, card("m", &[b"ok"]), all_pieces(1, STOPPED)).await;
    let shown = async |fault: Value| {
        let limit = tokio::time::Instant::now() + PATIENCE;
        while harness.get("/health").await.json()["instances"][0]["fault"] != fault {
            assert!(tokio::time::Instant::now() < limit, "{fault} is not shown");
        }
    };
    ill.registration.as_ref().unwrap().set_fault(Some("it coughs"));
    shown(json!("it coughs")).await;
    for _ in 0..30 {
        harness.post(ROUTES[2].0, &ask(ROUTES[2].0, false, "x", json!({}))).await;
    }
    assert_eq!((ill.requests().len(), well.requests().len()), (0, 30));
    well.registration.as_ref().unwrap().set_fault(Some("it coughs too"));
    eventually("nobody is left", || harness.frontend.models().is_empty()).await;
    let reply = harness.post(ROUTES[0].0, &ask(ROUTES[0].0, false, "x", json!({}))).await;
    assert_eq!(reply.status, 503, "{}", reply.text());
    ill.registration.as_ref().unwrap().set_fault(None);
    shown(Value::Null).await;
    let reply = harness.post(ROUTES[2].0, &ask(ROUTES[2].0, false, "x", json!({}))).await;
    assert_eq!((reply.status, ill.requests().len()), (200, 1));
    harness.balanced().await;
}

fn blank() -> dynamo_types::Request {
    dynamo_types::Request {
        id: "blank".into(),
        model: "m".into(),
        tokens: Arc::from([1u32]),
        resumed: 0,
        task: Default::default(),
        sampling: Default::default(),
        stopping: Default::default(),
        guide: None,
        thinking: None,
        output: Default::default(),
        routing: Default::default(),
        trace: None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r25_one_broken_model_leaves_the_others() {
    let harness = Harness::new().await;
    let mut broken = card("broken", &[]);
    broken.tokenizer = TokenizerSpec::HuggingFace { json: "{not json".into() };
    let _broken = harness.start_worker(1, broken, all_pieces(0, STOPPED)).await;
    let mut workers = Vec::new();
    for id in 2..6 {
        workers.push(harness.worker(id, card(&format!("m{id}"), &[b"ok"]), all_pieces(1, STOPPED)).await);
    }
    assert_eq!(harness.frontend.models(), ["m2", "m3", "m4", "m5"]);
    let body = ask(ROUTES[2].0, false, "x", json!({"model": "broken"}));
    let mut reply = harness.post(ROUTES[2].0, &body).await;
    while reply.text().contains("being loaded") {
        reply = harness.post(ROUTES[2].0, &body).await;
    }
    assert_eq!(reply.status, 503);
    assert!(reply.error()["message"].as_str().unwrap().contains("tokenizer"), "{}", reply.text());
    drop(workers);
    eventually("the others leave", || harness.frontend.models().is_empty()).await;
    let health = harness.get("/health").await.json();
    assert!(health["message"].as_str().unwrap().contains("model broken cannot be served"), "{health}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r35_workers_that_differ_are_refused_and_the_reason_is_shown() {
    let harness = Harness::new().await;
    let _first = harness.worker(1, card("m", &[b"ok"]), all_pieces(1, STOPPED)).await;
    let mut other = card("m", &[b"no"]);
    other.special = SpecialTokens { eos: vec![7], ..SpecialTokens::default() };
    let second = harness.start_worker(2, other, all_pieces(1, STOPPED)).await;
    let mut health = harness.get("/health").await.json();
    while health["refused"].is_null() {
        health = harness.get("/health").await.json();
    }
    assert_eq!(health["refused"][0]["instance_id"], 2);
    assert!(health["refused"][0]["reason"].as_str().unwrap().contains("tokenizer"), "{health}");
    for _ in 0..10 {
        let reply = harness.post(ROUTES[2].0, &ask(ROUTES[2].0, false, "x", json!({}))).await;
        assert_eq!(read(&reply, 0).0, "ok");
    }
    assert!(second.requests().is_empty());
    drop(second);
    eventually("it is forgotten", || harness.frontend.ledger().booked.len() == 1).await;
    // The block contract is checked where workers register already.
    let mut blocks = card("m", &[b"ok"]);
    blocks.blocks = BlockContract::xxh3(64);
    let record = dynamo_types::ModelRecord {
        instance: dynamo_types::Instance {
            namespace: "other".into(),
            component: "backend".into(),
            endpoint: "generate".into(),
            id: InstanceId(3),
            transport: dynamo_types::Transport::InProcess,
            draining: false,
            fault: None,
        },
        card: Arc::new(blocks),
    };
    use dynamo_runtime::discovery::Discovery;
    let _registered = harness.discovery.register(record).await.unwrap();
    let mut health = harness.get("/health").await.json();
    while health["refused"].as_array().is_none_or(|refused| refused[0]["instance_id"] != 3) {
        health = harness.get("/health").await.json();
    }
    let reason = health["refused"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("16") && reason.contains("64"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r29_a_drain_finishes_what_runs_and_refuses_the_rest() {
    // An address of this test's own: on the common one a neighbour may take the port as soon as it is free.
    let settings = Config { host: "127.0.0.29".to_owned(), ..config() };
    let harness = Harness::with(settings, dynamo_router::Config::default()).await;
    let worker = harness.worker(1, card("m", &[b"ok"]), all_pieces(1, Ending::Hang)).await;
    let mut running = Client::connect(harness.address).await;
    running
        .send("POST", ROUTES[3].0, &[], ask(ROUTES[3].0, true, "x", json!({})).to_string().as_bytes())
        .await;
    running.read_until("ok").await;
    let mut kept = Client::connect(harness.address).await;
    assert_eq!(kept.ask("GET", "/live", &[], b"").await.status, 200);
    let (address, frontend) = (harness.address, harness.frontend);
    frontend.begin_drain();
    let body = ask(ROUTES[2].0, false, "x", json!({})).to_string();
    let refused = kept.ask("POST", ROUTES[2].0, &[], body.as_bytes()).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")));
    assert_eq!(refused.header("connection"), Some("close"));
    let health = get(address, "/health").await;
    assert_eq!((health.status, &health.json()["status"]), (503, &json!("draining")));
    assert_eq!(get(address, "/live").await.status, 200);
    let drained = tokio::spawn(frontend.drain());
    assert_eq!(worker.open(), 1, "what runs goes on");
    drop(running);
    assert!(drained.await.unwrap(), "everything finished by itself");
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
    eventually("the engine is told", || worker.open() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r29_streams_end_with_an_error_at_the_deadline() {
    let settings = Config { drain_deadline_ms: 20, ..config() };
    let harness = Harness::with(settings, dynamo_router::Config::default()).await;
    let worker = harness.worker(1, card("m", &[b"ok"]), all_pieces(1, Ending::Hang)).await;
    let mut clients = Vec::new();
    for _ in 0..20 {
        let mut client = Client::connect(harness.address).await;
        client
            .send("POST", ROUTES[1].0, &[], ask(ROUTES[1].0, true, "x", json!({})).to_string().as_bytes())
            .await;
        client.read_until("ok").await;
        clients.push(client);
    }
    let mut unary = Client::connect(harness.address).await;
    unary
        .send("POST", ROUTES[0].0, &[], ask(ROUTES[0].0, false, "x", json!({})).to_string().as_bytes())
        .await;
    eventually("all run", || worker.open() == 21).await;
    assert!(!harness.frontend.drain().await);
    for mut client in clients {
        let events = client.reply("POST").await.events();
        assert!(events[events.len() - 2].contains("shutting down"), "{events:?}");
        assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    }
    assert_eq!(unary.reply("POST").await.status, 503);
    eventually("the engine is told", || worker.open() == 0).await;
}
