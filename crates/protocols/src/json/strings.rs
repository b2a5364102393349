//! Strings of a JSON text.

use super::{Reader, Result};
use std::borrow::Cow;

/// Number of bytes before the first that ends a plain run: a quote, a backslash or a control character.
fn plain_len(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let stops = stops(u64::from_le_bytes(*word));
        if stops != 0 {
            return at + stops.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let is_plain = |&byte: &u8| byte >= 0x20 && byte != b'"' && byte != b'\\';
    at + bytes[at..].iter().take_while(|byte| is_plain(byte)).count()
}

/// The top bit of each byte of `word` that ends a plain run. Exact for the lowest such byte only, because the borrow
/// of a subtraction runs upwards ("Bit Twiddling Hacks", Anderson, 2005: has a byte less than n).
fn stops(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 255;
    let below = |word: u64, n: u64| word.wrapping_sub(ONES * n) & !word;
    let is = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    (below(word, 0x20) | is(b'"') | is(b'\\')) & (ONES * 0x80)
}

impl<'a> Reader<'a> {
    /// A string, from its opening quote on.
    pub(super) fn string_body(&mut self) -> Result<Cow<'a, str>> {
        let open = self.at;
        self.at += 1;
        let first = self.segment(open)?;
        if self.byte() == Some(b'"') {
            self.at += 1;
            return Ok(Cow::Borrowed(first));
        }
        let mut text = String::with_capacity(first.len() + 64);
        text.push_str(first);
        while self.byte() == Some(b'\\') {
            text.push(self.escape()?);
            text.push_str(self.segment(open)?);
        }
        self.at += 1;
        Ok(Cow::Owned(text))
    }

    /// Text up to the next quote or backslash, where the reader then stands.
    fn segment(&mut self, open: usize) -> Result<&'a str> {
        let start = self.at;
        self.at = start + plain_len(&self.text.as_bytes()[start..]);
        match self.byte() {
            Some(b'"' | b'\\') => Ok(&self.text[start..self.at]),
            Some(_) => Err(self.syntax("a control character inside a string")),
            None => {
                self.at = open;
                Err(self.syntax("a string without end, begun"))
            }
        }
    }

    /// One escape, from its backslash on.
    fn escape(&mut self) -> Result<char> {
        let escape = self.text.as_bytes().get(self.at + 1).copied();
        let plain = match escape {
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode_escape(),
            _ => return Err(self.syntax("an unknown escape in a string")),
        };
        self.at += 2;
        Ok(plain)
    }

    fn unicode_escape(&mut self) -> Result<char> {
        let first = self.hex4(self.at)?;
        let mut len = 6;
        let code = match first {
            0xD800..=0xDBFF => {
                let second = self.hex4(self.at + 6).unwrap_or(0);
                len = 12;
                if !(0xDC00..=0xDFFF).contains(&second) {
                    return Err(self.syntax("half of a surrogate pair in a string"));
                }
                0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)
            }
            _ => first,
        };
        let character =
            char::from_u32(code).ok_or_else(|| self.syntax("half of a surrogate pair in a string"))?;
        self.at += len;
        Ok(character)
    }

    /// The value of the `\uXXXX` at `at`.
    fn hex4(&self, at: usize) -> Result<u32> {
        let digits = self.text.as_bytes().get(at..at + 6).filter(|escape| escape.starts_with(b"\\u"));
        let value = digits.and_then(|escape| {
            escape[2..].iter().try_fold(0, |value, &byte| Some(value * 16 + char::from(byte).to_digit(16)?))
        });
        value.ok_or_else(|| self.syntax("expected four hexadecimal digits after \\u"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn plain_runs_end_where_they_should(bytes in prop::collection::vec(prop_oneof![9 => 0x20u8..=0xff, 1 => any::<u8>()], 0..40)) {
            let naive = bytes.iter().position(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\');
            prop_assert_eq!(plain_len(&bytes), naive.unwrap_or(bytes.len()));
        }
    }
}
