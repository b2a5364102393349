//! One choice of an answer on its way to a worker: select, send, wait for the first sign of an answer, and go elsewhere
//! if that fails (R30).

use crate::metrics::RequestMetrics;
use crate::model::{Model, Worker};
use crate::shared::Shared;
use dynamo_router::{Booking, Query};
use dynamo_runtime::plane::DeltaStream;
use dynamo_types::{Delta, Error, InstanceId, Request, Result, WorkerRank};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

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
    pub(crate) target: WorkerRank,
}

/// Finds a worker that begins to answer.
///
/// # Errors
/// The last worker's fault once `max_attempts` are used up, a fault that another worker would repeat, or what the
/// router says when nobody is left.
pub(crate) async fn start(job: Job) -> Result<Started> {
    let mut excluded: Vec<InstanceId> = Vec::new();
    let mut last: Option<Error> = None;
    for attempt in 0..job.shared.config.max_attempts {
        if attempt > 0 {
            job.handles.migrations.inc();
        }
        let failed = match attempt_once(&job, &excluded).await {
            Ok(started) => return Ok(started),
            Err(failed) => failed,
        };
        let Some(worker) = failed.worker else {
            // Nobody is left: what the last one said is more use than "nobody is left".
            return Err(last.unwrap_or(failed.error));
        };
        let pinned = job.request.routing.worker.is_some();
        if pinned || !failed.error.retryable() {
            return Err(failed.error);
        }
        tracing::debug!(request_id = %job.request.id, %worker, error = %failed.error, "trying another worker");
        excluded.push(worker);
        last = Some(failed.error);
    }
    Err(last.unwrap_or_else(|| Error::internal("a request was not attempted at all")))
}

struct Failed {
    /// None: no worker could be chosen.
    worker: Option<InstanceId>,
    error: Error,
}

async fn attempt_once(job: &Job, excluded: &[InstanceId]) -> Result<Started, Failed> {
    let selection = select(job, excluded).map_err(|error| Failed { worker: None, error })?;
    let target = selection.target;
    let booking = selection.booking;
    let router = &job.model.router;
    let Some(worker) = job.model.worker(target.worker) else {
        // It left between being chosen and being called.
        let error = Error::disconnected("the chosen worker left");
        return Err(Failed { worker: Some(target.worker), error });
    };
    let mut request = job.request.clone();
    request.routing.worker = Some(target.worker);
    request.routing.rank = Some(target.rank);
    let answer = first_answer(job, &worker, Arc::new(request)).await;
    // Success is reported when the answer is complete: a worker that breaks off every answer is no success.
    if let Err(error) = &answer {
        router.report(target.worker, Some(error), job.shared.now_ms());
    }
    let (stream, first) = answer.map_err(|error| Failed { worker: Some(target.worker), error })?;
    worker.seen(Instant::now());
    Ok(Started { stream, first, booking, worker, target })
}

fn select(job: &Job, excluded: &[InstanceId]) -> Result<dynamo_router::Selection> {
    let routing = &job.request.routing;
    let start = std::time::Instant::now();
    let selection = job.model.router.select(&Query {
        tokens: &job.request.tokens,
        local_hashes: job.hashes.as_deref(),
        expected_output_tokens: job.expected_output_tokens,
        pinned: routing.worker.map(|worker| (worker, routing.rank)),
        excluded,
        now_ms: job.shared.now_ms(),
        ..Query::default()
    })?;
    job.handles.placements.inc();
    if let Some(hashes) = &job.hashes {
        job.shared.metrics.scheduling_ms.observe(start.elapsed().as_secs_f64() * 1000.0);
        let rate = f64::from(selection.overlap_blocks) / hashes.len().max(1) as f64;
        job.shared.metrics.kv_hit_rate.observe(rate);
    }
    Ok(selection)
}

/// Sends the request and waits until the worker says something about it.
async fn first_answer(job: &Job, worker: &Worker, request: Arc<Request>) -> Result<(DeltaStream, Delta)> {
    let plane = &job.shared.plane;
    let answer = async {
        let mut stream = plane.call(&worker.instance, request).await?;
        match stream.next().await {
            Some(first) => Ok((stream, first?)),
            None => Err(Error::disconnected("the worker ended the answer before it began")),
        }
    };
    match job.shared.silence_timeout() {
        Some(timeout) => unless_silent(answer, worker, timeout).await?,
        None => answer.await,
    }
}

/// Waits for `answer` as long as the worker is heard of, for whatever reason: work queued behind other work is not a
/// fault, a worker that says nothing to anybody is.
async fn unless_silent<T>(answer: impl Future<Output = T>, worker: &Worker, timeout: Duration) -> Result<T> {
    let start = Instant::now();
    let mut deadline = start + timeout;
    let mut answer = std::pin::pin!(answer);
    loop {
        if let Ok(answered) = tokio::time::timeout_at(deadline, answer.as_mut()).await {
            return Ok(answered);
        }
        let now = Instant::now();
        let quiet = worker.quiet_for(now).min(now - start);
        if quiet >= timeout {
            return Err(silent(timeout));
        }
        deadline = now + (timeout - quiet);
    }
}

/// The fault of a worker that shows no sign of life.
pub(crate) fn silent(timeout: Duration) -> Error {
    Error::timeout(format!("the worker gave no sign of life for {} ms", timeout.as_millis()))
}
