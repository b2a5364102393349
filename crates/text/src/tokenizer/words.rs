//! How text is cut into words before merges apply: the published regular expressions as hand-written scanners.
//!
//! Each scanner follows its expression alternative by alternative; `tests/text/encoder.rs` holds them against the
//! expressions themselves.

use regex_syntax::hir::{Class as HirClass, HirKind};
use serde_json::Value;
use std::sync::LazyLock;

/// GPT-2.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Llama 3; also `cl100k_base` but for possessive quantifiers.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 2 and 3: every digit alone.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A known way of cutting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Words {
    Gpt2,
    /// Digits are set apart first: each alone, or in runs.
    DigitsThenGpt2 {
        each_alone: bool,
    },
    /// Llama 3 and Qwen 2 differ in how many digits make a word.
    Llama {
        max_digits: usize,
    },
}

impl Words {
    /// Recognises a `pre_tokenizer`; none for all but the known ones.
    pub(super) fn read(pre_tokenizer: &Value) -> Option<Self> {
        let kind = |value: &Value| value.get("type").and_then(Value::as_str).map(str::to_owned);
        if kind(pre_tokenizer)? == "ByteLevel" {
            return is_byte_level(pre_tokenizer, true).then_some(Self::Gpt2);
        }
        let [first, second] = pre_tokenizer.get("pretokenizers")?.as_array()?.as_slice() else {
            return None;
        };
        match kind(first)?.as_str() {
            "Digits" if is_byte_level(second, true) => {
                Some(Self::DigitsThenGpt2 { each_alone: first.get("individual_digits")?.as_bool()? })
            }
            "Split" if is_byte_level(second, false) => {
                let isolated = first.get("behavior")?.as_str()? == "Isolated";
                let inverted = first.get("invert").and_then(Value::as_bool).unwrap_or(false);
                if !isolated || inverted {
                    return None;
                }
                match first.get("pattern")?.get("Regex")?.as_str()? {
                    GPT2 => Some(Self::Gpt2),
                    LLAMA3 => Some(Self::Llama { max_digits: 3 }),
                    QWEN2 => Some(Self::Llama { max_digits: 1 }),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Calls `word` with every word of `text`, in order; together they are `text`.
    pub(super) fn split<'t>(self, text: &'t str, word: &mut impl FnMut(&'t str)) {
        match self {
            Self::Gpt2 => scan(text, word, gpt2),
            Self::Llama { max_digits } => scan(text, word, |text, at| llama(text, at, max_digits)),
            Self::DigitsThenGpt2 { each_alone } => {
                let mut rest = text;
                while let Some(start) = rest.find(char::is_numeric) {
                    scan(&rest[..start], word, gpt2);
                    let digits = &rest[start..];
                    let end = if each_alone {
                        digits.chars().next().map_or(0, char::len_utf8)
                    } else {
                        digits.find(|char: char| !char.is_numeric()).unwrap_or(digits.len())
                    };
                    word(&digits[..end]);
                    rest = &digits[end..];
                }
                scan(rest, word, gpt2);
            }
        }
    }
}

fn is_byte_level(value: &Value, use_regex: bool) -> bool {
    let flag = |name: &str, default: bool| value.get(name).and_then(Value::as_bool).unwrap_or(default);
    value.get("type").and_then(Value::as_str) == Some("ByteLevel")
        && !flag("add_prefix_space", true)
        && flag("use_regex", true) == use_regex
}

fn scan<'t>(text: &'t str, word: &mut impl FnMut(&'t str), next: impl Fn(&str, usize) -> usize) {
    let mut at = 0;
    while at < text.len() {
        let end = next(text, at);
        word(&text[at..end]);
        at = end;
    }
}

/// End of the word at `at` by the GPT-2 expression.
fn gpt2(text: &str, at: usize) -> usize {
    let bytes = text.as_bytes();
    let (mut class, _) = class_at(text, at);
    let mut start = at;
    match bytes[at] {
        b'\'' => match &bytes[at + 1..] {
            [b's' | b't' | b'm' | b'd', ..] => return at + 2,
            [b'r' | b'v', b'e', ..] | [b'l', b'l', ..] => return at + 3,
            _ => {}
        },
        b' ' if at + 1 < bytes.len() => {
            let (next, _) = class_at(text, at + 1);
            if next != Class::Space {
                (class, start) = (next, at + 1);
            }
        }
        _ => {}
    }
    if class == Class::Space { spaces(text, at) } else { run(text, start, class) }
}

/// End of the word at `at` by the Llama 3 expression.
fn llama(text: &str, at: usize, max_digits: usize) -> usize {
    let bytes = text.as_bytes();
    if bytes[at] == b'\''
        && let Some(len) = contraction(&text[at + 1..])
    {
        return at + 1 + len;
    }
    let (class, width) = class_at(text, at);
    let next = if at + width < bytes.len() { Some(class_at(text, at + width).0) } else { None };
    let newline = matches!(bytes[at], b'\r' | b'\n');
    match (class, next) {
        (Class::Letter, _) => run(text, at, Class::Letter),
        (Class::Other | Class::Space, Some(Class::Letter)) if !newline => {
            run(text, at + width, Class::Letter)
        }
        (Class::Number, _) => {
            let mut end = at + width;
            for _ in 1..max_digits {
                match (end < bytes.len()).then(|| class_at(text, end)) {
                    Some((Class::Number, width)) => end += width,
                    _ => break,
                }
            }
            end
        }
        (Class::Other, _) => with_newlines(text, run(text, at, Class::Other)),
        (Class::Space, Some(Class::Other)) if bytes[at] == b' ' => {
            with_newlines(text, run(text, at + 1, Class::Other))
        }
        (Class::Space, _) => {
            let end = run(text, at, Class::Space);
            match bytes[at..end].iter().rposition(|byte| matches!(byte, b'\r' | b'\n')) {
                Some(last) => at + last + 1,
                None => spaces(text, at),
            }
        }
    }
}

/// `\s+(?!\S)|\s+`: white space before a word leaves its last character to it.
fn spaces(text: &str, at: usize) -> usize {
    let end = run(text, at, Class::Space);
    let last = text[at..end].char_indices().next_back().map_or(0, |(last, _)| last);
    if end == text.len() || last == 0 { end } else { at + last }
}

fn with_newlines(text: &str, mut end: usize) -> usize {
    while matches!(text.as_bytes().get(end), Some(b'\r' | b'\n')) {
        end += 1;
    }
    end
}

/// Length of what may follow an apostrophe, in any case. The long s folds to s.
fn contraction(rest: &str) -> Option<usize> {
    if rest.starts_with('ſ') {
        return Some('ſ'.len_utf8());
    }
    let lower = |at: usize| rest.as_bytes().get(at).map(u8::to_ascii_lowercase);
    match (lower(0)?, lower(1)) {
        (b's' | b't' | b'm' | b'd', _) => Some(1),
        (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(2),
        _ => None,
    }
}

/// End of the run of `class` that contains `at`.
fn run(text: &str, at: usize, class: Class) -> usize {
    let bytes = text.as_bytes();
    let mut end = at;
    loop {
        if class == Class::Letter {
            // Words of letters are most of any text: eight bytes in one go, without a branch for each.
            while let Some(eight) = bytes.get(end..).and_then(<[u8]>::first_chunk) {
                let letters = leading_letters(u64::from_le_bytes(*eight));
                end += letters;
                if letters < 8 {
                    break;
                }
            }
        }
        while bytes.get(end).is_some_and(|&byte| byte.is_ascii() && ASCII[byte as usize] == class) {
            end += 1;
        }
        if bytes.get(end).is_none_or(u8::is_ascii) {
            return end;
        }
        let (next, width) = class_at(text, end);
        if next != class {
            return end;
        }
        end += width;
    }
}

/// How many of eight bytes, the lowest first, are ASCII letters before the first that is none.
#[inline]
fn leading_letters(eight: u64) -> usize {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x80 * EACH;
    // Without their high bits no byte overflows into the next; what had one is no ASCII.
    let lower = (eight & !HIGH) | (0x20 * EACH);
    let from_a = lower + (0x80 - b'a' as u64) * EACH;
    let beyond_z = lower + (0x80 - (b'z' + 1) as u64) * EACH;
    let letters = from_a & !beyond_z & !eight & HIGH;
    (letters ^ HIGH).trailing_zeros() as usize / 8
}

#[inline]
fn class_at(text: &str, at: usize) -> (Class, usize) {
    let byte = text.as_bytes()[at];
    if byte.is_ascii() {
        return (ASCII[byte as usize], 1);
    }
    text[at..].chars().next().map_or((Class::Other, 1), |char| (CLASSES.of(char), char.len_utf8()))
}

/// What the expressions tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Other,
    Letter,
    Number,
    Space,
}

const ASCII: [Class; 128] = {
    let mut table = [Class::Other; 128];
    let mut byte = 0;
    while byte < 128 {
        table[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' => Class::Letter,
            b'0'..=b'9' => Class::Number,
            b' ' | b'\t'..=b'\r' => Class::Space,
            _ => Class::Other,
        };
        byte += 1;
    }
    table
};

static CLASSES: LazyLock<Classes> = LazyLock::new(Classes::build);

/// Classes of all characters: pages of 256, equal ones stored once.
struct Classes {
    pages: Vec<u16>,
    blocks: Vec<[Class; 256]>,
}

impl Classes {
    /// From the very tables that regular expressions use.
    fn build() -> Self {
        let mut all = vec![Class::Other; char::MAX as usize + 1];
        for (name, class) in [(r"\p{L}", Class::Letter), (r"\p{N}", Class::Number)] {
            let parsed = regex_syntax::parse(name);
            let ranges = parsed.iter().flat_map(|hir| match hir.kind() {
                HirKind::Class(HirClass::Unicode(ranges)) => ranges.ranges(),
                _ => &[],
            });
            for range in ranges {
                all[range.start() as usize..=range.end() as usize].fill(class);
            }
        }
        for space in (0..=char::MAX as u32).filter_map(char::from_u32).filter(|char| char.is_whitespace()) {
            all[space as usize] = Class::Space;
        }
        let mut classes = Self { pages: Vec::new(), blocks: Vec::new() };
        for page in all.chunks_exact(256) {
            let known = classes.blocks.iter().position(|block| block == page);
            let block = known.unwrap_or_else(|| {
                let mut block = [Class::Other; 256];
                block.copy_from_slice(page);
                classes.blocks.push(block);
                classes.blocks.len() - 1
            });
            classes.pages.push(u16::try_from(block).unwrap_or(0));
        }
        classes
    }

    #[inline]
    fn of(&self, char: char) -> Class {
        let code = char as usize;
        self.blocks[self.pages[code >> 8] as usize][code & 0xFF]
    }
}

/// Is the text its own NFC form for certain? True only if every character is a starter that composes with nothing
/// before it, by blocks in which that holds for all characters; false means that a table would have to be asked.
pub(super) fn is_surely_composed(text: &str) -> bool {
    text.is_ascii()
        || text.chars().all(|char| {
            matches!(char,
                '\0'..='\u{2FF}'
                | '\u{390}'..='\u{3FF}'
                | '\u{400}'..='\u{482}'
                | '\u{48A}'..='\u{52F}'
                | '\u{2010}'..='\u{2027}'
                | '\u{2030}'..='\u{205E}'
                | '\u{20A0}'..='\u{20BF}'
                | '\u{2190}'..='\u{2328}'
                | '\u{232B}'..='\u{27BF}'
                | '\u{3000}'..='\u{3029}'
                | '\u{3041}'..='\u{3096}'
                | '\u{309B}'..='\u{30FF}'
                | '\u{3400}'..='\u{4DBF}'
                | '\u{4E00}'..='\u{9FFF}'
                | '\u{AC00}'..='\u{D7A3}'
                | '\u{FE0E}'..='\u{FE0F}'
                | '\u{FF01}'..='\u{FFEF}'
                | '\u{1F300}'..='\u{1FAFF}')
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::normalizers::unicode::NFC;
    use tokenizers::{NormalizedString, Normalizer};

    #[test]
    fn surely_composed_characters_are() {
        let nfc = |text: &str| {
            let mut normalized = NormalizedString::from(text);
            NFC.normalize(&mut normalized).unwrap();
            normalized.get().to_owned()
        };
        for char in (0..=char::MAX as u32).filter_map(char::from_u32) {
            let text = char.to_string();
            if is_surely_composed(&text) {
                assert_eq!(nfc(&text), text, "{char:?} U+{:04X}", char as u32);
                // Nothing before it takes it in.
                for before in ["a", "ᄀ", "가", "か", "ῶ", "🏽"] {
                    let text = format!("{before}{char}");
                    assert_eq!(nfc(&text), text, "{text:?} U+{:04X}", char as u32);
                }
            }
        }
        assert!(!is_surely_composed("e\u{301}"));
    }

    #[test]
    fn letters_are_counted_for_every_byte_at_every_place() {
        for at in 0..8 {
            for byte in 0..=u8::MAX {
                for around in [b'a', b'z', b'A', b'Z', b'm', 0x80, 0xFF, b'@', b'[', b'`', b'{'] {
                    let mut bytes = [around; 8];
                    bytes[at] = byte;
                    let expected = bytes.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
                    assert_eq!(leading_letters(u64::from_le_bytes(bytes)), expected, "{bytes:?}");
                }
            }
        }
    }

    #[test]
    fn words_are_the_text() {
        for words in [
            Words::Gpt2,
            Words::DigitsThenGpt2 { each_alone: true },
            Words::DigitsThenGpt2 { each_alone: false },
            Words::Llama { max_digits: 3 },
        ] {
            for text in ["", " ", "a", "'", "it's 1234 \n\n x", "\u{3000}한국 12½", "  \t", "'S'LL"] {
                let mut joined = String::new();
                words.split(text, &mut |word| {
                    assert!(!word.is_empty());
                    joined.push_str(word);
                });
                assert_eq!(joined, text);
            }
        }
    }
}
