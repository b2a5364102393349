//! `nvext`: what clients of this kind of system ask for besides, and what they are told (behaviour.md 1.7).

use crate::client::{Client, Reply};
use crate::harness::{ALL_ROUTES, Ending, FIRST_PIECE, Harness, ROUTES, Worker, all_pieces, ask, card};
use dynamo_types::FinishReason::Stop;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const STOPPED: Ending = Ending::Finish(Stop);

async fn post_with(harness: &Harness, route: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
    Client::connect(harness.address).await.ask("POST", route, headers, body.to_string().as_bytes()).await
}

async fn three(harness: &Harness) -> Vec<Worker> {
    let mut workers = Vec::new();
    for id in 1..=3 {
        workers.push(harness.worker(id, card("m", &[b"ok"]), all_pieces(1, STOPPED)).await);
    }
    workers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pins_in_bodies_and_headers_agree() {
    let harness = Harness::new().await;
    let workers = three(&harness).await;
    let none: &[(&str, &str)] = &[];
    let cases: Vec<(Value, Vec<(&str, &str)>)> = vec![
        (json!({"backend_instance_id": 2}), none.to_vec()),
        (json!({"decode_worker_id": 2, "dp_rank": 0}), none.to_vec()),
        (json!({"prefill_worker_id": 2, "prefill_dp_rank": 0}), none.to_vec()),
        (
            json!({"backend_instance_id": 2, "decode_worker_id": 2, "prefill_worker_id": 2, "dp_rank": 0}),
            none.to_vec(),
        ),
        (json!({}), vec![("x-dynamo-worker-instance-id", "0x2")]),
        (json!({}), vec![("x-worker-instance-id", "2"), ("x-data-parallel-rank", "0")]),
        (json!({}), vec![("x-dynamo-prefill-instance-id", "2"), ("x-dynamo-prefill-dp-rank", "4294967295")]),
        // Headers win.
        (
            json!({"backend_instance_id": 1, "dp_rank": 9}),
            vec![("x-dynamo-worker-instance-id", "2"), ("x-dp-rank", "0")],
        ),
        (json!({"prefill_worker_id": 1, "decode_worker_id": 2}), vec![("x-prefill-instance-id", "2")]),
    ];
    for (count, (nvext, headers)) in cases.iter().enumerate() {
        for (route, stream) in ALL_ROUTES {
            let body = ask(route, stream, "x", json!({"nvext": nvext}));
            let reply = post_with(&harness, route, headers, &body).await;
            assert_eq!(reply.status, 200, "{nvext} {headers:?}: {}", reply.text());
        }
        let counts: Vec<usize> = workers.iter().map(|worker| worker.requests().len()).collect();
        assert_eq!(counts, [0, (count + 1) * ALL_ROUTES.len(), 0], "{nvext} {headers:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pins_that_cannot_be_followed_are_refused() {
    let harness = Harness::new().await;
    let workers = three(&harness).await;
    let none: &[(&str, &str)] = &[];
    type Case = (Value, Vec<(&'static str, &'static str)>, &'static str);
    let cases: Vec<Case> = vec![
        (json!({"backend_instance_id": 9}), none.to_vec(), "nvext.backend_instance_id"),
        (json!({"prefill_worker_id": 9}), none.to_vec(), "nvext.backend_instance_id"),
        (json!({"backend_instance_id": 1, "decode_worker_id": 2}), none.to_vec(), "nvext.decode_worker_id"),
        (json!({"backend_instance_id": 1, "prefill_worker_id": 2}), none.to_vec(), "nvext.prefill_worker_id"),
        (json!({"dp_rank": 0, "prefill_dp_rank": 1}), none.to_vec(), "nvext.prefill_dp_rank"),
        (json!({"backend_instance_id": 1, "dp_rank": 1}), none.to_vec(), "nvext.dp_rank"),
        // Without a worker: of any.
        (json!({"dp_rank": 1}), none.to_vec(), "nvext.dp_rank"),
        (json!({}), vec![("x-dynamo-dp-rank", "1")], "nvext.dp_rank"),
        (json!({}), vec![("x-dynamo-worker-instance-id", "one")], "x-dynamo-worker-instance-id"),
        (json!({}), vec![("x-dynamo-request-strict-priority", "-1")], "x-dynamo-request-strict-priority"),
        (json!({"backend_instance": 1}), none.to_vec(), "nvext.backend_instance"),
    ];
    for (nvext, headers, param) in cases {
        for (route, stream) in ROUTES {
            let body = ask(route, stream, "x", json!({"nvext": nvext}));
            let reply = post_with(&harness, route, &headers, &body).await;
            assert_eq!(
                (reply.status, &reply.error()["param"]),
                (400, &json!(param)),
                "{nvext}: {}",
                reply.text()
            );
        }
    }
    assert!(workers.iter().all(|worker| worker.requests().is_empty()));
    let body = ask(CHAT, false, "x", json!({"nvext": {"dp_rank": 0}}));
    assert_eq!(harness.post(CHAT, &body).await.status, 200);
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hints_reach_the_engine() {
    let harness = Harness::new().await;
    let worker = harness.script(&[b"ok"], STOPPED).await;
    let hints =
        json!({"agent_hints": {"priority": -3, "strict_priority": 2, "osl": 9}, "cache_salt": "body"});
    for (route, stream) in ALL_ROUTES {
        let body = ask(route, stream, "x", json!({"nvext": hints, "priority": 8, "cache_salt": "root"}));
        assert_eq!(harness.post(route, &body).await.status, 200);
        let headers = [
            ("x-dynamo-request-priority", "5"),
            ("x-dynamo-request-strict-priority", "7"),
            ("x-tenant-id", "tenant"),
        ];
        assert_eq!(post_with(&harness, route, &headers, &body).await.status, 200);
        // An empty header is none.
        assert_eq!(post_with(&harness, route, &[("x-tenant-id", "")], &body).await.status, 200);
        let requests = worker.requests();
        let found = requests.iter().rev().take(3).rev();
        let found: Vec<_> = found
            .map(|request| &request.routing)
            .map(|routing| {
                (routing.priority, routing.strict_priority, routing.salt.as_deref().unwrap().to_owned())
            })
            .collect();
        let body = || (-3, 2, "body".to_owned());
        assert_eq!(found, [body(), (5, 7, "tenant".to_owned()), body()], "{route}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_can_come_without_template_or_as_ids() {
    let harness = Harness::new().await;
    let worker = harness.script(&[b"ok"], STOPPED).await;
    for (route, stream) in ALL_ROUTES {
        for (nvext, expected) in [
            (json!({"use_raw_prompt": true}), "say".bytes().map(u32::from).collect::<Vec<_>>()),
            (json!({"token_data": [7, 256, 9]}), vec![7, 256, 9]),
            (json!({"token_data": [7], "use_raw_prompt": true}), vec![7]),
        ] {
            let reply = harness.post(route, &ask(route, stream, "say", json!({"nvext": nvext}))).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
            assert_eq!(worker.requests().last().unwrap().tokens[..], expected, "{route} {nvext}");
        }
        let reply =
            harness.post(route, &ask(route, stream, "say", json!({"nvext": {"token_data": [257]}}))).await;
        assert_eq!(reply.status, 400, "{}", reply.text());
        assert!(reply.text().contains("257"));
        if route.contains("completions") {
            assert_eq!(reply.error()["param"], json!("nvext.token_data"), "{route}");
        }
    }
    let several = json!([{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}]);
    let body = ask(CHAT, false, "", json!({"messages": several, "nvext": {"use_raw_prompt": true}}));
    assert_eq!(harness.post(CHAT, &body).await.status, 200);
    assert_eq!(worker.requests().last().unwrap().tokens[..], [97, 98]);
}

/// The chunks of an answer with choices; the whole answer as one.
fn told(reply: &Reply, stream: bool) -> Vec<Value> {
    if !stream {
        return vec![reply.json()];
    }
    reply.chunks().into_iter().filter(|chunk| chunk["choices"] != json!([])).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extra_fields_are_told_to_those_who_ask() {
    let harness = Harness::new().await;
    // The last piece is never seen, and counts.
    let worker = harness.script(&[b"one", b" two", b"END", b"x"], STOPPED).await;
    let all = json!(["worker_id", "timing", "stop_reason", "completion_token_ids", "prompt_token_ids"]);
    for (route, stream) in ROUTES {
        let fields = json!({"stop": "END", "nvext": {"extra_fields": all}, "stream_options": null});
        let reply = harness.post(route, &ask(route, stream, "hi", fields)).await;
        let chunks = told(&reply, stream);
        let parts = |name: &str| -> Vec<Value> {
            chunks.iter().map(|chunk| chunk["nvext"][name].clone()).filter(|part| !part.is_null()).collect()
        };
        let ids =
            json!({"prefill_worker_id": 1, "prefill_dp_rank": 0, "decode_worker_id": 1, "decode_dp_rank": 0});
        assert_eq!(parts("worker_id"), vec![ids; chunks.len()], "{route} {stream}");
        let sampled: Vec<u64> = parts("completion_token_ids")
            .iter()
            .flat_map(|ids| ids.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect::<Vec<_>>())
            .collect();
        let first = u64::from(FIRST_PIECE);
        assert_eq!(sampled, [first, first + 1, first + 2], "{route} {stream}");
        assert_eq!(parts("stop_reason"), [json!("END")]);
        assert_eq!(parts("prompt_token_ids"), [json!(&worker.requests().last().unwrap().tokens[..])]);
        let timing = parts("timing");
        assert_eq!(timing.len(), 1);
        assert_eq!(chunks.last().unwrap()["nvext"]["timing"], timing[0]);
        let ms = |name: &str| timing[0][name].as_f64().unwrap_or_else(|| panic!("{name} in {}", timing[0]));
        assert!(ms("request_received_ms") > 1.6e12);
        assert!(ms("ttft_ms") <= ms("total_time_ms") && ms("prefill_wait_time_ms") <= ms("ttft_ms"));
        assert!((ms("prefill_wait_time_ms") + ms("prefill_time_ms") - ms("ttft_ms")).abs() < 0.01);
        assert_eq!(ms("kv_hit_rate"), 0.0);
        let plain = harness.post(route, &ask(route, stream, "hi", json!({}))).await;
        assert!(!plain.text().contains("nvext"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_several_choices_has_its_own() {
    let harness = Harness::new().await;
    let _workers = three(&harness).await;
    for (route, stream) in ROUTES {
        let fields = json!({"n": 3, "nvext": {"extra_fields": ["worker_id", "completion_token_ids"]}});
        let reply = harness.post(route, &ask(route, stream, "hi", fields)).await;
        let mut ids = [0; 3];
        for chunk in told(&reply, stream) {
            for choice in chunk["choices"].as_array().unwrap() {
                let nvext = if stream { &chunk["nvext"] } else { &choice["nvext"] };
                assert!(
                    (1..=3).contains(&nvext["worker_id"]["decode_worker_id"].as_u64().unwrap()),
                    "{chunk}"
                );
                let index = choice["index"].as_u64().unwrap() as usize;
                ids[index] += nvext["completion_token_ids"].as_array().map_or(0, Vec::len);
            }
        }
        assert_eq!(ids, [1, 1, 1], "{route} {stream}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompt_logprobs_are_told_by_id() {
    let harness = Harness::new().await;
    let worker = harness.script(&[b"ok"], STOPPED).await;
    for (route, stream) in ROUTES {
        let fields = json!({"nvext": {"extra_fields": ["prompt_logprobs"]}});
        let reply = harness.post(route, &ask(route, stream, "ab", fields)).await;
        let found: Vec<Value> = told(&reply, stream)
            .iter()
            .map(|chunk| chunk["nvext"]["prompt_logprobs"].clone())
            .filter(|found| !found.is_null())
            .collect();
        let tokens = worker.requests().last().unwrap().tokens.clone();
        assert_eq!(found.len(), 1, "{route} {stream}");
        let list = found[0].as_array().unwrap();
        assert_eq!((list.len(), &list[0]), (tokens.len(), &Value::Null));
        for (entry, id) in list.iter().zip(tokens.iter()).skip(1) {
            let text = String::from(char::from_u32(*id).unwrap());
            assert_eq!(*entry, json!({id.to_string(): {"logprob": -0.25, "decoded_token": text}}));
        }
        // It changes nothing else.
        assert!(told(&reply, stream).iter().all(|chunk| chunk["choices"][0]["logprobs"].is_null()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn annotations_are_events_with_a_comment() {
    const ID: &str = "0a1b2c3d-0000-4000-8000-000000000001";
    let harness = Harness::new().await;
    let _worker = harness.script(&[b"ok"], STOPPED).await;
    for (route, prompt, ids) in
        [(CHAT, "user: hi\\n", "[117,115,101,114,58,32,104,105,10]"), (COMPLETIONS, "hi", "[104,105]")]
    {
        let names = json!(["request_id", "formatted_prompt", "token_ids", "llm_metrics"]);
        let body = ask(
            route,
            true,
            "hi",
            json!({"nvext": {"annotations": names}, "stream_options": {"include_usage": true}}),
        );
        let reply = post_with(&harness, route, &[("x-dynamo-request-id", ID)], &body).await;
        let head = format!(
            "event: request_id\n: \"{ID}\"\n\nevent: formatted_prompt\n: \"{prompt}\"\n\nevent: token_ids\n: {ids}\n\ndata: {{"
        );
        assert!(reply.text().starts_with(&head), "{}", reply.text());
        let counts = format!(
            "{{\"input_tokens\":{},\"output_tokens\":1,\"cached_tokens\":0}}",
            ids.split(',').count()
        );
        assert!(
            reply.text().contains(&format!("\n\nevent: llm_metrics\n: {counts}\n\ndata: {{")),
            "{}",
            reply.text()
        );
        // Readers of the standard see the answer and nothing else.
        assert!(reply.chunks().iter().all(|chunk| chunk["choices"].is_array()));
        let plain = harness.post(route, &ask(route, true, "hi", json!({}))).await;
        assert!(!plain.text().contains("event:"));
        // An answer in one piece has no events.
        let body = ask(route, false, "hi", json!({"nvext": {"annotations": ["request_id"]}}));
        assert_eq!(harness.post(route, &body).await.json()["choices"].as_array().unwrap().len(), 1);
    }
    let batch = json!({"prompt": ["a", "b"], "nvext": {"annotations": ["token_ids"]}});
    let reply = harness.post(COMPLETIONS, &ask(COMPLETIONS, true, "", batch)).await;
    assert!(reply.text().starts_with("event: token_ids\n: [97]\n\nevent: token_ids\n: [98]\n\ndata: "));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_can_be_shown_as_ids() {
    let harness = Harness::new().await;
    // The halves of a character look alike as text.
    let worker = harness.script(&[b"\xC3", b"\xA9"], STOPPED).await;
    let expected = json!(["token_id:256", "token_id:257"]);
    for (route, stream) in ROUTES {
        let chat = route == CHAT;
        let asked = if chat { json!({"logprobs": true, "top_logprobs": 2}) } else { json!({"logprobs": 2}) };
        let mut fields = asked;
        fields["return_tokens_as_token_ids"] = json!(true);
        let reply = harness.post(route, &ask(route, stream, "hi", fields)).await;
        let (mut tokens, mut rivals) = (Vec::new(), Vec::new());
        for chunk in told(&reply, stream) {
            let found = &chunk["choices"][0]["logprobs"];
            if chat {
                for entry in found["content"].as_array().into_iter().flatten() {
                    tokens.push(entry["token"].clone());
                    rivals.push(entry["top_logprobs"][1]["token"].clone());
                }
            } else {
                tokens.extend(found["tokens"].as_array().cloned().unwrap_or_default());
                let tops = found["top_logprobs"].as_array().cloned().unwrap_or_default();
                rivals.extend(tops.iter().map(|top| json!(top.as_object().unwrap().keys().next_back())));
            }
        }
        assert_eq!(json!(tokens), expected, "{route} {stream}");
        assert!(rivals.iter().all(|rival| rival.as_str().unwrap().starts_with("token_id:")), "{rivals:?}");
    }
    assert_eq!(worker.requests().len(), ROUTES.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r10_what_nvext_cannot_do_is_named_in_the_answer() {
    let harness = Harness::new().await;
    let _worker = harness.script(&[b"ok"], STOPPED).await;
    for (route, stream) in ALL_ROUTES {
        let nvext =
            json!({"max_thinking_tokens": 5, "extra_fields": ["engine_data"], "request_timestamp_ms": 1.5});
        let reply = harness.post(route, &ask(route, stream, "hi", json!({"nvext": nvext}))).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let named = reply.header("x-dynamo-ignored-fields").unwrap();
        for field in ["nvext.max_thinking_tokens", "nvext.extra_fields", "nvext.request_timestamp_ms"] {
            assert!(named.contains(field), "{route}: {named}");
        }
        let reply = harness
            .post(route, &ask(route, stream, "hi", json!({"nvext": {"metadata_upload": {"url": "x"}}})))
            .await;
        assert_eq!(reply.status, 501, "{}", reply.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn switched_off_it_says_nothing_but_keeps_caches_apart() {
    let config = dynamo_frontend::Config { disable_nvext: true, ..crate::harness::config() };
    let harness = Harness::with(config, dynamo_router::Config::default()).await;
    let worker = harness.script(&[b"ok"], STOPPED).await;
    let said = json!({
        "backend_instance_id": 99, "a typing error": {"deep": [1]}, "dp_rank": -4, "cache_salt": "salt",
        "extra_fields": ["worker_id", "timing"], "agent_hints": {"priority": 7},
    });
    for (route, stream) in ALL_ROUTES {
        let body = ask(route, stream, "x", json!({"nvext": said}));
        for (headers, salt) in [
            (
                &[("x-dynamo-worker-instance-id", "nonsense"), ("x-dynamo-meta-policy-class", "a b")][..],
                "salt",
            ),
            (&[("x-tenant-id", "tenant"), ("x-dynamo-request-priority", "5")][..], "tenant"),
        ] {
            let reply = post_with(&harness, route, headers, &body).await;
            assert_eq!(reply.status, 200, "{route}: {}", reply.text());
            assert!(!reply.text().contains("nvext"), "{route}: {}", reply.text());
            let routing = worker.requests().pop().unwrap().routing.clone();
            assert_eq!((routing.salt.as_deref(), routing.priority), (Some(salt), 0), "{route}");
        }
        let body = ask(route, stream, "x", json!({"nvext": {"cache_salt": 1}}));
        assert_eq!(post_with(&harness, route, &[], &body).await.status, 400, "{route}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_class_is_a_name_on_every_route() {
    let harness = Harness::new().await;
    let _worker = harness.script(&[b"ok"], STOPPED).await;
    for (route, stream) in ALL_ROUTES {
        let body = ask(route, stream, "x", json!({}));
        for (class, status) in [("gold", 200), ("", 200), ("two words", 400), ("a,b", 400)] {
            for name in ["x-dynamo-meta-policy-class", "x-meta-policy-class"] {
                let reply = post_with(&harness, route, &[(name, class)], &body).await;
                assert_eq!(reply.status, status, "{route} {class:?}: {}", reply.text());
                let is_named = status == 200 || reply.text().contains(name);
                assert!(is_named, "{}", reply.text());
            }
        }
    }
}
