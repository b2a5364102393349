//! The forms that tool calls are written in, as data, and what reads one block of each.

use super::super::event::Sink;
use super::super::scan::TrailingSpace;
use super::super::schema::Tools;
use super::calls::Calls;
use super::elements::{ElementsBody, ElementsForm};
use super::gemma::{GemmaBody, GemmaForm};
use super::headed::{HeadedBody, HeadedForm};
use super::json::{JsonBody, JsonForm};
use super::markup::{MarkupBody, MarkupForm};
use super::python::{PythonBody, PythonForm};

/// A header longer than this is none: names and attributes are short (1 KiB).
pub(crate) const MAX_HEADER_BYTES: usize = 1024;

/// A tool-call format.
#[derive(Debug)]
pub(crate) struct Grammar {
    /// What begins a block. No marker begins another.
    pub(crate) openers: &'static [Opener],
    /// What ends a block; dropped where no block is open.
    pub(crate) closers: &'static [&'static str],
    /// Other protocol markers that are not for the user.
    pub(crate) framing: &'static [&'static str],
    /// A call that no marker announces: only as the first text of an answer or after another call.
    pub(crate) bare: Option<Bare>,
}

#[derive(Debug)]
pub(crate) struct Opener {
    pub(crate) marker: &'static str,
    pub(crate) form: Form,
}

#[derive(Debug)]
pub(crate) struct Bare {
    pub(crate) first: char,
    pub(crate) form: Form,
    /// The request leaves no doubt that it is one.
    pub(crate) is_announced: bool,
}

/// How a block is written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    Json(&'static JsonForm),
    /// As [`Form::Json`], but the opener was that of the list.
    JsonList(&'static JsonForm),
    Headed(&'static HeadedForm),
    /// As [`Form::Headed`], but the opener was that of a call, not of a block.
    HeadedCall(&'static HeadedForm),
    Markup(&'static MarkupForm),
    /// As [`Form::Markup`], but the opener was that of a call, not of a block.
    MarkupCall(&'static MarkupForm),
    Elements(&'static ElementsForm),
    Python(&'static PythonForm),
    Gemma(&'static GemmaForm),
    /// The first one whose text the block begins with, after whitespace; an empty text fits all.
    Choice(&'static [(&'static str, Form)]),
}

/// What a [`Body`] did with the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It cannot go on without more text.
    More,
    /// So many bytes were used (none, if only its state changed).
    Take(usize),
    /// The block ended after so many bytes.
    Close(usize),
    /// After so many bytes the text does not follow the form.
    Broken(usize),
}

/// What a [`Body`] works with. A body ends its step with every call it ends.
pub(crate) struct Context<'a> {
    pub(crate) calls: &'a mut Calls,
    pub(crate) tools: &'a Tools,
    pub(crate) is_marked: bool,
    /// Whitespace before the call, which is dropped once it is one.
    pub(crate) space: &'a mut TrailingSpace,
    pub(crate) out: &'a mut dyn Sink,
}

impl Context<'_> {
    pub(crate) fn start(&mut self, name: &str, id: Option<&str>) {
        self.space.clear();
        self.calls.start(name, id, self.out);
    }

    pub(crate) fn arguments(&mut self, fragment: &str) {
        self.calls.arguments(fragment, self.out);
    }

    pub(crate) fn end(&mut self) {
        self.calls.end(self.out);
    }

    /// Whether `name` may be called: a marked call to an unknown tool is told, so that the model can be corrected; an
    /// unmarked one is more likely text.
    pub(crate) fn allows(&self, name: &str) -> bool {
        self.is_marked || self.tools.allows(name)
    }
}

/// The state of reading one block.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Json(JsonBody),
    Headed(HeadedBody),
    Markup(MarkupBody),
    Elements(ElementsBody),
    Python(PythonBody),
    Gemma(GemmaBody),
    Choice(&'static [(&'static str, Form)]),
}

impl Body {
    pub(crate) fn new(form: Form) -> Self {
        match form {
            Form::Json(form) => Self::Json(JsonBody::new(form, false)),
            Form::JsonList(form) => Self::Json(JsonBody::new(form, true)),
            Form::Headed(form) => Self::Headed(HeadedBody::new(form, form.call_open.is_empty())),
            Form::HeadedCall(form) => Self::Headed(HeadedBody::new(form, true)),
            Form::Markup(form) => Self::Markup(MarkupBody::new(form, form.call_open.is_empty())),
            Form::MarkupCall(form) => Self::Markup(MarkupBody::new(form, true)),
            Form::Elements(form) => Self::Elements(ElementsBody::new(form)),
            Form::Python(form) => Self::Python(PythonBody::new(form)),
            Form::Gemma(form) => Self::Gemma(GemmaBody::new(form)),
            Form::Choice(forms) => Self::Choice(forms),
        }
    }

    /// Reads on. Always makes progress, or asks for more text.
    pub(crate) fn step(&mut self, rest: &str, context: &mut Context<'_>) -> Step {
        match self {
            Self::Json(body) => body.step(rest, context),
            Self::Headed(body) => body.step(rest, context),
            Self::Markup(body) => body.step(rest, context),
            Self::Elements(body) => body.step(rest, context),
            Self::Python(body) => body.step(rest, context),
            Self::Gemma(body) => body.step(rest, context),
            Self::Choice(forms) => {
                let text = rest.trim_ascii_start();
                if text.is_empty() {
                    return if rest.is_empty() { Step::More } else { Step::Take(rest.len()) };
                }
                for (first, form) in forms.iter() {
                    if text.starts_with(first) {
                        *self = Self::new(*form);
                        return Step::Take(rest.len() - text.len());
                    }
                    if first.starts_with(text) {
                        return Step::More;
                    }
                }
                Step::Broken(0)
            }
        }
    }

    /// Whether the block names a tool that may be called, so that it is a call even if no marker announced it.
    pub(crate) fn has_name(&self) -> bool {
        matches!(self, Self::Json(body) if body.has_name())
    }
}

/// Whether `c` can be in the name of a function.
pub(crate) fn is_name_part(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/' | '$')
}

/// Whether `name` can be the name of a function.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(is_name_part)
}
