//! Gemma's calls: `call:name{key:<|"|>text<|"|>,other:1}`.

use super::super::json::Scan;
use super::super::scan::{Hit, leading_space, prefix};
use super::form::{Context, Step, is_name};
use super::headed::{Gathered, gather};
use super::literal::{Literal, LiteralForm};
use super::python::told_arguments;

#[derive(Debug)]
pub(crate) struct GemmaForm {
    pub(crate) call_open: &'static str,
    pub(crate) arguments: LiteralForm,
    pub(crate) closer: &'static str,
}

#[derive(Clone, Debug)]
enum State {
    Between,
    Name,
    Arguments(Literal),
}

#[derive(Clone, Debug)]
pub(crate) struct GemmaBody {
    form: &'static GemmaForm,
    state: State,
    name: String,
    has_called: bool,
}

impl GemmaBody {
    pub(crate) fn new(form: &'static GemmaForm) -> Self {
        Self { form, state: State::Between, name: String::new(), has_called: false }
    }

    pub(crate) fn step(&mut self, rest: &str, context: &mut Context<'_>) -> Step {
        if rest.is_empty() {
            return Step::More;
        }
        match &mut self.state {
            State::Between => {
                let blank = leading_space(rest);
                if blank > 0 {
                    return Step::Take(blank);
                }
                match prefix(rest, &[self.form.call_open, self.form.closer]) {
                    Hit::Marker { which: 0, .. } => {
                        self.name.clear();
                        self.state = State::Name;
                        Step::Take(self.form.call_open.len())
                    }
                    Hit::Marker { .. } if self.has_called => Step::Close(self.form.closer.len()),
                    Hit::Partial { .. } => Step::More,
                    _ if self.has_called => Step::Close(0),
                    _ => Step::Broken(0),
                }
            }
            State::Name => match gather(&mut self.name, rest, &["{"]) {
                Gathered::Step(step) => step,
                Gathered::End { at, .. } => {
                    self.name = self.name.trim_ascii().to_owned();
                    if !is_name(&self.name) {
                        return Step::Broken(at);
                    }
                    self.state = State::Arguments(Literal::new(&self.form.arguments));
                    Step::Take(at + 1)
                }
            },
            State::Arguments(literal) => match told_arguments(literal, &self.name, rest, context) {
                (used, Scan::Done(_)) => {
                    self.has_called = true;
                    self.state = State::Between;
                    Step::Take(used)
                }
                (used, Scan::Bad(_)) => Step::Broken(used),
                (0, Scan::More) => Step::More,
                (used, Scan::More) => Step::Take(used),
            },
        }
    }
}
