//! What every API translates into, and how its answer is worded (DESIGN 3.1). A new API is one module that makes a
//! [`Call`] from a body; everything else - routing, streaming, folding, limits, metrics, cancellation - is shared.

use crate::record::Usage;
use bytes::{Bytes, BytesMut};
use dynamo_protocols::openai::chat;
use dynamo_text::TextDelta;
use dynamo_text::parsers::{Start, Tools};
use dynamo_types::{Error, Guide, OutputOptions, RoutingHints, Sampling, Stopping};
use serde_json::{Map, Value};
use std::sync::Arc;

/// One API of the surface.
pub(crate) struct Api {
    /// Label in metrics and logs.
    pub(crate) name: &'static str,
    pub(crate) translate: fn(&[u8], &dynamo_protocols::Options) -> Result<Call, Error>,
    pub(crate) error_shape: crate::http::ErrorShape,
}

/// A request in our own terms, and the one who words its answer.
pub(crate) struct Call {
    pub(crate) plan: Plan,
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) reply: Reply,
    /// Fields without effect (R10).
    pub(crate) dropped: Vec<String>,
}

/// What the client gets.
pub(crate) enum Reply {
    /// What a worker generates, in these words.
    Answer(Box<dyn Answer>),
    /// The number of tokens of the prompts; no worker is asked.
    Count(fn(u32) -> Result<Bytes, Error>),
}

/// How to generate. Ids, seeds and the room left in the context are filled in later.
pub(crate) struct Plan {
    pub(crate) model: String,
    pub(crate) stream: bool,
    /// The request field that holds the prompts, for errors.
    pub(crate) prompt_field: &'static str,
    /// Choices per prompt.
    pub(crate) n: u32,
    /// None: as many as the context has room for.
    pub(crate) max_tokens: Option<u32>,
    pub(crate) seed: Option<u64>,
    pub(crate) sampling: Sampling,
    pub(crate) stopping: Stopping,
    pub(crate) guide: Option<Guide>,
    /// Stop strings.
    pub(crate) stop: Vec<String>,
    pub(crate) include_stop_str_in_output: bool,
    pub(crate) skip_special_tokens: bool,
    pub(crate) output: OutputOptions,
    pub(crate) routing: RoutingHints,
    /// The client's guess, for the router.
    pub(crate) expected_output_tokens: Option<u32>,
    /// The answer repeats the prompt, so its text is needed.
    pub(crate) echo: bool,
    /// The tools the model may call. None: nothing in its text is a call.
    pub(crate) tools: Option<Arc<Tools>>,
}

/// One prompt.
pub(crate) enum Prompt {
    Chat(Box<ChatPrompt>),
    Text(String),
    Tokens(Vec<u32>),
}

/// A conversation to be rendered by the model's template.
pub(crate) struct ChatPrompt {
    pub(crate) messages: Vec<chat::Message>,
    pub(crate) tools: Option<Value>,
    pub(crate) add_generation_prompt: bool,
    pub(crate) continue_final_message: bool,
    pub(crate) kwargs: Map<String, Value>,
}

/// How the text of an answer is split into text, reasoning and tool calls: by the model's card.
#[derive(Clone, Debug, Default)]
pub(crate) struct Splitting {
    /// Names of parsers.
    pub(crate) reasoning: Option<String>,
    pub(crate) tool: Option<String>,
    pub(crate) tools: Arc<Tools>,
    /// How the answer begins after its prompt.
    pub(crate) start: Start,
}

impl Splitting {
    /// All text is for the user.
    pub(crate) fn is_plain(&self) -> bool {
        self.reasoning.is_none() && self.tool.is_none()
    }
}

/// What an answer is made out to.
pub(crate) struct Head {
    /// A UUID; each API puts its own prefix in front.
    pub(crate) id: Arc<str>,
    pub(crate) created_s: u64,
    /// The served name, whatever alias was asked for.
    pub(crate) model: Arc<str>,
    pub(crate) n: u32,
    /// Texts of the prompts, if the plan asked for `echo`.
    pub(crate) echo: Vec<String>,
    pub(crate) splitting: Splitting,
}

/// Words an answer in the terms of one API. The streamed and the whole answer are made from the same deltas.
pub(crate) trait Answer: Send {
    /// Comes first, once.
    fn begin(&mut self, head: Head);
    /// Streaming: the frames for a piece of choice `choice`. `usage` counts what came so far, this piece included.
    fn chunk(&mut self, choice: u32, delta: TextDelta, usage: &Usage, out: &mut BytesMut);
    /// Streaming: the frames after the last piece of all choices.
    fn end(&mut self, usage: &Usage, out: &mut BytesMut);
    /// Streaming: the frames of a fault after which nothing comes (R06).
    fn fail(&mut self, error: &Error, out: &mut BytesMut);
    /// Not streaming: the body for the choices' folded pieces.
    fn whole(&mut self, choices: Vec<TextDelta>, usage: &Usage) -> Result<Bytes, Error>;
}
