//! OpenAI's dialect: chat completions, text completions, embeddings, model listing, their streams and their errors.

pub mod answer;
pub mod chat;
pub(crate) mod chunk;
pub mod common;
pub mod completions;
pub mod embeddings;
pub(crate) mod error;
pub(crate) mod forced;
pub mod logprobs;
pub mod message;
pub(crate) mod mind;
pub mod models;
pub mod nvext;
pub(crate) mod response_format;
pub(crate) mod strict;
pub mod tools;
pub mod usage;

pub use answer::AnswerExtensions;
pub use chunk::{ChunkWriter, Extras};
pub use common::Common;
pub use error::error_body;
pub use forced::strict_calls;
pub use logprobs::{TokenLogprob, TopLogprob};
pub use usage::Usage;

use dynamo_types::FinishReason;

/// The reason in OpenAI's words.
pub fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::ContentFilter => "content_filter",
    }
}
