//! `POST /v1/chat/completions`.

use super::openai::{self, Frames, Wishes};
use super::split::Split;
use crate::plan::{Answer, Api, Call, Head, Reply};
use crate::record::Usage;
use bytes::{Bytes, BytesMut};
use dynamo_protocols::openai::ChunkWriter;
use dynamo_protocols::openai::chat::{AnswerCall, AssistantMessage, Choice, Request, Response};
use dynamo_protocols::openai::logprobs::ChatLogprobs;
use dynamo_protocols::{Options, Piece, error_body};
use dynamo_text::TextDelta;
use dynamo_types::{Error, Result};

pub(crate) static API: Api = Api { name: "chat_completions", translate, error_shape: error_body };

fn translate(body: &[u8], options: &Options) -> Result<Call> {
    let parsed = Request::parse(body, options)?;
    let answer = ChatAnswer { wishes: Wishes::of(&parsed.request.common), begun: None };
    let (plan, prompts) = openai::conversation(parsed.request, "messages");
    Ok(Call { plan, prompts, reply: Reply::Answer(Box::new(answer)), dropped: parsed.dropped })
}

struct ChatAnswer {
    wishes: Wishes,
    begun: Option<Begun>,
}

struct Begun {
    head: Head,
    frames: Frames,
    split: Split,
}

impl Begun {
    /// The message of a choice: the fold of the pieces that a stream shows (R13).
    fn message(&mut self, choice: u32, delta: &mut TextDelta) -> AssistantMessage {
        let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
        self.split.push(choice, delta, |piece| match piece {
            Piece::Text(text) => content.push_str(text),
            Piece::Reasoning(text) => reasoning.push_str(text),
            Piece::ToolStart { id, name } => {
                calls.push(AnswerCall::new(id.into(), name.into(), String::new()));
            }
            Piece::ToolArguments(fragment) => {
                if let Some(call) = calls.last_mut() {
                    call.function.arguments.push_str(fragment);
                }
            }
            Piece::ToolEnd => {}
        });
        AssistantMessage::new(content, reasoning, calls)
    }
}

impl Answer for ChatAnswer {
    fn begin(&mut self, head: Head) {
        let writer = ChunkWriter::chat(&openai::id("chatcmpl-", &head), head.created_s, &head.model);
        let (frames, split) = (Frames::new(writer, self.wishes), Split::new(&head));
        self.begun = Some(Begun { head, frames, split });
    }

    fn chunk(&mut self, choice: u32, mut delta: TextDelta, usage: &Usage, out: &mut BytesMut) {
        let Some(Begun { frames, split, .. }) = &mut self.begun else { return };
        if frames.begin(choice) {
            frames.writer.role(out, choice);
        }
        let logprobs = openai::logprobs(std::mem::take(&mut delta.logprobs), 0);
        let mut due = logprobs.as_slice();
        if !split.is_plain() {
            split.push(choice, &mut delta, |piece| {
                if frames.split_piece(choice, piece, due, usage, out) {
                    due = &[];
                }
            });
        }
        frames.piece(choice, &delta, due, usage, out);
    }

    fn end(&mut self, usage: &Usage, out: &mut BytesMut) {
        if let Some(Begun { frames, .. }) = &self.begun {
            frames.end(usage, out);
        }
    }

    fn fail(&mut self, error: &Error, out: &mut BytesMut) {
        if let Some(Begun { frames, .. }) = &self.begun {
            frames.fail(error, out);
        }
    }

    fn whole(&mut self, choices: Vec<TextDelta>, usage: &Usage) -> Result<Bytes> {
        let begun = self.begun.as_mut().ok_or_else(openai::not_begun)?;
        let choices = choices
            .into_iter()
            .zip(0..)
            .map(|(mut delta, index)| {
                let logprobs = openai::logprobs(std::mem::take(&mut delta.logprobs), 0);
                let logprobs = self.wishes.logprobs().then_some(ChatLogprobs(logprobs));
                let message = begun.message(index, &mut delta);
                Choice::new(index, message, logprobs, delta.finish)
            })
            .collect();
        let id = openai::id("chatcmpl-", &begun.head);
        let response =
            Response::new(&id, begun.head.created_s, &begun.head.model, choices, openai::usage(usage));
        openai::json(&response)
    }
}
