//! Spans in OTLP's two HTTP encodings. Field numbers and names are those of the protocol's `trace/v1/trace.proto`.

use super::{Kind, Span, Value};
use serde_json::json;

const SCOPE: &str = "dynamo";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Status code of a span that ended with a fault.
const ERROR: u64 = 2;
/// Bits of a span's flags: it is known whether its parent is in another process, and it is.
const HAS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

fn kind(kind: Kind) -> u64 {
    match kind {
        Kind::Internal => 1,
        Kind::Server => 2,
    }
}

/// A server span's parent is the caller's.
fn flags(span: &Span) -> u32 {
    let remote = if span.kind == Kind::Server && span.parent.is_some() { IS_REMOTE } else { 0 };
    u32::from(span.context.flags()) | HAS_IS_REMOTE | remote
}

/// `http/json`.
pub(super) fn json(service: &str, spans: &[Span]) -> Vec<u8> {
    let attribute = |name: &str, value: &Value| {
        let value = match value {
            Value::Text(text) => json!({ "stringValue": text }),
            // 64-bit numbers are texts in this encoding.
            Value::Number(number) => json!({ "intValue": number.to_string() }),
            Value::Flag(flag) => json!({ "boolValue": flag }),
        };
        json!({ "key": name, "value": value })
    };
    let spans: Vec<_> = spans
        .iter()
        .map(|span| {
            let attributes: Vec<_> =
                span.attributes.iter().map(|(name, value)| attribute(name, value)).collect();
            let events: Vec<_> = span
                .events
                .iter()
                .map(|(name, at)| json!({ "name": name, "timeUnixNano": span.time_ns(*at).to_string() }))
                .collect();
            let status = span.error.as_ref().map(|error| json!({ "code": ERROR, "message": error }));
            json!({
                "traceId": span.context.trace_id.to_string(),
                "spanId": span.context.span_id.to_string(),
                "parentSpanId": span.parent.map(|id| id.to_string()).unwrap_or_default(),
                "traceState": span.context.state().unwrap_or_default(),
                "flags": flags(span),
                "name": span.name,
                "kind": kind(span.kind),
                "startTimeUnixNano": span.time_ns(std::time::Duration::ZERO).to_string(),
                "endTimeUnixNano": span.time_ns(span.duration).to_string(),
                "attributes": attributes,
                "events": events,
                "status": status.unwrap_or_else(|| json!({})),
            })
        })
        .collect();
    json!({ "resourceSpans": [{
        "resource": { "attributes": [attribute("service.name", &Value::from(service))] },
        "scopeSpans": [{ "scope": { "name": SCOPE, "version": VERSION }, "spans": spans }],
    }] })
    .to_string()
    .into_bytes()
}

/// `http/protobuf`.
pub(super) fn protobuf(service: &str, spans: &[Span]) -> Vec<u8> {
    let mut scope = Message::default();
    scope.text(1, SCOPE);
    scope.text(2, VERSION);
    let mut scope_spans = Message::default();
    scope_spans.message(1, &scope);
    spans.iter().for_each(|span| scope_spans.message(2, &span_message(span)));
    let mut resource = Message::default();
    resource.message(1, &attribute("service.name", &Value::from(service)));
    let mut resource_spans = Message::default();
    resource_spans.message(1, &resource);
    resource_spans.message(2, &scope_spans);
    let mut request = Message::default();
    request.message(1, &resource_spans);
    request.0
}

fn span_message(span: &Span) -> Message {
    let mut message = Message::default();
    message.bytes(1, &span.context.trace_id.0.to_be_bytes());
    message.bytes(2, &span.context.span_id.0.to_be_bytes());
    if let Some(state) = span.context.state() {
        message.text(3, state);
    }
    if let Some(parent) = span.parent {
        message.bytes(4, &parent.0.to_be_bytes());
    }
    message.text(5, span.name);
    message.number(6, kind(span.kind));
    message.fixed64(7, span.time_ns(std::time::Duration::ZERO));
    message.fixed64(8, span.time_ns(span.duration));
    for (name, value) in &span.attributes {
        message.message(9, &attribute(name, value));
    }
    for (name, at) in &span.events {
        let mut event = Message::default();
        event.fixed64(1, span.time_ns(*at));
        event.text(2, name);
        message.message(11, &event);
    }
    if let Some(error) = &span.error {
        let mut status = Message::default();
        status.text(2, error);
        status.number(3, ERROR);
        message.message(15, &status);
    }
    message.fixed32(16, flags(span));
    message
}

fn attribute(name: &str, value: &Value) -> Message {
    let mut any = Message::default();
    match value {
        Value::Text(text) => any.text(1, text),
        Value::Flag(flag) => any.number(2, u64::from(*flag)),
        Value::Number(number) => any.number(3, number.cast_unsigned()),
    }
    let mut pair = Message::default();
    pair.text(1, name);
    pair.message(2, &any);
    pair
}

/// A protobuf message being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value as u8 & 0x7f) | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn tag(&mut self, field: u64, wire_type: u64) {
        self.varint(field << 3 | wire_type);
    }

    fn number(&mut self, field: u64, value: u64) {
        self.tag(field, 0);
        self.varint(value);
    }

    fn fixed64(&mut self, field: u64, value: u64) {
        self.tag(field, 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn fixed32(&mut self, field: u64, value: u32) {
        self.tag(field, 5);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.tag(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, field: u64, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn message(&mut self, field: u64, message: &Self) {
        self.bytes(field, &message.0);
    }
}
