//! Local suspension of a worker after failures (R30, R31): a pure state machine over the caller's clock.

use dynamo_types::{Error, Side};

/// What the router remembers of a worker's faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Health {
    suspended_until_ms: u64,
    /// Faults since the last success.
    faults: u32,
}

impl Health {
    pub(crate) fn is_suspended(&self, now_ms: u64) -> bool {
        now_ms < self.suspended_until_ms
    }

    pub(crate) fn suspend(&mut self, until_ms: u64) {
        self.suspended_until_ms = self.suspended_until_ms.max(until_ms);
    }

    /// How a dispatch ended; None is success, which closes the breaker. The count stays up while it is open, so after
    /// the pause one more fault opens it again. A connection that broke or fell silent opens it at once: everybody who asks
    /// next would wait for nothing. Client mistakes and goodbyes change nothing.
    pub(crate) fn observe(&mut self, error: Option<&Error>, now_ms: u64, failures: u32, open_ms: u64) {
        match error {
            None => *self = Self::default(),
            Some(error) if error.counts_against_worker() => {
                self.faults = self.faults.saturating_add(1);
                if self.faults >= failures.max(1) || error.side() == Side::Network {
                    self.suspend(now_ms.saturating_add(open_ms));
                }
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r30_nobody_is_sent_where_the_connection_just_broke() {
        for fault in [Error::disconnected("x"), Error::timeout("x")] {
            let mut health = Health::default();
            health.observe(Some(&fault), 10, 5, 100);
            assert!(health.is_suspended(109) && !health.is_suspended(110), "{fault:?}");
            health.observe(None, 20, 5, 100);
            assert!(!health.is_suspended(21), "an answer says that it is back");
        }
    }

    #[test]
    fn r31_breaker_opens_after_faults_in_a_row_and_probes_after_the_pause() {
        let mut health = Health::default();
        let fault = Error::engine("x");
        for now in 0..50 {
            health.observe(Some(&Error::invalid("too long")), now, 5, 100);
            health.observe(Some(&Error::cancelled()), now, 5, 100);
        }
        (0..4).for_each(|_| health.observe(Some(&fault), 60, 5, 100));
        assert!(!health.is_suspended(60));
        health.observe(None, 60, 5, 100);
        (0..5).for_each(|_| health.observe(Some(&fault), 60, 5, 100));
        assert!(health.is_suspended(60) && health.is_suspended(159) && !health.is_suspended(160));
        health.observe(Some(&fault), 200, 5, 100);
        assert!(health.is_suspended(299));
        health.observe(None, 299, 5, 100);
        assert!(!health.is_suspended(299));
    }
}
