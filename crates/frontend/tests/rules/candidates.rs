//! `n`, `best_of`, batches and `echo`: what is answered, what is counted (R04, R05), what is given back (R22).

use crate::client::Client;
use crate::harness::{
    Behaviour, Ending, FIRST_PIECE, Harness, ROUTES, all_pieces, ask, card, eventually, read,
};
use dynamo_types::FinishReason::{Length, Stop};
use dynamo_types::{Delta, Error, Request, TokenLogprob};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

const COMPLETIONS: &str = "/v1/completions";

/// Which candidate of its request this is.
fn index(request: &Request) -> usize {
    // A UUID has five parts; further candidates have a sixth.
    request.id.0.split('-').nth(5).map_or(0, |index| index.parse().unwrap())
}

/// Candidate `i` says piece `i`, with the log-probability `logprobs[i]`.
fn ranked(logprobs: &'static [f32]) -> Behaviour {
    Arc::new(|request| {
        assert!(request.output.logprobs.is_some(), "candidates are compared by their log-probabilities");
        let at = index(request);
        let token = FIRST_PIECE + at as u32;
        let logprob = TokenLogprob { token, logprob: logprobs[at], top: vec![] };
        let delta = Delta {
            tokens: vec![token],
            logprobs: vec![logprob],
            cached_tokens: Some(1),
            ..Delta::default()
        };
        Ok((vec![delta], Ending::Finish(Length)))
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn best_of_answers_the_likeliest_and_counts_all() {
    let harness = Harness::new().await;
    let card = card("m", &[b"a", b"b", b"c", b"d", b"e", b"f"]);
    let worker = harness.worker(1, card, ranked(&[-3.0, -1.0, -2.0, -0.5, -9.0, -0.7])).await;
    for (logprobs, prompts) in [(json!(null), json!(["xx", "yyy"])), (json!(0), json!([[1, 2], [3, 4, 5]]))] {
        let body = json!({"model": "m", "prompt": prompts, "n": 2, "best_of": 3, "logprobs": logprobs});
        let answer = harness.post(COMPLETIONS, &body).await.json();
        let texts: Vec<&str> = answer["choices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|choice| choice["text"].as_str().unwrap())
            .collect();
        assert_eq!(texts, ["b", "c", "d", "f"]);
        for (place, choice) in answer["choices"].as_array().unwrap().iter().enumerate() {
            assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(place), &json!("length")));
            assert_eq!(choice["logprobs"].is_null(), logprobs.is_null(), "{choice}");
        }
        // Each prompt once, however many candidates it has; of candidates also those nobody sees.
        let usage = &answer["usage"];
        assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(5), &json!(6)));
        assert_eq!(
            (&usage["total_tokens"], &usage["prompt_tokens_details"]["cached_tokens"]),
            (&json!(11), &json!(2))
        );
    }
    let requests = worker.requests();
    assert_eq!(requests.len(), 12);
    let seeds: BTreeSet<u64> = requests.iter().map(|request| request.sampling.seed).collect();
    assert_eq!(seeds.len(), 12, "every candidate draws on its own");
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn best_of_is_refused_where_it_means_nothing() {
    let harness = Harness::new().await;
    let worker = harness.script(&[b"ok"], Ending::Finish(Stop)).await;
    for (fields, status, param) in [
        (json!({"best_of": 2, "stream": true}), 400, "best_of"),
        (json!({"best_of": 1, "n": 2}), 400, "best_of"),
        (json!({"best_of": 2, "temperature": 0}), 400, "best_of"),
        (json!({"suffix": "end"}), 501, "suffix"),
    ] {
        let reply = harness.post(COMPLETIONS, &ask(COMPLETIONS, false, "x", fields.clone())).await;
        assert_eq!((reply.status, &reply.error()["param"]), (status, &json!(param)), "{fields}");
    }
    assert!(worker.requests().is_empty());
    // Equal to `n` it chooses nothing.
    for stream in [false, true] {
        let body = ask(COMPLETIONS, stream, "x", json!({"n": 2, "best_of": 2}));
        assert_eq!(read(&harness.post(COMPLETIONS, &body).await, 1), ("ok".into(), Some("stop".into())));
    }
}

/// The counts of a whole answer, or of a stream's last chunk.
fn usage(reply: &crate::client::Reply, stream: bool) -> Value {
    if !stream {
        return reply.json()["usage"].clone();
    }
    let chunks = reply.chunks();
    let counted: Vec<&Value> = chunks.iter().filter(|chunk| !chunk["usage"].is_null()).collect();
    assert_eq!(counted.len(), 1, "{counted:?}");
    assert_eq!(chunks.last(), Some(counted[0]));
    assert_eq!(counted[0]["choices"], json!([]));
    counted[0]["usage"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r05_prompts_are_counted_once_and_answers_all() {
    let harness = Harness::new().await;
    let _worker = harness.script(&[b"one", b" two", b" three"], Ending::Finish(Stop)).await;
    let chat_prompt = "user: xyz\n".len();
    for (route, stream) in ROUTES {
        let base = if stream { json!({"stream_options": {"include_usage": true}}) } else { json!({}) };
        let mut cases = vec![(json!({}), 1, 1), (json!({"n": 4}), 1, 4)];
        if route == COMPLETIONS {
            cases.extend([
                (json!({"echo": true}), 1, 1),
                (json!({"echo": true, "logprobs": 1, "n": 2}), 1, 2),
                (json!({"prompt": ["xyz", "xyz", "xyz"], "n": 2}), 3, 6),
                (json!({"prompt": [[120, 121, 122], [120, 121, 122]], "echo": true}), 2, 2),
                (json!({"prompt": ["xyz"], "n": 3, "best_of": 3}), 1, 3),
            ]);
        }
        for (mut fields, prompts, answers) in cases {
            fields.as_object_mut().unwrap().extend(base.as_object().unwrap().clone());
            let reply = harness.post(route, &ask(route, stream, "xyz", fields.clone())).await;
            let each = if route == COMPLETIONS { 3 } else { chat_prompt };
            let found = usage(&reply, stream);
            assert_eq!(found["prompt_tokens"], each * prompts, "{route} {stream} {fields}");
            assert_eq!(found["completion_tokens"], 3 * answers, "{route} {stream} {fields}");
        }
    }
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn continuous_usage_is_on_every_chunk() {
    let harness = Harness::new().await;
    let _worker = harness.script(&[b"a", b"b"], Ending::Finish(Stop)).await;
    for route in ["/v1/chat/completions", COMPLETIONS] {
        for include in [false, true] {
            let options = json!({"include_usage": include, "continuous_usage_stats": true});
            let body = ask(route, true, "x", json!({"n": 2, "stream_options": options}));
            let chunks = harness.post(route, &body).await.chunks();
            let counts: Vec<u64> =
                chunks.iter().map(|chunk| chunk["usage"]["completion_tokens"].as_u64().unwrap()).collect();
            assert!(counts.is_sorted() && counts.last() == Some(&4), "{route}: {counts:?}");
            let bare = chunks.iter().filter(|chunk| chunk["choices"] == json!([])).count();
            assert_eq!(bare, usize::from(include));
        }
    }
}

/// Bodies that become several requests, and into how many.
fn many() -> Vec<(&'static str, Value, usize)> {
    let mut all = vec![(COMPLETIONS, json!({"n": 2, "best_of": 5}), 5)];
    for stream in [false, true] {
        all.extend([
            ("/v1/chat/completions", json!({"n": 4, "stream": stream}), 4),
            (COMPLETIONS, json!({"n": 3, "echo": true, "stream": stream}), 3),
            (COMPLETIONS, json!({"prompt": ["x", "y", "z"], "n": 2, "stream": stream}), 6),
            (COMPLETIONS, json!({"prompt": [[1], [2]], "stream": stream}), 2),
        ]);
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r22_leaving_cancels_every_candidate() {
    let harness = Harness::new().await;
    let silent: Behaviour = Arc::new(|_| Ok((vec![], Ending::Hang)));
    let talking = harness.script(&[b"word "], Ending::Hang).await;
    let mute = harness.worker(2, card("mute", &[b"word "]), silent).await;
    let mut sent = 0;
    for (route, fields, count) in many() {
        for (model, worker) in [("m", &talking), ("mute", &mute)] {
            let mut client = Client::connect(harness.address).await;
            let mut body = ask(route, false, "x", fields.clone());
            body["model"] = json!(model);
            client.send("POST", route, &[], body.to_string().as_bytes()).await;
            eventually("all candidates run", || worker.open() == count).await;
            if model == "m" && body["stream"] == json!(true) {
                client.read_until("word ").await;
            }
            drop(client);
            eventually("all are told", || worker.open() == 0).await;
            harness.balanced().await;
            sent += count;
        }
    }
    assert_eq!(talking.cancelled() + mute.cancelled(), sent);
    assert!(harness.frontend.ledger().booked.iter().all(|(_, load)| load.is_idle()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r38_one_candidate_that_fails_ends_them_all() {
    let harness = Harness::new().await;
    // Each third one breaks, the others would go on for ever.
    let breaks: Behaviour = Arc::new(|request| match index(request) {
        1 => all_pieces(1, Ending::Fail(Error::engine("broken")))(request),
        _ => all_pieces(1, Ending::Hang)(request),
    });
    let worker = harness.worker(1, card("m", &[b"word"]), breaks).await;
    for (route, fields, _) in many() {
        let reply = harness.post(route, &ask(route, false, "x", fields.clone())).await;
        match fields["stream"] == json!(true) {
            false => assert_eq!(reply.status, 500, "{fields}"),
            true => assert!(
                reply.status == 500 || reply.text().contains("\"error\""),
                "{fields}: {}",
                reply.text()
            ),
        }
        eventually("the others are told", || worker.open() == 0).await;
        harness.balanced().await;
    }
}

/// Offsets count characters of the text that the client sees.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_offsets_are_places_in_the_text() {
    let harness = Harness::new().await;
    let mut card = card("m", &[b"<s>", " é".as_bytes(), b" end"]);
    card.special.bos = Some(FIRST_PIECE);
    card.special.add_bos = true;
    let answer: Behaviour = Arc::new(|request| {
        let logprob = |token: u32| TokenLogprob { token, logprob: -0.5, top: vec![] };
        let tokens = vec![FIRST_PIECE + 1, FIRST_PIECE + 2];
        let delta = Delta {
            logprobs: tokens.iter().map(|&token| logprob(token)).collect(),
            tokens,
            prompt_logprobs: request.tokens.iter().map(|&token| logprob(token)).collect(),
            ..Delta::default()
        };
        Ok((vec![delta], Ending::Finish(Stop)))
    });
    let worker = harness.worker(1, card, answer).await;
    let given = json!(["<s>", "a", "b", " é", " end"]);
    for (prompt, shown, offsets) in [
        // Put in front by the frontend: no place in the text.
        (json!("ab"), "ab é end", json!([0, 0, 1, 2, 4])),
        // Sent by the client: part of what it sent.
        (json!([256, 97, 98]), "<s>ab é end", json!([0, 3, 4, 5, 7])),
    ] {
        for stream in [false, true] {
            let fields = json!({"prompt": prompt, "echo": true, "logprobs": 1});
            let reply = harness.post(COMPLETIONS, &ask(COMPLETIONS, stream, "", fields)).await;
            assert_eq!(read(&reply, 0).0, shown);
            let chunks = if stream { reply.chunks() } else { vec![reply.json()] };
            let (mut tokens, mut places, mut logprobs) = (vec![], vec![], vec![]);
            for chunk in &chunks {
                let found = &chunk["choices"][0]["logprobs"];
                let list = |name: &str| found[name].as_array().cloned().unwrap_or_default();
                tokens.extend(list("tokens"));
                places.extend(list("text_offset"));
                logprobs.extend(list("token_logprobs"));
            }
            assert_eq!((json!(tokens), json!(places)), (given.clone(), offsets.clone()), "{prompt} {stream}");
            assert_eq!((&logprobs[0], logprobs.len()), (&Value::Null, 5));
        }
    }
    assert!(worker.requests().iter().all(|request| request.tokens[..] == [256, 97, 98]));
}
