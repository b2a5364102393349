//! One message of a conversation: read from the wire, written for chat templates.

use super::common::conflict;
use crate::json::{Kind, Reader, echo};
use dynamo_types::Error;
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;

type Result<T, E = Error> = std::result::Result<T, E>;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
    Function,
}

impl Role {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "system" => Self::System,
            "developer" => Self::Developer,
            "user" => Self::User,
            "assistant" => Self::Assistant,
            "tool" => Self::Tool,
            "function" => Self::Function,
            _ => return None,
        })
    }
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Content {
    Text(String),
    Parts(Vec<Part>),
}

impl Content {
    /// All of it as one text; parts are joined by newlines, as templates that know only text expect.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Parts(parts) => match parts.as_slice() {
                [Part::Text { text }] => Cow::Borrowed(text),
                parts => {
                    let texts: Vec<&str> = parts.iter().map(|Part::Text { text }| text.as_str()).collect();
                    Cow::Owned(texts.join("\n"))
                }
            },
        }
    }
}

/// A part of a message. Media parts are refused while reading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    Text { text: String },
}

/// A function call that the assistant made earlier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

/// One message. Serialises into what chat templates of the hub expect: `content` is always there (null when an
/// assistant only called tools), arguments of earlier tool calls are objects, absent fields are absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub role: Role,
    pub content: Option<Content>,
    pub name: Option<String>,
    pub tool_calls: Vec<ToolCall>,
    pub tool_call_id: Option<String>,
    pub reasoning_content: Option<String>,
}

impl Message {
    /// A plain text message.
    pub fn new(role: Role, text: impl Into<String>) -> Self {
        Self {
            role,
            content: Some(Content::Text(text.into())),
            name: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            reasoning_content: None,
        }
    }

    /// The same message with its parts joined into one text, for templates that do not walk parts.
    #[must_use]
    pub fn flattened(&self) -> Self {
        let content = self.content.as_ref().map(|content| Content::Text(content.text().into_owned()));
        Self { content, ..self.clone() }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let mut role = None;
        let mut message = Self::new(Role::User, "");
        message.content = None;
        let mut refusal = None;
        reader.object("a message object", |reader, key| {
            match key {
                "role" => {
                    let text = reader.string()?;
                    role = Role::parse(&text);
                    if role.is_none() {
                        return Err(reader.refuse(format_args!(
                            "must be `system`, `developer`, `user`, `assistant`, `tool` or `function`, got `{}`",
                            echo(&text)
                        )));
                    }
                }
                "content" => message.content = Some(read_content(reader)?),
                "name" => message.name = Some(reader.string()?.into_owned()),
                "tool_calls" => message.tool_calls = read_tool_calls(reader)?,
                "tool_call_id" => message.tool_call_id = Some(reader.string()?.into_owned()),
                "reasoning_content" | "reasoning" => {
                    message.reasoning_content = Some(reader.string()?.into_owned());
                }
                "refusal" => refusal = Some(reader.string()?.into_owned()),
                // What SDKs send back with an earlier answer and means nothing to a text model.
                "annotations" | "audio" => reader.unknown_unless(|raw| matches!(raw, "[]" | "{}"))?,
                _ => reader.unknown()?,
            }
            Ok(())
        })?;
        let place = |field: &str| format!("{}.{field}", reader.path());
        let missing = |field: &str| super::common::missing(&place(field));
        message.role = role.ok_or_else(|| missing("role"))?;
        if message.content.is_none() {
            message.content = refusal.map(Content::Text);
        }
        if message.content.is_none() && message.role != Role::Assistant {
            return Err(missing("content"));
        }
        if !message.tool_calls.is_empty() && message.role != Role::Assistant {
            return Err(conflict(&place("tool_calls"), "is only allowed with role `assistant`"));
        }
        Ok(message)
    }
}

fn read_content(reader: &mut Reader<'_>) -> Result<Content> {
    match reader.peek()? {
        Kind::String => Ok(Content::Text(reader.string()?.into_owned())),
        Kind::Array => {
            let mut parts = Vec::new();
            reader.array("an array", |reader, _| {
                parts.push(read_part(reader)?);
                Ok(())
            })?;
            Ok(Content::Parts(parts))
        }
        _ => Err(reader.wrong_type("a string or an array of content parts")),
    }
}

fn read_part(reader: &mut Reader<'_>) -> Result<Part> {
    if reader.peek()? == Kind::String {
        return Ok(Part::Text { text: reader.string()?.into_owned() });
    }
    let mut kind = None;
    let mut text = None;
    reader.object("a content part object", |reader, key| {
        match key {
            "type" => kind = Some(reader.string()?.into_owned()),
            "text" | "refusal" => text = Some(reader.string()?.into_owned()),
            // Belongs to a part that is refused below.
            "image_url" | "input_audio" | "audio_url" | "video_url" | "file" => _ = reader.raw()?,
            _ => reader.unknown()?,
        }
        Ok(())
    })?;
    match (kind.as_deref(), text) {
        (Some("text" | "input_text" | "output_text" | "refusal") | None, Some(text)) => {
            Ok(Part::Text { text })
        }
        (Some("text" | "input_text" | "output_text"), None) => {
            Err(reader.refuse("of type `text` needs `text`"))
        }
        (Some("refusal"), None) => Err(reader.refuse("of type `refusal` needs `refusal`")),
        (Some(other), _) => {
            let problem = format!("has the type `{}`, but this model takes only text parts", echo(other));
            Err(reader.refuse(problem).with_code("unsupported_content"))
        }
        (None, None) => Err(reader.refuse("needs a `type`")),
    }
}

fn read_tool_calls(reader: &mut Reader<'_>) -> Result<Vec<ToolCall>> {
    let mut calls = Vec::new();
    reader.array("an array of tool calls", |reader, _| {
        let mut call = ToolCall { id: String::new(), name: String::new(), arguments: String::new() };
        reader.object("a tool call object", |reader, key| {
            match key {
                "id" => call.id = reader.string()?.into_owned(),
                "type" => {
                    let kind = reader.string()?;
                    if kind != "function" {
                        return Err(reader.refuse(format_args!("must be `function`, got `{}`", echo(&kind))));
                    }
                }
                "function" => reader.object("an object", |reader, key| {
                    match key {
                        "name" => call.name = reader.string()?.into_owned(),
                        // A string by the protocol; some clients send the object itself.
                        "arguments" if reader.peek()? == Kind::Object => {
                            call.arguments = reader.raw()?.to_owned();
                        }
                        "arguments" => call.arguments = reader.string()?.into_owned(),
                        _ => reader.unknown()?,
                    }
                    Ok(())
                })?,
                // Left over from stream chunks.
                "index" => _ = reader.raw()?,
                _ => reader.unknown()?,
            }
            Ok(())
        })?;
        if call.name.is_empty() {
            return Err(reader.refuse("needs `function.name`"));
        }
        calls.push(call);
        Ok(())
    })?;
    Ok(calls)
}

#[derive(Serialize)]
struct CallForTemplate<'a> {
    id: &'a str,
    r#type: &'static str,
    function: FunctionForTemplate<'a>,
}

#[derive(Serialize)]
struct FunctionForTemplate<'a> {
    name: &'a str,
    arguments: Value,
}

impl ToolCall {
    fn for_template(&self) -> CallForTemplate<'_> {
        let text = self.arguments.trim();
        // Templates print arguments with `tojson` or walk them: text in quotes would come out quoted twice.
        let arguments = match serde_json::from_str(if text.is_empty() { "{}" } else { text }) {
            Ok(value @ Value::Object(_)) => value,
            _ => Value::from(self.arguments.as_str()),
        };
        CallForTemplate {
            id: &self.id,
            r#type: "function",
            function: FunctionForTemplate { name: &self.name, arguments },
        }
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("role", &self.role)?;
        map.serialize_entry("content", &self.content)?;
        if let Some(name) = &self.name {
            map.serialize_entry("name", name)?;
        }
        if !self.tool_calls.is_empty() {
            let calls: Vec<_> = self.tool_calls.iter().map(ToolCall::for_template).collect();
            map.serialize_entry("tool_calls", &calls)?;
        }
        if let Some(id) = &self.tool_call_id {
            map.serialize_entry("tool_call_id", id)?;
        }
        if let Some(reasoning) = &self.reasoning_content {
            map.serialize_entry("reasoning_content", reasoning)?;
        }
        map.end()
    }
}
