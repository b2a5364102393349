//! What is kept in discovery (behaviour.md 3.2).

use crate::card::ModelCard;
use crate::ids::InstanceId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// How an instance is reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// In this very process, by instance id.
    InProcess,
    /// `host:port` of the framed TCP transport.
    Tcp(String),
    /// NATS subject.
    Nats(String),
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InProcess => f.write_str("this process"),
            Self::Tcp(address) => f.write_str(address),
            Self::Nats(subject) => write!(f, "nats:{subject}"),
        }
    }
}

/// One endpoint of one running worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    pub namespace: String,
    /// `backend` (aggregated or decode), `prefill`, ...
    pub component: String,
    /// `generate`.
    pub endpoint: String,
    pub id: InstanceId,
    pub transport: Transport,
    /// A draining instance finishes what it has and gets nothing new (R27).
    #[serde(default)]
    pub draining: bool,
    /// What the worker finds wrong with itself; while it does, it gets nothing new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

impl Instance {
    /// May it be given something new to do?
    pub fn takes_new(&self) -> bool {
        !self.draining && self.fault.is_none()
    }

    /// `dyn://namespace.component.endpoint`, as users know it.
    pub fn uri(&self) -> String {
        format!("dyn://{}.{}.{}", self.namespace, self.component, self.endpoint)
    }
}

/// A model served by an instance: the unit of registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRecord {
    pub instance: Instance,
    pub card: Arc<ModelCard>,
}
