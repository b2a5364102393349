//! Limits of one scheduler.

/// Limits of one scheduler. Values that make no sense are moved to the nearest that do (see each field).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Tokens per KV block; at least 1.
    pub block_size: u32,
    /// Blocks in the pool.
    pub total_blocks: u32,
    /// Requests that hold blocks at the same time; 1 to `max_num_batched_tokens`, so that each can decode in every
    /// step.
    pub max_num_seqs: u32,
    /// Tokens computed in one step, prefill and decode together; at least 1.
    pub max_num_batched_tokens: u32,
    /// Prompt plus answer, in tokens. Lowered to what the pool can hold, so that a request always fits when it is alone.
    pub context_length: u32,
    /// Requests accepted beyond `max_num_seqs`. Past that, [`crate::Scheduler::submit`] refuses as overloaded.
    pub max_waiting: u32,
    /// Reuse blocks that hold the same tokens, and announce them.
    pub prefix_caching: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            block_size: 16,
            total_blocks: 1024,
            max_num_seqs: 64,
            max_num_batched_tokens: 512,
            context_length: 2048,
            max_waiting: 1024,
            prefix_caching: true,
        }
    }
}

impl Options {
    pub(crate) fn sane(mut self) -> Self {
        self.block_size = self.block_size.max(1);
        self.max_num_batched_tokens = self.max_num_batched_tokens.max(1);
        self.max_num_seqs = self.max_num_seqs.clamp(1, self.max_num_batched_tokens);
        self.context_length = self.context_length.min(self.total_blocks.saturating_mul(self.block_size));
        self
    }
}
