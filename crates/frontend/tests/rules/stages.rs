//! Cancellation at every stage of a request's way: whoever leaves, wherever it is, is gone from the engine, from the books
//! and from whatever it waited for. How long that takes is measured by `bench/cancel.py`.

use crate::client::Client;
use crate::harness::{ALL_ROUTES, Behaviour, Ending, Harness, all_pieces, ask, card, config, eventually};
use dynamo_frontend::Config;
use dynamo_types::{Delta, Error};
use serde_json::json;
use std::sync::Arc;

/// Where a request is when its client leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// The engine has it and has said nothing: its queue, or prefill.
    Prefill,
    /// The engine has found the prompt in its cache, and computes the rest.
    PrefillBegun,
    Decode,
    /// Its worker died before the first word, and nobody else is there.
    WaitsForAWorker,
    /// Its worker died in the middle, and nobody else is there.
    WaitsToGoOn,
}

const STAGES: [Stage; 5] =
    [Stage::Prefill, Stage::PrefillBegun, Stage::Decode, Stage::WaitsForAWorker, Stage::WaitsToGoOn];

fn behaviour(stage: Stage) -> Behaviour {
    let begun = Delta { cached_tokens: Some(3), ..Delta::default() };
    let word = Delta { tokens: b"word ".map(u32::from).to_vec(), ..Delta::default() };
    Arc::new(move |_| match stage {
        Stage::Prefill => Ok((vec![], Ending::Hang)),
        Stage::PrefillBegun => Ok((vec![begun.clone()], Ending::Hang)),
        Stage::Decode => Ok((vec![word.clone()], Ending::Hang)),
        Stage::WaitsForAWorker => Err(Error::disconnected("gone")),
        Stage::WaitsToGoOn => Ok((vec![word.clone()], Ending::Reset)),
    })
}

/// Longer than any test: whoever waits does so until its client leaves.
fn patient() -> Config {
    Config {
        migration_wait_ms: 3_600_000,
        silence_timeout_ms: 0,
        token_gap_timeout_ms: 0,
        first_answer_timeout_ms: 0,
        ..config()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r21_r22_leaving_at_any_stage_on_any_route_ends_everything() {
    for stage in STAGES {
        let harness = Harness::with(patient(), dynamo_router::Config::default()).await;
        let worker = harness.worker(1, card("m", &[]), behaviour(stage)).await;
        for (number, (route, stream)) in (1..).zip(ALL_ROUTES) {
            let mut client = Client::connect(harness.address).await;
            let body = ask(route, stream, "x", json!({})).to_string();
            client.send("POST", route, &[], body.as_bytes()).await;
            eventually("the engine was asked", || worker.requests().len() == number).await;
            if stream && matches!(stage, Stage::Decode | Stage::WaitsToGoOn) {
                client.read_until("word").await;
            }
            drop(client);
            eventually("the engine stops", || worker.open() == 0).await;
            eventually("nothing is booked", || harness.frontend.ledger().is_balanced()).await;
            assert_eq!(worker.requests().len(), number, "{stage:?} {route}: it was asked again");
        }
        // Whoever joins now is not asked for those who left.
        let joined = harness.worker(2, card("m", &[]), all_pieces(0, Ending::Hang)).await;
        harness.balanced().await;
        assert_eq!(joined.requests().len(), 0, "{stage:?}");
        assert_eq!(worker.requests().len(), ALL_ROUTES.len());
    }
}

/// A client that reads nothing holds up neither the engine nor others; when it is given up or leaves, its engine stops.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r22_a_slow_client_is_let_go_at_once_when_it_leaves() {
    let harness =
        Harness::with(Config { write_timeout_ms: 3_600_000, ..patient() }, dynamo_router::Config::default())
            .await;
    // More than the sockets between take.
    let word =
        Delta { tokens: b"a rather long piece of an answer ".map(u32::from).to_vec(), ..Delta::default() };
    let endless: Behaviour = Arc::new(move |_| Ok((vec![word.clone(); 200_000], Ending::Hang)));
    let worker = harness.worker(1, card("m", &[]), endless).await;
    for (route, stream) in ALL_ROUTES.into_iter().filter(|(_, stream)| *stream) {
        let mut slow = Client::connect_narrow(harness.address).await;
        slow.send("POST", route, &[], ask(route, stream, "x", json!({})).to_string().as_bytes()).await;
        eventually("the engine works for it", || worker.open() == 1).await;
        drop(slow);
        eventually("the engine stops", || worker.open() == 0).await;
        eventually("nothing is booked", || harness.frontend.ledger().is_balanced()).await;
    }
    assert_eq!(worker.cancelled(), worker.requests().len());
}
