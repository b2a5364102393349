//! Items of an answer.

use crate::pieces::{Block, Blocks, Kind};
use serde::Serialize;

/// One item of the output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Item {
    Reasoning {
        id: String,
        /// Nobody sums up: the reasoning itself is in `content`.
        summary: [(); 0],
        content: Vec<ReasoningText>,
        encrypted_content: Option<String>,
        status: &'static str,
    },
    Message {
        id: String,
        status: &'static str,
        role: &'static str,
        content: Vec<OutputText>,
    },
    FunctionCall {
        id: String,
        status: &'static str,
        call_id: String,
        name: String,
        arguments: String,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "reasoning_text")]
pub struct ReasoningText {
    pub text: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "output_text")]
pub struct OutputText {
    pub text: String,
    pub annotations: [(); 0],
    pub logprobs: [(); 0],
}

pub(super) const IN_PROGRESS: &str = "in_progress";
pub(super) const COMPLETED: &str = "completed";
pub(super) const INCOMPLETE: &str = "incomplete";

impl Item {
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Reasoning { id, .. } | Self::Message { id, .. } | Self::FunctionCall { id, .. } => id,
        }
    }

    /// The text that grows: of a message, of reasoning, of arguments.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Reasoning { content, .. } => content.first().map_or("", |part| &part.text),
            Self::Message { content, .. } => content.first().map_or("", |part| &part.text),
            Self::FunctionCall { arguments, .. } => arguments,
        }
    }

    fn text_mut(&mut self) -> &mut String {
        fn first<T: Default>(parts: &mut Vec<T>) -> &mut T {
            if parts.is_empty() {
                parts.push(T::default());
            }
            &mut parts[0]
        }
        match self {
            Self::Reasoning { content, .. } => &mut first(content).text,
            Self::Message { content, .. } => &mut first(content).text,
            Self::FunctionCall { arguments, .. } => arguments,
        }
    }

    fn set_status(&mut self, new: &'static str) {
        match self {
            Self::Reasoning { status, .. }
            | Self::Message { status, .. }
            | Self::FunctionCall { status, .. } => {
                *status = new;
            }
        }
    }
}

/// The items of one answer, put together from its blocks.
#[derive(Clone, Debug, Default)]
pub(super) struct Items {
    /// What item ids are made of.
    pub(super) stem: String,
    pub(super) items: Vec<Item>,
}

impl Items {
    /// `id` is the one of the response, `resp_...`.
    pub(super) fn new(id: &str) -> Self {
        Self { stem: id.strip_prefix("resp_").unwrap_or(id).to_owned(), items: Vec::new() }
    }
}

impl Blocks for Items {
    fn open(&mut self, index: u32, block: Block<'_>) {
        let status = IN_PROGRESS;
        let id = |prefix: &str| format!("{prefix}_{}_{index}", self.stem);
        self.items.push(match block {
            Block::Text => Item::Message { id: id("msg"), status, role: "assistant", content: Vec::new() },
            Block::Reasoning => Item::Reasoning {
                id: id("rs"),
                summary: [],
                content: Vec::new(),
                encrypted_content: None,
                status,
            },
            Block::Tool { id: call, name } => Item::FunctionCall {
                id: id("fc"),
                status,
                call_id: call.to_owned(),
                name: name.to_owned(),
                arguments: String::new(),
            },
        });
    }

    fn extend(&mut self, _: u32, _: Kind, text: &str) {
        if let Some(item) = self.items.last_mut() {
            item.text_mut().push_str(text);
        }
    }

    fn close(&mut self, _: u32, _: Kind, is_whole: bool) {
        if let Some(item) = self.items.last_mut() {
            item.set_status(if is_whole { COMPLETED } else { INCOMPLETE });
        }
    }
}
