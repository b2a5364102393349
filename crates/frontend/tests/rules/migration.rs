//! Answers that move to another worker (behaviour.md 10.1, R06, R30, DESIGN 3.10): the client sees every token once.

use crate::client::{Client, Reply};
use crate::harness::{
    ALL_ROUTES, Behaviour, Ending, FIRST_PIECE, Harness, ROUTES, Worker, ask, card, config, eventually, read,
};
use crate::said::said;
use dynamo_frontend::Config;
use dynamo_types::FinishReason::{Length, Stop};
use dynamo_types::{Delta, Error, Request, TokenLogprob, draw};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

const VOCABULARY: usize = 40;
pub(crate) const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const METRIC: &str = "dynamo_frontend_model_migration_total";
const DURATION: &str = "dynamo_frontend_model_migration_duration_seconds_count";

fn pieces() -> Vec<Vec<u8>> {
    (0..VOCABULARY).map(|i| format!("w{i} ").into_bytes()).collect()
}

/// The answer token at `position`, as an engine that draws by seed and position has it.
fn token(seed: u64, position: usize) -> u32 {
    FIRST_PIECE + draw::index(seed, position as u64, VOCABULARY) as u32
}

/// A worker breaks off the answer once this many tokens of it are there, in this way.
type Cut = (usize, Ending);

/// What becomes of requests, whichever worker they reach: attempt `k` of a request breaks off at `cuts[k]`, those after
/// the last cut go on to `len` tokens and end.
#[derive(Default)]
struct Script {
    len: usize,
    cuts: Vec<Cut>,
    attempts: HashMap<String, usize>,
    /// Requests that were no continuation of what had been said.
    wrong: Vec<String>,
    silent_about_the_end: bool,
}

#[derive(Clone, Default)]
pub(crate) struct Fleet(Arc<Mutex<Script>>);

impl Fleet {
    pub(crate) fn set(&self, len: usize, cuts: Vec<Cut>) {
        let mut script = self.0.lock().unwrap();
        *script = Script { len, cuts, wrong: std::mem::take(&mut script.wrong), ..Script::default() };
    }

    fn behaviour(&self) -> Behaviour {
        let fleet = self.clone();
        Arc::new(move |request| Ok(fleet.0.lock().unwrap().play(request)))
    }

    pub(crate) fn check(&self) {
        assert_eq!(self.0.lock().unwrap().wrong, Vec::<String>::new());
    }

    /// A frontend over `count` such workers.
    pub(crate) async fn harness(&self, count: u64, settings: Config) -> (Harness, Vec<Worker>) {
        let router = dynamo_router::Config { mode: dynamo_router::Mode::RoundRobin, ..Default::default() };
        let harness = Harness::with(settings, router).await;
        let mut workers = Vec::new();
        for id in 1..=count {
            workers.push(self.worker(&harness, id).await);
        }
        (harness, workers)
    }

    pub(crate) async fn worker(&self, harness: &Harness, id: u64) -> Worker {
        let words = pieces();
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let mut card = card("m", &words);
        card.guided = true;
        harness.worker(id, card, self.behaviour()).await
    }
}

impl Script {
    fn play(&mut self, request: &Request) -> (Vec<Delta>, Ending) {
        let (begin, seed) = (request.resumed as usize, request.sampling.seed);
        let before = &request.tokens[request.prompt_len()..];
        if (0..begin).any(|position| before[position] != token(seed, position)) {
            self.wrong.push(format!("{}: {before:?} is not what was said", request.id));
        }
        let attempt = self.attempts.entry(request.id.to_string()).or_insert(0);
        let cut = self.cuts.get(*attempt).cloned();
        *attempt += 1;
        let whole = self.len.min(begin + request.stopping.max_tokens as usize);
        let finish = if whole < self.len { Length } else { Stop };
        let (end, ending) = match cut {
            Some((at, ending)) => (at.clamp(begin, whole), ending),
            None if self.silent_about_the_end => (whole, Ending::Reset),
            None => (whole, Ending::Finish(finish)),
        };
        let wanted = request.output.logprobs.is_some();
        let mut deltas: Vec<Delta> = (begin..end)
            .map(|position| {
                let token = token(seed, position);
                let logprob = TokenLogprob { token, logprob: -(position as f32) - 1.0, top: vec![] };
                let logprobs = if wanted { vec![logprob] } else { vec![] };
                Delta { tokens: vec![token], logprobs, ..Delta::default() }
            })
            .collect();
        if let Some(first) = deltas.first_mut() {
            // The next worker finds the whole prompt, and what was said, in its cache.
            first.cached_tokens = Some(if begin == 0 { 1 } else { request.tokens.len() as u32 });
        }
        (deltas, ending)
    }
}

/// What the client is told besides the text: finish reason and counts.
pub(crate) fn told(route: &str, reply: &Reply) -> (String, String) {
    if route == COMPLETIONS {
        let (text, finish) = read(reply, 0);
        return (text, finish.unwrap_or_default());
    }
    let said = said(route, reply);
    (said.content, said.finish)
}

/// The last `usage` in an answer.
fn usage(reply: &Reply) -> Value {
    let find = |value: &Value| match value {
        Value::Object(map) => {
            let nested = map.get("response").and_then(|response| response.get("usage"));
            map.get("usage").or(nested).cloned().filter(|usage| usage.is_object())
        }
        _ => None,
    };
    if reply.header("content-type") == Some("text/event-stream") {
        let events = reply.events();
        let values = events.iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
        return values.filter_map(|value| find(&value)).next_back().unwrap_or_default();
    }
    find(&reply.json()).unwrap_or_default()
}

#[expect(clippy::needless_pass_by_value, reason = "calls with a literal read better so")]
pub(crate) fn body(route: &str, stream: bool, fields: Value) -> Value {
    let mut all = json!({"temperature": 1});
    if !route.contains("messages") && !route.contains("responses") {
        all["seed"] = json!(5);
        if stream {
            all["stream_options"] = json!({"include_usage": true});
        }
    }
    all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    ask(route, stream, "abc", all)
}

fn breaks() -> Vec<Ending> {
    vec![
        Ending::Reset,
        Ending::Fail(Error::unavailable("the worker is shutting down")),
        Ending::Fail(Error::overloaded("full")),
        Ending::Fail(Error::timeout("late")),
    ]
}

/// Text without the draw, for APIs that take no seed.
fn word_count(text: &str) -> usize {
    text.split_whitespace().count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r06_a_worker_may_break_off_anywhere_on_every_route() {
    const LEN: usize = 6;
    let fleet = Fleet::default();
    let (harness, _workers) = fleet.harness(3, config()).await;
    let mut moved = [0.0, 0.0];
    for (route, stream) in ALL_ROUTES {
        let body = body(route, stream, json!({}));
        fleet.set(LEN, vec![]);
        let undisturbed = harness.post(route, &body).await;
        let expected = told(route, &undisturbed);
        assert_eq!(word_count(&expected.0), LEN, "{route}: {}", undisturbed.text());
        for at in 0..=LEN {
            for ending in breaks() {
                fleet.set(LEN, vec![(at, ending.clone())]);
                let reply = harness.post(route, &body).await;
                let found = told(route, &reply);
                let what = format!("{route} {stream} cut at {at} by {ending:?}: {}", reply.text());
                if body.get("seed").is_some() {
                    assert_eq!(found.0, expected.0, "{what}");
                }
                assert_eq!(word_count(&found.0), LEN, "{what}");
                assert_eq!(found.1, expected.1, "{what}");
                // Only the client's own prompt and answer, and what the first worker found of the prompt.
                let mut counted = usage(&reply);
                if at == 0 {
                    assert!(!counted.is_null(), "{what}");
                }
                let reference = usage(&undisturbed);
                if counted["nvext"].is_object() {
                    counted["nvext"] = reference["nvext"].clone();
                }
                assert_eq!(counted, reference, "{what}");
                moved[usize::from(at > 0)] += 1.0;
            }
        }
    }
    fleet.check();
    assert_eq!(harness.metric(METRIC, &["new_request"]).await, moved[0]);
    assert_eq!(harness.metric(METRIC, &["ongoing_request"]).await, moved[1]);
    assert_eq!(harness.metric(DURATION, &["success"]).await, moved[0] + moved[1]);
    assert_eq!(harness.metric(DURATION, &["failure"]).await, 0.0);
    harness.balanced().await;
}

/// Any number of faults up to the limit, anywhere; one more is the client's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_of_n_allows_n_moves() {
    const LEN: usize = 8;
    for limit in 0..4 {
        let fleet = Fleet::default();
        let (harness, workers) = fleet.harness(6, Config { migration_limit: limit as u32, ..config() }).await;
        for (route, stream) in ROUTES {
            let body = body(route, stream, json!({}));
            fleet.set(LEN, vec![]);
            let expected = told(route, &harness.post(route, &body).await);
            let cuts = |count: usize| (0..count).map(|k| (2 * k, Ending::Reset)).collect::<Vec<_>>();
            fleet.set(LEN, cuts(limit));
            assert_eq!(told(route, &harness.post(route, &body).await), expected);
            let before: usize = workers.iter().map(|worker| worker.requests().len()).sum();
            fleet.set(LEN, cuts(limit + 1));
            let reply = harness.post(route, &body).await;
            let after: usize = workers.iter().map(|worker| worker.requests().len()).sum();
            assert_eq!(after - before, limit + 1);
            if stream && limit > 0 {
                let events = reply.events();
                assert!(events[events.len() - 2].contains("\"error\""), "{}", reply.text());
                assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
                let words: usize = events
                    .iter()
                    .filter_map(|event| serde_json::from_str::<Value>(event).ok())
                    .map(|event| {
                        let choice = &event["choices"][0];
                        let text = choice["delta"]["content"].as_str().or(choice["text"].as_str());
                        word_count(text.unwrap_or(""))
                    })
                    .sum();
                assert_eq!(words, 2 * limit, "{}", reply.text());
            } else {
                assert_eq!(reply.status, 503, "{}", reply.text());
            }
        }
        fleet.check();
        harness.balanced().await;
    }
}

/// The rest is asked of nobody when nobody is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r06_without_another_worker_the_stream_ends_with_the_fault() {
    let fleet = Fleet::default();
    let (harness, _workers) = fleet.harness(2, config()).await;
    for (route, stream) in ROUTES {
        fleet.set(6, vec![(2, Ending::Reset), (4, Ending::Fail(Error::overloaded("the last is full")))]);
        let reply = harness.post(route, &body(route, stream, json!({}))).await;
        if stream {
            let events = reply.events();
            let fault = &events[events.len() - 2];
            assert!(fault.contains("\"error\"") && fault.contains("the last is full"), "{}", reply.text());
            assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
        } else {
            assert_eq!(reply.status, 529, "{}", reply.text());
        }
    }
    assert_eq!(harness.metric(DURATION, &["failure"]).await, 4.0);
    harness.balanced().await;
}

/// Random choices, cuts and ways to fail. A failure names its case.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_token_comes_once_whatever_happens() {
    let fleet = Fleet::default();
    let (harness, _workers) = fleet.harness(5, Config { silence_timeout_ms: 60, ..config() }).await;
    let endings = breaks();
    for case in 0..150u64 {
        let pick = |position: u64, len: usize| draw::index(case, position, len);
        let (route, stream) = ROUTES[pick(0, 4)];
        let (len, n) = (1 + pick(1, 30), 1 + pick(2, 3));
        let cuts: Vec<Cut> = (0..pick(3, 4) as u64)
            .map(|k| {
                // A silent worker costs time: few of them.
                let ending =
                    if case % 25 == 0 && k == 0 { Ending::Hang } else { endings[pick(10 + k, 4)].clone() };
                (pick(20 + k, len + 2), ending)
            })
            .collect();
        let mut cuts = cuts;
        cuts.sort_by_key(|cut| cut.0);
        let max_tokens = 1 + pick(4, len + 5);
        let mut body = body(route, stream, json!({"n": n, "seed": case, "max_tokens": max_tokens}));
        if stream {
            body["stream_options"] = Value::Null;
        }
        fleet.set(len, vec![]);
        let undisturbed = harness.post(route, &body).await;
        fleet.set(len, cuts.clone());
        let reply = harness.post(route, &body).await;
        for index in 0..n {
            let (found, expected) = (read(&reply, index), read(&undisturbed, index));
            assert_eq!(word_count(&expected.0), len.min(max_tokens), "case {case}");
            // Whoever says all there may be and breaks off has reached the limit, whatever it would have said.
            assert_eq!(found.0, expected.0, "case {case}: {route} {stream} {cuts:?}");
        }
    }
    fleet.check();
    harness.balanced().await;
}

/// A worker that says nothing any more, to anybody, at any token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r06_answers_of_a_silent_worker_move() {
    const LEN: usize = 4;
    let fleet = Fleet::default();
    let (harness, workers) = fleet.harness(2, Config { silence_timeout_ms: 40, ..config() }).await;
    for (route, stream) in ROUTES {
        let body = body(route, stream, json!({"max_tokens": LEN}));
        for at in 0..=LEN {
            fleet.set(LEN + 1, vec![]);
            let expected = told(route, &harness.post(route, &body).await);
            fleet.set(LEN + 1, vec![(at, Ending::Hang)]);
            let reply = harness.post(route, &body).await;
            assert_eq!(told(route, &reply), expected, "{route} {stream} silent at {at}");
        }
    }
    fleet.check();
    eventually("the silent are told", || workers.iter().all(|worker| worker.open() == 0)).await;
    harness.balanced().await;
}

/// Another choice's tokens do not hide that one waits for nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn choices_move_one_by_one() {
    let fleet = Fleet::default();
    let (harness, _workers) = fleet.harness(3, config()).await;
    for stream in [false, true] {
        for fields in [json!({"n": 3}), json!({"n": 2, "best_of": 3, "logprobs": 0})] {
            if stream && fields.get("best_of").is_some() {
                continue;
            }
            let mut body = body(COMPLETIONS, stream, fields);
            body["seed"] = json!(9);
            fleet.set(9, vec![]);
            let undisturbed = harness.post(COMPLETIONS, &body).await;
            fleet.set(9, vec![(4, Ending::Reset)]);
            let reply = harness.post(COMPLETIONS, &body).await;
            for index in 0..2 {
                assert_eq!(read(&reply, index), read(&undisturbed, index));
            }
            assert_eq!(usage(&reply)["completion_tokens"], usage(&undisturbed)["completion_tokens"]);
            assert_eq!(usage(&reply)["prompt_tokens"], json!(3));
        }
    }
    fleet.check();
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_during_a_move_leaves_nothing_behind() {
    let fleet = Fleet::default();
    let (harness, workers) = fleet.harness(2, config()).await;
    for (count, (route, stream)) in ALL_ROUTES.into_iter().enumerate() {
        fleet.set(6, vec![(3, Ending::Reset), (3, Ending::Hang)]);
        let before: usize = workers.iter().map(|worker| worker.requests().len()).sum();
        let mut client = Client::connect(harness.address).await;
        client.send("POST", route, &[], body(route, stream, json!({})).to_string().as_bytes()).await;
        // The second worker has the rest and says nothing: nobody serves the answer.
        let asked = || workers.iter().map(|worker| worker.requests().len()).sum::<usize>() - before == 2;
        eventually("the answer moves", asked).await;
        drop(client);
        eventually("the engine is told", || workers.iter().all(|worker| worker.open() == 0)).await;
        harness.balanced().await;
        assert_eq!(harness.metric(DURATION, &["cancelled"]).await, count as f64 + 1.0);
    }
}

/// Where another worker could not go on exactly, or must not, the stream ends with the fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r06_guided_pinned_and_long_answers_do_not_move() {
    let fleet = Fleet::default();
    let settings = Config { migration_max_seq_len: Some(40), ..config() };
    let (harness, workers) = fleet.harness(2, settings).await;
    let cases = [
        json!({"response_format": {"type": "json_object"}}),
        json!({"nvext": {"backend_instance_id": 1}}),
        json!({"messages": [{"role": "user", "content": "a prompt of more than forty tokens, each a byte"}]}),
    ];
    for fields in cases {
        for stream in [false, true] {
            fleet.set(6, vec![(3, Ending::Reset)]);
            let before: usize = workers.iter().map(|worker| worker.requests().len()).sum();
            let mut body = body(CHAT, stream, fields.clone());
            body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let reply = harness.post(CHAT, &body).await;
            if stream {
                let events = reply.events();
                assert!(events[events.len() - 2].contains("\"error\""), "{fields}: {}", reply.text());
            } else {
                assert_eq!(reply.status, 503, "{fields}: {}", reply.text());
            }
            let after: usize = workers.iter().map(|worker| worker.requests().len()).sum();
            assert_eq!(after - before, 1, "{fields}");
        }
    }
    assert_eq!(harness.metric("dynamo_frontend_model_migration_max_seq_len_exceeded_total", &[]).await, 2.0);
    assert_eq!(harness.metric(METRIC, &[]).await, 0.0);
    harness.balanced().await;
}

/// Log-probabilities, stop strings and what `nvext` tells go on; the worker named is the one that serves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_told_of_an_answer_goes_on_with_it() {
    let fleet = Fleet::default();
    let (harness, workers) = fleet.harness(2, config()).await;
    let fields = json!({"logprobs": true, "nvext": {"extra_fields": ["worker_id"]}});
    let body = body(CHAT, false, fields);
    for at in 0..=7 {
        fleet.set(7, vec![(at, Ending::Reset)]);
        let asked = |worker: &Worker| worker.requests().len();
        let before: Vec<usize> = workers.iter().map(asked).collect();
        let reply = harness.post(CHAT, &body).await.json();
        let logprobs = reply["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
        let values: Vec<f64> = logprobs.iter().map(|entry| entry["logprob"].as_f64().unwrap()).collect();
        assert_eq!(values, (1..=7).map(|i| -f64::from(i)).collect::<Vec<_>>(), "cut at {at}");
        assert!(workers.iter().zip(before).all(|(worker, before)| asked(worker) == before + 1));
        let last = workers.iter().find(|worker| {
            worker.requests().last().is_some_and(|request| request.resumed as usize == at && at > 0)
        });
        if let Some(last) = last {
            let id = last.requests().last().unwrap().routing.worker.unwrap().0;
            let told = &reply["nvext"]["worker_id"];
            assert_eq!(told["decode_worker_id"], json!(id), "{reply}");
        }
    }
    // A stop string that begins with what one worker said and ends with what the next did.
    let whole = read(&harness.post(CHAT, &body).await, 0).0;
    let words: Vec<&str> = whole.split_inclusive(' ').collect();
    let stop = format!("{}{}", &words[2][1..], &words[3][..1]);
    for at in 2..=4 {
        fleet.set(7, vec![(at, Ending::Reset)]);
        let mut stopping = body.clone();
        stopping["stop"] = json!([stop]);
        let reply = harness.post(CHAT, &stopping).await;
        let found = whole.find(&stop).unwrap();
        assert_eq!(read(&reply, 0), (whole[..found].to_owned(), Some("stop".to_owned())), "cut at {at}");
    }
    fleet.check();
    harness.balanced().await;
}

/// All tokens are there, only the word that they are all is not: nobody is asked for more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_at_its_limit_needs_no_other_worker() {
    let fleet = Fleet::default();
    let (harness, workers) = fleet.harness(2, config()).await;
    fleet.set(50, vec![]);
    fleet.0.lock().unwrap().silent_about_the_end = true;
    for (count, (route, stream)) in (1..).zip(ROUTES) {
        let reply = harness.post(route, &body(route, stream, json!({"max_tokens": 5}))).await;
        let (text, finish) = told(route, &reply);
        assert_eq!((word_count(&text), finish.as_str()), (5, "length"));
        assert_eq!(workers.iter().map(|worker| worker.requests().len()).sum::<usize>(), count);
    }
    assert_eq!(harness.metric(METRIC, &[]).await, 0.0);
    harness.balanced().await;
}

/// A worker that is gone before discovery says so costs one request one move; its successor is used at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r30_a_dead_worker_is_tried_once_and_its_successor_at_once() {
    let fleet = Fleet::default();
    let (harness, mut workers) = fleet.harness(2, config()).await;
    let body = body(CHAT, false, json!({}));
    fleet.set(3, vec![]);
    // It serves no more, and is still listed.
    let dead = workers.remove(0).die();
    for _ in 0..10 {
        assert_eq!(harness.post(CHAT, &body).await.status, 200);
    }
    assert_eq!(harness.metric(METRIC, &["new_request"]).await, 1.0);
    drop(dead);
    let words = pieces();
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    let mut named = card("m", &words);
    named.guided = true;
    let successor = harness.worker(3, named, fleet.behaviour()).await;
    for _ in 0..4 {
        assert_eq!(harness.post(CHAT, &body).await.status, 200);
    }
    assert_eq!(successor.requests().len(), 2);
    harness.balanced().await;
}
