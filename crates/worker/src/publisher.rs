//! From an engine's steps to the event plane.

use crate::canary::Pulse;
use crate::metrics::Series;
use dynamo_runtime::events::{EventPlane, zmq};
use dynamo_runtime::plane::InProcess;
use dynamo_runtime::sync::lock;
use dynamo_types::{KvEventBatch, StepObserver, StepReport, WorkerRank};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// Numbers and publishes what the steps of one rank change. Dropping it retires the source.
pub(crate) struct Publisher {
    plane: InProcess,
    events: Arc<dyn EventPlane>,
    source: WorkerRank,
    epoch: u64,
    /// For routers of others.
    zmq: Option<Arc<zmq::Publisher>>,
    /// Of the next batch. Held while publishing, so that batches go out in their order.
    sequence: Mutex<u64>,
    /// Known once the engine has said which model it serves.
    series: OnceLock<Arc<Series>>,
    pulse: Arc<Pulse>,
}

impl Publisher {
    pub(crate) fn new(
        plane: InProcess,
        events: Arc<dyn EventPlane>,
        source: WorkerRank,
        epoch: u64,
        pulse: Arc<Pulse>,
    ) -> Self {
        let (sequence, series) = (Mutex::new(0), OnceLock::new());
        Self { plane, events, source, epoch, zmq: None, sequence, series, pulse }
    }

    /// Says the same over ZMQ.
    pub(crate) fn and_over(mut self, zmq: Option<Arc<zmq::Publisher>>) -> Self {
        self.zmq = zmq;
        self
    }

    /// Counts into `series` from now on.
    pub(crate) fn count_into(&self, series: &Arc<Series>) {
        self.series.get_or_init(|| Arc::clone(series));
    }
}

impl StepObserver for Publisher {
    fn on_step(&self, report: StepReport) {
        // First of all: clients wait for these tokens.
        self.plane.flush(self.source.worker);
        if report.prefill_tokens > 0 || report.decode_tokens > 0 {
            self.pulse.worked();
        }
        if let Some(series) = self.series.get() {
            series.set_load(&report.load);
        }
        if !report.events.is_empty() {
            let mut sequence = lock(&self.sequence);
            if let Some(zmq) = &self.zmq {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                zmq.publish(&report.events, &report.stored_tokens, now.as_secs_f64());
            }
            self.events.publish_kv(KvEventBatch {
                source: self.source,
                epoch: self.epoch,
                sequence: *sequence,
                events: report.events,
            });
            *sequence += 1;
        }
        self.events.publish_load(self.source, report.load);
    }

    fn wants_tokens(&self) -> bool {
        self.zmq.is_some()
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.events.retire(self.source);
    }
}
