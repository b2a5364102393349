//! What an answer has to look like.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A grammar the answer must be a whole sentence of. Engines that cannot hold to one refuse the request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", content = "grammar", rename_all = "snake_case")]
pub enum Guide {
    /// JSON that this JSON schema, itself given as JSON text, accepts.
    JsonSchema(Arc<str>),
    /// Any JSON object.
    JsonObject,
    /// Text that this regular expression matches as a whole.
    Regex(Arc<str>),
    /// One of these texts.
    Choice(Vec<String>),
    /// A grammar in Lark's notation, with the rule `start`.
    Lark(Arc<str>),
}

impl Guide {
    /// The request field such a guide customarily comes in, for errors.
    pub fn field(&self) -> &'static str {
        match self {
            Self::JsonSchema(_) | Self::JsonObject => "response_format",
            Self::Regex(_) => "guided_regex",
            Self::Choice(_) => "guided_choice",
            Self::Lark(_) => "guided_grammar",
        }
    }
}
