//! Bytes that a proxy in front and a server behind it might read differently, and other oddities of HTTP/1.1: what
//! cannot be read in one way only is refused, and the connection closed.

use crate::client::Client;
use crate::harness::{Ending, Harness, ask, config};
use dynamo_frontend::Config;
use dynamo_types::FinishReason::Stop;
use serde_json::json;

/// A second request, which nobody may take for one.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: t\r\n\r\n";

async fn harness() -> (Harness, crate::harness::Worker) {
    // For sizes that nobody ever sends that much for.
    let settings = Config { body_timeout_ms: 300, ..config() };
    let harness = Harness::with(settings, dynamo_router::Config::default()).await;
    let worker = harness.script(&[b"ok"], Ending::Finish(Stop)).await;
    (harness, worker)
}

fn body() -> String {
    ask("/v1/completions", false, "x", json!({})).to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn framing_that_can_be_read_in_two_ways_is_refused() {
    let (harness, worker) = harness().await;
    let body = body();
    let length = body.len();
    let chunk = format!("{length:x}\r\n{body}\r\n0\r\n\r\n");
    let cases: Vec<(String, String)> = vec![
        (format!("content-length: {length}\r\ncontent-length: {}", length + 1), body.clone()),
        (format!("content-length: {length}, {length}"), body.clone()),
        (format!("content-length: +{length}"), body.clone()),
        (format!("content-length: -{length}"), body.clone()),
        (format!("content-length: 0x{length:x}"), body.clone()),
        (format!("content-length: {length} 1"), body.clone()),
        ("content-length: ".into(), body.clone()),
        ("content-length: 99999999999999999999999".into(), body.clone()),
        (format!("content-length : {length}"), body.clone()),
        ("transfer-encoding: gzip".into(), chunk.clone()),
        ("transfer-encoding: identity".into(), chunk.clone()),
        ("transfer-encoding: chunked, gzip".into(), chunk.clone()),
        ("transfer-encoding: xchunked".into(), chunk.clone()),
        ("transfer-encoding: chunked\r\ntransfer-encoding: identity".into(), chunk.clone()),
        (format!("content-length: {length}\r\nx-fold: a\r\n b"), body.clone()),
        (format!("content-length: {length}\r\nx-nul: a\0b"), body.clone()),
        (format!("content-length: {length}\r\nhost: other"), body.clone()),
    ];
    for (headers, body) in cases {
        let mut client = Client::connect(harness.address).await;
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n{headers}\r\n\r\n"
        );
        client.write(format!("{head}{body}{SMUGGLED}").as_bytes()).await;
        let reply = client.reply("POST").await;
        assert_eq!(reply.status, 400, "{headers:?}: {}", reply.text());
        assert!(client.is_closed().await, "{headers:?}: something came behind the answer");
    }
    assert!(worker.requests().is_empty());
    // Chunks win over a length (RFC 9112, 6.3), and nothing behind them is believed.
    for headers in [
        "transfer-encoding: chunked".to_owned(),
        format!("content-length: {length}\r\ntransfer-encoding: chunked"),
        format!("transfer-encoding: chunked\r\ncontent-length: {length}"),
    ] {
        let mut client = Client::connect(harness.address).await;
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n{headers}\r\n\r\n"
        );
        client.write(format!("{head}{chunk}{SMUGGLED}").as_bytes()).await;
        let reply = client.reply("POST").await;
        assert_eq!((reply.status, reply.header("connection")), (200, Some("close")), "{headers:?}");
        assert!(client.is_closed().await, "{headers:?}: something came behind the answer");
    }
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_of_senseless_sizes_are_refused() {
    let (harness, worker) = harness().await;
    let body = body();
    let length = body.len();
    for size in ["zz", "-1", "+5", "0x5", "5 5", "", "fffffffffffffffff", "ffffffffffffffff", "5\0"] {
        for before in ["".to_owned(), format!("{:x}\r\n{}\r\n", 1, &body[..1])] {
            let mut client = Client::connect(harness.address).await;
            client
                .write(
                    format!(
                        "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n\
                         transfer-encoding: chunked\r\n\r\n{before}{size}\r\n{body}\r\n0\r\n\r\n{SMUGGLED}"
                    )
                    .as_bytes(),
                )
                .await;
            let reply = client.reply("POST").await;
            assert!([400, 413].contains(&reply.status), "{size:?}: {} {}", reply.status, reply.text());
            assert!(client.is_closed().await, "{size:?}: something came behind the answer");
        }
    }
    // Sizes with extensions and trailers are read, as long as they are short.
    let mut client = Client::connect(harness.address).await;
    let good = format!("{length:X};name=value\r\n{body}\r\n0\r\nx-trailer: 1\r\n\r\n");
    let head = "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n\
                transfer-encoding: chunked\r\n\r\n";
    client.write(format!("{head}{good}").as_bytes()).await;
    assert_eq!(client.reply("POST").await.status, 200);
    for endless in [format!("5;{}", "x".repeat(100_000)), format!("0\r\nx-t: {}", "x".repeat(100_000))] {
        let mut client = Client::connect(harness.address).await;
        client.write(format!("{head}{endless}").as_bytes()).await;
        assert_eq!(client.reply("POST").await.status, 400);
        assert!(client.is_closed().await);
    }
    assert_eq!(worker.requests().len(), 1);
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_heads_are_answered_or_refused_and_never_hang() {
    let (harness, _worker) = harness().await;
    for (head, status) in [
        ("GET http://other.test/live HTTP/1.1\r\nhost: t\r\n\r\n", 200),
        ("GET /live?x=1 HTTP/1.1\r\nhost: t\r\n\r\n", 200),
        ("GET /live HTTP/1.0\r\n\r\n", 200),
        ("GET /v1/../live HTTP/1.1\r\nhost: t\r\n\r\n", 404),
        ("GET //live HTTP/1.1\r\nhost: t\r\n\r\n", 404),
        ("GET /live HTTP/1.1\r\n\r\n", 400),
        ("GET /live HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        ("OPTIONS * HTTP/1.1\r\nhost: t\r\n\r\n", 404),
        ("OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: t\r\norigin: http://x\r\n\r\n", 405),
        ("TRACE /live HTTP/1.1\r\nhost: t\r\n\r\n", 405),
        ("CONNECT other.test:443 HTTP/1.1\r\nhost: other.test:443\r\n\r\n", 404),
        ("PATCH /v1/models HTTP/1.1\r\nhost: t\r\n\r\n", 405),
        ("GET /live HTTP/1.1\r\nhost: t\r\nupgrade: h2c\r\nconnection: upgrade, http2-settings\r\n\r\n", 200),
        ("GET /live HTTP/1.1\r\nhost: t\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n", 200),
        ("GET /live HTTP/9.9\r\nhost: t\r\n\r\n", 400),
        ("GET /li\x01ve HTTP/1.1\r\nhost: t\r\n\r\n", 400),
        ("GET  /live HTTP/1.1\r\nhost: t\r\n\r\n", 400),
        ("GET /live\r\n\r\n", 400),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\u{7c}\x03\x03", 400),
    ] {
        let mut client = Client::connect(harness.address).await;
        client.write(head.as_bytes()).await;
        let method = head.split(' ').next().unwrap();
        let reply = client.reply(method).await;
        assert_eq!(reply.status, status, "{head:?}: {}", reply.text());
        if status == 400 {
            assert!(client.is_closed().await, "{head:?}");
        }
    }
    // HTTP/2 is closed without a word, which it could not read.
    let mut client = Client::connect(harness.address).await;
    client.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    assert!(client.is_closed().await);
    // Nothing tells a browser that other pages may read answers.
    let mut client = Client::connect(harness.address).await;
    let reply = client.ask("GET", "/v1/models", &[("origin", "http://evil.test")], b"").await;
    assert!(reply.headers.iter().all(|(name, _)| !name.starts_with("access-control")), "{:?}", reply.headers);
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_a_row_are_answered_in_order() {
    let (harness, worker) = harness().await;
    let body = body();
    let mut client = Client::connect(harness.address).await;
    let post = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let row =
        format!("{post}GET /live HTTP/1.1\r\nhost: t\r\n\r\n{post}GET /nope HTTP/1.1\r\nhost: t\r\n\r\n");
    client.write(row.repeat(5).as_bytes()).await;
    for _ in 0..5 {
        for status in [200, 200, 200, 404] {
            assert_eq!(client.reply("GET").await.status, status);
        }
    }
    assert_eq!(worker.requests().len(), 10);
    harness.balanced().await;
}
