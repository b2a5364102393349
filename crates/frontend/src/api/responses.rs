//! `POST /v1/responses` and `POST /v1/responses/input_tokens`, as far as they need no storage.

use super::openai::{self, Ending};
use super::split::Split;
use crate::plan::{Answer, Api, Call, Head, Reply};
use crate::record::Usage;
use bytes::{Bytes, BytesMut};
use dynamo_protocols::responses::{Body, EventWriter, InputTokens, Request, Settings};
use dynamo_protocols::{Options, error_body};
use dynamo_text::TextDelta;
use dynamo_types::{Error, Result};
use std::sync::Arc;

pub(crate) static API: Api = Api { name: "responses", translate, error_shape: error_body };
pub(crate) static COUNT: Api =
    Api { name: "responses_input_tokens", translate: translate_count, error_shape: error_body };

fn translate(body: &[u8], options: &Options) -> Result<Call> {
    let parsed = Request::parse(body, options)?;
    let answer = ResponseAnswer { settings: parsed.request.settings, begun: None, ending: Ending::default() };
    let (plan, prompts) = openai::conversation(parsed.request.chat, "input");
    Ok(Call { plan, prompts, reply: Reply::Answer(Box::new(answer)), dropped: parsed.dropped })
}

fn translate_count(body: &[u8], options: &Options) -> Result<Call> {
    let parsed = Request::parse_input_tokens(body, options)?;
    let (plan, prompts) = openai::conversation(parsed.request.chat, "input");
    let reply = Reply::Count(|input_tokens| openai::json(&InputTokens::new(input_tokens)));
    Ok(Call { plan, prompts, reply, dropped: parsed.dropped })
}

struct ResponseAnswer {
    settings: Arc<Settings>,
    begun: Option<Begun>,
    ending: Ending,
}

struct Begun {
    id: String,
    head: Head,
    writer: EventWriter,
    split: Split,
}

impl Answer for ResponseAnswer {
    fn begin(&mut self, head: Head) {
        let id = openai::id("resp_", &head);
        let writer = EventWriter::new(&id, head.created_s, &head.model, Arc::clone(&self.settings));
        let split = Split::new(&head);
        self.begun = Some(Begun { id, head, writer, split });
    }

    fn chunk(&mut self, choice: u32, mut delta: TextDelta, _: &Usage, out: &mut BytesMut) {
        let Some(Begun { writer, split, .. }) = &mut self.begun else { return };
        writer.start(out);
        split.push(choice, &mut delta, |piece| writer.push(out, piece));
        self.ending.note(&mut delta);
    }

    fn end(&mut self, usage: &Usage, out: &mut BytesMut) {
        if let Some(Begun { writer, .. }) = &mut self.begun {
            writer.finish(out, &self.ending.finish(), openai::usage(usage));
        }
    }

    fn fail(&mut self, error: &Error, out: &mut BytesMut) {
        if let Some(Begun { writer, .. }) = &mut self.begun {
            writer.fail(out, error);
        }
    }

    fn whole(&mut self, choices: Vec<TextDelta>, usage: &Usage) -> Result<Bytes> {
        let Begun { id, head, split, .. } = self.begun.as_mut().ok_or_else(openai::not_begun)?;
        let mut body = Body::new(id, head.created_s, &head.model, Arc::clone(&self.settings));
        for mut delta in choices {
            split.push(0, &mut delta, |piece| body.push(piece));
            self.ending.note(&mut delta);
        }
        openai::json(&body.finish(&self.ending.finish(), openai::usage(usage)))
    }
}
