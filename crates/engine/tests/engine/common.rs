//! A model whose KV store keeps the tokens themselves, and a sink that keeps what it is told.

use dynamo_engine::core::{Core, Options};
use dynamo_engine::model::{Error as ModelError, Logits, Model, Segment};
use dynamo_scheduler::BlockId;
use dynamo_types::{Delta, DeltaSink, Error, Request, Spelling, Stopping, ThinkingLimit, draw, hash};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

pub(crate) const VOCAB: usize = 90;
const HIDDEN: usize = 5;
/// Far more than anything here takes on a busy machine.
const HANG: Duration = Duration::from_secs(120);

/// Tokens that make the fake model misbehave once a row has seen them.
pub(crate) const NOT_A_NUMBER: u32 = 87;
pub(crate) const FAILS: u32 = 88;
pub(crate) const PANICS: u32 = 89;

/// Scores are a hash of all tokens up to the row, read back through the block table: a wrong table, a block given away
/// too early or a wrong share shows as another answer.
pub(crate) struct FakeModel {
    block_size: usize,
    store: Vec<Option<u32>>,
    context_length: usize,
}

impl FakeModel {
    pub(crate) fn new(options: &dynamo_scheduler::Options) -> Self {
        Self {
            block_size: options.block_size as usize,
            store: vec![None; (options.block_size * options.total_blocks) as usize],
            context_length: options.context_length as usize,
        }
    }

    fn place(&self, blocks: &[BlockId], position: usize) -> usize {
        blocks[position / self.block_size].index() * self.block_size + position % self.block_size
    }

    /// All tokens of a sequence up to this position, as its blocks have them.
    fn seen(&self, segment: &Segment<'_>, row: usize) -> Vec<u32> {
        (0..=row).map(|position| self.store[self.place(segment.blocks, position)].unwrap()).collect()
    }

    fn check_ownership(&self, segments: &[Segment<'_>]) {
        for (index, segment) in segments.iter().enumerate() {
            let end = segment.start + segment.tokens.len();
            let written: BTreeSet<_> = segment.blocks
                [segment.start / self.block_size..end.div_ceil(self.block_size)]
                .iter()
                .collect();
            for (other, segment) in segments.iter().enumerate() {
                assert!(
                    other == index || segment.blocks.iter().all(|block| !written.contains(block)),
                    "a block is written by one sequence and used by another"
                );
            }
        }
    }
}

impl Model for FakeModel {
    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn context_length(&self) -> usize {
        self.context_length
    }

    fn hidden_size(&self) -> usize {
        HIDDEN
    }

    fn forward(&mut self, segments: &[Segment<'_>], logits: &mut Vec<f32>) -> Result<(), ModelError> {
        self.check_ownership(segments);
        logits.clear();
        for segment in segments {
            for (offset, &token) in segment.tokens.iter().enumerate() {
                let place = self.place(segment.blocks, segment.start + offset);
                self.store[place] = Some(token);
            }
        }
        for segment in segments {
            let end = segment.start + segment.tokens.len();
            let rows = match segment.logits {
                Logits::None | Logits::States => end..end,
                Logits::Last => end - 1..end,
                Logits::All => segment.start..end,
            };
            for row in rows {
                let seen = self.seen(segment, row);
                if seen.contains(&FAILS) {
                    return Err(ModelError::Empty);
                }
                assert!(!seen.contains(&PANICS), "told to panic");
                let seed = hash::local_hash(&seen, 7);
                let broken = seen.contains(&NOT_A_NUMBER);
                logits.extend((0..VOCAB as u64).map(|token| match broken {
                    true => f32::NAN,
                    // The last ones are never chosen by the model itself.
                    false if token >= u64::from(NOT_A_NUMBER) => f32::NEG_INFINITY,
                    false => 8.0 * draw::unit(seed, token) as f32,
                }));
            }
        }
        for segment in segments.iter().filter(|segment| segment.logits == Logits::States) {
            for row in segment.start..segment.start + segment.tokens.len() {
                let seen = self.seen(segment, row);
                let seed = hash::local_hash(&seen, 8);
                let broken = seen.contains(&NOT_A_NUMBER);
                logits.extend((0..HIDDEN as u64).map(|i| match broken {
                    true => f32::NAN,
                    false => draw::unit(seed, i) as f32 - 0.5,
                }));
            }
        }
        Ok(())
    }

    fn block_bytes(&self) -> usize {
        0
    }

    fn export_block(&self, _: BlockId, _: &mut [u8]) -> Result<(), ModelError> {
        Ok(())
    }

    fn import_block(&mut self, _: BlockId, _: &[u8]) -> Result<(), ModelError> {
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) answer: Delta,
    pub(crate) deltas: usize,
    pub(crate) error: Option<Error>,
    /// The sink is gone.
    pub(crate) over: bool,
}

/// The reader's end.
#[derive(Clone, Default)]
pub(crate) struct Reader {
    told: Arc<(Mutex<Told>, Condvar)>,
    cancelled: Arc<AtomicBool>,
}

impl Reader {
    pub(crate) fn sink(&self) -> Box<dyn DeltaSink> {
        Box::new(Sink(self.clone()))
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub(crate) fn with<T>(&self, look: impl FnOnce(&Told) -> T) -> T {
        look(&self.told.0.lock().unwrap())
    }

    /// Blocks until this holds.
    pub(crate) fn wait(&self, until: impl Fn(&Told) -> bool) {
        wait(&self.told.0, &self.told.1, until);
    }

    pub(crate) fn tokens(&self) -> Vec<u32> {
        self.with(|told| told.answer.tokens.clone())
    }

    pub(crate) fn answer(&self) -> Delta {
        self.with(|told| {
            assert_eq!(told.error, None);
            assert!(told.answer.finish.is_some(), "not over");
            told.answer.clone()
        })
    }

    fn tell(&self, change: impl FnOnce(&mut Told)) {
        change(&mut self.told.0.lock().unwrap());
        self.told.1.notify_all();
    }
}

/// Blocks until this holds of the guarded value; a fault that would hang fails instead.
pub(crate) fn wait<T>(value: &Mutex<T>, changed: &Condvar, until: impl Fn(&T) -> bool) {
    let guard = value.lock().unwrap();
    let (_guard, late) = changed.wait_timeout_while(guard, HANG, |value| !until(value)).unwrap();
    assert!(!late.timed_out(), "waited in vain");
}

/// The same for what nobody announces.
pub(crate) fn poll(until: impl Fn() -> bool) {
    let start = Instant::now();
    while !until() {
        assert!(start.elapsed() < HANG, "waited in vain");
        std::thread::yield_now();
    }
}

struct Sink(Reader);

impl DeltaSink for Sink {
    fn push(&mut self, delta: Delta) {
        self.0.tell(|told| {
            assert!(told.answer.finish.is_none() && told.error.is_none(), "told more after the end");
            assert!(told.deltas == 0 || delta.cached_tokens.is_none());
            assert!(delta.tokens.len() <= 1);
            told.deltas += 1;
            told.answer.merge(delta);
        });
    }

    fn fail(&mut self, error: Error) {
        self.0.tell(|told| {
            assert!(told.answer.finish.is_none() && told.error.is_none(), "told more after the end");
            told.error = Some(error);
        });
    }

    fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Relaxed)
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.0.tell(|told| told.over = true);
    }
}

/// Tokens that are no letters.
pub(crate) const OPENER: u32 = 84;
pub(crate) const CLOSER: u32 = 85;
/// The two parts of a character.
const HALF: u32 = 80;
const OTHER_HALF: u32 = 81;

/// What the fake model's ids spell: one letter each, in the order of ASCII, from `!` on, but for a few.
pub(crate) fn spell(token: u32) -> Vec<u8> {
    match token {
        OPENER => b"<think>".to_vec(),
        CLOSER => b"</think>".to_vec(),
        HALF => vec![0xC3],
        OTHER_HALF => vec![0xA9],
        token => vec![b'!' + token as u8],
    }
}

fn spelling() -> Arc<Spelling> {
    Arc::new(Spelling::new(VOCAB as u32, |token, bytes| bytes.extend(spell(token))))
}

/// Ended by the token, or by the letters of the marker.
pub(crate) fn limit(tokens: u32, is_open: bool, in_letters: bool) -> ThinkingLimit {
    let letters = b"</think>".map(|letter| u32::from(letter - b'!'));
    ThinkingLimit {
        tokens,
        is_open,
        openers: vec!["<think>".into()],
        closers: vec!["</think>".into()],
        calls: vec![],
        ends: vec![if in_letters { letters.to_vec() } else { vec![CLOSER] }],
    }
}

pub(crate) fn request(tokens: &[u32], max_tokens: u32) -> Request {
    Request {
        id: "r".into(),
        model: "m".into(),
        tokens: tokens.into(),
        resumed: 0,
        task: Default::default(),
        sampling: dynamo_types::Sampling { temperature: 0.0, ..Default::default() },
        stopping: Stopping { max_tokens, ..Default::default() },
        guide: None,
        thinking: None,
        output: Default::default(),
        routing: Default::default(),
        trace: None,
    }
}

pub(crate) fn options(total_blocks: u32) -> dynamo_scheduler::Options {
    dynamo_scheduler::Options {
        block_size: 4,
        total_blocks,
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        context_length: 512,
        max_waiting: 1000,
        prefix_caching: true,
    }
}

pub(crate) fn core(scheduler: dynamo_scheduler::Options, eos: &[u32]) -> Core<FakeModel> {
    Core::new(
        FakeModel::new(&scheduler),
        Options { scheduler, eos: eos.to_vec(), spelling: Some(spelling()) },
    )
}

pub(crate) fn submit<M: Model>(core: &mut Core<M>, request: Request) -> Reader {
    let reader = Reader::default();
    core.submit(Arc::new(request), reader.sink()).unwrap();
    reader
}

/// Steps until nothing is open. Returns how often a sequence lost its blocks.
pub(crate) fn finish<M: Model>(core: &mut Core<M>) -> u32 {
    let mut preempted = 0;
    while core.has_work() {
        preempted += core.step().preempted;
    }
    preempted
}

/// The answer of a request that has an engine for itself.
pub(crate) fn alone(request: &Request, context_length: u32, eos: &[u32]) -> Delta {
    let mut core = core(dynamo_scheduler::Options { context_length, ..options(200) }, eos);
    let reader = submit(&mut core, request.clone());
    finish(&mut core);
    reader.answer()
}
