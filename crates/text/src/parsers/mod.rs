//! Reasoning and tool calls in the text of an answer (R13-R19).
//!
//! Each family of models writes them in its own markers; [`tool`] and [`reasoning`] look a family up by name, and
//! [`Splitter`] is the one owner of the split of an answer, for every API. All parsers are incremental and follow the
//! same laws:
//!
//! - The fold of the events does not depend on how the text was cut, and a unary answer is that fold (R13). The
//!   beginning of a marker is held until it is whole or disproved (R17).
//! - Each byte costs a bounded amount of work; arguments are told as they arrive, valid JSON at every complete call
//!   (R16).
//! - A call is told once its name and the first byte of its arguments are there. What breaks the form before that is
//!   no call: its text is content, once, as the model wrote it.
//! - An answer that ends inside a call that was not told drops it with its markers; one that was told stays as far as
//!   it came, without [`Event::ToolCallEnd`] (R15). A call that breaks after it was told stays in the same way, and the
//!   rest of it is dropped up to the next closing marker.
//! - A call without any marker (bare JSON, a bare list) must name a tool of the request; otherwise it is text.

mod event;
mod json;
mod reasoning;
mod scan;
mod schema;
mod string;
mod tool;
mod value;

pub use event::{Event, Events, Message, Sink, ToolCall};
pub use reasoning::{
    Bounds, Surrounding, bounds as reasoning_bounds, names as reasoning_names, start as reasoning_start,
    surrounding as reasoning_surrounding,
};
pub use schema::Tools;
pub use tool::{CallForm, call_form, names as tool_names, openers as tool_openers};

use dynamo_types::FinishReason;
use std::fmt;
use std::sync::Arc;

/// An incremental parser of one answer.
pub trait Parser: Send + fmt::Debug {
    /// Takes the next piece of text and tells what became certain.
    fn push(&mut self, text: &str, out: &mut dyn Sink);

    /// Takes the end of the answer. Call it once.
    fn finish(&mut self, reason: FinishReason, out: &mut dyn Sink);

    /// Whether the text so far ends inside a tool call.
    fn is_inside(&self) -> bool {
        false
    }
}

/// How an answer begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// As the family does by itself.
    #[default]
    Default,
    /// The prompt opened reasoning.
    Reasoning,
    /// The prompt closed reasoning, or turned it off.
    Content,
}

/// An answer that a grammar forces to be calls, written as JSON whatever the family's own format is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forced {
    /// A list of `{"name": ..., "parameters": {...}}`.
    List,
    /// The arguments of this function.
    Named(Arc<str>),
}

/// What a parser is told about the request.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub tools: Arc<Tools>,
    pub forced: Option<Forced>,
    /// Calls after so many are left out.
    pub max_calls: Option<usize>,
    /// Ids of calls are drawn from this; give each answer its own.
    pub call_seed: u64,
    pub start: Start,
}

/// No such parser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: &'static str,
    name: String,
    known: Vec<&'static str>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no {} parser `{}`; known are {}", self.kind, self.name, self.known.join(", "))
    }
}

impl std::error::Error for Error {}

/// The tool-call parser of the family `name`, if there is one.
pub fn tool(name: &str, options: &Options) -> Option<Box<dyn Parser>> {
    tool::parser(name, options)
}

/// The reasoning parser of the family `name`, if there is one.
pub fn reasoning(name: &str, options: &Options) -> Option<Box<dyn Parser>> {
    reasoning::parser(name, options)
}

/// Two parsers in a row: the content of the first is the text of the second.
#[derive(Debug)]
pub(crate) struct Chain {
    first: Box<dyn Parser>,
    second: Box<dyn Parser>,
}

impl Chain {
    pub(crate) fn new(first: Box<dyn Parser>, second: Box<dyn Parser>) -> Self {
        Self { first, second }
    }
}

/// What the first parser of a [`Chain`] writes to.
struct Through<'a> {
    next: &'a mut dyn Parser,
    out: &'a mut dyn Sink,
}

impl Sink for Through<'_> {
    fn content(&mut self, text: &str) {
        self.next.push(text, self.out);
    }

    fn reasoning(&mut self, text: &str) {
        self.out.reasoning(text);
    }

    fn call_start(&mut self, index: usize, id: &str, name: &str) {
        self.out.call_start(index, id, name);
    }

    fn call_arguments(&mut self, index: usize, fragment: &str) {
        self.out.call_arguments(index, fragment);
    }

    fn call_end(&mut self, index: usize) {
        self.out.call_end(index);
    }

    fn is_inside_call(&self) -> bool {
        self.next.is_inside() || self.out.is_inside_call()
    }
}

impl Parser for Chain {
    fn push(&mut self, text: &str, out: &mut dyn Sink) {
        self.first.push(text, &mut Through { next: self.second.as_mut(), out });
    }

    fn finish(&mut self, reason: FinishReason, out: &mut dyn Sink) {
        self.first.finish(reason, &mut Through { next: self.second.as_mut(), out });
        self.second.finish(reason, out);
    }

    fn is_inside(&self) -> bool {
        self.first.is_inside() || self.second.is_inside()
    }
}

/// Splits one answer into content, reasoning and tool calls. There is one for each choice, whichever API asked (R18).
#[derive(Debug, Default)]
pub struct Splitter {
    parser: Option<Box<dyn Parser>>,
    max_calls: Option<usize>,
    complete_calls: usize,
}

impl Splitter {
    /// With the parsers of these families; forced calls are read as such, whatever `tool` is. Without any parser the text
    /// passes through.
    ///
    /// # Errors
    /// There is no parser of such a name.
    pub fn new(reasoning: Option<&str>, tool: Option<&str>, options: &Options) -> Result<Self, Error> {
        let first = match reasoning {
            Some(name) => Some(self::reasoning(name, options).ok_or_else(|| Error {
                kind: "reasoning",
                name: name.to_owned(),
                known: reasoning_names().collect(),
            })?),
            None => None,
        };
        let forced = options.forced.as_ref().map(|forced| tool::forced(forced, options));
        let second = match tool {
            _ if forced.is_some() => forced,
            Some(name) => Some(self::tool(name, options).ok_or_else(|| Error {
                kind: "tool-call",
                name: name.to_owned(),
                known: tool_names().collect(),
            })?),
            None => None,
        };
        let parser: Option<Box<dyn Parser>> = match (first, second) {
            (Some(first), Some(second)) => Some(Box::new(Chain::new(first, second))),
            (first, second) => first.or(second),
        };
        Ok(Self { parser, max_calls: options.max_calls, complete_calls: 0 })
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str, out: &mut Events) {
        let Self { parser, max_calls, complete_calls } = self;
        match parser {
            Some(parser) => {
                parser.push(text, &mut Counting { out, max: *max_calls, ended: complete_calls });
            }
            None => out.content(text),
        }
    }

    /// Takes the end of the answer and returns the finish reason to tell: `tool_calls` for a stop after a complete
    /// call, otherwise `reason` itself (R15).
    pub fn finish(&mut self, reason: FinishReason, out: &mut Events) -> FinishReason {
        if let Some(mut parser) = self.parser.take() {
            let (max, ended) = (self.max_calls, &mut self.complete_calls);
            parser.finish(reason, &mut Counting { out, max, ended });
        }
        if reason == FinishReason::Stop && self.complete_calls > 0 { FinishReason::ToolCalls } else { reason }
    }
}

/// Counts complete calls on their way out, and keeps back those that are too many.
struct Counting<'a> {
    out: &'a mut Events,
    max: Option<usize>,
    ended: &'a mut usize,
}

impl Counting<'_> {
    fn passes(&self, index: usize) -> bool {
        self.max.is_none_or(|max| index < max)
    }
}

impl Sink for Counting<'_> {
    fn content(&mut self, text: &str) {
        self.out.content(text);
    }

    fn reasoning(&mut self, text: &str) {
        self.out.reasoning(text);
    }

    fn call_start(&mut self, index: usize, id: &str, name: &str) {
        if self.passes(index) {
            self.out.call_start(index, id, name);
        }
    }

    fn call_arguments(&mut self, index: usize, fragment: &str) {
        if self.passes(index) {
            self.out.call_arguments(index, fragment);
        }
    }

    fn call_end(&mut self, index: usize) {
        if self.passes(index) {
            *self.ended += 1;
            self.out.call_end(index);
        }
    }
}
