//! Answers that get nothing while their worker serves others, and answers that nobody could take up.

use crate::harness::{Ending, ROUTES, config, eventually};
use crate::migration::{CHAT, Fleet, body, told};
use dynamo_frontend::Config;
use dynamo_runtime::events::EventPlane;
use dynamo_types::{InstanceId, Load, WorkerRank};
use serde_json::json;
use std::time::{Duration, Instant};

/// A worker that goes on serving others and has forgotten one answer, in the middle of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r06_an_answer_that_is_forgotten_by_a_worker_that_lives_moves() {
    const LEN: usize = 4;
    let fleet = Fleet::default();
    let settings = Config { token_gap_timeout_ms: 40, silence_timeout_ms: 0, ..config() };
    let (harness, workers) = fleet.harness(2, settings).await;
    for (route, stream) in ROUTES {
        let body = body(route, stream, json!({"max_tokens": LEN}));
        for at in 1..=LEN {
            fleet.set(LEN + 1, vec![]);
            let expected = told(route, &harness.post(route, &body).await);
            fleet.set(LEN + 1, vec![(at, Ending::Hang)]);
            let reply = harness.post(route, &body).await;
            assert_eq!(told(route, &reply), expected, "{route} {stream} forgotten at {at}");
        }
    }
    fleet.check();
    eventually("the forgetful are told", || workers.iter().all(|worker| worker.open() == 0)).await;
    harness.balanced().await;
}

/// Its others are served: that is one fault of a worker, and no reason to send it nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r31_a_worker_that_forgot_one_answer_is_not_suspended() {
    let fleet = Fleet::default();
    let settings = Config { token_gap_timeout_ms: 40, silence_timeout_ms: 0, ..config() };
    let (harness, _workers) = fleet.harness(2, settings).await;
    fleet.set(6, vec![(2, Ending::Hang)]);
    assert_eq!(harness.post(CHAT, &body(CHAT, false, json!({}))).await.status, 200);
    let status = harness.get("/status.json").await.json();
    assert_eq!(status["workers"].as_array().unwrap().len(), 2, "{status}");
    assert!(
        status["workers"].as_array().unwrap().iter().all(|worker| worker["suspended"] == false),
        "{status}"
    );
}

/// Where the connection just broke is the last resort.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_rests_as_long_as_it_may_before_it_moves_to_a_suspended_worker() {
    const GAP: Duration = Duration::from_millis(20);
    let fleet = Fleet::default();
    let settings = Config { token_gap_timeout_ms: GAP.as_millis() as u64, silence_timeout_ms: 0, ..config() };
    let (harness, _workers) = fleet.harness(2, settings).await;
    fleet.set(6, vec![(0, Ending::Reset)]);
    assert_eq!(harness.post(CHAT, &body(CHAT, false, json!({}))).await.status, 200);
    fleet.set(6, vec![(2, Ending::Hang)]);
    let begun = Instant::now();
    assert_eq!(harness.post(CHAT, &body(CHAT, false, json!({}))).await.status, 200);
    assert!(begun.elapsed() >= 30 * GAP, "{:?}", begun.elapsed());
    harness.balanced().await;
}

/// Before its first token, where the limit is another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r30_a_request_that_is_forgotten_by_a_worker_that_lives_is_asked_elsewhere() {
    let fleet = Fleet::default();
    let settings = Config { first_answer_timeout_ms: 40, silence_timeout_ms: 0, ..config() };
    let (harness, workers) = fleet.harness(2, settings).await;
    for (route, stream) in ROUTES {
        let body = body(route, stream, json!({}));
        fleet.set(3, vec![]);
        let expected = told(route, &harness.post(route, &body).await);
        fleet.set(3, vec![(0, Ending::Hang)]);
        assert_eq!(told(route, &harness.post(route, &body).await), expected, "{route} {stream}");
    }
    eventually("the forgetful are told", || workers.iter().all(|worker| worker.open() == 0)).await;
    harness.balanced().await;
}

/// Nobody else could take it: it rests, and ends when that has taken too long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r06_an_answer_that_cannot_move_rests_and_has_an_end() {
    let fleet = Fleet::default();
    let settings = Config { token_gap_timeout_ms: 20, silence_timeout_ms: 0, ..config() };
    let (harness, workers) = fleet.harness(1, settings).await;
    for (route, stream) in ROUTES {
        fleet.set(6, vec![(2, Ending::Hang)]);
        let reply = harness.post(route, &body(route, stream, json!({}))).await;
        assert!(reply.text().contains("the worker said nothing of this request for"), "{}", reply.text());
        assert_eq!(reply.status, if stream { 200 } else { 504 });
    }
    // One request each: it was not given up and asked again.
    assert_eq!(workers[0].requests().len(), ROUTES.len());
    harness.balanced().await;
}

/// The last worker dies, and one that joins later goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r06_an_answer_without_workers_waits_for_one_to_join() {
    let fleet = Fleet::default();
    let settings = Config { migration_wait_ms: 60_000, ..config() };
    let (harness, mut workers) = fleet.harness(1, settings).await;
    let mut next = 2;
    for at in [0, 3] {
        for (route, stream) in ROUTES {
            let body = body(route, stream, json!({}));
            fleet.set(6, vec![]);
            let expected = told(route, &harness.post(route, &body).await);
            fleet.set(6, vec![(at, Ending::Reset)]);
            let before = workers[0].requests().len();
            let (reply, joined) = tokio::join!(harness.post(route, &body), async {
                let asked = || workers[0].requests().len() == before + 1 && workers[0].open() == 0;
                eventually("the worker fails it", asked).await;
                fleet.worker(&harness, next).await
            });
            assert_eq!(told(route, &reply), expected, "{route} {stream}");
            next += 1;
            workers = vec![joined];
            let alone = || harness.frontend.ledger().booked.len() == 1;
            eventually("the one that failed it has left", alone).await;
        }
    }
    fleet.check();
    harness.balanced().await;
}

/// The connection to the only worker broke, and then it is heard of again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r06_an_answer_goes_on_where_it_failed_once_that_worker_is_back() {
    let fleet = Fleet::default();
    let settings = Config { migration_wait_ms: 60_000, ..config() };
    let (harness, workers) = fleet.harness(1, settings).await;
    let mut running = 0;
    for at in [0, 3] {
        for (route, stream) in ROUTES {
            let body = body(route, stream, json!({}));
            fleet.set(6, vec![]);
            let expected = told(route, &harness.post(route, &body).await);
            fleet.set(6, vec![(at, Ending::Reset)]);
            let before = workers[0].requests().len();
            let (reply, ()) = tokio::join!(harness.post(route, &body), async {
                let failed = || workers[0].requests().len() == before + 1 && workers[0].open() == 0;
                eventually("the worker fails it", failed).await;
                let asked_again = || {
                    running += 1;
                    let load = Load { running, ..Load::default() };
                    harness.events.publish_load(WorkerRank::new(InstanceId(1), 0), load);
                    workers[0].requests().len() == before + 2
                };
                eventually("it is asked again", asked_again).await;
            });
            assert_eq!(told(route, &reply), expected, "{route} {stream}");
        }
    }
    fleet.check();
    harness.balanced().await;
}
