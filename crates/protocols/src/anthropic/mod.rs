//! Anthropic's dialect: messages, counting their tokens, their streams and their errors.

mod content;
mod error;
mod event;
mod request;
mod response;
mod tools;

pub use error::error_body;
pub use event::EventWriter;
pub use request::{Request, Thinking};
pub use response::{Block, Body, InputTokens, Message, Usage};

use crate::pieces::Finish;
use dynamo_types::FinishReason;

/// What stands where the service that defined the format puts proof that it made the thinking itself. Nothing checks it
/// here, and it is the same for all, so that a stream and a whole answer agree.
const SIGNATURE: &str = "unsigned";

/// Why the answer ended, in Anthropic's words.
pub fn stop_reason(finish: &Finish<'_>) -> &'static str {
    match finish.reason {
        FinishReason::Stop if finish.stop.is_some() => "stop_sequence",
        FinishReason::Stop => "end_turn",
        FinishReason::Length => "max_tokens",
        FinishReason::ToolCalls => "tool_use",
        FinishReason::ContentFilter => "refusal",
    }
}

/// The stop string to tell, which goes with its reason only.
fn stop_sequence<'a>(finish: &Finish<'a>) -> Option<&'a str> {
    finish.stop.filter(|_| finish.reason == FinishReason::Stop)
}
