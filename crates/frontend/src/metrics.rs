//! The frontend's metric families (behaviour.md 11.2).
//!
//! Label sets are resolved once per model, route and kind of answer ([`RequestMetrics`]); what happens per token is a
//! counter and at most one histogram.

use dynamo_runtime::metrics::names::{frontend, label, router};
use dynamo_runtime::metrics::{
    Buckets, Error, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Registry,
};
use dynamo_runtime::sync::{read, write};
use rustc_hash::FxHashMap;
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
/// Ours.
const OPEN_CONNECTIONS: &str = "dynamo_frontend_open_connections";
/// Ours.
const UNAUTHORIZED_TOTAL: &str = "dynamo_frontend_unauthorized_total";
/// Ours.
const ANSWERED_PROMPT_TOKENS_TOTAL: &str = "dynamo_frontend_answered_prompt_tokens_total";
/// Ours.
const WORKER_ACTIVE_REQUESTS: &str = "dynamo_frontend_worker_active_requests";
const WORKER_PEER_REQUESTS: &str = "dynamo_frontend_worker_peer_requests";

/// Microseconds to seconds, for steps of the pipeline.
const STEP: Buckets = Buckets::new(0.000_01, 10.0, 20);
/// The same in milliseconds.
const STEP_MS: Buckets = Buckets::new(0.001, 1000.0, 20);
/// From a hundredth to all, after the 0.
const SHARE: Buckets = Buckets::new(0.01, 1.0, 20);

/// All families of one frontend.
pub(crate) struct Metrics {
    pub(crate) registry: Registry,
    pub(crate) requests: IntCounterVec,
    pub(crate) disconnected_clients: IntCounter,
    pub(crate) unauthorized: IntCounter,
    pub(crate) tokenize: Histogram,
    pub(crate) template: Histogram,
    pub(crate) connections: IntGauge,
    pub(crate) kv_hit_rate: Histogram,
    pub(crate) kv_events: IntCounterVec,
    pub(crate) hashing_ms: Histogram,
    pub(crate) scheduling_ms: Histogram,
    pub(crate) model: ModelGauges,
    pub(crate) worker: WorkerGauges,
    per_model: PerModel,
    handles: RwLock<FxHashMap<HandleKey, Arc<RequestMetrics>>>,
}

/// Model, route, streamed.
type HandleKey = (Arc<str>, &'static str, bool);

/// Families from which [`RequestMetrics`] are resolved.
struct PerModel {
    started: IntCounterVec,
    active: IntGaugeVec,
    cancellations: IntCounterVec,
    rejections: IntCounterVec,
    migrations: IntCounterVec,
    migration_duration: HistogramVec,
    migration_too_long: IntCounterVec,
    placements: IntCounterVec,
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
    pub(crate) index_nodes: IntGaugeVec,
    pub(crate) index_bytes: IntGaugeVec,
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
    pub(crate) cancellations: IntCounter,
    pub(crate) rejections: IntCounter,
    pub(crate) migrations: Migrations,
    pub(crate) placements: IntCounter,
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
            tokenize: registry.histogram(
                frontend::TOKENIZE_SECONDS,
                "Tokenising a request's prompts.",
                STEP,
            )?,
            template: registry.histogram(frontend::TEMPLATE_SECONDS, "Rendering a chat template.", STEP)?,
            connections: registry.gauge(OPEN_CONNECTIONS, "Client connections.")?,
            kv_hit_rate: registry.histogram(
                router::KV_HIT_RATE,
                "Share of the prompt's blocks that the chosen worker is known to hold.",
                SHARE,
            )?,
            kv_events: registry.counters(
                router::KV_CACHE_EVENTS_APPLIED,
                "KV events applied to the prefix index, by outcome.",
                &["status", "event_type"],
            )?,
            hashing_ms: registry.histogram(
                router::OVERHEAD_BLOCK_HASHING_MS,
                "Hashing a prompt's blocks.",
                STEP_MS,
            )?,
            scheduling_ms: registry.histogram(
                router::OVERHEAD_SCHEDULING_MS,
                "Choosing a worker, the walk through the prefix index included.",
                STEP_MS,
            )?,
            model: ModelGauges::new(&registry)?,
            worker: WorkerGauges::new(&registry)?,
            per_model: PerModel::new(&registry)?,
            handles: RwLock::default(),
            registry,
        })
    }

    /// Placements of one model.
    pub(crate) fn placements(&self, model: &str) -> IntCounter {
        self.per_model.placements.with_label_values(&[model])
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
                .or_insert_with(|| Arc::new(self.per_model.resolve(model, endpoint, stream, &self.requests))),
        )
    }
}

impl PerModel {
    fn new(registry: &Registry) -> Result<Self, Error> {
        let request = &[label::MODEL, label::ROUTE, label::REQUEST_TYPE];
        let model = &[label::MODEL];
        let histograms = |name, help, buckets| registry.histograms(name, help, model, buckets);
        Ok(Self {
            started: registry.counters(
                frontend::REQUESTS_STARTED_TOTAL,
                "Requests whose model was found.",
                request,
            )?,
            active: registry.gauges(frontend::ACTIVE_REQUESTS, "Requests being served.", model)?,
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
            placements: registry.counters(router::REQUESTS_TOTAL, "Placements made by the router.", model)?,
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
        })
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

    fn resolve(
        &self,
        model: &Arc<str>,
        endpoint: &'static str,
        stream: bool,
        requests: &IntCounterVec,
    ) -> RequestMetrics {
        let name: &str = model;
        let request = [name, endpoint, request_type(stream)];
        let one = [name];
        RequestMetrics {
            model: Arc::clone(model),
            endpoint,
            stream,
            open: AtomicI64::new(0),
            started: self.started.with_label_values(&request),
            succeeded: requests.with_label_values(&[name, endpoint, request_type(stream), "success", ""]),
            active: self.active.with_label_values(&one),
            cancellations: self.cancellations.with_label_values(&request),
            rejections: self.rejections.with_label_values(&[name, endpoint]),
            migrations: self.migrations(name),
            placements: self.placements.with_label_values(&one),
            output_tokens: self.output_tokens.with_label_values(&one),
            answered_prompt_tokens: self.answered_prompt_tokens.with_label_values(&one),
            duration: self.duration.with_label_values(&one),
            time_to_first_token: self.time_to_first_token.with_label_values(&one),
            inter_token_latency: self.inter_token_latency.with_label_values(&one),
            input_tokens: self.input_tokens.with_label_values(&one),
            output_sequence: self.output_sequence.with_label_values(&one),
            cached_tokens: self.cached_tokens.with_label_values(&one),
        }
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
