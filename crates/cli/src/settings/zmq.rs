//! The keys of KV events over ZMQ.

use super::WorkerSettings;
use dynamo_runtime::config::Key;
use dynamo_runtime::events::zmq::{Endpoint, PublishOptions, Publisher};
use std::sync::Arc;

const EVENTS: &str = "worker.zmq_events_endpoint";
const REPLAY: &str = "worker.zmq_replay_endpoint";

impl WorkerSettings {
    pub(super) fn check_zmq(&self, workers: u32) -> Result<(), String> {
        if self.zmq_events_endpoint.is_none() && self.zmq_replay_endpoint.is_some() {
            return Err(format!("{EVENTS}: expected one beside {REPLAY}, found none"));
        }
        let last = workers.saturating_sub(1);
        endpoint(EVENTS, self.zmq_events_endpoint.as_deref(), last)?;
        endpoint(REPLAY, self.zmq_replay_endpoint.as_deref(), last).map(|_| ())
    }

    /// The sockets of one worker of the process.
    ///
    /// # Errors
    /// One line: an endpoint cannot be bound.
    pub(crate) async fn zmq_publisher(&self, number: u32) -> Result<Option<Arc<Publisher>>, String> {
        let Some(events) = endpoint(EVENTS, self.zmq_events_endpoint.as_deref(), number)? else {
            return Ok(None);
        };
        let replay = endpoint(REPLAY, self.zmq_replay_endpoint.as_deref(), number)?;
        let publisher = Publisher::bind(PublishOptions { events, replay, rank: 0 }).await;
        let publisher = publisher.map_err(|error| format!("{EVENTS}, {REPLAY}: cannot be bound: {error}"))?;
        let replay = publisher.replay_endpoint().map(ToString::to_string);
        tracing::info!(events = %publisher.endpoint(), replay, "publishing KV events over ZMQ");
        Ok(Some(Arc::new(publisher)))
    }
}

/// The endpoint of the worker of this number: ports count up.
fn endpoint(key: &str, text: Option<&str>, number: u32) -> Result<Option<Endpoint>, String> {
    let Some(text) = text else { return Ok(None) };
    let first: Endpoint = text.parse().map_err(|error| format!("{key}: {error}"))?;
    let offset = u16::try_from(number).ok().and_then(|number| first.offset(number));
    let workers = number + 1;
    offset
        .map(Some)
        .ok_or_else(|| format!("{key}: expected one with room for {workers} workers, found {text}"))
}

pub(super) fn keys() -> impl Iterator<Item = Key> {
    [
        Key::new(
            EVENTS,
            "Publish KV events over ZMQ at this endpoint, such as `tcp://*:5557`; each further worker of the process takes the next port",
        ),
        Key::new(REPLAY, "Answer replays of missed KV events at this endpoint, such as `tcp://*:5657`"),
    ]
    .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(events: Option<&str>, replay: Option<&str>) -> WorkerSettings {
        WorkerSettings {
            zmq_events_endpoint: events.map(str::to_owned),
            zmq_replay_endpoint: replay.map(str::to_owned),
            ..WorkerSettings::default()
        }
    }

    #[test]
    fn endpoints_count_up_and_what_cannot_work_is_refused() {
        let all = with(Some("tcp://*:5557"), Some("ipc:///tmp/replay"));
        assert_eq!(all.check_zmq(1), Ok(()));
        let fault = all.check_zmq(2).unwrap_err();
        assert_eq!(fault, format!("{REPLAY}: expected one with room for 2 workers, found ipc:///tmp/replay"));
        assert!(with(Some("tcp://*:65535"), None).check_zmq(2).unwrap_err().starts_with(EVENTS));
        assert!(with(None, Some("tcp://*:1")).check_zmq(1).unwrap_err().contains("found none"));
        let fault = with(Some("udp://*:1"), None).check_zmq(1).unwrap_err();
        assert_eq!(fault, format!("{EVENTS}: expected tcp://host:port or ipc:///path, found \"udp://*:1\""));
        let third = endpoint(EVENTS, Some("tcp://[::1]:7000"), 2).unwrap().unwrap();
        assert_eq!(third.to_string(), "tcp://[::1]:7002");
    }
}
