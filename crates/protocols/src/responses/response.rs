//! The response object: whole answers, and what events show of unfinished ones.

use super::item::{COMPLETED, IN_PROGRESS, INCOMPLETE, Item, Items};
use super::request::Settings;
use crate::openai;
use crate::pieces::{Finish, Fold, Piece, Sequencer};
use dynamo_types::{Class, Error, FinishReason};
use serde::Serialize;
use std::sync::Arc;

/// Token counts under this API's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub input_tokens: u32,
    pub input_tokens_details: InputDetails,
    pub output_tokens: u32,
    pub output_tokens_details: OutputDetails,
    pub total_tokens: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InputDetails {
    pub cached_tokens: u32,
    /// Not counted apart.
    pub cache_write_tokens: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OutputDetails {
    /// Not counted apart.
    pub reasoning_tokens: u32,
}

impl From<openai::Usage> for Usage {
    fn from(usage: openai::Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputDetails {
                cached_tokens: usage.prompt_tokens_details.cached_tokens,
                cache_write_tokens: 0,
            },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputDetails::default(),
            total_tokens: usage.total_tokens,
        }
    }
}

/// The answer of `POST /v1/responses/input_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct InputTokens {
    pub object: &'static str,
    pub input_tokens: u32,
}

impl InputTokens {
    pub fn new(input_tokens: u32) -> Self {
        Self { object: "response.input_tokens", input_tokens }
    }
}

/// The unary answer; inside events also an unfinished one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Response {
    pub id: String,
    pub object: &'static str,
    /// Unix seconds.
    pub created_at: u64,
    pub status: &'static str,
    pub background: bool,
    pub error: Option<Fault>,
    pub incomplete_details: Option<IncompleteDetails>,
    pub model: String,
    pub output: Vec<Item>,
    pub previous_response_id: Option<String>,
    pub service_tier: &'static str,
    pub store: bool,
    pub top_logprobs: u32,
    pub usage: Option<Usage>,
    #[serde(flatten)]
    pub settings: Arc<Settings>,
}

/// Why an answer failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    pub code: &'static str,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct IncompleteDetails {
    pub reason: &'static str,
}

impl From<&Error> for Fault {
    fn from(error: &Error) -> Self {
        let code = match error.class() {
            Class::Overloaded => "rate_limit_exceeded",
            Class::Invalid => "invalid_prompt",
            _ => "server_error",
        };
        Self { code, message: error.message().to_owned() }
    }
}

impl Response {
    pub(super) fn new(id: &str, created_s: u64, model: &str, settings: Arc<Settings>) -> Self {
        Self {
            id: id.to_owned(),
            object: "response",
            created_at: created_s,
            status: IN_PROGRESS,
            background: false,
            error: None,
            incomplete_details: None,
            model: model.to_owned(),
            output: Vec::new(),
            previous_response_id: None,
            service_tier: "default",
            store: false,
            top_logprobs: 0,
            usage: None,
            settings,
        }
    }

    pub(super) fn finish(&mut self, output: Vec<Item>, finish: &Finish<'_>, usage: openai::Usage) {
        let incomplete = match finish.reason {
            FinishReason::Stop | FinishReason::ToolCalls => None,
            FinishReason::Length => Some("max_output_tokens"),
            FinishReason::ContentFilter => Some("content_filter"),
        };
        self.status = if incomplete.is_some() { INCOMPLETE } else { COMPLETED };
        self.incomplete_details = incomplete.map(|reason| IncompleteDetails { reason });
        self.output = output;
        self.usage = Some(usage.into());
    }

    pub(super) fn fail(&mut self, output: Vec<Item>, error: &Error) {
        self.status = "failed";
        self.error = Some(error.into());
        self.output = output;
    }
}

/// Folds pieces into a [`Response`], with the same items that [`super::EventWriter`] shows for them.
#[derive(Debug)]
pub struct Body {
    response: Response,
    blocks: Sequencer,
    items: Items,
}

impl Body {
    /// `id` with its prefix `resp_`.
    pub fn new(id: &str, created_s: u64, model: &str, settings: Arc<Settings>) -> Self {
        let response = Response::new(id, created_s, model, settings);
        Self { response, blocks: Sequencer::default(), items: Items::new(id) }
    }
}

impl Fold for Body {
    type Answer = Response;

    fn push(&mut self, piece: Piece<'_>) {
        self.blocks.push(piece, &mut self.items);
    }

    fn finish(mut self, finish: &Finish<'_>, usage: openai::Usage) -> Response {
        self.blocks.end(finish.is_cut(), &mut self.items);
        self.response.finish(self.items.items, finish, usage);
        self.response
    }
}
