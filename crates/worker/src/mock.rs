//! The mock engine: `dynamo_mocker` on a clock.

use crate::card::{FIRST_PIECE, byte_card, file_card, spelling};
use crate::clock::{Clock, Drive, Machine};
use crate::engine::{Engine, draining, refuse};
use dynamo_mocker::{MockCore, SequenceId, Vocabulary};
use dynamo_model_files::describe;
use dynamo_runtime::sync::lock;
use dynamo_text::TokenTable;
use dynamo_types::{BlockContract, DeltaSink, Error, Load, ModelCard, Request, StepObserver, Task};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

pub use dynamo_mocker::{Options, Timing};

/// A request whose reader left is noticed after at most this long, even in the middle of a step.
const CANCEL_POLL_US: u64 = 50_000;

/// What the mock says, one word per token. Plain, so that nobody takes it for an answer.
const WORDS: &str = "the of and to in is that for it as was with be by on not he his but at are this have from or had \
    an they which one you were all her she there would their we him been has when who will no more if out so up said \
    what its about than into them can only other time new some could these two may first then do";

/// A mock engine.
pub struct Mock {
    card: Arc<ModelCard>,
    shared: Arc<Shared>,
    drive: Box<dyn Drive>,
}

struct Shared {
    state: Mutex<State>,
    observer: Arc<dyn StepObserver>,
    draining: AtomicBool,
}

struct State {
    core: MockCore,
    sinks: BTreeMap<SequenceId, Box<dyn DeltaSink>>,
}

/// The card of a mock model, and `options` with the vocabulary that goes with it.
pub fn card(name: &str, mut options: Options) -> (ModelCard, Options) {
    let mut pieces: Vec<Vec<u8>> =
        WORDS.split_whitespace().map(|word| format!(" {word}").into_bytes()).collect();
    let words = pieces.len() as u32;
    let end = FIRST_PIECE + words;
    pieces.push(b"<|end|>".to_vec());
    let mut card = byte_card(name, "mock", pieces);
    card.special.eos = vec![end];
    card.special.eos_text = Some("<|end|>".into());
    options.vocabulary = Vocabulary { first: FIRST_PIECE, len: words, eos: vec![end], ..options.vocabulary };
    (card, options)
}

/// A real model as far as a mock engine needs it: tokenizer, template and context of its files, not the weights.
pub struct Described {
    card: ModelCard,
    vocabulary: Vocabulary,
}

impl Described {
    /// Reads a GGUF file or a Hugging Face directory, which needs no weights.
    ///
    /// # Errors
    /// One line: what of the files cannot be used.
    pub fn open(path: &Path, served_name: Option<&str>) -> Result<Self, Error> {
        let files = describe(path).map_err(|error| Error::engine(error.to_string()))?;
        let card = file_card(&files, served_name);
        let (first, len) = plain_words(&TokenTable::from_spec(&card.tokenizer)?, card.vocab_size);
        let vocabulary = Vocabulary { first, len, eos: card.special.eos.clone(), ..Vocabulary::default() };
        Ok(Self { card, vocabulary })
    }

    /// The card, and `options` with what goes with it.
    pub fn card(&self, mut options: Options) -> (ModelCard, Options) {
        options.vocabulary.clone_from(&self.vocabulary);
        options.context_length = self.card.context_length;
        (self.card.clone(), options)
    }
}

/// The longest run of ids, as first and length, that are whole characters and no markers: what is said in them shows up
/// token by token.
fn plain_words(table: &TokenTable, vocab_size: u32) -> (u32, u32) {
    let is_plain = |id: u32| {
        let bytes = table.bytes(id);
        !bytes.is_empty() && !table.is_special(id) && std::str::from_utf8(bytes).is_ok()
    };
    let (mut best, mut run) = ((0, 1), (0, 0));
    for id in 0..vocab_size {
        run = if is_plain(id) { (run.0, run.1 + 1) } else { (id + 1, 0) };
        if run.1 > best.1 {
            best = run;
        }
    }
    best
}

impl Mock {
    /// Starts an engine that serves `card`, whose limits are set from `options`.
    pub fn new(
        mut card: ModelCard,
        options: Options,
        clock: &dyn Clock,
        observer: Arc<dyn StepObserver>,
    ) -> io::Result<Self> {
        let embedding_size = options.embedding_size.max(1);
        let spelling = spelling(&card).map_err(io::Error::other)?;
        card.limits_thinking = spelling.is_some();
        let mut core = MockCore::new(options).with_spelling(spelling);
        if observer.wants_tokens() {
            core.keep_tokens();
        }
        let limits = core.limits();
        card.context_length = limits.context_length;
        card.blocks = BlockContract::xxh3(limits.block_size);
        card.total_kv_blocks = limits.total_blocks;
        card.max_num_seqs = limits.max_num_seqs;
        card.max_num_batched_tokens = limits.max_num_batched_tokens;
        card.kv_events = limits.prefix_caching;
        card.tasks = vec![Task::Generate, Task::Embed];
        card.embedding_size = Some(embedding_size);
        let shared = Arc::new(Shared {
            state: Mutex::new(State { core, sinks: BTreeMap::new() }),
            observer,
            draining: AtomicBool::new(false),
        });
        let drive = clock.attach("mock-engine", Arc::clone(&shared) as Arc<dyn Machine>)?;
        Ok(Self { card: Arc::new(card), shared, drive })
    }
}

impl Machine for Shared {
    fn run(&self, now_us: u64) -> Option<u64> {
        let mut reports = Vec::new();
        let next = {
            let mut guard = lock(&self.state);
            let State { core, sinks } = &mut *guard;
            sinks.retain(|id, sink| {
                let gone = sink.is_cancelled();
                if gone {
                    core.cancel(*id);
                }
                !gone
            });
            loop {
                let outcome = core.step(now_us);
                for (id, delta) in outcome.deltas {
                    let finished = delta.finish.is_some();
                    if let Some(sink) = sinks.get_mut(&id) {
                        sink.push(delta);
                    }
                    if finished {
                        sinks.remove(&id);
                    }
                }
                reports.extend(outcome.report);
                match outcome.next_wake_us {
                    Some(wake) if wake <= now_us => {}
                    Some(wake) => break Some(wake.min(now_us + CANCEL_POLL_US)),
                    None => break None,
                }
            }
        };
        reports.into_iter().for_each(|report| self.observer.on_step(report));
        next
    }
}

impl Engine for Mock {
    fn card(&self) -> &Arc<ModelCard> {
        &self.card
    }

    fn submit(&self, request: Arc<Request>, sink: Box<dyn DeltaSink>) -> Result<(), Error> {
        if self.shared.draining.load(Ordering::Acquire) {
            return refuse(sink, draining());
        }
        {
            let mut state = lock(&self.shared.state);
            match state.core.submit(request) {
                Ok(id) => state.sinks.insert(id, sink),
                Err(error) => return refuse(sink, error),
            };
        }
        self.drive.ring();
        Ok(())
    }

    fn load(&self) -> Load {
        lock(&self.shared.state).core.load()
    }

    fn begin_drain(&self) {
        self.shared.draining.store(true, Ordering::Release);
    }

    fn is_drained(&self) -> bool {
        self.shared.draining.load(Ordering::Acquire) && lock(&self.shared.state).sinks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dynamo_types::TokenizerSpec;

    #[test]
    fn what_is_said_are_whole_characters() {
        // The plain bytes are a run of 128; behind half a character follows a longer one.
        let half = std::iter::once(vec![0xC3]);
        let pieces = half.chain((0..129).map(|number| format!(" w{number}").into_bytes())).collect();
        let table = TokenTable::from_spec(&TokenizerSpec::Bytes { pieces }).unwrap();
        assert_eq!(plain_words(&table, 386), (257, 129));
    }
}
