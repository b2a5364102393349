//! What large and slow request bodies may cost, and that their senders hear what became of them.

use crate::client::Client;
use crate::harness::{Ending, Harness, ROUTES, all_pieces, ask, card, config};
use dynamo_frontend::Config;
use dynamo_types::ChatTemplate;
use dynamo_types::FinishReason::Stop;
use serde_json::json;
use std::time::Duration;

/// A body is in memory until its prompt is tokens, and its share of the budget is held that long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_of_a_body_is_counted_until_its_prompt_is_tokens() {
    let settings = Config { body_memory_bytes: 512 * 1024, ..config() };
    let harness = Harness::with(settings, dynamo_router::Config::default()).await;
    let mut slow = card("slow", &[b"ok"]);
    slow.chat_template = Some(ChatTemplate {
        source: "{% for i in range(1000) %}{% for j in range(100) %}{% endfor %}{% endfor %}\
                 {{ messages[0].content }}"
            .into(),
    });
    let _worker = harness.worker(1, slow, all_pieces(1, Ending::Finish(Stop))).await;
    let prompt = "x".repeat(300 * 1024);
    let (route, stream) = ROUTES[0];
    let first = ask(route, stream, &prompt, json!({"model": "slow"}));
    // Refused for its model as soon as there is room for it.
    let second = ask(route, stream, &prompt, json!({"model": "nobody"}));
    // On a busy machine the first may be over before anybody else gets a turn: then the question is put again.
    let mut answered = 0;
    for _ in 0..50 {
        let (address, first) = (harness.address, first.clone());
        let first = tokio::spawn(async move { crate::client::post(address, route, &first).await });
        let mut refused = 0;
        let last = loop {
            let reply = harness.post(route, &second).await;
            match reply.status {
                503 => {
                    assert!(
                        reply.error()["message"].as_str().unwrap().contains("bodies"),
                        "{}",
                        reply.text()
                    );
                    refused += 1;
                }
                // The first has not come yet.
                404 if refused == 0 && !first.is_finished() => {}
                status => break status,
            }
        };
        assert_eq!(last, 404);
        let rendered = harness.metric("dynamo_frontend_template_seconds_count", &[]).await;
        match first.await.unwrap().status {
            200 => answered += 1,
            // It came while the second was there.
            status => assert_eq!((status, refused), (503, 0)),
        }
        if refused > 0 {
            assert_eq!(rendered, f64::from(answered), "there was room while a prompt was being rendered");
            return harness.balanced().await;
        }
    }
    panic!("a body's memory was never short");
}

/// Bodies refused before or while they are read, by clients that write all of it before they read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_sends_too_much_hears_why() {
    const MIB: usize = 1024 * 1024;
    let settings = Config { body_memory_bytes: MIB, body_limit_bytes: 64 * MIB, ..config() };
    let harness = Harness::with(settings, dynamo_router::Config::default()).await;
    let _worker = harness.script(&[b"ok"], Ending::Finish(Stop)).await;
    let piece = vec![b' '; MIB];
    for (size, status) in [(2 * MIB, 503), (40 * MIB, 503), (66 * MIB, 413), (120 * MIB, 413)] {
        for chunked in [false, true] {
            // Without a length in front nothing can be said before the memory is used up.
            let status = if chunked { 503 } else { status };
            for route in ["/v1/chat/completions", "/v1/messages", "/tokenize"] {
                let mut client = Client::connect(harness.address).await;
                let framing = match chunked {
                    true => "transfer-encoding: chunked".to_owned(),
                    false => format!("content-length: {size}"),
                };
                let head = format!(
                    "POST {route} HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n{framing}\r\n\r\n"
                );
                client.write(head.as_bytes()).await;
                for _ in 0..size / MIB {
                    if chunked {
                        client.write(format!("{MIB:x}\r\n").as_bytes()).await;
                    }
                    client.write(&piece).await;
                    if chunked {
                        client.write(b"\r\n").await;
                    }
                }
                if chunked {
                    client.write(b"0\r\n\r\n").await;
                }
                let reply = client.reply("POST").await;
                assert_eq!(reply.status, status, "{size} {chunked} {route}: {}", reply.text());
            }
        }
    }
    harness.balanced().await;
}

/// The same for those that are refused for something else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_refused_otherwise_hears_it_too() {
    let harness = Harness::new().await;
    let body = vec![b' '; 40 * 1024 * 1024];
    for (path, kind, status) in [
        ("/v1/chat/completions", "text/plain", 415),
        ("/v1/nothing", "application/json", 404),
        ("/v1/models", "application/json", 405),
        ("/v1/images/edits", "application/json", 501),
    ] {
        let mut client = Client::connect(harness.address).await;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: t\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        client.write(head.as_bytes()).await;
        client.write(&body).await;
        assert_eq!(client.reply("POST").await.status, status, "{path}");
    }
}

/// A text whose bytes alone say that it cannot fit is refused before it is made into tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_that_cannot_fit_is_not_tokenised() {
    let harness = Harness::new().await;
    let mut short = card("m", &[b"ok"]);
    short.context_length = 1000;
    let _worker = harness.worker(1, short, all_pieces(1, Ending::Finish(Stop))).await;
    for (route, stream) in crate::harness::ALL_ROUTES {
        let reply = harness.post(route, &ask(route, stream, &"x".repeat(50_000), json!({}))).await;
        assert_eq!(reply.status, 400, "{}", reply.text());
        let error = reply.error();
        let text = error["message"].as_str().unwrap();
        assert!(
            text.contains("maximum context length is 1000 tokens") && text.contains("at least"),
            "{text}"
        );
        if !route.contains("messages") {
            assert_eq!(error["code"], "context_length_exceeded");
        }
        // Counted, not refused.
        let mut count = ask("/v1/messages/count_tokens", false, &"x".repeat(50_000), json!({}));
        count.as_object_mut().unwrap().remove("stream");
        let reply = harness.post("/v1/messages/count_tokens", &count).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let counted = crate::harness::ALL_ROUTES.len() as f64;
    assert_eq!(harness.metric("dynamo_frontend_tokenize_seconds_count", &[]).await, counted);
    harness.balanced().await;
}

/// Sending a little now and then holds nothing for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_trickles_is_given_up() {
    let settings = Config { body_timeout_ms: 150, ..config() };
    let harness = Harness::with(settings, dynamo_router::Config::default()).await;
    for (route, _) in ROUTES {
        let mut client = Client::connect(harness.address).await;
        client.send("POST", route, &[("content-length", "100000")], b"{\"model\":").await;
        let reply = loop {
            tokio::time::sleep(Duration::from_millis(5)).await;
            if let Some(reply) = client.trickle(b" ").await {
                break reply;
            }
        };
        assert_eq!((reply.status, &reply.error()["code"]), (400, &json!("body_timeout")));
    }
    harness.balanced().await;
}

/// The same for heads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_trickles_is_given_up() {
    let settings = Config { header_timeout_ms: 150, ..config() };
    let harness = Harness::with(settings, dynamo_router::Config::default()).await;
    let mut client = Client::connect(harness.address).await;
    client.write(b"GET /live HTTP/1.1\r\nhost: t\r\nx-slow: ").await;
    while !client.trickle_closed(b"a").await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
