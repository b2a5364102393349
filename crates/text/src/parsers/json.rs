//! JSON text in pieces: validated, repaired where models often slip, and decoded.

use super::scan::work;

/// Nesting allowed in arguments; deeper is not a call.
const MAX_DEPTH: usize = 256;

/// How far a scan came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scan {
    /// All of the text belongs to the value, which goes on.
    More,
    /// The value ended; so many bytes were its.
    Done(usize),
    /// The byte at this offset cannot follow.
    Bad(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Value,
    /// After `[`.
    FirstItem,
    /// After `{`.
    FirstKey,
    Key,
    Colon,
    /// After a value inside a container.
    Next,
    String {
        is_key: bool,
    },
    Escape {
        is_key: bool,
    },
    Hex {
        is_key: bool,
        left: u8,
    },
    Number(Number),
    /// So many bytes of the word came.
    Word(&'static str, usize),
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    Sign,
    Power,
}

impl Number {
    fn is_whole(self) -> bool {
        matches!(self, Self::Zero | Self::Integer | Self::Fraction | Self::Power)
    }

    fn next(self, byte: u8) -> Option<Self> {
        use Number::{Exponent, Fraction, Integer, Minus, Point, Power, Sign, Zero};
        match (self, byte) {
            (Minus, b'0') => Some(Zero),
            (Minus, b'1'..=b'9') | (Integer, b'0'..=b'9') => Some(Integer),
            (Zero | Integer, b'.') => Some(Point),
            (Point | Fraction, b'0'..=b'9') => Some(Fraction),
            (Zero | Integer | Fraction, b'e' | b'E') => Some(Exponent),
            (Exponent, b'+' | b'-') => Some(Sign),
            (Exponent | Sign | Power, b'0'..=b'9') => Some(Power),
            _ => None,
        }
    }
}

/// Follows one JSON value byte by byte and copies it out, control characters in strings and unknown escapes escaped,
/// so that what it lets through is valid JSON.
#[derive(Clone, Debug)]
pub(crate) struct Scanner {
    state: State,
    /// `true` for objects, `false` for arrays.
    stack: Vec<bool>,
}

impl Scanner {
    pub(crate) fn new() -> Self {
        Self { state: State::Value, stack: Vec::new() }
    }

    /// Whether the value would be whole if the text ended here.
    pub(crate) fn is_whole(&self) -> bool {
        match self.state {
            State::Done => true,
            State::Number(number) => self.stack.is_empty() && number.is_whole(),
            _ => false,
        }
    }

    /// Reads on in `text` and writes the valid part of it to `out`. Whitespace before the value is not written.
    pub(crate) fn scan(&mut self, text: &str, out: &mut String) -> Scan {
        work::count(text.len());
        let bytes = text.as_bytes();
        let mut from = 0;
        let mut at = 0;
        while at < bytes.len() {
            if matches!(self.state, State::String { .. }) {
                at += plain_len(&bytes[at..]);
                if at == bytes.len() {
                    break;
                }
            }
            match self.step(bytes[at]) {
                Step::Keep => at += 1,
                Step::Skip => {
                    out.push_str(text.get(from..at).unwrap_or_default());
                    at += 1;
                    from = at;
                }
                Step::Control => {
                    out.push_str(text.get(from..at).unwrap_or_default());
                    escape_control(bytes[at], out);
                    at += 1;
                    from = at;
                }
                Step::Backslash => {
                    // `\d` and the like: the backslash was meant literally.
                    out.push_str(text.get(from..at).unwrap_or_default());
                    out.push('\\');
                    from = at;
                }
                Step::Last => {
                    at += 1;
                    out.push_str(text.get(from..at).unwrap_or_default());
                    return Scan::Done(at);
                }
                Step::Before => {
                    out.push_str(text.get(from..at).unwrap_or_default());
                    return Scan::Done(at);
                }
                Step::Bad => {
                    out.push_str(text.get(from..at).unwrap_or_default());
                    return Scan::Bad(at);
                }
            }
        }
        out.push_str(text.get(from..).unwrap_or_default());
        Scan::More
    }

    fn step(&mut self, byte: u8) -> Step {
        match self.state {
            State::String { is_key } => self.in_string(byte, is_key),
            State::Escape { is_key } => match byte {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.go(State::String { is_key }),
                b'u' => self.go(State::Hex { is_key, left: 4 }),
                _ => {
                    self.state = State::String { is_key };
                    Step::Backslash
                }
            },
            State::Hex { is_key, left } if byte.is_ascii_hexdigit() => self.go(if left == 1 {
                State::String { is_key }
            } else {
                State::Hex { is_key, left: left - 1 }
            }),
            State::Hex { .. } => Step::Bad,
            State::Number(number) => match number.next(byte) {
                Some(next) => self.go(State::Number(next)),
                None if !number.is_whole() => Step::Bad,
                None if self.stack.is_empty() => {
                    self.state = State::Done;
                    Step::Before
                }
                None => {
                    self.state = State::Next;
                    self.step(byte)
                }
            },
            State::Word(word, at) => match word.as_bytes().get(at) {
                Some(&want) if want == byte && at + 1 == word.len() => self.value_ended(),
                Some(&want) if want == byte => self.go(State::Word(word, at + 1)),
                _ => Step::Bad,
            },
            State::Done => Step::Before,
            _ => self.between(byte),
        }
    }

    fn in_string(&mut self, byte: u8, is_key: bool) -> Step {
        match byte {
            b'"' if is_key => self.go(State::Colon),
            b'"' => self.value_ended(),
            b'\\' => self.go(State::Escape { is_key }),
            0..0x20 => Step::Control,
            _ => Step::Keep,
        }
    }

    /// Structure: everything outside of strings, numbers and words.
    fn between(&mut self, byte: u8) -> Step {
        match (self.state, byte) {
            (State::Value, b' ' | b'\t' | b'\n' | b'\r') if self.stack.is_empty() => Step::Skip,
            (_, b' ' | b'\t' | b'\n' | b'\r') => Step::Keep,
            (State::FirstItem, b']') | (State::FirstKey, b'}') => self.close(),
            (State::Value | State::FirstItem, _) => self.value_begins(byte),
            (State::FirstKey | State::Key, b'"') => self.go(State::String { is_key: true }),
            (State::Colon, b':') => self.go(State::Value),
            (State::Next, b',') => {
                self.state = if self.stack.last() == Some(&true) { State::Key } else { State::Value };
                Step::Keep
            }
            (State::Next, b'}') if self.stack.last() == Some(&true) => self.close(),
            (State::Next, b']') if self.stack.last() == Some(&false) => self.close(),
            _ => Step::Bad,
        }
    }

    fn value_begins(&mut self, byte: u8) -> Step {
        let state = match byte {
            b'{' | b'[' if self.stack.len() >= MAX_DEPTH => return Step::Bad,
            b'{' => {
                self.stack.push(true);
                State::FirstKey
            }
            b'[' => {
                self.stack.push(false);
                State::FirstItem
            }
            b'"' => State::String { is_key: false },
            b'-' => State::Number(Number::Minus),
            b'0' => State::Number(Number::Zero),
            b'1'..=b'9' => State::Number(Number::Integer),
            b't' => State::Word("true", 1),
            b'f' => State::Word("false", 1),
            b'n' => State::Word("null", 1),
            _ => return Step::Bad,
        };
        self.go(state)
    }

    fn close(&mut self) -> Step {
        self.stack.pop();
        self.value_ended()
    }

    fn value_ended(&mut self) -> Step {
        if self.stack.is_empty() {
            self.state = State::Done;
            Step::Last
        } else {
            self.go(State::Next)
        }
    }

    fn go(&mut self, state: State) -> Step {
        self.state = state;
        Step::Keep
    }
}

/// What to do with a byte.
#[derive(Clone, Copy, Debug)]
enum Step {
    Keep,
    Skip,
    Control,
    Backslash,
    Last,
    Before,
    Bad,
}

/// Bytes of a string that need no thought.
fn plain_len(bytes: &[u8]) -> usize {
    bytes.iter().position(|&byte| byte == b'"' || byte == b'\\' || byte < 0x20).unwrap_or(bytes.len())
}

fn escape_control(byte: u8, out: &mut String) {
    match byte {
        b'\n' => out.push_str("\\n"),
        b'\r' => out.push_str("\\r"),
        b'\t' => out.push_str("\\t"),
        0x08 => out.push_str("\\b"),
        0x0c => out.push_str("\\f"),
        _ => {
            out.push_str("\\u00");
            for nibble in [byte >> 4, byte & 15] {
                out.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
            }
        }
    }
}

/// Appends `text` as the inside of a JSON string.
pub(crate) fn escape(text: &str, out: &mut String) {
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.push_str(text.get(from..at).unwrap_or_default());
        from = at + 1;
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            _ => escape_control(byte, out),
        }
    }
    out.push_str(text.get(from..).unwrap_or_default());
}

/// Appends `text` as a JSON string.
pub(crate) fn quote(text: &str, out: &mut String) {
    out.push('"');
    escape(text, out);
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scan(text: &str) -> (Scan, String) {
        let mut out = String::new();
        let scan = Scanner::new().scan(text, &mut out);
        (scan, out)
    }

    #[test]
    fn values_end_where_they_end() {
        assert_eq!(scan(" {\"a\": [1, {}]} rest"), (Scan::Done(15), "{\"a\": [1, {}]}".to_owned()));
        assert_eq!(scan("12,"), (Scan::Done(2), "12".to_owned()));
        assert_eq!(scan("[1,]"), (Scan::Bad(3), "[1,".to_owned()));
        assert_eq!(scan("\"a\nb\\d\""), (Scan::Done(7), "\"a\\nb\\\\d\"".to_owned()));
        for bad in ["{1:2}", "tru3", "01x", "-", "{\"a\" 1}", "[1}"] {
            let (scan, _) = scan(bad);
            assert!(!matches!(scan, Scan::Done(len) if len == bad.len()), "{bad}");
        }
        assert!(matches!(scan(&"[".repeat(MAX_DEPTH + 1)).0, Scan::Bad(MAX_DEPTH)));
    }

    proptest! {
        #[test]
        fn serde_and_the_scanner_agree_in_any_pieces(
            text in "[\\[\\]{}\",:0-9.eE+\\-a-ntru\\\\ é]{0,24}",
            cut in 0usize..24,
        ) {
            let mut scanner = Scanner::new();
            let mut out = String::new();
            let cut = (0..=cut.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            let mut ended = scanner.scan(&text[..cut], &mut out);
            if ended == Scan::More {
                ended = match scanner.scan(&text[cut..], &mut out) {
                    Scan::Done(len) => Scan::Done(cut + len),
                    Scan::Bad(at) => Scan::Bad(cut + at),
                    Scan::More => Scan::More,
                };
            }
            let whole = match ended {
                Scan::Done(len) => text[len..].trim_ascii().is_empty(),
                Scan::More => scanner.is_whole(),
                Scan::Bad(_) => false,
            };
            let strict = serde_json::from_str::<serde_json::Value>(&text).is_ok();
            prop_assert!(!strict || whole, "valid, but refused: {text}");
            if whole {
                // Lone surrogates and huge exponents are JSON, but not to serde.
                let is_odd = out.contains("\\u") || out.contains(['e', 'E']);
                prop_assert!(is_odd || serde_json::from_str::<serde_json::Value>(&out).is_ok(), "{out}");
            }
        }

        #[test]
        fn quoting_round_trips(text in any::<String>()) {
            let mut out = String::new();
            quote(&text, &mut out);
            prop_assert_eq!(serde_json::from_str::<String>(&out).unwrap_or_default(), text);
        }
    }
}
