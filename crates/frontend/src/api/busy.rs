//! `/busy_threshold`: the limits above which workers get nothing new, per model, read and set at run time
//! (behaviour.md 10.2). Errors are `{"error": text}` here.

use crate::body::Upload;
use crate::http::{self, Body};
use crate::shared::Shared;
use dynamo_protocols::echo;
use dynamo_router::Thresholds;
use dynamo_types::{Error, Result};
use hyper::{Request, Response, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) const PATH: &str = "/busy_threshold";
/// As in every other request.
const MODEL_MAX_BYTES: usize = 512;
/// Four fields, the longest of which is a name.
const BODY_MAX_BYTES: usize = 16 * 1024;

const FIELDS: [&str; 4] = [
    "model",
    "active_decode_blocks_threshold",
    "active_prefill_tokens_threshold",
    "active_prefill_tokens_threshold_frac",
];

/// Without any limit, it asks what the limits are.
struct Order {
    model: String,
    newer: Thresholds,
}

impl Order {
    /// Misspelt fields are refused: a limit that silently does nothing is found out under load only.
    fn read(body: &[u8]) -> Result<Self> {
        let body: Value = serde_json::from_slice(body)
            .map_err(|error| Error::invalid(format!("the body is not valid JSON: {error}")))?;
        let Value::Object(fields) = body else {
            return Err(Error::invalid("the body must be a JSON object"));
        };
        let (mut model, mut newer) = (String::new(), Thresholds::default());
        for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            let number = || value.as_f64().ok_or_else(|| wrong(key, "a number", value));
            match key.as_str() {
                "model" => {
                    value.as_str().ok_or_else(|| wrong(key, "a string", value))?.clone_into(&mut model);
                }
                "active_decode_blocks_threshold" => newer.active_decode_blocks_threshold = Some(number()?),
                "active_prefill_tokens_threshold" => {
                    let tokens =
                        value.as_u64().ok_or_else(|| wrong(key, "a whole number of at least 0", value))?;
                    newer.active_prefill_tokens_threshold = Some(tokens);
                }
                "active_prefill_tokens_threshold_frac" => {
                    newer.active_prefill_tokens_threshold_frac = Some(number()?);
                }
                _ => {
                    let known = FIELDS.join(", ");
                    return Err(Error::invalid(format!("unknown field `{}`; known are {known}", echo(key))));
                }
            }
        }
        if model.is_empty() || model.len() > MODEL_MAX_BYTES {
            let found = model.len();
            return Err(Error::invalid(format!(
                "model must have 1 to {MODEL_MAX_BYTES} bytes, found {found}"
            )));
        }
        newer.validate().map_err(Error::invalid)?;
        Ok(Self { model, newer })
    }
}

fn wrong(field: &str, expected: &str, found: &Value) -> Error {
    Error::invalid(format!("{field} must be {expected}, found {}", echo(&found.to_string())))
}

#[derive(Serialize)]
struct Row {
    model: Arc<str>,
    #[serde(flatten)]
    thresholds: Thresholds,
}

#[derive(Serialize)]
struct List {
    thresholds: Vec<Row>,
}

pub(crate) fn error_body(error: &Error) -> Vec<u8> {
    json!({ "error": error.message() }).to_string().into_bytes()
}

/// Is the route served at all?
pub(crate) fn is_hidden(shared: &Shared, path: &str) -> bool {
    shared.config.disable_admin_api && path == PATH
}

/// `GET`: every model with its limits.
pub(crate) fn list(shared: &Shared, _: &str) -> Response<Body> {
    let rows = shared.catalog.all_thresholds();
    let thresholds = rows.into_iter().map(|(model, thresholds)| Row { model, thresholds }).collect();
    answer(shared, encode(&List { thresholds }))
}

/// `POST`: sets what is named, keeps the rest, and answers with what holds now. A model that is not served yet will
/// have the limits when it is.
pub(crate) async fn set(shared: &Shared, request: Request<Upload>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let outcome = match shared.bodies.read_up_to(BODY_MAX_BYTES, &parts.headers, body).await {
        Ok(received) => obey(shared, &received.bytes),
        Err(error) => Err(error),
    };
    answer(shared, outcome)
}

fn obey(shared: &Shared, body: &[u8]) -> Result<Vec<u8>> {
    let Order { model, newer } = Order::read(body)?;
    let (model, thresholds) = shared.catalog.update_thresholds(&model, newer)?;
    if !newer.is_empty() {
        // Quoted: the name may be anything, line ends included.
        tracing::info!(?model, ?thresholds, "busy thresholds set");
    }
    encode(&Row { model, thresholds })
}

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::internal(error.to_string()))
}

fn answer(shared: &Shared, outcome: Result<Vec<u8>>) -> Response<Body> {
    match outcome {
        Ok(body) => http::json(StatusCode::OK, body),
        Err(error) => http::failure(&error, shared.config.overload_status, error_body),
    }
}

/// Puts the route into the OpenAPI document.
pub(crate) fn describe(document: &mut Value) {
    let share = json!({ "type": ["number", "null"], "minimum": 0, "maximum": 1,
        "description": "share of a rank's KV blocks that requests hold" });
    let tokens = json!({ "type": ["integer", "null"], "minimum": 0,
        "description": "prompt tokens sent to a rank and not computed yet" });
    let multiple = json!({ "type": ["number", "null"], "minimum": 0,
        "description": "the same as a multiple of max_num_batched_tokens" });
    let limits = json!({ "type": "object", "required": ["model"], "properties": {
        "model": { "type": "string", "minLength": 1, "maxLength": MODEL_MAX_BYTES },
        "active_decode_blocks_threshold": share,
        "active_prefill_tokens_threshold": tokens,
        "active_prefill_tokens_threshold_frac": multiple } });
    let mut order = limits.clone();
    order["additionalProperties"] = json!(false);
    let list = json!({ "type": "object", "required": ["thresholds"],
        "properties": { "thresholds": { "type": "array", "items": limits } } });
    let fault =
        json!({ "type": "object", "required": ["error"], "properties": { "error": { "type": "string" } } });
    let answer = |description: &str, schema: &Value| json!({ "description": description, "content": { "application/json": { "schema": schema } } });
    let refused = "What is wrong with the request.";
    let mut set = json!({ "200": answer("What holds now.", &limits) });
    for status in ["400", "401", "413", "415", "503"] {
        set[status] = answer(refused, &fault);
    }
    document["paths"][PATH] = json!({
        "get": { "summary": "When workers count as busy",
            "responses": { "200": answer("Every model with its limits.", &list) } },
        "post": { "summary": "Set when workers of a model count as busy",
            "requestBody": { "required": true, "content": { "application/json": { "schema": order } } },
            "responses": set },
    });
}
