//! Arguments as literals of a language that is not JSON: Python's, and Gemma's with its own quotes.

use super::super::json::{Scan, Scanner, escape, quote};
use super::super::scan::{Hit, clip, find, prefix};
use super::super::string::{Dialect, Unescape};

/// Nesting allowed in arguments; deeper is broken.
const MAX_DEPTH: usize = 128;

/// A name or number longer than this is none (1 KiB).
const MAX_ATOM_BYTES: usize = 1024;

#[derive(Debug)]
pub(crate) struct LiteralForm {
    /// Between name and value of an argument.
    pub(crate) separator: u8,
    /// Ends the arguments.
    pub(crate) close: u8,
    pub(crate) quotes: &'static [u8],
    pub(crate) dialect: Dialect,
    /// A quote of several bytes, without escapes.
    pub(crate) long_quote: &'static str,
    /// Whether other words are strings.
    pub(crate) has_bare_words: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    /// A key, or the end.
    Key,
    Separator,
    Value,
    /// A value, or the end of a list.
    Item,
    /// A comma, or the end.
    Next,
}

#[derive(Clone, Debug)]
struct Frame {
    close: u8,
    is_object: bool,
    separator: u8,
    expect: Expect,
    members: usize,
}

#[derive(Clone, Debug)]
enum Text {
    None,
    /// A word, number or bare key.
    Atom,
    Quoted(Unescape),
    LongQuoted,
}

/// Bytes used, or where the text does not follow the form.
type Used = Result<usize, usize>;

/// Turns named arguments into one JSON object while they arrive.
#[derive(Clone, Debug)]
pub(crate) struct Literal {
    form: &'static LiteralForm,
    stack: Vec<Frame>,
    text: Text,
    /// The atom, or the key.
    word: String,
    /// Whether the text is a key.
    is_key: bool,
}

impl Literal {
    pub(crate) fn new(form: &'static LiteralForm) -> Self {
        let root = Frame {
            close: form.close,
            is_object: true,
            separator: form.separator,
            expect: Expect::Key,
            members: 0,
        };
        Self { form, stack: vec![root], text: Text::None, word: String::new(), is_key: false }
    }

    /// Reads on in `text`; the first number counts the bytes used, which may be fewer than all even for `More`. Nothing
    /// is written before the first separator or the end.
    pub(crate) fn scan(&mut self, text: &str, out: &mut String) -> (usize, Scan) {
        let mut at = 0;
        while at < text.len() {
            let rest = text.get(at..).unwrap_or_default();
            let used = match &mut self.text {
                Text::None => self.structure(rest, out),
                Text::Atom => self.atom(rest, out),
                Text::Quoted(unescape) => {
                    let mut plain = String::new();
                    let scan = unescape.scan(rest, &mut plain);
                    if self.is_key {
                        self.word.push_str(&plain);
                    } else {
                        escape(&plain, out);
                    }
                    match scan {
                        Scan::More => Ok(rest.len()),
                        Scan::Done(len) => {
                            self.string_ends(out);
                            Ok(len)
                        }
                        Scan::Bad(bad) => Err(bad),
                    }
                }
                Text::LongQuoted => Ok(self.long_quoted(rest, out)),
            };
            match used {
                Ok(0) => return (at, Scan::More),
                Ok(used) => at += used,
                Err(bad) => return (at + bad, Scan::Bad(at + bad)),
            }
            if self.stack.is_empty() {
                return (at, Scan::Done(at));
            }
        }
        (at, Scan::More)
    }

    fn long_quoted(&mut self, rest: &str, out: &mut String) -> usize {
        let (len, ended) = match find(rest, &[self.form.long_quote]) {
            Hit::Marker { at, .. } => (at, true),
            Hit::Partial { at } => (at, false),
            Hit::None => (rest.len(), false),
        };
        let plain = rest.get(..len).unwrap_or_default();
        if self.is_key {
            self.word.push_str(plain);
        } else {
            escape(plain, out);
        }
        if ended {
            self.string_ends(out);
        }
        len + if ended { self.form.long_quote.len() } else { 0 }
    }

    fn string_ends(&mut self, out: &mut String) {
        self.text = Text::None;
        if !self.is_key {
            out.push('"');
        }
        self.advance();
    }

    /// After a key or a value.
    fn advance(&mut self) {
        if let Some(frame) = self.stack.last_mut() {
            frame.expect = if self.is_key { Expect::Separator } else { Expect::Next };
        }
    }

    fn structure(&mut self, rest: &str, out: &mut String) -> Used {
        let first = rest.bytes().next().ok_or(0usize)?;
        if first.is_ascii_whitespace() {
            return Ok(1);
        }
        let frame = self.stack.last_mut().ok_or(0usize)?;
        match frame.expect {
            Expect::Key | Expect::Item | Expect::Next if first == frame.close => {
                if frame.members == 0 {
                    out.push(if frame.is_object { '{' } else { '[' });
                }
                out.push(if frame.is_object { '}' } else { ']' });
                self.stack.pop();
                self.is_key = false;
                self.advance();
                Ok(1)
            }
            Expect::Next if first == b',' => {
                frame.expect = if frame.is_object { Expect::Key } else { Expect::Item };
                Ok(1)
            }
            Expect::Separator if first == frame.separator => {
                out.push_str(if frame.members == 0 { "{" } else { ", " });
                quote(&self.word, out);
                out.push_str(": ");
                frame.members += 1;
                frame.expect = Expect::Value;
                Ok(1)
            }
            Expect::Key => {
                self.is_key = true;
                self.word.clear();
                self.begins(rest, out)
            }
            Expect::Value | Expect::Item => {
                let is_item = frame.expect == Expect::Item;
                self.is_key = false;
                self.word.clear();
                if is_item && prefix(rest, &[self.form.long_quote]) != (Hit::Partial { at: 0 }) {
                    out.push_str(if frame.members == 0 { "[" } else { ", " });
                    frame.members += 1;
                }
                self.begins(rest, out)
            }
            Expect::Next | Expect::Separator => Err(0),
        }
    }

    /// A key or value begins.
    fn begins(&mut self, rest: &str, out: &mut String) -> Used {
        let first = rest.bytes().next().ok_or(0usize)?;
        let opening = if self.is_key { "" } else { "\"" };
        match prefix(rest, &[self.form.long_quote]) {
            Hit::Partial { .. } => return Ok(0),
            Hit::Marker { .. } => {
                self.text = Text::LongQuoted;
                out.push_str(opening);
                return Ok(self.form.long_quote.len());
            }
            Hit::None => {}
        }
        if self.form.quotes.contains(&first) {
            self.text = Text::Quoted(Unescape::new(self.form.dialect, first));
            out.push_str(opening);
            return Ok(1);
        }
        let (close, is_object) = match first {
            b'[' => (b']', false),
            b'(' if self.form.dialect == Dialect::Python => (b')', false),
            b'{' => (b'}', true),
            _ if is_atom(first) => {
                self.text = Text::Atom;
                return self.atom(rest, out);
            }
            _ => return Err(0),
        };
        if self.is_key || self.stack.len() >= MAX_DEPTH {
            return Err(0);
        }
        let expect = if is_object { Expect::Key } else { Expect::Item };
        self.stack.push(Frame { close, is_object, separator: b':', expect, members: 0 });
        Ok(1)
    }

    fn atom(&mut self, rest: &str, out: &mut String) -> Used {
        let separator = self.stack.last().map(|frame| frame.separator).filter(|_| self.is_key);
        let is_end = |byte: u8| !is_atom(byte) || Some(byte) == separator;
        let len = rest.bytes().position(is_end).unwrap_or(rest.len());
        let word = clip(rest, len.min((MAX_ATOM_BYTES + 1).saturating_sub(self.word.len())));
        self.word.push_str(word);
        if word.len() < len {
            return Err(word.len());
        }
        if len == rest.len() {
            return Ok(len);
        }
        self.text = Text::None;
        if !self.is_key {
            self.write_word(out).ok_or(len)?;
        }
        self.advance();
        // The byte that ended the atom is structure, and follows at once.
        let structure = self.structure(rest.get(len..).unwrap_or_default(), out);
        structure.map(|used| len + used).map_err(|bad| len + bad)
    }

    fn write_word(&self, out: &mut String) -> Option<()> {
        let word = self.word.as_str();
        match word {
            "True" | "true" => out.push_str("true"),
            "False" | "false" => out.push_str("false"),
            "None" | "null" => out.push_str("null"),
            _ => match number(word) {
                Some(number) => out.push_str(&number),
                None if self.form.has_bare_words => quote(word, out),
                None => return None,
            },
        }
        Some(())
    }
}

/// A byte of a word or number. Whatever is not ASCII may be part of a name.
fn is_atom(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'_' | b'-' | b'+' | b'.' | b'$' | b'/' | b'@' | b':')
        || byte >= 0x80
}

/// JSON for a number of another language: `+1`, `1_000`, `.5` and `5.` become numbers.
fn number(word: &str) -> Option<String> {
    let plain = word.replace('_', "");
    let plain = plain.strip_prefix('+').unwrap_or(&plain);
    let (sign, digits) = plain.strip_prefix('-').map_or(("", plain), |digits| ("-", digits));
    let zero = if digits.starts_with('.') { "0" } else { "" };
    let end = if digits.ends_with('.') { "0" } else { "" };
    let text = format!("{sign}{zero}{digits}{end}");
    let mut json = String::new();
    let mut scanner = Scanner::new();
    let is_number = digits.trim_start_matches('.').starts_with(|c: char| c.is_ascii_digit());
    (is_number && scanner.scan(&text, &mut json) == Scan::More && scanner.is_whole()).then_some(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_other_languages() {
        for (word, want) in [("+1", "1"), ("1_000", "1000"), (".5", "0.5"), ("-5.", "-5.0"), ("1e3", "1e3")] {
            assert_eq!(number(word).as_deref(), Some(want));
        }
        for word in ["", "-", "x", "1x", "0x10", "007", "."] {
            assert_eq!(number(word), None, "{word}");
        }
    }
}
