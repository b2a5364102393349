//! What clients of the APIs for conversations make of an answer, in the same terms for all, streamed or not.

use crate::client::Reply;
use serde_json::{Value, json};

/// The APIs for conversations.
pub(crate) const CONVERSATIONS: [&str; 3] = ["/v1/chat/completions", "/v1/messages", "/v1/responses"];

/// What the model said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    /// Name and arguments.
    pub(crate) calls: Vec<(String, String)>,
    /// In OpenAI's words.
    pub(crate) finish: String,
}

/// Tools of these names, as `route` takes them.
pub(crate) fn tools(route: &str, names: &[&str]) -> Value {
    let schema = json!({"type": "object"});
    names
        .iter()
        .map(|name| match route {
            "/v1/messages" => json!({"name": name, "input_schema": schema}),
            "/v1/responses" => json!({"type": "function", "name": name, "parameters": schema}),
            _ => json!({"type": "function", "function": {"name": name, "parameters": schema}}),
        })
        .collect()
}

/// Reads the answer of any of them.
pub(crate) fn said(route: &str, reply: &Reply) -> Said {
    assert_eq!(reply.status, 200, "{route}: {}", reply.text());
    let is_stream = reply.header("content-type") == Some("text/event-stream");
    match (route, is_stream) {
        ("/v1/messages", false) => message(&reply.json()),
        ("/v1/messages", true) => message(&message_of(reply)),
        ("/v1/responses", false) => response(&reply.json()),
        ("/v1/responses", true) => response(&response_of(reply)),
        (_, false) => chat(&reply.json()["choices"][0], "message"),
        (_, true) => chat_stream(reply),
    }
}

fn push(text: &mut String, piece: &Value) {
    text.push_str(piece.as_str().unwrap_or(""));
}

fn distinct(ids: &[String]) {
    let mut sorted = ids.to_vec();
    sorted.sort();
    sorted.dedup();
    assert_eq!(sorted.len(), ids.len(), "{ids:?}");
    assert!(ids.iter().all(|id| !id.is_empty()));
}

fn chat(choice: &Value, field: &str) -> Said {
    let message = &choice[field];
    let mut said = Said { finish: choice["finish_reason"].as_str().unwrap_or("").into(), ..Said::default() };
    push(&mut said.content, &message["content"]);
    push(&mut said.reasoning, &message["reasoning_content"]);
    let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
    distinct(&calls.iter().map(|call| call["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>());
    for call in &calls {
        assert_eq!(call["type"], "function");
        let text = |name: &str| call["function"][name].as_str().unwrap().to_owned();
        said.calls.push((text("name"), text("arguments")));
    }
    said
}

/// Puts the chunks of a choice together, as SDKs do.
fn chat_stream(reply: &Reply) -> Said {
    let mut whole = json!({"content": "", "reasoning_content": "", "tool_calls": []});
    let mut finish = Value::Null;
    for chunk in reply.chunks() {
        let Some(choice) = chunk["choices"].get(0) else { continue };
        assert!(finish.is_null(), "{chunk} after the finish reason");
        finish = choice["finish_reason"].clone();
        for field in ["content", "reasoning_content"] {
            let mut text = whole[field].as_str().unwrap().to_owned();
            push(&mut text, &choice["delta"][field]);
            whole[field] = json!(text);
        }
        for piece in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = piece["index"].as_u64().unwrap() as usize;
            let calls = whole["tool_calls"].as_array_mut().unwrap();
            if index == calls.len() {
                calls.push(piece.clone());
                continue;
            }
            assert_eq!(index + 1, calls.len(), "calls come one after the other");
            let arguments = &mut calls[index]["function"]["arguments"];
            *arguments = format!(
                "{}{}",
                arguments.as_str().unwrap(),
                piece["function"]["arguments"].as_str().unwrap()
            )
            .into();
        }
    }
    chat(&json!({"message": whole, "finish_reason": finish}), "message")
}

fn message(message: &Value) -> Said {
    let mut said = Said::default();
    let mut ids = Vec::new();
    for block in message["content"].as_array().unwrap() {
        match block["type"].as_str().unwrap() {
            "text" => push(&mut said.content, &block["text"]),
            "thinking" => push(&mut said.reasoning, &block["thinking"]),
            "tool_use" => {
                ids.push(block["id"].as_str().unwrap().to_owned());
                said.calls.push((block["name"].as_str().unwrap().into(), block["input"].to_string()));
            }
            other => panic!("{other}"),
        }
    }
    distinct(&ids);
    said.finish = match message["stop_reason"].as_str().unwrap() {
        "end_turn" | "stop_sequence" => "stop",
        "max_tokens" => "length",
        "tool_use" => "tool_calls",
        other => panic!("{other}"),
    }
    .into();
    said
}

/// The events of a message, put together. Blocks are opened and closed in order (R19).
pub(crate) fn message_of(reply: &Reply) -> Value {
    let mut events = reply.events().into_iter().map(|event| serde_json::from_str::<Value>(&event).unwrap());
    let start = events.next().unwrap();
    assert_eq!(start["type"], "message_start");
    let mut message = start["message"].clone();
    let (mut blocks, mut open, mut arguments) = (Vec::<Value>::new(), false, String::new());
    let mut over = false;
    for event in events {
        assert!(!over, "{event}");
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert!(!open && event["index"] == blocks.len(), "{event}");
                open = true;
                arguments.clear();
                blocks.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                assert!(open && event["index"] == blocks.len() - 1, "{event}");
                let (delta, block) = (&event["delta"], blocks.last_mut().unwrap());
                let (kind, field) = match delta["type"].as_str().unwrap() {
                    "text_delta" => ("text", "text"),
                    "thinking_delta" => ("thinking", "thinking"),
                    "signature_delta" => ("thinking", "signature"),
                    "input_json_delta" => {
                        assert_eq!(block["type"], "tool_use");
                        push(&mut arguments, &delta["partial_json"]);
                        continue;
                    }
                    other => panic!("{other}"),
                };
                assert_eq!(block["type"], kind);
                let mut text = block[field].as_str().unwrap().to_owned();
                push(&mut text, &delta[field]);
                block[field] = json!(text);
            }
            "content_block_stop" => {
                assert!(open && event["index"] == blocks.len() - 1, "{event}");
                open = false;
                let block = blocks.last_mut().unwrap();
                if block["type"] == "tool_use" {
                    block["input"] = serde_json::from_str(&arguments).unwrap_or_else(|_| json!({}));
                }
            }
            "message_delta" => {
                assert!(!open);
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            "message_stop" => over = true,
            other => panic!("{other}"),
        }
    }
    assert!(over);
    message["content"] = json!(blocks);
    message
}

fn response(response: &Value) -> Said {
    let mut said = Said::default();
    let mut ids = Vec::new();
    for item in response["output"].as_array().unwrap() {
        match item["type"].as_str().unwrap() {
            "message" => push(&mut said.content, &item["content"][0]["text"]),
            "reasoning" => push(&mut said.reasoning, &item["content"][0]["text"]),
            "function_call" => {
                ids.push(item["call_id"].as_str().unwrap().to_owned());
                let text = |name: &str| item[name].as_str().unwrap().to_owned();
                said.calls.push((text("name"), text("arguments")));
            }
            other => panic!("{other}"),
        }
    }
    distinct(&ids);
    said.finish = match (response["status"].as_str().unwrap(), ids.is_empty()) {
        ("completed", true) => "stop",
        ("completed", false) => "tool_calls",
        ("incomplete", _) => response["incomplete_details"]["reason"].as_str().unwrap(),
        other => panic!("{other:?}"),
    }
    .replace("max_output_tokens", "length");
    said
}

/// What the last event of a response says; the deltas before it add up to the same.
pub(crate) fn response_of(reply: &Reply) -> Value {
    let events = reply.chunks();
    let mut deltas = String::new();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
        if event["type"].as_str().unwrap().ends_with(".delta") {
            push(&mut deltas, &event["delta"]);
        }
    }
    let last = events.last().unwrap()["response"].clone();
    let mut items = String::new();
    for item in last["output"].as_array().unwrap() {
        push(&mut items, &item["content"][0]["text"]);
        push(&mut items, &item["arguments"]);
    }
    assert_eq!(deltas, items);
    last
}
