//! The model card: all a frontend must know of a model, published by each worker that serves it.

use crate::request::Task;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Published with the model and compared at registration; a mismatch refuses the worker (R35).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockContract {
    /// Tokens per block.
    pub block_size: u32,
    pub algorithm: String,
    pub version: u32,
}

impl BlockContract {
    /// The contract of [`crate::hash`].
    pub fn xxh3(block_size: u32) -> Self {
        Self { block_size, algorithm: "xxh3-64-seed-1337".into(), version: 1 }
    }
}

/// Shape of a KV block, for engines whose blocks can be moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvLayout {
    pub layers: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    /// `f16`.
    pub dtype: String,
    /// Order of the dimensions inside one block, outermost first.
    pub order: String,
    pub block_bytes: u64,
}

/// How token ids become bytes and back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TokenizerSpec {
    /// The content of a Hugging Face `tokenizer.json`.
    HuggingFace { json: Arc<str> },
    /// Ids 0..=255 are the bytes themselves; id `256 + i` is `pieces[i]`. Encoding gives one id per byte. For mock and
    /// scripted engines, which need no model files.
    Bytes { pieces: Vec<Vec<u8>> },
}

/// A chat template in the hub's Jinja dialect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatTemplate {
    pub source: Arc<str>,
}

/// Tokens with a meaning of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpecialTokens {
    pub bos: Option<u32>,
    /// Any of these ends an answer.
    pub eos: Vec<u32>,
    /// As text, for templates.
    pub bos_text: Option<String>,
    pub eos_text: Option<String>,
    /// Prompts given as plain text start with `bos`.
    pub add_bos: bool,
}

/// All a frontend must know of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCard {
    /// The served name.
    pub name: Arc<str>,
    #[serde(default)]
    pub aliases: Vec<String>,
    /// `llama`, `mock`, ...
    pub architecture: String,
    /// Prompt plus answer, in tokens.
    pub context_length: u32,
    pub vocab_size: u32,
    pub tokenizer: TokenizerSpec,
    /// None: chat routes answer 400 for this model.
    #[serde(default)]
    pub chat_template: Option<ChatTemplate>,
    #[serde(default)]
    pub special: SpecialTokens,
    pub blocks: BlockContract,
    #[serde(default)]
    pub layout: Option<KvLayout>,
    pub total_kv_blocks: u32,
    pub max_num_seqs: u32,
    pub max_num_batched_tokens: u32,
    /// Does the worker publish KV events? Without, a router guesses.
    pub kv_events: bool,
    /// Can answers be held to a [`crate::Guide`]?
    #[serde(default)]
    pub guided: bool,
    /// Do its workers hold answers to a [`crate::ThinkingLimit`]?
    #[serde(default)]
    pub limits_thinking: bool,
    /// What its workers do.
    #[serde(default = "only_generate")]
    pub tasks: Vec<Task>,
    /// Length of the vectors of [`Task::Embed`]. None: its workers make none.
    #[serde(default)]
    pub embedding_size: Option<u32>,
    /// Family of the model's tool calls, by the name of its parser. None: calls stay in the text.
    #[serde(default)]
    pub tool_parser: Option<String>,
    /// Family of the model's reasoning, by the name of its parser. None: reasoning stays in the text.
    #[serde(default)]
    pub reasoning_parser: Option<String>,
    /// Unix seconds, for `/v1/models`.
    pub created_s: u64,
}

impl ModelCard {
    pub fn offers(&self, task: Task) -> bool {
        self.tasks.contains(&task)
    }
}

/// Of cards from before there was anything else.
fn only_generate() -> Vec<Task> {
    vec![Task::Generate]
}
