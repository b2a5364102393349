//! `POST /v1/messages` and `POST /v1/messages/count_tokens`, in Anthropic's dialect.

use super::openai::{self, Ending};
use super::split::Split;
use crate::plan::{Answer, Api, Call, Head, Reply};
use crate::record::Usage;
use bytes::{Bytes, BytesMut};
use dynamo_protocols::Options;
use dynamo_protocols::anthropic::{Body, EventWriter, InputTokens, Request, error_body};
use dynamo_text::TextDelta;
use dynamo_types::{Error, Result};

pub(crate) static API: Api = Api { name: "messages", translate, error_shape: error_body };
pub(crate) static COUNT: Api =
    Api { name: "messages_count_tokens", translate: translate_count, error_shape: error_body };

fn translate(body: &[u8], options: &Options) -> Result<Call> {
    let parsed = Request::parse(body, options)?;
    let (plan, prompts) = openai::conversation(parsed.request.chat, "messages");
    let reply = Reply::Answer(Box::<MessageAnswer>::default());
    Ok(Call { plan, prompts, reply, dropped: parsed.dropped })
}

fn translate_count(body: &[u8], options: &Options) -> Result<Call> {
    let parsed = Request::parse_count(body, options)?;
    let (plan, prompts) = openai::conversation(parsed.request.chat, "messages");
    let reply = Reply::Count(|input_tokens| openai::json(&InputTokens { input_tokens }));
    Ok(Call { plan, prompts, reply, dropped: parsed.dropped })
}

#[derive(Default)]
struct MessageAnswer {
    begun: Option<Begun>,
    ending: Ending,
}

struct Begun {
    id: String,
    head: Head,
    writer: EventWriter,
    split: Split,
}

impl Answer for MessageAnswer {
    fn begin(&mut self, head: Head) {
        let id = openai::id("msg_", &head);
        let (writer, split) = (EventWriter::new(&id, &head.model), Split::new(&head));
        self.begun = Some(Begun { id, head, writer, split });
    }

    fn chunk(&mut self, choice: u32, mut delta: TextDelta, usage: &Usage, out: &mut BytesMut) {
        let Some(Begun { writer, split, .. }) = &mut self.begun else { return };
        writer.start(out, openai::usage(usage));
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
        let mut body = Body::default();
        for mut delta in choices {
            split.push(0, &mut delta, |piece| body.push(piece));
            self.ending.note(&mut delta);
        }
        openai::json(&body.finish(id, &head.model, &self.ending.finish(), openai::usage(usage)))
    }
}
