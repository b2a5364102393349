//! `/v1/embeddings`.

use crate::client::Client;
use crate::harness::{Behaviour, Ending, Harness, all_pieces, card, eventually};
use dynamo_types::{Class, Delta, FinishReason, ModelCard, Task};
use serde_json::{Value, json};
use std::sync::Arc;

const STOPPED: Ending = Ending::Finish(FinishReason::Stop);
const CONTEXT: u32 = 10;

fn embedder() -> ModelCard {
    let mut card = card("m", &[b"ok"]);
    card.tasks = vec![Task::Embed];
    card.embedding_size = Some(2);
    card.context_length = CONTEXT;
    card
}

/// The first token and the number of tokens.
fn vectors() -> Behaviour {
    Arc::new(|request| {
        let embedding = Some(vec![request.tokens[0] as f32, request.tokens.len() as f32]);
        Ok((vec![Delta { embedding, cached_tokens: Some(0), ..Delta::default() }], STOPPED))
    })
}

fn ask(input: &Value) -> Value {
    json!({"model": "m", "input": input})
}

fn floats(reply: &Value) -> Vec<[f64; 2]> {
    let data = reply["data"].as_array().unwrap().iter().enumerate();
    data.map(|(index, entry)| {
        assert_eq!((&entry["object"], &entry["index"]), (&json!("embedding"), &json!(index)));
        [0, 1].map(|at| entry["embedding"][at].as_f64().unwrap())
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_input_gets_its_vector_in_order() {
    let harness = Harness::new().await;
    let worker = harness.worker(1, embedder(), vectors()).await;
    for (input, expected) in [
        (json!("abc"), vec![[97.0, 3.0]]),
        (json!(["b", "cd", "0123456789"]), vec![[98.0, 1.0], [99.0, 2.0], [48.0, 10.0]]),
        (json!([7, 8]), vec![[7.0, 2.0]]),
        (json!([[5], [6, 7, 8]]), vec![[5.0, 1.0], [6.0, 3.0]]),
    ] {
        let reply = harness.post("/v1/embeddings", &ask(&input)).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let reply = reply.json();
        assert_eq!(floats(&reply), expected, "{input}");
        let total = expected.iter().map(|vector| vector[1] as u64).sum::<u64>();
        assert_eq!(reply["usage"], json!({"prompt_tokens": total, "total_tokens": total}));
        assert_eq!((&reply["object"], &reply["model"]), (&json!("list"), &json!("m")));
    }
    assert!(
        worker
            .requests()
            .iter()
            .all(|request| request.task == Task::Embed && request.stopping.max_tokens == 0)
    );
    let mut base64 = ask(&json!([1, 1, 1]));
    base64["encoding_format"] = json!("base64");
    base64["dimensions"] = json!(2);
    base64["user"] = json!("u");
    let reply = harness.post("/v1/embeddings", &base64).await.json();
    // Computed with Python's base64 and struct modules: 1.0 and 3.0.
    assert_eq!(reply["data"][0]["embedding"], "AACAPwAAQEA=");
    // More than are on their way at once, and more than an engine's queue would take.
    let many: Vec<Value> = (0..2048).map(|i| json!([i % 200, i % 7])).collect();
    let reply = harness.post("/v1/embeddings", &ask(&json!(many))).await;
    let expected: Vec<[f64; 2]> = (0..2048).map(|i| [f64::from(i % 200), 2.0]).collect();
    assert_eq!(floats(&reply.json()), expected);
    let parts = [r#"endpoint="embeddings""#, r#"status="success""#];
    assert!(harness.metric("dynamo_frontend_requests_total", &parts).await >= 6.0);
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_embedded_is_refused_by_name() {
    let harness = Harness::new().await;
    let worker = harness.worker(1, embedder(), vectors()).await;
    let with = |field: &str, value: Value| {
        let mut body = ask(&json!("a"));
        body[field] = value;
        body
    };
    for (body, status, words) in [
        (ask(&json!("01234567890")), 400, ["11", "10"]),
        (ask(&json!(["a", "01234567890"])), 400, ["11", "10"]),
        (ask(&json!([9999])), 400, ["9999", "vocabulary"]),
        (ask(&json!("")), 400, ["input", "empty"]),
        (with("dimensions", json!(1)), 400, ["dimensions", "2"]),
        (with("encoding_format", json!("hex")), 400, ["encoding_format", "hex"]),
        (json!({"model": "m"}), 400, ["input", ""]),
        (with("model", json!("other")), 404, ["other", ""]),
    ] {
        let reply = harness.post("/v1/embeddings", &body).await;
        assert_eq!(reply.status, status, "{body}: {}", reply.text());
        let text = reply.text();
        assert!(words.iter().all(|word| text.contains(word)), "{body}: {text}");
    }
    assert!(worker.requests().is_empty());
    // A worker that only embeds writes no text.
    for (route, prompt) in
        [("/v1/completions", json!("a")), ("/v1/chat/completions", json!([{"role": "user", "content": "a"}]))]
    {
        let field = if route == "/v1/completions" { "prompt" } else { "messages" };
        let reply = harness.post(route, &json!({"model": "m", field: prompt})).await;
        assert_eq!((reply.status, &reply.error()["code"]), (501, &json!("unsupported_task")), "{route}");
    }
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_workers_that_embed_are_asked() {
    let harness = Harness::new().await;
    let mut plain = embedder();
    plain.tasks = vec![Task::Generate];
    plain.embedding_size = None;
    let writer = harness.worker(1, plain, all_pieces(1, STOPPED)).await;
    let reply = harness.post("/v1/embeddings", &ask(&json!("a"))).await;
    assert_eq!((reply.status, &reply.error()["code"]), (501, &json!("unsupported_task")));
    let embedder = harness.worker(2, embedder(), vectors()).await;
    for _ in 0..20 {
        assert_eq!(harness.post("/v1/embeddings", &ask(&json!("a"))).await.status, 200);
        let body = json!({"model": "m", "prompt": "a", "max_tokens": 1});
        assert_eq!(harness.post("/v1/completions", &body).await.status, 200);
    }
    assert!(writer.requests().iter().all(|request| request.task == Task::Generate));
    assert_eq!((writer.requests().len(), embedder.requests().len()), (20, 20));
    // Pinned to the other one, which will never do it.
    let pin = |worker: u64| json!({"backend_instance_id": worker});
    let mut client = Client::connect(harness.address).await;
    let headers = [("x-dynamo-worker-instance-id", "1")];
    let reply = client.ask("POST", "/v1/embeddings", &headers, ask(&json!("a")).to_string().as_bytes()).await;
    assert_eq!((reply.status, &reply.error()["code"]), (501, &json!("unsupported_task")), "{}", reply.text());
    for (worker, status) in [(1, 200), (2, 501)] {
        let body = json!({"model": "m", "prompt": "a", "max_tokens": 1, "nvext": pin(worker)});
        let reply = harness.post("/v1/completions", &body).await;
        assert_eq!(reply.status, status, "{}", reply.text());
    }
    // Embeddings find nothing cached, and say nothing about what could be.
    let rates = harness.metric("dynamo_component_router_kv_hit_rate_count", &[]).await;
    assert_eq!(rates, 21.0);
    // Whoever did it is leaving: later, and not never.
    embedder.registration.as_ref().unwrap().set_draining();
    for patience in 0.. {
        let reply = harness.post("/v1/embeddings", &ask(&json!("a"))).await;
        if reply.status == 503 {
            assert_eq!(
                (&reply.error()["code"], reply.header("retry-after")),
                (&json!("model_not_ready"), Some("1"))
            );
            break;
        }
        assert!(reply.status == 200 && patience < 1000, "{}", reply.text());
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    harness.balanced().await;
}

/// Under one name every vector has the same length, whoever came first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r35_embedders_of_another_length_are_refused() {
    let harness = Harness::new().await;
    let mut plain = embedder();
    plain.tasks = vec![Task::Generate];
    plain.embedding_size = None;
    let _writer = harness.worker(1, plain, all_pieces(1, STOPPED)).await;
    let _embedder = harness.worker(2, embedder(), vectors()).await;
    let mut other = embedder();
    other.embedding_size = Some(3);
    let _other = harness.start_worker(3, other, vectors()).await;
    eventually("it is refused", || harness.frontend.fault().is_some()).await;
    let fault = harness.frontend.fault().unwrap();
    assert!(fault.contains("embedding_size"), "{fault}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r21_a_client_that_leaves_cancels_all_its_inputs() {
    let harness = Harness::new().await;
    let hang: Behaviour =
        Arc::new(|_| Ok((vec![Delta { cached_tokens: Some(0), ..Delta::default() }], Ending::Hang)));
    let worker = harness.worker(1, embedder(), hang).await;
    let mut client = Client::connect(harness.address).await;
    let many: Vec<String> = (0..300).map(|i| i.to_string()).collect();
    let body = ask(&json!(many)).to_string();
    client.send("POST", "/v1/embeddings", &[("content-type", "application/json")], body.as_bytes()).await;
    eventually("some are open", || worker.open() > 50).await;
    assert!(worker.open() <= 128, "a window of the batch at a time");
    drop(client);
    eventually("all are cancelled", || worker.open() == 0).await;
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_of_one_input_is_the_answer() {
    let harness = Harness::new().await;
    let faulty: Behaviour = Arc::new(|request| match request.tokens[0] {
        98 => Err(dynamo_types::Error::client(Class::Invalid, "not this one")),
        token => {
            let embedding = Some(vec![token as f32, 0.0]);
            Ok((vec![Delta { embedding, cached_tokens: Some(0), ..Delta::default() }], STOPPED))
        }
    });
    let _worker = harness.worker(1, embedder(), faulty).await;
    let reply = harness.post("/v1/embeddings", &ask(&json!(["a", "b", "c"]))).await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert!(reply.text().contains("not this one"));
    harness.balanced().await;
}
