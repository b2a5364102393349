//! Whole answers.

use super::{SIGNATURE, stop_reason, stop_sequence};
use crate::json;
use crate::openai;
use crate::pieces::{self, Blocks, Finish, Fold, Kind, Piece, Sequencer};
use serde::Serialize;
use serde_json::{Map, Value};

/// Token counts in Anthropic's terms: `input_tokens` are those of the prompt that were not cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub input_tokens: u32,
    /// Writing to the cache is not counted apart.
    pub cache_creation_input_tokens: u32,
    pub cache_read_input_tokens: u32,
    pub output_tokens: u32,
}

impl From<openai::Usage> for Usage {
    fn from(usage: openai::Usage) -> Self {
        let cached = usage.prompt_tokens_details.cached_tokens;
        Self {
            input_tokens: usage.prompt_tokens.saturating_sub(cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            output_tokens: usage.completion_tokens,
        }
    }
}

/// The answer of `POST /v1/messages/count_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct InputTokens {
    pub input_tokens: u32,
}

/// A block of an answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    Text { text: String },
    Thinking { thinking: String, signature: &'static str },
    ToolUse { id: String, name: String, input: Value },
}

/// The unary answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Message {
    pub id: String,
    pub r#type: &'static str,
    pub role: &'static str,
    pub model: String,
    pub content: Vec<Block>,
    pub stop_reason: Option<&'static str>,
    pub stop_sequence: Option<String>,
    pub usage: Usage,
}

/// Folds pieces into a [`Message`], with the same blocks that [`super::EventWriter`] shows for them.
#[derive(Debug)]
pub struct Body {
    id: String,
    model: String,
    blocks: Sequencer,
    content: Content,
}

#[derive(Debug, Default)]
struct Content {
    blocks: Vec<Block>,
    /// Of the open call.
    arguments: String,
}

impl Body {
    /// `id` with its prefix `msg_`.
    pub fn new(id: &str, model: &str) -> Self {
        let (id, model) = (id.to_owned(), model.to_owned());
        Self { id, model, blocks: Sequencer::default(), content: Content::default() }
    }
}

impl Fold for Body {
    type Answer = Message;

    fn push(&mut self, piece: Piece<'_>) {
        self.blocks.push(piece, &mut self.content);
    }

    fn finish(mut self, finish: &Finish<'_>, usage: openai::Usage) -> Message {
        self.blocks.end(finish.is_cut(), &mut self.content);
        Message {
            id: self.id,
            r#type: "message",
            role: "assistant",
            model: self.model,
            content: self.content.blocks,
            stop_reason: Some(stop_reason(finish)),
            stop_sequence: stop_sequence(finish).map(str::to_owned),
            usage: usage.into(),
        }
    }
}

impl Blocks for Content {
    fn open(&mut self, _: u32, block: pieces::Block<'_>) {
        self.blocks.push(match block {
            pieces::Block::Text => Block::Text { text: String::new() },
            pieces::Block::Reasoning => Block::Thinking { thinking: String::new(), signature: SIGNATURE },
            pieces::Block::Tool { id, name } => {
                Block::ToolUse { id: id.to_owned(), name: name.to_owned(), input: Value::Object(Map::new()) }
            }
        });
    }

    fn extend(&mut self, _: u32, _: Kind, text: &str) {
        match self.blocks.last_mut() {
            Some(Block::Text { text: last } | Block::Thinking { thinking: last, .. }) => last.push_str(text),
            _ => self.arguments.push_str(text),
        }
    }

    fn close(&mut self, _: u32, _: Kind, _: bool) {
        if let Some(Block::ToolUse { input, .. }) = self.blocks.last_mut() {
            let arguments = std::mem::take(&mut self.arguments);
            // Of a call that was cut off, clients that fold the stream keep this much too.
            if let Some(value) =
                serde_json::from_str(&arguments).ok().or_else(|| json::whole_part(&arguments))
            {
                *input = value;
            }
        }
    }
}
