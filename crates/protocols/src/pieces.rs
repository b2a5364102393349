//! An answer as pieces, and the order that block-wise APIs show them in.
//!
//! Parsers tell text, reasoning and tool calls as they come. Anthropic's messages and OpenAI's responses show an answer
//! as a row of blocks of which one is open at a time. [`Sequencer`] is the one place that decides when a block opens
//! and closes (R19), for streams and for whole answers alike (R13).

use crate::openai::Usage;
use bytes::BytesMut;
use dynamo_types::{Error, FinishReason};
use serde::Serialize;

/// A piece of an answer, as parsers tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Text for the user.
    Text(&'a str),
    /// Text of the model to itself.
    Reasoning(&'a str),
    /// A call begins. One that is still open ends here.
    ToolStart { id: &'a str, name: &'a str },
    /// More of the JSON text of the arguments of the open call.
    ToolArguments(&'a str),
    /// The arguments of the open call are whole.
    ToolEnd,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finish<'a> {
    pub reason: FinishReason,
    /// The client's stop string that ended it.
    pub stop: Option<&'a str>,
}

impl Finish<'_> {
    pub fn new(reason: FinishReason) -> Self {
        Self { reason, stop: None }
    }

    /// Did the answer end before the model was done?
    pub(crate) fn is_cut(&self) -> bool {
        matches!(self.reason, FinishReason::Length | FinishReason::ContentFilter)
    }
}

/// Writes an answer as the stream of an API that shows it as a row of blocks.
pub trait Stream {
    /// The beginning, with what is known of the prompt. Further calls do nothing.
    fn start(&mut self, out: &mut BytesMut, usage: Usage);
    /// A piece of the answer. Starts it, without counts, if nobody did.
    fn push(&mut self, out: &mut BytesMut, piece: Piece<'_>);
    /// The end of the answer.
    fn finish(&mut self, out: &mut BytesMut, finish: &Finish<'_>, usage: Usage);
    /// A fault: what is open is closed, then one event whatever the text (R06, R07).
    fn fail(&mut self, out: &mut BytesMut, error: &Error);
}

/// Folds pieces into the whole answer of such an API, with the same blocks that its [`Stream`] shows.
pub trait Fold {
    type Answer: Serialize;
    fn push(&mut self, piece: Piece<'_>);
    fn finish(self, finish: &Finish<'_>, usage: Usage) -> Self::Answer;
}

/// What a block is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Block<'a> {
    Text,
    Reasoning,
    Tool { id: &'a str, name: &'a str },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Reasoning,
    Tool,
}

/// Where blocks go. `index` counts from 0 by one; `open`, any number of `extend`s and `close` follow each other for
/// each index in turn.
pub(crate) trait Blocks {
    fn open(&mut self, index: u32, block: Block<'_>);
    /// `text` is never empty.
    fn extend(&mut self, index: u32, kind: Kind, text: &str);
    /// `is_whole`: nothing is missing at its end.
    fn close(&mut self, index: u32, kind: Kind, is_whole: bool);
}

/// Brings pieces, in whatever order they come, into the order that [`Blocks`] promises.
///
/// A call is closed when its end is told, when another one starts, when its arguments are one whole JSON value and
/// something else comes, or with the answer. Text that comes before that waits for it; what waits is part of the
/// answer, so the answer's length bounds it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sequencer {
    open: Option<Kind>,
    /// Of the open block, or else of the next.
    index: u32,
    /// Text and reasoning that wait for the open call.
    held: Vec<(Kind, String)>,
    /// Of the open call's arguments.
    extent: Extent,
}

impl Sequencer {
    pub(crate) fn push(&mut self, piece: Piece<'_>, out: &mut impl Blocks) {
        match piece {
            Piece::Text(text) => self.prose(Kind::Text, text, out),
            Piece::Reasoning(text) => self.prose(Kind::Reasoning, text, out),
            Piece::ToolStart { id, name } => {
                self.end(false, out);
                self.begin(Kind::Tool, Block::Tool { id, name }, out);
                self.extent = Extent::default();
            }
            Piece::ToolArguments(fragment) if self.open == Some(Kind::Tool) && !fragment.is_empty() => {
                self.extent.push(fragment);
                out.extend(self.index, Kind::Tool, fragment);
                if self.extent.is_whole && !self.held.is_empty() {
                    self.close(true, out);
                }
            }
            Piece::ToolEnd if self.open == Some(Kind::Tool) => {
                self.extent.is_whole = true;
                self.close(true, out);
            }
            // What belongs to no call is nothing.
            Piece::ToolArguments(_) | Piece::ToolEnd => {}
        }
    }

    /// Closes what is open, and whatever waited for that. `is_cut`: the last block would have gone on.
    pub(crate) fn end(&mut self, is_cut: bool, out: &mut impl Blocks) {
        while self.open.is_some() {
            self.close(!is_cut || !self.held.is_empty(), out);
        }
    }

    fn prose(&mut self, kind: Kind, text: &str, out: &mut impl Blocks) {
        if text.is_empty() {
            return;
        }
        if self.open == Some(Kind::Tool) {
            if !self.extent.is_whole {
                return match self.held.last_mut() {
                    Some((last, held)) if *last == kind => held.push_str(text),
                    _ => self.held.push((kind, text.to_owned())),
                };
            }
            self.close(true, out);
        }
        if self.open != Some(kind) {
            self.close(true, out);
            self.begin(kind, if kind == Kind::Text { Block::Text } else { Block::Reasoning }, out);
        }
        out.extend(self.index, kind, text);
    }

    fn begin(&mut self, kind: Kind, block: Block<'_>, out: &mut impl Blocks) {
        self.open = Some(kind);
        out.open(self.index, block);
    }

    fn close(&mut self, is_whole: bool, out: &mut impl Blocks) {
        let Some(kind) = self.open.take() else { return };
        out.close(self.index, kind, is_whole && (kind != Kind::Tool || self.extent.is_whole));
        self.index += 1;
        for (kind, text) in std::mem::take(&mut self.held) {
            self.prose(kind, &text, out);
        }
    }
}

/// Tells when a JSON object, array or string that comes in fragments is whole. Looks at brackets and quotes only, each
/// byte once.
#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    depth: u32,
    in_string: bool,
    after_backslash: bool,
    is_whole: bool,
}

impl Extent {
    fn push(&mut self, fragment: &str) {
        for byte in fragment.bytes() {
            if self.after_backslash {
                self.after_backslash = false;
                continue;
            }
            match byte {
                b'\\' if self.in_string => self.after_backslash = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => continue,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => continue,
            }
            if self.depth == 0 && !self.in_string {
                self.is_whole = true;
            }
        }
    }
}

#[cfg(test)]
#[path = "pieces_tests.rs"]
pub(crate) mod tests;
