//! R01-R05: what the client reads.

use crate::harness::{Ending, Harness, ROUTES, ask, card, read};
use dynamo_types::FinishReason::{Length, Stop};
use dynamo_types::draw;
use serde_json::{Value, json};

const STOPPED: Ending = Ending::Finish(Stop);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r01_characters_are_whole_however_tokens_cut_them() {
    let harness = Harness::new().await;
    let worker = harness.script(&[b"\xF0", b"\x9F", b"\x98", b"\x80", b"A"], STOPPED).await;
    for (route, stream) in ROUTES {
        let reply = harness.post(route, &ask(route, stream, "x", json!({}))).await;
        assert_eq!(read(&reply, 0), ("😀A".into(), Some("stop".into())), "{route} {stream}");
        if stream {
            let visible = reply.chunks().iter().filter(|chunk| has_text(chunk)).count();
            assert!(visible <= 2, "{}", reply.text());
        }
    }
    drop(worker);
    let paragraph = "한국어 문장, mixed with ASCII, 日本語 and 👩‍👩‍👧‍👦 emoji é è 🇰🇷. ".repeat(4);
    for case in 0..50u64 {
        let pieces = split(paragraph.as_bytes(), case);
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        let name = format!("split-{case}");
        let _worker = harness
            .worker(100 + case, card(&name, &pieces), crate::harness::all_pieces(pieces.len(), STOPPED))
            .await;
        for (route, stream) in ROUTES {
            let reply = harness.post(route, &ask(route, stream, "x", json!({"model": name}))).await;
            assert_eq!(read(&reply, 0).0, paragraph, "case {case} {route} {stream}");
        }
    }
    harness.balanced().await;
}

fn split(bytes: &[u8], case: u64) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let len = (1 + draw::index(case, pieces.len() as u64, 5)).min(rest.len());
        let (piece, left) = rest.split_at(len);
        pieces.push(piece.to_vec());
        rest = left;
    }
    pieces
}

fn has_text(chunk: &Value) -> bool {
    let choice = &chunk["choices"][0];
    [&choice["delta"]["content"], &choice["text"]]
        .into_iter()
        .any(|text| text.as_str().is_some_and(|t| !t.is_empty()))
}

/// One engine answer and what stop strings make of it.
async fn stops(pieces: &[&[u8]], ending: Ending, stop: Value, expected: (&str, &str)) {
    let harness = Harness::new().await;
    let worker = harness.script(pieces, ending).await;
    for (route, stream) in ROUTES {
        let reply = harness.post(route, &ask(route, stream, "x", json!({"stop": stop}))).await;
        let (text, finish) = read(&reply, 0);
        assert_eq!((text.as_str(), finish.as_deref()), (expected.0, Some(expected.1)), "{route} {stream}");
    }
    // R04: no stop string ever reaches an engine; the request type has no place for one.
    assert_eq!(worker.requests().len(), ROUTES.len());
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r02_stop_strings_are_held_back() {
    stops(&[b"ABC", b"DE", b"FG", b"H", b"I"], Ending::Hang, json!(["DEFGH"]), ("ABC", "stop")).await;
    stops(&[b"ABC", b"DE", b"X"], STOPPED, json!(["DEFGH"]), ("ABCDEX", "stop")).await;
    stops(&[b"ABC", b"DE"], Ending::Finish(Length), json!(["DEFGH"]), ("ABCDE", "length")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r03_the_earliest_stop_wins() {
    stops(&[b"there"], Ending::Hang, json!(["re", "he"]), ("t", "stop")).await;
    stops(&[b"there"], Ending::Hang, json!(["he", "re"]), ("t", "stop")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r04_counts_stay_what_was_sampled() {
    let harness = Harness::new().await;
    let _worker = harness.script(&[b"4, ", b"5"], Ending::Hang).await;
    for (route, stream) in ROUTES {
        let mut body = ask(route, stream, "x", json!({"stop": "5"}));
        if stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        let reply = harness.post(route, &body).await;
        assert_eq!(read(&reply, 0), ("4, ".into(), Some("stop".into())), "{route} {stream}");
        let usage = if stream {
            reply.chunks().last().unwrap()["usage"].clone()
        } else {
            reply.json()["usage"].clone()
        };
        assert_eq!(usage["completion_tokens"], 2, "{usage}");
    }
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r05_usage_comes_once_and_only_when_asked_for() {
    let harness = Harness::new().await;
    let _worker = harness.script(&[b"a", b"b", b"c"], STOPPED).await;
    for route in ["/v1/chat/completions", "/v1/completions"] {
        for (options, expected) in
            [(None, 0), (Some(json!({"include_usage": true})), 1), (Some(json!({"include_usage": false})), 0)]
        {
            let mut body = ask(route, true, "four", json!({}));
            if let Some(options) = &options {
                body["stream_options"] = options.clone();
            }
            let reply = harness.post(route, &body).await;
            let chunks = reply.chunks();
            let with_usage: Vec<&Value> = chunks.iter().filter(|chunk| !chunk["usage"].is_null()).collect();
            assert_eq!(with_usage.len(), expected, "{route} {options:?}: {}", reply.text());
            if expected == 1 {
                let last = chunks.last().unwrap();
                assert_eq!(last["choices"], json!([]));
                assert_eq!(last["usage"]["completion_tokens"], 3);
                let prompt = if route.contains("chat") { "user: four\n".len() } else { 4 };
                assert_eq!(last["usage"]["prompt_tokens"], prompt);
                assert_eq!(last["usage"]["total_tokens"], prompt + 3);
                assert!(chunks.iter().all(|chunk| chunk.as_object().unwrap().contains_key("usage")));
            }
        }
        let whole = harness.post(route, &ask(route, false, "four", json!({}))).await.json();
        assert_eq!(whole["usage"]["completion_tokens"], 3);
        assert_eq!(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    }
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r13_a_stream_folds_into_the_whole_answer() {
    let harness = Harness::new().await;
    let _worker =
        harness.script(&[b"\xED", b"\x95", b"\x9C", b" b", b"c", b"END", b"d"], Ending::Finish(Length)).await;
    for route in ["/v1/chat/completions", "/v1/completions"] {
        for fields in [
            json!({}),
            json!({"stop": ["END"]}),
            json!({"stop": ["END"], "include_stop_str_in_output": true}),
            json!({"n": 3}),
            json!({"n": 12, "stop": ["c"]}),
        ] {
            let n = fields["n"].as_u64().unwrap_or(1) as usize;
            for logprobs in [false, true] {
                let mut fields = fields.clone();
                if logprobs {
                    fields["logprobs"] = if route.contains("chat") { json!(true) } else { json!(2) };
                }
                let streamed = harness.post(route, &ask(route, true, "p", fields.clone())).await;
                let whole = harness.post(route, &ask(route, false, "p", fields.clone())).await;
                assert_eq!(whole.json()["choices"].as_array().unwrap().len(), n);
                for index in 0..n {
                    assert_eq!(read(&streamed, index), read(&whole, index), "{route} {fields}");
                }
            }
        }
    }
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_have_the_shape_clients_expect() {
    let harness = Harness::new().await;
    let _worker = harness.script(&[b"a", b"b"], STOPPED).await;
    let chunks = harness
        .post(ROUTES[1].0, &ask(ROUTES[1].0, true, "x", json!({"n": 2, "temperature": 1})))
        .await
        .chunks();
    for index in 0..2 {
        let own: Vec<&Value> =
            chunks.iter().map(|c| &c["choices"][0]).filter(|c| c["index"] == index).collect();
        assert_eq!(own[0]["delta"], json!({"role": "assistant", "content": ""}));
        assert_eq!(own.iter().filter(|c| !c["delta"]["role"].is_null()).count(), 1);
        assert_eq!(own.last().unwrap()["finish_reason"], "stop");
        assert!(own[1..own.len() - 1].iter().all(|c| c["delta"]["content"] != ""));
    }
    let ids: std::collections::BTreeSet<&str> = chunks.iter().map(|c| c["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 1);
    assert!(ids.first().unwrap().starts_with("chatcmpl-"));
    assert!(chunks.iter().all(|c| c["object"] == "chat.completion.chunk" && c["model"] == "m"));
    let whole = harness.post("/v1/completions", &ask("/v1/completions", false, "x", json!({}))).await.json();
    assert!(whole["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(whole["object"], "text_completion");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_probabilities_have_both_shapes() {
    let harness = Harness::new().await;
    let worker = harness.script(&[b"ab", b"c"], STOPPED).await;
    let body = ask(ROUTES[0].0, false, "x", json!({"logprobs": true, "top_logprobs": 2}));
    let chat = harness.post(ROUTES[0].0, &body).await.json();
    let content = &chat["choices"][0]["logprobs"]["content"];
    assert_eq!(content[0]["token"], "ab");
    assert_eq!(content[0]["bytes"], json!([97, 98]));
    assert_eq!(content[0]["logprob"], -0.5);
    assert_eq!(content[0]["top_logprobs"][1], json!({"token": "A", "bytes": [65], "logprob": -1.5}));
    assert_eq!(worker.requests()[0].output.logprobs, Some(2));

    for stream in [false, true] {
        let body = ask("/v1/completions", stream, "é!", json!({"logprobs": 1, "echo": true}));
        let reply = harness.post("/v1/completions", &body).await;
        assert_eq!(read(&reply, 0).0, "é!abc");
        let lists: Vec<Value> = if stream {
            reply
                .chunks()
                .iter()
                .map(|chunk| chunk["choices"][0]["logprobs"].clone())
                .filter(|l| !l.is_null())
                .collect()
        } else {
            vec![reply.json()["choices"][0]["logprobs"].clone()]
        };
        let join = |field: &str| -> Vec<Value> {
            lists.iter().flat_map(|list| list[field].as_array().unwrap().clone()).collect()
        };
        // The bytes tokenizer gives `é` two tokens.
        assert_eq!(
            join("token_logprobs"),
            json!([null, -0.25, -0.25, -0.5, -0.5]).as_array().unwrap().clone()
        );
        assert_eq!(join("tokens")[2..], [json!("!"), json!("ab"), json!("c")]);
        assert_eq!(join("text_offset")[2..], [json!(1), json!(2), json!(4)]);
        assert_eq!(join("top_logprobs")[0], Value::Null);
    }
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_and_choices_are_numbered_and_seeded() {
    let harness = Harness::new().await;
    let worker = harness.script(&[b"z"], STOPPED).await;
    for stream in [false, true] {
        let body =
            json!({"model": "m", "prompt": ["a", "bc"], "n": 2, "echo": true, "seed": 7, "stream": stream});
        let reply = harness.post("/v1/completions", &body).await;
        let texts: Vec<String> = (0..4).map(|index| read(&reply, index).0).collect();
        assert_eq!(texts, ["az", "az", "bcz", "bcz"]);
    }
    let whole = json!({"model": "m", "prompt": [[97], [98, 99]], "n": 2, "seed": 7});
    let usage = harness.post("/v1/completions", &whole).await.json()["usage"].clone();
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(3), &json!(4)));
    let requests = worker.requests();
    let mut seeds: Vec<u64> = requests[..4].iter().map(|request| request.sampling.seed).collect();
    seeds.sort_unstable();
    assert_eq!(seeds.iter().collect::<std::collections::BTreeSet<_>>().len(), 4, "{seeds:?}");
    assert!(seeds.contains(&7), "the first choice has the client's own seed");
    let mut again: Vec<u64> = requests[4..8].iter().map(|request| request.sampling.seed).collect();
    again.sort_unstable();
    assert_eq!(seeds, again);
    harness.balanced().await;
}
