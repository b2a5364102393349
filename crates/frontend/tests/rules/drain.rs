//! R29: what is on its way to a client when the server is told to stop.

use crate::client::Client;
use crate::harness::{Ending, Harness, ROUTES, all_pieces, ask, card, config, eventually, read};
use dynamo_frontend::Config;
use dynamo_types::FinishReason::Stop;
use serde_json::json;
use std::time::Duration;

const PIECE_BYTES: usize = 1 << 20;
const PIECES: usize = 16;
/// Longer than connections without a request get when all requests are done.
const PAUSE: Duration = Duration::from_millis(1300);

/// Answers larger than all buffers between the two, to clients that pause, with the engine long done.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r29_a_drain_waits_for_answers_to_be_read() {
    tokio::join!(drained_while_read(0), drained_while_read(1), drained_while_read(2), drained_while_read(3));
}

async fn drained_while_read(route: usize) {
    let harness = Harness::new().await;
    let piece = vec![b'x'; PIECE_BYTES];
    let pieces = vec![piece.as_slice(); PIECES];
    let worker = harness.worker(1, card("m", &pieces), all_pieces(PIECES, Ending::Finish(Stop))).await;
    let (route, stream) = ROUTES[route];
    let mut client = Client::connect_narrow(harness.address).await;
    client.send("POST", route, &[], ask(route, stream, "x", json!({})).to_string().as_bytes()).await;
    let mut idle = Client::connect(harness.address).await;
    assert_eq!(idle.ask("GET", "/v1/models", &[], b"").await.status, 200);
    eventually("the engine is done", || worker.requests().len() == 1 && worker.open() == 0).await;
    let drained = tokio::spawn(harness.frontend.drain());
    tokio::time::sleep(PAUSE).await;
    let reply = client.reply("POST").await;
    let (text, finish) = read(&reply, 0);
    assert_eq!((text.len(), finish.as_deref()), (PIECES * PIECE_BYTES, Some("stop")));
    assert!(drained.await.unwrap(), "everything finished by itself");
    assert!(idle.is_closed().await);
}

/// Whoever is refused, and goes on sending for as long as it may, does not hold it either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r29_bodies_that_nobody_wants_do_not_hold_a_drain() {
    let settings = Config { body_timeout_ms: 60_000, drain_deadline_ms: 20_000, ..config() };
    let harness = Harness::with(settings, dynamo_router::Config::default()).await;
    let mut clients = Vec::new();
    for (path, kind, status) in [
        ("/v1/nothing", "application/json", 404),
        ("/v1/images/edits", "application/json", 501),
        ("/v1/chat/completions", "text/plain", 415),
    ] {
        let mut client = Client::connect(harness.address).await;
        client.send("POST", path, &[("content-length", "100000"), ("content-type", kind)], b"x").await;
        clients.push((client, status));
    }
    // All of them have come in.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let drained = tokio::spawn(harness.frontend.drain());
    for (mut client, status) in clients {
        assert_eq!(client.reply("POST").await.status, status);
    }
    assert!(drained.await.unwrap(), "nothing was cut");
}

/// Who reads nothing does not hold the process beyond the deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r29_a_reader_that_stands_still_does_not_hold_a_drain() {
    let harness =
        Harness::with(Config { drain_deadline_ms: 100, ..config() }, dynamo_router::Config::default()).await;
    let piece = vec![b'x'; PIECE_BYTES];
    let pieces = vec![piece.as_slice(); PIECES];
    let worker = harness.worker(1, card("m", &pieces), all_pieces(PIECES, Ending::Finish(Stop))).await;
    let mut client = Client::connect_narrow(harness.address).await;
    let (route, stream) = ROUTES[0];
    client.send("POST", route, &[], ask(route, stream, "x", json!({})).to_string().as_bytes()).await;
    eventually("the engine is done", || worker.requests().len() == 1 && worker.open() == 0).await;
    assert!(!harness.frontend.drain().await, "an answer was cut");
}
