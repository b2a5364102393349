//! What every role stands on: the request plane, discovery and the event plane as borders (with their in-process
//! forms), the mailbox in which deltas wait for their reader, typed configuration, logs, traces, metrics and the port they
//! are read on, and shutdown.
//!
//! It must never know what a prompt, a template, a routing rule or an engine is: it carries requests, deltas, records
//! and events and decides nothing about them.

pub mod bookings;
pub mod config;
pub mod discovery;
pub mod events;
pub mod follow;
pub mod logging;
pub mod mailbox;
pub mod metrics;
mod pause;
pub mod plane;
#[cfg(test)]
mod python;
pub mod shutdown;
pub mod sync;
pub mod system;
pub mod tls;
pub mod trace;

pub use tokio_util::sync::CancellationToken;
pub use tokio_util::task::TaskTracker;

/// A future behind a pointer, as trait objects return it.
pub type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;
