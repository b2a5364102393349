//! Whole bodies, as clients send them: what is accepted, what is dropped, what is refused and how.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use dynamo_protocols::limits::{self, Effect, Limits, Routes};
use dynamo_protocols::openai::nvext::{Annotations, ExtraFields};
use dynamo_protocols::openai::{chat, completions, embeddings};
use dynamo_protocols::{Options, Parsed, UnknownFields, anthropic, responses, tokenize};
use dynamo_types::{Error, Guide};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::fmt::Debug;
use std::path::Path;

#[derive(Clone, Debug, Deserialize)]
struct Case {
    name: String,
    route: String,
    body: Value,
    #[serde(default)]
    dropped: Vec<String>,
    #[serde(default)]
    status: u16,
    #[serde(default)]
    param: Option<String>,
    #[serde(default)]
    says: Vec<String>,
}

fn cases(file: &str) -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The request as text, which is enough to compare it, and what was dropped.
type Read = Result<(String, Vec<String>), Error>;

fn shown<T: Debug>(parsed: Result<Parsed<T>, Error>) -> Read {
    parsed.map(|parsed| (format!("{:?}", parsed.request), parsed.dropped))
}

fn parse_bytes(route: &str, body: &[u8], options: &Options) -> Read {
    match route {
        "chat" => shown(chat::Request::parse(body, options)),
        "completions" => shown(completions::Request::parse(body, options)),
        "messages" => shown(anthropic::Request::parse(body, options)),
        "count_tokens" => shown(anthropic::Request::parse_count(body, options)),
        "responses" => shown(responses::Request::parse(body, options)),
        "input_tokens" => shown(responses::Request::parse_input_tokens(body, options)),
        "embeddings" => shown(embeddings::Request::parse(body, options)),
        "tokenize" => shown(tokenize::Request::parse(body, options)),
        "detokenize" => shown(tokenize::DetokenizeRequest::parse(body, options)),
        other => panic!("{other}"),
    }
}

fn parse(route: &str, body: &Value) -> Read {
    parse_bytes(route, body.to_string().as_bytes(), &Options::default())
}

/// The least that each route takes, and `fields`.
fn with(route: &str, fields: Value) -> Value {
    let messages = json!([{"role": "user", "content": "hi"}]);
    let mut body = match route {
        "chat" | "count_tokens" => json!({"model": "m", "messages": messages}),
        "messages" => json!({"model": "m", "messages": messages, "max_tokens": 9}),
        "responses" | "input_tokens" | "embeddings" => json!({"model": "m", "input": "hi"}),
        "detokenize" => json!({"model": "m", "tokens": [1]}),
        _ => json!({"model": "m", "prompt": "hi"}),
    };
    merge(&mut body, fields);
    body
}

fn chat_with(fields: Value) -> Value {
    with("chat", fields)
}

fn completion_with(fields: Value) -> Value {
    with("completions", fields)
}

fn merge(body: &mut Value, fields: Value) {
    let Value::Object(fields) = fields else { panic!("fields must be an object") };
    body.as_object_mut().unwrap().extend(fields);
}

fn chat_request(fields: Value) -> chat::Request {
    let body = chat_with(fields).to_string();
    chat::Request::parse(body.as_bytes(), &Options::default()).unwrap().request
}

fn completion_request(fields: Value) -> completions::Request {
    let body = completion_with(fields).to_string();
    completions::Request::parse(body.as_bytes(), &Options::default()).unwrap().request
}

#[test]
fn bodies_of_real_clients_are_accepted() {
    for case in cases("accepted.json") {
        let (_, dropped) = parse(&case.route, &case.body).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        assert_eq!(dropped, case.dropped, "{}", case.name);
    }
}

#[test]
fn r08_bad_bodies_are_refused_with_field_limit_and_value() {
    for case in cases("refused.json") {
        let body = match &case.body {
            Value::String(raw) => raw.clone(),
            Value::Object(fields) if fields.contains_key("model") => case.body.to_string(),
            _ => with(&case.route, case.body.clone()).to_string(),
        };
        let Err(error) = parse_bytes(&case.route, body.as_bytes(), &Options::default()) else {
            panic!("{}: accepted", case.name);
        };
        assert_eq!(error.http_status(529), case.status, "{}: {error}", case.name);
        assert_eq!(error.param(), case.param.as_deref(), "{}: {error}", case.name);
        for part in &case.says {
            assert!(error.message().contains(part.as_str()), "{}: {error}", case.name);
        }
        assert!(error.code().is_some(), "{}: no code", case.name);
        assert!(error.message().len() < 300, "{}: too long", case.name);
    }
}

#[test]
fn r08_the_limit_on_stops_can_be_set() {
    let options = Options { limits: Limits { stop: 4, ..Limits::default() }, ..Options::default() };
    let body = chat_with(json!({"stop": ["a", "b", "c", "d", "e"]})).to_string();
    let error = chat::Request::parse(body.as_bytes(), &options).unwrap_err();
    assert_eq!(error.message(), "`stop` must have at most 4 entries, got 5");
    assert_eq!((error.http_status(529), error.param()), (400, Some("stop")));
}

#[test]
fn r10_unknown_fields_follow_the_policy() {
    let body =
        chat_with(json!({"max_retries": 3, "prompt_cache_key": "x", "nvext": {"request_timestamp_ms": 1}}))
            .to_string();
    let parse = |unknown_fields| {
        let options = Options { unknown_fields, ..Options::default() };
        chat::Request::parse(body.as_bytes(), &options)
    };
    assert_eq!(
        parse(UnknownFields::Warn).unwrap().dropped,
        ["max_retries", "prompt_cache_key", "nvext.request_timestamp_ms"]
    );
    assert!(parse(UnknownFields::Ignore).unwrap().dropped.is_empty());
    let error = parse(UnknownFields::Reject).unwrap_err();
    assert_eq!(
        error.message(),
        "Unsupported parameter(s): max_retries, prompt_cache_key, nvext.request_timestamp_ms"
    );
    assert_eq!(error.http_status(529), 400);
    assert_eq!(Options::default().unknown_fields, UnknownFields::Warn);
}

#[test]
fn absent_fields_have_their_documented_values() {
    for route in Routes::MODELS.each() {
        let name = &route.names();
        let takes_stream = limits::find(route, "stream").is_some();
        let base = with(name, if takes_stream { json!({"stream": true}) } else { json!({}) });
        let expected = parse(name, &base).unwrap();
        for rule in limits::TABLE.iter().filter(|rule| rule.routes.covers(route) && rule.field != "stream") {
            // A field inside a choice of shapes says nothing without the shape.
            if rule.field.starts_with("tool_choice.") {
                continue;
            }
            let Ok(default) = serde_json::from_str::<Value>(rule.default) else { continue };
            let mut body = base.clone();
            merge(&mut body, nested(rule.field, default));
            assert_eq!(parse(name, &body).unwrap(), expected, "{name} {}", rule.field);
        }
    }
}

/// `{"a": {"b": value}}` for `a.b`.
fn nested(path: &str, value: Value) -> Value {
    path.rsplit('.').fold(value, |inner, name| json!({name: inner}))
}

#[test]
fn every_row_of_the_table_is_enforced() {
    for rule in limits::TABLE.iter().filter(|rule| !rule.field.contains(['[', '*'])) {
        for route in rule.routes.each() {
            // Of the wrong type for every field there is.
            let fields = nested(rule.field, json!([[[{}]]]));
            let result = parse(&route.names(), &with(&route.names(), fields));
            match (rule.effect, result) {
                (Effect::Used, Err(error)) => {
                    assert_eq!(error.http_status(529), 400, "{}: {error}", rule.field);
                    assert!(error.param().unwrap().starts_with(rule.field), "{}: {error}", rule.field);
                }
                (Effect::Refused, Err(error)) => {
                    assert_eq!((error.http_status(529), error.param()), (501, Some(rule.field)));
                }
                (Effect::None, Ok((_, dropped))) => assert_eq!(dropped, [rule.field]),
                (_, other) => panic!("{} {}: {other:?}", route.names(), rule.field),
            }
        }
    }
}

#[test]
fn fields_end_up_where_they_belong() {
    let request = chat_request(json!({
        "temperature": 0.5, "top_p": 0.9, "top_k": -1, "min_p": 0.1, "repetition_penalty": 1.5, "seed": -1,
        "logit_bias": {"7": -100, "3": 1.5}, "max_tokens": 5, "max_completion_tokens": 6, "min_tokens": 2,
        "stop": ["x", 42], "stop_token_ids": [7], "logprobs": true, "top_logprobs": 3, "cache_salt": "root",
        "priority": 2, "nvext": {"cache_salt": "", "backend_instance_id": 18446744073709551615u64, "dp_rank": 1,
        "agent_hints": {"priority": -3, "strict_priority": 4, "osl": 99}, "annotations": ["request_id"], "ignore_eos": true,
        "extra_fields": ["timing"], "use_raw_prompt": true, "token_data": [5, 6], "prefill_worker_id": 3, "prefill_dp_rank": 2},
        "tools": [{"type": "function", "function": {"name": "f", "description": null, "parameters": {"default": null}}}],
        "chat_template_kwargs": {"enable_thinking": false, "nothing": null}, "reasoning_effort": "low"
    }));
    let sampling = request.sampling();
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (0.5, 0.9, 0));
    assert_eq!(sampling.seed, u64::MAX);
    assert_eq!(sampling.logit_bias, [(3, 1.5), (7, -100.0)]);
    let common = &request.common;
    assert_eq!((common.max_tokens, common.min_tokens), (Some(6), 2));
    assert_eq!((common.stop.clone(), common.stop_token_ids.clone()), (vec!["x".to_owned()], vec![7, 42]));
    assert_eq!((common.logprobs, common.ignore_eos), (Some(3), true));
    let routing = request.routing();
    assert_eq!(routing.worker.unwrap().0, u64::MAX);
    assert_eq!((routing.rank, routing.priority, routing.salt.as_deref()), (Some(1), -3, Some("root")));
    assert_eq!((common.expected_output_tokens, routing.strict_priority), (Some(99), 4));
    assert_eq!(common.annotations, Annotations { request_id: true, ..Annotations::default() });
    assert_eq!(common.extra_fields, ExtraFields { timing: true, ..ExtraFields::default() });
    assert_eq!((common.raw_prompt, common.token_data.clone()), (true, Some(vec![5, 6])));
    assert_eq!((common.prefill_worker.unwrap().0, common.prefill_rank), (3, Some(2)));
    let expected = json!([{"type": "function", "function": {"name": "f", "parameters": {"default": null}}}]);
    assert_eq!(json!(request.template_tools().unwrap()), expected);
    assert_eq!(
        json!(request.chat_template_kwargs),
        json!({"enable_thinking": false, "reasoning_effort": "low"})
    );
    assert!(request.add_generation_prompt);
    assert!(!chat_request(json!({"continue_final_message": true})).add_generation_prompt);
    let hidden = chat_request(
        json!({"tool_choice": "none", "tools": [{"type": "function", "function": {"name": "f"}}]}),
    );
    assert_eq!(hidden.template_tools(), None);
    assert_eq!(chat_request(json!({})).common.seed, None);
    let greedy = chat_request(json!({"temperature": 1.5, "nvext": {"greed_sampling": true}}));
    assert_eq!(greedy.sampling().temperature, 0.0);
}

#[test]
fn prompts_come_in_four_forms() {
    use completions::Prompt::{Texts, Tokens};
    for (prompt, expected) in [
        (json!("a"), Texts(vec!["a".into()])),
        (json!(["a", "b"]), Texts(vec!["a".into(), "b".into()])),
        (json!([1, 2]), Tokens(vec![vec![1, 2]])),
        (json!([[1, 2], [3]]), Tokens(vec![vec![1, 2], vec![3]])),
    ] {
        let request =
            completion_request(json!({"prompt": prompt, "n": 2, "echo": true, "logprobs": 0, "best_of": 2}));
        assert_eq!(request.prompt, expected);
        assert_eq!(request.candidates(), 2 * expected.len() as u32);
        assert!(request.echo);
        assert_eq!(request.common.logprobs, Some(0));
    }
}

#[test]
fn messages_are_written_as_templates_expect() {
    let request = chat_request(json!({"messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "ann"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": [1]}"}},
            {"id": "2", "type": "function", "function": {"name": "g", "arguments": ""}},
            {"id": "3", "type": "function", "function": {"name": "h", "arguments": "{broken"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "ok"},
        {"role": "assistant", "content": "done", "reasoning_content": "because"}
    ]}));
    assert_eq!(
        json!(request.messages),
        json!([
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "ann"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": [1]}}},
                {"id": "2", "type": "function", "function": {"name": "g", "arguments": {}}},
                {"id": "3", "type": "function", "function": {"name": "h", "arguments": "{broken"}}]},
            {"role": "tool", "content": "ok", "tool_call_id": "1"},
            {"role": "assistant", "content": "done", "reasoning_content": "because"}
        ])
    );
    assert_eq!(json!(request.messages[0].flattened())["content"], "a\nb");
}

/// Objects whose fields are the client's own business: null inside means what the client wants it to mean.
const FREE_FORM: [&str; 6] = ["parameters", "metadata", "arguments", "json_schema", "input_schema", "schema"];

/// Adds nulls for absent fields to `value` and everything inside it, as far as `choose` says so.
fn with_nulls(value: &mut Value, names: &[String], choose: &mut impl FnMut() -> bool) {
    match value {
        Value::Object(map) => {
            for (name, inner) in map.iter_mut() {
                let is_arguments = name == "input" && inner.is_object();
                if !FREE_FORM.contains(&name.as_str()) && !is_arguments {
                    with_nulls(inner, names, choose);
                }
            }
            for name in names {
                if choose() && !map.contains_key(name) {
                    map.insert(name.clone(), Value::Null);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| with_nulls(item, names, choose)),
        _ => {}
    }
}

proptest! {
    #[test]
    fn r09_null_is_absent(bits in prop::collection::vec(any::<bool>(), 1..97), unknown in "[a-z_]{1,12}") {
        let mut names: Vec<String> =
            limits::TABLE.iter().filter_map(|rule| rule.field.rsplit('.').next()).map(String::from).collect();
        for extra in ["role", "content", "name", "tool_calls", "tool_call_id", "refusal", "strict", "id", "text", "index"] {
            names.push(extra.into());
        }
        names.push(unknown);
        let mut bits = bits.iter().copied().cycle();
        for case in cases("accepted.json") {
            let mut body = case.body.clone();
            with_nulls(&mut body, &names, &mut || bits.next().unwrap_or(true));
            prop_assert_eq!(parse(&case.route, &body).unwrap(), parse(&case.route, &case.body).unwrap());
        }
    }

    #[test]
    fn r08_no_body_panics_or_is_blamed_on_the_server(
        case in 0usize..64,
        key in any::<prop::sample::Index>(),
        junk in prop::sample::select(vec!["null", "-1", "1e999", "0.5", "true", "\"\"", "\"x\"", "[]", "[null]", "[[1]]", "{}", "{\"type\":1}", "99999999999999999999", "-0"]),
    ) {
        let all = cases("accepted.json");
        let case = &all[case % all.len()];
        let mut body: Map<String, Value> = case.body.as_object().unwrap().clone();
        let rule = &limits::TABLE[key.index(limits::TABLE.len())];
        let Ok(junk) = serde_json::from_str(junk) else { return Ok(()) };
        let Value::Object(fields) = nested(rule.field, junk) else { return Ok(()) };
        body.extend(fields);
        if let Err(error) = parse(&case.route, &Value::Object(body)) {
            prop_assert!([400, 501].contains(&error.http_status(529)), "{}", error);
            prop_assert!(error.param().is_some(), "{}", error);
        }
    }
}

#[test]
fn every_way_to_ask_for_a_form_becomes_a_guide() {
    let schema = Guide::JsonSchema(r#"{"type":"integer"}"#.into());
    let asked = [
        (json!({}), None),
        (json!({"response_format": {"type": "text"}, "guided_json": null}), None),
        (json!({"response_format": {"type": "json_object"}}), Some(Guide::JsonObject)),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}}),
            Some(schema.clone()),
        ),
        (json!({"guided_json": {"type": "integer"}}), Some(schema.clone())),
        (json!({"guided_json": "{\"type\":\"integer\"}"}), Some(schema.clone())),
        (json!({"structured_outputs": {"json": {"type": "integer"}}}), Some(schema)),
        (json!({"structured_outputs": {"json_object": false}}), None),
        (json!({"guided_regex": "a+"}), Some(Guide::Regex("a+".into()))),
        (json!({"guided_grammar": "start: \"a\""}), Some(Guide::Lark("start: \"a\"".into()))),
        (json!({"guided_choice": ["a", "b"]}), Some(Guide::Choice(vec!["a".into(), "b".into()]))),
    ];
    for (fields, guide) in asked {
        for asked in
            [chat_request(fields.clone()).common.guide, completion_request(fields.clone()).common.guide]
        {
            let frame = asked.map(Guide::into_frame);
            // Errors of its grammar name the field that it came in.
            assert!(frame.iter().all(|frame| fields.get(&*frame.field).is_some()), "{fields}: {frame:?}");
            assert_eq!(frame.map(|frame| frame.answer), guide, "{fields}");
        }
    }
}

/// Whatever way it comes, and whatever it is made of.
#[test]
fn the_text_of_a_schema_has_a_limit() {
    let schema = json!({"type": "object", "description": "x".repeat(131_072)});
    let text = schema.to_string();
    let tools = |flat: bool, count: usize| -> Value {
        let part = json!({"type": "object", "description": "x".repeat(131_072 / count)});
        let function = json!({"name": "f", "parameters": part});
        let tool = match flat {
            true => json!({"type": "function", "name": "f", "parameters": part}),
            false => json!({"type": "function", "function": function}),
        };
        vec![tool; count].into()
    };
    let format = json!({"type": "json_schema", "name": "n", "schema": schema});
    let forced = |count| json!({"tools": tools(false, count), "tool_choice": "required"});
    for (route, fields, param) in [
        (
            "chat",
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}),
            "response_format.json_schema.schema",
        ),
        ("completions", json!({"guided_json": schema}), "guided_json"),
        ("completions", json!({"guided_json": text}), "guided_json"),
        ("chat", json!({"structured_outputs": {"json": schema}}), "structured_outputs.json"),
        ("chat", forced(1), "tools"),
        ("chat", forced(8), "tools"),
        ("responses", json!({"text": {"format": format}}), "text.format.schema"),
        ("responses", json!({"tools": tools(true, 1), "tool_choice": "required"}), "tools"),
        (
            "messages",
            json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}}),
            "output_config.format.schema",
        ),
    ] {
        let error = parse(route, &with(route, fields)).unwrap_err();
        assert_eq!(
            (error.param(), error.code()),
            (Some(param), Some("string_above_max_length")),
            "{route} {error}"
        );
        assert!(error.message().contains("131072 bytes"), "{error}");
    }
    // Given to the template only.
    parse("chat", &chat_with(json!({"tools": tools(false, 1)}))).unwrap();
}

#[test]
fn nvext_is_strict_and_names_the_nearest_field() {
    let cases = [
        (json!({"backend_instance": 1}), "nvext.backend_instance", "did you mean `backend_instance_id`?"),
        (json!({"use_raw_promt": true}), "nvext.use_raw_promt", "`use_raw_prompt`"),
        (json!({"agent_hints": {"priorty": 1}}), "nvext.agent_hints.priorty", "`priority`"),
        (
            json!({"routing_constraints": {"required": ["a"]}}),
            "nvext.routing_constraints.required",
            "`required_taints`",
        ),
        (json!({"router": {"ttft": 1}}), "nvext.router.ttft", "`ttft_target`"),
    ];
    for route in ["chat", "completions", "messages", "responses"] {
        for (nvext, param, says) in &cases {
            for policy in [UnknownFields::Ignore, UnknownFields::Warn, UnknownFields::Reject] {
                let options = Options { unknown_fields: policy, ..Options::default() };
                let body = with(route, json!({"nvext": nvext})).to_string();
                let error = parse_bytes(route, body.as_bytes(), &options).unwrap_err();
                assert_eq!((error.http_status(529), error.param()), (400, Some(*param)), "{error}");
                assert!(error.message().contains(says), "{error}");
            }
        }
        // A name as long as a body is refused without being compared.
        let body = with(route, json!({"nvext": {"x".repeat(100_000): 1}}));
        assert!(parse(route, &body).unwrap_err().message().len() < 200);
    }
}

#[test]
fn what_nvext_cannot_do_is_named() {
    let dropped = |route, nvext: Value| parse(route, &with(route, json!({"nvext": nvext}))).unwrap().1;
    let asked = json!({"extra_fields": ["worker_id", "engine_data"], "annotations": ["other", "request_id"],
        "agent_hints": {"speculative_prefill": true}, "router": {"itl_target": 5}});
    let named = [
        "nvext.extra_fields[1]",
        "nvext.annotations[0]",
        "nvext.agent_hints.speculative_prefill",
        "nvext.router.itl_target",
    ];
    let mut found = dropped("chat", asked.clone());
    found.sort();
    let mut expected = named.map(str::to_owned);
    expected.sort();
    assert_eq!(found, expected);
    // These have no place for either.
    for route in ["messages", "responses"] {
        let found = dropped(route, asked.clone());
        assert!(
            found.contains(&"nvext.extra_fields".to_owned())
                && found.contains(&"nvext.annotations".to_owned())
        );
    }
    assert!(
        dropped("chat", json!({"agent_hints": {"speculative_prefill": false}, "extra_fields": []}))
            .is_empty()
    );
}

#[test]
fn candidates_are_counted() {
    let request = completion_request(json!({"prompt": ["a", "b"], "n": 2, "best_of": 5}));
    assert_eq!((request.common.n, request.candidates(), request.best_of), (2, 10, 5));
    let request = completion_request(json!({"n": 3}));
    assert_eq!((request.common.n, request.candidates(), request.best_of), (3, 3, 3));
    // As many as choices is no choice between candidates, so it can be streamed.
    assert!(completion_request(json!({"n": 2, "best_of": 2, "stream": true})).common.stream);
    let tokens = completion_request(json!({"return_tokens_as_token_ids": true}));
    assert!(
        tokens.common.tokens_as_ids
            && chat_request(json!({"return_tokens_as_token_ids": true})).common.tokens_as_ids
    );
}
