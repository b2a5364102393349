//! Calls that are JSON objects: `{"name": ..., "arguments": {...}}`, alone, in lists or one after the other.

use super::super::json::{Scan, Scanner};
use super::super::scan::{Hit, MAX_GAP_BYTES, clip, leading_space, prefix};
use super::super::string::{Dialect, Unescape};
use super::form::{Context, MAX_HEADER_BYTES, Step};

/// Keys that a call may have beside its name and arguments.
const OTHER_KEYS: [&str; 3] = ["type", "id", "index"];

/// The key whose value may be the name, or an object with name and arguments.
const FUNCTION_KEY: &str = "function";

#[derive(Debug)]
pub(crate) struct JsonForm {
    pub(crate) name_keys: &'static [&'static str],
    pub(crate) argument_keys: &'static [&'static str],
    /// What ends the block. Without any the block ends with its value.
    pub(crate) closers: &'static [&'static str],
    /// What may stand between calls that are not in a list.
    pub(crate) separators: &'static [u8],
}

#[derive(Clone, Debug)]
enum State {
    /// Before an object, or the list.
    Item,
    /// Before a key or the end of the object.
    Key,
    InKey(Unescape),
    Colon,
    Value,
    Name(Unescape),
    Skip(Scanner),
    /// Arguments, possibly inside a string.
    Arguments(Scanner, Option<Unescape>),
    /// After a value.
    Comma,
    /// After an object in a list.
    ListComma,
    After,
}

#[derive(Clone, Debug)]
pub(crate) struct JsonBody {
    form: &'static JsonForm,
    state: State,
    is_list: bool,
    /// Inside the value of [`FUNCTION_KEY`].
    is_nested: bool,
    key: String,
    /// Bytes of the key or name that came.
    string_bytes: usize,
    name: Option<String>,
    /// Arguments that came before the name.
    early: String,
    has_arguments: bool,
    is_told: bool,
    /// The next value is the whole of a call: no list may begin any more.
    has_begun: bool,
}

impl JsonBody {
    pub(crate) fn new(form: &'static JsonForm, is_list: bool) -> Self {
        Self {
            form,
            state: State::Item,
            is_list,
            is_nested: false,
            key: String::new(),
            string_bytes: 0,
            name: None,
            early: String::new(),
            has_arguments: false,
            is_told: false,
            has_begun: false,
        }
    }

    pub(crate) fn has_name(&self) -> bool {
        self.name.is_some() && !matches!(self.state, State::Name(_))
    }

    pub(crate) fn step(&mut self, rest: &str, context: &mut Context<'_>) -> Step {
        if rest.is_empty() {
            return Step::More;
        }
        match &mut self.state {
            State::InKey(_) | State::Name(_) => self.short_string(rest, context),
            State::Skip(scanner) => match scanner.scan(rest, &mut String::new()) {
                Scan::More => Step::Take(rest.len()),
                Scan::Done(len) => self.go(State::Comma, len),
                Scan::Bad(at) => self.broken(at),
            },
            State::Arguments(..) => self.arguments(rest, context),
            _ => {
                let blank = leading_space(rest);
                if matches!(self.state, State::After) {
                    self.after(rest, blank)
                } else if blank > 0 {
                    Step::Take(blank)
                } else {
                    self.structure(rest, context)
                }
            }
        }
    }

    fn go(&mut self, state: State, len: usize) -> Step {
        self.state = state;
        Step::Take(len)
    }

    /// What is wrong after a call was told is not part of it.
    fn broken(&mut self, at: usize) -> Step {
        if self.is_told { self.go(State::After, at) } else { Step::Broken(at) }
    }

    /// A key or the name, up to the limit.
    fn short_string(&mut self, rest: &str, context: &Context<'_>) -> Step {
        let text = clip(rest, (MAX_HEADER_BYTES + 1).saturating_sub(self.string_bytes));
        let (scan, is_name) = match &mut self.state {
            State::InKey(unescape) => (unescape.scan(text, &mut self.key), false),
            State::Name(unescape) => (unescape.scan(text, self.name.get_or_insert_default()), true),
            _ => (Scan::Bad(0), false),
        };
        match scan {
            Scan::More if text.is_empty() => self.broken(0),
            Scan::More => {
                self.string_bytes += text.len();
                Step::Take(text.len())
            }
            Scan::Bad(at) => self.broken(at),
            Scan::Done(len) if !is_name => self.go(State::Colon, len),
            Scan::Done(len)
                if self.name.as_deref().is_some_and(|name| !name.is_empty() && context.allows(name)) =>
            {
                self.go(State::Comma, len)
            }
            Scan::Done(len) => {
                self.name = None;
                Step::Broken(len)
            }
        }
    }

    fn structure(&mut self, rest: &str, context: &mut Context<'_>) -> Step {
        let Some(first) = rest.bytes().next() else { return Step::More };
        match (&self.state, first) {
            (State::Item, b'[') if !self.is_list && !self.has_begun => {
                self.is_list = true;
                self.has_begun = true;
                Step::Take(1)
            }
            (State::Item, b']') if self.is_list => self.go(State::After, 1),
            (State::Item, b'{') => {
                self.has_begun = true;
                (self.name, self.has_arguments, self.is_told, self.is_nested) = (None, false, false, false);
                self.early.clear();
                self.go(State::Key, 1)
            }
            (State::Key, b'"') => {
                self.key.clear();
                self.string_bytes = 0;
                self.go(State::InKey(Unescape::new(Dialect::Json, b'"')), 1)
            }
            (State::Key | State::Comma, b'}') => self.object_ends(context),
            (State::Colon, b':') => self.go(State::Value, 1),
            (State::Value, _) => self.value(first, context),
            (State::Comma, b',') => self.go(State::Key, 1),
            (State::ListComma, b',') => self.go(State::Item, 1),
            (State::ListComma, b']') => self.go(State::After, 1),
            (State::ListComma, _) => self.go(State::After, 0),
            _ => self.broken(0),
        }
    }

    fn value(&mut self, first: u8, context: &Context<'_>) -> Step {
        let key = self.key.as_str();
        let is_function = key == FUNCTION_KEY;
        if (is_function || self.form.name_keys.contains(&key)) && self.name.is_none() && first == b'"' {
            self.string_bytes = 0;
            return self.go(State::Name(Unescape::new(Dialect::Json, b'"')), 1);
        }
        if is_function && first == b'{' && !self.is_nested {
            self.is_nested = true;
            return self.go(State::Key, 1);
        }
        if self.form.argument_keys.contains(&key) && !self.has_arguments {
            self.has_arguments = true;
            return match first {
                b'{' => self.go(State::Arguments(Scanner::new(), None), 0),
                b'"' => {
                    self.go(State::Arguments(Scanner::new(), Some(Unescape::new(Dialect::Json, b'"'))), 1)
                }
                b'n' => self.go(State::Skip(Scanner::new()), 0),
                _ => Step::Broken(0),
            };
        }
        let is_known = self.is_told
            || OTHER_KEYS.contains(&key)
            || is_function
            || self.form.name_keys.contains(&key)
            || self.form.argument_keys.contains(&key);
        // Without a marker an object with other keys is an answer, which should flow.
        if !context.is_marked && !is_known {
            return Step::Broken(0);
        }
        self.go(State::Skip(Scanner::new()), 0)
    }

    fn arguments(&mut self, rest: &str, context: &mut Context<'_>) -> Step {
        let State::Arguments(scanner, unescape) = &mut self.state else { return Step::Broken(0) };
        let mut json = String::new();
        let scan = match unescape {
            None => scanner.scan(rest, &mut json),
            Some(unescape) => {
                let is_new = !context.calls.is_open() && self.early.is_empty();
                quoted_arguments(rest, unescape, scanner, is_new, &mut json)
            }
        };
        self.tell(&json, matches!(scan, Scan::Done(_)), context);
        match scan {
            Scan::More => Step::Take(rest.len()),
            Scan::Done(len) => self.go(State::Comma, len),
            Scan::Bad(at) => Step::Broken(at),
        }
    }

    /// Passes arguments on, or holds them until the name is known.
    fn tell(&mut self, json: &str, ended: bool, context: &mut Context<'_>) {
        let Some(name) = &self.name else { return self.early.push_str(json) };
        if !context.calls.is_open() && !json.is_empty() {
            context.start(name, None);
        }
        context.arguments(json);
        if ended && context.calls.is_open() {
            context.end();
            self.is_told = true;
        }
    }

    fn object_ends(&mut self, context: &mut Context<'_>) -> Step {
        if std::mem::take(&mut self.is_nested) {
            return self.go(State::Comma, 1);
        }
        if !self.is_told {
            let Some(name) = &self.name else { return Step::Broken(1) };
            context.start(name, None);
            context.arguments(if self.early.is_empty() { "{}" } else { &self.early });
            context.end();
            self.is_told = true;
        }
        self.go(if self.is_list { State::ListComma } else { State::After }, 1)
    }

    fn after(&mut self, rest: &str, blank: usize) -> Step {
        let text = rest.get(blank..).unwrap_or_default();
        let ends_alone = self.form.closers.is_empty() && self.form.separators.is_empty();
        match prefix(text, self.form.closers) {
            _ if ends_alone || blank > MAX_GAP_BYTES => Step::Close(0),
            _ if text.is_empty() => Step::More,
            Hit::Marker { which, .. } => Step::Close(blank + self.form.closers[which].len()),
            Hit::Partial { .. } => Step::More,
            Hit::None if text.bytes().next().is_some_and(|byte| self.form.separators.contains(&byte)) => {
                self.go(State::Item, blank + 1)
            }
            Hit::None if text.starts_with('{') && !self.form.closers.is_empty() => {
                self.go(State::Item, blank)
            }
            Hit::None => Step::Close(0),
        }
    }
}

/// Arguments inside a string: an object, or nothing.
fn quoted_arguments(
    rest: &str,
    unescape: &mut Unescape,
    scanner: &mut Scanner,
    is_new: bool,
    json: &mut String,
) -> Scan {
    let mut again = unescape.clone();
    let mut text = String::new();
    let outer = unescape.scan(rest, &mut text);
    let inner = scanner.scan(&text, json);
    let bad = match inner {
        _ if is_new && !json.is_empty() && !json.starts_with('{') => {
            json.clear();
            Some(leading_space(&text))
        }
        Scan::Bad(at) => Some(at),
        Scan::Done(used) => {
            let after = text.get(used..).unwrap_or_default();
            let blank = leading_space(after);
            (blank < after.len()).then_some(used + blank)
        }
        Scan::More => None,
    };
    if let Some(bad) = bad {
        return Scan::Bad(encoded_len(rest, &mut again, bad));
    }
    match outer {
        Scan::Done(len) if !(scanner.is_whole() || (is_new && json.is_empty())) => Scan::Bad(len),
        outer => outer,
    }
}

/// Bytes of `rest` that decode to the first `decoded` bytes and the character after them.
fn encoded_len(rest: &str, unescape: &mut Unescape, decoded: usize) -> usize {
    let mut text = String::new();
    for (at, c) in rest.char_indices() {
        let end = at + c.len_utf8();
        unescape.scan(rest.get(at..end).unwrap_or_default(), &mut text);
        if text.len() > decoded {
            return end;
        }
    }
    rest.len()
}
