//! R08-R12, R20: what clients send.

use crate::client::Client;
use crate::harness::{Ending, Harness, ROUTES, all_pieces, ask, card, config, read};
use dynamo_frontend::Config;
use dynamo_protocols::UnknownFields;
use dynamo_protocols::limits::Limits;
use dynamo_types::ChatTemplate;
use dynamo_types::FinishReason::Stop;
use serde_json::json;

const STOPPED: Ending = Ending::Finish(Stop);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r08_client_mistakes_are_4xx_and_reach_no_engine() {
    let settings = Config { limits: Limits { stop: 4, ..Limits::default() }, ..config() };
    let harness = Harness::with(settings, dynamo_router::Config::default()).await;
    let mut small = card("m", &[b"ok"]);
    small.context_length = 40;
    let worker = harness.worker(1, small, all_pieces(1, STOPPED)).await;
    let long = "x".repeat(41);
    for (route, stream) in ROUTES {
        let field = if route.contains("chat") { "messages" } else { "prompt" };
        for (prompt, fields, param, words) in [
            ("x", json!({"stop": ["a", "b", "c", "d", "e"]}), "stop", vec!["4", "5"]),
            (long.as_str(), json!({}), field, vec!["40", "tokens"]),
            ("x", json!({"temperature": 3}), "temperature", vec!["2", "3"]),
            ("x", json!({"max_tokens": 0}), "max_tokens", vec!["1", "0"]),
            ("x", json!({"n": 0}), "n", vec!["1", "0"]),
            ("x", json!({"stop_token_ids": [9999]}), "stop_token_ids", vec!["9999", "257"]),
            ("x", json!({"logit_bias": {"300": 1}}), "logit_bias", vec!["300", "257"]),
        ] {
            let reply = harness.post(route, &ask(route, stream, prompt, fields.clone())).await;
            assert_eq!(reply.status, 400, "{route} {fields}: {}", reply.text());
            assert_eq!(reply.header("content-type"), Some("application/json"));
            let error = reply.error();
            assert_eq!(error["param"], param, "{error}");
            assert!(words.iter().all(|word| error["message"].as_str().unwrap().contains(word)), "{error}");
        }
        for body in ["", "{", "[]", "nonsense", "{\"model\": 3}"] {
            let mut client = Client::connect(harness.address).await;
            let length = body.len().to_string();
            let headers = [("content-type", "application/json"), ("content-length", length.as_str())];
            client
                .send("POST", route, if body.is_empty() { &headers } else { &headers[..1] }, body.as_bytes())
                .await;
            assert_eq!(client.reply("POST").await.status, 400, "{body:?}");
        }
        let unknown = harness.post(route, &ask(route, stream, "x", json!({"model": "gone"}))).await;
        assert_eq!((unknown.status, &unknown.error()["code"]), (404, &json!("model_not_found")));
        assert!(unknown.error()["message"].as_str().unwrap().contains("gone"));
    }
    assert!(worker.requests().is_empty());
    let failed = harness.metric("dynamo_frontend_requests_total", &["error_type=\"validation\""]).await;
    assert_eq!(failed, 4.0 * 12.0);
    let unknown = harness.metric("dynamo_frontend_requests_total", &["unknown_model", "not_found"]).await;
    assert_eq!(unknown, 4.0, "unknown models share one label");
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r08_the_context_limit_names_both_numbers_and_caps_answers() {
    let harness = Harness::new().await;
    let mut small = card("m", &[b"ok"]);
    small.context_length = 10;
    let worker = harness.worker(1, small, all_pieces(1, STOPPED)).await;
    let ask = |prompt: &str, fields| ask("/v1/completions", false, prompt, fields);
    for length in [10, 11, 500] {
        let reply = harness.post("/v1/completions", &ask(&"x".repeat(length), json!({}))).await;
        let error = reply.error();
        assert_eq!((reply.status, &error["code"]), (400, &json!("context_length_exceeded")));
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("10 tokens") && message.contains(&format!("{length} tokens")), "{message}");
    }
    for (length, asked, granted) in [(9, None, 1), (4, None, 6), (4, Some(3), 3), (4, Some(100), 6)] {
        let fields = asked.map_or(json!({}), |asked: u32| json!({"max_tokens": asked}));
        assert_eq!(harness.post("/v1/completions", &ask(&"x".repeat(length), fields)).await.status, 200);
        assert_eq!(worker.requests().last().unwrap().stopping.max_tokens, granted);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r09_null_means_absent() {
    let harness = Harness::new().await;
    let _worker = harness.script(&[b"ok"], STOPPED).await;
    let nothing = json!({
        "stop": null, "stop_token_ids": null, "cache_salt": null, "tools": null, "tool_choice": null, "seed": null,
        "logit_bias": null, "logprobs": null, "max_tokens": null, "n": null, "temperature": null, "user": null,
        "stream_options": null, "response_format": null, "nvext": null, "echo": null, "suffix": null,
        "top_p": null, "best_of": null, "metadata": null, "store": null,
    });
    for (route, stream) in ROUTES {
        let plain = harness.post(route, &ask(route, stream, "x", json!({}))).await;
        let nulls = harness.post(route, &ask(route, stream, "x", nothing.clone())).await;
        assert_eq!(read(&plain, 0), read(&nulls, 0), "{route} {stream}");
        if stream {
            let fields = json!({"stop": null, "stream_options": {"include_usage": null}});
            let reply = harness.post(route, &ask(route, stream, "x", fields)).await;
            assert_eq!(read(&plain, 0), read(&reply, 0));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r10_unknown_fields_have_a_policy() {
    for (policy, status, named) in [
        (UnknownFields::Ignore, 200, false),
        (UnknownFields::Warn, 200, true),
        (UnknownFields::Reject, 400, true),
    ] {
        let settings = Config { unknown_fields: policy, ..config() };
        let harness = Harness::with(settings, dynamo_router::Config::default()).await;
        let _worker = harness.script(&[b"ok"], STOPPED).await;
        for (route, stream) in ROUTES {
            let fields = json!({"max_retries": 3, "prompt_cache_key": "x"});
            let reply = harness.post(route, &ask(route, stream, "x", fields)).await;
            assert_eq!(reply.status, status, "{policy:?}");
            let place = if status == 400 {
                reply.error()["message"].as_str().unwrap().to_owned()
            } else {
                reply.header("x-dynamo-ignored-fields").unwrap_or("").to_owned()
            };
            for name in ["max_retries", "prompt_cache_key"] {
                assert_eq!(place.contains(name), named, "{policy:?}: {place}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r11_template_refusals_are_400_with_the_templates_words() {
    let harness = Harness::new().await;
    let mut picky = card("m", &[b"ok"]);
    picky.chat_template = Some(ChatTemplate {
        source: "{% if messages[0].role != 'user' %}{{ raise_exception('a user has to begin') }}{% endif %}{{ messages[0].content }}".into(),
    });
    let worker = harness.worker(1, picky, all_pieces(1, STOPPED)).await;
    for stream in [false, true] {
        let body =
            json!({"model": "m", "stream": stream, "messages": [{"role": "assistant", "content": "hi"}]});
        let reply = harness.post("/v1/chat/completions", &body).await;
        assert_eq!((reply.status, reply.header("content-type")), (400, Some("application/json")));
        assert!(
            reply.error()["message"].as_str().unwrap().contains("a user has to begin"),
            "{}",
            reply.text()
        );
        assert_eq!(reply.error()["param"], "messages");
    }
    assert!(worker.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r12_a_broken_template_disables_chat_for_its_model_only() {
    let harness = Harness::new().await;
    let mut exact = card("exact", &[b"ok"]);
    exact.chat_template =
        Some(ChatTemplate { source: "{{ messages[0].content.0.type }}\n\n<tool>\n".into() });
    let exact = harness.worker(1, exact, all_pieces(1, STOPPED)).await;
    let mut broken = card("broken", &[b"ok"]);
    broken.chat_template = Some(ChatTemplate { source: "{% if %}".into() });
    let _broken = harness.worker(2, broken, all_pieces(1, STOPPED)).await;
    let mut none = card("none", &[b"ok"]);
    none.chat_template = None;
    let _none = harness.worker(3, none, all_pieces(1, STOPPED)).await;

    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "x"}]}]);
    let body = json!({"model": "exact", "messages": parts});
    assert_eq!(harness.post("/v1/chat/completions", &body).await.status, 200);
    // As Jinja2 does, the one newline at the very end of a template file is dropped; all others stay.
    let prompt: Vec<u8> = exact.requests()[0].tokens.iter().map(|&token| token as u8).collect();
    assert_eq!(String::from_utf8(prompt).unwrap(), "text\n\n<tool>");

    for (model, chat) in [("broken", 500), ("none", 400)] {
        let body = ask("/v1/chat/completions", false, "x", json!({"model": model}));
        let reply = harness.post("/v1/chat/completions", &body).await;
        assert_eq!(reply.status, chat, "{}", reply.text());
        let message = reply.error()["message"].as_str().unwrap().to_owned();
        assert!(message.contains(model) && message.contains("template"), "{message}");
        let body = ask("/v1/completions", false, "x", json!({"model": model}));
        assert_eq!(read(&harness.post("/v1/completions", &body).await, 0).0, "ok");
    }
    assert_eq!(harness.get("/health").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r20_size_limits_line_up() {
    let limit = 6 * 1024 * 1024;
    let settings = Config { body_limit_bytes: limit, ..config() };
    let harness = Harness::with(settings, dynamo_router::Config::default()).await;
    let mut large = card("m", &[b"ok"]);
    large.context_length = 100_000_000;
    let worker = harness.worker(1, large, all_pieces(1, STOPPED)).await;
    for (route, stream) in ROUTES {
        let frame = ask(route, stream, "", json!({})).to_string().len();
        for (size, status) in
            [(1_500_000, 200), (5_000_000, 200), (limit, 200), (limit + 1, 413), (limit * 2, 413)]
        {
            let body = ask(route, stream, &"x".repeat(size - frame), json!({})).to_string();
            assert_eq!(body.len(), size);
            let reply = Client::connect(harness.address).await.ask("POST", route, &[], body.as_bytes()).await;
            assert_eq!(reply.status, status, "{size} bytes: {}", reply.text());
            if status == 413 {
                assert!(reply.error()["message"].as_str().unwrap().contains(&limit.to_string()));
            } else {
                assert!(worker.requests().last().unwrap().tokens.len() >= size - frame);
            }
        }
        // The same without a length in front.
        let body = ask(route, stream, &"x".repeat(limit), json!({})).to_string();
        let mut client = Client::connect(harness.address).await;
        let head = format!(
            "POST {route} HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        client.write(head.as_bytes()).await;
        for piece in body.as_bytes().chunks(64 * 1024) {
            client.write(format!("{:x}\r\n", piece.len()).as_bytes()).await;
            client.write(piece).await;
            client.write(b"\r\n").await;
        }
        client.write(b"0\r\n\r\n").await;
        assert_eq!(client.reply("POST").await.status, 413);
    }
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_overrule_the_body() {
    let harness = Harness::new().await;
    let first = harness.worker(1, card("m", &[b"a"]), all_pieces(1, STOPPED)).await;
    let second = harness.worker(0xab, card("m", &[b"a"]), all_pieces(1, STOPPED)).await;
    let body = ask("/v1/completions", false, "x", json!({"nvext": {"backend_instance_id": 1}})).to_string();
    for value in ["171", "0xab"] {
        let headers = [
            ("x-dynamo-worker-instance-id", value),
            ("x-tenant-id", "t"),
            ("x-dynamo-request-priority", "-3"),
        ];
        let reply = Client::connect(harness.address)
            .await
            .ask("POST", "/v1/completions", &headers, body.as_bytes())
            .await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let routing = second.requests()[0].routing.clone();
    assert_eq!((first.requests().len(), second.requests().len()), (0, 2));
    assert_eq!((routing.salt.as_deref(), routing.priority), (Some("t"), -3));
    let headers = [("x-dynamo-worker-instance-id", "ab")];
    let reply = Client::connect(harness.address)
        .await
        .ask("POST", "/v1/completions", &headers, body.as_bytes())
        .await;
    assert_eq!((reply.status, &reply.error()["param"]), (400, &json!("x-dynamo-worker-instance-id")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn structured_output_is_501_where_the_engine_cannot() {
    let harness = Harness::with(config(), dynamo_router::Config::default()).await;
    let worker = harness.worker(1, card("m", &[b"ok"]), all_pieces(1, STOPPED)).await;
    for (route, stream) in ROUTES {
        for (fields, param) in [
            (json!({"response_format": {"type": "json_object"}}), "response_format"),
            (json!({"guided_choice": ["a", "b"]}), "guided_choice"),
        ] {
            let reply = harness.post(route, &ask(route, stream, "x", fields)).await;
            assert_eq!((reply.status, &reply.error()["param"]), (501, &json!(param)), "{}", reply.text());
        }
    }
    assert!(worker.requests().is_empty());
    harness.balanced().await;
}
