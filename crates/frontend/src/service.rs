//! The routes that only tell what is: models, health, metrics, documentation.

use crate::api;
use crate::http::{self, Body};
use crate::metrics::{ModelGauges, Repeats, WorkerGauges};
use crate::model::{Model, State};
use crate::page;
use crate::selection;
use crate::shared::{Phase, Shared};
use dynamo_protocols::error_body;
use dynamo_protocols::limits::Routes;
use dynamo_protocols::openai::models::{List, Model as ModelBody, NamespaceReady, Ready, WorkerType};
use dynamo_router::BookedLoad;
use dynamo_runtime::metrics::CONTENT_TYPE;
use dynamo_text::Tokenizer;
use dynamo_types::{Error, Instance, InstanceId, Transport};
use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;

/// The type of a worker that does prefill and decode.
const AGGREGATED: &str = "aggregated";

fn body<T: Serialize>(shared: &Shared, status: StatusCode, value: &T) -> Response<Body> {
    match serde_json::to_vec(value) {
        Ok(bytes) => http::json(status, bytes),
        Err(error) => failure(shared, &Error::internal(error.to_string())),
    }
}

fn failure(shared: &Shared, error: &Error) -> Response<Body> {
    http::failure(error, shared.config.overload_status, error_body)
}

/// `GET /v1/models`: what can be asked for now (R28).
pub(crate) fn models(shared: &Shared, _: &str) -> Response<Body> {
    let ready = shared.catalog.ready();
    let list = List::new(ready.iter().map(|model| ModelBody::from(&*model.card)).collect());
    body(shared, StatusCode::OK, &list)
}

/// `GET /v1/models/{id}`: listed, or 404.
pub(crate) fn model(shared: &Shared, name: &str) -> Response<Body> {
    match shared.catalog.find(name) {
        Err(error) => failure(shared, &error),
        Ok(model) => match model.usable() {
            Err(error) => failure(shared, &error),
            Ok(_) => body(shared, StatusCode::OK, &ModelBody::from(&*model.card)),
        },
    }
}

/// `GET /v1/models/{id}/ready`: what is there and what is missing; 503 while something is.
pub(crate) fn model_ready(shared: &Shared, name: &str) -> Response<Body> {
    let model = match shared.catalog.find(name) {
        Ok(model) => model,
        Err(error) => return failure(shared, &error),
    };
    let mut ready =
        Ready { model: model.name().to_string(), ready: model.state() == State::Ready, ..Ready::default() };
    for worker in model.workers() {
        let namespace = ready.namespaces.entry(worker.instance.namespace.clone()).or_insert_with(missing);
        if !worker.instance.takes_new() {
            continue;
        }
        namespace.ready = ready.ready;
        namespace.missing_worker_types.clear();
        namespace.present = vec![AGGREGATED.to_owned()];
        if let Some(kind) = namespace.worker_types.get_mut(AGGREGATED) {
            kind.workers += 1;
        }
    }
    let status = if ready.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    body(shared, status, &ready)
}

fn missing() -> NamespaceReady {
    let kind = WorkerType { workers: 0, needs: vec![vec![AGGREGATED.to_owned()]] };
    NamespaceReady {
        worker_types: [(AGGREGATED.to_owned(), kind)].into(),
        missing_worker_types: vec![AGGREGATED.to_owned()],
        ..NamespaceReady::default()
    }
}

#[derive(Serialize)]
struct Health {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    models: Vec<Arc<str>>,
    endpoints: Vec<String>,
    instances: Vec<InstanceHealth>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused: Vec<RefusedHealth>,
}

#[derive(Serialize)]
struct InstanceHealth {
    instance_id: u64,
    model: Arc<str>,
    namespace: String,
    component: String,
    endpoint: String,
    transport: &'static str,
    draining: bool,
    /// It failed, or is much worse than others, and is passed over for a while.
    suspended: bool,
    /// What it finds wrong with itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
}

#[derive(Serialize)]
struct RefusedHealth {
    instance_id: u64,
    model: Arc<str>,
    reason: String,
}

impl InstanceHealth {
    fn new(model: &Model, instance: &Instance, suspended: &[InstanceId]) -> Self {
        Self {
            instance_id: instance.id.0,
            model: Arc::clone(model.name()),
            namespace: instance.namespace.clone(),
            component: instance.component.clone(),
            endpoint: instance.endpoint.clone(),
            transport: match instance.transport {
                Transport::InProcess => "in_process",
                Transport::Tcp(_) => "tcp",
                Transport::Nats(_) => "nats",
            },
            draining: instance.draining,
            suspended: suspended.contains(&instance.id),
            fault: instance.fault.clone(),
        }
    }
}

/// `GET /health`: 200 while some model can be asked for, else 503 with the reason. Unlike the reference system's, which
/// is green without a single worker.
pub(crate) fn health(shared: &Shared, _: &str) -> Response<Body> {
    let all = shared.catalog.all();
    let models: Vec<Arc<str>> = shared.catalog.ready().iter().map(|model| Arc::clone(model.name())).collect();
    let instances: Vec<InstanceHealth> = all
        .iter()
        .flat_map(|model| {
            let suspended = model.router.suspended(shared.now_ms());
            let workers = model.workers().into_iter();
            workers.map(move |worker| InstanceHealth::new(model, &worker.instance, &suspended))
        })
        .collect();
    let mut endpoints: Vec<String> =
        all.iter().flat_map(|model| model.workers()).map(|worker| worker.instance.uri()).collect();
    endpoints.sort();
    endpoints.dedup();
    let refused = shared.catalog.refused().into_iter().map(|(id, refused)| RefusedHealth {
        instance_id: id.0,
        model: refused.model,
        reason: refused.reason,
    });
    let (status, state, message) = match (shared.phase(), models.is_empty()) {
        (Phase::Serving, false) => (StatusCode::OK, "healthy", None),
        (Phase::Serving, true) => (StatusCode::SERVICE_UNAVAILABLE, "not_ready", Some(reason(shared, &all))),
        (Phase::Draining | Phase::Stopping, _) => {
            (StatusCode::SERVICE_UNAVAILABLE, "draining", Some("the server is draining".to_owned()))
        }
    };
    let health = Health { status: state, message, models, endpoints, instances, refused: refused.collect() };
    let mut response = body(shared, status, &health);
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(1u16));
    }
    response
}

/// Why nothing can be served.
fn reason(shared: &Shared, all: &[Arc<Model>]) -> String {
    if !shared.listed.is_cancelled() {
        return "discovery has not answered yet".to_owned();
    }
    let states: Vec<String> = all
        .iter()
        .map(|model| {
            let state = match model.state() {
                State::Ready => "is ready".to_owned(),
                State::Loading => "is being loaded".to_owned(),
                State::Broken(error) => format!("cannot be served: {error}"),
                State::NoWorkers => "has no worker that could take a request".to_owned(),
            };
            format!("model {} {state}", model.name())
        })
        .collect();
    if states.is_empty() { "no worker has registered a model".to_owned() } else { states.join("; ") }
}

/// `GET /live`: the process answers, nothing more.
pub(crate) fn live(shared: &Shared, _: &str) -> Response<Body> {
    match shared.phase() {
        Phase::Serving | Phase::Draining => {
            body(shared, StatusCode::OK, &json!({"status": "live", "message": "Service is live"}))
        }
        Phase::Stopping => body(
            shared,
            StatusCode::SERVICE_UNAVAILABLE,
            &json!({"status": "shutting_down", "message": "Service is shutting down"}),
        ),
    }
}

/// `GET /openapi.json`.
pub(crate) fn openapi(shared: &Shared, _: &str) -> Response<Body> {
    let document = document(!shared.config.disable_admin_api);
    let document = if shared.desk.is_some() { selection::document(document) } else { document };
    body(shared, StatusCode::OK, &document)
}

/// Of what is served. `admin`: what operators ask for is.
pub(crate) fn document(admin: bool) -> serde_json::Value {
    let extra = [
        Routes::COUNT_TOKENS,
        Routes::RESPONSES,
        Routes::INPUT_TOKENS,
        Routes::TOKENIZE,
        Routes::DETOKENIZE,
        Routes::EMBEDDINGS,
    ];
    let extra = extra.into_iter().fold(Routes::MESSAGES, Routes::and);
    let mut document = dynamo_protocols::openapi::document_with(extra);
    page::describe(&mut document);
    if admin {
        api::busy::describe(&mut document);
    }
    document
}

/// `GET /metrics`, in Prometheus's text format.
pub(crate) fn metrics(shared: &Shared, _: &str) -> Response<Body> {
    refresh(shared);
    match shared.metrics.registry.text() {
        Ok(text) => http::typed(StatusCode::OK, HeaderValue::from_static(CONTENT_TYPE), text),
        Err(error) => failure(shared, &Error::internal(error.to_string())),
    }
}

/// Gauges of models and workers show what is there now; what left leaves no series behind.
fn refresh(shared: &Shared) {
    shared.metrics.model.reset();
    shared.metrics.worker.reset();
    let mut ranks = FxHashMap::default();
    for model in shared.catalog.all() {
        show_model(&shared.metrics.model, &model, shared.config.migration_limit);
        if let Some(text) = model.built_text() {
            add_repeats(&shared.metrics.repeats, &text.tokenizer);
        }
        for (source, load) in model.router.loads() {
            // Decimal, as users know it from these families.
            let labels = [source.worker.0.to_string(), source.rank.to_string(), AGGREGATED.to_owned()];
            show_rank(&shared.metrics.worker, &labels, &load);
            ranks.insert(source, labels);
        }
    }
    shared.metrics.last.show(&ranks);
}

fn add_repeats(counters: &Repeats, tokenizer: &Tokenizer) {
    let counts = tokenizer.take_repeat_counts();
    for (counter, count) in [
        (&counters.hits, counts.hits),
        (&counters.misses, counts.misses),
        (&counters.cached_tokens, counts.cached_tokens),
        (&counters.uncached_tokens, counts.uncached_tokens),
    ] {
        counter.inc_by(count);
    }
}

fn show_model(gauges: &ModelGauges, model: &Model, migration_limit: u32) {
    let card = &model.card;
    let index = model.router.index_size();
    for (gauge, value) in [
        (&gauges.ready, i64::from(model.state() == State::Ready)),
        (&gauges.total_kv_blocks, i64::from(card.total_kv_blocks)),
        (&gauges.max_num_seqs, i64::from(card.max_num_seqs)),
        (&gauges.max_num_batched_tokens, i64::from(card.max_num_batched_tokens)),
        (&gauges.context_length, i64::from(card.context_length)),
        (&gauges.kv_cache_block_size, i64::from(card.blocks.block_size)),
        (&gauges.migration_limit, i64::from(migration_limit)),
        (&gauges.index_nodes, index.nodes as i64),
        (&gauges.index_bytes, index.bytes as i64),
    ] {
        gauge.with_label_values(&[&*card.name]).set(value);
    }
}

fn show_rank(gauges: &WorkerGauges, labels: &[String; 3], load: &BookedLoad) {
    for (gauge, value) in [
        (&gauges.active_decode_blocks, load.decode_blocks as f64 + load.output_blocks),
        (&gauges.active_prefill_tokens, load.prefill_tokens as f64),
        (&gauges.active_requests, f64::from(load.requests)),
        (&gauges.peer_requests, f64::from(load.peer_requests)),
        (&gauges.registered, f64::from(u8::from(!load.draining))),
    ] {
        gauge.with_label_values(labels).set(value);
    }
}
