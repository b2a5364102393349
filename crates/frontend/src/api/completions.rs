//! `POST /v1/completions`.

use super::openai::{self, Frames, Wishes};
use crate::plan::{Answer, Api, Call, Head, Prompt, Reply};
use crate::record::Usage;
use bytes::{Bytes, BytesMut};
use dynamo_protocols::openai::completions::{self, Choice, Request, Response};
use dynamo_protocols::openai::logprobs::CompletionLogprobs;
use dynamo_protocols::openai::{ChunkWriter, TokenLogprob};
use dynamo_protocols::{Options, error_body};
use dynamo_text::TextDelta;
use dynamo_types::{Error, Result};

pub(crate) static API: Api = Api { name: "completions", translate, error_shape: error_body };

fn translate(body: &[u8], options: &Options) -> Result<Call> {
    let parsed = Request::parse(body, options)?;
    let request = parsed.request;
    let prompts = match request.prompt {
        completions::Prompt::Texts(texts) => texts.into_iter().map(Prompt::Text).collect(),
        completions::Prompt::Tokens(lists) => lists.into_iter().map(Prompt::Tokens).collect(),
    };
    let answer = CompletionAnswer { wishes: Wishes::of(&request.common), begun: None };
    Ok(Call {
        plan: openai::plan(request.common, "prompt", request.echo),
        prompts,
        reply: Reply::Answer(Box::new(answer)),
        dropped: parsed.dropped,
    })
}

struct CompletionAnswer {
    wishes: Wishes,
    begun: Option<(Head, Frames)>,
}

/// The text of the prompt a choice belongs to, if it is to be repeated.
fn echo(head: &Head, choice: u32) -> Option<&str> {
    head.echo.get((choice / head.n.max(1)) as usize).map(String::as_str)
}

/// Puts the prompt in front of a choice's first piece (or of the whole answer), and gives the log-probabilities of
/// both. Offsets count from the start of what the client sees.
fn dress(delta: &mut TextDelta, echo: Option<&str>, first: bool) -> Vec<TokenLogprob> {
    let shift = echo.map_or(0, |prompt| prompt.chars().count());
    let mut logprobs = Vec::new();
    if let (Some(prompt), true) = (echo, first) {
        delta.text.insert_str(0, prompt);
        logprobs = openai::logprobs(std::mem::take(&mut delta.prompt_logprobs), 0);
        // Nothing predicts the first token.
        if let Some(first) = logprobs.first_mut() {
            first.logprob = None;
        }
    }
    logprobs.extend(openai::logprobs(std::mem::take(&mut delta.logprobs), shift));
    logprobs
}

impl Answer for CompletionAnswer {
    fn begin(&mut self, head: Head) {
        let writer = ChunkWriter::completion(&openai::id("cmpl-", &head), head.created_s, &head.model);
        self.begun = Some((head, Frames::new(writer, self.wishes)));
    }

    fn chunk(&mut self, choice: u32, mut delta: TextDelta, usage: &Usage, out: &mut BytesMut) {
        let Some((head, frames)) = &mut self.begun else { return };
        let first = frames.begin(choice);
        let logprobs = dress(&mut delta, echo(head, choice), first);
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
            .map(|(mut delta, index)| {
                let logprobs = dress(&mut delta, echo(head, index), true);
                let logprobs = self.wishes.logprobs().then_some(CompletionLogprobs(logprobs));
                Choice::new(index, delta.text, logprobs, delta.finish)
            })
            .collect();
        let id = openai::id("cmpl-", head);
        let response = Response::new(&id, head.created_s, &head.model, choices, openai::usage(usage));
        openai::json(&response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dynamo_text::TextLogprob;

    fn token(text: &str, text_offset: usize) -> TextLogprob {
        TextLogprob { text: text.into(), text_offset, ..TextLogprob::default() }
    }

    #[test]
    fn echo_comes_once_and_shifts_offsets() {
        let mut delta = TextDelta {
            text: "cd".into(),
            prompt_logprobs: vec![token("é", 0), token("b", 1)],
            logprobs: vec![token("cd", 0)],
            ..TextDelta::default()
        };
        let logprobs = dress(&mut delta, Some("éb"), true);
        assert_eq!(delta.text, "ébcd");
        let offsets: Vec<u32> = logprobs.iter().map(|token| token.text_offset).collect();
        assert_eq!(offsets, [0, 1, 2]);
        assert_eq!((logprobs[0].logprob, logprobs[1].logprob), (None, Some(0.0)));
        let mut later = TextDelta { text: "e".into(), logprobs: vec![token("e", 2)], ..TextDelta::default() };
        assert_eq!(dress(&mut later, Some("éb"), false)[0].text_offset, 4);
        assert_eq!(later.text, "e");
    }
}
