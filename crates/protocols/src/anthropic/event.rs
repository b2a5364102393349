//! An answer as Anthropic's events.

use super::{SIGNATURE, Usage, stop_reason, stop_sequence};
use crate::escape::{self, escape};
use crate::openai;
use crate::pieces::{Block, Blocks, Finish, Kind, Piece, Sequencer, Stream};
use bytes::{BufMut, BytesMut};
use dynamo_types::Error;

/// Writes one stream, each event whole: `message_start`, then blocks that never overlap, then `message_delta` and
/// `message_stop`; or an `error` event, after which nothing comes. There is no `[DONE]` in this dialect.
#[derive(Clone, Debug)]
pub struct EventWriter {
    id: String,
    model: String,
    blocks: Sequencer,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    New,
    Begun,
    Over,
}

impl EventWriter {
    /// `id` with its prefix `msg_`.
    pub fn new(id: &str, model: &str) -> Self {
        Self { id: id.to_owned(), model: model.to_owned(), blocks: Sequencer::default(), state: State::New }
    }
}

impl Stream for EventWriter {
    fn start(&mut self, out: &mut BytesMut, usage: openai::Usage) {
        if self.state != State::New {
            return;
        }
        self.state = State::Begun;
        out.put_slice(b"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":");
        escape::string(out, &self.id);
        out.put_slice(b",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
        escape::string(out, &self.model);
        out.put_slice(b",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
        put_usage(out, usage.into());
        out.put_slice(b"}}\n\n");
    }

    fn push(&mut self, out: &mut BytesMut, piece: Piece<'_>) {
        self.start(out, openai::Usage::default());
        if self.state == State::Begun {
            self.blocks.push(piece, &mut Frames(out));
        }
    }

    fn finish(&mut self, out: &mut BytesMut, finish: &Finish<'_>, usage: openai::Usage) {
        self.start(out, usage);
        if self.state == State::Over {
            return;
        }
        self.state = State::Over;
        self.blocks.end(finish.is_cut(), &mut Frames(out));
        out.put_slice(
            b"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"",
        );
        out.put_slice(stop_reason(finish).as_bytes());
        out.put_slice(b"\",\"stop_sequence\":");
        match stop_sequence(finish) {
            Some(stop) => escape::string(out, stop),
            None => out.put_slice(b"null"),
        }
        out.put_slice(b"},\"usage\":");
        put_usage(out, usage.into());
        out.put_slice(b"}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
    }

    fn fail(&mut self, out: &mut BytesMut, error: &Error) {
        if self.state == State::Over {
            return;
        }
        self.state = State::Over;
        self.blocks.end(true, &mut Frames(out));
        out.put_slice(b"event: error\ndata: ");
        super::error::write(out, error);
        out.put_slice(b"\n\n");
    }
}

fn put_usage(out: &mut BytesMut, usage: Usage) {
    out.put_slice(b"{\"input_tokens\":");
    escape::number(out, u64::from(usage.input_tokens));
    out.put_slice(b",\"cache_creation_input_tokens\":");
    escape::number(out, u64::from(usage.cache_creation_input_tokens));
    out.put_slice(b",\"cache_read_input_tokens\":");
    escape::number(out, u64::from(usage.cache_read_input_tokens));
    out.put_slice(b",\"output_tokens\":");
    escape::number(out, u64::from(usage.output_tokens));
    out.put_slice(b"}");
}

/// Writes blocks as events.
struct Frames<'o>(&'o mut BytesMut);

const DELTA: &[u8] = b"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":";
/// Room for what stands around a delta and for a few escapes, so that the usual event asks for memory once.
const RESERVE: usize = 192;

impl Frames<'_> {
    fn delta(&mut self, index: u32, open: &[u8], text: &str) {
        self.0.reserve(RESERVE + text.len());
        self.0.put_slice(DELTA);
        escape::number(self.0, u64::from(index));
        self.0.put_slice(open);
        escape(self.0, text);
        self.0.put_slice(b"\"}}\n\n");
    }
}

impl Blocks for Frames<'_> {
    fn open(&mut self, index: u32, block: Block<'_>) {
        let out = &mut *self.0;
        out.put_slice(b"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":");
        escape::number(out, u64::from(index));
        out.put_slice(b",\"content_block\":{\"type\":\"");
        match block {
            Block::Text => out.put_slice(b"text\",\"text\":\"\""),
            Block::Reasoning => out.put_slice(b"thinking\",\"thinking\":\"\",\"signature\":\"\""),
            Block::Tool { id, name } => {
                out.put_slice(b"tool_use\",\"id\":");
                escape::string(out, id);
                out.put_slice(b",\"name\":");
                escape::string(out, name);
                out.put_slice(b",\"input\":{}");
            }
        }
        out.put_slice(b"}}\n\n");
    }

    #[inline]
    fn extend(&mut self, index: u32, kind: Kind, text: &str) {
        let open: &[u8] = match kind {
            Kind::Text => b",\"delta\":{\"type\":\"text_delta\",\"text\":\"",
            Kind::Reasoning => b",\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"",
            Kind::Tool => b",\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"",
        };
        self.delta(index, open, text);
    }

    fn close(&mut self, index: u32, kind: Kind, _: bool) {
        if kind == Kind::Reasoning {
            self.delta(index, b",\"delta\":{\"type\":\"signature_delta\",\"signature\":\"", SIGNATURE);
        }
        self.0.put_slice(b"event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":");
        escape::number(self.0, u64::from(index));
        self.0.put_slice(b"}\n\n");
    }
}

#[cfg(test)]
#[path = "event_tests.rs"]
mod tests;
