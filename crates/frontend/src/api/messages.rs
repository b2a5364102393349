//! `POST /v1/messages` and `POST /v1/messages/count_tokens`, in Anthropic's dialect.

use super::blocks::{Blocks, Dialect};
use super::openai;
use crate::plan::{Api, Call, Head, Reply};
use dynamo_protocols::Options;
use dynamo_protocols::anthropic::{Body, EventWriter, InputTokens, Request, error_body};
use dynamo_types::Result;

pub(crate) static API: Api = Api { name: "messages", translate, error_shape: error_body };
pub(crate) static COUNT: Api =
    Api { name: "messages_count_tokens", translate: translate_count, error_shape: error_body };

fn translate(body: &[u8], options: &Options) -> Result<Call> {
    let parsed = Request::parse(body, options)?;
    let (plan, prompts) = openai::conversation(parsed.request.chat, "messages");
    let reply = Reply::Answer(Box::new(Blocks::new(Messages)));
    Ok(Call { plan, prompts, reply, dropped: parsed.dropped })
}

fn translate_count(body: &[u8], options: &Options) -> Result<Call> {
    let parsed = Request::parse_count(body, options)?;
    let (plan, prompts) = openai::conversation(parsed.request.chat, "messages");
    let reply = Reply::Count(|input_tokens| openai::json(&InputTokens { input_tokens }));
    Ok(Call { plan, prompts, reply, dropped: parsed.dropped })
}

struct Messages;

impl Dialect for Messages {
    const PREFIX: &'static str = "msg_";
    type Stream = EventWriter;
    type Fold = Body;

    fn stream(&self, id: &str, head: &Head) -> EventWriter {
        EventWriter::new(id, &head.model)
    }

    fn fold(&self, id: &str, head: &Head) -> Body {
        Body::new(id, &head.model)
    }
}
