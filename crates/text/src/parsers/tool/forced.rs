//! Calls that a grammar forced: JSON without any markers, whatever the model's own format is.

use super::super::Parser;
use super::super::event::Sink;
use super::super::json::{Scan, Scanner};
use super::calls::Calls;
use super::form::{Bare, Form, Grammar};
use super::table::CALLS_ALONE;
use dynamo_types::FinishReason;
use std::sync::Arc;

/// `[{"name": ..., "parameters": {...}}, ...]`.
pub(super) static LIST: Grammar = Grammar {
    openers: &[],
    closers: &[],
    framing: &[],
    bare: Some(Bare { first: '[', form: Form::Json(&CALLS_ALONE), is_announced: true }),
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the arguments.
    Front,
    Arguments,
    /// They are whole, or broken.
    After,
    /// They are none, so all of it is text.
    Text,
}

/// The arguments of the one function that may be called.
#[derive(Clone, Debug)]
pub(super) struct Arguments {
    name: Arc<str>,
    scanner: Scanner,
    state: State,
    calls: Calls,
}

impl Arguments {
    /// The id of the call is drawn from `seed`.
    pub(super) fn new(name: Arc<str>, seed: u64) -> Self {
        Self { name, scanner: Scanner::new(), state: State::Front, calls: Calls::new(seed) }
    }

    fn arguments(&mut self, text: &str, out: &mut dyn Sink) {
        let mut json = String::new();
        let scan = self.scanner.scan(text, &mut json);
        if !json.is_empty() && !self.calls.is_open() {
            self.calls.start(&self.name, None, out);
        }
        self.calls.arguments(&json, out);
        match scan {
            Scan::More => return,
            Scan::Done(_) => self.calls.end(out),
            Scan::Bad(_) => self.calls.give_up(),
        }
        self.state = State::After;
    }
}

impl Parser for Arguments {
    fn push(&mut self, mut text: &str, out: &mut dyn Sink) {
        if self.state == State::Front {
            text = text.trim_ascii_start();
            match text.bytes().next() {
                None => return,
                Some(b'{') => self.state = State::Arguments,
                Some(_) => self.state = State::Text,
            }
        }
        match self.state {
            State::Arguments => self.arguments(text, out),
            State::Text => out.content(text),
            State::Front | State::After => {}
        }
    }

    fn finish(&mut self, _reason: FinishReason, _out: &mut dyn Sink) {
        self.calls.give_up();
    }

    fn is_inside(&self) -> bool {
        self.state == State::Arguments
    }
}
