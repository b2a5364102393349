//! One choice of an answer on its way to one worker: select, send, wait for the first sign of an answer. What becomes of
//! it when that fails is its [course](crate::course)'s to say.

use crate::facts::Placed;
use crate::metrics::{Prompt, RequestMetrics, Stopwatch};
use crate::migration::Failure;
use crate::model::{Model, Worker};
use crate::patience::{Patience, Quiet};
use crate::shared::Shared;
use dynamo_router::{Booking, Laps, Query};
use dynamo_runtime::plane::DeltaStream;
use dynamo_runtime::trace::Kind;
use dynamo_types::{Class, Delta, Error, InstanceId, Request, Result, Task};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How often those that failed an answer are looked at while nobody else can take it: who is heard of again does not
/// announce itself.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// What is to be generated, and all that is needed to place it.
pub(crate) struct Job {
    pub(crate) shared: Arc<Shared>,
    pub(crate) model: Arc<Model>,
    pub(crate) handles: Arc<RequestMetrics>,
    pub(crate) request: Request,
    pub(crate) hashes: Option<Arc<[u64]>>,
    pub(crate) expected_output_tokens: Option<u32>,
}

/// An answer that has begun.
pub(crate) struct Started {
    pub(crate) stream: DeltaStream,
    pub(crate) first: Delta,
    /// Holds the load on the router's books.
    pub(crate) booking: Booking,
    pub(crate) worker: Arc<Worker>,
    pub(crate) placed: Placed,
}

/// An answer that did not begin.
pub(crate) struct Failed {
    /// None: no worker could be chosen.
    pub(crate) worker: Option<InstanceId>,
    pub(crate) error: Error,
}

/// One try with one worker.
pub(crate) struct Attempt {
    pub(crate) job: Arc<Job>,
    /// The job's own, with the answer so far behind its prompt.
    pub(crate) request: Request,
    /// Of the request's tokens.
    pub(crate) hashes: Option<Arc<[u64]>>,
    /// Tokens of the answer so far.
    pub(crate) generated: u32,
    /// Who is not to be tried again, unless nobody else is left.
    pub(crate) failed: Vec<Failure>,
    /// Somebody who could take it is waited for until then. None: not at all.
    pub(crate) until: Option<Instant>,
}

impl Attempt {
    /// Selects, sends, and waits for the first sign of an answer.
    pub(crate) async fn run(self) -> Result<Started, Failed> {
        let routing = self.job.shared.metrics.stages.route.enter();
        let selection = self.place().await.map_err(|error| Failed { worker: None, error })?;
        drop(routing);
        let Self { job, mut request, hashes, .. } = self;
        let target = selection.target;
        let hit_rate = hashes.as_ref().map(|hashes| hit_rate(&selection, hashes));
        let placed = Placed { target, sent: Instant::now(), first: None, hit_rate };
        let booking = selection.booking;
        let Some(worker) = job.model.worker(target.worker) else {
            // It left between being chosen and being called.
            let error = Error::disconnected("the chosen worker left");
            return Err(Failed { worker: Some(target.worker), error });
        };
        request.routing.worker = Some(target.worker);
        request.routing.rank = Some(target.rank);
        let answer = first_answer(&job, &worker, Arc::new(request)).await;
        let (stream, first) = answer.map_err(|error| Failed { worker: Some(target.worker), error })?;
        worker.seen(Instant::now());
        Ok(Started { stream, first, booking, worker, placed })
    }

    /// Selects, if need be as soon as somebody joins or comes back.
    async fn place(&self) -> Result<dynamo_router::Selection> {
        loop {
            let joined = self.job.model.joined();
            let error = match self.select(&self.failed) {
                Err(error) if error.class() == Class::Unavailable => error,
                selected => return selected,
            };
            let now = Instant::now();
            let Some(until) = self.until.filter(|until| *until > now) else { return Err(error) };
            let gone = self.gone(now);
            if gone.len() < self.failed.len()
                && let Ok(selection) = self.select(&gone)
            {
                return Ok(selection);
            }
            // In time or not, it is looked again.
            let _ = tokio::time::timeout_at(until.min(now + LOOK_AGAIN), joined).await;
        }
    }

    /// Those that failed it and were not heard of since.
    fn gone(&self, now: Instant) -> Vec<Failure> {
        let is_back = |failure: &Failure| {
            let last = self.failed.iter().rev().find(|last| last.worker == failure.worker);
            let worker = self.job.model.worker(failure.worker);
            last.zip(worker).is_some_and(|(last, worker)| last.is_over(worker.quiet_for(now), now))
        };
        self.failed.iter().copied().filter(|failure| !is_back(failure)).collect()
    }

    fn select(&self, failed: &[Failure]) -> Result<dynamo_router::Selection> {
        let (job, routing) = (&self.job, &self.request.routing);
        let watch = Stopwatch::start();
        let mut span = job.shared.tracer.child("route", Kind::Internal, self.request.trace.as_ref());
        let mut excluded = job.model.unable(self.request.task);
        excluded.extend(failed.iter().map(|failure| failure.worker));
        let expected = job.expected_output_tokens;
        let selection = job.model.router.select(&Query {
            tokens: &self.request.tokens,
            local_hashes: self.hashes.as_deref(),
            expected_output_tokens: expected.map(|tokens| tokens.saturating_sub(self.generated)),
            pinned: routing.worker.map(|worker| (worker, routing.rank)),
            rank: routing.rank,
            excluded: &excluded,
            begun: self.generated > 0,
            now_ms: job.shared.now_ms(),
            laps: Laps::new(&|lap| watch.lap(lap)),
            ..Query::default()
        });
        let metrics = &job.shared.metrics.routing;
        watch.stop(metrics);
        // Embeddings have no use for what is cached.
        let hashes = self.hashes.as_ref().filter(|_| job.request.task == Task::Generate);
        let prompt = Prompt {
            tokens: self.request.tokens.len() as u64,
            blocks: hashes.map(|hashes| hashes.len()),
            block_size: job.model.card.blocks.block_size,
        };
        metrics.count(&job.handles.routing, prompt, &selection);
        let selection = selection.inspect_err(|error| span.fail(error))?;
        if span.is_recorded() {
            span.set("worker_id", selection.target.to_string());
            span.set("candidates", selection.candidates);
            span.set("overlap_blocks", selection.overlap_blocks);
        }
        Ok(selection)
    }
}

/// Share of the prompt's blocks that the chosen worker has.
fn hit_rate(selection: &dynamo_router::Selection, hashes: &[u64]) -> f64 {
    f64::from(selection.overlap_blocks) / hashes.len().max(1) as f64
}

/// Sends the request and waits until the worker says something about it.
async fn first_answer(job: &Job, worker: &Worker, request: Arc<Request>) -> Result<(DeltaStream, Delta)> {
    let plane = &job.shared.plane;
    let _staged = job.shared.metrics.stages.dispatch.enter();
    let answer = async {
        let mut stream = plane.call(&worker.instance, request).await?;
        match stream.next().await {
            Some(first) => Ok((stream, first?)),
            None => Err(Error::disconnected("the worker ended the answer before it began")),
        }
    };
    unless_quiet(answer, worker, &job.shared.patience()).await?
}

/// Waits for `answer` as long as the worker is heard of, for whatever reason: work queued behind other work is not a
/// fault, a worker that says nothing to anybody is.
async fn unless_quiet<T>(answer: impl Future<Output = T>, worker: &Worker, patience: &Patience) -> Result<T> {
    let start = Instant::now();
    let mut answer = std::pin::pin!(answer);
    let mut now = start;
    loop {
        let Some(wait) = patience.look_again_at_first(now - start, worker.quiet_for(now)) else {
            return Ok(answer.await);
        };
        if let Ok(answered) = tokio::time::timeout_at(now + wait, answer.as_mut()).await {
            return Ok(answered);
        }
        now = Instant::now();
        match patience.judge(false, now - start, worker.quiet_for(now)) {
            Quiet::Usual | Quiet::Resting(_) => {}
            Quiet::Stalled(time) => return Err(stalled(time)),
            Quiet::Silent(time) => return Err(silent(time)),
        }
    }
}

/// The fault of a worker that serves others and has forgotten an answer.
pub(crate) fn stalled(timeout: Duration) -> Error {
    Error::overdue(format!("the worker said nothing of this request for {} ms", timeout.as_millis()))
}

/// The fault of a worker that shows no sign of life.
pub(crate) fn silent(timeout: Duration) -> Error {
    Error::timeout(format!("the worker gave no sign of life for {} ms", timeout.as_millis()))
}
