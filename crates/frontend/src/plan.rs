//! What every API translates into, and how its answer is worded (DESIGN 3.1). A new API is one module that makes a
//! [`Call`] from a body; everything else - routing, streaming, folding, limits, metrics, cancellation - is shared.

use crate::facts::Facts;
use crate::record::Usage;
use bytes::{Bytes, BytesMut};
use dynamo_protocols::openai::chat;
use dynamo_text::TextDelta;
use dynamo_text::parsers::{Forced, Start, Tools};
use dynamo_types::{Error, Guide, InstanceId, OutputOptions, RoutingHints, Sampling, Stopping, Task};
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
    /// What the worker is to do.
    pub(crate) task: Task,
    /// Length that an embedding has to have. None: what the model makes.
    pub(crate) dimensions: Option<u32>,
    /// Put around plain texts what the model wants around them.
    pub(crate) add_special_tokens: bool,
    pub(crate) stream: bool,
    /// The request field that holds the prompts, for errors.
    pub(crate) prompt_field: &'static str,
    /// Choices per prompt.
    pub(crate) n: u32,
    /// Candidates per prompt, of which the best become its choices; never below `n`.
    pub(crate) best_of: u32,
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
    pub(crate) prefill: PrefillPin,
    /// The client's guess, for the router.
    pub(crate) expected_output_tokens: Option<u32>,
    /// The answer shows the prompt, so its text is needed.
    pub(crate) shows_prompt: bool,
    /// The answer tells where and when it was made.
    pub(crate) tells_facts: bool,
    /// The tools the model may call. None: nothing in its text is a call.
    pub(crate) tools: Option<Arc<Tools>>,
    /// Names and schemas of tools whose arguments have to be exact when the model calls one of itself.
    pub(crate) strict_calls: Vec<(String, String)>,
    /// The answer has to be calls; `guide` holds it to them.
    pub(crate) forced: Option<Forced>,
    pub(crate) max_calls: Option<usize>,
    /// Wishes about thinking.
    pub(crate) hints: Vec<chat::Hint>,
}

impl Plan {
    /// One answer of this model, not streamed, with everything left at its default.
    pub(crate) fn of(model: String) -> Self {
        Self {
            model,
            task: Task::Generate,
            dimensions: None,
            add_special_tokens: true,
            stream: false,
            prompt_field: "prompt",
            n: 1,
            best_of: 1,
            max_tokens: None,
            seed: None,
            sampling: Sampling::default(),
            stopping: Stopping::default(),
            guide: None,
            stop: Vec::new(),
            include_stop_str_in_output: false,
            skip_special_tokens: true,
            output: OutputOptions::default(),
            routing: RoutingHints::default(),
            prefill: PrefillPin::default(),
            expected_output_tokens: None,
            shows_prompt: false,
            tells_facts: false,
            tools: None,
            strict_calls: Vec::new(),
            forced: None,
            max_calls: None,
            hints: Vec::new(),
        }
    }
}

/// What the client insists on for the prefill.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PrefillPin {
    pub(crate) worker: Option<InstanceId>,
    pub(crate) rank: Option<u32>,
}

/// One prompt.
pub(crate) enum Prompt {
    Chat(Box<ChatPrompt>),
    /// A conversation that the client rendered itself.
    Rendered(Rendered),
    Text(String),
    Tokens(Vec<u32>),
}

/// What a template would have made.
pub(crate) enum Rendered {
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
    pub(crate) forced: Option<Forced>,
    pub(crate) max_calls: Option<usize>,
    /// How the answer begins after its prompt.
    pub(crate) start: Start,
}

impl Splitting {
    /// All text is for the user.
    pub(crate) fn is_plain(&self) -> bool {
        self.reasoning.is_none() && self.tool.is_none() && self.forced.is_none()
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
    /// Texts of the prompts, if the plan asked for them.
    pub(crate) texts: Vec<String>,
    /// Token ids of the prompts.
    pub(crate) prompts: Vec<Arc<[u32]>>,
    pub(crate) splitting: Splitting,
}

/// Words an answer in the terms of one API. The streamed and the whole answer are made from the same deltas.
pub(crate) trait Answer: Send {
    /// Comes first, once.
    fn begin(&mut self, head: Head);
    /// Streaming: the frames before all pieces.
    fn open(&mut self, _out: &mut BytesMut) {}
    /// How choice `choice` is being made, before each of its pieces. Only if the plan asks for it.
    fn note(&mut self, _choice: u32, _facts: &Facts) {}
    /// Streaming: the frames for a piece of choice `choice`. `usage` counts what came so far, this piece included.
    fn chunk(&mut self, choice: u32, delta: TextDelta, usage: &Usage, out: &mut BytesMut);
    /// Streaming: the frames that keep a connection open on which nothing happens.
    fn quiet(&mut self, out: &mut BytesMut) {
        // An SSE comment, which clients skip.
        out.extend_from_slice(b": keep-alive\n\n");
    }
    /// Streaming: the frames after the last piece of all choices.
    fn end(&mut self, usage: &Usage, out: &mut BytesMut);
    /// Streaming: the frames of a fault after which nothing comes (R06).
    fn fail(&mut self, error: &Error, out: &mut BytesMut);
    /// Not streaming: the body for the choices' folded pieces.
    fn whole(&mut self, choices: Vec<TextDelta>, usage: &Usage) -> Result<Bytes, Error>;
}
