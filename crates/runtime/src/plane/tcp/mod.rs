//! The TCP transport, the default between processes (DESIGN 3.4; `docs/request-plane.md` is its wire format).
//!
//! The caller connects, so only one direction must be reachable. One connection per caller and worker process carries
//! all streams between them and the worker's events. Both sides prove that they live: a peer that says nothing for
//! [`Options::dead_after`] is gone, and its streams break off as retryable faults.

mod batch;
mod caller;
mod fleet;
mod frame;
mod link;
mod open;
mod outbox;
mod pack;
mod server;
#[cfg(test)]
mod tests;

pub use caller::{Caller, Follow};
pub use fleet::Fleet;
pub use frame::VERSION;
pub use server::Server;

use std::fmt;
use std::time::Duration;

/// Limits and times of the transport.
#[derive(Clone, Debug)]
pub struct Options {
    /// The largest frame read; announced to the peer, which refuses to send more. Above the largest request the
    /// frontend takes in: its body, at one token per byte and five bytes per token, is what a frame must hold.
    pub max_frame_bytes: usize,
    /// Streams of one connection. The next is refused as overloaded.
    pub max_streams: usize,
    /// Connections a worker accepts; the next waits in the kernel's queue.
    pub max_connections: usize,
    /// Bytes of requests that may wait for one connection; the next request is refused as overloaded.
    pub max_queued_bytes: usize,
    /// How long connecting and the exchange of hellos may take.
    pub connect_timeout: Duration,
    /// A side that has said nothing else for this long says that it lives.
    pub beat_every: Duration,
    /// A peer that says nothing at all for this long is gone.
    pub dead_after: Duration,
    /// The secret that callers must show. None: everybody may call.
    pub token: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_frame_bytes: 512 << 20,
            max_streams: 16_384,
            max_connections: 1024,
            max_queued_bytes: 512 << 20,
            connect_timeout: Duration::from_secs(3),
            beat_every: Duration::from_secs(1),
            dead_after: Duration::from_secs(5),
            token: None,
        }
    }
}

/// Why a connection could not be made or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    Io(String),
    /// No connection and no hello within [`Options::connect_timeout`].
    Timeout(Duration),
    /// The peer said nothing for [`Options::dead_after`].
    Silent(Duration),
    /// A frame is larger than its reader takes.
    FrameTooLarge {
        found: u64,
        limit: u64,
    },
    /// The peer sent what is no frame of ours.
    Decode(String),
    Encode(String),
    /// The peer closed the connection and said why.
    Refused(String),
    /// The peer closed the connection.
    Closed,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(reason) => f.write_str(reason),
            Self::Timeout(limit) => write!(f, "no connection within {} ms", limit.as_millis()),
            Self::Silent(limit) => write!(f, "no sign of life for {} ms", limit.as_millis()),
            Self::FrameTooLarge { found, limit } => {
                write!(f, "a frame of {found} bytes, limit {limit} bytes")
            }
            Self::Decode(reason) => write!(f, "not a frame of this protocol: {reason}"),
            Self::Encode(reason) => write!(f, "cannot be encoded: {reason}"),
            Self::Refused(reason) => write!(f, "refused: {reason}"),
            Self::Closed => f.write_str("the peer closed the connection"),
        }
    }
}

impl std::error::Error for Error {}
