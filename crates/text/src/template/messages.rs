//! Messages in the shape a template was written for.
//!
//! Clients send content as a string or as a list of parts, and tool arguments as JSON in a string; templates expect
//! one of each. Which one is found by rendering both and looking where the content came out: that holds for every style
//! of writing a template, which no reading of its source does.

use super::{is_map, jinja};
use dynamo_types::Error;
use minijinja::Value as JinjaValue;
use minijinja::value::ValueKind;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

/// A word that no template contains.
const MARK: &str = "qXzprobe";

/// How a template reads `content`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Content {
    /// As a string only: lists of text parts are joined.
    #[default]
    Text,
    /// As a list of parts only: strings become one part.
    Parts,
    /// Either.
    Any,
}

/// How a template reads `tool_calls[].function.arguments`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Arguments {
    /// As an object, which is what the hub asks of templates.
    #[default]
    Object,
    /// As the string that clients send.
    Text,
}

/// The shape of messages that a template expects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    content: Content,
    arguments: Arguments,
    /// Content comes out as it is. A template that only looks at it may mean null by null.
    is_shown: bool,
}

impl Shape {
    /// Tries messages of either shape on `render`.
    pub(super) fn find(render: impl Fn(&[Value]) -> Option<String>) -> Self {
        let user = |content: Value| render(&[json!({"role": "user", "content": content})]);
        let text = user(json!(MARK)).is_some_and(|out| out.contains(MARK));
        let parts = user(json!([{"type": "text", "text": MARK}]));
        // A list that is merely printed shows its quotes.
        let parts_shown = parts.as_ref().is_some_and(|out| out.contains(MARK) && !is_quoted(out));
        let content = match (text, parts_shown) {
            (true, true) => Content::Any,
            (true, false) => Content::Text,
            (false, true) => Content::Parts,
            // Content that is looked at but not shown.
            (false, false) if parts.is_some() => Content::Any,
            (false, false) => Content::Text,
        };
        let call = |arguments: Value| {
            let question = match content {
                Content::Parts => json!([{"type": "text", "text": "?"}]),
                Content::Text | Content::Any => json!("?"),
            };
            render(&[
                json!({"role": "user", "content": question}),
                json!({"role": "assistant", "content": "", "tool_calls": [{"id": "call12345", "type": "function",
                    "function": {"name": "f", "arguments": arguments}}]}),
            ])
        };
        let as_text = call(json!(format!("{{\"{MARK}\": 1}}")));
        let as_object = call(json!({MARK: 1}));
        let text_fits = as_text.is_some_and(|out| out.contains(&format!("{{\"{MARK}\"")));
        let object_fits = as_object.is_some_and(|out| !out.contains(&format!("'{MARK}'")));
        let arguments = if text_fits && !object_fits { Arguments::Text } else { Arguments::Object };
        Self { content, arguments, is_shown: text || parts_shown }
    }

    /// Turns a client's message into this shape.
    pub(super) fn fit(self, message: JinjaValue, index: usize) -> Result<JinjaValue, Error> {
        if !is_map(&message) {
            return Err(
                Error::invalid("a message must be an object").with_param(format!("messages[{index}]"))
            );
        }
        let mut changed = Vec::new();
        let content = message.get_attr("content").unwrap_or_default();
        match (self.content, content.kind()) {
            (Content::Text, ValueKind::Seq) => {
                changed.push(("content", JinjaValue::from(joined(&content, index)?)));
            }
            (Content::Parts, ValueKind::String) => {
                changed.push(("content", jinja(json!([{"type": "text", "text": content.as_str()}]))));
            }
            // What clients send beside tool calls. Templates concatenate content, or print it.
            (Content::Text | Content::Any, ValueKind::None | ValueKind::Undefined) if self.is_shown => {
                changed.push(("content", JinjaValue::from("")));
            }
            (Content::Parts, ValueKind::None | ValueKind::Undefined) => {
                changed.push(("content", jinja(json!([]))));
            }
            _ => {}
        }
        let calls = message.get_attr("tool_calls").unwrap_or_default();
        if calls.kind() == ValueKind::Seq && self.arguments == Arguments::Object {
            let calls: Vec<JinjaValue> = calls.try_iter().into_iter().flatten().map(with_object).collect();
            changed.push(("tool_calls", JinjaValue::from(calls)));
        }
        Ok(if changed.is_empty() { message } else { replaced(&message, changed) })
    }
}

/// Is the mark inside a printed list?
fn is_quoted(out: &str) -> bool {
    out.contains(&format!("'{MARK}'")) || out.contains(&format!("\"{MARK}\""))
}

/// A map with some entries exchanged, or added.
fn replaced(map: &JinjaValue, mut changed: Vec<(&'static str, JinjaValue)>) -> JinjaValue {
    let keys = map.try_iter().into_iter().flatten();
    let mut entries: Vec<(JinjaValue, JinjaValue)> = Vec::new();
    for key in keys {
        let new = changed.iter().position(|(name, _)| key.as_str() == Some(name));
        let value = match new {
            Some(at) => changed.swap_remove(at).1,
            None => map.get_item(&key).unwrap_or_default(),
        };
        entries.push((key, value));
    }
    entries.extend(changed.into_iter().map(|(name, value)| (JinjaValue::from(name), value)));
    jinja(Entries(entries))
}

/// A map in the making; its values pass through serde as they are.
struct Entries(Vec<(JinjaValue, JinjaValue)>);

impl Serialize for Entries {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

/// A tool call whose arguments are an object, where they were the JSON text of one.
fn with_object(call: JinjaValue) -> JinjaValue {
    let function = call.get_attr("function").unwrap_or_default();
    let arguments = function.get_attr("arguments").unwrap_or_default();
    let parsed = arguments.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    match parsed {
        Some(object @ Value::Object(_)) if is_map(&function) => {
            let function = replaced(&function, vec![("arguments", jinja(object))]);
            replaced(&call, vec![("function", function)])
        }
        _ => call,
    }
}

/// The text parts of a content list, one per line.
fn joined(content: &JinjaValue, index: usize) -> Result<String, Error> {
    let mut text = String::new();
    for (part, at) in content.try_iter().into_iter().flatten().zip(0..) {
        if at > 0 {
            text.push('\n');
        }
        let value = part.get_attr("text").unwrap_or_default();
        match value.as_str().or_else(|| part.as_str()) {
            Some(value) => text.push_str(value),
            None => {
                let kind = part.get_attr("type").unwrap_or_default();
                return Err(Error::invalid(format!(
                    "this model reads text only, found a content part of type '{kind}'"
                ))
                .with_param(format!("messages[{index}].content[{at}]")));
            }
        }
    }
    Ok(text)
}

/// Cuts a rendered conversation behind the content of its last message, as the hub's `continue_final_message` does:
/// white space around the content counts where the template kept it.
pub(super) fn cut_after_final(mut text: String, last: Option<&JinjaValue>) -> Result<String, Error> {
    let invalid = |message: &str| Error::invalid(message).with_param("continue_final_message");
    let Some(last) = last else {
        return Err(invalid("there is no message to continue"));
    };
    let content = last.get_attr("content").unwrap_or_default();
    let content = match content.kind() {
        ValueKind::Seq => content
            .try_iter()
            .into_iter()
            .flatten()
            .filter_map(|part| part.get_attr("text").ok().filter(|text| text.as_str().is_some()))
            .last()
            .unwrap_or_default(),
        _ => content,
    };
    let Some(content) = content.as_str() else {
        return Err(invalid("the last message has no text to continue"));
    };
    let Some(start) = text.rfind(content.trim()) else {
        return Err(invalid("the chat template does not show the content of the last message"));
    };
    let kept = content.trim_start();
    let whole = text[start..].starts_with(kept) && kept.len() == content.len();
    text.truncate(start + if whole { kept.len() } else { content.trim().len() });
    Ok(text)
}
