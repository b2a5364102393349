//! From an engine's steps to the event plane.

use crate::canary::Pulse;
use crate::metrics::Series;
use dynamo_runtime::events::EventPlane;
use dynamo_runtime::plane::InProcess;
use dynamo_runtime::sync::lock;
use dynamo_types::{KvEventBatch, StepObserver, StepReport, WorkerRank};
use std::sync::{Arc, Mutex, OnceLock};

/// Numbers and publishes what the steps of one rank change. Dropping it retires the source.
pub(crate) struct Publisher {
    plane: InProcess,
    events: Arc<dyn EventPlane>,
    source: WorkerRank,
    epoch: u64,
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
        Self { plane, events, source, epoch, sequence: Mutex::new(0), series: OnceLock::new(), pulse }
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
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.events.retire(self.source);
    }
}
