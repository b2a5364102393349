//! Calls whose arguments are marked one by one: XML-like tags, key and value pairs, DSML, XTML.

use super::super::json::{Scan, Scanner, quote};
use super::super::scan::{Hit, find, leading_space, prefix};
use super::super::schema::Kind;
use super::super::value::ValueWriter;
use super::form::{Context, Step, is_name};
use super::headed::{Gathered, gather};

/// Where a header keeps a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Name {
    /// The whole header.
    Plain,
    /// This attribute.
    Attribute(&'static str),
}

/// What tells the type of an argument, before its schema.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TypeMark {
    None,
    /// `string="true"`, or JSON.
    IsString,
    /// `type="string"`, or JSON.
    Type,
}

#[derive(Debug)]
pub(crate) struct MarkupForm {
    /// Begins a call inside a block; empty where the opener of the block does.
    pub(crate) call_open: &'static str,
    /// Ends the header of a call.
    pub(crate) call_header_ends: &'static [&'static str],
    /// Ends it, too, and is read again.
    pub(crate) call_header_stops: &'static [&'static str],
    pub(crate) call_name: Name,
    pub(crate) call_close: &'static str,
    pub(crate) argument_open: &'static str,
    pub(crate) argument_header_end: &'static str,
    pub(crate) argument_name: Name,
    pub(crate) type_mark: TypeMark,
    /// Whether an argument of which no schema tells anything is a string, whatever it looks like.
    pub(crate) unknown_is_text: bool,
    /// Stands between header and value, if not empty.
    pub(crate) value_open: &'static str,
    pub(crate) argument_close: &'static str,
    /// Whether one newline at each end of a value is framing.
    pub(crate) trims: bool,
    /// All arguments as one JSON object: what begins its header and what ends it.
    pub(crate) json: Option<(&'static str, &'static str)>,
    pub(crate) block_closers: &'static [&'static str],
}

#[derive(Clone, Debug)]
enum State {
    Between,
    CallHeader,
    Arguments,
    ArgumentHeader,
    ValueOpen(Kind),
    Value(ValueWriter),
    JsonHeader,
    /// The object, and whether it has a mark of its own.
    Json(Scanner, bool),
    JsonTail,
}

#[derive(Clone, Debug)]
pub(crate) struct MarkupBody {
    form: &'static MarkupForm,
    state: State,
    header: String,
    name: String,
    /// Arguments of the call so far.
    arguments: usize,
    has_called: bool,
}

impl MarkupBody {
    pub(crate) fn new(form: &'static MarkupForm, starts_in_call: bool) -> Self {
        let state = if starts_in_call { State::CallHeader } else { State::Between };
        Self { form, state, header: String::new(), name: String::new(), arguments: 0, has_called: false }
    }

    pub(crate) fn step(&mut self, rest: &str, context: &mut Context<'_>) -> Step {
        if rest.is_empty() {
            return Step::More;
        }
        match &mut self.state {
            State::Value(_) => self.value(rest, context),
            State::Json(..) => self.json(rest, context),
            State::CallHeader => self.call_header(rest),
            State::ArgumentHeader => self.argument_header(rest, context),
            State::JsonHeader => match gather(&mut self.header, rest, &[self.form.argument_header_end]) {
                Gathered::End { at, .. } => {
                    self.go(State::Json(Scanner::new(), true), at + self.form.argument_header_end.len())
                }
                Gathered::Step(step) => step,
            },
            State::Between | State::Arguments | State::ValueOpen(_) | State::JsonTail => {
                let blank = leading_space(rest);
                if blank > 0 {
                    return Step::Take(blank);
                }
                match self.state {
                    State::Between => self.between(rest),
                    State::Arguments => self.arguments(rest, context),
                    State::ValueOpen(kind) => self.expect(
                        rest,
                        self.form.value_open,
                        State::Value(ValueWriter::new(kind, self.form.trims)),
                    ),
                    _ => self.expect(rest, self.form.json.map_or("", |(_, close)| close), State::Arguments),
                }
            }
        }
    }

    fn go(&mut self, state: State, len: usize) -> Step {
        self.state = state;
        Step::Take(len)
    }

    fn expect(&mut self, rest: &str, marker: &'static str, then: State) -> Step {
        match prefix(rest, &[marker]) {
            Hit::Marker { .. } => self.go(then, marker.len()),
            Hit::Partial { .. } => Step::More,
            Hit::None => Step::Broken(0),
        }
    }

    fn between(&mut self, rest: &str) -> Step {
        let markers: Vec<_> = [self.form.call_open].iter().chain(self.form.block_closers).copied().collect();
        match prefix(rest, &markers) {
            Hit::Marker { which: 0, .. } => {
                self.header.clear();
                self.go(State::CallHeader, self.form.call_open.len())
            }
            Hit::Marker { which, .. } if self.has_called => Step::Close(markers[which].len()),
            Hit::Partial { .. } => Step::More,
            _ if self.has_called => Step::Close(0),
            _ => Step::Broken(0),
        }
    }

    fn call_header(&mut self, rest: &str) -> Step {
        // A newline may end a header only after something came.
        if self.header.is_empty() && leading_space(rest) > 0 {
            return Step::Take(leading_space(rest));
        }
        let ends: Vec<_> =
            self.form.call_header_ends.iter().chain(self.form.call_header_stops).copied().collect();
        let (at, which) = match gather(&mut self.header, rest, &ends) {
            Gathered::End { at, which } => (at, which),
            Gathered::Step(step) => return step,
        };
        let Some(name) = name_in(&self.header, self.form.call_name).filter(|name| is_name(name)) else {
            return Step::Broken(at);
        };
        self.name = name;
        self.arguments = 0;
        let is_stop = which >= self.form.call_header_ends.len();
        self.go(State::Arguments, at + if is_stop { 0 } else { ends[which].len() })
    }

    fn arguments(&mut self, rest: &str, context: &mut Context<'_>) -> Step {
        let json_open = self.form.json.map_or("", |(open, _)| open);
        let mut markers = vec![self.form.argument_open, self.form.call_close, json_open, self.form.call_open];
        markers.extend(self.form.block_closers);
        let which = match prefix(rest, &markers) {
            Hit::Marker { which, .. } => which,
            Hit::Partial { .. } => return Step::More,
            Hit::None if rest.starts_with('{') && self.arguments == 0 => {
                return self.go(State::Json(Scanner::new(), false), 0);
            }
            Hit::None => return Step::Broken(0),
        };
        let len = markers[which].len();
        self.header.clear();
        match which {
            0 => self.go(State::ArgumentHeader, len),
            2 if self.arguments == 0 => self.go(State::JsonHeader, len),
            2 => Step::Broken(0),
            _ => {
                self.call_ends(context);
                match which {
                    1 if self.form.call_open.is_empty() => Step::Close(len),
                    1 => self.go(State::Between, len),
                    3 => self.go(State::CallHeader, len),
                    _ => Step::Close(len),
                }
            }
        }
    }

    fn call_ends(&mut self, context: &mut Context<'_>) {
        if context.calls.is_open() {
            context.arguments("}");
        } else if self.arguments == 0 {
            context.start(&self.name, None);
            context.arguments("{}");
        }
        context.end();
        self.has_called = true;
    }

    fn argument_header(&mut self, rest: &str, context: &mut Context<'_>) -> Step {
        let at = match gather(&mut self.header, rest, &[self.form.argument_header_end]) {
            Gathered::End { at, .. } => at,
            Gathered::Step(step) => return step,
        };
        let Some(key) = name_in(&self.header, self.form.argument_name).filter(|key| !key.is_empty()) else {
            return Step::Broken(at);
        };
        let kind = match self.form.type_mark {
            TypeMark::IsString => mark_kind(attribute(&self.header, "string"), "true"),
            TypeMark::Type => mark_kind(attribute(&self.header, "type"), "string"),
            TypeMark::None => None,
        };
        let kind = kind.unwrap_or_else(|| {
            let schema = context.tools.schema(&self.name, &[Some(key.clone())]);
            if self.form.unknown_is_text && schema.is_silent() { Kind::Text } else { schema.kind() }
        });
        if self.arguments == 0 {
            context.start(&self.name, None);
        }
        let mut json = String::from(if self.arguments == 0 { "{" } else { ", " });
        quote(&key, &mut json);
        json.push_str(": ");
        context.arguments(&json);
        self.arguments += 1;
        let next = if self.form.value_open.is_empty() {
            State::Value(ValueWriter::new(kind, self.form.trims))
        } else {
            State::ValueOpen(kind)
        };
        self.go(next, at + self.form.argument_header_end.len())
    }

    fn value(&mut self, rest: &str, context: &mut Context<'_>) -> Step {
        let State::Value(writer) = &mut self.state else { return Step::Broken(0) };
        let mut json = String::new();
        let (len, ended) = match find(rest, &[self.form.argument_close]) {
            Hit::Marker { at, .. } => (at, true),
            Hit::Partial { at: 0 } => return Step::More,
            Hit::Partial { at } => (at, false),
            Hit::None => (rest.len(), false),
        };
        writer.push(rest.get(..len).unwrap_or_default(), &mut json);
        if !ended {
            context.arguments(&json);
            return Step::Take(len);
        }
        if let State::Value(writer) = std::mem::replace(&mut self.state, State::Arguments) {
            writer.finish(&mut json);
        }
        context.arguments(&json);
        Step::Take(len + self.form.argument_close.len())
    }

    /// All arguments as one object.
    fn json(&mut self, rest: &str, context: &mut Context<'_>) -> Step {
        let State::Json(scanner, is_marked) = &mut self.state else { return Step::Broken(0) };
        let is_marked = *is_marked;
        let mut json = String::new();
        let scan = scanner.scan(rest, &mut json);
        if !json.is_empty() && !context.calls.is_open() {
            if !json.starts_with('{') {
                return Step::Broken(leading_space(rest));
            }
            context.start(&self.name, None);
        }
        context.arguments(&json);
        match scan {
            Scan::More => Step::Take(rest.len()),
            Scan::Bad(at) => Step::Broken(at),
            Scan::Done(len) => {
                context.end();
                self.has_called = true;
                self.arguments = 1;
                self.go(if is_marked { State::JsonTail } else { State::Arguments }, len)
            }
        }
    }
}

fn mark_kind(mark: Option<String>, text: &str) -> Option<Kind> {
    mark.map(|mark| if mark == text { Kind::Text } else { Kind::Json })
}

fn name_in(header: &str, name: Name) -> Option<String> {
    match name {
        Name::Plain => Some(header.trim_ascii().to_owned()),
        Name::Attribute(key) => attribute(header, key),
    }
}

/// The value of the attribute `key` in `key="value" key=value ...`.
pub(crate) fn attribute(header: &str, key: &str) -> Option<String> {
    let mut rest = header.trim_ascii();
    while let Some((name, after)) = rest.split_once('=') {
        let after = after.trim_ascii_start();
        let quoted = ['"', '\''].into_iter().find_map(|mark| after.strip_prefix(mark)?.split_once(mark));
        let (value, next) = quoted.unwrap_or_else(|| {
            let end = after.find(|c: char| c.is_ascii_whitespace()).unwrap_or(after.len());
            after.split_at(end)
        });
        if name.trim_ascii() == key {
            return Some(
                value.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"),
            );
        }
        rest = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_and_unescaped() {
        let header = "name=\"a&amp;&quot;b\" string='true' index=1";
        assert_eq!(attribute(header, "name").as_deref(), Some("a&\"b"));
        assert_eq!(attribute(header, "string").as_deref(), Some("true"));
        assert_eq!(attribute(header, "index").as_deref(), Some("1"));
        assert_eq!(attribute(header, "type"), None);
    }
}
