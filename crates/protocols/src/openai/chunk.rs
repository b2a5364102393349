//! The chunks of a stream as server-sent events.
//!
//! A streamed token passes here, so a chunk without extras is three copies: the part before the text, which is the
//! same for the whole stream, the escaped text, and the part after it.

use super::answer::AnswerExtensions;
use super::logprobs::{ChatShape, CompletionShape, TokenLogprob};
use super::usage::Usage;
use crate::escape::{self, escape};
use bytes::{BufMut, BytesMut};
use dynamo_types::{Error, FinishReason};

#[path = "chunk_pieces.rs"]
mod pieces;

/// What a chunk may carry besides text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extras<'a> {
    /// Of the tokens in this chunk; None when the client did not ask.
    pub logprobs: Option<&'a [TokenLogprob]>,
    /// Counts so far, for clients that want them on every chunk.
    pub usage: Option<Usage>,
    /// What the client asked to be told besides.
    pub nvext: Option<&'a AnswerExtensions>,
}

impl Extras<'_> {
    #[inline]
    fn is_empty(&self) -> bool {
        self.logprobs.is_none() && self.usage.is_none() && self.nvext.is_none()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Chat,
    Completion,
}

/// Writes one stream's chunks, each as a whole event `data: {...}\n\n`.
#[derive(Clone, Debug)]
pub struct ChunkWriter {
    shape: Shape,
    /// Up to and with `"choices":[`.
    prefix: Vec<u8>,
    /// The whole of what stands before the text of choice 0.
    head: Vec<u8>,
    /// Where in `head` the choice's digit stands.
    digit: usize,
    /// The whole of what stands after the text.
    tail: Vec<u8>,
    /// From after the choices to the end of the event.
    end: &'static [u8],
}

const INDEX: &[u8] = b"{\"index\":";
const LOGPROBS: &[u8] = b",\"logprobs\":";
const FINISH: &[u8] = b",\"finish_reason\":";
const NULL: &[u8] = b"null";
const END: &[u8] = b"}\n\n";
/// With `include_usage`, all chunks but the last say that they have none (R05).
const END_USAGE_NULL: &[u8] = b",\"usage\":null}\n\n";
/// Room for a few escapes, so that the usual chunk asks for memory once.
const ESCAPE_RESERVE: usize = 32;

impl Shape {
    const fn object(self) -> &'static str {
        match self {
            Self::Chat => "chat.completion.chunk",
            Self::Completion => "text_completion",
        }
    }

    /// Between the choice's index and its text.
    const fn open(self) -> &'static [u8] {
        match self {
            Self::Chat => b",\"delta\":{\"content\":\"",
            Self::Completion => b",\"text\":\"",
        }
    }

    const fn close(self) -> &'static [u8] {
        match self {
            Self::Chat => b"\"}",
            Self::Completion => b"\"",
        }
    }
}

impl ChunkWriter {
    /// For `chat.completion.chunk`s.
    pub fn chat(id: &str, created_s: u64, model: &str) -> Self {
        Self::new(Shape::Chat, id, created_s, model)
    }

    /// For `text_completion` chunks.
    pub fn completion(id: &str, created_s: u64, model: &str) -> Self {
        Self::new(Shape::Completion, id, created_s, model)
    }

    fn new(shape: Shape, id: &str, created_s: u64, model: &str) -> Self {
        let mut prefix = b"data: {\"id\":".to_vec();
        escape::string(&mut prefix, id);
        prefix.extend_from_slice(b",\"object\":\"");
        prefix.extend_from_slice(shape.object().as_bytes());
        prefix.extend_from_slice(b"\",\"created\":");
        escape::number(&mut prefix, created_s);
        prefix.extend_from_slice(b",\"model\":");
        escape::string(&mut prefix, model);
        prefix.extend_from_slice(b",\"choices\":[");
        let digit = prefix.len() + INDEX.len();
        let head = [&prefix, INDEX, b"0", shape.open()].concat();
        Self { shape, prefix, head, digit, tail: Vec::new(), end: END }.include_usage(false)
    }

    /// Did the client ask for `stream_options.include_usage`? Then every chunk has a `usage` field.
    #[must_use]
    pub fn include_usage(mut self, include: bool) -> Self {
        self.end = if include { END_USAGE_NULL } else { END };
        self.tail = [self.shape.close(), LOGPROBS, NULL, FINISH, NULL, b"}]", self.end].concat();
        self
    }

    /// The first chunk of a chat choice, with its role. Text completions have none: nothing is written.
    pub fn role(&self, out: &mut BytesMut, choice: u32, extras: Extras<'_>) {
        if self.shape == Shape::Chat {
            self.open_choice(out, choice);
            out.put_slice(b",\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
            self.close_choice(out, extras, None);
        }
    }

    /// Text of a choice, and what belongs to it.
    #[inline]
    pub fn content(&self, out: &mut BytesMut, choice: u32, text: &str, extras: Extras<'_>) {
        if choice > 9 || !extras.is_empty() {
            return self.full(out, choice, text, extras, None);
        }
        out.reserve(self.head.len() + text.len() + ESCAPE_RESERVE + self.tail.len());
        let digit = out.len() + self.digit;
        out.extend_from_slice(&self.head);
        if choice > 0 {
            out[digit] += choice as u8;
        }
        escape(out, text);
        out.extend_from_slice(&self.tail);
    }

    /// The last chunk of a choice, with any text that is still due.
    pub fn finish(
        &self,
        out: &mut BytesMut,
        choice: u32,
        text: &str,
        extras: Extras<'_>,
        reason: FinishReason,
    ) {
        self.full(out, choice, text, extras, Some(reason));
    }

    /// The counts of the whole request, without choices; the last chunk before the end (R05).
    pub fn usage(&self, out: &mut BytesMut, usage: &Usage) {
        out.put_slice(&self.prefix);
        out.put_slice(b"],\"usage\":");
        put_usage(out, usage);
        out.put_slice(END);
    }

    /// The end of every stream (R06).
    pub fn done(&self, out: &mut BytesMut) {
        out.put_slice(b"data: [DONE]\n\n");
    }

    /// A fault in mid-stream: one event, whatever the text (R07). [`ChunkWriter::done`] has to follow.
    pub fn error(&self, out: &mut BytesMut, error: &Error) {
        out.put_slice(b"data: ");
        super::error::write(out, error);
        out.put_slice(b"\n\n");
    }

    /// An event beside the answer: a type, and a comment that holds `value` as JSON (behaviour.md 1.6). It has no data,
    /// so that readers which follow the standard pass over it.
    pub fn annotation(&self, out: &mut BytesMut, name: &str, value: &impl serde::Serialize) {
        out.put_slice(b"event: ");
        out.put_slice(name.as_bytes());
        out.put_slice(b"\n: ");
        put_json(out, value);
        out.put_slice(b"\n\n");
    }

    fn open_choice(&self, out: &mut BytesMut, choice: u32) {
        out.put_slice(&self.prefix);
        out.put_slice(INDEX);
        escape::number(out, u64::from(choice));
    }

    fn full(
        &self,
        out: &mut BytesMut,
        choice: u32,
        text: &str,
        extras: Extras<'_>,
        reason: Option<FinishReason>,
    ) {
        self.open_choice(out, choice);
        if self.shape == Shape::Chat && text.is_empty() && reason.is_some() {
            out.put_slice(b",\"delta\":{}");
        } else {
            out.put_slice(self.shape.open());
            escape(out, text);
            out.put_slice(self.shape.close());
        }
        self.close_choice(out, extras, reason);
    }

    /// From after the delta to the end of the event.
    fn close_choice(&self, out: &mut BytesMut, extras: Extras<'_>, reason: Option<FinishReason>) {
        out.put_slice(LOGPROBS);
        match extras.logprobs {
            Some(logprobs) if self.shape == Shape::Chat => put_json(out, &ChatShape(logprobs)),
            Some(logprobs) => put_json(out, &CompletionShape(logprobs)),
            None => out.put_slice(NULL),
        }
        out.put_slice(FINISH);
        match reason {
            Some(reason) => escape::string(out, super::finish_reason(reason)),
            None => out.put_slice(NULL),
        }
        out.put_slice(b"}]");
        if let Some(nvext) = extras.nvext {
            out.put_slice(b",\"nvext\":");
            put_json(out, nvext);
        }
        match extras.usage {
            Some(usage) => {
                out.put_slice(b",\"usage\":");
                put_usage(out, &usage);
                out.put_slice(END);
            }
            None => out.put_slice(self.end),
        }
    }
}

fn put_usage(out: &mut BytesMut, usage: &Usage) {
    out.put_slice(b"{\"prompt_tokens\":");
    escape::number(out, u64::from(usage.prompt_tokens));
    out.put_slice(b",\"completion_tokens\":");
    escape::number(out, u64::from(usage.completion_tokens));
    out.put_slice(b",\"total_tokens\":");
    escape::number(out, u64::from(usage.total_tokens));
    out.put_slice(b",\"prompt_tokens_details\":{\"cached_tokens\":");
    escape::number(out, u64::from(usage.prompt_tokens_details.cached_tokens));
    out.put_slice(b"}}");
}

/// JSON has no raw line ends in strings, so this cannot break the event either. Map keys and numbers that could fail
/// to serialise do not occur in what is written here; should it fail all the same, `null` keeps the event whole.
fn put_json(out: &mut BytesMut, value: &impl serde::Serialize) {
    match serde_json::to_vec(value) {
        Ok(json) => out.put_slice(&json),
        Err(_) => out.put_slice(NULL),
    }
}

#[cfg(test)]
#[path = "chunk_tests.rs"]
mod tests;
