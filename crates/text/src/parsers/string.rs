//! Quoted strings in pieces, decoded.

use super::json::Scan;
use super::scan::work;

/// Whose escapes a string has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Json,
    Python,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Plain,
    Escape,
    /// Hexadecimal digits that are missing, and the value of those that came.
    Hex {
        left: u8,
        value: u32,
    },
}

/// Decodes the inside of a string up to its closing quote. Unknown escapes are kept as they are written.
#[derive(Clone, Debug)]
pub(crate) struct Unescape {
    dialect: Dialect,
    quote: u8,
    state: State,
    /// The first half of a UTF-16 pair.
    high: Option<u32>,
}

impl Unescape {
    pub(crate) fn new(dialect: Dialect, quote: u8) -> Self {
        Self { dialect, quote, state: State::Plain, high: None }
    }

    /// Decodes on in `text`, appending to `out`. `Done` counts the closing quote.
    pub(crate) fn scan(&mut self, text: &str, out: &mut String) -> Scan {
        work::count(text.len());
        let mut rest = text;
        loop {
            if self.state == State::Plain {
                let plain = rest.bytes().position(|byte| byte == self.quote || byte == b'\\');
                let plain = plain.unwrap_or(rest.len());
                if plain > 0 {
                    self.flush_high(out);
                    out.push_str(rest.get(..plain).unwrap_or_default());
                    rest = rest.get(plain..).unwrap_or_default();
                }
            }
            let Some(next) = rest.chars().next() else { return Scan::More };
            match self.state {
                State::Plain if next == '\\' => self.state = State::Escape,
                State::Plain => {
                    self.flush_high(out);
                    return Scan::Done(text.len() - rest.len() + 1);
                }
                State::Escape => self.escape(next, out),
                State::Hex { left, value } => match next.to_digit(16) {
                    Some(digit) => self.hex(left - 1, value * 16 + digit, out),
                    None => return Scan::Bad(text.len() - rest.len()),
                },
            }
            rest = rest.get(next.len_utf8()..).unwrap_or_default();
        }
    }

    fn escape(&mut self, next: char, out: &mut String) {
        let is_python = self.dialect == Dialect::Python;
        self.state = match next {
            'u' => State::Hex { left: 4, value: 0 },
            'U' if is_python => State::Hex { left: 8, value: 0 },
            'x' if is_python => State::Hex { left: 2, value: 0 },
            _ => State::Plain,
        };
        if self.state != State::Plain {
            return;
        }
        self.flush_high(out);
        match next {
            'n' => out.push('\n'),
            't' => out.push('\t'),
            'r' => out.push('\r'),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            '0' if is_python => out.push('\0'),
            'a' if is_python => out.push('\u{7}'),
            'v' if is_python => out.push('\u{b}'),
            '\n' if is_python => {}
            '\\' | '"' => out.push(next),
            '/' if !is_python => out.push(next),
            '\'' if is_python => out.push(next),
            _ => out.extend(['\\', next]),
        }
    }

    fn hex(&mut self, left: u8, value: u32, out: &mut String) {
        if left > 0 {
            self.state = State::Hex { left, value };
            return;
        }
        self.state = State::Plain;
        match (self.high.take(), value) {
            (Some(high), 0xdc00..0xe000) => {
                let pair = 0x10000 + ((high - 0xd800) << 10) + (value - 0xdc00);
                out.push(char::from_u32(pair).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            (earlier, 0xd800..0xdc00) => {
                if earlier.is_some() {
                    out.push(char::REPLACEMENT_CHARACTER);
                }
                self.high = Some(value);
            }
            (earlier, _) => {
                if earlier.is_some() {
                    out.push(char::REPLACEMENT_CHARACTER);
                }
                out.push(char::from_u32(value).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
        }
    }

    /// A first half without its second is no character.
    fn flush_high(&mut self, out: &mut String) {
        if self.high.take().is_some() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(dialect: Dialect, quote: u8, pieces: &[&str]) -> (Scan, String) {
        let mut out = String::new();
        let mut unescape = Unescape::new(dialect, quote);
        let mut scan = Scan::More;
        for piece in pieces {
            scan = unescape.scan(piece, &mut out);
        }
        (scan, out)
    }

    #[test]
    fn escapes_of_both_dialects() {
        let (scan, text) = decode(Dialect::Json, b'"', &["a\\", "u00", "e9\\ud83d\\ude", "00\\/\\q\" b"]);
        assert_eq!((scan, text.as_str()), (Scan::Done(7), "aé😀/\\q"));
        let (scan, text) = decode(Dialect::Python, b'\'', &["it\\'s \\x41\\U0001F600\\\n\"'"]);
        assert_eq!((scan, text.as_str()), (Scan::Done(24), "it's A😀\""));
        assert_eq!(decode(Dialect::Json, b'"', &["\\ud83dx\""]).1, "\u{fffd}x");
        assert_eq!(decode(Dialect::Json, b'"', &["\\u00g"]).0, Scan::Bad(4));
    }

    proptest! {
        #[test]
        fn json_strings_round_trip(text in any::<String>()) {
            let quoted = serde_json::to_string(&text).unwrap_or_default();
            let (scan, decoded) = decode(Dialect::Json, b'"', &[&quoted[1..]]);
            prop_assert_eq!(scan, Scan::Done(quoted.len() - 1));
            prop_assert_eq!(decoded, text);
        }
    }
}
