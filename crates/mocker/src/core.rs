//! The mock engine as a state machine in virtual time.

use crate::embedding::embedding;
use crate::options::Options;
use crate::timing::StepShape;
use dynamo_scheduler::{Plan, Sampled, Scheduler, SequenceId};
use dynamo_types::{Delta, Error, Load, Request, Spelling, StepReport, Task, ThinkingMeter, TokenLogprob};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A caller that comes later than this after the end of a step was stopped, not merely late; the lost time is not
/// made up for.
const CATCH_UP_US: f64 = 100_000.0;

/// What a call of [`MockCore::step`] brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// What the step that ended added, per sequence. A delta with `finish` set is the sequence's last.
    pub deltas: Vec<(SequenceId, Delta)>,
    /// What the step changed; none if nothing did.
    pub report: Option<StepReport>,
    /// When to call again, at the latest; none while there is nothing to do. It may have passed already.
    pub next_wake_us: Option<u64>,
}

/// One mock engine. A step begins as soon as there is work, takes as long as the speed model says, and brings its
/// tokens when it ends; requests that arrive meanwhile wait for the next one.
#[derive(Debug)]
pub struct MockCore {
    options: Options,
    scheduler: Scheduler,
    /// The step that is being computed.
    step: Option<Step>,
    sequences: FxHashMap<SequenceId, Sequence>,
    /// What tokens spell, for limits of thinking. None: they are not held.
    spelling: Option<Arc<Spelling>>,
    reported: Load,
}

#[derive(Debug)]
struct Step {
    plan: Plan,
    /// Microseconds, with the fraction that step times have.
    begin_us: f64,
    end_us: f64,
}

#[derive(Debug, Default)]
struct Sequence {
    generated: u32,
    /// The first delta, with what is known of the prompt, was sent.
    begun: bool,
    thinking: Option<ThinkingMeter>,
}

impl MockCore {
    pub fn new(options: Options) -> Self {
        let scheduler = Scheduler::new(options.scheduler());
        let reported = scheduler.load();
        Self { options, scheduler, step: None, sequences: FxHashMap::default(), spelling: None, reported }
    }

    /// One that holds answers to their limits of thinking: this is what its tokens spell.
    #[must_use]
    pub fn with_spelling(mut self, spelling: Option<Arc<Spelling>>) -> Self {
        self.spelling = spelling;
        self
    }

    /// What the engine was asked to be like.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The limits in force.
    pub fn limits(&self) -> &dynamo_scheduler::Options {
        self.scheduler.options()
    }

    /// Takes a request; call [`MockCore::step`] soon.
    ///
    /// # Errors
    /// As [`Scheduler::submit`]: the prompt does not fit, or the queue is full.
    pub fn submit(&mut self, request: Arc<Request>) -> Result<SequenceId, Error> {
        let thinking = self.spelling.as_ref().and_then(|spelling| ThinkingMeter::new(&request, spelling));
        let id = self.scheduler.submit(request)?;
        self.sequences.insert(id, Sequence { thinking, ..Sequence::default() });
        Ok(id)
    }

    /// Ends a sequence without a further delta, and gives its blocks back. False if it is over already.
    pub fn cancel(&mut self, id: SequenceId) -> bool {
        self.sequences.remove(&id);
        self.scheduler.cancel(id)
    }

    /// Forgets all cached blocks.
    pub fn clear_cache(&mut self) {
        self.scheduler.clear_cache();
    }

    /// Reports the tokens of stored blocks from now on.
    pub fn keep_tokens(&mut self) {
        self.scheduler.keep_tokens();
    }

    pub fn load(&self) -> Load {
        self.scheduler.load()
    }

    pub fn has_work(&self) -> bool {
        self.scheduler.has_work()
    }

    /// Ends the current step if its time has come, and begins the next.
    pub fn step(&mut self, now_us: u64) -> Outcome {
        let mut outcome = Outcome::default();
        let now = now_us as f64;
        let mut begin = now;
        if let Some(step) = self.step.take_if(|step| step.end_us <= now) {
            if now - step.end_us < CATCH_UP_US {
                begin = step.end_us;
            }
            outcome.report = Some(self.end(&step, &mut outcome.deltas));
        }
        if self.step.is_none() && self.scheduler.has_work() {
            self.begin(begin);
        }
        outcome.next_wake_us = self.step.as_ref().map(|step| step.end_us.ceil() as u64);
        self.report_changes(&mut outcome.report);
        outcome
    }

    fn begin(&mut self, begin_us: f64) {
        let plan = self.scheduler.plan();
        let options = &self.options;
        let limits = self.scheduler.options();
        let decoding = || plan.segments.iter().filter(|segment| segment.decode);
        let shape = StepShape {
            prefill_tokens: plan.prefill_tokens(),
            decode_rows: decoding().count(),
            decode_kv_tokens: decoding().map(dynamo_scheduler::Segment::end).sum(),
            capacity_tokens: limits.total_blocks as usize * limits.block_size as usize,
        };
        let step_ms = options.timing.step_ms(&shape, options.speedup_ratio, options.decode_speedup_ratio);
        self.step = Some(Step { plan, begin_us, end_us: begin_us + step_ms * 1000.0 });
    }

    fn end(&mut self, step: &Step, deltas: &mut Vec<(SequenceId, Delta)>) -> StepReport {
        let plan = &step.plan;
        let mut sampled = Vec::with_capacity(plan.samples());
        let first_delta = deltas.len();
        for segment in &plan.segments {
            let id = segment.sequence;
            let cached_tokens = self.scheduler.cached_tokens(id);
            let Some(request) = self.scheduler.request(id) else { continue };
            let Some(sequence) = self.sequences.get_mut(&id) else { continue };
            let done = segment.end() >= request.tokens.len();
            if !segment.sample && !done {
                continue;
            }
            let vocabulary = &self.options.vocabulary;
            let mut delta = Delta::default();
            if !std::mem::replace(&mut sequence.begun, true) {
                delta.cached_tokens = cached_tokens;
                if let Some(alternatives) = request.output.prompt_logprobs {
                    delta.prompt_logprobs = prompt_logprobs(vocabulary, request, alternatives);
                }
            }
            if request.task == Task::Embed {
                delta.embedding = Some(embedding(&request.tokens, self.options.embedding_size));
            }
            if segment.sample {
                let position = request.resumed + sequence.generated;
                let choice = match sequence.thinking.as_ref().and_then(ThinkingMeter::due) {
                    Some(due) => vocabulary.forced(request, position, due),
                    None => vocabulary.choose(request, position),
                };
                if let Some(thinking) = &mut sequence.thinking {
                    thinking.take(choice.token);
                }
                sequence.generated += 1;
                delta.tokens.push(choice.token);
                if let Some(alternatives) = request.output.logprobs {
                    delta.logprobs.push(vocabulary.logprob(choice.token, alternatives));
                }
                sampled.push(Sampled { sequence: id, token: choice.token, end: choice.end });
            }
            deltas.push((id, delta));
        }
        for finished in self.scheduler.commit(plan, &sampled) {
            self.sequences.remove(&finished.sequence);
            match deltas[first_delta..].iter_mut().find(|(id, _)| *id == finished.sequence) {
                Some((_, delta)) => delta.finish = Some(finished.reason),
                None => {
                    let finish = Some(finished.reason);
                    deltas.push((finished.sequence, Delta { finish, ..Delta::default() }));
                }
            }
        }
        StepReport {
            prefill_tokens: plan.prefill_tokens() as u32,
            decode_tokens: sampled.len() as u32,
            step_us: (step.end_us - step.begin_us) as u32,
            preempted: plan.preempted.len() as u32,
            ..StepReport::default()
        }
    }

    /// Events and load belong into a report even when no step ended: a cancellation changes them too.
    fn report_changes(&mut self, report: &mut Option<StepReport>) {
        let events = self.scheduler.drain_events();
        let load = self.scheduler.load();
        if report.is_none() && events.is_empty() && load == self.reported {
            return;
        }
        self.reported = load;
        let report = report.get_or_insert_default();
        report.events = events;
        report.stored_tokens = self.scheduler.drain_tokens();
        report.load = load;
    }
}

fn prompt_logprobs(
    vocabulary: &crate::vocabulary::Vocabulary,
    request: &Request,
    alternatives: u32,
) -> Vec<TokenLogprob> {
    let prompt = &request.tokens[..request.prompt_len()];
    let mut logprobs: Vec<_> = prompt.iter().map(|&token| vocabulary.logprob(token, alternatives)).collect();
    if let Some(first) = logprobs.first_mut() {
        *first = TokenLogprob { token: first.token, ..TokenLogprob::default() };
    }
    logprobs
}

#[cfg(test)]
mod tests;
