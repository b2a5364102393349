//! An answer as the events of a response.

use super::item::{Item, Items, OutputText, ReasoningText};
use super::request::Settings;
use super::response::Response;
use crate::escape::{self, escape};
use crate::openai;
use crate::pieces::{Block, Blocks, Finish, Kind, Piece, Sequencer, Stream};
use bytes::{BufMut, BytesMut};
use dynamo_types::Error;
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;

/// Writes one stream, each event whole and numbered from 0: `response.created`, `response.in_progress`, items that
/// never overlap, then `response.completed`, `response.incomplete` or `response.failed` with the whole answer, and
/// `[DONE]`.
#[derive(Clone, Debug)]
pub struct EventWriter {
    response: Response,
    blocks: Sequencer,
    items: Items,
    frames: Frames,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    New,
    Begun,
    Over,
}

/// What the events of a stream share.
#[derive(Clone, Debug, Default)]
struct Frames {
    sequence_number: u64,
    /// The open item's deltas up to their text.
    head: Vec<u8>,
}

impl EventWriter {
    /// `id` with its prefix `resp_`.
    pub fn new(id: &str, created_s: u64, model: &str, settings: Arc<Settings>) -> Self {
        Self {
            response: Response::new(id, created_s, model, settings),
            blocks: Sequencer::default(),
            items: Items::new(id),
            frames: Frames::default(),
            state: State::New,
        }
    }

    fn close(&mut self, out: &mut BytesMut, is_cut: bool) {
        self.state = State::Over;
        self.blocks.end(is_cut, &mut Shown { items: &mut self.items, frames: &mut self.frames, out });
    }
}

impl Stream for EventWriter {
    fn start(&mut self, out: &mut BytesMut, _: openai::Usage) {
        if self.state != State::New {
            return;
        }
        self.state = State::Begun;
        // Tools and instructions may be long: written out once for both.
        let response = to_json(&self.response);
        for kind in ["response.created", "response.in_progress"] {
            self.frames.response(out, kind, &response);
        }
    }

    fn push(&mut self, out: &mut BytesMut, piece: Piece<'_>) {
        self.start(out, openai::Usage::default());
        if self.state == State::Begun {
            self.blocks.push(piece, &mut Shown { items: &mut self.items, frames: &mut self.frames, out });
        }
    }

    fn finish(&mut self, out: &mut BytesMut, finish: &Finish<'_>, usage: openai::Usage) {
        self.start(out, usage);
        if self.state == State::Over {
            return;
        }
        self.close(out, finish.is_cut());
        self.response.finish(std::mem::take(&mut self.items.items), finish, usage);
        let kind = if self.response.incomplete_details.is_some() {
            "response.incomplete"
        } else {
            "response.completed"
        };
        self.frames.response(out, kind, &to_json(&self.response));
        out.put_slice(DONE);
    }

    /// Before the beginning it is an `error` event, as there is no response yet that could have failed.
    fn fail(&mut self, out: &mut BytesMut, error: &Error) {
        match self.state {
            State::Over => return,
            State::New => {
                self.state = State::Over;
                let code = super::response::Fault::from(error).code;
                self.frames.event(
                    out,
                    "error",
                    &json!({"code": error.code().unwrap_or(code), "message": error.message(), "param": error.param()}),
                );
            }
            State::Begun => {
                self.close(out, true);
                self.response.fail(std::mem::take(&mut self.items.items), error);
                self.frames.response(out, "response.failed", &to_json(&self.response));
            }
        }
        out.put_slice(DONE);
    }
}

const DONE: &[u8] = b"data: [DONE]\n\n";
/// Room for the number and for a few escapes, so that the usual event asks for memory once.
const RESERVE: usize = 64;

/// Nothing that is written here can fail to serialise; should it all the same, `null` keeps the event whole.
fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_else(|_| b"null".to_vec())
}

impl Frames {
    fn open(out: &mut BytesMut, kind: &str) {
        out.put_slice(b"event: ");
        out.put_slice(kind.as_bytes());
        out.put_slice(b"\ndata: {\"type\":\"");
        out.put_slice(kind.as_bytes());
        out.put_slice(b"\",");
    }

    fn close(&mut self, out: &mut BytesMut) {
        out.put_slice(b",\"sequence_number\":");
        escape::number(out, self.sequence_number);
        out.put_slice(b"}\n\n");
        self.sequence_number += 1;
    }

    fn response(&mut self, out: &mut BytesMut, kind: &str, response: &[u8]) {
        Self::open(out, kind);
        out.put_slice(b"\"response\":");
        out.put_slice(response);
        self.close(out);
    }

    /// `fields` is an object that is not empty.
    fn event(&mut self, out: &mut BytesMut, kind: &str, fields: &impl Serialize) {
        let json = to_json(fields);
        let inside = json.strip_prefix(b"{").and_then(|json| json.strip_suffix(b"}")).unwrap_or(b"\"\":null");
        Self::open(out, kind);
        out.put_slice(inside);
        self.close(out);
    }
}

/// Items that are shown as they grow.
struct Shown<'a> {
    items: &'a mut Items,
    frames: &'a mut Frames,
    out: &'a mut BytesMut,
}

/// The events of an item's text: of its part, of a delta, of its end.
struct Names {
    delta: &'static str,
    done: &'static str,
    /// The text's name in the event of its end.
    text: &'static str,
}

fn names(kind: Kind) -> Names {
    match kind {
        Kind::Text => {
            Names { delta: "response.output_text.delta", done: "response.output_text.done", text: "text" }
        }
        Kind::Reasoning => Names {
            delta: "response.reasoning_text.delta",
            done: "response.reasoning_text.done",
            text: "text",
        },
        Kind::Tool => Names {
            delta: "response.function_call_arguments.delta",
            done: "response.function_call_arguments.done",
            text: "arguments",
        },
    }
}

impl Shown<'_> {
    fn part(&mut self, event: &str, index: u32, kind: Kind, text: String) {
        let Some(item) = self.items.items.last() else { return };
        let part = match kind {
            Kind::Tool => return,
            Kind::Text => json!(OutputText { text, ..OutputText::default() }),
            Kind::Reasoning => json!(ReasoningText { text }),
        };
        let fields = json!({"item_id": item.id(), "output_index": index, "content_index": 0, "part": part});
        self.frames.event(self.out, event, &fields);
    }

    fn item(&mut self, event: &str, index: u32) {
        let item = self.items.items.last();
        self.frames.event(self.out, event, &json!({"output_index": index, "item": item}));
    }
}

impl Blocks for Shown<'_> {
    fn open(&mut self, index: u32, block: Block<'_>) {
        self.items.open(index, block);
        let kind = match block {
            Block::Text => Kind::Text,
            Block::Reasoning => Kind::Reasoning,
            Block::Tool { .. } => Kind::Tool,
        };
        self.item("response.output_item.added", index);
        self.part("response.content_part.added", index, kind, String::new());
        let mut head = BytesMut::new();
        Frames::open(&mut head, names(kind).delta);
        head.put_slice(b"\"item_id\":");
        escape::string(&mut head, self.items.items.last().map_or("", Item::id));
        head.put_slice(b",\"output_index\":");
        escape::number(&mut head, u64::from(index));
        if kind != Kind::Tool {
            head.put_slice(b",\"content_index\":0");
        }
        if kind == Kind::Text {
            head.put_slice(b",\"logprobs\":[]");
        }
        head.put_slice(b",\"delta\":\"");
        self.frames.head = head.into();
    }

    #[inline]
    fn extend(&mut self, index: u32, kind: Kind, text: &str) {
        self.items.extend(index, kind, text);
        self.out.reserve(self.frames.head.len() + text.len() + RESERVE);
        self.out.put_slice(&self.frames.head);
        escape(self.out, text);
        self.out.put_slice(b"\"");
        self.frames.close(self.out);
    }

    fn close(&mut self, index: u32, kind: Kind, is_whole: bool) {
        self.items.close(index, kind, is_whole);
        let Some(item) = self.items.items.last() else { return };
        let text = item.text().to_owned();
        let names = names(kind);
        let mut fields = json!({"item_id": item.id(), "output_index": index});
        match item {
            Item::FunctionCall { name, .. } => fields["name"] = name.as_str().into(),
            Item::Message { .. } => {
                fields["content_index"] = 0.into();
                fields["logprobs"] = json!([]);
            }
            Item::Reasoning { .. } => fields["content_index"] = 0.into(),
        }
        fields[names.text] = text.as_str().into();
        self.frames.event(self.out, names.done, &fields);
        self.part("response.content_part.done", index, kind, text);
        self.item("response.output_item.done", index);
    }
}

#[cfg(test)]
#[path = "event_tests.rs"]
mod tests;
