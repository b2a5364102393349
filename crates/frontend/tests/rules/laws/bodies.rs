//! R08-R12 and R20 over random bodies, on every route that takes one.

use super::cases::{Draws, cases};
use super::stage::{GENERATE, Stage, answer, model, template};
use crate::client::{Client, Reply};
use crate::harness::{Ending, ask, config};
use dynamo_frontend::Config;
use dynamo_protocols::UnknownFields;
use dynamo_protocols::limits::{Effect, Measure, Routes, Rule, TABLE};
use dynamo_types::FinishReason::Stop;
use serde_json::{Map, Value, json};

const STOPPED: Ending = Ending::Finish(Stop);

/// Every route that takes a body about a model, and its part of the table of limits.
const BODIES: [(&str, Routes); 8] = [
    ("/v1/chat/completions", Routes::CHAT),
    ("/v1/completions", Routes::COMPLETIONS),
    ("/v1/messages", Routes::MESSAGES),
    ("/v1/messages/count_tokens", Routes::COUNT_TOKENS),
    ("/v1/responses", Routes::RESPONSES),
    ("/v1/responses/input_tokens", Routes::INPUT_TOKENS),
    ("/tokenize", Routes::TOKENIZE),
    ("/detokenize", Routes::DETOKENIZE),
];

/// Those with a conversation in them.
const CONVERSATIONS: [(&str, &str); 6] = [
    ("/v1/chat/completions", "messages"),
    ("/v1/messages", "messages"),
    ("/v1/messages/count_tokens", "messages"),
    ("/v1/responses", "input"),
    ("/v1/responses/input_tokens", "input"),
    ("/tokenize", "messages"),
];

/// A good body for `route`.
fn body(route: &str, stream: bool, prompt: &str, fields: Value) -> Value {
    let mut body = ask(route, stream, prompt, fields);
    if !GENERATE.contains(&route) {
        body.as_object_mut().unwrap().remove("stream");
    }
    if route == "/detokenize" {
        body.as_object_mut().unwrap().remove("prompt");
        body["tokens"] = json!([120]);
    }
    body
}

/// A client's mistake: 4xx (or 501 for what nobody does), as JSON, with a message.
fn refused(reply: &Reply, sent: &Value) -> Value {
    let is_mistake = (400..500).contains(&reply.status) || reply.status == 501;
    assert!(is_mistake, "{} for {sent}: {}", reply.status, reply.text());
    assert_eq!(reply.header("content-type"), Some("application/json"), "{sent}");
    let error = reply.error();
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{error}");
    error
}

/// A value just outside the rule's limit.
fn outside(rule: &Rule, draws: &mut Draws) -> Option<Value> {
    let too_low = rule.min.is_some() && (rule.max.is_none() || draws.one_in(2));
    let whole = rule.schema.contains("integer") && !rule.schema.contains("number");
    match rule.measure {
        Measure::Value => {
            let edge = if too_low { rule.min? } else { rule.max? };
            let step = if whole { draws.between(1, 9) as f64 } else { 0.5 + draws.below(9) as f64 };
            let value = if too_low { edge - step } else { edge + step };
            Some(if whole { json!(value as i64) } else { json!(value) })
        }
        // Texts and lists below their minimum are empty.
        Measure::Bytes if too_low && rule.min? >= 1.0 => Some(json!("")),
        Measure::Bytes if rule.max? < 200_000.0 => {
            Some(json!("x".repeat(rule.max? as usize + draws.between(1, 9))))
        }
        Measure::Entries if too_low && rule.min? >= 1.0 => Some(json!([])),
        Measure::Entries if rule.max? < 5_000.0 => {
            let entry = match rule.schema {
                schema if schema.contains("\"string\"") => json!("a"),
                schema if schema.contains("integer") => json!(1),
                _ => return None,
            };
            Some(json!(vec![entry; rule.max? as usize + draws.between(1, 9)]))
        }
        Measure::Bytes | Measure::Entries => None,
    }
}

#[tokio::test]
async fn r08_every_limit_of_the_table_is_kept_on_every_route() {
    let stage = Stage::new().await;
    let mut tried = std::collections::BTreeSet::new();
    for mut draws in cases("r08", 1200) {
        let (route, of) = draws.pick(&BODIES);
        // Top-level fields that do something; those with a condition on another field are refused for that one.
        let rules: Vec<&Rule> = TABLE
            .iter()
            .filter(|rule| rule.routes.covers(of) && rule.effect == Effect::Used)
            .filter(|rule| !rule.field.contains(['.', '[']))
            .collect();
        let rule = draws.pick(&rules);
        let Some(value) = outside(rule, &mut draws) else { continue };
        let stream = draws.one_in(2);
        let sent = body(route, stream, "x", json!({rule.field: value}));
        let reply = stage.harness.post(route, &sent).await;
        let error = refused(&reply, &sent);
        let message = error["message"].as_str().unwrap();
        let told = error["param"].as_str().unwrap_or(message);
        assert!(told.contains(rule.field), "{}: {error}", rule.field);
        tried.insert((of.names(), rule.field));
    }
    assert!(tried.len() > 60, "{tried:?}");
    assert_eq!(stage.requests(), 0, "nothing reached an engine");
    stage.harness.balanced().await;
}

/// Any JSON in place of anything.
fn anything(draws: &mut Draws, depth: usize) -> Value {
    match draws.below(if depth == 0 { 7 } else { 9 }) {
        0 => Value::Null,
        1 => json!(draws.one_in(2)),
        2 => json!(draws.bits() as i64),
        3 => json!(f64::from_bits(draws.bits() >> 2)),
        4 => json!(draws.text(3)),
        5 => json!(draws.pick(&["", "user", "text", "function", "auto", "m", "required"])),
        6 => json!(draws.below(5) as i64 - 2),
        7 => (0..draws.below(4)).map(|_| anything(draws, depth - 1)).collect(),
        _ => {
            let names = ["role", "content", "type", "text", "name", "id", "model", "x", "function", "format"];
            (0..draws.below(4))
                .map(|_| (draws.pick(&names).to_owned(), anything(draws, depth - 1)))
                .collect::<Map<_, _>>()
                .into()
        }
    }
}

/// No body is the server's fault: an answer or a refusal, nothing else.
#[tokio::test]
async fn r08_no_body_is_answered_with_a_fault_of_ours() {
    let stage = Stage::new().await;
    let (mut good, mut bad) = (0, 0);
    for mut draws in cases("r08 any body", 1500) {
        let (route, of) = draws.pick(&BODIES);
        stage.say(&mut draws, "ok", STOPPED);
        let stream = draws.one_in(2);
        let mut sent = body(route, stream, "x", json!({}));
        let rules: Vec<&Rule> = TABLE.iter().filter(|rule| rule.routes.covers(of)).collect();
        for _ in 0..draws.between(1, 3) {
            let field = draws.pick(&rules).field.split(['.', '[']).next().unwrap();
            sent[field] = anything(&mut draws, 3);
        }
        let mut text = sent.to_string().into_bytes();
        if draws.one_in(8) {
            text.truncate(draws.below(text.len()));
        }
        if draws.one_in(8) && !text.is_empty() {
            let at = draws.below(text.len());
            text[at] = draws.bits() as u8;
        }
        let mut client = Client::connect(stage.harness.address).await;
        let length = text.len().to_string();
        let headers = [("content-type", "application/json"), ("content-length", length.as_str())];
        client.send("POST", route, &headers, &text).await;
        let reply = client.reply("POST").await;
        if reply.status == 200 {
            good += 1;
        } else {
            bad += 1;
            refused(&reply, &sent);
        }
    }
    assert!(good > 100 && bad > 100, "{good} answered, {bad} refused");
    stage.harness.balanced().await;
}

#[tokio::test]
async fn r09_any_optional_fields_may_be_null() {
    let stage = Stage::new().await;
    for mut draws in cases("r09", 700) {
        let (route, of) = draws.pick(&BODIES);
        let stream = draws.one_in(2);
        let needed = ["model", "messages", "prompt", "input", "tokens", "max_tokens"];
        let mut nulls = Map::new();
        for rule in TABLE.iter().filter(|rule| rule.routes.covers(of) && !rule.field.contains(['.', '['])) {
            let is_needed =
                needed.contains(&rule.field) && !(rule.field == "max_tokens" && of != Routes::MESSAGES);
            if !is_needed && rule.field != "stream" && draws.one_in(3) {
                nulls.insert(rule.field.to_owned(), Value::Null);
            }
        }
        let text = draws.text(5);
        let mut replies = Vec::new();
        for fields in [json!({}), Value::Object(nulls.clone())] {
            stage.say(&mut draws, &text, STOPPED);
            replies.push(stage.harness.post(route, &body(route, stream, "x", fields)).await);
        }
        let [plain, null] = replies.as_slice() else { panic!("two") };
        assert_eq!(null.status, 200, "{route} {nulls:?}: {}", null.text());
        assert_eq!(
            null.header("x-dynamo-ignored-fields"),
            plain.header("x-dynamo-ignored-fields"),
            "{nulls:?}"
        );
        if !GENERATE.contains(&route) {
            assert_eq!(null.json(), plain.json());
            continue;
        }
        assert_eq!(answer(route, null), answer(route, plain), "{route} {nulls:?}");
        let requests = stage.workers[0].requests();
        let [.., before, after] = requests.as_slice() else { panic!("two requests") };
        let asked = |request: &dynamo_types::Request| {
            let sampling = dynamo_types::Sampling { seed: 0, ..request.sampling.clone() };
            format!("{:?} {:?} {:?} {sampling:?}", request.tokens, request.stopping, request.output)
        };
        assert_eq!(asked(after), asked(before), "{route} {nulls:?}");
    }
    stage.harness.balanced().await;
}

#[tokio::test]
async fn r10_unknown_fields_follow_the_policy_on_every_route() {
    for policy in [UnknownFields::Ignore, UnknownFields::Warn, UnknownFields::Reject] {
        let stage = Stage::with(Config { unknown_fields: policy, ..config() }, vec![model("m")]).await;
        for mut draws in cases("r10", 250) {
            let (route, _) = draws.pick(&BODIES);
            let stream = draws.one_in(2);
            let mut names: Vec<String> = (0..draws.between(1, 3))
                .map(|_| format!("{}_{}", draws.pick(&["max", "x", "prompt", "cache"]), draws.below(1000)))
                .collect();
            names.sort();
            names.dedup();
            let fields: Map<String, Value> = names
                .iter()
                .map(|name| {
                    (name.clone(), draws.pick(&[json!(3), json!("x"), json!({"a": [1]}), json!([null])]))
                })
                .collect();
            stage.say(&mut draws, "ok", STOPPED);
            let sent = body(route, stream, "x", Value::Object(fields));
            let reply = stage.harness.post(route, &sent).await;
            let place = if policy == UnknownFields::Reject {
                assert_eq!(reply.status, 400, "{sent}");
                refused(&reply, &sent)["message"].as_str().unwrap().to_owned()
            } else {
                assert_eq!(reply.status, 200, "{sent}: {}", reply.text());
                reply.header("x-dynamo-ignored-fields").unwrap_or("").to_owned()
            };
            for name in &names {
                assert_eq!(
                    place.contains(name.as_str()),
                    policy != UnknownFields::Ignore,
                    "{name} in {place:?}"
                );
            }
        }
        stage.harness.balanced().await;
    }
}

#[tokio::test]
async fn r11_a_templates_refusal_is_a_400_in_its_own_words() {
    const PICKY: &str = "{% for m in messages %}{% if m.content is string and 'forbidden' in m.content %}\
        {{ raise_exception('no: ' ~ m.content) }}{% endif %}{{ m.content }}{% endfor %}";
    let mut picky = model("m");
    picky.chat_template = template(PICKY);
    let stage = Stage::with(config(), vec![picky]).await;
    for mut draws in cases("r11", 600) {
        let ((route, field), stream) = (draws.pick(&CONVERSATIONS), draws.one_in(2));
        let words = format!("{}forbidden{}", draws.text(4), draws.text(4));
        // The last turn follows an answer: Anthropic's neighbours of one role are one turn.
        let mut turns: Vec<Value> = (0..2 * draws.below(3))
            .map(|turn| json!({"role": if turn % 2 == 0 { "user" } else { "assistant" }, "content": draws.prose(3)}))
            .collect();
        turns.push(json!({"role": "user", "content": words}));
        let mut sent = body(route, stream, "x", json!({field: turns}));
        sent.as_object_mut().unwrap().remove("prompt");
        let reply = stage.harness.post(route, &sent).await;
        assert_eq!(reply.status, 400, "{sent}: {}", reply.text());
        let error = refused(&reply, &sent);
        assert!(error["message"].as_str().unwrap().contains(&format!("no: {words}")), "{error}");
        if let Some(param) = error["param"].as_str() {
            assert_eq!(param, field);
        }
    }
    assert_eq!(stage.requests(), 0, "nothing reached an engine");
    stage.harness.balanced().await;
}

/// Published styles with something broken in them: that model says what is wrong, the others go on.
#[tokio::test]
async fn r12_a_broken_template_hurts_its_own_model_only() {
    const STYLES: [&str; 4] = [
        include_str!("../../../../text/tests/data/templates/chatml.jinja"),
        include_str!("../../../../text/tests/data/templates/llama3.jinja"),
        include_str!("../../../../text/tests/data/templates/qwen3.jinja"),
        include_str!("../../../../text/tests/data/templates/mistral.jinja"),
    ];
    let mut stage = Stage::new().await;
    let (mut broken, mut sound) = (0, 0);
    for mut draws in cases("r12", 250) {
        let mut source = draws.pick(&STYLES).to_owned();
        for _ in 0..draws.between(1, 3) {
            let mut at = draws.below(source.len());
            while !source.is_char_boundary(at) {
                at -= 1;
            }
            let part = [
                "{% if %}",
                "{{",
                "%}",
                "{% endfor %}",
                "'",
                "{{ x.y.z() }}",
                "{% for %}",
                "{# ",
                "\u{0}",
                ")",
            ];
            source.insert_str(at, draws.pick(&part));
        }
        let name = format!("mutant-{}", draws.number);
        let mut mutant = model(&name);
        mutant.chat_template = template(&source);
        stage.add(mutant).await;
        stage.say(&mut draws, "ok", STOPPED);
        let route = draws.pick(&["/v1/chat/completions", "/v1/messages", "/v1/responses"]);
        let reply = stage.ask(route, draws.one_in(2), json!({"model": name})).await;
        match reply.status {
            200 => sound += 1,
            // Compiled, and does not take these messages; or did not compile.
            400 | 500 => {
                broken += 1;
                let error = reply.error();
                assert!(error["message"].as_str().unwrap().contains("template"), "{source}: {error}");
            }
            other => panic!("{other} for {source}: {}", reply.text()),
        }
        let reply = stage.ask(route, false, json!({})).await;
        assert_eq!(answer(route, &reply).content, "ok", "after {source}");
        let reply = stage.ask("/v1/completions", false, json!({"model": name})).await;
        assert_eq!(answer("/v1/completions", &reply).content, "ok", "{source}");
    }
    assert!(broken > 50 && sound > 10, "{broken} broken, {sound} sound");
    stage.harness.balanced().await;
}

#[tokio::test]
async fn r20_the_one_limit_on_bodies_is_exact_on_every_route() {
    const LIMIT: usize = 48 * 1024;
    let settings = Config { body_limit_bytes: LIMIT, ..config() };
    let stage = Stage::with(settings, vec![model("m")]).await;
    for mut draws in cases("r20", 600) {
        let (route, _) = draws.pick(&BODIES);
        let size = match draws.below(3) {
            0 => draws.between(1000, LIMIT),
            1 => draws.between(LIMIT - 2, LIMIT + 2),
            _ => draws.between(LIMIT + 1, LIMIT * 3),
        };
        stage.say(&mut draws, "ok", STOPPED);
        let stream = draws.one_in(2);
        let frame = body(route, stream, "x", json!({"user_data": ""})).to_string().len();
        let long = "x".repeat(size - frame);
        let text = if draws.one_in(2) || route == "/detokenize" {
            body(route, stream, "x", json!({"user_data": long})).to_string()
        } else {
            body(route, stream, &format!("x{long}"), json!({"user_data": ""})).to_string()
        };
        assert_eq!(text.len(), size);
        let mut client = Client::connect(stage.harness.address).await;
        if draws.one_in(2) {
            client.send("POST", route, &[], text.as_bytes()).await;
        } else {
            let head = format!(
                "POST {route} HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
            );
            client.write(head.as_bytes()).await;
            let mut chunked = Vec::new();
            for piece in text.as_bytes().chunks(draws.between(512, 20_000)) {
                chunked.extend(format!("{:x}\r\n", piece.len()).bytes());
                chunked.extend(piece);
                chunked.extend(b"\r\n");
            }
            chunked.extend(b"0\r\n\r\n");
            client.write_some(&chunked).await;
        }
        let reply = client.reply("POST").await;
        if size <= LIMIT {
            assert_eq!(reply.status, 200, "{route}, {size} bytes: {}", reply.text());
        } else {
            assert_eq!(reply.status, 413, "{route}, {size} bytes: {}", reply.text());
            assert!(reply.error()["message"].as_str().unwrap().contains(&LIMIT.to_string()));
        }
    }
    stage.harness.balanced().await;
}
