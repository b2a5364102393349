//! The request plane: `call(instance, request) -> stream of deltas` (DESIGN 3.4).
//!
//! A transport is two halves that meet here: callers see [`RequestPlane`], workers give a [`Handler`]. Every transport
//! ends in a [`mailbox`](crate::mailbox), so merging, cancellation and broken streams behave alike on all of them.

#[cfg(test)]
mod conformance;
mod in_process;
mod metrics;
pub mod nats;
pub mod tcp;
pub mod wire;

pub use in_process::{InProcess, Options, ServeGuard};
pub use metrics::Metrics;

use crate::BoxFuture;
use crate::mailbox;
use dynamo_types::{Delta, DeltaSink, Instance, InstanceId, Request, Result, Transport};
use std::sync::Arc;
use std::task::{Context, Poll};

/// The caller's half of a transport.
pub trait RequestPlane: Send + Sync {
    /// Sends the request to this very instance. An error here means that nothing was generated, so a retryable one
    /// may be tried elsewhere.
    fn call<'a>(
        &'a self,
        instance: &'a Instance,
        request: Arc<Request>,
    ) -> BoxFuture<'a, Result<DeltaStream>>;

    /// Name and version of the program that serves the instance. None: it has not said so, or the transport does not tell.
    fn agent(&self, _instance: &Instance) -> Option<Arc<str>> {
        None
    }
}

/// Name and version of this program, as its peers learn it.
pub const AGENT: &str = concat!("dynamo/", env!("CARGO_PKG_VERSION"));

/// The worker's half of a transport. Never blocks: it hands the request to its engine and returns.
pub trait Handler: Send + Sync {
    /// Takes the request. What is refused here is told to the caller, whatever the sink was told.
    fn handle(&self, request: Arc<Request>, sink: Box<dyn DeltaSink>) -> Result<()>;
}

/// The answer to one call. Dropping it cancels the request.
pub struct DeltaStream {
    receiver: mailbox::Receiver,
    /// What the transport keeps for this stream; dropped with it.
    _guard: Option<Box<dyn Send + Sync>>,
}

impl DeltaStream {
    pub fn new(receiver: mailbox::Receiver) -> Self {
        Self { receiver, _guard: None }
    }

    /// Keeps `guard` as long as the stream is held: its `Drop` is where a transport tells the other side.
    #[must_use]
    pub fn with_guard(self, guard: impl Send + Sync + 'static) -> Self {
        Self { receiver: self.receiver, _guard: Some(Box::new(guard)) }
    }

    /// Everything that arrived since the last call, as one delta; `None` after the last one or an error. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Delta>> {
        self.receiver.recv().await
    }

    /// [`DeltaStream::next`] for hand-written futures.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Delta>>> {
        self.receiver.poll_recv(context)
    }
}

impl From<mailbox::Receiver> for DeltaStream {
    fn from(receiver: mailbox::Receiver) -> Self {
        Self::new(receiver)
    }
}

/// Told after each group of deltas that an engine pushed: a transport sends them together.
pub trait Flush: Send + Sync {
    fn flush(&self, instance: InstanceId);
}

/// Every instance over its own transport; those of this very process directly.
pub struct ByTransport {
    pub in_process: InProcess,
    pub others: wire::Caller,
}

impl RequestPlane for ByTransport {
    fn call<'a>(
        &'a self,
        instance: &'a Instance,
        request: Arc<Request>,
    ) -> BoxFuture<'a, Result<DeltaStream>> {
        match instance.transport {
            Transport::InProcess => self.in_process.call(instance, request),
            _ if self.in_process.serves(instance.id) => self.in_process.call(instance, request),
            _ => self.others.call(instance, request),
        }
    }

    fn agent(&self, instance: &Instance) -> Option<Arc<str>> {
        match instance.transport {
            Transport::InProcess => self.in_process.agent(instance),
            _ if self.in_process.serves(instance.id) => self.in_process.agent(instance),
            _ => self.others.agent(instance),
        }
    }
}
