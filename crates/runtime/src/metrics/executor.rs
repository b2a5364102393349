//! How the async runtime is doing (behaviour.md 11.2, `dynamo_tokio_*` and the event loop's delay). What tokio tells only
//! when it is built in a special way is not here.

use super::names::{executor, label};
use super::{Error, Histogram, IntCounter, Registry};
use crate::sync::lock;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Opts};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, RuntimeMetrics};

/// How often the event loop is asked how late it is: often enough for a distribution, too seldom to keep an idle process
/// awake.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// A later wake-up counts as a stall, as in the reference system.
const STALL: Duration = Duration::from_millis(5);

/// Seconds; a timer is a millisecond late by its nature.
const DELAYS: [f64; 9] = [0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0];

/// Adds the families of the runtime that `handle` belongs to. They are read when somebody asks for them.
///
/// # Errors
/// A name is taken.
pub fn register(registry: &Registry, handle: &Handle) -> Result<(), Error> {
    let metrics = handle.metrics();
    let gauge = |name, help| IntGauge::new(name, help);
    let workers = &[label::WORKER];
    let families = Arc::new(Families {
        tasks: gauge(executor::ALIVE_TASKS, "Tasks of the runtime that have not ended.")?,
        queued: gauge(executor::GLOBAL_QUEUE_DEPTH, "Tasks that wait for any of its threads.")?,
        parks: IntCounterVec::new(
            Opts::new(executor::WORKER_PARK_COUNT_TOTAL, "How often a thread had nothing to do."),
            workers,
        )?,
        busy: IntGaugeVec::new(
            Opts::new(
                executor::WORKER_BUSY_RATIO,
                "Share of the time since the last reading that a thread was busy, in thousandths.",
            ),
            workers,
        )?,
        before: Mutex::new((Instant::now(), vec![Duration::ZERO; metrics.num_workers()])),
        metrics,
    });
    registry.view(Tasks(Arc::clone(&families)), "gauge")?;
    registry.view(Parks(Arc::clone(&families)), "counter")?;
    registry.view(Busy(families), "gauge")
}

struct Families {
    metrics: RuntimeMetrics,
    tasks: IntGauge,
    queued: IntGauge,
    parks: IntCounterVec,
    busy: IntGaugeVec,
    /// When it was read last, and how long each thread had been busy by then.
    before: Mutex<(Instant, Vec<Duration>)>,
}

#[derive(Clone)]
struct Tasks(Arc<Families>);

impl Collector for Tasks {
    fn desc(&self) -> Vec<&Desc> {
        self.0.tasks.desc().into_iter().chain(self.0.queued.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Families { metrics, tasks, queued, .. } = &*self.0;
        tasks.set(metrics.num_alive_tasks() as i64);
        queued.set(metrics.global_queue_depth() as i64);
        tasks.collect().into_iter().chain(queued.collect()).collect()
    }
}

#[derive(Clone)]
struct Parks(Arc<Families>);

impl Collector for Parks {
    fn desc(&self) -> Vec<&Desc> {
        self.0.parks.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Families { metrics, parks, .. } = &*self.0;
        for worker in 0..metrics.num_workers() {
            let counter = parks.with_label_values(&[worker.to_string()]);
            counter.inc_by(metrics.worker_park_count(worker).saturating_sub(counter.get()));
        }
        parks.collect()
    }
}

#[derive(Clone)]
struct Busy(Arc<Families>);

impl Collector for Busy {
    fn desc(&self) -> Vec<&Desc> {
        self.0.busy.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Families { metrics, busy, before, .. } = &*self.0;
        let mut before = lock(before);
        let passed = before.0.elapsed();
        for (worker, known) in before.1.iter_mut().enumerate() {
            let total = metrics.worker_total_busy_duration(worker);
            let share = total.saturating_sub(*known).as_secs_f64() / passed.as_secs_f64().max(1e-9);
            *known = total;
            busy.with_label_values(&[worker.to_string()]).set((share.min(1.0) * 1000.0).round() as i64);
        }
        before.0 = Instant::now();
        busy.collect()
    }
}

/// The event loop's delay.
#[derive(Clone)]
pub struct Canary {
    delay: Histogram,
    stalls: IntCounter,
}

impl Canary {
    /// # Errors
    /// A name is taken.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        Ok(Self {
            delay: registry.histogram_at(
                executor::EVENT_LOOP_DELAY_SECONDS,
                "How much later than asked for a timer of the event loop fires.",
                DELAYS.to_vec(),
            )?,
            stalls: registry.counter(
                executor::EVENT_LOOP_STALL_TOTAL,
                "Timers of the event loop that fired more than 5 ms late.",
            )?,
        })
    }

    /// Asks until it is dropped.
    pub async fn run(self) {
        loop {
            let due = tokio::time::Instant::now() + ASK_EVERY;
            tokio::time::sleep_until(due).await;
            self.observe(due.elapsed());
        }
    }

    fn observe(&self, late: Duration) {
        self.delay.observe(late.as_secs_f64());
        self.stalls.inc_by(u64::from(late > STALL));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_runtime_tells_how_it_is() {
        let registry = Registry::new();
        register(&registry, &Handle::current()).unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let task = tokio::spawn(stopped);
        let text = registry.text().unwrap();
        for line in ["dynamo_tokio_alive_tasks ", "dynamo_tokio_worker_busy_ratio{worker=\"1\"} "] {
            assert!(text.lines().any(|found| found.starts_with(line)), "{line} not in\n{text}");
        }
        assert!(!text.contains("dynamo_tokio_alive_tasks 0\n"), "{text}");
        stop.send(()).unwrap();
        task.await.unwrap().unwrap();
        // Whoever waited was parked, and is counted once however often it is read.
        let parks = || {
            let text = registry.text().unwrap();
            let lines = text.lines().filter(|line| line.starts_with("dynamo_tokio_worker_park_count_total{"));
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>()
        };
        let (first, second) = (parks(), parks());
        assert!(first > 0 && second >= first && second < first + 1000, "{first} {second}");
    }

    #[test]
    fn late_timers_are_stalls() {
        let canary = Canary::new(&Registry::new()).unwrap();
        canary.observe(Duration::from_millis(2));
        canary.observe(Duration::from_millis(6));
        assert_eq!((canary.delay.get_sample_count(), canary.stalls.get()), (2, 1));
    }
}
