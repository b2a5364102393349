//! The engine without its thread: submit requests, step, and deltas come out.

use crate::guided::{self, Held};
use crate::model::{Logits, Model, Segment};
use crate::pool::{self, Pool};
use crate::sampler::{Sampler, State};
use dynamo_guide::Grammar;
use dynamo_scheduler::{Plan, Sampled, Scheduler, SequenceId};
use dynamo_types::{Delta, DeltaSink, Error, Load, Request, Spelling, StepReport, Task, TokenLogprob};
use rustc_hash::FxHashMap;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

/// What an engine is set up with.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Limits of batching. The context length is lowered to the model's.
    pub scheduler: dynamo_scheduler::Options,
    /// The model's own end tokens.
    pub eos: Vec<u32>,
    /// What tokens spell, for limits of thinking. None: they are not held.
    pub spelling: Option<Arc<Spelling>>,
}

/// An open request.
struct Entry {
    sink: Box<dyn DeltaSink>,
    state: State,
    /// Where the answer stands in its grammar, if it has one.
    held: Option<Held>,
    /// Of a prompt that is to be embedded.
    pool: Option<Pool>,
    request: Arc<Request>,
    /// As far as they are known; kept until the first delta.
    prompt_logprobs: Vec<TokenLogprob>,
    started: bool,
    /// The delta of the step in progress.
    pending: Option<Delta>,
}

impl Entry {
    fn new(
        request: Arc<Request>,
        grammar: Option<Grammar>,
        sink: Box<dyn DeltaSink>,
        hidden_size: usize,
        state: State,
    ) -> Self {
        let wanted = request.output.prompt_logprobs.is_some() && request.prompt_len() > 0;
        // Nothing comes before the first token, so it has no probability.
        let first = request.tokens.first().filter(|_| wanted);
        let first = first.map(|&token| TokenLogprob { token, logprob: 0.0, top: Vec::new() });
        Self {
            sink,
            state,
            held: grammar.map(Held::new),
            pool: (request.task == Task::Embed).then(|| Pool::new(hidden_size)),
            prompt_logprobs: first.into_iter().collect(),
            request,
            started: false,
            pending: None,
        }
    }

    /// What of a segment is needed. Row `i` of its scores tells of position `start + i + 1`.
    fn logits(&self, segment: &dynamo_scheduler::Segment) -> Logits {
        if let Some(pool) = &self.pool {
            return if segment.end() > pool.rows() { Logits::States } else { Logits::None };
        }
        let known = self.prompt_logprobs.len();
        let wants_prompt = self.request.output.prompt_logprobs.is_some() && !self.started;
        if wants_prompt && known < self.request.prompt_len() && segment.end() >= known {
            Logits::All
        } else if segment.sample {
            Logits::Last
        } else {
            Logits::None
        }
    }
}

/// Scheduler, model and sampler, driven step by step. No thread, no waiting.
pub struct Core<M> {
    model: M,
    scheduler: Scheduler,
    sampler: Sampler,
    /// As many as the scheduler has sequences.
    entries: FxHashMap<SequenceId, Entry>,
    eos: Vec<u32>,
    spelling: Option<Arc<Spelling>>,
    logits: Vec<f32>,
}

impl<M: Model> Core<M> {
    pub fn new(model: M, options: Options) -> Self {
        let mut limits = options.scheduler;
        let context_length = u32::try_from(model.context_length()).unwrap_or(u32::MAX);
        limits.context_length = limits.context_length.min(context_length);
        Self {
            model,
            scheduler: Scheduler::new(limits),
            sampler: Sampler::default(),
            entries: FxHashMap::default(),
            eos: options.eos,
            spelling: options.spelling,
            logits: Vec::new(),
        }
    }

    pub fn model(&self) -> &M {
        &self.model
    }

    /// The limits in force.
    pub fn limits(&self) -> &dynamo_scheduler::Options {
        self.scheduler.options()
    }

    pub fn load(&self) -> Load {
        self.scheduler.load()
    }

    /// Answers that stand somewhere in a grammar, and take memory for it: none of requests that wait for their first token.
    pub fn matchers(&self) -> usize {
        self.entries.values().filter(|entry| entry.held.as_ref().is_some_and(Held::is_begun)).count()
    }

    /// Is any request open?
    pub fn has_work(&self) -> bool {
        self.scheduler.has_work()
    }

    /// Takes a request without a guide. What is refused is told to the sink as well as to the caller.
    ///
    /// # Errors
    /// `Invalid` for what this model cannot do (token ids, parameters, length), `Overloaded` if the queue is full,
    /// `NotImplemented` for a request with a guide.
    pub fn submit(&mut self, request: Arc<Request>, sink: Box<dyn DeltaSink>) -> Result<(), Error> {
        self.submit_guided(request, None, sink)
    }

    /// The same for a request with a guide, whose `grammar` this is; the request's `resumed` tokens are of it.
    ///
    /// # Errors
    /// As for [`Core::submit`].
    pub fn submit_guided(
        &mut self,
        request: Arc<Request>,
        grammar: Option<Grammar>,
        mut sink: Box<dyn DeltaSink>,
    ) -> Result<(), Error> {
        let checked = match &request.guide {
            Some(guide) if grammar.is_none() => Err(guided::unable(guide)),
            _ => pool::check(&self.model, &request)
                .and_then(|()| State::check(&request, self.model.vocab_size())),
        };
        match checked.and_then(|()| self.scheduler.submit(Arc::clone(&request))) {
            Ok(id) => {
                let state = State::new(Arc::clone(&request), &self.eos).with_spelling(self.spelling.as_ref());
                self.entries.insert(id, Entry::new(request, grammar, sink, self.model.hidden_size(), state));
                Ok(())
            }
            Err(error) => {
                sink.fail(error.clone());
                Err(error)
            }
        }
    }

    /// One step: lets go of cancelled requests, computes a batch, and pushes one delta for each sequence that got a token.
    /// A model that fails (or panics) fails all open requests, and the cache is forgotten, for nobody knows what is in it.
    pub fn step(&mut self) -> StepReport {
        let started = Instant::now();
        self.drop_cancelled();
        let plan = self.scheduler.plan();
        let outcome = if plan.is_empty() && self.has_work() {
            // Planning always advances someone. Were that wrong, an error is better than a loop.
            Err(Error::engine("the scheduler is stuck"))
        } else if plan.is_empty() {
            Ok(())
        } else {
            self.compute(&plan).map(|()| self.emit(&plan))
        };
        if let Err(error) = outcome {
            self.fail_all(&error);
            self.scheduler.clear_cache();
        }
        StepReport {
            events: self.scheduler.drain_events(),
            stored_tokens: self.scheduler.drain_tokens(),
            load: self.scheduler.load(),
            prefill_tokens: plan.prefill_tokens() as u32,
            decode_tokens: plan.samples() as u32,
            step_us: u32::try_from(started.elapsed().as_micros()).unwrap_or(u32::MAX),
            preempted: plan.preempted.len() as u32,
        }
    }

    /// Reports the tokens of stored blocks from now on.
    pub fn keep_tokens(&mut self) {
        self.scheduler.keep_tokens();
    }

    /// Ends every open request with this error and gives all blocks back.
    pub fn fail_all(&mut self, error: &Error) {
        for (id, mut entry) in self.entries.drain() {
            self.scheduler.cancel(id);
            entry.sink.fail(error.clone());
        }
    }

    fn drop_cancelled(&mut self) {
        let scheduler = &mut self.scheduler;
        self.entries.retain(|&id, entry| {
            let cancelled = entry.sink.is_cancelled();
            if cancelled {
                scheduler.cancel(id);
                entry.sink.fail(Error::cancelled());
            }
            !cancelled
        });
    }

    /// Runs the model over the plan's segments; `self.logits` gets the rows.
    fn compute(&mut self, plan: &Plan) -> Result<(), Error> {
        let segments: Vec<Segment<'_>> = plan
            .segments
            .iter()
            .map(|segment| Segment {
                tokens: self
                    .scheduler
                    .tokens(segment.sequence)
                    .get(segment.start..segment.end())
                    .unwrap_or_default(),
                start: segment.start,
                blocks: self.scheduler.block_table(segment.sequence),
                logits: wanted_logits(&self.entries, segment),
            })
            .collect();
        let rows: usize = segments.iter().map(|segment| segment.logits.rows(segment.tokens.len())).sum();
        let states: usize = segments.iter().map(|segment| segment.logits.states(segment.tokens.len())).sum();
        let (model, logits) = (&mut self.model, &mut self.logits);
        catch_unwind(AssertUnwindSafe(|| model.forward(&segments, logits))).map_err(|panic| {
            Error::engine("the engine broke down").with_detail(panic_text(panic.as_ref()))
        })??;
        let expected = rows * self.model.vocab_size() + states * self.model.hidden_size();
        if self.logits.len() != expected {
            let found = self.logits.len();
            return Err(Error::engine("the engine's result has the wrong size")
                .with_detail(format!("expected {expected} numbers, found {found}")));
        }
        Ok(())
    }

    /// Chooses tokens, tells the scheduler, and pushes the deltas.
    fn emit(&mut self, plan: &Plan) {
        let sampled = self.sample(plan);
        let finished = self.scheduler.commit(plan, &sampled);
        for end in finished {
            if let Some(mut entry) = self.entries.remove(&end.sequence) {
                let mut delta = entry.pending.take().unwrap_or_default();
                delta.finish = Some(end.reason);
                entry.sink.push(delta);
            }
        }
        for segment in &plan.segments {
            if let Some(entry) = self.entries.get_mut(&segment.sequence)
                && let Some(delta) = entry.pending.take()
            {
                entry.sink.push(delta);
            }
        }
    }

    /// Reads the rows of all segments. A sequence whose scores are unusable ends here, alone.
    fn sample(&mut self, plan: &Plan) -> Vec<Sampled> {
        let (vocab_size, hidden_size) = (self.model.vocab_size(), self.model.hidden_size());
        let mut logits = std::mem::take(&mut self.logits);
        let wanted = |segment| wanted_logits(&self.entries, segment);
        let wanted: Vec<Logits> = plan.segments.iter().map(wanted).collect();
        let rows = wanted.iter().zip(&plan.segments).map(|(wanted, segment)| wanted.rows(segment.len));
        let (mut rest, states) = logits.split_at_mut(rows.sum::<usize>() * vocab_size);
        let mut states = &*states;
        let mut sampled = Vec::with_capacity(plan.samples());
        for (segment, wanted) in plan.segments.iter().zip(wanted) {
            let (scores, others) = rest.split_at_mut(wanted.rows(segment.len) * vocab_size);
            rest = others;
            let (own, others) = states.split_at(wanted.states(segment.len) * hidden_size);
            states = others;
            match self.read_rows(segment, scores, own) {
                Ok(choice) => sampled.extend(choice),
                Err(error) => {
                    self.scheduler.cancel(segment.sequence);
                    if let Some(mut entry) = self.entries.remove(&segment.sequence) {
                        entry.sink.fail(error);
                    }
                }
            }
        }
        self.logits = logits;
        sampled
    }

    fn read_rows(
        &mut self,
        segment: &dynamo_scheduler::Segment,
        scores: &mut [f32],
        states: &[f32],
    ) -> Result<Option<Sampled>, Error> {
        let id = segment.sequence;
        let Some(entry) = self.entries.get_mut(&id) else { return Ok(None) };
        let vocab_size = self.model.vocab_size();
        if entry.logits(segment) == Logits::All {
            read_prompt_rows(entry, &mut self.sampler, segment.start, scores, vocab_size)?;
        }
        if let Some(pool) = &mut entry.pool {
            pool.add(segment.start, states);
        }
        if segment.end() < self.scheduler.tokens(id).len() {
            return Ok(None);
        }
        let embedding = entry.pool.as_ref().map(Pool::vector).transpose()?;
        let mut delta = Delta { embedding, ..Delta::default() };
        if !entry.started {
            entry.started = true;
            delta.cached_tokens = self.scheduler.cached_tokens(id);
            delta.prompt_logprobs = std::mem::take(&mut entry.prompt_logprobs);
        }
        let mut sampled = None;
        if segment.sample {
            let last = scores.len().saturating_sub(vocab_size);
            let mask = match &mut entry.held {
                Some(held) => Some(entry.state.mask(held.matcher(&entry.request)?, &self.eos)?),
                None => None,
            };
            let choice = self.sampler.sample(&mut scores[last..], &entry.state, mask.as_ref())?;
            entry.state.accept(choice.token);
            let mut end = entry.state.is_end(choice.token);
            if let Some(held) = &mut entry.held {
                let matcher = held.matcher(&entry.request)?;
                matcher.accept(choice.token)?;
                end |= matcher.is_finished();
            }
            delta.tokens.push(choice.token);
            delta.logprobs.extend(choice.logprob);
            sampled = Some(Sampled { sequence: id, token: choice.token, end });
        }
        entry.pending = Some(delta);
        Ok(sampled)
    }
}

fn wanted_logits(entries: &FxHashMap<SequenceId, Entry>, segment: &dynamo_scheduler::Segment) -> Logits {
    entries.get(&segment.sequence).map_or(Logits::None, |entry| entry.logits(segment))
}

/// Adds the log-probabilities of prompt tokens that these rows tell of and that are not known yet.
fn read_prompt_rows(
    entry: &mut Entry,
    sampler: &mut Sampler,
    start: usize,
    scores: &[f32],
    vocab_size: usize,
) -> Result<(), Error> {
    let top = entry.request.output.prompt_logprobs.unwrap_or(0);
    for (row, scores) in scores.chunks_exact(vocab_size.max(1)).enumerate() {
        let position = start + row + 1;
        if position == entry.prompt_logprobs.len() && position < entry.request.prompt_len() {
            let token = entry.request.tokens[position];
            entry.prompt_logprobs.push(sampler.logprob(scores, token, top)?);
        }
    }
    Ok(())
}

pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("panic").to_owned()
}
