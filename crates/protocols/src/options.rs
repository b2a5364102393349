//! What an operator decides about parsing.

use crate::limits::Limits;
use dynamo_types::Error;
use serde::{Deserialize, Serialize};

/// What happens to request fields that have no effect here (R10).
///
/// Whatever the choice, a field that is present with `null`, or with a value that asks for nothing (`"store": false`),
/// counts as absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownFields {
    /// Served without them, and nobody is told.
    Ignore,
    /// Served without them; the names are in [`Parsed::dropped`] for the log and the response header.
    #[default]
    Warn,
    /// Refused with 400 and all the names.
    Reject,
}

/// How request bodies are read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    pub unknown_fields: UnknownFields,
    pub limits: Limits,
    /// `nvext` says nothing, whatever is in it, but for its cache salt.
    pub ignores_nvext: bool,
}

/// A request and the fields that were left out of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed<T> {
    pub request: T,
    /// Paths of the fields without effect (`max_retries`, `messages[0].annotations`), in the order of the body. Empty
    /// with [`UnknownFields::Ignore`].
    pub dropped: Vec<String>,
}

impl<T> Parsed<T> {
    /// Applies the policy on `dropped` to a request that is otherwise good.
    pub(crate) fn under(request: T, dropped: Vec<String>, policy: UnknownFields) -> Result<Self, Error> {
        match policy {
            UnknownFields::Ignore => Ok(Self { request, dropped: Vec::new() }),
            UnknownFields::Reject if !dropped.is_empty() => {
                let message = format!("Unsupported parameter(s): {}", dropped.join(", "));
                let first = dropped.into_iter().next().unwrap_or_default();
                Err(Error::invalid(message).with_param(first).with_code("unknown_parameter"))
            }
            UnknownFields::Warn | UnknownFields::Reject => Ok(Self { request, dropped }),
        }
    }
}
