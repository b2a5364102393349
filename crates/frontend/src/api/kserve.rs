//! KServe's `ModelInfer` and `ModelStreamInfer`: one prompt in, text and the reason of its end out.

use super::openai;
use crate::plan::{Answer, Api, Call, Head, Prompt, Reply};
use crate::record::Usage;
use bytes::{Bytes, BytesMut};
use dynamo_protocols::kserve::{Answered, InferRequest, Piece, frame, write_error};
use dynamo_protocols::openai::{completions, finish_reason};
use dynamo_protocols::{Options, error_body};
use dynamo_text::TextDelta;
use dynamo_types::{Error, Result};

/// Label in metrics and logs, of both calls: they differ by how they are answered.
const NAME: &str = "kserve";

pub(crate) static INFER: Api = Api { name: NAME, translate: unary, error_shape: error_body };
pub(crate) static STREAM_INFER: Api = Api { name: NAME, translate: streamed, error_shape: error_body };

fn unary(message: &[u8], options: &Options) -> Result<Call> {
    let call = translate(message, options, false)?;
    if call.plan.stream {
        return Err(Error::invalid("`streaming` must be false for ModelInfer; ModelStreamInfer streams")
            .with_param("streaming"));
    }
    Ok(call)
}

fn streamed(message: &[u8], options: &Options) -> Result<Call> {
    translate(message, options, true)
}

fn translate(message: &[u8], options: &Options, streamed: bool) -> Result<Call> {
    let parsed = InferRequest::parse(message, options)?;
    let InferRequest { completion, id, raw, wants_text, wants_finish_reason } = parsed.request;
    let completions::Request { mut common, prompt, echo, .. } = completion;
    let prompts = match (common.token_data.take(), prompt) {
        // Instead of the only prompt there is.
        (Some(ids), _) => vec![Prompt::Tokens(ids)],
        (None, completions::Prompt::Texts(texts)) => texts.into_iter().map(Prompt::Text).collect(),
        (None, completions::Prompt::Tokens(lists)) => lists.into_iter().map(Prompt::Tokens).collect(),
    };
    let answered = Answered { model: String::new(), id, raw, wants_text, wants_finish_reason, streamed };
    let answer = KserveAnswer { answered, echo, prompt: String::new(), is_over: false };
    let plan = openai::plan(common, "text_input", echo);
    Ok(Call { plan, prompts, reply: Reply::Answer(Box::new(answer)), dropped: parsed.dropped })
}

struct KserveAnswer {
    answered: Answered,
    /// The prompt in front of the answer.
    echo: bool,
    /// What is still to be put there.
    prompt: String,
    /// The last response has been written.
    is_over: bool,
}

impl KserveAnswer {
    fn write(&mut self, delta: TextDelta, is_final: bool, usage: &Usage, out: &mut BytesMut) {
        self.is_over |= is_final;
        let mut text = std::mem::take(&mut self.prompt);
        if text.is_empty() {
            text = delta.text;
        } else {
            text.push_str(&delta.text);
        }
        let piece = Piece {
            text: &text,
            finish_reason: delta.finish.map_or("", finish_reason),
            is_final,
            usage: is_final.then_some((usage.prompt_tokens, usage.completion_tokens)),
        };
        frame::write(out, |message| self.answered.write(&piece, message));
    }
}

impl Answer for KserveAnswer {
    fn begin(&mut self, head: Head) {
        self.answered.model = head.model.to_string();
        if self.echo {
            self.prompt = head.texts.into_iter().next().unwrap_or_default();
        }
    }

    fn chunk(&mut self, _choice: u32, delta: TextDelta, usage: &Usage, out: &mut BytesMut) {
        let is_final = delta.finish.is_some();
        if is_final || !delta.text.is_empty() {
            self.write(delta, is_final, usage, out);
        }
    }

    fn quiet(&mut self, _out: &mut BytesMut) {
        // HTTP/2 pings keep the connection, and a response would be one more.
    }

    fn end(&mut self, usage: &Usage, out: &mut BytesMut) {
        if !self.is_over {
            self.write(TextDelta::default(), true, usage, out);
        }
    }

    fn fail(&mut self, error: &Error, out: &mut BytesMut) {
        frame::write(out, |message| write_error(&self.answered.id, error.message(), message));
    }

    fn whole(&mut self, choices: Vec<TextDelta>, usage: &Usage) -> Result<Bytes> {
        let mut out = BytesMut::new();
        self.write(choices.into_iter().next().unwrap_or_default(), true, usage, &mut out);
        Ok(out.freeze())
    }
}
