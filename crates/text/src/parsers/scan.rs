//! Finding literal markers in a text that comes in pieces.

use dynamo_types::FinishReason;

/// A cut-off marker of at least this many bytes is protocol; a single `<` or `[` is ordinary writing.
const CUT_MARKER_BYTES: usize = 2;

/// Whitespace that may be framing is held up to this size.
const MAX_SPACE_BYTES: usize = 256;

/// Whitespace that a block may have before its closing marker is held up to this size; more of it ends the block.
pub(crate) const MAX_GAP_BYTES: usize = 256;

/// Consumed text is cut off the buffer when there is this much of it, so that each byte moves a bounded number of
/// times.
const COMPACT_BYTES: usize = 4096;

/// Text that was not yet understood.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffer {
    text: String,
    start: usize,
}

impl Buffer {
    pub(crate) fn push(&mut self, text: &str) {
        work::count(text.len());
        if self.start == self.text.len() {
            self.text.clear();
            self.start = 0;
        } else if self.start >= COMPACT_BYTES {
            work::count(self.text.len() - self.start);
            self.text.drain(..self.start);
            self.start = 0;
        }
        self.text.push_str(text);
    }

    pub(crate) fn rest(&self) -> &str {
        self.text.get(self.start..).unwrap_or_default()
    }

    /// Takes `len` bytes off the front. `len` is a character boundary of [`Buffer::rest`].
    pub(crate) fn consume(&mut self, len: usize) {
        self.start = (self.start + len).min(self.text.len());
    }
}

/// What [`Markers::find`] saw first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hit {
    /// Marker number `which` begins at `at`.
    Marker {
        at: usize,
        which: usize,
    },
    /// The text ends with the beginning of a marker, from `at` on: hold it (R17).
    Partial {
        at: usize,
    },
    None,
}

/// A set of markers, none of which begins another.
#[derive(Clone, Debug)]
pub(crate) struct Markers {
    list: Vec<&'static str>,
    first: Box<[bool; 256]>,
}

impl Markers {
    pub(crate) fn new(list: impl IntoIterator<Item = &'static str>) -> Self {
        let list: Vec<_> = list.into_iter().filter(|marker| !marker.is_empty()).collect();
        let mut first = Box::new([false; 256]);
        for marker in &list {
            first[usize::from(marker.as_bytes()[0])] = true;
        }
        Self { list, first }
    }

    /// The first whole or cut marker in `text`.
    pub(crate) fn find(&self, text: &str) -> Hit {
        work::count(text.len());
        let bytes = text.as_bytes();
        for (at, &byte) in bytes.iter().enumerate() {
            if self.first[usize::from(byte)]
                && let hit @ (Hit::Marker { .. } | Hit::Partial { .. }) = self.at(bytes, at)
            {
                return hit;
            }
        }
        Hit::None
    }

    fn at(&self, bytes: &[u8], at: usize) -> Hit {
        let rest = &bytes[at..];
        let mut partial = false;
        for (which, marker) in self.list.iter().enumerate() {
            if rest.starts_with(marker.as_bytes()) {
                return Hit::Marker { at, which };
            }
            partial |= marker.as_bytes().starts_with(rest);
        }
        if partial { Hit::Partial { at } } else { Hit::None }
    }

    pub(crate) fn get(&self, which: usize) -> &'static str {
        self.list.get(which).copied().unwrap_or_default()
    }
}

/// As [`Markers::find`], for a few markers that are looked for rarely or in short text.
pub(crate) fn find(text: &str, markers: &[&str]) -> Hit {
    work::count(text.len());
    let bytes = text.as_bytes();
    let begins = |byte: u8| markers.iter().any(|marker| marker.as_bytes().first() == Some(&byte));
    let mut from = 0;
    while let Some(at) = bytes.get(from..).and_then(|rest| rest.iter().position(|&byte| begins(byte))) {
        match prefix(text.get(from + at..).unwrap_or_default(), markers) {
            Hit::None => from += at + 1,
            Hit::Partial { .. } => return Hit::Partial { at: from + at },
            Hit::Marker { which, .. } => return Hit::Marker { at: from + at, which },
        }
    }
    Hit::None
}

/// Bytes looked at, so that tests can tell linear work from more.
pub(crate) mod work {
    #[cfg(test)]
    thread_local! {
        static BYTES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    /// Counts `bytes`; nothing outside of tests.
    pub(crate) fn count(bytes: usize) {
        #[cfg(test)]
        BYTES.with(|total| total.set(total.get() + bytes));
        #[cfg(not(test))]
        let _ = bytes;
    }

    /// Takes the count.
    #[cfg(test)]
    pub(crate) fn take() -> usize {
        BYTES.with(|total| total.replace(0))
    }
}

/// The whole or cut marker that `text` begins with.
pub(crate) fn prefix(text: &str, markers: &[&str]) -> Hit {
    let whole = markers.iter().position(|marker| !marker.is_empty() && text.starts_with(marker));
    match whole {
        Some(which) => Hit::Marker { at: 0, which },
        None if markers.iter().any(|marker| !marker.is_empty() && marker.starts_with(text)) => {
            Hit::Partial { at: 0 }
        }
        None => Hit::None,
    }
}

/// Whitespace at the end of a text, held until it is known whether it is text. A longer run than the limit is text.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrailingSpace {
    held: String,
    /// Length of the run, held or not.
    run: usize,
}

impl TrailingSpace {
    /// Passes `text` on to `emit`, but for `edges` at its end.
    pub(crate) fn push(&mut self, text: &str, edges: &[char], emit: &mut dyn FnMut(&str)) {
        let end = text.trim_end_matches(edges).len();
        let (text, tail) = text.split_at(end);
        if !text.is_empty() {
            self.release(emit);
            emit(text);
        }
        self.run += tail.len();
        self.held.push_str(tail);
        if self.run > MAX_SPACE_BYTES {
            emit(&self.held);
            self.held.clear();
        }
    }

    /// It is text.
    pub(crate) fn release(&mut self, emit: &mut dyn FnMut(&str)) {
        emit(&self.held);
        self.clear();
    }

    /// It is none.
    pub(crate) fn clear(&mut self) {
        self.held.clear();
        self.run = 0;
    }
}

/// Whether a cut marker at the end of an answer is text: always, unless the engine cut the answer inside what can only
/// be protocol (R15).
pub(crate) fn is_text_at_end(held: &str, reason: FinishReason) -> bool {
    reason != FinishReason::Length
        || held.len() < CUT_MARKER_BYTES
        || held.as_bytes().first().is_some_and(u8::is_ascii_alphabetic)
}

/// At most `len` bytes of the front of `text`, whole characters.
pub(crate) fn clip(text: &str, len: usize) -> &str {
    text.get(..text.floor_char_boundary(len)).unwrap_or_default()
}

/// ASCII whitespace.
pub(crate) const SPACE: &[char] = &[' ', '\t', '\n', '\u{c}', '\r'];

/// Bytes of ASCII whitespace at the front of `text`.
pub(crate) fn leading_space(text: &str) -> usize {
    text.len() - text.trim_ascii_start().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_found_held_and_told_apart() {
        let markers = Markers::new(["<a>", "</a>", "◁x"]);
        assert_eq!(markers.find("1 < 2 <a>"), Hit::Marker { at: 6, which: 0 });
        assert_eq!(markers.find("é</a"), Hit::Partial { at: 2 });
        assert_eq!(markers.find("é◁"), Hit::Partial { at: 2 });
        assert_eq!(markers.find("a<b"), Hit::None);
        let list = ["<a>", "</a>", "◁x"];
        for text in ["1 < 2 <a>", "é</a", "é◁", "a<b", "", "<a>◁x"] {
            assert_eq!(find(text, &list), markers.find(text), "{text}");
        }
        assert_eq!(prefix("</a>b", &list), Hit::Marker { at: 0, which: 1 });
        assert_eq!(prefix("", &list), Hit::Partial { at: 0 });
        assert_eq!(prefix("", &[""]), Hit::None);
    }
}
