//! `POST /v1/chat/completions`.

use super::openai::{self, Begun, Wishes, Worded, Words};
use super::split::Split;
use crate::plan::{Api, Call, Head, Reply};
use crate::record::Usage;
use bytes::{Bytes, BytesMut};
use dynamo_protocols::openai::ChunkWriter;
use dynamo_protocols::openai::chat::{AnswerCall, AssistantMessage, Choice, Request, Response};
use dynamo_protocols::openai::logprobs::ChatLogprobs;
use dynamo_protocols::{Options, Piece, error_body};
use dynamo_text::TextDelta;
use dynamo_text::parsers::Forced;
use dynamo_types::{FinishReason, Result};

pub(crate) static API: Api = Api { name: "chat_completions", translate, error_shape: error_body };

fn translate(body: &[u8], options: &Options) -> Result<Call> {
    let parsed = Request::parse(body, options)?;
    let answer = Worded::new(ChatWords::default(), Wishes::of(&parsed.request.common));
    let (plan, prompts) = openai::conversation(parsed.request, "messages");
    Ok(Call { plan, prompts, reply: Reply::Answer(Box::new(answer)), dropped: parsed.dropped })
}

#[derive(Default)]
struct ChatWords {
    /// From the beginning of the answer on.
    split: Option<Split>,
}

impl ChatWords {
    /// The message of a choice: the fold of the pieces that a stream shows (R13).
    fn message(&mut self, choice: u32, delta: &mut TextDelta) -> AssistantMessage {
        let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
        let push = |piece: Piece<'_>| match piece {
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
        };
        if let Some(split) = &mut self.split {
            split.push(choice, delta, push);
        }
        AssistantMessage::new(content, reasoning, calls)
    }
}

/// This API's word for the end of a call that the client named: it was not the model that chose to call.
fn settle(head: &Head, delta: &mut TextDelta) {
    let is_named = matches!(head.splitting.forced, Some(Forced::Named(_)));
    if is_named && delta.finish == Some(FinishReason::ToolCalls) {
        delta.finish = Some(FinishReason::Stop);
    }
}

impl Words for ChatWords {
    fn writer(&self, head: &Head) -> ChunkWriter {
        ChunkWriter::chat(&openai::id("chatcmpl-", head), head.created_s, &head.model)
    }

    fn begin(&mut self, head: &Head) {
        self.split = Some(Split::new(head));
    }

    fn chunk(
        &mut self,
        at: &mut Begun,
        choice: u32,
        mut delta: TextDelta,
        usage: &Usage,
        out: &mut BytesMut,
    ) {
        let Begun { head, frames, wishes } = at;
        if frames.begin(choice) {
            frames.role(choice, usage, out);
        }
        frames.collect(choice, &delta);
        let logprobs = wishes.shown(std::mem::take(&mut delta.logprobs), 0);
        let mut due = logprobs.as_slice();
        if let Some(split) = self.split.as_mut().filter(|split| !split.is_plain()) {
            split.push(choice, &mut delta, |piece| {
                if frames.split_piece(choice, piece, due, usage, out) {
                    due = &[];
                }
            });
        }
        settle(head, &mut delta);
        frames.piece(choice, &delta, due, usage, out);
    }

    fn whole(&mut self, at: &mut Begun, choices: Vec<TextDelta>, usage: &Usage) -> Result<Bytes> {
        let Begun { head, frames, wishes } = at;
        let mut told = Vec::with_capacity(choices.len());
        let choices = choices
            .into_iter()
            .zip(0..)
            .map(|(mut delta, index)| {
                frames.collect(index, &delta);
                told.push(frames.told(index));
                let logprobs = wishes.shown(std::mem::take(&mut delta.logprobs), 0);
                let logprobs = wishes.logprobs.then_some(ChatLogprobs(logprobs));
                let message = self.message(index, &mut delta);
                settle(head, &mut delta);
                Choice::new(index, message, logprobs, delta.finish)
            })
            .collect();
        let id = openai::id("chatcmpl-", head);
        let response = Response::new(&id, head.created_s, &head.model, choices, openai::usage(usage));
        openai::json(&response.with_nvext(told))
    }
}
