//! KV events as vLLM and SGLang publish them, over ZMQ (behaviour.md 2.6; engines.md 3.1; docs/kv-events.md).
//!
//! [`Relay`] takes in what an engine says and publishes it on our own event plane; [`Publisher`] says what our engines
//! store, for routers of others. The protocol (ZMTP 3, without encryption) is spoken here: of its sockets we need four, each in
//! one direction, and a bound on everything that waits.

mod feed;
mod ledger;
mod msgpack;
mod publish;
mod relay;
mod socket;
#[cfg(test)]
mod tests;
mod wire;
mod zmtp;

pub use feed::{Counts, Source};
pub use publish::{PublishOptions, Publisher};
pub use relay::{Attach, Relay, RelayOptions};

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Topic of our own publisher. Subscribers of everything (the empty prefix) and of this name get it.
pub const TOPIC: &str = "kv-events";

/// Where a socket of ZMQ is: `tcp://host:port` (`*` for all addresses of this host) or `ipc:///path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Tcp { host: String, port: u16 },
    Ipc(PathBuf),
}

impl Endpoint {
    /// The endpoint of the next worker of the same process; none if it would have the same one.
    pub fn offset(&self, number: u16) -> Option<Self> {
        match self {
            Self::Tcp { port: 0, .. } => Some(self.clone()),
            Self::Tcp { host, port } => {
                Some(Self::Tcp { host: host.clone(), port: port.checked_add(number)? })
            }
            Self::Ipc(_) => (number == 0).then(|| self.clone()),
        }
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::Endpoint(text.to_owned());
        if let Some(path) = text.strip_prefix("ipc://").filter(|path| !path.is_empty()) {
            return Ok(Self::Ipc(PathBuf::from(path)));
        }
        let address = text.strip_prefix("tcp://").ok_or_else(wrong)?;
        let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
        let port = if port == "*" { 0 } else { port.parse().map_err(|_| wrong())? };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(wrong());
        }
        Ok(Self::Tcp { host: host.to_owned(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Self::Ipc(path) => write!(f, "ipc://{}", path.display()),
        }
    }
}

/// Why a socket of ZMQ cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    Endpoint(String),
    Io(String),
    /// The peer speaks another protocol, or is another kind of socket.
    Protocol(String),
    /// Nothing came for this long.
    Silent(Duration),
    /// A message is larger than what is taken.
    TooLarge {
        found: u64,
        limit: u64,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoint(found) => {
                write!(f, "expected tcp://host:port or ipc:///path, found {found:?}")
            }
            Self::Io(reason) => f.write_str(reason),
            Self::Protocol(reason) => write!(f, "not the expected socket of ZMQ: {reason}"),
            Self::Silent(limit) => write!(f, "no sign of life for {} ms", limit.as_millis()),
            Self::TooLarge { found, limit } => write!(f, "a message of {found} bytes, limit {limit} bytes"),
        }
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error.to_string())
    }
}
