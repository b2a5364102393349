//! `GET /status.json`: what the page shows, from the catalog and the metrics. Counters only ever grow; whoever wants
//! rates takes the difference of two answers.

use crate::http::{self, Body};
use crate::metrics::RequestMetrics;
use crate::model::{Model, State};
use crate::shared::{Phase, Shared};
use dynamo_protocols::error_body;
use dynamo_router::BookedLoad;
use dynamo_types::{Error, InstanceId, Load, WorkerRank};
use hyper::{Response, StatusCode};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[derive(Serialize)]
struct Status {
    version: &'static str,
    state: &'static str,
    models: Vec<ModelStatus>,
    workers: Vec<WorkerStatus>,
    refused: Vec<RefusedStatus>,
}

#[derive(Serialize)]
struct ModelStatus {
    name: Arc<str>,
    state: &'static str,
    /// Why it cannot be used.
    reason: Option<String>,
    /// It has a chat template that works.
    chat: bool,
    context_length: u32,
    workers: usize,
    #[serde(flatten)]
    totals: Totals,
}

/// Of one model, over all APIs.
#[derive(Default, Serialize)]
struct Totals {
    live_streams: i64,
    live_requests: i64,
    /// Answered in full.
    answered: u64,
    output_tokens: u64,
    /// Prompt tokens of the answered, and how many of them a cache had.
    answered_prompt_tokens: u64,
    answered_cached_tokens: u64,
    /// Times to first token: how many, and their sum.
    first_tokens: u64,
    first_token_seconds: f64,
}

#[derive(Serialize)]
struct WorkerStatus {
    /// Decimal, as a text: JSON's numbers are too small for it.
    id: String,
    rank: u32,
    model: Arc<str>,
    /// Where it is reached.
    endpoint: String,
    /// Name and version of its program, once it was spoken with.
    version: Option<Arc<str>>,
    draining: bool,
    /// It failed and is passed over for a while.
    suspended: bool,
    /// What it finds wrong with itself: it gets nothing new.
    fault: Option<String>,
    /// Sent there and not over.
    requests: u32,
    /// How many of them other frontends sent.
    peer_requests: u32,
    /// What its engine says; None until its first report.
    load: Option<Load>,
    total_kv_blocks: u32,
}

#[derive(Serialize)]
struct RefusedStatus {
    id: String,
    model: Arc<str>,
    reason: String,
}

impl Totals {
    fn of(model: &str, kinds: &[Arc<RequestMetrics>]) -> Self {
        let mut totals = Self::default();
        for kind in kinds.iter().filter(|kind| &*kind.model == model) {
            if kind.stream {
                totals.live_streams += kind.open.load(Ordering::Relaxed);
            }
            totals.answered += kind.succeeded.get();
            // All kinds of a model share these.
            totals.live_requests = kind.active.get();
            totals.output_tokens = kind.output_tokens.get();
            totals.answered_prompt_tokens = kind.answered_prompt_tokens.get();
            totals.answered_cached_tokens = kind.cached_tokens.get_sample_sum() as u64;
            totals.first_tokens = kind.time_to_first_token.get_sample_count();
            totals.first_token_seconds = kind.time_to_first_token.get_sample_sum();
        }
        totals
    }
}

impl ModelStatus {
    fn new(model: &Model, kinds: &[Arc<RequestMetrics>]) -> Self {
        let (state, reason) = match model.state() {
            State::Ready => ("ready", None),
            State::Loading => ("loading", None),
            // As good as it gets, and good for tokens.
            State::Broken(error) if model.is_textless() => ("ready", Some(error.message().to_owned())),
            State::Broken(error) => ("broken", Some(error.message().to_owned())),
            State::NoWorkers => ("no_workers", None),
        };
        Self {
            name: Arc::clone(model.name()),
            state,
            reason,
            chat: model.built_text().is_some_and(|text| model.template(text).is_ok()),
            context_length: model.card.context_length,
            workers: model.workers().len(),
            totals: Totals::of(model.name(), kinds),
        }
    }
}

impl WorkerStatus {
    fn new(
        shared: &Shared,
        model: &Model,
        source: WorkerRank,
        booked: &BookedLoad,
        suspended: &[InstanceId],
    ) -> Self {
        let worker = model.worker(source.worker);
        let instance = worker.as_ref().map(|worker| &worker.instance);
        Self {
            endpoint: instance.map(|instance| instance.transport.to_string()).unwrap_or_default(),
            version: instance.and_then(|instance| shared.plane.agent(instance)),
            suspended: suspended.contains(&source.worker),
            fault: instance.and_then(|instance| instance.fault.clone()),
            id: source.worker.0.to_string(),
            rank: source.rank,
            model: Arc::clone(model.name()),
            draining: worker.as_ref().is_some_and(|worker| worker.instance.draining),
            requests: booked.requests,
            peer_requests: booked.peer_requests,
            load: booked.reported,
            total_kv_blocks: model.card.total_kv_blocks,
        }
    }
}

pub(crate) fn status(shared: &Shared, _: &str) -> Response<Body> {
    let kinds = shared.metrics.kinds();
    let models = shared.catalog.all();
    let workers = models.iter().flat_map(|model| {
        let (loads, suspended) = (model.router.loads(), model.router.suspended(shared.now_ms()));
        loads
            .into_iter()
            .map(move |(source, booked)| WorkerStatus::new(shared, model, source, &booked, &suspended))
    });
    let refused = shared.catalog.refused().into_iter().map(|(id, refused)| RefusedStatus {
        id: id.0.to_string(),
        model: refused.model,
        reason: refused.reason,
    });
    let status = Status {
        version: env!("CARGO_PKG_VERSION"),
        state: match shared.phase() {
            Phase::Serving => "serving",
            Phase::Draining => "draining",
            Phase::Stopping => "stopping",
        },
        workers: workers.collect(),
        refused: refused.collect(),
        models: models.iter().map(|model| ModelStatus::new(model, &kinds)).collect(),
    };
    match serde_json::to_vec(&status) {
        Ok(bytes) => http::json(StatusCode::OK, bytes),
        Err(error) => {
            http::failure(&Error::internal(error.to_string()), shared.config.overload_status, error_body)
        }
    }
}
