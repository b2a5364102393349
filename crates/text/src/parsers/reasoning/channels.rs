//! Answers that are a list of messages, each with a header that says whom it is for.

use super::super::event::Sink;
use super::super::scan::{Buffer, Hit, Markers, clip, is_text_at_end};
use super::super::{Parser, Start};
use dynamo_types::FinishReason;

/// A header longer than this is none (1 KiB).
const MAX_HEADER_BYTES: usize = 1024;

/// Comes before the name of a recipient.
const RECIPIENT: &str = "to=";

/// Comes before the recipient in a whole header.
const ROLE: &str = "assistant";

/// Whom a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Reasoning,
    Content,
    /// A tool: left to the tool parser, with its markers.
    Tool,
    /// A tool: left to the tool parser, without header and end.
    ToolBody,
}

#[derive(Debug)]
pub(crate) struct ChannelForm {
    /// What begins a header.
    pub(crate) openers: &'static [&'static str],
    /// What ends a header; the route, if that alone tells.
    pub(crate) header_ends: &'static [(&'static str, Option<Route>)],
    /// What ends a message.
    pub(crate) message_ends: &'static [&'static str],
    pub(crate) route: fn(&str) -> Route,
    /// Whether text at the front of an answer may be a header whose opener is part of the prompt.
    pub(crate) may_be_header: fn(&str) -> bool,
    /// Whether a header of a tool message is kept, up to its end marker.
    pub(crate) keeps_header: bool,
    /// How a message of reasoning begins after the prompt.
    pub(crate) reasoning: &'static str,
    /// What stands between the end of one message and the header of the next.
    pub(crate) then: &'static str,
    /// How a message for the user begins.
    pub(crate) content: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The front of the answer or after a message: a header may follow without its opener.
    Front,
    /// Between messages: content, if anything.
    Outside,
    Header,
    Message(Route),
}

#[derive(Clone, Debug)]
pub(crate) struct Channels {
    form: &'static ChannelForm,
    outside: Markers,
    header_ends: Markers,
    message: Markers,
    input: Buffer,
    state: State,
    header: String,
}

impl Channels {
    pub(crate) fn new(form: &'static ChannelForm, start: Start) -> Self {
        let ends = form.message_ends.iter().copied();
        let openers = form.openers.iter().copied();
        let header_ends = form.header_ends.iter().map(|(marker, _)| *marker);
        let is_inside = start == Start::Reasoning;
        Self {
            form,
            outside: Markers::new(ends.clone().chain(openers.clone()).chain(header_ends.clone())),
            header_ends: Markers::new(header_ends),
            message: Markers::new(ends.chain(openers)),
            input: Buffer::default(),
            state: if is_inside { State::Message(Route::Reasoning) } else { State::Front },
            header: String::new(),
        }
    }

    fn step(&mut self, out: &mut dyn Sink) -> bool {
        if self.input.rest().is_empty() {
            return false;
        }
        match self.state {
            State::Front => self.front(),
            State::Outside => self.outside_step(out),
            State::Header => self.header_step(out),
            State::Message(route) => self.message_step(route, out),
        }
    }

    /// Decides whether the answer begins with a header.
    fn front(&mut self) -> bool {
        let rest = self.input.rest();
        let end = self.outside.find(rest);
        let text = match end {
            Hit::Marker { at, .. } | Hit::Partial { at } => rest.get(..at).unwrap_or_default(),
            Hit::None => rest,
        };
        let is_header = text.len() <= MAX_HEADER_BYTES && (self.form.may_be_header)(text);
        self.state = match end {
            Hit::None | Hit::Partial { .. } if is_header => return false,
            Hit::Marker { which, .. } if is_header && self.is_header_end(which) => {
                self.header.clear();
                State::Header
            }
            _ => State::Outside,
        };
        true
    }

    /// Whether marker `which` of those outside of messages ends a header.
    fn is_header_end(&self, which: usize) -> bool {
        which >= self.form.message_ends.len() + self.form.openers.len()
    }

    fn take(&mut self, len: usize) -> String {
        let text = self.input.rest().get(..len).unwrap_or_default().to_owned();
        self.input.consume(len);
        text
    }

    fn outside_step(&mut self, out: &mut dyn Sink) -> bool {
        let rest = self.input.rest();
        match self.outside.find(rest) {
            Hit::None => {
                let text = self.take(rest.len());
                out.content(&text);
            }
            Hit::Partial { at: 0 } => return false,
            Hit::Marker { at: 0, which } => {
                let marker = self.outside.get(which);
                if self.is_header_end(which) {
                    self.header.clear();
                    self.state = State::Header;
                } else {
                    self.input.consume(marker.len());
                    if which >= self.form.message_ends.len() {
                        self.header.clear();
                        self.header.push_str(marker);
                        self.state = State::Header;
                    }
                }
            }
            Hit::Partial { at } | Hit::Marker { at, .. } => {
                let text = self.take(at);
                out.content(&text);
            }
        }
        true
    }

    fn header_step(&mut self, out: &mut dyn Sink) -> bool {
        let rest = self.input.rest();
        let (len, end) = match self.header_ends.find(rest) {
            Hit::Marker { at, which } => (at, Some(which)),
            Hit::Partial { at } => (at, None),
            Hit::None => (rest.len(), None),
        };
        let part = clip(rest, len.min((MAX_HEADER_BYTES + 1).saturating_sub(self.header.len()))).to_owned();
        self.header.push_str(&part);
        self.input.consume(part.len());
        if part.len() < len {
            // Too long for a header: text after all.
            out.content(&std::mem::take(&mut self.header));
            self.state = State::Outside;
            return true;
        }
        let Some(which) = end else { return false };
        let marker = self.header_ends.get(which);
        self.input.consume(marker.len());
        let fixed = self.form.header_ends.get(which).and_then(|(_, route)| *route);
        let route = fixed.unwrap_or_else(|| (self.form.route)(&self.header));
        if route == Route::Tool {
            if self.form.keeps_header {
                out.content(&self.header);
            }
            out.content(marker);
        }
        self.state = State::Message(route);
        true
    }

    fn message_step(&mut self, route: Route, out: &mut dyn Sink) -> bool {
        let rest = self.input.rest();
        match self.message.find(rest) {
            Hit::Partial { at: 0 } => return false,
            Hit::Marker { at: 0, which } => {
                let marker = self.message.get(which);
                if which < self.form.message_ends.len() {
                    self.input.consume(marker.len());
                    if route == Route::Tool {
                        out.content(marker);
                    }
                }
                self.state = State::Front;
            }
            Hit::None => self.body(rest.len(), route, out),
            Hit::Partial { at } | Hit::Marker { at, .. } => self.body(at, route, out),
        }
        true
    }

    fn body(&mut self, len: usize, route: Route, out: &mut dyn Sink) {
        let text = self.take(len);
        match route {
            Route::Reasoning => out.reasoning(&text),
            Route::Content | Route::Tool | Route::ToolBody => out.content(&text),
        }
    }
}

impl Parser for Channels {
    fn push(&mut self, text: &str, out: &mut dyn Sink) {
        self.input.push(text);
        while self.step(out) {}
    }

    fn finish(&mut self, reason: FinishReason, out: &mut dyn Sink) {
        let rest = self.input.rest().to_owned();
        self.input.consume(rest.len());
        match self.state {
            State::Message(Route::Reasoning) if is_text_at_end(&rest, reason) => out.reasoning(&rest),
            State::Header => {}
            State::Front if rest.contains(RECIPIENT) && (self.form.may_be_header)(&rest) => {}
            State::Front | State::Outside | State::Message(_) if is_text_at_end(&rest, reason) => {
                out.content(&rest);
            }
            State::Front | State::Outside | State::Message(_) => {}
        }
    }
}

/// Harmony: by channel and recipient.
pub(crate) fn harmony(header: &str) -> Route {
    if header.contains(RECIPIENT) {
        Route::Tool
    } else if header.contains("analysis") {
        Route::Reasoning
    } else {
        Route::Content
    }
}

/// Muse: by recipient.
pub(crate) fn muse(header: &str) -> Route {
    match header.split_once(RECIPIENT).map(|(_, recipient)| recipient.trim_ascii()) {
        Some("self") => Route::Reasoning,
        Some("user" | "") | None => Route::Content,
        Some(_) => Route::ToolBody,
    }
}

/// Inkling: by the marker that ends the header.
pub(crate) fn inkling(_header: &str) -> Route {
    Route::Content
}

/// No header without its opener.
pub(crate) fn never(text: &str) -> bool {
    text.is_empty()
}

/// `assistant to=NAME`, possibly not all of it.
pub(crate) fn recipient(text: &str) -> bool {
    let begins = |text: &str, word: &str| word.starts_with(text) || text.starts_with(word);
    let text = text.trim_ascii_start();
    if !begins(text, ROLE) && !begins(text, RECIPIENT) {
        return false;
    }
    let text = text.strip_prefix(ROLE).unwrap_or(text).trim_ascii_start();
    match text.strip_prefix(RECIPIENT) {
        Some(name) => !name.contains(|c: char| c.is_whitespace()),
        None => RECIPIENT.starts_with(text) || ROLE.starts_with(text),
    }
}

/// The name of a tool, possibly not all of it.
pub(crate) fn tool_name(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
}
