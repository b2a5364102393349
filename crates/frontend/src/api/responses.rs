//! `POST /v1/responses` and `POST /v1/responses/input_tokens`, as far as they need no storage.

use super::blocks::{Blocks, Dialect};
use super::openai;
use crate::plan::{Api, Call, Head, Reply};
use dynamo_protocols::responses::{Body, EventWriter, InputTokens, Request, Settings};
use dynamo_protocols::{Options, error_body};
use dynamo_types::Result;
use std::sync::Arc;

pub(crate) static API: Api = Api { name: "responses", translate, error_shape: error_body };
pub(crate) static COUNT: Api =
    Api { name: "responses_input_tokens", translate: translate_count, error_shape: error_body };

fn translate(body: &[u8], options: &Options) -> Result<Call> {
    let parsed = Request::parse(body, options)?;
    let answer = Blocks::new(Responses(parsed.request.settings));
    let (plan, prompts) = openai::conversation(parsed.request.chat, "input");
    Ok(Call { plan, prompts, reply: Reply::Answer(Box::new(answer)), dropped: parsed.dropped })
}

fn translate_count(body: &[u8], options: &Options) -> Result<Call> {
    let parsed = Request::parse_input_tokens(body, options)?;
    let (plan, prompts) = openai::conversation(parsed.request.chat, "input");
    let reply = Reply::Count(|input_tokens| openai::json(&InputTokens::new(input_tokens)));
    Ok(Call { plan, prompts, reply, dropped: parsed.dropped })
}

/// Answers repeat the request's settings.
struct Responses(Arc<Settings>);

impl Dialect for Responses {
    const PREFIX: &'static str = "resp_";
    type Stream = EventWriter;
    type Fold = Body;

    fn stream(&self, id: &str, head: &Head) -> EventWriter {
        EventWriter::new(id, head.created_s, &head.model, Arc::clone(&self.0))
    }

    fn fold(&self, id: &str, head: &Head) -> Body {
        Body::new(id, head.created_s, &head.model, Arc::clone(&self.0))
    }
}
