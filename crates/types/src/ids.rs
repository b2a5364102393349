//! Identifiers.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// One worker instance of the fleet. Shown in hexadecimal, as operators see it in paths and labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InstanceId(pub u64);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// What the router chooses between: a data-parallel rank of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WorkerRank {
    pub worker: InstanceId,
    pub rank: u32,
}

impl WorkerRank {
    pub const fn new(worker: InstanceId, rank: u32) -> Self {
        Self { worker, rank }
    }
}

impl fmt::Display for WorkerRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.worker, self.rank)
    }
}

/// The id under which a request is logged, traced and answered. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(pub Arc<str>);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for RequestId {
    fn from(text: &str) -> Self {
        Self(Arc::from(text))
    }
}

impl From<String> for RequestId {
    fn from(text: String) -> Self {
        Self(Arc::from(text))
    }
}
