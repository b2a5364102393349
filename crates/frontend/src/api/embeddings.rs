//! `POST /v1/embeddings`.

use super::openai;
use crate::plan::{Answer, Api, Call, Head, Plan, Prompt, Reply};
use crate::record::Usage;
use bytes::{Bytes, BytesMut};
use dynamo_protocols::openai::completions;
use dynamo_protocols::openai::embeddings::{Encoding, Request, Response};
use dynamo_protocols::{Options, error_body};
use dynamo_text::TextDelta;
use dynamo_types::{Error, Result, Task};
use std::sync::Arc;

pub(crate) static API: Api = Api { name: "embeddings", translate, error_shape: error_body };

fn translate(body: &[u8], options: &Options) -> Result<Call> {
    let parsed = Request::parse(body, options)?;
    let request = parsed.request;
    let prompts = match request.input {
        completions::Prompt::Texts(texts) => texts.into_iter().map(Prompt::Text).collect(),
        completions::Prompt::Tokens(lists) => lists.into_iter().map(Prompt::Tokens).collect(),
    };
    let plan = Plan {
        prompt_field: "input",
        task: Task::Embed,
        dimensions: request.dimensions,
        add_special_tokens: request.add_special_tokens,
        routing: request.routing,
        ..Plan::of(request.model)
    };
    let answer = EmbeddingAnswer { encoding: request.encoding, model: None };
    Ok(Call { plan, prompts, reply: Reply::Answer(Box::new(answer)), dropped: parsed.dropped })
}

/// Never streamed: a vector has no pieces.
struct EmbeddingAnswer {
    encoding: Encoding,
    model: Option<Arc<str>>,
}

impl Answer for EmbeddingAnswer {
    fn begin(&mut self, head: Head) {
        self.model = Some(head.model);
    }

    fn chunk(&mut self, _: u32, _: TextDelta, _: &Usage, _: &mut BytesMut) {}

    fn end(&mut self, _: &Usage, _: &mut BytesMut) {}

    fn fail(&mut self, _: &Error, _: &mut BytesMut) {}

    fn whole(&mut self, choices: Vec<TextDelta>, usage: &Usage) -> Result<Bytes> {
        let model = self.model.as_deref().ok_or_else(openai::not_begun)?;
        let vectors = choices.into_iter().map(|choice| {
            choice
                .embedding
                .ok_or_else(|| Error::engine("the worker ended without the vector it was asked for"))
        });
        let vectors = vectors.collect::<Result<Vec<Vec<f32>>>>()?;
        openai::json(&Response::new(model, self.encoding, vectors, usage.prompt_tokens))
    }
}
