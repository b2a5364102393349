//! Token counts.

use serde::Serialize;

/// What a request used: the client's own prompt and everything that was sampled for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub total_tokens: u32,
    pub prompt_tokens_details: PromptTokensDetails,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromptTokensDetails {
    /// Prompt tokens that needed no prefill.
    pub cached_tokens: u32,
}

impl Usage {
    pub fn new(prompt_tokens: u32, completion_tokens: u32, cached_tokens: u32) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens.saturating_add(completion_tokens),
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
        }
    }

    /// Together with the counts of another choice of the same request, which shares its prompt.
    #[must_use]
    pub fn with_choice(self, other: Self) -> Self {
        Self::new(
            self.prompt_tokens.max(other.prompt_tokens),
            self.completion_tokens.saturating_add(other.completion_tokens),
            self.prompt_tokens_details.cached_tokens.max(other.prompt_tokens_details.cached_tokens),
        )
    }

    /// Together with the counts of another prompt of the same body.
    #[must_use]
    pub fn with_prompt(self, other: Self) -> Self {
        let cached = self.prompt_tokens_details.cached_tokens;
        Self::new(
            self.prompt_tokens.saturating_add(other.prompt_tokens),
            self.completion_tokens.saturating_add(other.completion_tokens),
            cached.saturating_add(other.prompt_tokens_details.cached_tokens),
        )
    }
}
