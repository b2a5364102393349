//! The OpenAPI document of the HTTP surface. Request schemas are made from [`limits::TABLE`]; answers are written out.

use crate::limits::{self, Effect, Measure, Routes, Rule};
use serde_json::{Map, Value, json};

mod dialects;

/// The document of the routes that every frontend serves.
pub fn document() -> Value {
    document_with(Routes::NONE)
}

/// The same with the routes of `extra`, which are those that a frontend serves besides.
pub fn document_with(extra: Routes) -> Value {
    let (mut paths, mut schemas) = (paths(), schemas());
    if let (Value::Object(paths), Value::Object(schemas)) = (&mut paths, &mut schemas) {
        dialects::add(extra, paths, schemas);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "dynamo",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": "Explicit null on an optional request field means the field is absent.",
        },
        "paths": paths,
        "components": { "schemas": schemas },
    })
}

fn paths() -> Value {
    let model_id = json!([{
        "name": "id", "in": "path", "required": true, "schema": { "type": "string" },
        "description": "Name or alias of a model; slashes in it need no encoding.",
    }]);
    json!({
        "/v1/chat/completions": { "post": generation("Chat completion", "ChatRequest", "ChatCompletion", "ChatCompletionChunk") },
        "/v1/completions": { "post": generation("Text completion", "CompletionRequest", "Completion", "Completion") },
        "/v1/models": { "get": operation("All served models", json!({ "200": body("The models.", "ModelList") })) },
        "/v1/models/{id}": {
            "parameters": model_id,
            "get": operation("One model", json!({
                "200": body("The model.", "Model"), "404": body("No such model.", "Error") })),
        },
        "/v1/models/{id}/ready": {
            "parameters": model_id,
            "get": operation("Can this model be used now?", json!({
                "200": body("What is there and what is missing.", "ModelReady"),
                "404": body("No such model.", "Error"),
                "503": body("Not yet, or not any more.", "ModelReady") })),
        },
        "/health": { "get": operation("Can anything be served?", json!({
            "200": body("Yes.", "Health"), "503": body("No, with the reason.", "Health") })) },
        "/live": { "get": operation("Does the process answer?", json!({
            "200": body("Yes.", "Health"), "503": body("It is shutting down.", "Health") })) },
        "/metrics": { "get": operation("Metrics", json!({ "200": {
            "description": "Prometheus text format.",
            "content": { "text/plain": { "schema": { "type": "string" } } } } })) },
        "/openapi.json": { "get": operation("This document", json!({ "200": {
            "description": "The document.",
            "content": { "application/json": { "schema": { "type": "object" } } } } })) },
    })
}

fn operation(summary: &str, responses: Value) -> Value {
    let mut operation = json!({ "summary": summary });
    operation["responses"] = responses;
    operation
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

fn body(description: &str, schema: &str) -> Value {
    json!({ "description": description, "content": { "application/json": { "schema": reference(schema) } } })
}

const FAULTS: [(&str, &str); 13] = [
    ("400", "The request can never work: the message names the field, the limit and what was found."),
    ("401", "Credentials are missing or wrong."),
    ("404", "No such model."),
    ("405", "Only POST."),
    ("413", "The body is above the limit."),
    ("415", "The content type is not application/json."),
    ("431", "The headers are above the limit."),
    ("499", "The client closed the request."),
    ("500", "A fault of the server or of an engine."),
    ("501", "Understood, but not implemented."),
    ("503", "Nothing can serve this model now; see Retry-After."),
    ("504", "No answer in time."),
    ("529", "Everything that could serve this is full (status configurable); see Retry-After."),
];

fn generation(summary: &str, request: &str, unary: &str, chunk: &str) -> Value {
    let answer = json!({
        "description": "The answer; with `stream: true` as server-sent events that end with `data: [DONE]`. A fault after the first event is an event with an `error` object.",
        "content": {
            "application/json": { "schema": reference(unary) },
            "text/event-stream": { "schema": reference(chunk) },
        },
    });
    post(summary, request, answer, "Error")
}

/// A route that takes a body of the schema `request`; faults have the schema `error`.
fn post(summary: &str, request: &str, answer: Value, error: &str) -> Value {
    let mut responses = Map::new();
    responses.insert("200".into(), answer);
    for (status, description) in FAULTS {
        responses.insert(status.into(), body(description, error));
    }
    json!({
        "summary": summary,
        "requestBody": { "required": true, "content": { "application/json": { "schema": reference(request) } } },
        "responses": responses,
    })
}

/// An object schema of all fields of `route`, nested ones inside their parents.
fn request_schema(route: Routes, required: &[&str]) -> Value {
    let mut schema = json!({ "type": "object", "required": required, "properties": {} });
    let fields =
        limits::TABLE.iter().filter(|rule| rule.routes.covers(route) && !rule.field.contains(['[', '*']));
    for rule in fields {
        let is_required = required.contains(&rule.field);
        let mut place = &mut schema;
        let mut names = rule.field.split('.').peekable();
        while let Some(name) = names.next() {
            place = &mut place["properties"][name];
            if names.peek().is_none() {
                *place = field_schema(rule, is_required);
            }
        }
    }
    schema
}

fn field_schema(rule: &Rule, required: bool) -> Value {
    let mut schema: Map<String, Value> = serde_json::from_str(rule.schema).unwrap_or_default();
    let kind = schema.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let (low, high) = match rule.measure {
        Measure::Value if rule.min_excluded => ("exclusiveMinimum", "maximum"),
        Measure::Value => ("minimum", "maximum"),
        Measure::Bytes => ("minLength", "maxLength"),
        Measure::Entries if kind == "array" => ("minItems", "maxItems"),
        Measure::Entries => ("minProperties", "maxProperties"),
    };
    let whole = kind == "integer" || rule.measure != Measure::Value;
    // A list's limit says nothing about the other forms that the field may have.
    if !schema.contains_key("oneOf") {
        for (key, bound) in [(low, rule.min), (high, rule.max)] {
            if let Some(bound) = bound {
                schema.insert(key.into(), if whole { Value::from(bound as i64) } else { Value::from(bound) });
            }
        }
    }
    let bounds = rule.bounds();
    let mut description = rule.text.to_owned();
    if !bounds.is_empty() {
        description = format!("{description} ({bounds})");
    }
    match rule.effect {
        Effect::Used => {}
        Effect::None => description.push_str("; accepted without effect"),
        Effect::Refused => description.push_str("; refused with 501"),
    }
    schema.insert("description".into(), description.into());
    if let Ok(default) = serde_json::from_str::<Value>(rule.default) {
        schema.insert("default".into(), default);
    }
    if !required && !kind.is_empty() {
        schema.insert("type".into(), json!([kind, "null"]));
    }
    Value::Object(schema)
}

fn object(required: &[&str], properties: Value) -> Value {
    let mut schema = json!({ "type": "object", "required": required });
    schema["properties"] = properties;
    schema
}

fn list_of(item: Value) -> Value {
    let mut schema = json!({ "type": "array" });
    schema["items"] = item;
    schema
}

fn nullable(kind: &str) -> Value {
    json!({ "type": [kind, "null"] })
}

fn schemas() -> Value {
    let mut all = Map::new();
    all.insert("ChatRequest".into(), request_schema(Routes::CHAT, &["model", "messages"]));
    all.insert("CompletionRequest".into(), request_schema(Routes::COMPLETIONS, &["model", "prompt"]));
    input_schemas(&mut all);
    answer_schemas(&mut all);
    service_schemas(&mut all);
    Value::Object(all)
}

fn input_schemas(all: &mut Map<String, Value>) {
    let text = json!({ "type": "string" });
    let part = object(&["type"], json!({ "type": text, "text": text }));
    let call = object(
        &["function"],
        json!({ "id": text, "type": text, "function": object(&["name"], json!({ "name": text, "arguments": text })) }),
    );
    let message = object(
        &["role"],
        json!({
            "role": { "type": "string", "enum": ["system", "developer", "user", "assistant", "tool", "function"] },
            "content": { "oneOf": [text, list_of(part), { "type": "null" }] },
            "name": nullable("string"),
            "tool_calls": { "type": ["array", "null"], "items": call },
            "tool_call_id": nullable("string"),
            "reasoning_content": nullable("string"),
            "refusal": nullable("string"),
        }),
    );
    all.insert("Message".into(), message);
    let function = object(
        &["name"],
        json!({ "name": text, "description": nullable("string"), "parameters": nullable("object"), "strict": nullable("boolean") }),
    );
    let tool =
        object(&["type", "function"], json!({ "type": { "const": "function" }, "function": function }));
    all.insert("Tool".into(), tool);
}

fn answer_schemas(all: &mut Map<String, Value>) {
    let text = json!({ "type": "string" });
    let count = json!({ "type": "integer", "minimum": 0 });
    let number = json!({ "type": "number" });
    let reason = json!({ "type": ["string", "null"], "enum": ["stop", "length", "tool_calls", "content_filter", null] });
    let usage = object(
        &["prompt_tokens", "completion_tokens", "total_tokens"],
        json!({
            "prompt_tokens": count, "completion_tokens": count, "total_tokens": count,
            "prompt_tokens_details": object(&["cached_tokens"], json!({ "cached_tokens": count })),
        }),
    );
    all.insert("Usage".into(), usage);
    let entry = json!({ "token": text, "bytes": list_of(count.clone()), "logprob": number });
    let mut with_rivals = entry.clone();
    with_rivals["top_logprobs"] = list_of(object(&["token", "logprob"], entry));
    let content = list_of(object(&["token", "logprob", "top_logprobs"], with_rivals));
    let chat_logprobs = json!({ "type": ["object", "null"], "properties": { "content": content, "refusal": { "type": "null" } } });
    let completion_logprobs = json!({ "type": ["object", "null"], "properties": {
        "tokens": list_of(text.clone()), "token_logprobs": list_of(nullable("number")),
        "top_logprobs": list_of(nullable("object")), "text_offset": list_of(count.clone()) } });
    let answer = |kind: &str, choice: Value| {
        object(
            &["id", "object", "created", "model", "choices"],
            json!({
                "id": text, "object": { "const": kind }, "created": count, "model": text, "choices": list_of(choice),
                "usage": { "oneOf": [reference("Usage"), { "type": "null" }] },
                "system_fingerprint": nullable("string"),
            }),
        )
    };
    let function = object(&["arguments"], json!({ "name": text, "arguments": text }));
    let call = object(
        &["function"],
        json!({ "index": count, "id": text, "type": { "const": "function" }, "function": function }),
    );
    let said = json!({
        "role": { "const": "assistant" }, "content": nullable("string"), "refusal": nullable("string"),
        "reasoning_content": nullable("string"), "tool_calls": list_of(call),
    });
    let choice = |field: &str, value: Value, logprobs: &Value| {
        let mut choice = object(
            &["index", field, "finish_reason"],
            json!({ "index": count, "logprobs": logprobs, "finish_reason": reason }),
        );
        choice["properties"][field] = value;
        choice
    };
    let message = choice("message", object(&["role", "content"], said.clone()), &chat_logprobs);
    let delta = choice("delta", object(&[], said), &chat_logprobs);
    all.insert("ChatCompletion".into(), answer("chat.completion", message));
    all.insert("ChatCompletionChunk".into(), answer("chat.completion.chunk", delta));
    all.insert(
        "Completion".into(),
        answer("text_completion", choice("text", text.clone(), &completion_logprobs)),
    );
    let fault =
        json!({ "message": text, "type": text, "param": nullable("string"), "code": nullable("string") });
    let error = object(&["error"], json!({ "error": object(&["message", "type", "param", "code"], fault) }));
    all.insert("Error".into(), error);
}

fn service_schemas(all: &mut Map<String, Value>) {
    let text = json!({ "type": "string" });
    let count = json!({ "type": "integer", "minimum": 0 });
    let flag = json!({ "type": "boolean" });
    let texts = list_of(text.clone());
    let model = object(
        &["id", "object", "created", "owned_by"],
        json!({ "id": text, "object": { "const": "model" }, "created": count, "owned_by": text,
                "context_window": count, "max_model_len": count }),
    );
    all.insert("Model".into(), model);
    let list = json!({ "object": { "const": "list" }, "data": list_of(reference("Model")) });
    all.insert("ModelList".into(), object(&["object", "data"], list));
    let types = object(&["workers", "needs"], json!({ "workers": count, "needs": list_of(texts.clone()) }));
    let namespace = object(
        &["ready"],
        json!({ "ready": flag, "worker_types": { "type": "object", "additionalProperties": types },
                "present": texts, "missing_worker_types": texts }),
    );
    let ready = json!({ "model": text, "ready": flag,
        "namespaces": { "type": "object", "additionalProperties": namespace } });
    all.insert("ModelReady".into(), object(&["model", "ready", "namespaces"], ready));
    all.insert("Health".into(), object(&["status"], json!({ "status": text, "message": text })));
}

#[cfg(test)]
#[path = "openapi_tests.rs"]
mod tests;
