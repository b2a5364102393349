//! Bytes of a fuzzer become choices and text.

use dynamo_types::draw;
use std::borrow::Cow;

/// Choices are read from the front; what is left is the payload.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// 0 at the end.
    pub(crate) fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&first, rest)) => {
                self.0 = rest;
                first
            }
            None => 0,
        }
    }

    /// One of `list`, which is not empty.
    pub(crate) fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[usize::from(self.byte()) % list.len()]
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn text(&self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.0)
    }
}

/// Lengths of pieces: mostly small, now and then empty or long.
fn length(seed: u8, position: u64) -> usize {
    const LENGTHS: [usize; 8] = [0, 1, 1, 2, 3, 5, 16, 64];
    LENGTHS[draw::index(seed.into(), position, LENGTHS.len())]
}

/// `bytes` in pieces, drawn from `seed`.
pub(crate) fn pieces(bytes: &[u8], seed: u8) -> Vec<&[u8]> {
    let (mut list, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(length(seed, list.len() as u64).min(rest.len()));
        list.push(piece);
        rest = after;
    }
    list
}

/// `text` in pieces of whole characters, drawn from `seed`.
pub(crate) fn text_pieces(text: &str, seed: u8) -> Vec<&str> {
    let (mut list, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let mut end = length(seed, list.len() as u64).min(rest.len());
        while !rest.is_char_boundary(end) {
            end += 1;
        }
        let (piece, after) = rest.split_at(end);
        list.push(piece);
        rest = after;
    }
    list
}
