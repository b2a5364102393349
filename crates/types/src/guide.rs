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
    /// Any text; only inside of a frame, which holds its calls to a form.
    Text,
    /// An answer with what the model writes around it.
    Framed(Box<Frame>),
}

/// An answer and what may stand around it: reasoning in front of it, or tool calls in its place.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    /// The request field that asks for the answer, for errors.
    pub field: Arc<str>,
    pub answer: Guide,
    /// What the grammar's compiler does not know of a schema is left out of it, where an exact answer was not asked for.
    #[serde(default)]
    pub is_lenient: bool,
    #[serde(default)]
    pub reasoning: Option<Reasoning>,
    /// Markers in front of the answer.
    #[serde(default)]
    pub head: Arc<str>,
    /// Markers of tool calls in the model's own format: what begins with one of them is free.
    #[serde(default)]
    pub calls: Vec<Arc<str>>,
    /// Calls whose arguments are held to their tools' schemas, in the place of those in `calls`.
    #[serde(default)]
    pub bound: Option<BoundCalls>,
}

/// Calls in the model's own format: `opener open call (between call)* close`, and each call its head, arguments and tail.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BoundCalls {
    /// The marker from which on the answer is held to the form.
    pub opener: Arc<str>,
    /// Other markers of the model's calls, which it may not write.
    pub others: Vec<Arc<str>>,
    pub open: Arc<str>,
    pub calls: Vec<BoundCall>,
    /// None: one call behind each marker.
    pub between: Option<Arc<str>>,
    pub close: Arc<str>,
}

/// A call of one tool.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BoundCall {
    pub head: Arc<str>,
    /// JSON schema of the arguments, as JSON text.
    pub schema: Arc<str>,
    pub tail: Arc<str>,
}

/// How a model writes reasoning, of which only the end is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reasoning {
    /// The prompt ends inside reasoning, so the answer begins with it. Otherwise it may be left out.
    pub is_open: bool,
    /// One of these begins it.
    pub openers: Vec<Arc<str>>,
    /// One of these ends it.
    pub closers: Vec<Arc<str>>,
    /// Markers between its end and what follows.
    pub then: Arc<str>,
}

impl Guide {
    /// The request field such a guide comes in, or customarily does, for errors.
    pub fn field(&self) -> &str {
        match self {
            Self::JsonSchema(_) | Self::JsonObject => "response_format",
            Self::Regex(_) => "guided_regex",
            Self::Choice(_) => "guided_choice",
            Self::Lark(_) => "guided_grammar",
            Self::Text => "tools",
            Self::Framed(frame) => &frame.field,
        }
    }

    /// The same guide, which came in `field`.
    #[must_use]
    pub fn asked_in(self, field: &str) -> Self {
        if self.field() == field {
            return self;
        }
        Self::Framed(Box::new(Frame { field: field.into(), ..self.into_frame() }))
    }

    /// As a frame, with nothing around the answer if there was none.
    pub fn into_frame(self) -> Frame {
        match self {
            Self::Framed(frame) => *frame,
            answer => Frame {
                field: answer.field().into(),
                answer,
                is_lenient: false,
                reasoning: None,
                head: "".into(),
                calls: Vec::new(),
                bound: None,
            },
        }
    }
}
