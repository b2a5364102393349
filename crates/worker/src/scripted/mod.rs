//! The scripted engine: emits exactly what a script says, when it says so. Streams, faults and races are tested with it.

mod machine;
mod script;

pub use script::{Book, Error as ScriptError, Script, Step, When};

use crate::card::byte_card;
use crate::clock::{Clock, Drive, Machine};
use crate::engine::{Engine, draining, refuse};
use dynamo_runtime::sync::lock;
use dynamo_types::{DeltaSink, Error, Load, ModelCard, Request, RequestId, StepObserver, StepReport, Task};
use machine::State;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Streams one engine runs at once: more than any test opens.
const MAX_STREAMS: usize = 100_000;

/// Length of the vectors it answers with.
const EMBEDDING_SIZE: u32 = 8;

/// A request that came in, in the clock's time.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub at_us: u64,
    pub request: Arc<Request>,
}

/// A stream that is over, in the clock's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub at_us: u64,
    pub request: RequestId,
    /// The reader left before the script was over.
    pub cancelled: bool,
    /// Tokens emitted.
    pub tokens: u32,
}

/// An engine that follows a [`Book`] of scripts.
pub struct Scripted {
    card: Arc<ModelCard>,
    clock: Arc<dyn Clock>,
    shared: Arc<Shared>,
    drive: Box<dyn Drive>,
}

struct Shared {
    state: Mutex<State>,
    observer: Arc<dyn StepObserver>,
    draining: AtomicBool,
}

impl Scripted {
    /// Starts an engine. One piece of a script is one token of the card's byte tokenizer.
    pub fn new(book: Book, clock: Arc<dyn Clock>, observer: Arc<dyn StepObserver>) -> io::Result<Self> {
        let mut card = byte_card(&book.model, "scripted", book.pieces());
        card.context_length = book.context_length;
        card.blocks.block_size = book.block_size;
        card.total_kv_blocks = book.context_length.div_ceil(book.block_size.max(1));
        card.max_num_seqs = u32::try_from(MAX_STREAMS).unwrap_or(u32::MAX);
        card.max_num_batched_tokens = book.context_length;
        card.tasks = vec![Task::Generate, Task::Embed];
        card.embedding_size = Some(EMBEDDING_SIZE);
        card.tool_parser.clone_from(&book.tool_parser);
        card.reasoning_parser.clone_from(&book.reasoning_parser);
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(book)),
            observer,
            draining: AtomicBool::new(false),
        });
        let drive = clock.attach("scripted-engine", Arc::clone(&shared) as Arc<dyn Machine>)?;
        Ok(Self { card: Arc::new(card), clock, shared, drive })
    }

    /// Puts a script before all others.
    ///
    /// # Errors
    /// If it has a piece that the card does not know; see [`Book::extra_pieces`].
    pub fn push(&self, script: Script) -> Result<(), ScriptError> {
        lock(&self.shared.state).push(script)
    }

    /// Requests that came in, oldest first; the latest ten thousand.
    pub fn calls(&self) -> Vec<Call> {
        lock(&self.shared.state).log.calls()
    }

    /// Streams that are over, oldest first; the latest ten thousand.
    pub fn ends(&self) -> Vec<End> {
        lock(&self.shared.state).log.ends()
    }

    /// Streams whose reader left before the script was over.
    pub fn cancels(&self) -> Vec<End> {
        self.ends().into_iter().filter(|end| end.cancelled).collect()
    }
}

impl Machine for Shared {
    fn run(&self, now_us: u64) -> Option<u64> {
        let (next, load) = {
            let mut state = lock(&self.state);
            (state.run(now_us), state.load())
        };
        // After every run, whether or not the load changed: what was pushed may wait for it.
        self.observer.on_step(StepReport { load, ..StepReport::default() });
        next
    }
}

impl Engine for Scripted {
    fn card(&self) -> &Arc<ModelCard> {
        &self.card
    }

    fn submit(&self, request: Arc<Request>, sink: Box<dyn DeltaSink>) -> Result<(), Error> {
        if self.shared.draining.load(Ordering::Acquire) {
            return refuse(sink, draining());
        }
        let limit = self.card.context_length;
        let now_us = self.clock.now_us();
        {
            let mut state = lock(&self.shared.state);
            state.log.call(Call { at_us: now_us, request: Arc::clone(&request) });
            if request.tokens.len() >= limit as usize {
                let found = request.tokens.len();
                let error =
                    Error::invalid(format!("the prompt has {found} tokens, the context length is {limit}"))
                        .with_code("context_length_exceeded");
                return refuse(sink, error);
            }
            state.open(request, sink, now_us)?;
        }
        self.drive.ring();
        Ok(())
    }

    fn load(&self) -> Load {
        lock(&self.shared.state).load()
    }

    fn begin_drain(&self) {
        self.shared.draining.store(true, Ordering::Release);
    }

    fn is_drained(&self) -> bool {
        self.shared.draining.load(Ordering::Acquire) && lock(&self.shared.state).is_idle()
    }
}

#[cfg(test)]
mod tests;
