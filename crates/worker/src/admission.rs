//! How many requests a worker takes, whatever its engine would (behaviour.md 3.8).

use crate::metrics::Series;
use dynamo_types::{Error, Result};
use prometheus::IntGauge;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// By then a short answer is over.
const RETRY_AFTER_S: u32 = 1;

/// Limits of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests that its engine works on.
    pub requests: u32,
    /// Requests that wait besides them; the next one is refused, so that another worker has it sooner.
    pub queue: u32,
}

/// Counts what the engine holds, and refuses what is too much.
pub(crate) struct Admission {
    limits: Option<Limits>,
    held: AtomicU32,
    series: Arc<Series>,
}

/// One request that was taken. Dropping it makes room.
pub(crate) struct Admitted(Arc<Admission>);

impl Admission {
    pub(crate) fn new(limits: Option<Limits>, series: Arc<Series>) -> Arc<Self> {
        Arc::new(Self { limits, held: AtomicU32::new(0), series })
    }

    /// # Errors
    /// Overloaded: the limits are reached.
    pub(crate) fn admit(self: &Arc<Self>) -> Result<Admitted> {
        let room = |held: u32| match self.limits {
            Some(Limits { requests, queue }) if held >= requests.saturating_add(queue) => None,
            _ => Some(held.saturating_add(1)),
        };
        match self.held.fetch_update(Ordering::AcqRel, Ordering::Acquire, room) {
            Ok(before) => {
                self.gauge(before).inc();
                Ok(Admitted(Arc::clone(self)))
            }
            Err(held) => {
                self.series.rejections.inc();
                let limit = self.limits.map_or(String::new(), |limits| {
                    format!("{held} requests, limit {} and {} waiting", limits.requests, limits.queue)
                });
                Err(Error::overloaded("the worker has no room for another request")
                    .with_retry_after_s(RETRY_AFTER_S)
                    .with_detail(limit))
            }
        }
    }

    /// Where the request is counted that came after so many others: as much goes up as comes down, in whatever order.
    fn gauge(&self, before: u32) -> &IntGauge {
        match self.limits {
            Some(limits) if before >= limits.requests => &self.series.queued_requests,
            _ => &self.series.engine_requests,
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let held = self.0.held.fetch_sub(1, Ordering::AcqRel);
        self.0.gauge(held.saturating_sub(1)).dec();
    }
}
