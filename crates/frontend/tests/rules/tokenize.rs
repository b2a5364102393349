//! `/tokenize` and `/detokenize`.

use crate::harness::{Ending, FIRST_PIECE, Harness, all_pieces, ask, card, config};
use dynamo_frontend::Config;
use dynamo_types::FinishReason::Stop;
use dynamo_types::draw;
use serde_json::{Value, json};

const STOPPED: Ending = Ending::Finish(Stop);

fn ids(reply: &Value) -> Vec<u32> {
    reply["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_those_that_the_worker_gets() {
    let harness = Harness::new().await;
    let mut other = card("m", &[b"ok", b"<s>"]);
    other.special.bos = Some(FIRST_PIECE + 1);
    other.special.add_bos = true;
    let worker = harness.worker(1, other, all_pieces(1, STOPPED)).await;
    let messages = json!([{"role": "user", "content": "h\u{e9}llo"}]);
    for (route, body) in [
        ("/v1/completions", json!({"model": "m", "prompt": "h\u{e9}llo"})),
        ("/v1/chat/completions", json!({"model": "m", "messages": messages})),
    ] {
        assert_eq!(harness.post(route, &body).await.status, 200);
        let sent = worker.requests().last().unwrap().tokens.to_vec();
        let reply = harness.post("/tokenize", &body).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let reply = reply.json();
        assert_eq!(ids(&reply), sent, "{route}");
        assert_eq!((&reply["count"], &reply["max_model_len"]), (&json!(sent.len()), &json!(1_000_000)));
        assert_eq!(reply["token_strs"], Value::Null);
    }
    let bare = json!({"prompt": "ab", "add_special_tokens": false, "return_token_strs": true});
    let reply = harness.post("/tokenize", &bare).await.json();
    assert_eq!((ids(&reply), &reply["token_strs"]), (vec![97, 98], &json!(["a", "b"])));
    let wrapped = harness.post("/tokenize", &json!({"prompt": "ab"})).await.json();
    assert_eq!(ids(&wrapped), [FIRST_PIECE + 1, 97, 98]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_survive_the_round_trip() {
    let harness = Harness::new().await;
    let _worker = harness.worker(1, card("m", &[b"ok"]), all_pieces(1, STOPPED)).await;
    let alphabet: Vec<char> =
        "ab \n\t\"\\\0\u{7f}\u{e9}\u{ac00}\u{1f468}\u{200d}\u{1f469}\u{fffd}\u{202e}<>".chars().collect();
    for case in 0..200u64 {
        // Beyond the size that is worked on in place, too.
        let length = if case % 20 == 0 { 9000 } else { draw::index(7, case, 40) };
        let text: String =
            (0..length).map(|at| alphabet[draw::index(case, at as u64, alphabet.len())]).collect();
        let body = json!({"prompt": text, "add_special_tokens": false});
        let tokens = ids(&harness.post("/tokenize", &body).await.json());
        let reply = harness.post("/detokenize", &json!({"tokens": tokens})).await;
        assert_eq!(reply.json(), json!({"prompt": text}), "case {case}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistakes_name_the_field() {
    let settings = Config { body_limit_bytes: 10_000, ..config() };
    let harness = Harness::with(settings, dynamo_router::Config::default()).await;
    let reply = harness.post("/tokenize", &json!({"prompt": "x"})).await;
    assert_eq!(reply.status, 503, "no model yet: {}", reply.text());
    let mut wordless = card("m", &[b"ok"]);
    wordless.chat_template = None;
    let _worker = harness.worker(1, wordless, all_pieces(1, STOPPED)).await;
    let chat = ask("/v1/chat/completions", false, "x", json!({}));
    for (path, body, status, param) in [
        ("/tokenize", json!({}), 400, "prompt"),
        ("/tokenize", json!({"prompt": 1}), 400, "prompt"),
        ("/tokenize", json!({"prompt": "x", "messages": chat["messages"]}), 400, "prompt"),
        ("/tokenize", json!({"messages": chat["messages"]}), 400, "model"),
        ("/tokenize", json!({"prompt": "x", "model": "none"}), 404, "model"),
        ("/detokenize", json!({}), 400, "tokens"),
        ("/detokenize", json!({"tokens": ["x"]}), 400, "tokens[0]"),
        ("/detokenize", json!({"tokens": [0, FIRST_PIECE + 1]}), 400, "tokens"),
        ("/detokenize", json!({"tokens": [0], "model": "none"}), 404, "model"),
    ] {
        let reply = harness.post(path, &body).await;
        assert_eq!(
            (reply.status, &reply.error()["param"]),
            (status, &json!(param)),
            "{path} {body}: {}",
            reply.text()
        );
    }
    assert_eq!(harness.post("/tokenize", &json!({"prompt": "x".repeat(10_001)})).await.status, 413);
    assert_eq!(harness.get("/tokenize").await.status, 405);
    let _second = harness.worker(2, card("n", &[b"ok"]), all_pieces(1, STOPPED)).await;
    let reply = harness.post("/tokenize", &json!({"prompt": "x"})).await;
    assert_eq!((reply.status, &reply.error()["param"]), (400, &json!("model")));
    let ignored = harness.post("/tokenize", &json!({"model": "m", "prompt": "x", "odd": 1})).await;
    assert_eq!((ignored.status, ignored.header("x-dynamo-ignored-fields")), (200, Some("odd")));
    let counted = ["endpoint=\"tokenize\"", "model=\"m\"", "status=\"success\""];
    assert_eq!(harness.metric("dynamo_frontend_requests_total", &counted).await, 1.0);
}
