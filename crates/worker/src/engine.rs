//! What an engine has to be (DESIGN 3.7).

use dynamo_types::{DeltaSink, Error, Load, ModelCard, Request};
use std::sync::Arc;

/// Token ids in, token ids out. An engine gets a [`dynamo_types::StepObserver`] when it is made, and reports each step that
/// changed something to it, after the step's deltas. Dropping the engine ends what it runs: its sinks are dropped, which
/// readers see as a worker that broke off.
pub trait Engine: Send + Sync {
    /// The model it serves.
    fn card(&self) -> &Arc<ModelCard>;

    /// Takes a request. What is refused is told to the sink as well as to the caller. Never blocks.
    fn submit(&self, request: Arc<Request>, sink: Box<dyn DeltaSink>) -> Result<(), Error>;

    /// How busy it is now.
    fn load(&self) -> Load;

    /// From now on refuses new requests; those it has run to their end.
    fn begin_drain(&self);

    /// Draining was begun and nothing is left.
    fn is_drained(&self) -> bool;
}

/// Tells the sink what the caller is told.
pub(crate) fn refuse<T>(mut sink: Box<dyn DeltaSink>, error: Error) -> Result<T, Error> {
    sink.fail(error.clone());
    Err(error)
}

/// What a draining engine answers: someone else may take it.
pub(crate) fn draining() -> Error {
    Error::unavailable("the worker is shutting down").with_retry_after_s(RETRY_AFTER_S)
}

/// By then routers know of the drain, or a successor is up.
const RETRY_AFTER_S: u32 = 2;
