//! The embedded engine: real tokens from a model in this process.

use crate::card::{clamp, file_card, spelling};
use crate::engine::Engine;
use dynamo_engine::model::Model as _;
use dynamo_engine::{Core, Guides, Handle, KvOptions, Llama, Weights};
use dynamo_guide::{Compiler, Limits, Vocabulary};
use dynamo_model_files::{Error as FileError, open};
use dynamo_text::Tokenizer;
use dynamo_types::{
    BlockContract, DeltaSink, Error, Load, ModelCard, Request, Spelling, StepObserver, Task, TokenizerSpec,
};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// A model in memory, shared by all engines made from it.
pub struct Loaded {
    weights: Arc<Weights>,
    /// Without the limits, which are each engine's own.
    card: ModelCard,
    guides: Guides,
    /// Made with the first engine.
    spelling: OnceLock<Option<Arc<Spelling>>>,
    load_time_s: f64,
}

/// How much KV memory an engine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvMemory {
    Blocks(u32),
    /// As many blocks as fit, at least one.
    Bytes(u64),
}

/// Limits of one engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Threads that compute.
    pub threads: usize,
    /// Tokens per KV block, a multiple of 16.
    pub block_size: u32,
    pub kv: KvMemory,
    /// Requests that hold blocks at the same time.
    pub max_num_seqs: u32,
    /// Tokens computed in one step, prefill and decode together.
    pub max_num_batched_tokens: u32,
    /// Requests accepted beyond `max_num_seqs`.
    pub max_waiting: u32,
    pub prefix_caching: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            threads: 1,
            block_size: 16,
            kv: KvMemory::Blocks(2048),
            max_num_seqs: 64,
            max_num_batched_tokens: 512,
            max_waiting: 1024,
            prefix_caching: true,
        }
    }
}

impl Loaded {
    /// Loads a GGUF file or a Hugging Face directory. `progress` is told the bytes done and the bytes in all.
    ///
    /// # Errors
    /// One line: where, what, expected, found.
    pub fn open(
        path: &Path,
        served_name: Option<&str>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, FileError> {
        let begun = Instant::now();
        let files = open(path)?;
        let weights = Weights::load(&files, progress)?;
        let card = ModelCard { guided: true, ..file_card(&files, served_name) };
        let (guides, spelling) = (guides(&card), OnceLock::new());
        Ok(Self { weights, guides, spelling, card, load_time_s: begun.elapsed().as_secs_f64() })
    }

    /// The served name.
    pub fn name(&self) -> &str {
        &self.card.name
    }

    /// Families of the model's tool calls and of its reasoning, by the names of their parsers.
    pub fn set_parsers(&mut self, tool: Option<String>, reasoning: Option<String>) {
        self.card.tool_parser = tool;
        self.card.reasoning_parser = reasoning;
        self.spelling = OnceLock::new();
    }

    /// Shared by all engines.
    fn spelling(&self) -> Result<Option<Arc<Spelling>>, Error> {
        if let Some(spelling) = self.spelling.get() {
            return Ok(spelling.clone());
        }
        let spelling = spelling(&self.card)?;
        Ok(self.spelling.get_or_init(|| spelling).clone())
    }

    /// Bytes that all engines share.
    pub fn weight_bytes(&self) -> usize {
        self.weights.bytes()
    }

    /// Seconds that [`Loaded::open`] took.
    pub fn load_time_s(&self) -> f64 {
        self.load_time_s
    }

    /// Bytes of one KV block of so many tokens: keys and values of all layers, as f16.
    pub fn kv_block_bytes(&self, block_size: u32) -> u64 {
        const F16_BYTES: u64 = 2;
        let config = self.weights.config();
        let per_token = 2 * config.layers * config.kv_heads * config.head_dim;
        per_token as u64 * F16_BYTES * u64::from(block_size)
    }

    /// Starts an engine with KV blocks and threads of its own over the shared weights.
    ///
    /// # Errors
    /// Options that the model cannot be served with, or no threads to be had.
    pub fn engine(
        &self,
        options: &EngineOptions,
        observer: Arc<dyn StepObserver>,
    ) -> Result<Embedded, Error> {
        let total_blocks = match options.kv {
            KvMemory::Blocks(blocks) => blocks.max(1),
            KvMemory::Bytes(bytes) => {
                let blocks = bytes / self.kv_block_bytes(options.block_size).max(1);
                u32::try_from(blocks.max(1)).unwrap_or(u32::MAX)
            }
        };
        let kv = KvOptions { block_size: options.block_size as usize, total_blocks: total_blocks as usize };
        let model = Llama::new(Arc::clone(&self.weights), kv, options.threads)
            .map_err(|error| Error::engine("the engine cannot be set up").with_detail(error.to_string()))?;
        let mut card = self.card.clone();
        card.layout = Some(model.kv_layout());
        card.tasks = vec![Task::Generate, Task::Embed];
        card.embedding_size = Some(clamp(model.hidden_size()));
        let spelling = self.spelling()?;
        card.limits_thinking = spelling.is_some();
        let mut limits =
            dynamo_engine::Options { eos: card.special.eos.clone(), spelling, ..Default::default() };
        limits.scheduler.block_size = options.block_size;
        limits.scheduler.total_blocks = total_blocks;
        limits.scheduler.max_num_seqs = options.max_num_seqs;
        limits.scheduler.max_num_batched_tokens = options.max_num_batched_tokens;
        limits.scheduler.context_length = card.context_length;
        limits.scheduler.max_waiting = options.max_waiting;
        limits.scheduler.prefix_caching = options.prefix_caching;
        let core = Core::new(model, limits);
        let limits = core.limits();
        card.context_length = limits.context_length;
        card.blocks = BlockContract::xxh3(limits.block_size);
        card.total_kv_blocks = limits.total_blocks;
        card.max_num_seqs = limits.max_num_seqs;
        card.max_num_batched_tokens = limits.max_num_batched_tokens;
        card.kv_events = limits.prefix_caching;
        let handle = Handle::spawn_guided(core, observer, Arc::clone(&self.guides))?;
        Ok(Embedded { card: Arc::new(card), handle })
    }
}

/// One compiler for all engines of the model, made when it is first needed.
fn guides(card: &ModelCard) -> Guides {
    let (spec, size, eos) = (card.tokenizer.clone(), card.vocab_size, card.special.eos.clone());
    let made = OnceLock::new();
    Arc::new(move || made.get_or_init(|| compiler(&spec, size, &eos)).clone())
}

fn compiler(spec: &TokenizerSpec, size: u32, eos: &[u32]) -> Result<Arc<Compiler>, Error> {
    let tokenizer = Tokenizer::from_spec(spec)?;
    let vocabulary = Vocabulary::new(size, eos, |id| match tokenizer.is_special(id) {
        true => Vec::new(),
        false => tokenizer.token_bytes(id).to_vec(),
    })?;
    let special = (0..size).filter(|&id| tokenizer.is_special(id));
    let vocabulary = vocabulary.with_special(special.map(|id| (id, tokenizer.token_text(id))));
    Compiler::new(&vocabulary, Limits::default()).map(Arc::new)
}

/// One running engine.
pub struct Embedded {
    card: Arc<ModelCard>,
    handle: Handle,
}

impl Engine for Embedded {
    fn card(&self) -> &Arc<ModelCard> {
        &self.card
    }

    fn submit(&self, request: Arc<Request>, sink: Box<dyn DeltaSink>) -> Result<(), Error> {
        self.handle.submit(request, sink)
    }

    fn load(&self) -> Load {
        self.handle.load()
    }

    fn begin_drain(&self) {
        self.handle.begin_drain();
    }

    fn is_drained(&self) -> bool {
        self.handle.drained()
    }
}

#[cfg(test)]
pub(crate) mod fixture {
    use super::*;
    use crate::card::byte_card;

    /// A tiny random model, without files.
    pub(crate) fn tiny() -> Loaded {
        let weights = dynamo_engine::testing::tiny_weights(1).unwrap();
        let mut card = byte_card("tiny", "llama", vec![Vec::new(); 44]);
        card.context_length = clamp(weights.config().context_length);
        card.vocab_size = clamp(weights.config().vocab_size);
        card.guided = true;
        Loaded { weights, guides: guides(&card), spelling: OnceLock::new(), card, load_time_s: 0.25 }
    }
}
