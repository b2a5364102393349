//! Messages and their blocks, read from the wire into the form that chat templates know.

use crate::conversation::Conversation;
use crate::json::{Kind, Reader, echo};
use crate::openai::common::missing;
use crate::openai::message::{Content, Part, Role, ToolCall};
use dynamo_types::Error;

type Result<T, E = Error> = std::result::Result<T, E>;

enum Block {
    Text(String),
    Thinking(String),
    /// Thinking that only its maker can read.
    Redacted,
    ToolUse(ToolCall),
    ToolResult {
        call: String,
        texts: Vec<String>,
    },
}

/// Whose messages blocks may be in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    User,
    Assistant,
    System,
}

/// The fields of a block, of whatever type it turns out to be.
#[derive(Default)]
struct Fields {
    kind: Option<String>,
    text: Option<String>,
    thinking: Option<String>,
    id: Option<String>,
    name: Option<String>,
    input: Option<String>,
    call: Option<String>,
    content: Vec<String>,
    is_error: bool,
}

/// Reads `system`: a text, or blocks of text.
pub(super) fn read_system(reader: &mut Reader<'_>) -> Result<Vec<String>> {
    read_texts(reader, "a string or an array of text blocks")
}

fn read_texts(reader: &mut Reader<'_>, expected: &str) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    match reader.peek()? {
        Kind::String => texts.push(reader.string()?.into_owned()),
        Kind::Array => {
            reader.array(expected, |reader, _| match read_block(reader)? {
                Block::Text(text) => {
                    texts.push(text);
                    Ok(())
                }
                _ => Err(reader.refuse("must be a block of type `text`").with_code("unsupported_content")),
            })?;
        }
        _ => return Err(reader.wrong_type(expected)),
    }
    Ok(texts)
}

/// Reads `messages` onto the end of `conversation`.
///
/// Neighbouring messages of one role are one turn, as the API has it. Results of calls become messages of their own, in
/// front of the text that follows them.
pub(super) fn read_messages(reader: &mut Reader<'_>, conversation: &mut Conversation) -> Result<usize> {
    let mut last = None;
    reader.array("an array of messages", |reader, _| {
        let mut role = None;
        let mut blocks = None;
        reader.object("a message object", |reader, key| {
            match key {
                "role" => role = Some(read_role(reader)?),
                "content" => blocks = Some(read_blocks(reader)?),
                // What SDKs send back with an earlier answer.
                "id" | "type" | "model" | "stop_reason" | "stop_sequence" | "usage" => _ = reader.raw()?,
                _ => reader.unknown()?,
            }
            Ok(())
        })?;
        let absent = |field: &str| missing(&format!("{}.{field}", reader.path()));
        let role = role.ok_or_else(|| absent("role"))?;
        let blocks = blocks.ok_or_else(|| absent("content"))?;
        match role {
            Place::User => user(reader, conversation, blocks, last == Some(Place::User))?,
            Place::Assistant => assistant(reader, conversation, blocks)?,
            Place::System => system(reader, conversation, blocks)?,
        }
        last = Some(role);
        Ok(())
    })
}

fn read_role(reader: &mut Reader<'_>) -> Result<Place> {
    match &*reader.string()? {
        "user" => Ok(Place::User),
        "assistant" => Ok(Place::Assistant),
        "system" => Ok(Place::System),
        other => {
            Err(reader.refuse(format_args!("must be `user`, `assistant` or `system`, got `{}`", echo(other))))
        }
    }
}

fn user(
    reader: &Reader<'_>,
    conversation: &mut Conversation,
    blocks: Vec<Block>,
    continues: bool,
) -> Result<()> {
    let mut texts = Vec::new();
    if continues && conversation.messages.last().is_some_and(|last| last.role == Role::User) {
        match conversation.messages.pop().and_then(|last| last.content) {
            Some(Content::Text(text)) => texts.push(text),
            Some(Content::Parts(parts)) => texts.extend(parts.into_iter().map(|Part::Text { text }| text)),
            None => {}
        }
    }
    let only_results =
        blocks.iter().all(|block| matches!(block, Block::ToolResult { .. })) && !blocks.is_empty();
    for (index, block) in blocks.into_iter().enumerate() {
        match block {
            Block::Text(text) => texts.push(text),
            Block::ToolResult { call, texts: result } => {
                if !texts.is_empty() {
                    conversation.say(Role::User, std::mem::take(&mut texts));
                }
                conversation.tool_result(call, &result);
            }
            Block::Thinking(_) | Block::Redacted | Block::ToolUse(_) => {
                return Err(misplaced(reader, index, "is only allowed with role `assistant`"));
            }
        }
    }
    if !texts.is_empty() || !only_results {
        conversation.say(Role::User, texts);
    }
    Ok(())
}

fn assistant(reader: &Reader<'_>, conversation: &mut Conversation, blocks: Vec<Block>) -> Result<()> {
    // Also where nothing was said.
    conversation.turn();
    for (index, block) in blocks.into_iter().enumerate() {
        match block {
            Block::Text(text) => conversation.assistant_text(&text),
            Block::Thinking(text) => conversation.reasoning(&text),
            Block::Redacted => {}
            Block::ToolUse(call) => conversation.call(call),
            Block::ToolResult { .. } => {
                return Err(misplaced(reader, index, "is only allowed with role `user`"));
            }
        }
    }
    Ok(())
}

fn system(reader: &Reader<'_>, conversation: &mut Conversation, blocks: Vec<Block>) -> Result<()> {
    let mut texts = Vec::new();
    for (index, block) in blocks.into_iter().enumerate() {
        match block {
            Block::Text(text) => texts.push(text),
            _ => return Err(misplaced(reader, index, "is not allowed with role `system`")),
        }
    }
    conversation.say(Role::System, texts);
    Ok(())
}

fn misplaced(reader: &Reader<'_>, index: usize, problem: &str) -> Error {
    crate::openai::common::conflict(&format!("{}.content[{index}]", reader.path()), problem)
}

fn read_blocks(reader: &mut Reader<'_>) -> Result<Vec<Block>> {
    const EXPECTED: &str = "a string or an array of content blocks";
    match reader.peek()? {
        Kind::String => Ok(vec![Block::Text(reader.string()?.into_owned())]),
        Kind::Array => {
            let mut blocks = Vec::new();
            reader.array(EXPECTED, |reader, _| {
                blocks.push(read_block(reader)?);
                Ok(())
            })?;
            Ok(blocks)
        }
        _ => Err(reader.wrong_type(EXPECTED)),
    }
}

fn read_block(reader: &mut Reader<'_>) -> Result<Block> {
    let mut fields = Fields::default();
    reader.object("a content block object", |reader, key| {
        match key {
            "type" => fields.kind = Some(reader.string()?.into_owned()),
            "text" => fields.text = Some(reader.string()?.into_owned()),
            "thinking" => fields.thinking = Some(reader.string()?.into_owned()),
            "id" => fields.id = Some(reader.string()?.into_owned()),
            "name" => fields.name = Some(reader.string()?.into_owned()),
            "input" if reader.peek()? == Kind::Object => fields.input = Some(reader.raw()?.to_owned()),
            "input" => return Err(reader.wrong_type("an object")),
            "tool_use_id" => fields.call = Some(reader.string()?.into_owned()),
            "content" => fields.content = read_texts(reader, "a string or an array of text blocks")?,
            "is_error" => fields.is_error = reader.boolean()?,
            // Every prefix is cached anyway; the others come back with earlier answers and are checked by nobody, or
            // belong to a block that is refused below.
            "cache_control" | "signature" | "data" | "citations" | "caller" | "toolset_name" | "source"
            | "title" | "context" => {
                reader.raw()?;
            }
            _ => reader.unknown()?,
        }
        Ok(())
    })?;
    fields.block(reader)
}

impl Fields {
    fn block(self, reader: &Reader<'_>) -> Result<Block> {
        let needs = |kind: &str, field: &str| {
            reader
                .refuse(format_args!("of type `{kind}` needs `{field}`"))
                .with_code("missing_required_parameter")
        };
        let unsupported = |problem: String| reader.refuse(problem).with_code("unsupported_content");
        match self.kind.as_deref() {
            Some("text") => self.text.map(Block::Text).ok_or_else(|| needs("text", "text")),
            Some("thinking") => {
                self.thinking.map(Block::Thinking).ok_or_else(|| needs("thinking", "thinking"))
            }
            Some("redacted_thinking") => Ok(Block::Redacted),
            Some("tool_use") => {
                let id = self.id.ok_or_else(|| needs("tool_use", "id"))?;
                let name =
                    self.name.filter(|name| !name.is_empty()).ok_or_else(|| needs("tool_use", "name"))?;
                let arguments = self.input.unwrap_or_else(|| "{}".to_owned());
                Ok(Block::ToolUse(ToolCall { id, name, arguments }))
            }
            Some("tool_result") => {
                let call = self.call.ok_or_else(|| needs("tool_result", "tool_use_id"))?;
                let mut texts = self.content;
                // Chat templates have no place for the flag; where there is text, the text tells.
                if self.is_error && texts.iter().all(String::is_empty) {
                    texts = vec!["error".to_owned()];
                }
                Ok(Block::ToolResult { call, texts })
            }
            Some("image") => Err(unsupported("is an image, but this model takes only text".into())),
            Some(other) => {
                Err(unsupported(format!("has the type `{}`, which this server does not take", echo(other))))
            }
            None => Err(reader.refuse("needs a `type`")),
        }
    }
}
