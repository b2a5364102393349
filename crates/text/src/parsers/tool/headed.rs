//! Calls whose name stands before plain JSON arguments: `NAME <separator> {...} <end>`.

use super::super::json::{Scan, Scanner};
use super::super::scan::{Hit, MAX_GAP_BYTES, clip, find, leading_space, prefix};
use super::form::{Context, MAX_HEADER_BYTES, Step, is_name, is_name_part};

/// Fences that some models put around the arguments.
const FENCES: [&str; 2] = ["```json", "```"];

/// Name and id of a call.
pub(crate) type Identity = (String, Option<String>);

#[derive(Debug)]
pub(crate) struct HeadedForm {
    /// Begins a call inside a block; empty where the opener of the block does.
    pub(crate) call_open: &'static str,
    /// What ends the header. `{` is left to the arguments.
    pub(crate) header_ends: &'static [&'static str],
    /// Whether a header is a single name; anything else in it is no call.
    pub(crate) is_one_name: bool,
    /// What ends a call. Without any it ends with its arguments.
    pub(crate) call_closers: &'static [&'static str],
    pub(crate) block_closers: &'static [&'static str],
    /// Name and id from the header and the text between it and the arguments.
    pub(crate) identify: fn(&str, &str) -> Option<Identity>,
}

#[derive(Clone, Debug)]
enum State {
    Between,
    Header,
    Lead,
    Arguments(Scanner),
    Tail,
}

#[derive(Clone, Debug)]
pub(crate) struct HeadedBody {
    form: &'static HeadedForm,
    state: State,
    header: String,
    lead: String,
    has_called: bool,
}

impl HeadedBody {
    pub(crate) fn new(form: &'static HeadedForm, starts_in_call: bool) -> Self {
        let state = if starts_in_call { State::Header } else { State::Between };
        Self { form, state, header: String::new(), lead: String::new(), has_called: false }
    }

    pub(crate) fn step(&mut self, rest: &str, context: &mut Context<'_>) -> Step {
        if rest.is_empty() {
            return Step::More;
        }
        match &mut self.state {
            State::Between => self.between(rest),
            State::Header if self.header.is_empty() && leading_space(rest) > 0 => {
                Step::Take(leading_space(rest))
            }
            State::Header => match self.gather_header(rest) {
                Gathered::Step(step) => step,
                Gathered::End { at, which } => {
                    let end = self.form.header_ends[which];
                    self.state = State::Lead;
                    Step::Take(at + if end == "{" { 0 } else { end.len() })
                }
            },
            State::Lead => {
                let ends: Vec<_> = self.form.call_closers.iter().copied().chain(["{"]).collect();
                match gather(&mut self.lead, rest, &ends) {
                    Gathered::End { at, which } => self.identified(at, ends[which], context),
                    Gathered::Step(step) => step,
                }
            }
            State::Arguments(scanner) => {
                let mut json = String::new();
                let scan = scanner.scan(rest, &mut json);
                context.arguments(&json);
                match scan {
                    Scan::More => Step::Take(rest.len()),
                    Scan::Bad(at) => Step::Broken(at),
                    Scan::Done(len) => {
                        context.end();
                        self.has_called = true;
                        self.state = State::Tail;
                        Step::Take(len)
                    }
                }
            }
            State::Tail => self.tail(rest),
        }
    }

    fn gather_header(&mut self, rest: &str) -> Gathered {
        let from = self.header.len();
        let gathered = gather(&mut self.header, rest, self.form.header_ends);
        if self.form.is_one_name {
            let mut ended =
                self.header.get(..from).is_some_and(|header| header.ends_with(char::is_whitespace));
            for (at, c) in self.header.get(from..).unwrap_or_default().char_indices() {
                if c.is_whitespace() {
                    ended = true;
                } else if ended || !is_name_part(c) {
                    return Gathered::Step(Step::Broken(at));
                }
            }
        }
        gathered
    }

    fn between(&mut self, rest: &str) -> Step {
        let blank = leading_space(rest);
        if blank > 0 {
            return Step::Take(blank);
        }
        let markers: Vec<_> = [self.form.call_open].iter().chain(self.form.block_closers).copied().collect();
        match prefix(rest, &markers) {
            Hit::Marker { which: 0, .. } => {
                self.header.clear();
                self.lead.clear();
                self.state = State::Header;
                Step::Take(self.form.call_open.len())
            }
            Hit::Marker { which, .. } => Step::Close(markers[which].len()),
            Hit::Partial { .. } => Step::More,
            Hit::None if self.has_called => Step::Close(0),
            Hit::None => Step::Broken(0),
        }
    }

    /// The text before the arguments is whole, and `end` comes at `at`.
    fn identified(&mut self, at: usize, end: &str, context: &mut Context<'_>) -> Step {
        let identity = (self.form.identify)(self.header.trim_ascii(), self.lead.trim_ascii());
        let Some((name, id)) = identity.filter(|(name, _)| is_name(name) && context.allows(name)) else {
            return Step::Broken(at);
        };
        context.start(&name, id.as_deref());
        if end == "{" {
            self.state = State::Arguments(Scanner::new());
        } else {
            context.arguments("{}");
            context.end();
            self.has_called = true;
            self.state = State::Tail;
        }
        Step::Take(at)
    }

    fn tail(&mut self, rest: &str) -> Step {
        if self.form.call_closers.is_empty() {
            return Step::Close(0);
        }
        let blank = leading_space(rest);
        let text = rest.get(blank..).unwrap_or_default();
        let markers: Vec<_> = self.form.call_closers.iter().chain(&FENCES).copied().collect();
        match prefix(text, &markers) {
            _ if blank > MAX_GAP_BYTES => Step::Close(0),
            _ if text.is_empty() => Step::More,
            Hit::Partial { .. } => Step::More,
            Hit::Marker { which, .. } => {
                let len = blank + markers[which].len();
                if which >= self.form.call_closers.len() {
                    return Step::Take(len);
                }
                self.state = State::Between;
                if self.form.call_open.is_empty() { Step::Close(len) } else { Step::Take(len) }
            }
            Hit::None if self.form.call_open.is_empty() => Step::Close(0),
            Hit::None => {
                self.state = State::Between;
                Step::Take(blank)
            }
        }
    }
}

/// What [`gather`] came to.
pub(crate) enum Gathered {
    /// End number `which` comes at `at`.
    End {
        at: usize,
        which: usize,
    },
    Step(Step),
}

/// Takes text before one of `ends` into a header, up to the limit.
pub(crate) fn gather(header: &mut String, rest: &str, ends: &[&str]) -> Gathered {
    let (len, end) = match find(rest, ends) {
        Hit::Marker { at, which } => (at, Some(which)),
        Hit::Partial { at } => (at, None),
        Hit::None => (rest.len(), None),
    };
    let room = (MAX_HEADER_BYTES + 1).saturating_sub(header.len());
    let text = clip(rest, room.min(len));
    header.push_str(text);
    match end {
        _ if text.len() < len => Gathered::Step(Step::Broken(text.len())),
        Some(which) => Gathered::End { at: len, which },
        None if len == 0 => Gathered::Step(Step::More),
        None => Gathered::Step(Step::Take(len)),
    }
}

/// DeepSeek: `NAME`, or `function` and then the name and a fence before the arguments.
pub(crate) fn deepseek(header: &str, lead: &str) -> Option<Identity> {
    let name = FENCES.iter().find_map(|fence| lead.strip_suffix(fence)).unwrap_or(lead).trim_ascii();
    Some((if name.is_empty() { header } else { name }.to_owned(), None))
}

/// Kimi K2: `functions.NAME:INDEX`, which is also the id.
pub(crate) fn kimi(header: &str, lead: &str) -> Option<Identity> {
    let name = header.strip_prefix("functions.").unwrap_or(header);
    let name = name.rsplit_once(':').map_or(name, |(name, _)| name);
    lead.is_empty().then(|| (name.to_owned(), header.contains(':').then(|| header.to_owned())))
}

/// Mistral: `NAME`, `NAME[ARGS]`, or `NAME[CALL_ID]ID[ARGS]`.
pub(crate) fn mistral(header: &str, lead: &str) -> Option<Identity> {
    let id = lead.strip_suffix("[ARGS]").unwrap_or(lead).trim_ascii();
    Some((header.to_owned(), (!id.is_empty()).then(|| id.to_owned())))
}

/// Harmony: the recipient in the header, without the namespace of functions.
pub(crate) fn harmony(header: &str, lead: &str) -> Option<Identity> {
    let recipient = header.split_once("to=")?.1;
    let recipient = recipient.split(|c: char| c.is_whitespace() || c == '<').next()?;
    let name = recipient.strip_prefix("functions.").unwrap_or(recipient);
    lead.is_empty().then(|| (name.to_owned(), None))
}
