//! Where requests are on their way to a worker, and how long each part of it took.

use dynamo_runtime::metrics::names::{frontend, label};
use dynamo_runtime::metrics::{Error, Histogram, HistogramVec, IntGauge, IntGaugeVec, Registry, Unit};
use std::time::Instant;

/// Seconds.
const EDGES: [f64; 11] = [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0];

/// The families.
pub(crate) struct Stages {
    /// From the body to tokens.
    pub(crate) preprocess: Stage,
    /// Choosing a worker, and waiting for one to join.
    pub(crate) route: Stage,
    /// From sending a request to the worker's first word.
    pub(crate) dispatch: Stage,
}

pub(crate) struct Stage {
    inside: IntGauge,
    took: Histogram,
}

impl Stages {
    pub(crate) fn new(registry: &Registry) -> Result<Self, Error> {
        let inside = registry.gauges(
            frontend::STAGE_REQUESTS,
            "Requests in each stage on the way to a worker.",
            &[label::STAGE, label::PHASE],
        )?;
        let took = registry.histograms_at(
            frontend::STAGE_DURATION_SECONDS,
            "Time in each stage; `transport_roundtrip` is from sending a request to the worker's first word.",
            &[label::STAGE],
            EDGES.to_vec(),
        )?;
        let stage = |inside: &IntGaugeVec, took: &HistogramVec, [name, phase, timed]: [&str; 3]| Stage {
            inside: inside.with_label_values(&[name, phase]),
            took: took.with_label_values(&[timed]),
        };
        Ok(Self {
            preprocess: stage(&inside, &took, ["preprocess", "", "preprocess"]),
            route: stage(&inside, &took, ["route", "aggregated", "route"]),
            dispatch: stage(&inside, &took, ["dispatch", "aggregated", "transport_roundtrip"]),
        })
    }
}

impl Stage {
    /// A request comes in, and goes with the guard.
    pub(crate) fn enter(&self) -> Staged {
        Staged { took: self.took.clone(), begun: Instant::now(), _unit: Unit::of(&self.inside) }
    }
}

/// A request in a stage.
pub(crate) struct Staged {
    took: Histogram,
    begun: Instant,
    _unit: Unit,
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.took.observe(self.begun.elapsed().as_secs_f64());
    }
}
