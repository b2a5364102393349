use super::*;
use crate::openai::logprobs::{ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob};
use crate::openai::{Usage, chat, completions, embeddings, models};
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
    let document = document_with(Routes::MODELS);
    check(&document, &reference(name), value, name);
}

fn tokens() -> Vec<TokenLogprob> {
    let top = vec![TopLogprob { token: "b".into(), bytes: b"b".to_vec(), logprob: -1.5 }];
    vec![TokenLogprob { token: "a".into(), bytes: b"a".to_vec(), logprob: Some(-0.25), top, text_offset: 0 }]
}

#[test]
fn unary_answers_are_as_documented() {
    let call = chat::AnswerCall::new("call_1".into(), "f".into(), "{}".into());
    let message = chat::AssistantMessage::new("a".into(), "b".into(), vec![call]);
    let choice = chat::Choice::new(0, message, Some(ChatLogprobs(tokens())), Some(FinishReason::Stop));
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
    let extras = Extras { logprobs: Some(&tokens), usage: Some(Usage::new(1, 1, 1)), ..Extras::default() };
    for (name, writer) in [
        ("ChatCompletionChunk", ChunkWriter::chat("c", 1, "m").include_usage(true)),
        ("Completion", ChunkWriter::completion("c", 1, "m").include_usage(true)),
    ] {
        let mut out = BytesMut::new();
        writer.role(&mut out, 0, extras);
        writer.content(&mut out, 0, "a", Extras::default());
        writer.content(&mut out, 0, "a", extras);
        if name == "ChatCompletionChunk" {
            writer.reasoning(&mut out, 0, "a", extras);
            writer.tool_start(&mut out, 0, 0, "call_1", "f", Extras::default());
            writer.tool_arguments(&mut out, 0, 0, "{}", Extras::default());
        }
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
    let text = document_with(Routes::MODELS).to_string();
    let document = document_with(Routes::MODELS);
    for piece in text.split("\"$ref\":\"#").skip(1) {
        let pointer = piece.split('"').next().unwrap();
        assert!(document.pointer(pointer).is_some(), "{pointer}");
    }
}

#[test]
fn only_served_routes_are_documented() {
    let paths = |extra| document_with(extra)["paths"].as_object().unwrap().len();
    let always = paths(Routes::NONE);
    for route in Routes::MODELS.each() {
        let is_extra = !route.covers(Routes::CHAT.and(Routes::COMPLETIONS));
        assert_eq!(paths(route), always + usize::from(is_extra), "{}", route.names());
    }
    assert_eq!(document()["paths"].get("/v1/messages"), None);
    let document = document_with(Routes::MESSAGES);
    let request = &document["components"]["schemas"]["MessagesRequest"];
    assert_eq!(request["required"], json!(["model", "messages", "max_tokens"]));
    assert_eq!(request["properties"]["temperature"]["maximum"], 1.0);
    assert_eq!(request["properties"]["thinking"]["properties"]["budget_tokens"]["minimum"], 1);
}

#[test]
fn answers_of_other_dialects_are_as_documented() {
    use crate::pieces::{Fold, Stream};
    use crate::{Finish, Options, Piece, anthropic, responses, tokenize};
    let pieces = [
        Piece::Reasoning("a"),
        Piece::Text("b"),
        Piece::ToolStart { id: "c", name: "f" },
        Piece::ToolArguments("{}"),
        Piece::ToolEnd,
    ];
    let finish = Finish { reason: FinishReason::Stop, stop: Some("x") };
    let usage = Usage::new(3, 1, 0);
    let request =
        responses::Request::parse(br#"{"model":"m","input":"a"}"#, &Options::default()).unwrap().request;
    let mut message = anthropic::Body::new("msg_1", "m");
    let mut response = responses::Body::new("resp_1", 1, "m", request.settings.clone());
    let mut anthropic_events = anthropic::EventWriter::new("msg_1", "m");
    let mut response_events = responses::EventWriter::new("resp_1", 1, "m", request.settings);
    let (mut first, mut second) = (BytesMut::new(), BytesMut::new());
    for piece in pieces {
        message.push(piece);
        response.push(piece);
        anthropic_events.push(&mut first, piece);
        response_events.push(&mut second, piece);
    }
    anthropic_events.finish(&mut first, &finish, usage);
    response_events.finish(&mut second, &finish, usage);
    check_named("AnthropicAnswer", &json!(message.finish(&finish, usage)));
    check_named("Response", &json!(response.finish(&finish, usage)));
    for (name, out) in [("AnthropicEvent", first), ("ResponseEvent", second)] {
        let mut reader = crate::sse::Reader::default();
        reader.push(&out).unwrap();
        while let Some(event) = reader.next_event() {
            if event.data != "[DONE]" {
                check_named(name, &serde_json::from_str(&event.data).unwrap());
            }
        }
    }
    let error = anthropic::error_body(&Error::invalid("x"));
    check_named("AnthropicError", &serde_json::from_slice(&error).unwrap());
    check_named("AnthropicTokens", &json!(anthropic::InputTokens { input_tokens: 1 }));
    check_named("ResponseTokens", &json!(responses::InputTokens::new(1)));
    check_named("TokenList", &json!(tokenize::Response::new(vec![1], None, 8)));
    check_named("TokenText", &json!(tokenize::DetokenizeResponse { prompt: "a".into() }));
    for encoding in [embeddings::Encoding::Float, embeddings::Encoding::Base64] {
        let list = embeddings::Response::new("m", encoding, vec![vec![1.5]], 2);
        check_named("EmbeddingList", &json!(list));
    }
}
