//! The suites of the request plane, driving the worker of `examples/python-worker`: what docs/request-plane.md says is enough
//! to write a worker in another language.

use super::super::conformance::{self, Stage, Subject};
use super::super::wire::{Caller, Options};
use super::{Dialer, by_hand};
use crate::events::Local;
use crate::python::Python;
use dynamo_types::{Delta, Transport};
use serde_json::json;
use std::sync::Arc;

/// Silence of a caller that the worker bears, in seconds: the suite waits for it once; a busy machine must not keep it from
/// speaking for as long.
const DEAD_S: &str = "4";

impl Stage for Python {
    fn serve(&self) {
        self.tell(&json!(["serve"]));
    }

    fn withdraw(&self) {
        self.tell(&json!(["withdraw"]));
    }

    fn push(&self, stream: u32, delta: Delta) {
        // Unanswered: several that come at once wait together, and are merged.
        self.whisper(&json!(["push", stream, delta]));
    }

    /// It writes whenever it has something.
    fn flush(&self) {}

    fn drop_all(&self) {
        self.tell(&json!(["drop_all"]));
    }

    fn held(&self) -> usize {
        self.tell(&json!(["held"])).as_u64().unwrap() as usize
    }

    fn is_cancelled(&self, stream: u32) -> bool {
        self.tell(&json!(["is_cancelled", stream])).as_bool().unwrap()
    }

    fn in_flight(&self) -> usize {
        self.tell(&json!(["in_flight"])).as_u64().unwrap() as usize
    }
}

// The stage blocks a thread while it waits for an answer; the connections have their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_in_python_conforms() {
    let max_streams = conformance::options().max_in_flight.to_string();
    let foreign = Python::start("plane/tcp/foreign.py", &[&max_streams, DEAD_S]);
    let transport = Transport::Tcp(foreign.line());
    let caller = Caller::new(Options::default(), Arc::new(Local::default()), Arc::new(Dialer::default()));
    let subject = Subject { caller: Arc::new(caller.clone()), transport, stage: Box::new(foreign.clone()) };
    conformance::every_case(&subject).await;
    assert_eq!(caller.connection_count(), 1, "one connection carries everything");
    by_hand::every_case(&subject, &|hash| {
        foreign.tell(&json!(["report", hash]));
    })
    .await;
}
