//! A pull parser for request bodies.
//!
//! It exists because clients deserve to read which field is wrong, what was expected and what was found, because
//! `null` has to mean "absent" everywhere (R09), and because the fields nobody asked for have to be named (R10), all
//! of it in one pass without an intermediate tree. Free-form values (tool schemas) still become [`Value`]s.
//!
//! Rules that JSON leaves open: of duplicate keys the last one that is not null wins, as in every common parser;
//! lone surrogates are refused; a number with a fraction or an exponent is not an integer.

use dynamo_types::Error;
use serde_json::Value;
use std::borrow::Cow;
use std::fmt::{self, Display, Write};

use crate::limits::Rule;

mod partial;
mod strings;

pub(crate) use partial::whole_part;

type Result<T, E = Error> = std::result::Result<T, E>;

/// Nesting of arrays and objects. Deeper bodies are attacks; `serde_json` itself stops at 128.
const MAX_DEPTH: usize = 96;
/// Names of fields without effect that are kept; more help nobody and would let a body grow the log.
const MAX_DROPPED: usize = 32;
/// Bytes of client text repeated in a message.
const MAX_ECHO: usize = 64;
/// Bytes of the path to a field in a message: deeper ones are only as long as they are to be long.
pub(crate) const MAX_PATH: usize = 256;

enum Segment<'a> {
    Key(Cow<'a, str>),
    Index(usize),
}

/// Reads one JSON text from front to back.
pub(crate) struct Reader<'a> {
    text: &'a str,
    at: usize,
    path: Vec<Segment<'a>>,
    dropped: Vec<String>,
}

/// What stands at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Null,
    Boolean,
    Number,
    String,
    Array,
    Object,
}

impl Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Null => "null",
            Self::Boolean => "a boolean",
            Self::Number => "a number",
            Self::String => "a string",
            Self::Array => "an array",
            Self::Object => "an object",
        })
    }
}

/// At most 64 bytes of what a client sent, without control characters, for messages and logs.
pub fn echo(text: &str) -> String {
    shorten(text, MAX_ECHO)
}

/// The same with another length.
pub(crate) fn shorten(text: &str, max: usize) -> String {
    let end = text.floor_char_boundary(max);
    let mut shown: String = text[..end].chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    if end < text.len() {
        shown.push_str("...");
    }
    shown
}

/// Reads a body that is one object; `field` is called with each key whose value is not null and must consume the value.
/// Returns the names of the fields that were dropped.
pub(crate) fn document<'a>(
    body: &'a [u8],
    mut field: impl FnMut(&mut Reader<'a>, &str) -> Result<()>,
) -> Result<Vec<String>> {
    let text = std::str::from_utf8(body).map_err(|error| {
        let place = error.valid_up_to();
        Error::invalid(format!("the body is not valid UTF-8 at byte {place}")).with_code("invalid_json")
    })?;
    let mut reader = Reader::new(text);
    reader.object("a JSON object", &mut field)?;
    reader.end()?;
    Ok(reader.dropped)
}

impl<'a> Reader<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, at: 0, path: Vec::with_capacity(8), dropped: Vec::new() }
    }

    /// The place just read from, in the client's spelling: `messages[0].content`.
    pub(crate) fn path(&self) -> String {
        let mut path = String::new();
        for segment in &self.path {
            match segment {
                Segment::Key(key) => {
                    if !path.is_empty() {
                        path.push('.');
                    }
                    path.push_str(&echo(key));
                }
                // Writing to a String cannot fail.
                Segment::Index(index) => _ = write!(path, "[{index}]"),
            }
        }
        if path.len() > MAX_PATH { shorten(&path, MAX_PATH) } else { path }
    }

    fn fault(&self, message: impl FnOnce(&str) -> String) -> Error {
        let path = self.path();
        if path.is_empty() {
            return Error::invalid(message("the request body"));
        }
        Error::invalid(message(&format!("`{path}`"))).with_param(path)
    }

    /// 400: the value at this place is of the right type but means nothing. `problem` follows the field's name.
    pub(crate) fn refuse(&self, problem: impl Display) -> Error {
        self.fault(|place| format!("{place} {problem}")).with_code("invalid_value")
    }

    /// 400: another type stands here than `expected`.
    pub(crate) fn wrong_type(&mut self, expected: &str) -> Error {
        match self.peek() {
            Ok(found) => self
                .fault(|place| format!("{place}: expected {expected}, found {found}"))
                .with_code("invalid_type"),
            Err(syntax) => syntax,
        }
    }

    fn syntax(&self, problem: &str) -> Error {
        let before = &self.text.as_bytes()[..self.at.min(self.text.len())];
        let line = 1 + memchr::memchr_iter(b'\n', before).count();
        let start = memchr::memrchr(b'\n', before).map_or(0, |newline| newline + 1);
        let column = 1 + before.len() - start;
        let place = format!("at line {line}, column {column} (byte {})", before.len());
        Error::invalid(format!("the body is not valid JSON: {problem} {place}")).with_code("invalid_json")
    }

    #[inline]
    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    #[inline]
    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.byte() {
            self.at += 1;
        }
    }

    /// The kind of the next value, without consuming it.
    pub(crate) fn peek(&mut self) -> Result<Kind> {
        self.space();
        Ok(match self.byte() {
            Some(b'"') => Kind::String,
            Some(b'{') => Kind::Object,
            Some(b'[') => Kind::Array,
            Some(b'-' | b'0'..=b'9') => Kind::Number,
            Some(b't' | b'f') => Kind::Boolean,
            Some(b'n') => Kind::Null,
            Some(_) => return Err(self.syntax("expected a value")),
            None if self.at == 0 => return Err(self.syntax("the body is empty, expected an object")),
            None => return Err(self.syntax("unexpected end, expected a value")),
        })
    }

    /// The kind of the first item of the array that stands here, without consuming anything; None when it is empty.
    pub(crate) fn peek_item(&mut self) -> Result<Option<Kind>> {
        let start = self.at;
        self.at += 1;
        self.space();
        let kind = if self.byte() == Some(b']') { None } else { Some(self.peek()?) };
        self.at = start;
        Ok(kind)
    }

    fn literal(&mut self, word: &str) -> Result<()> {
        if !self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return Err(self.syntax("expected a value"));
        }
        self.at += word.len();
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.space();
        if self.at < self.text.len() {
            return Err(self.syntax("unexpected text after the end of the value"));
        }
        Ok(())
    }

    fn expect(&mut self, byte: u8, problem: &str) -> Result<()> {
        self.space();
        if self.byte() != Some(byte) {
            return Err(self.syntax(problem));
        }
        self.at += 1;
        Ok(())
    }

    fn enter(&self) -> Result<()> {
        if self.path.len() >= MAX_DEPTH {
            return Err(self.syntax(&format!("nested more than {MAX_DEPTH} levels deep")));
        }
        Ok(())
    }

    /// Reads an object. `field` sees each key whose value is not null (R09) and must consume the value, by reading it
    /// or with [`Reader::unknown`].
    pub(crate) fn object(
        &mut self,
        expected: &str,
        mut field: impl FnMut(&mut Self, &str) -> Result<()>,
    ) -> Result<()> {
        if self.peek()? != Kind::Object {
            return Err(self.wrong_type(expected));
        }
        self.enter()?;
        self.at += 1;
        self.space();
        if self.byte() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.space();
            if self.byte() != Some(b'"') {
                return Err(self.syntax("expected a key in double quotes"));
            }
            let key = self.string_body()?;
            self.expect(b':', "expected ':' after a key")?;
            if self.peek()? == Kind::Null {
                self.literal("null")?;
            } else {
                self.path.push(Segment::Key(key.clone()));
                field(self, &key)?;
                self.path.pop();
            }
            self.space();
            match self.byte() {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                _ => return Err(self.syntax("expected ',' or '}'")),
            }
        }
        self.at += 1;
        Ok(())
    }

    /// Reads an array; `item` must consume each value. Returns the number of items.
    pub(crate) fn array(
        &mut self,
        expected: &str,
        mut item: impl FnMut(&mut Self, usize) -> Result<()>,
    ) -> Result<usize> {
        if self.peek()? != Kind::Array {
            return Err(self.wrong_type(expected));
        }
        self.enter()?;
        self.at += 1;
        self.space();
        if self.byte() == Some(b']') {
            self.at += 1;
            return Ok(0);
        }
        self.path.push(Segment::Index(0));
        let mut index = 0;
        loop {
            item(self, index)?;
            index += 1;
            // In place, because arrays of token ids are long.
            if let Some(Segment::Index(last)) = self.path.last_mut() {
                *last = index;
            }
            self.space();
            match self.byte() {
                Some(b',') => self.at += 1,
                Some(b']') => break,
                _ => return Err(self.syntax("expected ',' or ']'")),
            }
        }
        self.path.pop();
        self.at += 1;
        Ok(index)
    }

    pub(crate) fn string(&mut self) -> Result<Cow<'a, str>> {
        if self.peek()? != Kind::String {
            return Err(self.wrong_type("a string"));
        }
        self.string_body()
    }

    /// A string within the bounds of `rule`.
    pub(crate) fn text(&mut self, rule: &Rule) -> Result<String> {
        let text = self.string()?;
        rule.check_len(self.path(), text.len())?;
        Ok(text.into_owned())
    }

    pub(crate) fn boolean(&mut self) -> Result<bool> {
        if self.peek()? != Kind::Boolean {
            return Err(self.wrong_type("a boolean"));
        }
        let value = self.byte() == Some(b't');
        self.literal(if value { "true" } else { "false" })?;
        Ok(value)
    }

    /// A finite or infinite number within the bounds of `rule`.
    pub(crate) fn number(&mut self, rule: &Rule) -> Result<f32> {
        if self.peek()? != Kind::Number {
            return Err(self.wrong_type("a number"));
        }
        let literal = self.number_body()?;
        let value: f64 = literal.parse().map_err(|_| self.syntax("malformed number"))?;
        rule.check(Place(self), value, echo(literal))?;
        Ok(value as f32)
    }

    /// A whole number within the bounds of `rule`. Numbers beyond an `i128` are taken for its ends.
    pub(crate) fn integer(&mut self, rule: &Rule) -> Result<i128> {
        if self.peek()? != Kind::Number {
            return Err(self.wrong_type("an integer"));
        }
        let literal = self.number_body()?;
        if literal.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E')) {
            let text = |place: &str| format!("{place}: expected an integer, found {}", echo(literal));
            return Err(self.fault(text).with_code("invalid_type"));
        }
        let value = literal.parse().unwrap_or(if literal.starts_with('-') { i128::MIN } else { i128::MAX });
        rule.check(Place(self), value as f64, echo(literal))?;
        Ok(value)
    }

    /// A whole number within the bounds of `rule` and of the type.
    pub(crate) fn whole<T: TryFrom<i128>>(&mut self, rule: &Rule) -> Result<T> {
        let value = self.integer(rule)?;
        T::try_from(value)
            .map_err(|_| self.refuse(format_args!("must fit {} bits, got {value}", 8 * size_of::<T>())))
    }

    /// The rest of an array of token ids, from its `[` on. Quick, because prompts may come this way.
    pub(crate) fn token_ids(&mut self, rule: &Rule) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.array("an array of token ids", |reader, _| {
            reader.space();
            let digits = &reader.text.as_bytes()[reader.at..];
            let mut value = 0u64;
            let mut len = 0;
            // Nine digits cannot overflow and hold every real vocabulary; all else takes the careful way.
            while let Some(digit @ b'0'..=b'9') = digits.get(len).copied().filter(|_| len < 9) {
                value = value * 10 + u64::from(digit - b'0');
                len += 1;
            }
            let whole = matches!(digits.get(len), Some(b',' | b']' | b' ' | b'\n' | b'\r' | b'\t'));
            if len > 0 && whole && (digits.first() != Some(&b'0') || len == 1) {
                reader.at += len;
                ids.push(value as u32);
            } else {
                ids.push(reader.whole(rule)?);
            }
            Ok(())
        })?;
        Ok(ids)
    }

    /// The text of the next value, checked for syntax only.
    pub(crate) fn raw(&mut self) -> Result<&'a str> {
        self.space();
        let start = self.at;
        self.skip(self.path.len())?;
        Ok(&self.text[start..self.at])
    }

    /// The next value as a tree.
    pub(crate) fn value(&mut self) -> Result<Value> {
        let raw = self.raw()?;
        serde_json::from_str(raw).map_err(|error| self.refuse(format_args!("cannot be read: {error}")))
    }

    /// Skips a value that has no effect and notes its name.
    pub(crate) fn unknown(&mut self) -> Result<()> {
        self.unknown_unless(|_| false)
    }

    /// The same, except that a value which `asks_for_nothing` is as good as absent.
    pub(crate) fn unknown_unless(&mut self, asks_for_nothing: impl FnOnce(&str) -> bool) -> Result<()> {
        let raw = self.raw()?;
        if !asks_for_nothing(raw) {
            self.ineffective();
        }
        Ok(())
    }

    /// Notes that the value just read has no effect.
    pub(crate) fn ineffective(&mut self) {
        if self.dropped.len() < MAX_DROPPED {
            let path = self.path();
            // A duplicate key is named once.
            if !self.dropped.contains(&path) {
                self.dropped.push(path);
            }
        }
    }

    fn skip(&mut self, depth: usize) -> Result<()> {
        match self.peek()? {
            Kind::Null => self.literal("null"),
            Kind::Boolean => self.boolean().map(|_| ()),
            Kind::Number => self.number_body().map(|_| ()),
            Kind::String => self.string_body().map(|_| ()),
            Kind::Array | Kind::Object if depth >= MAX_DEPTH => {
                Err(self.syntax(&format!("nested more than {MAX_DEPTH} levels deep")))
            }
            Kind::Array => self.skip_items(b']', depth),
            Kind::Object => self.skip_items(b'}', depth),
        }
    }

    fn skip_items(&mut self, close: u8, depth: usize) -> Result<()> {
        self.at += 1;
        self.space();
        if self.byte() == Some(close) {
            self.at += 1;
            return Ok(());
        }
        loop {
            if close == b'}' {
                self.space();
                if self.byte() != Some(b'"') {
                    return Err(self.syntax("expected a key in double quotes"));
                }
                self.string_body()?;
                self.expect(b':', "expected ':' after a key")?;
            }
            self.skip(depth + 1)?;
            self.space();
            match self.byte() {
                Some(b',') => self.at += 1,
                Some(byte) if byte == close => break,
                _ => return Err(self.syntax("expected ',' or the end of an array or object")),
            }
        }
        self.at += 1;
        Ok(())
    }

    /// A number by JSON's grammar, as written.
    fn number_body(&mut self) -> Result<&'a str> {
        let start = self.at;
        if self.byte() == Some(b'-') {
            self.at += 1;
        }
        let whole = self.digits()?;
        if whole > 1 && self.text.as_bytes()[self.at - whole] == b'0' {
            return Err(self.syntax("a number starts with 0"));
        }
        if self.byte() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.byte() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.byte() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(&self.text[start..self.at])
    }

    fn digits(&mut self) -> Result<usize> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.byte() {
            self.at += 1;
        }
        if self.at == start {
            return Err(self.syntax("expected a digit"));
        }
        Ok(self.at - start)
    }
}

/// Writes a reader's path, only if somebody reads it.
struct Place<'r, 'a>(&'r Reader<'a>);

impl Display for Place<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.path())
    }
}

#[cfg(test)]
mod tests;
