//! The course of one choice's answer: which worker serves it now, and what becomes of it when that worker fails.
//!
//! The only place where an answer changes workers, before its first token (R30) or in the middle. Whoever reads it sees
//! every token once, wherever it came from. Dropping it cancels what runs and gives the booking back.

use crate::dispatch::{Attempt, Failed, Job, Started, silent, stalled};
use crate::facts::Placed;
use crate::migration::{Failure, Outcome, continuation};
use crate::model::Worker;
use crate::patience::{Patience, Quiet};
use dynamo_router::{Booking, Outlier};
use dynamo_runtime::BoxFuture;
use dynamo_runtime::plane::DeltaStream;
use dynamo_types::hash::{Scope, local_hashes};
use dynamo_types::{Class, Delta, Error, InstanceId, Result, Task};
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::time::Instant;
use tracing::Instrument;

/// Tokens an answer must have before the time between them says something.
const PACED_TOKENS: usize = 8;

enum State {
    Dispatching(BoxFuture<'static, Result<Started, Failed>>),
    Serving(Serving),
    Over,
}

struct Serving {
    stream: DeltaStream,
    /// Holds the load on the router's books.
    booking: Booking,
    worker: Arc<Worker>,
    /// When anything of the stream last came.
    heard: Instant,
}

/// One choice's answer.
pub(crate) struct Course {
    job: Arc<Job>,
    log: tracing::Span,
    state: State,
    /// The answer so far: what the next worker gets behind the prompt.
    generated: Vec<u32>,
    /// Who failed it, one for each try.
    failed: Vec<Failure>,
    /// What the last of them said.
    fault: Option<Error>,
    cached_told: bool,
    prompt_told: bool,
    placed: Option<Placed>,
    /// Since when nobody serves it although someone did, or was asked to.
    moving_since: Option<Instant>,
}

impl Course {
    /// `log`: what is logged on the way stands in it.
    pub(crate) fn new(job: Job, log: tracing::Span) -> Self {
        let mut course = Self {
            job: Arc::new(job),
            log,
            state: State::Over,
            generated: Vec::new(),
            failed: Vec::new(),
            fault: None,
            cached_told: false,
            prompt_told: false,
            placed: None,
            moving_since: None,
        };
        course.dispatch();
        course
    }

    /// Where it is served, or was last. None until a worker answers.
    pub(crate) fn placed(&self) -> Option<&Placed> {
        self.placed.as_ref()
    }

    /// Everything that is there, merged. An error is final.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Delta>> {
        loop {
            let (worker, error) = match &mut self.state {
                State::Over => return Poll::Pending,
                State::Dispatching(attempt) => match attempt.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(started)) => return Poll::Ready(Ok(self.begin(started))),
                    Poll::Ready(Err(Failed { worker: Some(worker), error })) => (worker, error),
                    // What the last one said is of more use than "nobody is left".
                    Poll::Ready(Err(Failed { worker: None, error })) => {
                        let error = self.fault.take().unwrap_or(error);
                        return Poll::Ready(Err(self.end(error)));
                    }
                },
                State::Serving(serving) => {
                    let error = match serving.stream.poll_next(cx) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(Some(Ok(delta))) => return Poll::Ready(Ok(self.take(delta))),
                        Poll::Ready(Some(Err(error))) => error,
                        Poll::Ready(None) => {
                            Error::disconnected("the worker ended the answer without a reason")
                        }
                    };
                    (serving.worker.instance.id, error)
                }
            };
            if let Some(delta) = self.leave(worker, error)? {
                return Poll::Ready(Ok(delta));
            }
        }
    }

    /// `count` tokens of it came.
    pub(crate) fn heard(&mut self, count: u32, now: Instant) {
        let State::Serving(serving) = &mut self.state else { return };
        serving.worker.seen(now);
        serving.heard = now;
        serving.booking.output_tokens(count);
        if count > 0
            && let Some(placed) = &mut self.placed
        {
            placed.first.get_or_insert(now);
        }
    }

    /// The answer is complete: an engine that would go on is cancelled.
    pub(crate) fn close(&mut self) {
        if let State::Serving(served) = std::mem::replace(&mut self.state, State::Over) {
            let (router, now_ms) = (&self.job.model.router, self.job.shared.now_ms());
            let worker = served.worker.instance.id;
            let outliers = match self.pace_ms(served.heard) {
                Some(pace) => router.report_pace(worker, pace, now_ms),
                None => router.report(worker, None, now_ms),
            };
            self.tell(&outliers);
        }
    }

    /// Milliseconds per token after the first. The first says more about the prompt than about the worker; so does an answer
    /// that more than one had a part in.
    fn pace_ms(&self, last: Instant) -> Option<f64> {
        let first = self.placed.as_ref()?.first.filter(|_| self.failed.is_empty())?;
        let tokens = self.generated.len();
        (tokens >= PACED_TOKENS).then(|| (last - first).as_secs_f64() * 1000.0 / (tokens - 1) as f64)
    }

    fn tell(&self, outliers: &[Outlier]) {
        for Outlier { worker, reason, for_ms } in outliers {
            let model = self.job.model.name();
            tracing::warn!(%worker, %model, %reason, for_ms, "worker suspended: it is much worse than the others");
        }
    }

    /// Nobody wants the rest.
    pub(crate) fn abandon(&mut self) {
        self.state = State::Over;
    }

    /// Leaves a worker that has been quiet for too long. Some: what that means, if another poll would not tell. Attempts
    /// look after themselves.
    pub(crate) fn leave_quiet(&mut self, now: Instant, patience: &Patience) -> Option<Result<Option<Delta>>> {
        let State::Serving(serving) = &self.state else { return None };
        let (begun, worker) = (!self.generated.is_empty(), serving.worker.instance.id);
        let error = match patience.judge(begun, now - serving.heard, serving.worker.quiet_for(now)) {
            Quiet::Usual => return None,
            Quiet::Resting(time) => Some(stalled(time)).filter(|error| self.could_move(worker, error))?,
            Quiet::Stalled(time) => stalled(time),
            Quiet::Silent(time) => silent(time),
        };
        Some(self.leave(worker, error))
    }

    /// Would it go on elsewhere if `worker` failed it like this?
    fn could_move(&self, worker: InstanceId, error: &Error) -> bool {
        let job = &self.job;
        let suspended = job.model.router.suspended(job.shared.now_ms());
        let has_failed = |id| id == worker || self.failed.iter().any(|failure| failure.worker == id);
        let is_other = |id| !has_failed(id) && !suspended.contains(&id);
        self.outcome(self.failed.len() + 1, error) == Outcome::Moves
            && job
                .model
                .workers()
                .iter()
                .any(|other| is_other(other.instance.id) && other.takes(job.request.task))
    }

    /// What becomes of it after so many tries, the last of them with this fault.
    fn outcome(&self, failed: usize, error: &Error) -> Outcome {
        let failed = u32::try_from(failed).unwrap_or(u32::MAX);
        let (job, eos) = (&self.job, &self.job.model.card.special.eos);
        job.shared.migration_rules().after(&job.request, &self.generated, eos, failed, error)
    }

    fn begin(&mut self, started: Started) -> Delta {
        let Started { stream, first, booking, worker, placed } = started;
        let now = Instant::now();
        if let Some(since) = self.moving_since.take() {
            self.job.handles.migrations.succeeded.observe((now - since).as_secs_f64());
        }
        // The times of an answer that goes on are those of its beginning; the worker is the one that serves it.
        self.placed = Some(match self.placed.take().filter(|_| !self.generated.is_empty()) {
            Some(begun) => Placed { target: placed.target, ..begun },
            None => placed,
        });
        self.state = State::Serving(Serving { stream, booking, worker, heard: now });
        self.take(first)
    }

    /// What was told of the prompt is not told again.
    fn take(&mut self, mut delta: Delta) -> Delta {
        self.generated.extend_from_slice(&delta.tokens);
        if delta.cached_tokens.is_some() && std::mem::replace(&mut self.cached_told, true) {
            delta.cached_tokens = None;
        }
        if !delta.prompt_logprobs.is_empty() && std::mem::replace(&mut self.prompt_told, true) {
            delta.prompt_logprobs = Vec::new();
        }
        delta
    }

    /// The worker failed the answer. It goes on elsewhere, or has an end already, or ends with the fault.
    fn leave(&mut self, worker: InstanceId, error: Error) -> Result<Option<Delta>> {
        // The booking is given back and an engine that lives is told before another worker is asked.
        self.state = State::Over;
        let job = Arc::clone(&self.job);
        self.tell(&job.model.router.report(worker, Some(&error), job.shared.now_ms()));
        self.failed.push(Failure { worker, at: Instant::now() });
        match self.outcome(self.failed.len(), &error) {
            Outcome::Ended(finish) => return Ok(Some(Delta { finish: Some(finish), ..Delta::default() })),
            Outcome::Fails => return Err(self.end(error)),
            Outcome::TooLong => {
                job.handles.migrations.too_long.inc();
                return Err(self.end(error));
            }
            Outcome::Moves => {}
        }
        let begun = self.generated.len();
        self.log.in_scope(|| tracing::info!(%worker, %error, begun, "the answer moves to another worker"));
        let counter = if begun == 0 { &job.handles.migrations.new } else { &job.handles.migrations.ongoing };
        counter.inc();
        self.moving_since.get_or_insert_with(Instant::now);
        self.fault = Some(error);
        self.dispatch();
        Ok(None)
    }

    /// The client gets this fault.
    fn end(&mut self, error: Error) -> Error {
        self.state = State::Over;
        if let Some(since) = self.moving_since.take() {
            self.job.handles.migrations.failed.observe(since.elapsed().as_secs_f64());
        }
        error
    }

    fn dispatch(&mut self) {
        let request = continuation(&self.job.request, &self.generated, self.prompt_told);
        let attempt = Attempt {
            hashes: self.hashes(&request.tokens),
            request,
            generated: u32::try_from(self.generated.len()).unwrap_or(u32::MAX),
            failed: self.failed.clone(),
            until: self.waits_until(),
            job: Arc::clone(&self.job),
        };
        self.state = State::Dispatching(Box::pin(attempt.run().instrument(self.log.clone())));
    }

    /// How long somebody who could go on is waited for. None: nobody has failed it, or not by dying.
    fn waits_until(&self) -> Option<Instant> {
        let died = |fault: &Error| matches!(fault.class(), Class::Unavailable | Class::Timeout);
        let since = self.moving_since.filter(|_| self.fault.as_ref().is_some_and(died))?;
        Some(since + self.job.shared.migration_wait())
    }

    /// Those of the prompt, and of the blocks that the answer filled since.
    fn hashes(&self, tokens: &[u32]) -> Option<Arc<[u64]>> {
        let known = self.job.hashes.as_ref()?;
        if self.generated.is_empty() || self.job.request.task != Task::Generate {
            return Some(Arc::clone(known));
        }
        let block_size = self.job.model.card.blocks.block_size as usize;
        let routing = &self.job.request.routing;
        let scope = Scope { lora: routing.lora.as_deref(), salt: routing.salt.as_deref() };
        let rest = tokens.get(known.len() * block_size..).unwrap_or_default();
        Some(known.iter().copied().chain(local_hashes(rest, block_size, &scope)).collect())
    }
}

impl Drop for Course {
    fn drop(&mut self) {
        if let Some(since) = self.moving_since {
            self.job.handles.migrations.cancelled.observe(since.elapsed().as_secs_f64());
        }
    }
}
