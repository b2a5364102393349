//! R25, R27, R28, R29 and R30 over random fleets: workers that come, go, drain, break and refuse.

use super::cases::{Draws, cases};
use super::stage::{GENERATE, model};
use crate::client::Client;
use crate::harness::{Behaviour, Ending, Harness, Worker, ask, card, config, eventually};
use dynamo_frontend::Config;
use dynamo_types::FinishReason::Stop;
use dynamo_types::{Delta, Error, TokenizerSpec};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn answers() -> Behaviour {
    Arc::new(|_| {
        let word = Delta { tokens: b"ok".map(u32::from).to_vec(), ..Delta::default() };
        Ok((vec![word], Ending::Finish(Stop)))
    })
}

/// Waits until the frontend knows as many workers of the model.
async fn counts(harness: &Harness, expected: usize) {
    eventually("the frontend sees who is there", || harness.frontend.ledger().booked.len() == expected).await;
}

/// Whatever some models are made of, the others are served, and each is told apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r25_broken_models_never_keep_others_from_being_served() {
    for mut draws in cases("r25", 200) {
        let harness = Harness::new().await;
        let (mut whole, mut workers) = (Vec::new(), Vec::new());
        let count = draws.between(2, 6);
        for number in 0..count {
            let name = format!("m{number}");
            let mut described = card(&name, &[]);
            match draws.below(4) {
                0 => described.tokenizer = TokenizerSpec::HuggingFace { json: "{not json".into() },
                1 => described.tokenizer = TokenizerSpec::HuggingFace { json: "{\"model\": {}}".into() },
                _ => whole.push(name),
            }
            workers.push(harness.start_worker(number as u64, described, answers()).await);
        }
        eventually("whole models are listed", || harness.frontend.models() == whole).await;
        for name in &whole {
            let fields = json!({"model": name});
            let reply = harness.post("/v1/completions", &ask("/v1/completions", false, "x", fields)).await;
            assert_eq!(reply.status, 200, "{name}: {}", reply.text());
        }
        drop(workers);
    }
}

/// At every moment of a fleet's life: what is listed answers, and who drains is sent nothing new.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r27_r28_what_is_listed_answers_whoever_comes_goes_and_drains() {
    for mut draws in cases("r27_r28", 200) {
        let harness = Harness::new().await;
        let mut fleet: BTreeMap<u64, (Worker, bool)> = BTreeMap::new();
        let mut left: Vec<Worker> = Vec::new();
        for id in 1..=draws.between(3, 10) as u64 {
            match draws.below(4) {
                0 if !fleet.is_empty() => {
                    // It withdraws before it stops, as workers do.
                    let chosen = *fleet.keys().nth(draws.below(fleet.len())).unwrap();
                    let (mut worker, _) = fleet.remove(&chosen).unwrap();
                    worker.registration = None;
                    left.push(worker);
                }
                1 if !fleet.is_empty() => {
                    let chosen = *fleet.keys().nth(draws.below(fleet.len())).unwrap();
                    let (worker, drains) = fleet.get_mut(&chosen).unwrap();
                    worker.registration.as_ref().unwrap().set_draining();
                    *drains = true;
                }
                _ => {
                    let worker = harness.worker(id, model("m"), answers()).await;
                    fleet.insert(id, (worker, false));
                }
            }
            counts(&harness, fleet.len()).await;
            let serving = fleet.values().filter(|(_, drains)| !drains).count();
            let listed = || harness.frontend.models().len() == usize::from(serving > 0);
            eventually("the list follows", listed).await;
            let drained = || {
                let ledger = harness.frontend.ledger();
                ledger.booked.iter().filter(|(_, load)| !load.draining).count() == serving
            };
            eventually("the router follows", drained).await;
            let before: BTreeMap<u64, usize> =
                fleet.iter().map(|(id, (worker, _))| (*id, worker.requests().len())).collect();
            let gone: usize = left.iter().map(|worker| worker.requests().len()).sum();
            for _ in 0..3 {
                let route = draws.pick(&GENERATE);
                let reply = harness.post(route, &ask(route, draws.one_in(2), "x", json!({}))).await;
                let expected = match (serving, fleet.len()) {
                    (0, 0) => [404, 503],
                    (0, _) => [503, 503],
                    _ => [200, 200],
                };
                assert!(expected.contains(&reply.status), "{serving} serve: {}", reply.text());
            }
            for (id, (worker, drains)) in &fleet {
                assert!(!drains || worker.requests().len() == before[id], "{id} drains and was asked");
            }
            assert_eq!(gone, left.iter().map(|worker| worker.requests().len()).sum::<usize>(), "they left");
        }
        drop(fleet);
    }
}

/// A drain that comes at any moment: what can finish does, the rest ends with words of its own, new requests are refused
/// with a time to come again, and nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r29_a_drain_ends_every_answer_and_loses_none_that_could_finish() {
    for mut draws in cases("r29", 200) {
        let hopeless = draws.one_in(2);
        let deadline = if hopeless { 30 } else { 60_000 };
        let harness = Harness::with(
            Config { drain_deadline_ms: deadline, ..config() },
            dynamo_router::Config::default(),
        )
        .await;
        // Every answer begins at once. Some end when they are let go, in a hopeless drain none does.
        let behaviour: Behaviour = Arc::new(move |request| {
            let word = Delta { tokens: b"begun ".map(u32::from).to_vec(), ..Delta::default() };
            let many = (0..draw_len(request.tokens.len())).map(|_| word.clone());
            let ending = if hopeless { Ending::Hang } else { Ending::Finish(Stop) };
            Ok(([word.clone()].into_iter().chain(many).collect(), ending))
        });
        let worker = harness.worker(1, model("m"), behaviour).await;
        let mut clients = Vec::new();
        for _ in 0..draws.between(1, 6) {
            let route = draws.pick(&GENERATE);
            let mut client = Client::connect(harness.address).await;
            let body = ask(route, true, &draws.prose(20), json!({})).to_string();
            client.send("POST", route, &[], body.as_bytes()).await;
            client.read_until("begun").await;
            clients.push((route, client));
        }
        let mut late = Client::connect(harness.address).await;
        let reader = tokio::spawn(async move {
            let mut texts = Vec::new();
            for (route, mut client) in clients {
                texts.push((route, client.reply("POST").await.text()));
            }
            texts
        });
        let (finished, refused) = tokio::join!(harness.frontend.drain(), async {
            // It may be closed before it is heard.
            let body = ask("/v1/completions", false, "x", json!({})).to_string();
            let head =
                format!("POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n", body.len());
            late.write_some(format!("{head}{body}").as_bytes()).await;
            late.reply_unless_closed("POST").await
        });
        if let Some(refused) = refused {
            assert_eq!((refused.status, refused.header("retry-after").is_some()), (503, true));
        }
        assert_eq!(finished, !hopeless || worker.open() == 0);
        for (route, text) in reader.await.unwrap() {
            let last = match route {
                "/v1/messages" => {
                    if hopeless {
                        "event: error"
                    } else {
                        "message_stop"
                    }
                }
                "/v1/responses" => {
                    if hopeless {
                        "response.failed"
                    } else {
                        "response.completed"
                    }
                }
                _ => "data: [DONE]",
            };
            assert!(text.contains(last), "{route} hopeless={hopeless}: {text}");
            assert_eq!(hopeless, text.contains("shutting down"), "{route}: {text}");
        }
        eventually("the engine is told", || worker.open() == 0).await;
    }
}

/// Up to seven more words, by the length of the prompt.
fn draw_len(tokens: usize) -> usize {
    tokens % 8
}

/// Some workers break off, fail or refuse before their first word: as long as one within reach answers, nobody notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r30_a_worker_that_fails_before_its_first_word_costs_no_answer() {
    for mut draws in cases("r30", 300) {
        let harness = Harness::new().await;
        let count = draws.between(2, 4);
        // Three moves reach four workers.
        let good = draws.below(count);
        let failures = Arc::new(AtomicUsize::new(0));
        let mut workers = Vec::new();
        for number in 0..count {
            let behaviour = if number == good { answers() } else { fault(&mut draws, Arc::clone(&failures)) };
            workers.push(harness.worker(number as u64 + 1, model("m"), behaviour).await);
        }
        for _ in 0..draws.between(1, 4) {
            let route = draws.pick(&GENERATE);
            let reply = harness.post(route, &ask(route, draws.one_in(2), &draws.prose(5), json!({}))).await;
            assert_eq!(reply.status, 200, "{route}: {}", reply.text());
            assert!(reply.text().contains("ok") && !reply.text().contains("error\":{"), "{}", reply.text());
        }
        let moved = harness.metric("dynamo_frontend_model_migration_total", &["new_request"]).await;
        assert_eq!(moved as usize, failures.load(Ordering::Acquire), "each failure is one move");
        harness.balanced().await;
    }
}

/// A way to fail before the first word.
fn fault(draws: &mut Draws, failures: Arc<AtomicUsize>) -> Behaviour {
    let kind = draws.below(4);
    Arc::new(move |_| {
        failures.fetch_add(1, Ordering::AcqRel);
        match kind {
            0 => Err(Error::disconnected("gone")),
            1 => Err(Error::overloaded("full")),
            2 => Ok((vec![], Ending::Reset)),
            _ => Ok((vec![], Ending::Fail(Error::disconnected("broke")))),
        }
    })
}
