//! R21 and R22 over random goodbyes at random moments.

use super::cases::cases;
use super::stage::{GENERATE, Stage};
use crate::client::Client;
use crate::harness::{Ending, ask, eventually};
use serde_json::json;

/// The engine has the request and has said nothing: that is queue and prefill to a frontend.
#[tokio::test]
async fn r21_leaving_at_any_moment_before_the_first_token_reaches_the_engine() {
    let stage = Stage::new().await;
    let worker = &stage.workers[0];
    for mut draws in cases("r21", 600) {
        let (route, stream) = (draws.pick(&GENERATE), draws.one_in(2));
        stage.say(&mut draws, "", Ending::Hang);
        let before = worker.requests().len();
        let mut client = Client::connect(stage.harness.address).await;
        let body = ask(route, stream, &format!("x{}", draws.text(30)), json!({})).to_string();
        client.send("POST", route, &[], body.as_bytes()).await;
        // Also before the request has reached anybody.
        if !draws.one_in(4) {
            eventually("the engine has the request", || worker.requests().len() > before).await;
        }
        let half = draws.one_in(3);
        if half {
            client.close_sending().await;
        }
        let kept = half.then_some(client);
        eventually("the engine is told", || worker.open() == 0).await;
        eventually("the ledger balances", || stage.harness.frontend.ledger().is_balanced()).await;
        drop(kept);
    }
    eventually("all connections are gone", || stage.harness.frontend.ledger().connections == 0).await;
    assert_eq!(worker.cancelled(), worker.requests().len());
    stage.harness.balanced().await;
}

/// Several at once, each leaves at its own moment of its answer.
#[tokio::test]
async fn r22_leaving_at_any_moment_of_any_answer_frees_everything() {
    let stage = Stage::new().await;
    let worker = &stage.workers[0];
    let text: String = (0..60).map(|number| format!("piece {number} ")).collect();
    for mut draws in cases("r22", 800) {
        let (route, stream) = (draws.pick(&GENERATE), !draws.one_in(3));
        stage.say(&mut draws, &text, Ending::Hang);
        let fields = match draws.below(3) {
            0 if route.contains("completions") => json!({"n": 3, "temperature": 1}),
            _ => json!({}),
        };
        let body = ask(route, stream, "x", fields).to_string();
        let mut client = Client::connect(stage.harness.address).await;
        match draws.below(5) {
            // In the middle of the body.
            0 => {
                let part = draws.below(body.len());
                let length = body.len().to_string();
                client.send("POST", route, &[("content-length", &length)], &body.as_bytes()[..part]).await;
            }
            1 => client.send("POST", route, &[], body.as_bytes()).await,
            _ => {
                client.send("POST", route, &[], body.as_bytes()).await;
                if stream {
                    client.read_until("data: {").await;
                }
            }
        }
        drop(client);
    }
    eventually("all engines are told", || worker.open() == 0).await;
    eventually("all connections are gone", || stage.harness.frontend.ledger().connections == 0).await;
    stage.harness.balanced().await;
}
