//! The one internal request, into which every API translates (DESIGN 3.1).

use crate::guide::Guide;
use crate::ids::{InstanceId, RequestId};
use crate::thinking::ThinkingLimit;
use crate::trace::{self, TraceContext};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// One generation: token ids in, a stream of [`crate::Delta`] out. A choice of `n > 1` is a request of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    pub id: RequestId,
    pub model: Arc<str>,
    /// Prompt, followed by `resumed` tokens that another worker generated before this one took over.
    pub tokens: Arc<[u32]>,
    /// How many of the last `tokens` are answer, not prompt (0 unless the stream moved). Penalties, seeds, stops and
    /// `min_tokens` count them as generated.
    #[serde(default)]
    pub resumed: u32,
    /// What is to be made of the tokens. A worker is only asked for tasks that its card names.
    #[serde(default)]
    pub task: Task,
    #[serde(default)]
    pub sampling: Sampling,
    pub stopping: Stopping,
    /// What the answer must look like. Engines whose card does not say `guided` refuse it.
    #[serde(default)]
    pub guide: Option<Guide>,
    /// How much of the answer may be reasoning.
    #[serde(default)]
    pub thinking: Option<ThinkingLimit>,
    #[serde(default)]
    pub output: OutputOptions,
    #[serde(default)]
    pub routing: RoutingHints,
    /// The span that asks, so that what workers do and log for it is found under its trace.
    #[serde(default, deserialize_with = "trace::lenient")]
    pub trace: Option<TraceContext>,
}

impl Request {
    /// Tokens of the client's own prompt.
    pub fn prompt_len(&self) -> usize {
        self.tokens.len().saturating_sub(self.resumed as usize)
    }
}

/// What is to be made of a request's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// An answer, token by token.
    #[default]
    Generate,
    /// One vector for all of them, [`crate::Delta::embedding`]; nothing is sampled, and `sampling`, `stopping` and `resumed`
    /// mean nothing.
    Embed,
}

impl Task {
    /// As it is written in a card.
    pub fn name(self) -> &'static str {
        match self {
            Self::Generate => "generate",
            Self::Embed => "embed",
        }
    }
}

/// How the next token is chosen. The neutral values change nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the smallest set of tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keep this many most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Drop tokens less likely than this share of the likeliest; 0 drops none.
    pub min_p: f32,
    /// Divide (or multiply, when negative) the logits of seen tokens; 1 is neutral.
    pub repetition_penalty: f32,
    /// Subtracted per occurrence in the answer; 0 is neutral.
    pub frequency_penalty: f32,
    /// Subtracted once if present in the answer; 0 is neutral.
    pub presence_penalty: f32,
    /// Always set by the frontend, so that a stream continues alike wherever it runs. The draw for answer token `i` is
    /// `draw::unit(seed, i)`.
    pub seed: u64,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            seed: 0,
            logit_bias: Vec::new(),
        }
    }
}

/// When the engine stops by itself. Stop *strings* are the frontend's job (R04) and never get here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stopping {
    /// Answer tokens still allowed for this request, on this worker (`resumed` ones are already taken off).
    pub max_tokens: u32,
    /// EOS and stop ids are masked until the answer has this many tokens, `resumed` included.
    #[serde(default)]
    pub min_tokens: u32,
    /// Ends the answer with [`crate::FinishReason::Stop`]; the id itself is reported as a token.
    #[serde(default)]
    pub stop_token_ids: Vec<u32>,
    /// Keep going at the model's own end tokens.
    #[serde(default)]
    pub ignore_eos: bool,
}

/// What the client wants to see besides the tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputOptions {
    /// Log-probability of each answer token, with this many alternatives (0: the token's own only).
    pub logprobs: Option<u32>,
    /// The same for the prompt's tokens, in the first delta (`echo` with `logprobs`).
    pub prompt_logprobs: Option<u32>,
}

/// What the client or a gateway says about placement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoutingHints {
    /// Pinned worker (`nvext.backend_instance_id`, `x-dynamo-worker-instance-id`).
    pub worker: Option<InstanceId>,
    /// Pinned rank: of that worker, or of any if none is pinned.
    pub rank: Option<u32>,
    /// Tenant salt, folded into every block hash.
    pub salt: Option<Arc<str>>,
    /// Adapter, folded likewise.
    pub lora: Option<Arc<str>>,
    /// Higher goes first, whatever `priority` says.
    pub strict_priority: u32,
    /// Higher goes first.
    pub priority: i32,
}
