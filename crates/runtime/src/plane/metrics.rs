//! What is counted of calls between processes, on both sides (behaviour.md 11.2, "Transport").

use crate::metrics::names::{label, plane};
use crate::metrics::{Error, Histogram, IntCounter, IntGauge, Registry};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Seconds to write, and to wait for being written.
const WRITES: [f64; 9] = [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0];

/// Seconds to a worker's first word.
const FIRST_WORDS: [f64; 11] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

/// The endpoint that requests are for, as it is known everywhere.
const ENDPOINT: [&str; 2] = ["backend", "generate"];

/// The families of one process, or none. Clones are the same.
#[derive(Clone, Default)]
pub struct Metrics(Option<Arc<Families>>);

struct Families {
    queue: Histogram,
    send: Histogram,
    roundtrip: Histogram,
    in_flight: IntGauge,
    active: IntGauge,
    idle: IntGauge,
    sent: IntCounter,
    received: IntCounter,
    errors: IntCounter,
    accept_backoff: IntCounter,
    transit: Histogram,
    request_bytes: IntCounter,
    response_bytes: IntCounter,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Metrics" } else { "no metrics" })
    }
}

impl Metrics {
    /// `namespace`: of the workers of this process.
    ///
    /// # Errors
    /// A name is taken.
    pub fn new(registry: &Registry, namespace: &str) -> Result<Self, Error> {
        let endpoint = [label::NAMESPACE, label::COMPONENT, label::ENDPOINT];
        // A frame carries the answers of all workers of the process, so they are counted together.
        let bytes = |name, help| {
            let [component, of] = ENDPOINT;
            Ok::<_, Error>(
                registry.counters(name, help, &endpoint)?.with_label_values(&[namespace, component, of]),
            )
        };
        Ok(Self(Some(Arc::new(Families {
            queue: registry.histogram_at(
                plane::QUEUE_SECONDS,
                "From the call of a worker in another process to the writing of its request.",
                WRITES.to_vec(),
            )?,
            send: registry.histogram_at(plane::SEND_SECONDS, "Writing that request.", WRITES.to_vec())?,
            roundtrip: registry.histogram_at(
                plane::ROUNDTRIP_TTFT_SECONDS,
                "From its writing to the worker's first word.",
                FIRST_WORDS.to_vec(),
            )?,
            in_flight: registry.gauge(
                plane::INFLIGHT_REQUESTS,
                "Calls of workers in other processes that have not ended.",
            )?,
            active: registry.gauge(plane::TCP_POOL_ACTIVE, "Connections to workers that carry streams.")?,
            idle: registry.gauge(plane::TCP_POOL_IDLE, "Connections to workers that carry none.")?,
            sent: registry.counter(plane::TCP_BYTES_SENT_TOTAL, "Bytes written to workers.")?,
            received: registry.counter(plane::TCP_BYTES_RECEIVED_TOTAL, "Bytes read from workers.")?,
            errors: registry.counter(
                plane::TCP_ERRORS_TOTAL,
                "Connections to workers that could not be made, broke, or ended with streams on them.",
            )?,
            accept_backoff: registry.counter(
                plane::TCP_ACCEPT_BACKOFF_TOTAL,
                "Callers that could not be accepted, after which nobody is for a moment.",
            )?,
            transit: registry.histogram_at(
                plane::NETWORK_TRANSIT_SECONDS,
                "From a caller's writing of a request to its reading here, by the clocks of both hosts.",
                WRITES.to_vec(),
            )?,
            request_bytes: bytes(plane::REQUEST_BYTES_TOTAL, "Bytes of requests read from callers.")?,
            response_bytes: bytes(plane::RESPONSE_BYTES_TOTAL, "Bytes of answers written to callers.")?,
        }))))
    }

    /// A call of a worker.
    pub(super) fn call(&self) -> Call {
        if let Some(families) = &self.0 {
            families.in_flight.inc();
        }
        Call { metrics: self.clone(), made: Instant::now(), written: None }
    }

    /// `requests` of them were written in `took`, `bytes` in all.
    pub(super) fn wrote(&self, requests: usize, bytes: usize, took: Duration) {
        let Some(families) = &self.0 else { return };
        families.sent.inc_by(bytes as u64);
        (0..requests).for_each(|_| families.send.observe(took.as_secs_f64()));
    }

    pub(super) fn read(&self, bytes: usize) {
        if let Some(families) = &self.0 {
            families.received.inc_by(bytes as u64);
        }
    }

    /// A connection to a worker ended, and not because this side wanted it.
    pub(super) fn broke(&self) {
        if let Some(families) = &self.0 {
            families.errors.inc();
        }
    }

    pub(super) fn could_not_accept(&self) {
        if let Some(families) = &self.0 {
            families.accept_backoff.inc();
        }
    }

    /// A worker read a request of so many bytes, written at `written_unix_ns`.
    pub(super) fn arrived(&self, bytes: usize, written_unix_ns: Option<u64>) {
        let Some(families) = &self.0 else { return };
        families.request_bytes.inc_by(bytes as u64);
        if let Some(written) = written_unix_ns {
            // Of a clock that goes before ours nothing is known but that it took little.
            families.transit.observe(unix_ns().saturating_sub(written) as f64 / 1e9);
        }
    }

    /// A worker wrote so many bytes of answers.
    pub(super) fn answered(&self, bytes: usize) {
        if let Some(families) = &self.0 {
            families.response_bytes.inc_by(bytes as u64);
        }
    }
}

/// Nanoseconds since 1970, by this host's clock.
pub(super) fn unix_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// One call of a worker, in flight until it is dropped.
pub(super) struct Call {
    metrics: Metrics,
    made: Instant,
    /// When it was written; None once the worker has answered.
    written: Option<Instant>,
}

impl Call {
    /// Its request is being written.
    pub(super) fn written(&mut self, now: Instant) {
        self.written = Some(now);
        if let Some(families) = &self.metrics.0 {
            families.queue.observe((now - self.made).as_secs_f64());
        }
    }

    /// The worker says something of it.
    pub(super) fn heard(&mut self) {
        let Some(written) = self.written.take() else { return };
        if let Some(families) = &self.metrics.0 {
            families.roundtrip.observe(written.elapsed().as_secs_f64());
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(families) = &self.metrics.0 {
            families.in_flight.dec();
        }
    }
}

/// Where a connection to a worker counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pool {
    /// Nowhere: it is not made yet, or over.
    #[default]
    Out,
    Idle,
    Active,
}

/// A connection's place in the pool, given back when dropped.
#[derive(Default)]
pub(super) struct Place {
    metrics: Metrics,
    at: Pool,
}

impl Place {
    pub(super) fn new(metrics: Metrics) -> Self {
        Self { metrics, at: Pool::Out }
    }

    /// The connection is there, with so many streams on it.
    pub(super) fn enter(&mut self, streams: usize) {
        self.go(if streams == 0 { Pool::Idle } else { Pool::Active });
    }

    /// It carries so many streams now.
    pub(super) fn carry(&mut self, streams: usize) {
        if self.at != Pool::Out {
            self.enter(streams);
        }
    }

    pub(super) fn leave(&mut self) {
        self.go(Pool::Out);
    }

    fn go(&mut self, to: Pool) {
        if self.at == to {
            return;
        }
        let from = std::mem::replace(&mut self.at, to);
        let Some(families) = &self.metrics.0 else { return };
        for (pool, change) in [(from, -1), (to, 1)] {
            match pool {
                Pool::Out => {}
                Pool::Idle => families.idle.add(change),
                Pool::Active => families.active.add(change),
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}
