//! What a mock engine is like.

use crate::timing::Timing;
use crate::vocabulary::Vocabulary;
use serde::{Deserialize, Serialize};

/// What a mock engine is like. Defaults are those of the reference system's mock of vLLM (behaviour.md 4.9).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Tokens per KV block.
    pub block_size: u32,
    pub num_gpu_blocks: u32,
    /// Requests that hold blocks at the same time.
    pub max_num_seqs: u32,
    /// Tokens computed in one step.
    pub max_num_batched_tokens: u32,
    /// Prompt plus answer, in tokens.
    pub context_length: u32,
    /// Requests accepted beyond `max_num_seqs`.
    pub max_waiting: u32,
    pub enable_prefix_caching: bool,
    pub timing: Timing,
    /// Divides all step times; 0 makes steps take no time.
    pub speedup_ratio: f64,
    /// Divides decode times once more.
    pub decode_speedup_ratio: f64,
    pub vocabulary: Vocabulary,
    /// Length of the vectors it makes of prompts that are to be embedded.
    pub embedding_size: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            block_size: 64,
            num_gpu_blocks: 16_384,
            max_num_seqs: 256,
            max_num_batched_tokens: 8_192,
            context_length: 131_072,
            max_waiting: 10_000,
            enable_prefix_caching: true,
            timing: Timing::Polynomial,
            speedup_ratio: 1.0,
            decode_speedup_ratio: 1.0,
            vocabulary: Vocabulary::default(),
            embedding_size: 384,
        }
    }
}

impl Options {
    pub(crate) fn scheduler(&self) -> dynamo_scheduler::Options {
        dynamo_scheduler::Options {
            block_size: self.block_size,
            total_blocks: self.num_gpu_blocks,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            context_length: self.context_length,
            max_waiting: self.max_waiting,
            prefix_caching: self.enable_prefix_caching,
        }
    }
}
