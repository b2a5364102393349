//! Metrics: one registry per process, families with checked names, guards for what goes up and down.

mod buckets;
pub mod names;

pub use buckets::Buckets;
pub use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
};

use prometheus::core::Collector;
use prometheus::{HistogramOpts, Opts, TextEncoder};

/// A family was declared twice, or badly.
#[derive(Debug)]
pub struct Error(prometheus::Error);

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "metrics: {}", self.0)
    }
}

impl std::error::Error for Error {}

impl From<prometheus::Error> for Error {
    fn from(error: prometheus::Error) -> Self {
        Self(error)
    }
}

/// `Content-Type` of [`Registry::text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The families of one process. Clones are the same registry.
#[derive(Clone, Default)]
pub struct Registry(prometheus::Registry);

impl From<prometheus::Registry> for Registry {
    fn from(registry: prometheus::Registry) -> Self {
        Self(registry)
    }
}

impl From<Registry> for prometheus::Registry {
    fn from(registry: Registry) -> Self {
        registry.0
    }
}

impl Registry {
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers any family.
    pub fn keep<C: Collector + Clone + 'static>(&self, family: C) -> Result<C, Error> {
        self.0.register(Box::new(family.clone()))?;
        Ok(family)
    }

    pub fn counter(&self, name: &str, help: &str) -> Result<IntCounter, Error> {
        self.keep(IntCounter::new(name, help)?)
    }

    pub fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, Error> {
        self.keep(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    pub fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, Error> {
        self.keep(IntGauge::new(name, help)?)
    }

    pub fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, Error> {
        self.keep(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    /// Gauges of fractions and seconds.
    pub fn float_gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec, Error> {
        self.keep(GaugeVec::new(Opts::new(name, help), labels)?)
    }

    pub fn histogram(&self, name: &str, help: &str, buckets: Buckets) -> Result<Histogram, Error> {
        self.keep(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.edges()))?)
    }

    pub fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: Buckets,
    ) -> Result<HistogramVec, Error> {
        self.keep(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.edges()), labels)?)
    }

    /// All families in the text format that scrapers read.
    pub fn text(&self) -> Result<String, Error> {
        Ok(TextEncoder::new().encode_to_string(&self.0.gather())?)
    }

    /// Series there are now, for ledgers.
    pub fn series_count(&self) -> usize {
        self.0.gather().iter().map(|family| family.get_metric().len()).sum()
    }
}

/// One unit of a gauge, given back when dropped.
#[derive(Debug)]
pub struct Unit(IntGauge);

impl Unit {
    pub fn of(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_written_and_duplicates_refused() {
        let registry = Registry::new();
        let requests =
            registry.counters(names::frontend::REQUESTS_TOTAL, "Requests.", &[names::label::MODEL]).unwrap();
        requests.with_label_values(&["m"]).inc_by(2);
        let active = registry.gauge(names::frontend::ACTIVE_REQUESTS, "Requests now.").unwrap();
        let unit = Unit::of(&active);
        let durations = registry
            .histogram(names::frontend::REQUEST_DURATION_SECONDS, "Seconds.", Buckets::REQUEST_DURATION)
            .unwrap();
        durations.observe(2.2);
        let text = registry.text().unwrap();
        for line in [
            "dynamo_frontend_requests_total{model=\"m\"} 2",
            "dynamo_frontend_active_requests 1",
            "dynamo_frontend_request_duration_seconds_bucket{le=\"2.2\"} 1",
            "dynamo_frontend_request_duration_seconds_bucket{le=\"1\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} not in\n{text}");
        }
        drop(unit);
        assert_eq!(active.get(), 0);
        assert!(registry.gauge(names::frontend::ACTIVE_REQUESTS, "again").is_err());
    }
}
