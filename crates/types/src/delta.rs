//! What comes back: a stream of deltas that form a monoid (DESIGN 3.1).

use crate::error::Error;
use serde::{Deserialize, Serialize};

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// A stop id, a stop string or the model's own end token.
    Stop,
    /// `max_tokens` or the context limit.
    Length,
    /// A tool call was made. Set by the frontend's parsers only.
    ToolCalls,
    /// Cut by a content rule of the engine.
    ContentFilter,
}

/// Log-probability of one token and of its likeliest rivals (natural logarithm, after penalties, before temperature).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    pub token: u32,
    pub logprob: f32,
    /// Likeliest first; as many as asked for.
    pub top: Vec<(u32, f32)>,
}

/// A piece of one answer. `Delta::default()` is the neutral element of [`Delta::merge`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Delta {
    /// Sampled ids, end tokens and stop ids included: counts stay what was sampled (R04).
    pub tokens: Vec<u32>,
    /// One per token if log-probabilities were asked for, else empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<TokenLogprob>,
    /// One per prompt token, in the first delta, if asked for. The first token has no probability: 0.0, no rivals.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prompt_logprobs: Vec<TokenLogprob>,
    /// Prompt tokens that needed no prefill. Known with the first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u32>,
    /// The answer to [`crate::Task::Embed`], in the only delta: of length 1 (the sum of squares is 1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding: Option<Vec<f32>>,
    /// Set on the last delta only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish: Option<FinishReason>,
}

impl Delta {
    /// What the reader would have seen had both come at once. Associative; `Delta::default()` is neutral.
    pub fn merge(&mut self, mut later: Self) {
        if self.tokens.is_empty() {
            self.tokens = later.tokens;
        } else {
            self.tokens.append(&mut later.tokens);
        }
        self.logprobs.append(&mut later.logprobs);
        self.prompt_logprobs.append(&mut later.prompt_logprobs);
        self.cached_tokens = self.cached_tokens.or(later.cached_tokens);
        self.embedding = self.embedding.take().or(later.embedding);
        self.finish = self.finish.or(later.finish);
    }

    pub fn is_empty(&self) -> bool {
        // By field, because it is asked for each token twice. Naming all of them keeps a new one from being forgotten.
        let Self { tokens, logprobs, prompt_logprobs, cached_tokens, embedding, finish } = self;
        tokens.is_empty()
            && logprobs.is_empty()
            && prompt_logprobs.is_empty()
            && cached_tokens.is_none()
            && embedding.is_none()
            && finish.is_none()
    }
}

/// Where an engine puts a request's deltas. Dropping the sink without [`DeltaSink::finish`] or a delta with `finish`
/// set tells the reader that the worker broke off.
pub trait DeltaSink: Send {
    /// Never blocks: an unread delta is merged with the next.
    fn push(&mut self, delta: Delta);
    /// Ends the stream with a fault. A delta with `finish` set ends it without.
    fn fail(&mut self, error: Error);
    /// The reader is gone or asked to stop; the engine looks between steps.
    fn is_cancelled(&self) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn delta() -> impl Strategy<Value = Delta> {
        (
            prop::collection::vec(0u32..9, 0..4),
            prop::option::of(0u32..9),
            prop::option::of(prop_oneof![Just(FinishReason::Stop), Just(FinishReason::Length)]),
            any::<bool>(),
            prop::option::of(prop::collection::vec(-1.0f32..1.0, 1..3)),
        )
            .prop_map(|(tokens, cached_tokens, finish, with_logprobs, embedding)| Delta {
                logprobs: if with_logprobs {
                    tokens.iter().map(|&token| TokenLogprob { token, logprob: -1.0, top: vec![] }).collect()
                } else {
                    vec![]
                },
                tokens,
                prompt_logprobs: vec![],
                cached_tokens,
                embedding,
                finish,
            })
    }

    fn merged(mut a: Delta, b: Delta) -> Delta {
        a.merge(b);
        a
    }

    proptest! {
        #[test]
        fn deltas_are_a_monoid(a in delta(), b in delta(), c in delta()) {
            prop_assert_eq!(a.is_empty(), a == Delta::default());
            prop_assert_eq!(&merged(Delta::default(), a.clone()), &a);
            prop_assert_eq!(&merged(a.clone(), Delta::default()), &a);
            prop_assert_eq!(
                merged(merged(a.clone(), b.clone()), c.clone()),
                merged(a, merged(b, c))
            );
        }
    }
}
