//! `POST /v1/completions`.

use super::openai::{self, Begun, Wishes, Worded, Words};
use crate::plan::{Api, Call, Head, Prompt, Reply};
use crate::record::Usage;
use bytes::{Bytes, BytesMut};
use dynamo_protocols::openai::completions::{self, Choice, Request, Response};
use dynamo_protocols::openai::logprobs::CompletionLogprobs;
use dynamo_protocols::openai::{ChunkWriter, TokenLogprob};
use dynamo_protocols::{Options, error_body};
use dynamo_text::TextDelta;
use dynamo_types::Result;

pub(crate) static API: Api = Api { name: "completions", translate, error_shape: error_body };

fn translate(body: &[u8], options: &Options) -> Result<Call> {
    let parsed = Request::parse(body, options)?;
    let request = parsed.request;
    let (echo, best_of) = (request.echo, request.best_of);
    let mut common = request.common;
    let mut field = "prompt";
    let prompts = match (common.token_data.take(), request.prompt) {
        // Instead of the only prompt there is.
        (Some(ids), _) => {
            field = openai::TOKEN_DATA;
            vec![Prompt::Tokens(ids)]
        }
        (None, completions::Prompt::Texts(texts)) => texts.into_iter().map(Prompt::Text).collect(),
        (None, completions::Prompt::Tokens(lists)) => lists.into_iter().map(Prompt::Tokens).collect(),
    };
    let answer = Worded::new(CompletionWords { echo }, Wishes::of(&common));
    let mut plan = openai::plan(common, field, echo);
    if best_of > plan.n {
        plan.best_of = best_of;
        // What they are compared by.
        plan.output.logprobs.get_or_insert(0);
    }
    Ok(Call { plan, prompts, reply: Reply::Answer(Box::new(answer)), dropped: parsed.dropped })
}

struct CompletionWords {
    /// The prompt in front of the answer.
    echo: bool,
}

/// The text of the prompt a choice belongs to.
fn prompt(head: &Head, choice: u32) -> Option<&str> {
    head.texts.get((choice / head.n.max(1)) as usize).map(String::as_str)
}

/// Puts the prompt in front of a choice's first piece (or of the whole answer), and gives the log-probabilities of
/// both. Offsets count from the start of what the client sees.
fn dress(wishes: Wishes, delta: &mut TextDelta, echo: Option<&str>, first: bool) -> Vec<TokenLogprob> {
    let shift = echo.map_or(0, |prompt| prompt.chars().count());
    let mut logprobs = Vec::new();
    if let (Some(prompt), true) = (echo, first) {
        delta.text.insert_str(0, prompt);
        logprobs = wishes.shown(std::mem::take(&mut delta.prompt_logprobs), 0);
        // Nothing predicts the first token.
        if let Some(first) = logprobs.first_mut() {
            first.logprob = None;
        }
    }
    logprobs.extend(wishes.shown(std::mem::take(&mut delta.logprobs), shift));
    logprobs
}

impl Words for CompletionWords {
    fn writer(&self, head: &Head) -> ChunkWriter {
        ChunkWriter::completion(&openai::id("cmpl-", head), head.created_s, &head.model)
    }

    fn chunk(
        &mut self,
        at: &mut Begun,
        choice: u32,
        mut delta: TextDelta,
        usage: &Usage,
        out: &mut BytesMut,
    ) {
        let first = at.frames.begin(choice);
        at.frames.collect(choice, &delta);
        let echo = prompt(&at.head, choice).filter(|_| self.echo);
        let logprobs = dress(at.wishes, &mut delta, echo, first);
        at.frames.piece(choice, &delta, &logprobs, usage, out);
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
                let echo = prompt(head, index).filter(|_| self.echo);
                let logprobs = dress(*wishes, &mut delta, echo, true);
                let logprobs = wishes.logprobs.then_some(CompletionLogprobs(logprobs));
                Choice::new(index, delta.text, logprobs, delta.finish)
            })
            .collect();
        let id = openai::id("cmpl-", head);
        let response = Response::new(&id, head.created_s, &head.model, choices, openai::usage(usage));
        openai::json(&response.with_nvext(told))
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
        let mut wishes = Wishes::default();
        wishes.logprobs = true;
        let logprobs = dress(wishes, &mut delta, Some("éb"), true);
        assert_eq!(delta.text, "ébcd");
        let offsets: Vec<u32> = logprobs.iter().map(|token| token.text_offset).collect();
        assert_eq!(offsets, [0, 1, 2]);
        assert_eq!((logprobs[0].logprob, logprobs[1].logprob), (None, Some(0.0)));
        let mut later = TextDelta { text: "e".into(), logprobs: vec![token("e", 2)], ..TextDelta::default() };
        assert_eq!(dress(wishes, &mut later, Some("éb"), false)[0].text_offset, 4);
        assert_eq!(later.text, "e");
    }
}
