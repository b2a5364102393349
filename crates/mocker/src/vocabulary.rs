//! Which tokens a mock engine says.

use dynamo_types::{Request, TokenLogprob, draw};
use serde::{Deserialize, Serialize};

/// Which tokens a mock engine says. Every answer token is a function of the request's seed and the token's position in
/// the answer, so a stream that moves to another worker goes on as if it had not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Vocabulary {
    /// Lowest id that is said.
    pub first: u32,
    /// Ids from `first` on that may be said.
    pub len: u32,
    /// End tokens. They are not said, except by `end_probability`.
    pub eos: Vec<u32>,
    /// Chance of each answer token to be an end token; 0: answers always reach `max_tokens`.
    pub end_probability: f64,
}

impl Default for Vocabulary {
    fn default() -> Self {
        Self { first: 0, len: 32_000, eos: Vec::new(), end_probability: 0.0 }
    }
}

/// Keeps the draws of ends apart from those of tokens.
const END_STREAM: u64 = 0x656E_6473;

/// A chosen token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) token: u32,
    pub(crate) end: bool,
}

impl Vocabulary {
    /// The answer token at `position`, counted from the start of the answer, resumed tokens included.
    pub(crate) fn choose(&self, request: &Request, position: u32) -> Choice {
        let seed = request.sampling.seed;
        let stopping = &request.stopping;
        let may_end = position + 1 > stopping.min_tokens;
        if let Some(&eos) = self.eos.first()
            && may_end
            && !stopping.ignore_eos
            && draw::unit(seed ^ END_STREAM, u64::from(position)) < self.end_probability
        {
            return Choice { token: eos, end: true };
        }
        let len = self.len.max(1);
        let drawn = draw::index(seed, u64::from(position), len as usize) as u32;
        let barred =
            |token: &u32| self.eos.contains(token) || (!may_end && stopping.stop_token_ids.contains(token));
        let spell = |offset: u32| self.first.saturating_add((drawn + offset) % len);
        let token = (0..len).map(spell).find(|token| !barred(token)).unwrap_or(self.first);
        Choice { token, end: may_end && stopping.stop_token_ids.contains(&token) }
    }

    /// This token at that position, whatever would be drawn.
    pub(crate) fn forced(&self, request: &Request, position: u32, token: u32) -> Choice {
        let stopping = &request.stopping;
        let is_end =
            stopping.stop_token_ids.contains(&token) || (!stopping.ignore_eos && self.eos.contains(&token));
        Choice { token, end: is_end && position + 1 > stopping.min_tokens }
    }

    /// What a model that finds all tokens equally likely would say of one.
    pub(crate) fn logprob(&self, token: u32, alternatives: u32) -> TokenLogprob {
        let logprob = -(self.len.max(1) as f32).ln();
        let others = (self.first..self.first.saturating_add(self.len)).filter(|other| *other != token);
        let top = std::iter::once(token).chain(others).take(alternatives as usize);
        TokenLogprob { token, logprob, top: top.map(|token| (token, logprob)).collect() }
    }
}
