//! What requests of other dialects become in the form that all chat APIs share, and that they all become the same.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use dynamo_protocols::openai::chat;
use dynamo_protocols::{Options, anthropic, responses, tokenize};
use serde_json::{Value, json};

/// The body of `base` and `fields`.
fn body(mut base: Value, fields: Value) -> String {
    if let Value::Object(fields) = fields {
        base.as_object_mut().unwrap().extend(fields);
    }
    base.to_string()
}

fn anthropic_request(fields: Value) -> anthropic::Request {
    let body = body(json!({"model": "m", "max_tokens": 9}), fields);
    anthropic::Request::parse(body.as_bytes(), &Options::default()).unwrap().request
}

fn messages(fields: Value) -> chat::Request {
    anthropic_request(fields).chat
}

/// Without where its fields stood, in which the dialects differ.
fn unhinted(request: chat::Request) -> chat::Request {
    chat::Request { hints: Vec::new(), ..request }
}

fn response_request(fields: Value) -> responses::Request {
    let body = body(json!({"model": "m"}), fields);
    responses::Request::parse(body.as_bytes(), &Options::default()).unwrap().request
}

fn chat(fields: Value) -> chat::Request {
    let body = body(json!({"model": "m"}), fields);
    chat::Request::parse(body.as_bytes(), &Options::default()).unwrap().request
}

#[test]
fn r18_one_conversation_is_the_same_on_all_routes() {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let expected = unhinted(chat(json!({
        "max_tokens": 9, "temperature": 0.5, "reasoning_effort": "low",
        "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "Let me see.\n", "reasoning_content": "Look it up.", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"city\":\"Oslo\"}"}},
                {"id": "2", "type": "function", "function": {"name": "f", "arguments": "{\"city\":\"Bonn\"}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "4"},
            {"role": "tool", "tool_call_id": "2", "content": "9"},
            {"role": "user", "content": "Thanks"}
        ]
    })));
    let call =
        |id: &str, city: &str| json!({"type": "tool_use", "id": id, "name": "f", "input": {"city": city}});
    let anthropic = messages(json!({
        "temperature": 0.5, "output_config": {"effort": "low"}, "system": "Be brief.",
        "tools": [{"name": "f", "description": "d", "input_schema": schema}],
        "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Look it up.", "signature": "unsigned"},
                {"type": "text", "text": "Let me see."}, call("1", "Oslo"), {"type": "text", "text": "\n"}, call("2", "Bonn")]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": "4"},
                {"type": "tool_result", "tool_use_id": "2", "content": [{"type": "text", "text": "9"}]},
                {"type": "text", "text": "Thanks"}]}
        ]
    }));
    assert_eq!(unhinted(anthropic), expected);
    let said = |text: &str| json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]});
    let call = |id: &str, arguments: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": arguments});
    let output =
        |id: &str, text: &str| json!({"type": "function_call_output", "call_id": id, "output": text});
    let response = response_request(json!({
        "max_output_tokens": 9, "temperature": 0.5, "reasoning": {"effort": "low"}, "instructions": "Be brief.",
        "tools": [{"type": "function", "name": "f", "description": "d", "parameters": schema}],
        "input": [
            {"role": "user", "content": "Weather?"},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Look it up."}]},
            said("Let me see."), call("1", "{\"city\":\"Oslo\"}"), said("\n"), call("2", "{\"city\":\"Bonn\"}"),
            output("1", "4"), output("2", "9"),
            {"role": "user", "content": [{"type": "input_text", "text": "Thanks"}]}
        ]
    }));
    assert_eq!(unhinted(response.chat), expected);
}

#[test]
fn a_last_message_of_the_assistant_is_continued() {
    let turn = |content: Value| json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": content}]});
    let request = messages(turn(json!("Well,")));
    assert!(request.continue_final_message && !request.add_generation_prompt);
    let request = messages(turn(json!([{"type": "tool_use", "id": "1", "name": "f"}])));
    assert!(!request.continue_final_message && request.add_generation_prompt);
}

#[test]
fn neighbouring_messages_of_one_role_are_one_turn() {
    let request = messages(
        json!({"system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "messages": [
        {"role": "user", "content": "c"}, {"role": "user", "content": [{"type": "text", "text": "d"}]},
        {"role": "assistant", "content": "e"}, {"role": "assistant", "content": "f"},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "is_error": true}]},
        {"role": "user", "content": "g"}]}),
    );
    let part = |text: &str| json!({"type": "text", "text": text});
    assert_eq!(
        json!(request.messages),
        json!([
            {"role": "system", "content": [part("a"), part("b")]},
            {"role": "user", "content": [part("c"), part("d")]},
            {"role": "assistant", "content": "ef"},
            {"role": "tool", "content": "error", "tool_call_id": "1"},
            {"role": "user", "content": "g"}
        ])
    );
    // Items are messages as they are.
    let request = response_request(json!({"input": [
        {"role": "user", "content": "a"}, {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"}, {"role": "assistant", "content": "d"}]}));
    assert_eq!(request.chat.messages.len(), 4);
}

#[test]
fn settings_end_up_where_they_belong() {
    let request = anthropic_request(json!({
        "model": "m", "max_tokens": 5, "top_k": 3, "top_p": 0.5, "stop_sequences": ["x"], "stream": true, "seed": 4,
        "ignore_eos": true, "metadata": {"user_id": "u"}, "nvext": {"cache_salt": "s"},
        "thinking": {"type": "enabled", "budget_tokens": 2000}, "chat_template_kwargs": {"thinking": false},
        "messages": [{"role": "user", "content": "a"}]
    }));
    let common = &request.chat.common;
    assert_eq!((common.max_tokens, common.top_k, common.top_p, common.temperature), (Some(5), 3, 0.5, 1.0));
    assert_eq!(
        (common.stop.as_slice(), common.stream, common.seed),
        (["x".to_owned()].as_slice(), true, Some(4))
    );
    assert_eq!(
        (common.ignore_eos, common.user.as_deref(), common.cache_salt.as_deref()),
        (true, Some("u"), Some("s"))
    );
    assert_eq!(request.thinking, Some(anthropic::Thinking::Enabled { budget_tokens: Some(2000) }));
    assert_eq!(json!(request.chat.chat_template_kwargs), json!({"thinking": false, "enable_thinking": true}));

    let request = response_request(
        json!({"input": "a", "metadata": {"k": "v"}, "max_output_tokens": 5, "tool_choice": "none",
        "tools": [{"type": "function", "name": "f"}]}),
    );
    assert_eq!(
        (request.settings.max_output_tokens, request.settings.metadata["k"].as_str()),
        (Some(5), Some("v"))
    );
    assert_eq!(request.chat.template_tools(), None);
    assert_eq!(request.settings.tool_choice, "none");
}

#[test]
fn tokens_of_a_conversation_are_counted_as_it_would_be_answered() {
    let body = json!({"model": "m", "system": "s", "messages": [{"role": "user", "content": "a"}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}]});
    let counted = anthropic::Request::parse_count(body.to_string().as_bytes(), &Options::default()).unwrap();
    let asked = anthropic_request(body);
    assert_eq!(counted.request.chat.messages, asked.chat.messages);
    assert_eq!(counted.request.chat.tools, asked.chat.tools);
    let body = json!({"messages": [{"role": "user", "content": "a"}]});
    let request = tokenize::Request::parse(body.to_string().as_bytes(), &Options::default()).unwrap().request;
    assert_eq!((request.model, request.add_special_tokens), (None, false));
    assert!(matches!(request.source, tokenize::Source::Chat { add_generation_prompt: true, .. }));
}
