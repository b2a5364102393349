use super::*;
use crate::openai::logprobs::{ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob};
use crate::openai::{Usage, chat, completions, models};
use crate::{ChunkWriter, Extras, error_body};
use bytes::BytesMut;
use dynamo_types::{Error, FinishReason};

/// The schema of `name`, and a value checked against it as far as types, names and required fields go.
fn check(document: &Value, schema: &Value, value: &Value, place: &str) {
    if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
        let target =
            document.pointer(name.trim_start_matches('#')).unwrap_or_else(|| panic!("{name} is missing"));
        return check(document, target, value, place);
    }
    if let Some(options) = schema.get("oneOf").and_then(Value::as_array) {
        let option = options.iter().find(|option| value.is_null() == (option["type"] == "null"));
        return check(document, option.unwrap(), value, place);
    }
    if let Some(constant) = schema.get("const") {
        assert_eq!(constant, value, "{place}");
    }
    if let Some(kind) = schema.get("type") {
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() || kind == "number" => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let numeric = found == "integer" && kind.to_string().contains("number");
        assert!(numeric || kind.to_string().contains(found), "{place}: {kind} but {found}");
    }
    if let (Some(properties), Some(map)) = (schema.get("properties"), value.as_object()) {
        for name in schema["required"].as_array().into_iter().flatten() {
            assert!(map.contains_key(name.as_str().unwrap()), "{place}: {name} is missing");
        }
        for (name, inner) in map {
            let known = properties.get(name).unwrap_or_else(|| panic!("{place}.{name} is not documented"));
            check(document, known, inner, &format!("{place}.{name}"));
        }
    }
    if let (Some(items), Some(values)) = (schema.get("items"), value.as_array()) {
        values.iter().for_each(|inner| check(document, items, inner, &format!("{place}[]")));
    }
}

fn check_named(name: &str, value: &Value) {
    let document = document();
    check(&document, &reference(name), value, name);
}

fn tokens() -> Vec<TokenLogprob> {
    let top = vec![TopLogprob { token: "b".into(), bytes: b"b".to_vec(), logprob: -1.5 }];
    vec![TokenLogprob { token: "a".into(), bytes: b"a".to_vec(), logprob: Some(-0.25), top, text_offset: 0 }]
}

#[test]
fn unary_answers_are_as_documented() {
    let choice = chat::Choice::new(0, "a".into(), Some(ChatLogprobs(tokens())), Some(FinishReason::Stop));
    let response = chat::Response::new("chatcmpl-1", 5, "m", vec![choice], Usage::new(3, 1, 0));
    check_named("ChatCompletion", &serde_json::to_value(response).unwrap());
    let choice = completions::Choice::new(0, "a".into(), Some(CompletionLogprobs(tokens())), None);
    let response = completions::Response::new("cmpl-1", 5, "m", vec![choice], Usage::new(3, 1, 0));
    check_named("Completion", &serde_json::to_value(response).unwrap());
    let fault: Value = serde_json::from_slice(&error_body(&Error::invalid("x"))).unwrap();
    check_named("Error", &fault);
    let model = models::Model {
        id: "m".into(),
        object: "model",
        created: 1,
        owned_by: "dynamo",
        context_window: 8,
        max_model_len: 8,
    };
    check_named("ModelList", &serde_json::to_value(models::List::new(vec![model])).unwrap());
    let mut ready = models::Ready { model: "m".into(), ..Default::default() };
    let mut namespace = models::NamespaceReady::default();
    namespace.worker_types.insert("aggregated".into(), models::WorkerType::default());
    ready.namespaces.insert("default".into(), namespace);
    check_named("ModelReady", &serde_json::to_value(ready).unwrap());
}

#[test]
fn chunks_are_as_documented() {
    let tokens = tokens();
    let extras = Extras { logprobs: Some(&tokens), usage: Some(Usage::new(1, 1, 1)) };
    for (name, writer) in [
        ("ChatCompletionChunk", ChunkWriter::chat("c", 1, "m").include_usage(true)),
        ("Completion", ChunkWriter::completion("c", 1, "m").include_usage(true)),
    ] {
        let mut out = BytesMut::new();
        writer.role(&mut out, 0);
        writer.content(&mut out, 0, "a", Extras::default());
        writer.content(&mut out, 0, "a", extras);
        writer.finish(&mut out, 0, "", Extras::default(), FinishReason::Stop);
        writer.usage(&mut out, &Usage::new(1, 1, 1));
        let mut reader = crate::sse::Reader::default();
        reader.push(&out).unwrap();
        while let Some(event) = reader.next_event() {
            check_named(name, &serde_json::from_str(&event.data).unwrap());
        }
    }
}

#[test]
fn requests_are_made_from_the_table() {
    let document = document();
    let chat = &document["components"]["schemas"]["ChatRequest"]["properties"];
    assert_eq!(chat["temperature"]["maximum"], 2.0);
    assert_eq!(chat["temperature"]["type"], json!(["number", "null"]));
    assert_eq!(chat["n"]["maximum"], 128);
    assert_eq!(chat["nvext"]["properties"]["agent_hints"]["properties"]["osl"]["minimum"], 0);
    assert_eq!(chat["stream_options"]["properties"]["include_usage"]["default"], false);
    assert_eq!(chat.get("prompt"), None);
    let text = document.to_string();
    for piece in text.split("\"$ref\":\"#").skip(1) {
        let pointer = piece.split('"').next().unwrap();
        assert!(document.pointer(pointer).is_some(), "{pointer}");
    }
}
