//! Metric families of the selection service (behaviour.md 11.2), besides those of the router in it.

use super::prompt::Prompt;
use dynamo_router::Selection;
use dynamo_runtime::metrics::names::{label, router};
use dynamo_runtime::metrics::{Buckets, Error, HistogramVec, IntCounter, IntCounterVec, IntGauge, Registry};
use std::time::Duration;

/// Ours.
const CALLS_TOTAL: &str = "dynamo_component_router_calls_total";
/// Ours.
const CALL_SECONDS: &str = "dynamo_component_router_call_duration_seconds";
/// Ours.
const RESERVATIONS: &str = "dynamo_component_router_reservations";
/// Ours.
const RESERVATIONS_EXPIRED_TOTAL: &str = "dynamo_component_router_reservations_expired_total";

/// Microseconds to a second: a call is a walk through the index at most.
const CALL: Buckets = Buckets::new(0.000_01, 1.0, 16);

pub(crate) struct Metrics {
    calls: IntCounterVec,
    durations: HistogramVec,
    pub(super) reservations: IntGauge,
    pub(super) expired: IntCounter,
    input_tokens: HistogramVec,
    selected_cached: IntCounterVec,
    best_cached: IntCounterVec,
    not_best: IntCounterVec,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, Error> {
        let model = &[label::MODEL];
        Ok(Self {
            calls: registry.counters(
                CALLS_TOTAL,
                "Calls of the selection service.",
                &[label::ROUTE, label::STATUS],
            )?,
            durations: registry.histograms(
                CALL_SECONDS,
                "From head to answer of a call of the selection service.",
                &[label::ROUTE],
                CALL,
            )?,
            reservations: registry.gauge(RESERVATIONS, "Reservations that were not given back.")?,
            expired: registry.counter(
                RESERVATIONS_EXPIRED_TOTAL,
                "Reservations that nobody mentioned until they expired.",
            )?,
            input_tokens: registry.histograms(
                router::INPUT_SEQUENCE_TOKENS,
                "Prompt length of selections.",
                model,
                Buckets::INPUT_SEQUENCE,
            )?,
            selected_cached: registry.counters(
                router::KV_SELECTED_CACHED_PREFIX_TOKENS_TOTAL,
                "Prompt tokens cached where selections went.",
                model,
            )?,
            best_cached: registry.counters(
                router::KV_BEST_ELIGIBLE_CACHED_PREFIX_TOKENS_TOTAL,
                "The same had each gone where most was cached.",
                model,
            )?,
            not_best: registry.counters(
                router::NON_MAX_OVERLAP_SELECTIONS_TOTAL,
                "Selections that went where less was cached than elsewhere.",
                model,
            )?,
        })
    }

    /// One call has been answered.
    pub(super) fn count(&self, route: &str, status: u16, took: Duration) {
        self.calls.with_label_values(&[route, &status.to_string()]).inc();
        self.durations.with_label_values(&[route]).observe(took.as_secs_f64());
    }

    /// One selection has been made.
    pub(super) fn selected(&self, model: &str, prompt: &Prompt, selection: &Selection) {
        let labels = &[model];
        let rows = selection.explain.as_deref().unwrap_or_default();
        let best = rows.iter().map(|row| row.device_blocks).max().unwrap_or(0);
        let chosen = selection.overlap_blocks;
        self.input_tokens.with_label_values(labels).observe(f64::from(prompt.length));
        self.selected_cached.with_label_values(labels).inc_by(prompt.tokens(chosen));
        self.best_cached.with_label_values(labels).inc_by(prompt.tokens(best));
        self.not_best.with_label_values(labels).inc_by(u64::from(best > chosen));
    }
}
