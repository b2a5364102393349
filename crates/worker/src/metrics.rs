//! What a worker counts (behaviour.md 11.2, families `dynamo_component_*`).

use crate::admission::Admitted;
use crate::canary::Pulse;
use crate::traced::Traced;
use dynamo_runtime::metrics::names::{component, label};
use dynamo_runtime::metrics::{self, GaugeVec, HistogramVec, IntCounterVec, IntGaugeVec, Registry};
use dynamo_runtime::sync::lock;
use dynamo_types::{Class, Delta, DeltaSink, Error, Instance, Load, Request};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, Histogram, IntCounter, IntGauge};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

const LABELS: [&str; 5] =
    [label::NAMESPACE, label::COMPONENT, label::ENDPOINT, label::WORKER_ID, label::MODEL];
const ERROR_LABELS: [&str; 6] =
    [label::NAMESPACE, label::COMPONENT, label::ENDPOINT, label::WORKER_ID, label::MODEL, label::ERROR_TYPE];

/// The families of all workers of a process. Clones are the same families.
#[derive(Clone)]
pub struct Metrics(Arc<Families>);

struct Families {
    requests: IntCounterVec,
    in_flight: IntGaugeVec,
    duration: HistogramVec,
    errors: IntCounterVec,
    cancellations: IntCounterVec,
    rejections: IntCounterVec,
    engine_requests: IntGaugeVec,
    queued_requests: IntGaugeVec,
    health_checks: IntCounterVec,
    health_checks_failed: IntCounterVec,
    load_time: GaugeVec,
    drain_time: GaugeVec,
    total_blocks: IntGaugeVec,
    cache_usage: GaugeVec,
    hit_rate: GaugeVec,
    uptime: Uptime,
    first_response: Histogram,
}

/// Seconds that a request may take.
const DURATIONS: [f64; 17] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0];

/// Seconds to the first word.
const FIRST_WORDS: [f64; 14] =
    [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

impl Metrics {
    pub fn new(registry: &Registry) -> Result<Self, metrics::Error> {
        let gauges = |name, help| registry.float_gauges(name, help, &LABELS);
        let uptime = GaugeVec::new(
            prometheus::Opts::new(component::UPTIME_SECONDS, "Seconds since the worker started"),
            &LABELS,
        )?;
        Ok(Self(Arc::new(Families {
            requests: registry.counters(component::REQUESTS_TOTAL, "Requests that came in", &LABELS)?,
            in_flight: registry.gauges(
                component::INFLIGHT_REQUESTS,
                "Requests the engine has not let go of",
                &LABELS,
            )?,
            duration: registry.histograms_at(
                component::REQUEST_DURATION_SECONDS,
                "From taking a request to letting go of it",
                &LABELS,
                DURATIONS.to_vec(),
            )?,
            first_response: registry.histogram_at(
                component::TIME_TO_FIRST_RESPONSE_SECONDS,
                "From taking a request to the engine's first word about it",
                FIRST_WORDS.to_vec(),
            )?,
            errors: registry.counters(
                component::ERRORS_TOTAL,
                "Requests refused or ended with a fault",
                &ERROR_LABELS,
            )?,
            cancellations: registry.counters(
                component::CANCELLATION_TOTAL,
                "Requests whose reader left before the end",
                &LABELS,
            )?,
            rejections: registry.counters(
                component::REJECTION_REQUEST_TOTAL,
                "Requests refused because the worker's limits were reached",
                &LABELS,
            )?,
            engine_requests: registry.gauges(
                component::ENGINE_REQUEST,
                "Requests within the engine's limit",
                &LABELS,
            )?,
            queued_requests: registry.gauges(
                component::REQUEST_QUEUE,
                "Requests above the engine's limit, which wait",
                &LABELS,
            )?,
            health_checks: registry.counters(
                component::HEALTH_CHECKS_TOTAL,
                "Requests of the worker to its own idle engine",
                &LABELS,
            )?,
            health_checks_failed: registry.counters(
                component::HEALTH_CHECKS_FAILED_TOTAL,
                "Times the engine failed them, and the worker was marked as not ready",
                &LABELS,
            )?,
            load_time: gauges(component::MODEL_LOAD_TIME_SECONDS, "Seconds it took to load the model")?,
            drain_time: gauges(component::DRAIN_TIME_SECONDS, "Seconds the drain took")?,
            total_blocks: registry.gauges(component::TOTAL_BLOCKS, "KV blocks of the engine", &LABELS)?,
            cache_usage: gauges(
                component::GPU_CACHE_USAGE_PERCENT,
                "Share of the KV blocks that running requests hold, 0 to 1",
            )?,
            hit_rate: gauges(
                component::KV_CACHE_HIT_RATE,
                "Share of all prompt tokens that needed no prefill, 0 to 1",
            )?,
            uptime: registry.keep(Uptime { gauges: uptime, started: Arc::default() })?,
        })))
    }

    /// The series of one worker, for as long as they are held.
    pub(crate) fn series(&self, instance: &Instance, model: &str) -> Arc<Series> {
        let labels = [
            instance.namespace.clone(),
            instance.component.clone(),
            instance.endpoint.clone(),
            instance.id.to_string(),
            model.to_owned(),
        ];
        let families = Arc::clone(&self.0);
        lock(&families.uptime.started).insert(labels.clone(), Instant::now());
        Arc::new(Series {
            requests: families.requests.with_label_values(&labels),
            in_flight: families.in_flight.with_label_values(&labels),
            duration: families.duration.with_label_values(&labels),
            cancellations: families.cancellations.with_label_values(&labels),
            rejections: families.rejections.with_label_values(&labels),
            engine_requests: families.engine_requests.with_label_values(&labels),
            queued_requests: families.queued_requests.with_label_values(&labels),
            health_checks: families.health_checks.with_label_values(&labels),
            health_checks_failed: families.health_checks_failed.with_label_values(&labels),
            load_time: families.load_time.with_label_values(&labels),
            drain_time: families.drain_time.with_label_values(&labels),
            total_blocks: families.total_blocks.with_label_values(&labels),
            cache_usage: families.cache_usage.with_label_values(&labels),
            hit_rate: families.hit_rate.with_label_values(&labels),
            prompt_tokens: AtomicU64::new(0),
            cached_tokens: AtomicU64::new(0),
            error_types: Mutex::default(),
            families,
            labels,
        })
    }
}

/// One worker's series, which leave the registry when this is dropped.
pub(crate) struct Series {
    families: Arc<Families>,
    labels: [String; 5],
    pub(crate) requests: IntCounter,
    in_flight: IntGauge,
    duration: Histogram,
    cancellations: IntCounter,
    pub(crate) rejections: IntCounter,
    pub(crate) engine_requests: IntGauge,
    pub(crate) queued_requests: IntGauge,
    pub(crate) health_checks: IntCounter,
    pub(crate) health_checks_failed: IntCounter,
    pub(crate) load_time: Gauge,
    pub(crate) drain_time: Gauge,
    total_blocks: IntGauge,
    cache_usage: Gauge,
    hit_rate: Gauge,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    /// Values of `error_type` in use, to be removed with the rest.
    error_types: Mutex<BTreeMap<&'static str, IntCounter>>,
}

impl Series {
    pub(crate) fn set_load(&self, load: &Load) {
        self.total_blocks.set(load.total_blocks.into());
        self.cache_usage.set(f64::from(load.active_blocks) / f64::from(load.total_blocks.max(1)));
    }

    /// Counts a request that did not end with an answer.
    pub(crate) fn count_end(&self, error: &Error) {
        if error.class() == Class::Cancelled {
            self.cancellations.inc();
            return;
        }
        let kind = error.metric_label();
        let mut kinds = lock(&self.error_types);
        let counter = kinds.entry(kind).or_insert_with(|| {
            let labels: Vec<&str> = self.labels.iter().map(String::as_str).chain([kind]).collect();
            self.families.errors.with_label_values(&labels)
        });
        counter.inc();
    }

    fn count_prompt(&self, prompt: u64, cached: u64) {
        let prompt = self.prompt_tokens.fetch_add(prompt, Ordering::Relaxed) + prompt;
        let cached = self.cached_tokens.fetch_add(cached, Ordering::Relaxed) + cached;
        self.hit_rate.set(cached as f64 / prompt.max(1) as f64);
    }
}

impl Drop for Series {
    fn drop(&mut self) {
        let families = &self.families;
        lock(&families.uptime.started).remove(&self.labels);
        // A series that is missing was never there.
        let _ = families.requests.remove_label_values(&self.labels);
        let _ = families.in_flight.remove_label_values(&self.labels);
        let _ = families.duration.remove_label_values(&self.labels);
        let _ = families.cancellations.remove_label_values(&self.labels);
        for counters in [&families.rejections, &families.health_checks, &families.health_checks_failed] {
            let _ = counters.remove_label_values(&self.labels);
        }
        for gauges in [&families.engine_requests, &families.queued_requests] {
            let _ = gauges.remove_label_values(&self.labels);
        }
        let _ = families.total_blocks.remove_label_values(&self.labels);
        for gauges in [
            &families.load_time,
            &families.drain_time,
            &families.cache_usage,
            &families.hit_rate,
            &families.uptime.gauges,
        ] {
            let _ = gauges.remove_label_values(&self.labels);
        }
        for kind in lock(&self.error_types).keys() {
            let labels: Vec<&str> = self.labels.iter().map(String::as_str).chain([*kind]).collect();
            let _ = families.errors.remove_label_values(&labels);
        }
    }
}

/// Counts one request from the moment it is taken until the engine lets go of its sink.
pub(crate) struct MeteredSink {
    sink: Box<dyn DeltaSink>,
    request: Arc<Request>,
    series: Arc<Series>,
    traced: Traced,
    taken: Instant,
    has_spoken: bool,
    over: bool,
    pulse: Arc<Pulse>,
    /// Room that another request gets when this is dropped. None: it was refused.
    _room: Option<Admitted>,
}

impl MeteredSink {
    pub(crate) fn new(
        sink: Box<dyn DeltaSink>,
        request: Arc<Request>,
        series: Arc<Series>,
        traced: Traced,
        pulse: Arc<Pulse>,
        room: Option<Admitted>,
    ) -> Self {
        series.in_flight.inc();
        let taken = Instant::now();
        Self { sink, request, series, traced, taken, has_spoken: false, over: false, pulse, _room: room }
    }
}

impl DeltaSink for MeteredSink {
    fn push(&mut self, delta: Delta) {
        if let Some(cached) = delta.cached_tokens {
            self.series.count_prompt(self.request.prompt_len() as u64, cached.into());
        }
        if !std::mem::replace(&mut self.has_spoken, true) {
            self.series.families.first_response.observe(self.taken.elapsed().as_secs_f64());
        }
        if delta.finish.is_some() {
            self.over = true;
            self.pulse.answered();
        }
        self.traced.delta(&delta);
        self.sink.push(delta);
    }

    fn fail(&mut self, error: Error) {
        self.over = true;
        self.series.count_end(&error);
        self.traced.fail(&error);
        self.sink.fail(error);
    }

    fn is_cancelled(&self) -> bool {
        self.sink.is_cancelled()
    }
}

impl Drop for MeteredSink {
    fn drop(&mut self) {
        self.series.in_flight.dec();
        let duration = self.taken.elapsed();
        self.series.duration.observe(duration.as_secs_f64());
        if !self.over {
            // The engine let go without a word: because the reader had left, or because it broke off.
            let left = self.sink.is_cancelled();
            let error = if left { Error::cancelled() } else { Error::disconnected("broken off") };
            self.series.count_end(&error);
            self.traced.fail(&error);
        }
        self.traced.end(duration);
    }
}

/// Uptime is known only when it is read.
#[derive(Clone)]
struct Uptime {
    gauges: GaugeVec,
    started: Arc<Mutex<BTreeMap<[String; 5], Instant>>>,
}

impl Collector for Uptime {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for (labels, started) in &*lock(&self.started) {
            self.gauges.with_label_values(labels).set(started.elapsed().as_secs_f64());
        }
        self.gauges.collect()
    }
}
