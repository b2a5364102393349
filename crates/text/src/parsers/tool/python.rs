//! Calls as a Python list: `[name(key="value", other=1), name()]`.

use super::super::json::Scan;
use super::super::scan::{Hit, MAX_GAP_BYTES, clip, leading_space, prefix};
use super::form::{Context, MAX_HEADER_BYTES, Step, is_name};
use super::literal::{Literal, LiteralForm};

#[derive(Debug)]
pub(crate) struct PythonForm {
    pub(crate) arguments: LiteralForm,
    pub(crate) closers: &'static [&'static str],
}

#[derive(Clone, Debug)]
enum State {
    List,
    Name,
    Arguments(Literal),
    Next,
    After,
}

#[derive(Clone, Debug)]
pub(crate) struct PythonBody {
    form: &'static PythonForm,
    state: State,
    name: String,
    has_called: bool,
}

impl PythonBody {
    pub(crate) fn new(form: &'static PythonForm) -> Self {
        Self { form, state: State::List, name: String::new(), has_called: false }
    }

    pub(crate) fn step(&mut self, rest: &str, context: &mut Context<'_>) -> Step {
        let Some(first) = rest.bytes().next() else { return Step::More };
        if let State::Arguments(literal) = &mut self.state {
            return match told_arguments(literal, &self.name, rest, context) {
                (used, Scan::Done(_)) => {
                    self.has_called = true;
                    self.state = State::Next;
                    Step::Take(used)
                }
                (used, Scan::Bad(_)) => Step::Broken(used),
                (0, Scan::More) => Step::More,
                (used, Scan::More) => Step::Take(used),
            };
        }
        let blank = leading_space(rest);
        if matches!(self.state, State::After) {
            return self.after(rest, blank);
        }
        if blank > 0 && self.name.is_empty() {
            return Step::Take(blank);
        }
        match (&self.state, first) {
            (State::List, b'[') => self.go(State::Name, 1),
            (State::Name, b']') if self.name.is_empty() && self.has_called => self.go(State::After, 1),
            (State::Name, _) => self.name(rest, context),
            (State::Next, b',') => self.go(State::Name, 1),
            (State::Next, b']') => self.go(State::After, 1),
            (State::Next, _) => self.go(State::After, 0),
            _ => Step::Broken(0),
        }
    }

    fn go(&mut self, state: State, len: usize) -> Step {
        self.state = state;
        self.name.clear();
        Step::Take(len)
    }

    fn name(&mut self, rest: &str, context: &Context<'_>) -> Step {
        let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-');
        let len = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let part = clip(rest, len.min((MAX_HEADER_BYTES + 1).saturating_sub(self.name.len())));
        self.name.push_str(part);
        match rest.as_bytes().get(len) {
            _ if part.len() < len => Step::Broken(part.len()),
            None => Step::Take(len),
            Some(b'(') => {
                let is_call = is_name(&self.name) && !self.name.starts_with(|c: char| c.is_ascii_digit());
                if !is_call || !context.allows(&self.name) {
                    return Step::Broken(len);
                }
                self.state = State::Arguments(Literal::new(&self.form.arguments));
                Step::Take(len + 1)
            }
            Some(_) => Step::Broken(len),
        }
    }

    fn after(&mut self, rest: &str, blank: usize) -> Step {
        let text = rest.get(blank..).unwrap_or_default();
        match prefix(text, self.form.closers) {
            _ if blank > MAX_GAP_BYTES => Step::Close(0),
            Hit::Marker { which, .. } => Step::Close(blank + self.form.closers[which].len()),
            Hit::Partial { .. } => Step::More,
            Hit::None => Step::Close(0),
        }
    }
}

/// Reads arguments on; a call starts with the first of them, and ends when they do.
pub(crate) fn told_arguments(
    literal: &mut Literal,
    name: &str,
    rest: &str,
    context: &mut Context<'_>,
) -> (usize, Scan) {
    let mut json = String::new();
    let (used, scan) = literal.scan(rest, &mut json);
    if !json.is_empty() && !context.calls.is_open() {
        context.start(name, None);
    }
    context.arguments(&json);
    if matches!(scan, Scan::Done(_)) {
        context.end();
    }
    (used, scan)
}
