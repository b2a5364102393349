//! What the APIs are told: a [`dynamo_types::Delta`] with its text.

use dynamo_types::FinishReason;

/// What ended an answer, where a client is told so (`stop_reason`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// The client's stop string, as it was given.
    String(String),
    /// One of the client's `stop_token_ids`. The model's own end token is no cause.
    Token(u32),
}

/// A rival of a token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopLogprob {
    pub token: u32,
    /// Lossy when the token is a piece of a character; `bytes` are exact.
    pub text: String,
    pub bytes: Vec<u8>,
    /// Natural logarithm.
    pub logprob: f32,
}

/// One token of the answer (or of the prompt) with its log-probability and its rivals.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextLogprob {
    pub token: u32,
    /// Lossy when the token is a piece of a character; `bytes` are exact.
    pub text: String,
    pub bytes: Vec<u8>,
    /// Natural logarithm.
    pub logprob: f32,
    /// Likeliest first.
    pub top: Vec<TopLogprob>,
    /// Characters of text before this token: of the answer for answer tokens, of the prompt for prompt tokens.
    pub text_offset: usize,
}

/// A piece of an answer as a client may see it. `TextDelta::default()` is the neutral element of
/// [`TextDelta::merge`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextDelta {
    /// Visible text that became certain: whole characters, no part of a stop string.
    pub text: String,
    /// What was sampled, up to the token that ended the answer: hidden tokens count (R04).
    pub tokens: Vec<u32>,
    /// One per token if asked for. They travel with their token, so they may run ahead of withheld text.
    pub logprobs: Vec<TextLogprob>,
    /// One per prompt token, in the first delta, if asked for.
    pub prompt_logprobs: Vec<TextLogprob>,
    /// Prompt tokens that needed no prefill.
    pub cached_tokens: Option<u32>,
    /// The vector of a prompt that was to be embedded; passed on as it came.
    pub embedding: Option<Vec<f32>>,
    /// Set on the last delta only.
    pub finish: Option<FinishReason>,
    /// Set with `finish` when the client's own stop string or stop id was met.
    pub stop: Option<StopCause>,
}

impl TextDelta {
    /// What the reader would have seen had both come at once. Associative; `TextDelta::default()` is neutral.
    pub fn merge(&mut self, mut later: Self) {
        if self.text.is_empty() {
            self.text = later.text;
        } else {
            self.text.push_str(&later.text);
        }
        self.tokens.append(&mut later.tokens);
        self.logprobs.append(&mut later.logprobs);
        self.prompt_logprobs.append(&mut later.prompt_logprobs);
        self.cached_tokens = self.cached_tokens.or(later.cached_tokens);
        self.embedding = self.embedding.take().or(later.embedding);
        self.finish = self.finish.or(later.finish);
        self.stop = self.stop.take().or(later.stop);
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
