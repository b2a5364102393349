//! The page for people, and the numbers it shows.

use crate::client::Client;
use crate::harness::{Ending, Harness, ROUTES, all_pieces, ask, card, eventually};
use dynamo_types::FinishReason::Stop;
use dynamo_types::{SpecialTokens, TokenizerSpec};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_needs_nothing_from_elsewhere() {
    let harness = Harness::new().await;
    let mut client = Client::connect(harness.address).await;
    let page = client.ask("GET", "/", &[], b"").await;
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; "), "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    let nonce = policy.split_once("script-src 'nonce-").unwrap().1.split_once('\'').unwrap().0.to_owned();
    assert_eq!(page.text().matches(&format!("nonce=\"{nonce}\"")).count(), 2);
    let again = client.ask("GET", "/", &[], b"").await;
    assert!(!again.text().contains(&nonce), "a nonce is used once");
    let head = client.ask("HEAD", "/", &[], b"").await;
    assert_eq!(head.header("content-length"), page.header("content-length"));
}

async fn status(harness: &Harness) -> Value {
    let reply = harness.get("/status.json").await;
    assert_eq!(reply.status, 200);
    reply.json()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_counts_what_happens() {
    let harness = Harness::new().await;
    let empty = status(&harness).await;
    assert_eq!(
        (&empty["models"], &empty["workers"], &empty["state"]),
        (&json!([]), &json!([]), &json!("serving"))
    );
    let worker =
        harness.worker(u64::MAX, card("m", &[b"a", b"b"]), all_pieces(2, Ending::Finish(Stop))).await;
    let mut wordless = card("wordless", &[b"x"]);
    wordless.chat_template = None;
    let waiting = harness.worker(2, wordless, all_pieces(1, Ending::Hang)).await;
    for (route, stream) in ROUTES {
        assert_eq!(harness.post(route, &ask(route, stream, "hello", json!({}))).await.status, 200);
    }
    harness.balanced().await;
    let now = status(&harness).await;
    let model = &now["models"][0];
    assert_eq!(
        (&model["name"], &model["state"], &model["chat"], &model["workers"]),
        (&json!("m"), &json!("ready"), &json!(true), &json!(1))
    );
    assert_eq!(
        (&model["answered"], &model["output_tokens"], &model["first_tokens"]),
        (&json!(4), &json!(8), &json!(4))
    );
    assert_eq!((&model["live_requests"], &model["live_streams"]), (&json!(0), &json!(0)));
    let prompts: usize = worker.requests().iter().map(|request| request.tokens.len()).sum();
    assert_eq!(
        (&model["answered_prompt_tokens"], &model["answered_cached_tokens"]),
        (&json!(prompts), &json!(0))
    );
    assert!(model["first_token_seconds"].as_f64().unwrap() > 0.0);
    assert_eq!(now["models"][1]["chat"], json!(false));
    // All 64 bits of an id survive.
    let ids: Vec<&Value> = now["workers"].as_array().unwrap().iter().map(|worker| &worker["id"]).collect();
    assert!(ids.contains(&&json!(u64::MAX.to_string())), "{ids:?}");
    // One stream and one whole answer, both waiting.
    let mut open = Vec::new();
    for (route, stream) in [ROUTES[2], ROUTES[3]] {
        let mut client = Client::connect(harness.address).await;
        let body = ask(route, stream, "hello", json!({"model": "wordless"})).to_string();
        client.send("POST", route, &[], body.as_bytes()).await;
        open.push(client);
    }
    eventually("both run", || waiting.open() == 2).await;
    let busy = &status(&harness).await["models"][1];
    assert_eq!((&busy["live_requests"], &busy["live_streams"]), (&json!(2), &json!(1)));
    drop(open);
    harness.balanced().await;
    let idle = &status(&harness).await["models"][1];
    assert_eq!((&idle["live_requests"], &idle["live_streams"]), (&json!(0), &json!(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_shows_what_is_wrong() {
    let harness = Harness::new().await;
    let mut broken = card("broken", &[]);
    broken.tokenizer = TokenizerSpec::HuggingFace { json: "{not json".into() };
    let _broken = harness.start_worker(1, broken, all_pieces(0, Ending::Finish(Stop))).await;
    let _first = harness.worker(2, card("m", &[b"ok"]), all_pieces(1, Ending::Finish(Stop))).await;
    let mut other = card("m", &[b"ok"]);
    other.special = SpecialTokens { eos: vec![7], ..SpecialTokens::default() };
    let _other = harness.start_worker(3, other, all_pieces(1, Ending::Finish(Stop))).await;
    let mut now = status(&harness).await;
    while now["models"][0]["state"] != "broken" || now["refused"] == json!([]) {
        now = status(&harness).await;
    }
    assert!(now["models"][0]["reason"].is_string(), "{now}");
    assert_eq!((&now["refused"][0]["id"], &now["refused"][0]["model"]), (&json!("3"), &json!("m")));
    harness.frontend.begin_drain();
    assert_eq!(status(&harness).await["state"], "draining");
}
