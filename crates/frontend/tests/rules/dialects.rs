//! The APIs of other dialects: errors in their own shapes, counts, and what is not there yet.

use crate::client::Client;
use crate::harness::{Behaviour, Ending, Harness, all_pieces, ask, card, config};
use crate::said::{message_of, response_of};
use dynamo_frontend::Config;
use dynamo_types::Error;
use dynamo_types::FinishReason::Stop;
use serde_json::{Value, json};
use std::sync::Arc;

const STOPPED: Ending = Ending::Finish(Stop);

/// An error as Anthropic's clients expect it.
fn fault(body: &Value) -> &str {
    assert_eq!(body["type"], "error", "{body}");
    assert!(body["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
    body["error"]["type"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anthropic_errors_have_their_own_shape_whatever_is_wrong() {
    let settings = Config { body_limit_bytes: 4096, ..config() };
    let harness = Harness::with(settings, dynamo_router::Config::default()).await;
    let full: Behaviour = Arc::new(|_| Err(Error::overloaded("full")));
    let _full = harness.worker(2, card("full", &[]), full).await;
    let _worker = harness.script(&[b"ok"], STOPPED).await;
    let mut client = Client::connect(harness.address).await;
    let good = ask("/v1/messages", false, "x", json!({})).to_string();
    let long = ask("/v1/messages", false, &"x".repeat(5000), json!({})).to_string();
    let lost = ask("/v1/messages", false, "x", json!({"model": "nobody"})).to_string();
    let full = ask("/v1/messages", false, "x", json!({"model": "full"})).to_string();
    let full_stream = ask("/v1/messages", true, "x", json!({"model": "full"})).to_string();
    let none: &[(&str, &str)] = &[];
    let plain: &[(&str, &str)] = &[("content-type", "text/plain")];
    for (method, path, headers, body, status, kind) in [
        ("POST", "/v1/messages/nope", none, &*good, 404, "not_found_error"),
        ("GET", "/v1/messages", none, "", 405, "invalid_request_error"),
        ("GET", "/v1/messages/count_tokens", none, "", 405, "invalid_request_error"),
        ("POST", "/v1/messages", none, &long, 413, "request_too_large"),
        ("POST", "/v1/messages/count_tokens", none, &long, 413, "request_too_large"),
        ("POST", "/v1/messages", plain, &good, 415, "invalid_request_error"),
        ("POST", "/v1/messages", none, "{", 400, "invalid_request_error"),
        ("POST", "/v1/messages", none, "{\"model\": \"m\"}", 400, "invalid_request_error"),
        ("POST", "/v1/messages", none, &lost, 404, "not_found_error"),
        ("POST", "/v1/messages", none, &full, 529, "overloaded_error"),
        ("POST", "/v1/messages", none, &full_stream, 529, "overloaded_error"),
    ] {
        let reply = client.ask(method, path, headers, body.as_bytes()).await;
        assert_eq!((reply.status, fault(&reply.json())), (status, kind), "{method} {path} {body}");
        if reply.header("connection") == Some("close") {
            client = Client::connect(harness.address).await;
        }
    }
    let reply = client.ask("POST", "/v1/responses/nope", &[], b"{}").await;
    assert_eq!(reply.error()["code"], "route_not_found");
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r06_faults_in_mid_stream_end_the_stream_in_its_own_words() {
    let harness = Harness::new().await;
    let _worker = harness.script(&[b"a", b"b"], Ending::Fail(Error::engine("broken\n\ndata: x"))).await;
    let reply = harness.post("/v1/messages", &ask("/v1/messages", true, "x", json!({}))).await;
    let events = reply.events();
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(fault(&last), "api_error", "{events:?}");
    let reply = harness.post("/v1/responses", &ask("/v1/responses", true, "x", json!({}))).await;
    let last = response_of(&reply);
    assert_eq!((&last["status"], &last["error"]["code"]), (&json!("failed"), &json!("server_error")));
    for route in ["/v1/messages", "/v1/responses"] {
        let reply = harness.post(route, &ask(route, false, "x", json!({}))).await;
        assert_eq!(reply.status, 500, "{route}");
    }
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_are_what_the_answers_say_and_ask_no_worker() {
    let harness = Harness::new().await;
    let worker = harness.script(&[b"ok"], STOPPED).await;
    for (route, count) in
        [("/v1/messages", "/v1/messages/count_tokens"), ("/v1/responses", "/v1/responses/input_tokens")]
    {
        let mut body = ask(count, false, "some words", json!({}));
        body.as_object_mut().unwrap().remove("stream");
        let counted = harness.post(count, &body).await;
        assert_eq!(counted.status, 200, "{}", counted.text());
        let requests = worker.requests().len();
        for stream in [false, true] {
            let reply = harness.post(route, &ask(route, stream, "some words", json!({}))).await;
            let whole = match (route, stream) {
                (_, false) => reply.json(),
                ("/v1/messages", true) => message_of(&reply),
                _ => response_of(&reply),
            };
            assert_eq!(whole["usage"]["input_tokens"], counted.json()["input_tokens"], "{whole}");
            assert_eq!(whole["usage"]["output_tokens"], 1);
        }
        assert_eq!(worker.requests().len(), requests + 2);
    }
    // A prompt without room for an answer can be counted.
    let mut short = card("short", &[]);
    short.context_length = 8;
    let _short = harness.worker(3, short, all_pieces(0, STOPPED)).await;
    let body = json!({"model": "short", "messages": [{"role": "user", "content": "much longer than that"}]});
    assert_eq!(harness.post("/v1/messages/count_tokens", &body).await.status, 200);
    for endpoint in ["messages", "messages_count_tokens", "responses", "responses_input_tokens"] {
        let parts = [format!("endpoint=\"{endpoint}\""), "status=\"success\"".to_owned()];
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        assert!(harness.metric("dynamo_frontend_requests_total", &parts).await >= 1.0, "{endpoint}");
    }
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_worker_does_is_501_with_what_is_missing() {
    let harness = Harness::new().await;
    let _worker = harness.script(&[b"ok"], STOPPED).await;
    let mut client = Client::connect(harness.address).await;
    for (method, path) in [
        ("POST", "/v1/images/generations"),
        ("POST", "/v1/images/edits"),
        ("POST", "/v1/videos"),
        ("POST", "/v1/videos/stream"),
        ("POST", "/v1/audio/speech"),
        ("GET", "/v1/realtime"),
        ("POST", "/v1/classify"),
        ("POST", "/v1/pooling"),
        ("POST", "/v1/rerank"),
    ] {
        let body: &[u8] = if method == "POST" { b"{}" } else { b"" };
        let reply = client.ask(method, path, &[], body).await;
        assert_eq!(reply.status, 501, "{path}");
        let error = reply.error();
        assert_eq!(error["code"], "not_implemented");
        assert!(error["message"].as_str().unwrap().contains("needs a worker"), "{error}");
    }
}
