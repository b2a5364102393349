//! The keys of what a worker takes in, and of how it looks after its engine.

use super::WorkerSettings;
use dynamo_runtime::config::Key;
use dynamo_worker::{Limits, canary};
use std::time::Duration;

impl WorkerSettings {
    pub(crate) fn limits(&self) -> Option<Limits> {
        self.engine_request_limit.map(|requests| Limits { requests, queue: self.engine_request_queue })
    }

    pub(crate) fn canary(&self) -> Option<canary::Options> {
        self.health_check_enabled.then(|| canary::Options {
            wait: Duration::from_secs(self.canary_wait_s),
            timeout: Duration::from_millis(self.health_check_timeout_ms),
        })
    }

    /// # Errors
    /// One line: the setting, and what was found.
    pub(super) fn check_health(&self) -> Result<(), String> {
        let positive = [
            ("worker.engine_request_limit", self.engine_request_limit.map_or(1, u64::from)),
            ("worker.canary_wait_s", self.canary_wait_s),
            ("worker.health_check_timeout_ms", self.health_check_timeout_ms),
        ];
        match positive.into_iter().find(|(_, value)| *value == 0) {
            Some((key, _)) => Err(format!("{key}: expected at least 1, found 0")),
            None => Ok(()),
        }
    }
}

pub(super) fn keys() -> impl Iterator<Item = Key> {
    [
        Key::new(
            "worker.engine_request_limit",
            "Requests one worker works on; those of `worker.engine_request_queue` may wait, the next goes to another \
             worker, or is answered with 529; unset: as many as the engine takes",
        )
        .env("DYN_ENGINE_REQUEST_LIMIT"),
        Key::new("worker.engine_request_queue", "Requests that may wait on one worker above that limit"),
        Key::new(
            "worker.health_check_enabled",
            "Ask an idle engine for a token now and then; one that does not answer gets no requests until it does",
        )
        .env("DYN_HEALTH_CHECK_ENABLED"),
        Key::new("worker.canary_wait_s", "Idle time after which it is asked").env("DYN_CANARY_WAIT_TIME"),
        Key::new("worker.health_check_timeout_ms", "Longest wait for its answer")
            .scaled_env("DYN_HEALTH_CHECK_REQUEST_TIMEOUT", 1000),
    ]
    .into_iter()
}
