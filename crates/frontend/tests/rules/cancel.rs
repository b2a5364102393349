//! R21, R22, R38: clients that leave.

use crate::client::Client;
use crate::harness::{
    ALL_ROUTES, Behaviour, Ending, Harness, ROUTES, all_pieces, ask, card, config, eventually,
};
use dynamo_frontend::Config;
use dynamo_types::FinishReason::Stop;
use dynamo_types::{Error, draw};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a client says goodbye.
#[derive(Clone, Copy, Debug)]
enum Goodbye {
    /// The socket is closed.
    Close,
    /// Only the sending half is: documented to count as leaving.
    HalfClose,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r21_leaving_before_the_first_token_reaches_the_engine() {
    let harness = Harness::new().await;
    let worker = harness.script(&[], Ending::Hang).await;
    let silent: Behaviour = Arc::new(|_| Ok((vec![], Ending::Hang)));
    let mute = harness.worker(2, card("mute", &[]), silent).await;
    let mut left = 0;
    for (route, stream) in ALL_ROUTES {
        for goodbye in [Goodbye::Close, Goodbye::HalfClose] {
            for (model, engine) in [("m", &worker), ("mute", &mute)] {
                let mut client = Client::connect(harness.address).await;
                let body = ask(route, stream, "x", json!({"model": model})).to_string();
                client.send("POST", route, &[], body.as_bytes()).await;
                eventually("the engine has the request", || engine.open() == 1).await;
                let kept = match goodbye {
                    Goodbye::Close => {
                        drop(client);
                        None
                    }
                    Goodbye::HalfClose => {
                        client.close_sending().await;
                        Some(client)
                    }
                };
                eventually("the engine is told", || engine.open() == 0).await;
                harness.balanced().await;
                left += 1;
                drop(kept);
            }
        }
    }
    assert_eq!(worker.cancelled() + mute.cancelled(), left);
    assert_eq!(harness.metric("dynamo_frontend_disconnected_clients", &[]).await, left as f64);
    assert_eq!(harness.metric("dynamo_frontend_model_cancellation_total", &[]).await, left as f64);
    assert_eq!(
        harness.metric("dynamo_frontend_requests_total", &["error_type=\"cancelled\""]).await,
        left as f64
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r22_leaving_frees_everything_on_every_route() {
    let harness = Harness::new().await;
    let pieces: Vec<Vec<u8>> = (0..200).map(|i| format!("piece {i} ").into_bytes()).collect();
    let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
    let worker = harness.script(&pieces, Ending::Hang).await;
    let routes = ALL_ROUTES.iter().cycle().take(50 * ALL_ROUTES.len());
    for (case, &(route, stream)) in (0u64..).zip(routes) {
        let mut client = Client::connect(harness.address).await;
        let fields = if case % 5 == 0 { json!({"n": 4, "temperature": 1}) } else { json!({}) };
        let body = ask(route, stream, "x", fields).to_string();
        // Anywhere between half a request and the middle of the answer.
        match draw::index(3, case, 4) {
            0 => client.send("POST", route, &[("content-length", "100000")], &body.as_bytes()[..10]).await,
            1 => client.send("POST", route, &[], body.as_bytes()).await,
            _ => {
                client.send("POST", route, &[], body.as_bytes()).await;
                if stream {
                    client.read_until(&format!("piece {} ", draw::index(4, case, 200))).await;
                }
            }
        }
        drop(client);
    }
    eventually("all engines are told", || worker.open() == 0).await;
    eventually("all connections are gone", || harness.frontend.ledger().connections == 0).await;
    harness.balanced().await;
}

/// What a client sent behind its request, and nobody has read, hides no goodbye: neither before nor after the first
/// token, on any route.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r21_leaving_is_noticed_behind_unread_bytes() {
    let harness = Harness::new().await;
    let worker = harness.script(&[b"begun"], Ending::Hang).await;
    let silent: Behaviour = Arc::new(|_| Ok((vec![], Ending::Hang)));
    let mute = harness.worker(2, card("mute", &[]), silent).await;
    let another = b"GET /live HTTP/1.1\r\nhost: t\r\n\r\n".to_vec();
    // The last is more than is ever read ahead.
    let behind = [b"\r\n".to_vec(), another.clone(), another.repeat(3_000)];
    for (route, stream) in ALL_ROUTES {
        for (model, engine) in [("m", &worker), ("mute", &mute)] {
            for (bytes, goodbye) in
                behind.iter().zip([Goodbye::Close, Goodbye::HalfClose, Goodbye::Close].into_iter().cycle())
            {
                let mut client = Client::connect(harness.address).await;
                let body = ask(route, stream, "x", json!({"model": model})).to_string();
                client.send("POST", route, &[], body.as_bytes()).await;
                client.write(bytes).await;
                eventually("the engine has the request", || engine.open() == 1).await;
                if stream && model == "m" {
                    client.read_until("begun").await;
                }
                let kept = match goodbye {
                    Goodbye::Close => {
                        drop(client);
                        None
                    }
                    Goodbye::HalfClose => {
                        client.close_sending().await;
                        Some(client)
                    }
                };
                eventually("the engine is told", || engine.open() == 0).await;
                harness.balanced().await;
                drop(kept);
            }
        }
    }
}

/// Requests that came whole, before the goodbye, and need no waiting are answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_goodbye_right_behind_requests_does_not_undo_them() {
    let harness = Harness::new().await;
    let _worker = harness.script(&[b"ok"], Ending::Finish(Stop)).await;
    for _ in 0..50 {
        let mut client = Client::connect(harness.address).await;
        let one = "GET /v1/models HTTP/1.1\r\nhost: t\r\n\r\n";
        client.write(one.repeat(100).as_bytes()).await;
        client.close_sending().await;
        for _ in 0..100 {
            assert_eq!(client.reply("GET").await.status, 200);
        }
        assert!(client.is_closed().await);
    }
}

/// The send fails at random points: in the worker, before and after the first token, with every kind of fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r38_bookings_never_leak() {
    for mode in dynamo_router::Mode::ALL {
        let router = dynamo_router::Config { mode, ..Default::default() };
        let harness = Harness::with(config(), router).await;
        let calls = AtomicU64::new(0);
        let fails: Behaviour = Arc::new(move |request| {
            let call = calls.fetch_add(1, Ordering::Relaxed);
            match draw::index(9, call, 6) {
                0 => Err(Error::overloaded("full")),
                1 => Err(Error::engine("broken")),
                2 => Ok((vec![], Ending::Reset)),
                3 => Ok((vec![], Ending::Fail(Error::invalid("no")))),
                4 => all_pieces(2, Ending::Reset)(request),
                _ => all_pieces(2, Ending::Fail(Error::timeout("late")))(request),
            }
        });
        let mut workers = Vec::new();
        for id in 1..=3 {
            workers.push(harness.worker(id, card("m", &[b"a", b"b"]), fails.clone()).await);
        }
        let mut clients: Vec<Client> = Vec::new();
        for _ in 0..4 {
            clients.push(Client::connect(harness.address).await);
        }
        for round in 0..50usize {
            let prompt = "x".repeat(1 + round * 7);
            for (client, (route, stream)) in clients.iter_mut().zip(ROUTES) {
                let reply = client
                    .ask("POST", route, &[], ask(route, stream, &prompt, json!({})).to_string().as_bytes())
                    .await;
                assert!(reply.status >= 400 || stream, "{}", reply.text());
            }
        }
        harness.balanced().await;
        assert!(harness.frontend.ledger().booked.iter().all(|(_, load)| load.is_idle()), "{mode}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_gets_fewer_and_larger_pieces() {
    let harness = Harness::new().await;
    // More than all the buffers between the two hold when each piece is a chunk of its own.
    const PIECES: usize = 60_000;
    let pieces = vec![&b"about twenty bytes. "[..]; PIECES];
    let worker = harness.script(&pieces, Ending::Finish(Stop)).await;
    let mut client = Client::connect_narrow(harness.address).await;
    client
        .send("POST", ROUTES[3].0, &[], ask(ROUTES[3].0, true, "x", json!({})).to_string().as_bytes())
        .await;
    // The engine is done before anything is read: it never waits for the reader.
    eventually("the engine is done", || worker.requests().len() == 1 && worker.open() == 0).await;
    let reply = client.reply("POST").await;
    let (text, finish) = crate::harness::read(&reply, 0);
    assert_eq!((text.len(), finish.as_deref()), (PIECES * 20, Some("stop")));
    let chunks = reply.chunks().len();
    assert!(chunks < PIECES / 4 * 3, "{chunks} chunks");
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r22_a_client_that_stops_reading_is_given_up() {
    let settings = Config { write_timeout_ms: 50, ..config() };
    let harness = Harness::with(settings, dynamo_router::Config::default()).await;
    let piece = vec![b'x'; 1 << 20];
    // More than the kernel buffers on both sides.
    let pieces = vec![piece.as_slice(); 32];
    let worker = harness.script(&pieces, Ending::Finish(Stop)).await;
    let mut clients = Vec::new();
    for (route, stream) in ROUTES {
        let mut client = Client::connect_narrow(harness.address).await;
        client.send("POST", route, &[], ask(route, stream, "x", json!({})).to_string().as_bytes()).await;
        clients.push(client);
    }
    eventually("all were sent", || worker.requests().len() == ROUTES.len()).await;
    eventually("all are closed", || harness.frontend.ledger().connections == 0).await;
    harness.balanced().await;
    drop(clients);
}
