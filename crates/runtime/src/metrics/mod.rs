//! Metrics: one registry per process, families with checked names, guards for what goes up and down.

mod alias;
mod buckets;
pub mod executor;
pub mod names;

pub use buckets::{Buckets, powers, shares};
pub use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
};

use crate::sync::lock;
use prometheus::core::Collector;
use prometheus::{HistogramOpts, Opts, TextEncoder};
use std::sync::{Arc, Mutex};

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

/// What is said about one family, for the generated reference.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Family {
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    pub labels: Vec<String>,
    pub help: String,
}

/// The families of one process. Clones are the same registry.
#[derive(Clone, Default)]
pub struct Registry {
    series: prometheus::Registry,
    /// Prometheus tells of a family only once it has a series. One entry per declared family.
    families: Arc<Mutex<Vec<Family>>>,
    /// Edges that stand in the place of their kind's.
    edges: Arc<[Buckets]>,
}

impl Registry {
    pub fn new() -> Self {
        Self::default()
    }

    /// With the edges that the variables `DYN_METRICS_*` ask for, and what is wrong with them.
    pub fn configured(env: &dyn Fn(&str) -> Option<String>) -> (Self, Vec<String>) {
        let mut wrong = Vec::new();
        let edges = Buckets::KINDS.map(|kind| {
            kind.configured(env).unwrap_or_else(|(kept, reason)| {
                wrong.push(reason);
                kept
            })
        });
        (Self { edges: Arc::new(edges), ..Self::default() }, wrong)
    }

    /// Registers any family of gauges.
    pub fn keep<C: Collector + Clone + 'static>(&self, family: C) -> Result<C, Error> {
        self.declare(family, "gauge")
    }

    fn declare<C: Collector + Clone + 'static>(&self, family: C, kind: &'static str) -> Result<C, Error> {
        self.series.register(Box::new(family.clone()))?;
        let declared = family.desc().into_iter().map(|desc| Family {
            name: desc.fq_name.clone(),
            kind,
            labels: desc.variable_labels.clone(),
            help: desc.help.clone(),
        });
        lock(&self.families).extend(declared);
        Ok(family)
    }

    /// All families declared so far, by name.
    pub fn families(&self) -> Vec<Family> {
        let mut families = lock(&self.families).clone();
        families.sort();
        families
    }

    pub fn counter(&self, name: &str, help: &str) -> Result<IntCounter, Error> {
        self.declare(IntCounter::new(name, help)?, "counter")
    }

    pub fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, Error> {
        self.declare(IntCounterVec::new(Opts::new(name, help), labels)?, "counter")
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

    fn edges(&self, buckets: Buckets) -> Vec<f64> {
        self.edges.iter().find(|edges| edges.is_like(&buckets)).unwrap_or(&buckets).edges()
    }

    pub fn histogram(&self, name: &str, help: &str, buckets: Buckets) -> Result<Histogram, Error> {
        self.histogram_at(name, help, self.edges(buckets))
    }

    /// With edges that are no logarithms.
    pub fn histogram_at(&self, name: &str, help: &str, edges: Vec<f64>) -> Result<Histogram, Error> {
        let options = HistogramOpts::new(name, help).buckets(edges);
        self.declare(Histogram::with_opts(options)?, "histogram")
    }

    /// The same for a family with labels.
    pub fn histograms_at(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        edges: Vec<f64>,
    ) -> Result<HistogramVec, Error> {
        let options = HistogramOpts::new(name, help).buckets(edges);
        self.declare(HistogramVec::new(options, labels)?, "histogram")
    }

    pub fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: Buckets,
    ) -> Result<HistogramVec, Error> {
        self.histograms_at(name, help, labels, self.edges(buckets))
    }

    /// Shows a family of histograms under a second name, too.
    pub fn alias(&self, family: &HistogramVec, name: &str, help: &str) -> Result<(), Error> {
        self.view(alias::Alias::new(family, name, help)?, "histogram")
    }

    /// Registers a family that is read from elsewhere when it is asked for.
    pub fn view<C: Collector + Clone + 'static>(&self, family: C, kind: &'static str) -> Result<(), Error> {
        self.declare(family, kind).map(|_| ())
    }

    /// All families in the text format that scrapers read.
    pub fn text(&self) -> Result<String, Error> {
        Ok(TextEncoder::new().encode_to_string(&self.series.gather())?)
    }

    /// Series there are now, for ledgers.
    pub fn series_count(&self) -> usize {
        self.series.gather().iter().map(|family| family.get_metric().len()).sum()
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
    fn edges_follow_the_environment() {
        let env = |name: &str| match name {
            "DYN_METRICS_TTFT_MAX" => Some("1".to_owned()),
            "DYN_METRICS_TTFT_COUNT" => Some("3".to_owned()),
            "DYN_METRICS_ITL_COUNT" => Some("none".to_owned()),
            _ => None,
        };
        let (registry, wrong) = Registry::configured(&env);
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        assert_eq!(registry.edges(Buckets::TTFT), [0.0, 0.001, 1.0]);
        assert_eq!(registry.edges(Buckets::ITL), Buckets::ITL.edges());
        assert_eq!(registry.edges(Buckets::new(0.001, 480.0, 18)).len(), 18, "no kind, no variable");
    }

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
        let waits = registry.histograms("waits", "Seconds.", &["model"], Buckets::ITL).unwrap();
        registry.alias(&waits, "pauses", "The same.").unwrap();
        waits.with_label_values(&["m"]).observe(1.0);
        let text = registry.text().unwrap();
        assert!(
            ["waits", "pauses"].iter().all(|name| text.contains(&format!("{name}_count{{model=\"m\"}} 1")))
        );
        drop(unit);
        assert_eq!(active.get(), 0);
        assert!(registry.gauge(names::frontend::ACTIVE_REQUESTS, "again").is_err());
    }
}
