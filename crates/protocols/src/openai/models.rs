//! `GET /v1/models`, `/v1/models/{id}` and `/v1/models/{id}/ready`.

use dynamo_types::ModelCard;
use serde::Serialize;
use std::collections::BTreeMap;

/// All served models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct List {
    pub object: &'static str,
    pub data: Vec<Model>,
}

impl List {
    pub fn new(data: Vec<Model>) -> Self {
        Self { object: "list", data }
    }
}

/// One model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Model {
    pub id: String,
    pub object: &'static str,
    /// Unix seconds.
    pub created: u64,
    pub owned_by: &'static str,
    /// Prompt plus answer, in tokens.
    pub context_window: u32,
    /// The same under the name vLLM clients look for.
    pub max_model_len: u32,
}

impl From<&ModelCard> for Model {
    fn from(card: &ModelCard) -> Self {
        Self {
            id: card.name.to_string(),
            object: "model",
            created: card.created_s,
            owned_by: "dynamo",
            context_window: card.context_length,
            max_model_len: card.context_length,
        }
    }
}

/// Can a model be used, and if not, what is missing?
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ready {
    pub model: String,
    pub ready: bool,
    pub namespaces: BTreeMap<String, NamespaceReady>,
}

/// The same for the workers of one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NamespaceReady {
    pub ready: bool,
    /// By type: `aggregated`, `prefill`, `decode`.
    pub worker_types: BTreeMap<String, WorkerType>,
    pub present: Vec<String>,
    pub missing_worker_types: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WorkerType {
    pub workers: u32,
    /// Alternatives, each a list of types that must be there together.
    pub needs: Vec<Vec<String>>,
}
