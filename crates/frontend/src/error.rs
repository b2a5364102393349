//! Why a frontend could not start. Faults of single requests are [`dynamo_types::Error`].

use std::io;

/// One line for the person who started it.
#[derive(Debug)]
pub enum Error {
    /// `host` is no address and no name that resolves to one.
    Host { host: String, source: io::Error },
    /// The address cannot be listened on.
    /// `flag` names another one.
    Listen { address: String, flag: &'static str, source: io::Error },
    /// Two parts of the process want the same metric name.
    Metrics(String),
    /// Discovery or the event plane refused.
    Services(String),
    /// A setting that cannot work.
    Config { key: &'static str, reason: String },
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host { host, source } => write!(f, "host {host:?} cannot be resolved: {source}"),
            Self::Listen { address, flag, source } if source.kind() == io::ErrorKind::AddrInUse => {
                write!(f, "cannot listen on {address}: the port is in use; choose another with {flag}")
            }
            Self::Listen { address, source, .. } => write!(f, "cannot listen on {address}: {source}"),
            Self::Metrics(reason) => write!(f, "cannot register metrics: {reason}"),
            Self::Services(reason) => write!(f, "{reason}"),
            Self::Config { key, reason } => write!(f, "{key}: {reason}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Host { source, .. } | Self::Listen { source, .. } => Some(source),
            Self::Metrics(_) | Self::Services(_) | Self::Config { .. } => None,
        }
    }
}
