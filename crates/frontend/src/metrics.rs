//! The frontend's metric families (behaviour.md 11.2).
//!
//! Label sets are resolved once per model, route and kind of answer ([`RequestMetrics`]); what happens per token is a
//! counter and at most one histogram.

mod last;
mod routing;
mod stages;

pub(crate) use last::Answer;
pub(crate) use routing::{Prompt, Stopwatch};

use dynamo_runtime::metrics::names::{frontend, label, router};
use dynamo_runtime::metrics::{
    Buckets, Error, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Registry,
};
use dynamo_runtime::sync::{read, write};
use last::Last;
use routing::{ModelRouting, Routing};
use rustc_hash::FxHashMap;
use stages::Stages;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, RwLock};

/// Label of requests whose model does not exist: bounds the number of series.
pub(crate) const UNKNOWN_MODEL: &str = "unknown_model";

/// Requests that were sent to another worker. `new_request`: nothing had been generated yet (behaviour.md 10.1).
const MODEL_MIGRATION_TOTAL: &str = "dynamo_frontend_model_migration_total";
const MIGRATION_TYPE: &str = "migration_type";
const NEW_REQUEST: &str = "new_request";
const ONGOING_REQUEST: &str = "ongoing_request";
const MODEL_MIGRATION_DURATION_SECONDS: &str = "dynamo_frontend_model_migration_duration_seconds";
const OUTCOME: &str = "outcome";
const MODEL_MIGRATION_MAX_SEQ_LEN_EXCEEDED_TOTAL: &str =
    "dynamo_frontend_model_migration_max_seq_len_exceeded_total";
/// The route whose latency has a family of its own.
const EMBEDDINGS: &str = "embeddings";
/// Ours.
const OPEN_CONNECTIONS: &str = "dynamo_frontend_open_connections";
/// Ours.
const UNAUTHORIZED_TOTAL: &str = "dynamo_frontend_unauthorized_total";
/// Ours.
const ANSWERED_PROMPT_TOKENS_TOTAL: &str = "dynamo_frontend_answered_prompt_tokens_total";
/// Ours.
const WORKER_ACTIVE_REQUESTS: &str = "dynamo_frontend_worker_active_requests";
const WORKER_PEER_REQUESTS: &str = "dynamo_frontend_worker_peer_requests";

/// Seconds of tokenising.
const TOKENIZE: [f64; 9] = [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0];
/// Seconds of rendering.
const TEMPLATE: [f64; 8] = [0.00001, 0.00005, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05];
/// Milliseconds of tokenising.
const TOKENIZE_MS: Buckets = Buckets::new(0.01, 1000.0, 17);

/// All families of one frontend.
pub(crate) struct Metrics {
    pub(crate) registry: Registry,
    pub(crate) requests: IntCounterVec,
    pub(crate) disconnected_clients: IntCounter,
    pub(crate) unauthorized: IntCounter,
    pub(crate) tokenize: Histogram,
    /// The same in milliseconds, under its older name.
    pub(crate) tokenize_ms: Histogram,
    pub(crate) template: Histogram,
    pub(crate) repeats: Repeats,
    pub(crate) connections: IntGauge,
    pub(crate) kv_events: IntCounterVec,
    pub(crate) routing: Routing,
    pub(crate) stages: Stages,
    pub(crate) model: ModelGauges,
    pub(crate) worker: WorkerGauges,
    pub(crate) last: Last,
    per_model: PerModel,
    handles: RwLock<FxHashMap<HandleKey, Arc<RequestMetrics>>>,
}

/// Model, route, streamed.
type HandleKey = (Arc<str>, &'static str, bool);

/// Families from which [`RequestMetrics`] are resolved.
struct PerModel {
    started: IntCounterVec,
    active: IntGaugeVec,
    in_flight: IntGaugeVec,
    queued: IntGaugeVec,
    embedding: HistogramVec,
    cancellations: IntCounterVec,
    rejections: IntCounterVec,
    migrations: IntCounterVec,
    migration_duration: HistogramVec,
    migration_too_long: IntCounterVec,
    output_tokens: IntCounterVec,
    answered_prompt_tokens: IntCounterVec,
    duration: HistogramVec,
    time_to_first_token: HistogramVec,
    inter_token_latency: HistogramVec,
    input_tokens: HistogramVec,
    output_sequence: HistogramVec,
    cached_tokens: HistogramVec,
}

/// Filled when they are read, from the models served at that moment.
pub(crate) struct ModelGauges {
    pub(crate) ready: IntGaugeVec,
    pub(crate) total_kv_blocks: IntGaugeVec,
    pub(crate) max_num_seqs: IntGaugeVec,
    pub(crate) max_num_batched_tokens: IntGaugeVec,
    pub(crate) context_length: IntGaugeVec,
    pub(crate) kv_cache_block_size: IntGaugeVec,
    pub(crate) migration_limit: IntGaugeVec,
    pub(crate) index_nodes: IntGaugeVec,
    pub(crate) index_bytes: IntGaugeVec,
}

/// Texts whose tokens were remembered. Counted by the tokenizers, and taken from them when the metrics are read.
pub(crate) struct Repeats {
    pub(crate) hits: IntCounter,
    pub(crate) misses: IntCounter,
    pub(crate) cached_tokens: IntCounter,
    pub(crate) uncached_tokens: IntCounter,
}

/// Filled when they are read, from the router's bookings.
pub(crate) struct WorkerGauges {
    pub(crate) active_decode_blocks: GaugeVec,
    pub(crate) active_prefill_tokens: GaugeVec,
    pub(crate) active_requests: GaugeVec,
    pub(crate) peer_requests: GaugeVec,
    pub(crate) registered: GaugeVec,
}

/// Everything a request of one model, route and kind counts into.
pub(crate) struct RequestMetrics {
    pub(crate) model: Arc<str>,
    pub(crate) endpoint: &'static str,
    pub(crate) stream: bool,
    /// Of this kind, being served.
    pub(crate) open: AtomicI64,
    pub(crate) started: IntCounter,
    pub(crate) succeeded: IntCounter,
    pub(crate) active: IntGauge,
    /// The same under its older name.
    pub(crate) in_flight: IntGauge,
    /// Without a token yet.
    pub(crate) queued: IntGauge,
    /// Of requests for embeddings only.
    pub(crate) embedding: Option<Histogram>,
    pub(crate) cancellations: IntCounter,
    pub(crate) rejections: IntCounter,
    pub(crate) migrations: Migrations,
    pub(crate) routing: ModelRouting,
    pub(crate) output_tokens: IntCounter,
    /// Prompts of answered requests: what `cached_tokens` is a part of.
    pub(crate) answered_prompt_tokens: IntCounter,
    pub(crate) duration: Histogram,
    pub(crate) time_to_first_token: Histogram,
    pub(crate) inter_token_latency: Histogram,
    pub(crate) input_tokens: Histogram,
    pub(crate) output_sequence: Histogram,
    pub(crate) cached_tokens: Histogram,
}

/// Answers that another worker went on with.
pub(crate) struct Migrations {
    /// Before their first token.
    pub(crate) new: IntCounter,
    /// After it.
    pub(crate) ongoing: IntCounter,
    /// Seconds from the fault to the next worker's first word.
    pub(crate) succeeded: Histogram,
    /// To the fault that the client got.
    pub(crate) failed: Histogram,
    /// To the client's leaving.
    pub(crate) cancelled: Histogram,
    /// Answers that did not move because of their length.
    pub(crate) too_long: IntCounter,
}

/// `request_type` of a request.
pub(crate) fn request_type(stream: bool) -> &'static str {
    if stream { "stream" } else { "unary" }
}

impl Metrics {
    pub(crate) fn new(registry: Registry) -> Result<Self, Error> {
        let labels = [label::MODEL, label::ROUTE, label::REQUEST_TYPE, label::STATUS, label::ERROR_TYPE];
        Ok(Self {
            requests: registry.counters(frontend::REQUESTS_TOTAL, "Finished requests.", &labels)?,
            disconnected_clients: registry.counter(
                frontend::DISCONNECTED_CLIENTS,
                "Requests whose client left before the answer was complete.",
            )?,
            unauthorized: registry.counter(UNAUTHORIZED_TOTAL, "Requests without a valid API key.")?,
            tokenize: registry.histogram_at(
                frontend::TOKENIZE_SECONDS,
                "Tokenising a request's prompts.",
                TOKENIZE.to_vec(),
            )?,
            tokenize_ms: registry
                .histograms(
                    frontend::TOKENIZER_LATENCY_MS,
                    "The same in milliseconds.",
                    &["operation"],
                    TOKENIZE_MS,
                )?
                .with_label_values(&["tokenize"]),
            template: registry.histogram_at(
                frontend::TEMPLATE_SECONDS,
                "Rendering a chat template.",
                TEMPLATE.to_vec(),
            )?,
            repeats: Repeats::new(&registry)?,
            connections: registry.gauge(OPEN_CONNECTIONS, "Client connections.")?,
            kv_events: registry.counters(
                router::KV_CACHE_EVENTS_APPLIED,
                "KV events applied to the prefix index, by outcome.",
                &["status", "event_type"],
            )?,
            routing: Routing::new(&registry)?,
            stages: Stages::new(&registry)?,
            model: ModelGauges::new(&registry)?,
            worker: WorkerGauges::new(&registry)?,
            last: Last::new(&registry)?,
            per_model: PerModel::new(&registry)?,
            handles: RwLock::default(),
            registry,
        })
    }

    /// Every kind of request there was so far.
    pub(crate) fn kinds(&self) -> Vec<Arc<RequestMetrics>> {
        read(&self.handles).values().cloned().collect()
    }

    /// The resolved label sets of one kind of request. `model` is a served name: never free text of a client.
    pub(crate) fn handles(
        &self,
        model: &Arc<str>,
        endpoint: &'static str,
        stream: bool,
    ) -> Arc<RequestMetrics> {
        let key = (Arc::clone(model), endpoint, stream);
        if let Some(found) = read(&self.handles).get(&key) {
            return Arc::clone(found);
        }
        Arc::clone(
            write(&self.handles)
                .entry(key)
                .or_insert_with(|| Arc::new(self.resolve(model, endpoint, stream))),
        )
    }
}

impl PerModel {
    fn new(registry: &Registry) -> Result<Self, Error> {
        let request = &[label::MODEL, label::ROUTE, label::REQUEST_TYPE];
        let model = &[label::MODEL];
        let histograms = |name, help, buckets| registry.histograms(name, help, model, buckets);
        let families = Self {
            started: registry.counters(
                frontend::REQUESTS_STARTED_TOTAL,
                "Requests whose model was found.",
                request,
            )?,
            active: registry.gauges(frontend::ACTIVE_REQUESTS, "Requests being served.", model)?,
            in_flight: registry.gauges(frontend::INFLIGHT_REQUESTS, "The same, as it was called.", model)?,
            queued: registry.gauges(frontend::QUEUED_REQUESTS, "Of those, without a token yet.", model)?,
            embedding: histograms(
                frontend::EMBEDDING_LATENCY_SECONDS,
                "From head to end of requests for embeddings.",
                Buckets::EMBEDDING_LATENCY,
            )?,
            cancellations: registry.counters(
                frontend::MODEL_CANCELLATION_TOTAL,
                "Requests cancelled.",
                request,
            )?,
            rejections: registry.counters(
                frontend::MODEL_REJECTION_TOTAL,
                "Requests refused because everything was full.",
                &[label::MODEL, label::ROUTE],
            )?,
            migrations: registry.counters(
                MODEL_MIGRATION_TOTAL,
                "Requests sent to another worker.",
                &[label::MODEL, MIGRATION_TYPE],
            )?,
            migration_duration: registry.histograms(
                MODEL_MIGRATION_DURATION_SECONDS,
                "From a worker's fault to the next worker's first word, or to the end of trying.",
                &[label::MODEL, OUTCOME],
                Buckets::TTFT,
            )?,
            migration_too_long: registry.counters(
                MODEL_MIGRATION_MAX_SEQ_LEN_EXCEEDED_TOTAL,
                "Answers too long to be sent to another worker.",
                model,
            )?,
            output_tokens: registry.counters(frontend::OUTPUT_TOKENS_TOTAL, "Answer tokens.", model)?,
            answered_prompt_tokens: registry.counters(
                ANSWERED_PROMPT_TOKENS_TOTAL,
                "Prompt tokens of answered requests; the cache hit rate is the sum of cached tokens over it.",
                model,
            )?,
            duration: histograms(
                frontend::REQUEST_DURATION_SECONDS,
                "From head to end.",
                Buckets::REQUEST_DURATION,
            )?,
            time_to_first_token: histograms(
                frontend::TIME_TO_FIRST_TOKEN_SECONDS,
                "From head to first token.",
                Buckets::TTFT,
            )?,
            inter_token_latency: histograms(
                frontend::INTER_TOKEN_LATENCY_SECONDS,
                "Mean gap between the tokens of one delta.",
                Buckets::ITL,
            )?,
            input_tokens: histograms(
                frontend::INPUT_SEQUENCE_TOKENS,
                "Prompt length.",
                Buckets::INPUT_SEQUENCE,
            )?,
            output_sequence: histograms(
                frontend::OUTPUT_SEQUENCE_TOKENS,
                "Answer length, all choices.",
                Buckets::OUTPUT_SEQUENCE,
            )?,
            cached_tokens: histograms(
                frontend::CACHED_TOKENS,
                "Prompt tokens found in a cache.",
                Buckets::INPUT_SEQUENCE,
            )?,
        };
        // A frontend's router sees what the frontend sees.
        let seen = "The same, seen from the router.";
        for (family, name) in [
            (&families.time_to_first_token, router::TIME_TO_FIRST_TOKEN_SECONDS),
            (&families.inter_token_latency, router::INTER_TOKEN_LATENCY_SECONDS),
            (&families.output_sequence, router::OUTPUT_SEQUENCE_TOKENS),
        ] {
            registry.alias(family, name, seen)?;
        }
        Ok(families)
    }

    fn migrations(&self, model: &str) -> Migrations {
        let duration = |outcome| self.migration_duration.with_label_values(&[model, outcome]);
        Migrations {
            new: self.migrations.with_label_values(&[model, NEW_REQUEST]),
            ongoing: self.migrations.with_label_values(&[model, ONGOING_REQUEST]),
            succeeded: duration("success"),
            failed: duration("failure"),
            cancelled: duration("cancelled"),
            too_long: self.migration_too_long.with_label_values(&[model]),
        }
    }
}

impl Metrics {
    fn resolve(&self, model: &Arc<str>, endpoint: &'static str, stream: bool) -> RequestMetrics {
        let Self { per_model: families, requests, routing, .. } = self;
        let name: &str = model;
        let request = [name, endpoint, request_type(stream)];
        let one = [name];
        RequestMetrics {
            model: Arc::clone(model),
            endpoint,
            stream,
            open: AtomicI64::new(0),
            started: families.started.with_label_values(&request),
            succeeded: requests.with_label_values(&[name, endpoint, request_type(stream), "success", ""]),
            active: families.active.with_label_values(&one),
            in_flight: families.in_flight.with_label_values(&one),
            queued: families.queued.with_label_values(&one),
            embedding: (endpoint == EMBEDDINGS).then(|| families.embedding.with_label_values(&one)),
            cancellations: families.cancellations.with_label_values(&request),
            rejections: families.rejections.with_label_values(&[name, endpoint]),
            migrations: families.migrations(name),
            routing: routing.of(name),
            output_tokens: families.output_tokens.with_label_values(&one),
            answered_prompt_tokens: families.answered_prompt_tokens.with_label_values(&one),
            duration: families.duration.with_label_values(&one),
            time_to_first_token: families.time_to_first_token.with_label_values(&one),
            inter_token_latency: families.inter_token_latency.with_label_values(&one),
            input_tokens: families.input_tokens.with_label_values(&one),
            output_sequence: families.output_sequence.with_label_values(&one),
            cached_tokens: families.cached_tokens.with_label_values(&one),
        }
    }
}

impl Repeats {
    fn new(registry: &Registry) -> Result<Self, Error> {
        Ok(Self {
            hits: registry.counter(
                frontend::TOKENIZER_CACHE_HITS_TOTAL,
                "Pieces of prompts whose tokens were remembered.",
            )?,
            misses: registry.counter(
                frontend::TOKENIZER_CACHE_MISSES_TOTAL,
                "Pieces of prompts, long enough to be remembered, whose tokens were not.",
            )?,
            cached_tokens: registry
                .counter(frontend::TOKENIZER_CACHE_CACHED_TOKENS_TOTAL, "Tokens of the remembered pieces.")?,
            uncached_tokens: registry
                .counter(frontend::TOKENIZER_CACHE_UNCACHED_TOKENS_TOTAL, "Tokens of the others.")?,
        })
    }
}

impl ModelGauges {
    fn new(registry: &Registry) -> Result<Self, Error> {
        let gauges = |name, help| registry.gauges(name, help, &[label::MODEL]);
        Ok(Self {
            ready: gauges(frontend::MODEL_READY, "1 while a worker can be chosen.")?,
            total_kv_blocks: gauges(frontend::MODEL_TOTAL_KV_BLOCKS, "KV blocks per worker.")?,
            max_num_seqs: gauges(frontend::MODEL_MAX_NUM_SEQS, "Sequences a worker runs at once.")?,
            max_num_batched_tokens: gauges(
                frontend::MODEL_MAX_NUM_BATCHED_TOKENS,
                "Tokens in one engine step.",
            )?,
            context_length: gauges(frontend::MODEL_CONTEXT_LENGTH, "Prompt plus answer, in tokens.")?,
            kv_cache_block_size: gauges(frontend::MODEL_KV_CACHE_BLOCK_SIZE, "Tokens per block.")?,
            migration_limit: gauges(
                frontend::MODEL_MIGRATION_LIMIT,
                "How often an answer may move to another worker.",
            )?,
            index_nodes: gauges(router::INDEX_NODES, "Nodes of the prefix index.")?,
            index_bytes: gauges(router::INDEX_BYTES, "Memory of the prefix index.")?,
        })
    }

    pub(crate) fn reset(&self) {
        for gauge in [
            &self.ready,
            &self.total_kv_blocks,
            &self.max_num_seqs,
            &self.max_num_batched_tokens,
            &self.context_length,
            &self.kv_cache_block_size,
            &self.migration_limit,
            &self.index_nodes,
            &self.index_bytes,
        ] {
            gauge.reset();
        }
    }
}

impl WorkerGauges {
    fn new(registry: &Registry) -> Result<Self, Error> {
        let labels = &[label::WORKER_ID, label::DP_RANK, "worker_type"];
        let gauges = |name, help| registry.float_gauges(name, help, labels);
        Ok(Self {
            active_decode_blocks: gauges(
                frontend::WORKER_ACTIVE_DECODE_BLOCKS,
                "Blocks booked by running requests.",
            )?,
            active_prefill_tokens: gauges(
                frontend::WORKER_ACTIVE_PREFILL_TOKENS,
                "Prompt tokens sent and not computed.",
            )?,
            active_requests: gauges(WORKER_ACTIVE_REQUESTS, "Requests booked.")?,
            peer_requests: gauges(WORKER_PEER_REQUESTS, "Those of them that other frontends placed.")?,
            registered: gauges(router::WORKER_REGISTERED, "1 for each rank the router may choose.")?,
        })
    }

    pub(crate) fn reset(&self) {
        for gauge in [
            &self.active_decode_blocks,
            &self.active_prefill_tokens,
            &self.active_requests,
            &self.peer_requests,
            &self.registered,
        ] {
            gauge.reset();
        }
    }
}
