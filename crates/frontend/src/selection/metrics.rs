//! Metric families of the selection service (behaviour.md 11.2), besides those of the router in it.

use dynamo_runtime::metrics::names::label;
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
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, Error> {
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
        })
    }

    /// One call has been answered.
    pub(super) fn count(&self, route: &str, status: u16, took: Duration) {
        self.calls.with_label_values(&[route, &status.to_string()]).inc();
        self.durations.with_label_values(&[route]).observe(took.as_secs_f64());
    }
}
