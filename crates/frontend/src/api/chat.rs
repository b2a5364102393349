//! `POST /v1/chat/completions`.

use super::openai::{self, Frames, Wishes};
use crate::plan::{Answer, Api, Call, ChatPrompt, Head, Prompt};
use crate::record::Usage;
use bytes::{Bytes, BytesMut};
use dynamo_protocols::openai::ChunkWriter;
use dynamo_protocols::openai::chat::{Choice, Request, Response};
use dynamo_protocols::openai::logprobs::ChatLogprobs;
use dynamo_protocols::{Options, error_body};
use dynamo_text::TextDelta;
use dynamo_types::{Error, Result};
use serde_json::Value;

pub(crate) static API: Api = Api { name: "chat_completions", translate, error_shape: error_body };

fn translate(body: &[u8], options: &Options) -> Result<Call> {
    let parsed = Request::parse(body, options)?;
    let request = parsed.request;
    let tools = request.template_tools().map(|tools| Value::Array(tools.to_vec()));
    let answer = ChatAnswer { wishes: Wishes::of(&request.common), begun: None };
    let prompt = ChatPrompt {
        tools,
        messages: request.messages,
        add_generation_prompt: request.add_generation_prompt,
        continue_final_message: request.continue_final_message,
        kwargs: request.chat_template_kwargs,
    };
    Ok(Call {
        plan: openai::plan(request.common, "messages", false),
        prompts: vec![Prompt::Chat(Box::new(prompt))],
        answer: Box::new(answer),
        dropped: parsed.dropped,
    })
}

struct ChatAnswer {
    wishes: Wishes,
    begun: Option<(Head, Frames)>,
}

impl Answer for ChatAnswer {
    fn begin(&mut self, head: Head) {
        let writer = ChunkWriter::chat(&openai::id("chatcmpl-", &head), head.created_s, &head.model);
        self.begun = Some((head, Frames::new(writer, self.wishes)));
    }

    fn chunk(&mut self, choice: u32, mut delta: TextDelta, usage: &Usage, out: &mut BytesMut) {
        let Some((_, frames)) = &mut self.begun else { return };
        if frames.begin(choice) {
            frames.writer.role(out, choice);
        }
        let logprobs = openai::logprobs(std::mem::take(&mut delta.logprobs), 0);
        frames.piece(choice, &delta, &logprobs, usage, out);
    }

    fn end(&mut self, usage: &Usage, out: &mut BytesMut) {
        if let Some((_, frames)) = &self.begun {
            frames.end(usage, out);
        }
    }

    fn fail(&mut self, error: &Error, out: &mut BytesMut) {
        if let Some((_, frames)) = &self.begun {
            frames.fail(error, out);
        }
    }

    fn whole(&mut self, choices: Vec<TextDelta>, usage: &Usage) -> Result<Bytes> {
        let (head, _) = self.begun.as_ref().ok_or_else(openai::not_begun)?;
        let choices = choices
            .into_iter()
            .zip(0..)
            .map(|(delta, index)| {
                let logprobs = openai::logprobs(delta.logprobs, 0);
                let logprobs = self.wishes.logprobs().then_some(ChatLogprobs(logprobs));
                Choice::new(index, delta.text, logprobs, delta.finish)
            })
            .collect();
        let id = openai::id("chatcmpl-", head);
        let response = Response::new(&id, head.created_s, &head.model, choices, openai::usage(usage));
        let body = serde_json::to_vec(&response).map_err(|error| Error::internal(error.to_string()))?;
        Ok(body.into())
    }
}
