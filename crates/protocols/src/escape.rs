//! JSON string escaping, by hand, because every streamed token passes through it.
//!
//! Besides what JSON demands, characters that some clients take for line ends (U+0085, U+2028, U+2029) are written as
//! escapes, and so is DEL: a client that splits lines too eagerly still finds one frame (R07).

use bytes::BytesMut;

/// Bytes looked at together while nothing needs escaping. One or two vector registers.
const BLOCK: usize = 32;

/// Where escaped text goes.
pub(crate) trait Sink {
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for BytesMut {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl Sink for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Is `byte` certainly written as it is? False also for the first bytes of U+0080..U+00BF and U+2000..U+2FFF, among
/// which the eager line ends are.
#[inline]
const fn is_plain(byte: u8) -> bool {
    (byte >= 0x20) & (byte != b'"') & (byte != b'\\') & (byte != 0x7f) & (byte != 0xC2) & (byte != 0xE2)
}

/// Length of the longest prefix that needs no look.
#[inline]
fn plain_prefix(bytes: &[u8]) -> usize {
    let mut at = 0;
    // Without early exits inside a block, so that the compiler makes vector instructions of it.
    while let Some(block) = bytes.get(at..at + BLOCK) {
        if !block.iter().fold(true, |plain, &byte| plain & is_plain(byte)) {
            break;
        }
        at += BLOCK;
    }
    while bytes.get(at).is_some_and(|&byte| is_plain(byte)) {
        at += 1;
    }
    at
}

/// Appends `text` as the inside of a JSON string.
#[inline]
pub(crate) fn escape(out: &mut impl Sink, text: &str) {
    let bytes = text.as_bytes();
    let plain = plain_prefix(bytes);
    out.put(&bytes[..plain]);
    if plain < bytes.len() {
        escape_rest(out, &bytes[plain..]);
    }
}

fn escape_rest(out: &mut impl Sink, mut rest: &[u8]) {
    while let [first, ..] = *rest {
        let used = escape_one(out, first, rest);
        let plain = plain_prefix(&rest[used..]);
        out.put(&rest[used..used + plain]);
        rest = &rest[used + plain..];
    }
}

/// Writes what stands for the character at the start of `rest`; returns how many of its bytes that covers.
fn escape_one(out: &mut impl Sink, first: u8, rest: &[u8]) -> usize {
    match first {
        b'"' => out.put(b"\\\""),
        b'\\' => out.put(b"\\\\"),
        b'\n' => out.put(b"\\n"),
        b'\r' => out.put(b"\\r"),
        b'\t' => out.put(b"\\t"),
        0x08 => out.put(b"\\b"),
        0x0c => out.put(b"\\f"),
        0x00..=0x1f | 0x7f => {
            const HEX: &[u8; 16] = b"0123456789abcdef";
            out.put(&[b'\\', b'u', b'0', b'0', HEX[usize::from(first >> 4)], HEX[usize::from(first & 15)]]);
        }
        0xC2 if rest.get(1) == Some(&0x85) => {
            out.put(b"\\u0085");
            return 2;
        }
        0xE2 if rest.get(1) == Some(&0x80) && matches!(rest.get(2), Some(0xA8 | 0xA9)) => {
            out.put(if rest.get(2) == Some(&0xA8) { b"\\u2028" } else { b"\\u2029" });
            return 3;
        }
        other => out.put(&[other]),
    }
    1
}

/// Appends `text` as a whole JSON string, quotes included.
#[inline]
pub(crate) fn string(out: &mut impl Sink, text: &str) {
    out.put(b"\"");
    escape(out, text);
    out.put(b"\"");
}

/// Appends a number in decimal.
#[inline]
pub(crate) fn number(out: &mut impl Sink, mut value: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.put(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn escaped(text: &str) -> String {
        let mut out = Vec::new();
        string(&mut out, text);
        String::from_utf8(out).unwrap()
    }

    /// Text that is rich in what matters, at all distances from block borders.
    fn text() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            "[ -~]{0,40}",
            any::<String>(),
            prop::char::range('\u{0}', '\u{1f}').prop_map(String::from),
            prop::sample::select(vec![
                "\u{2028}", "\u{2029}", "\u{85}", "\u{7f}", "\"", "\\", "\u{2027}", "\u{a9}", "日本", "😀"
            ])
            .prop_map(String::from),
        ];
        prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn any_text_comes_back_and_stays_on_one_line(text in text()) {
            let json = escaped(&text);
            prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
            let ends_line = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
            prop_assert!(!json.chars().any(ends_line));
        }

        #[test]
        fn numbers_are_decimal(value in any::<u64>()) {
            let mut out = Vec::new();
            number(&mut out, value);
            prop_assert_eq!(String::from_utf8(out).unwrap(), value.to_string());
        }
    }

    #[test]
    fn r07_line_ends_are_escaped() {
        assert_eq!(escaped("a\n\r\u{0}\u{2028}\u{2029}\u{85}b"), r#""a\n\r\u0000\u2028\u2029\u0085b""#);
    }
}
