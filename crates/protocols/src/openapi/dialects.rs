//! Routes beyond OpenAI's completions.

use super::{body, list_of, nullable, object, post, reference, request_schema};
use crate::limits::Routes;
use serde_json::{Map, Value, json};

/// Adds the routes of `extra` and the schemas they need.
pub(super) fn add(extra: Routes, paths: &mut Map<String, Value>, schemas: &mut Map<String, Value>) {
    for route in extra.each() {
        if let Some((path, operation, required, name)) = describe(route) {
            paths.insert(path.into(), json!({ "post": operation }));
            schemas.insert(name.into(), request_schema(route, required));
        }
    }
    if extra.covers(Routes::MESSAGES.and(Routes::COUNT_TOKENS)) {
        anthropic_schemas(schemas);
    }
    if extra.covers(Routes::RESPONSES.and(Routes::INPUT_TOKENS)) {
        response_schemas(schemas);
    }
    if extra.covers(Routes::EMBEDDINGS.and(Routes::TOKENIZE).and(Routes::DETOKENIZE)) {
        token_schemas(schemas);
    }
}

/// Path, operation, required fields and name of the request's schema.
fn describe(route: Routes) -> Option<(&'static str, Value, &'static [&'static str], &'static str)> {
    let streamed = |unary: &str, event: &str, ends: &str| {
        json!({
            "description": format!("The answer; with `stream: true` as server-sent events that end with {ends}."),
            "content": {
                "application/json": { "schema": reference(unary) },
                "text/event-stream": { "schema": reference(event) },
            },
        })
    };
    Some(match route {
        Routes::MESSAGES => {
            let answer = streamed("AnthropicAnswer", "AnthropicEvent", "`message_stop`, or with `error`");
            let operation = post("Anthropic message", "MessagesRequest", answer, "AnthropicError");
            ("/v1/messages", operation, &["model", "messages", "max_tokens"], "MessagesRequest")
        }
        Routes::COUNT_TOKENS => {
            let answer = body("The count.", "AnthropicTokens");
            let operation = post(
                "Count the tokens of an Anthropic message",
                "CountTokensRequest",
                answer,
                "AnthropicError",
            );
            ("/v1/messages/count_tokens", operation, &["model", "messages"], "CountTokensRequest")
        }
        Routes::RESPONSES => {
            let answer = streamed("Response", "ResponseEvent", "the whole answer and `data: [DONE]`");
            let operation = post("Response, without storage", "ResponseRequest", answer, "Error");
            ("/v1/responses", operation, &["model", "input"], "ResponseRequest")
        }
        Routes::INPUT_TOKENS => {
            let answer = body("The count.", "ResponseTokens");
            let operation =
                post("Count the tokens of a response's input", "InputTokensRequest", answer, "Error");
            ("/v1/responses/input_tokens", operation, &["model", "input"], "InputTokensRequest")
        }
        Routes::EMBEDDINGS => {
            let operation =
                post("Embeddings", "EmbeddingRequest", body("The vectors.", "EmbeddingList"), "Error");
            ("/v1/embeddings", operation, &["model", "input"], "EmbeddingRequest")
        }
        Routes::TOKENIZE => {
            let operation =
                post("Text to token ids", "TokenizeRequest", body("The ids.", "TokenList"), "Error");
            ("/tokenize", operation, &[], "TokenizeRequest")
        }
        Routes::DETOKENIZE => {
            let operation =
                post("Token ids to text", "DetokenizeRequest", body("The text.", "TokenText"), "Error");
            ("/detokenize", operation, &["tokens"], "DetokenizeRequest")
        }
        _ => return None,
    })
}

fn anthropic_schemas(all: &mut Map<String, Value>) {
    let text = json!({ "type": "string" });
    let count = json!({ "type": "integer", "minimum": 0 });
    let content = json!({ "oneOf": [text, list_of(json!({ "type": "object" }))] });
    let role = json!({ "type": "string", "enum": ["user", "assistant", "system"] });
    let message = json!({ "role": role, "content": content });
    all.insert("AnthropicMessage".into(), object(&["role", "content"], message));
    let tool = json!({ "type": nullable("string"), "name": text, "description": nullable("string"),
        "input_schema": { "type": "object" } });
    all.insert("AnthropicTool".into(), object(&["name"], tool));
    let usage = object(
        &["input_tokens", "output_tokens"],
        json!({ "input_tokens": count, "cache_creation_input_tokens": count, "cache_read_input_tokens": count,
            "output_tokens": count }),
    );
    let block = object(
        &["type"],
        json!({
            "type": { "type": "string", "enum": ["text", "thinking", "tool_use"] }, "text": text, "thinking": text,
            "signature": text, "id": text, "name": text, "input": { "type": "object" },
        }),
    );
    let answer = json!({
        "id": text, "type": { "const": "message" }, "role": { "const": "assistant" }, "model": text,
        "content": list_of(block.clone()), "stop_reason": nullable("string"), "stop_sequence": nullable("string"),
        "usage": usage,
    });
    all.insert(
        "AnthropicAnswer".into(),
        object(&["id", "type", "role", "model", "content", "usage"], answer),
    );
    let kinds = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "ping",
        "error",
    ];
    let event = json!({
        "type": { "type": "string", "enum": kinds }, "message": reference("AnthropicAnswer"), "index": count,
        "content_block": block, "delta": { "type": "object" }, "usage": usage, "error": { "type": "object" },
    });
    all.insert("AnthropicEvent".into(), object(&["type"], event));
    let fault = object(&["type", "message"], json!({ "type": text, "message": text }));
    let error = json!({ "type": { "const": "error" }, "error": fault });
    all.insert("AnthropicError".into(), object(&["type", "error"], error));
    all.insert("AnthropicTokens".into(), object(&["input_tokens"], json!({ "input_tokens": count })));
}

fn response_schemas(all: &mut Map<String, Value>) {
    let text = json!({ "type": "string" });
    let count = json!({ "type": "integer", "minimum": 0 });
    let number = json!({ "type": "number" });
    let tool = json!({ "type": text, "name": text, "description": nullable("string"),
        "parameters": nullable("object"), "strict": nullable("boolean") });
    all.insert("ResponseTool".into(), object(&["type"], tool));
    let part = json!({ "type": text, "text": text, "annotations": { "type": "array" }, "logprobs": { "type": "array" } });
    let item = object(
        &["type", "id", "status"],
        json!({
            "type": { "type": "string", "enum": ["message", "reasoning", "function_call"] }, "id": text, "status": text,
            "role": { "const": "assistant" }, "content": list_of(object(&["type", "text"], part)),
            "summary": { "type": "array" }, "encrypted_content": nullable("string"), "call_id": text, "name": text,
            "arguments": text,
        }),
    );
    let usage = json!({
        "input_tokens": count, "output_tokens": count, "total_tokens": count,
        "input_tokens_details": object(&["cached_tokens"], json!({ "cached_tokens": count, "cache_write_tokens": count })),
        "output_tokens_details": object(&["reasoning_tokens"], json!({ "reasoning_tokens": count })),
    });
    let usage = object(&["input_tokens", "output_tokens", "total_tokens"], usage);
    let status = json!({ "type": "string", "enum": ["in_progress", "completed", "incomplete", "failed"] });
    let response = json!({
        "id": text, "object": { "const": "response" }, "created_at": count, "status": status,
        "background": { "const": false }, "error": nullable("object"), "incomplete_details": nullable("object"),
        "model": text, "output": list_of(item.clone()), "previous_response_id": nullable("string"),
        "service_tier": text, "store": { "const": false }, "top_logprobs": count,
        "usage": { "oneOf": [usage, { "type": "null" }] },
        "instructions": nullable("string"), "max_output_tokens": nullable("integer"), "max_tool_calls": nullable("integer"),
        "metadata": { "type": "object" }, "parallel_tool_calls": { "type": "boolean" }, "reasoning": { "type": "object" },
        "temperature": number, "text": { "type": "object" }, "tool_choice": {}, "tools": list_of(reference("ResponseTool")),
        "top_p": number, "truncation": text, "user": nullable("string"),
    });
    all.insert(
        "Response".into(),
        object(&["id", "object", "created_at", "status", "model", "output"], response),
    );
    let event = json!({
        "type": text, "sequence_number": count, "response": reference("Response"), "item": item, "item_id": text,
        "output_index": count, "content_index": count, "part": { "type": "object" }, "delta": text, "text": text,
        "name": text, "arguments": text, "logprobs": { "type": "array" }, "code": nullable("string"), "message": text,
        "param": nullable("string"),
    });
    all.insert("ResponseEvent".into(), object(&["type", "sequence_number"], event));
    let tokens = json!({ "object": { "const": "response.input_tokens" }, "input_tokens": count });
    all.insert("ResponseTokens".into(), object(&["object", "input_tokens"], tokens));
}

fn token_schemas(all: &mut Map<String, Value>) {
    let text = json!({ "type": "string" });
    let count = json!({ "type": "integer", "minimum": 0 });
    let vector = json!({ "type": ["array", "string"], "items": { "type": "number" } });
    let embedding = object(
        &["object", "index", "embedding"],
        json!({ "object": { "const": "embedding" }, "index": count, "embedding": vector }),
    );
    let usage =
        object(&["prompt_tokens", "total_tokens"], json!({ "prompt_tokens": count, "total_tokens": count }));
    let list =
        json!({ "object": { "const": "list" }, "data": list_of(embedding), "model": text, "usage": usage });
    all.insert("EmbeddingList".into(), object(&["object", "data", "model", "usage"], list));
    let tokens = json!({ "count": count, "max_model_len": count, "tokens": list_of(count),
        "token_strs": { "type": ["array", "null"], "items": text } });
    all.insert("TokenList".into(), object(&["count", "max_model_len", "tokens"], tokens));
    all.insert("TokenText".into(), object(&["prompt"], json!({ "prompt": text })));
}
