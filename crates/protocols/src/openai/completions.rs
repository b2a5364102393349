//! `POST /v1/completions`.

use super::answer::{AnswerExtensions, place};
use super::common::{Common, Draft, conflict, missing};
use super::logprobs::CompletionLogprobs;
use super::usage::Usage;
use crate::json::{self, Kind, Reader};
use crate::limits::{self, Routes, Rule};
use crate::options::{Options, Parsed};
use dynamo_types::{Error, FinishReason, RoutingHints, Sampling};
use serde::Serialize;

/// The prompts of one body, in order. None is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    Texts(Vec<String>),
    Tokens(Vec<Vec<u32>>),
}

impl Prompt {
    /// Number of prompts.
    pub fn len(&self) -> usize {
        match self {
            Self::Texts(texts) => texts.len(),
            Self::Tokens(lists) => lists.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A validated request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub common: Common,
    pub prompt: Prompt,
    /// The prompt in front of the answer.
    pub echo: bool,
    /// Candidates per prompt, of which the best `n` are answered; never below `n`.
    pub best_of: u32,
}

#[derive(Default)]
struct CompletionDraft {
    common: Draft,
    prompt: Option<Prompt>,
    echo: bool,
    logprobs: Option<u32>,
    best_of: Option<u32>,
}

impl Request {
    /// # Errors
    /// 400 or 501 that name the field, the limit and what was found.
    pub fn parse(body: &[u8], options: &Options) -> Result<Parsed<Self>, Error> {
        let mut draft = CompletionDraft::default();
        let dropped = json::document(body, |reader, key| draft.field(reader, key, options))?;
        Parsed::under(draft.finish(options)?, dropped, options.unknown_fields)
    }

    pub fn model(&self) -> &str {
        &self.common.model
    }

    /// See [`Common::sampling`].
    pub fn sampling(&self) -> Sampling {
        self.common.sampling()
    }

    /// See [`Common::routing`].
    pub fn routing(&self) -> RoutingHints {
        self.common.routing()
    }

    pub fn max_tokens(&self) -> Option<u32> {
        self.common.max_tokens
    }

    /// Answers to be made: prompts times `best_of`, at most `Limits::prompts`.
    pub fn candidates(&self) -> u32 {
        u32::try_from(self.prompt.len()).unwrap_or(u32::MAX).saturating_mul(self.best_of)
    }
}

impl CompletionDraft {
    fn field(&mut self, reader: &mut Reader<'_>, key: &str, options: &Options) -> Result<(), Error> {
        match key {
            "prompt" => {
                let rule = limits::PROMPT_LIST.with_max(options.limits.prompts);
                self.prompt = Some(read_prompt(reader, &rule)?);
            }
            "echo" => self.echo = reader.boolean()?,
            "logprobs" => self.logprobs = Some(reader.whole(&limits::LOGPROBS)?),
            "best_of" => self.best_of = Some(reader.whole(&limits::BEST_OF.with_max(options.limits.n))?),
            _ => self.common.field(reader, key, Routes::COMPLETIONS, options)?,
        }
        Ok(())
    }

    fn finish(self, options: &Options) -> Result<Request, Error> {
        let prompt = self.prompt.ok_or_else(|| missing("prompt"))?;
        let common = self.common.finish(self.logprobs)?;
        let best_of = best_of(self.best_of, &common)?;
        if common.token_data.is_some() && prompt.len() > 1 {
            return Err(conflict(
                "nvext.token_data",
                format_args!("is one prompt, and `prompt` has {}", prompt.len()),
            ));
        }
        let request = Request { common, prompt, echo: self.echo, best_of };
        if request.candidates() > options.limits.prompts {
            let field = if request.best_of > request.common.n { "best_of" } else { "n" };
            let (prompts, each, max) = (request.prompt.len(), request.best_of, options.limits.prompts);
            return Err(conflict(
                field,
                format_args!("times the number of prompts must be at most {max}, got {each} times {prompts}"),
            ));
        }
        Ok(request)
    }
}

/// Candidates per prompt.
fn best_of(asked: Option<u32>, common: &Common) -> Result<u32, Error> {
    let Some(best_of) = asked.filter(|&best_of| best_of != common.n) else { return Ok(common.n) };
    if best_of < common.n {
        let problem = format_args!("must be at least `n` ({}), got {best_of}", common.n);
        return Err(conflict("best_of", problem));
    }
    if common.stream {
        // Which candidate is best is known when all are complete.
        let problem = format_args!("above `n` ({}) cannot be streamed, got {best_of}", common.n);
        return Err(conflict("best_of", problem));
    }
    if common.temperature <= 0.0 {
        let problem = format_args!("must be 1 when `temperature` is 0, got {best_of}");
        return Err(conflict("best_of", problem));
    }
    Ok(best_of)
}

/// Reads texts or token ids, one or a list of either, as many as `rule` allows.
pub(super) fn read_prompt(reader: &mut Reader<'_>, rule: &Rule) -> Result<Prompt, Error> {
    const EXPECTED: &str = "a string, an array of strings, an array of token ids or an array of those";
    let max = rule.max.map_or(usize::MAX, |max| max as usize);
    let prompt = match reader.peek()? {
        Kind::String => Prompt::Texts(vec![non_empty(reader)?]),
        Kind::Array => match reader.peek_item()? {
            None => Prompt::Texts(Vec::new()),
            Some(Kind::Number) => Prompt::Tokens(vec![reader.token_ids(&limits::TOKEN_ID)?]),
            Some(Kind::String) => {
                let mut texts = Vec::new();
                reader.array(EXPECTED, |reader, index| {
                    if index == max {
                        return Err(too_many(rule));
                    }
                    texts.push(non_empty(reader)?);
                    Ok(())
                })?;
                Prompt::Texts(texts)
            }
            Some(Kind::Array) => {
                let mut lists = Vec::new();
                reader.array(EXPECTED, |reader, index| {
                    if index == max {
                        return Err(too_many(rule));
                    }
                    let list = reader.token_ids(&limits::TOKEN_ID)?;
                    if list.is_empty() {
                        return Err(reader.refuse("must not be empty"));
                    }
                    lists.push(list);
                    Ok(())
                })?;
                Prompt::Tokens(lists)
            }
            Some(found) => {
                let problem = format!("expected {EXPECTED}, found {found} in the array");
                return Err(reader.refuse(problem).with_code("invalid_type"));
            }
        },
        _ => return Err(reader.wrong_type(EXPECTED)),
    };
    rule.check_len(rule.field, prompt.len())?;
    Ok(prompt)
}

fn non_empty(reader: &mut Reader<'_>) -> Result<String, Error> {
    let text = reader.string()?;
    if text.is_empty() {
        return Err(reader.refuse("must not be empty"));
    }
    Ok(text.into_owned())
}

fn too_many(rule: &Rule) -> Error {
    conflict(rule.field, format_args!("must have {}, got more", rule.bounds()))
        .with_code("array_above_max_length")
}

/// The unary answer: `text_completion`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Response {
    pub id: String,
    pub object: &'static str,
    pub created: u64,
    pub model: String,
    pub choices: Vec<Choice>,
    pub usage: Usage,
    pub system_fingerprint: Option<String>,
    /// Of the only choice; several have one each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvext: Option<AnswerExtensions>,
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    pub index: u32,
    pub text: String,
    pub logprobs: Option<CompletionLogprobs>,
    pub finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvext: Option<AnswerExtensions>,
}

impl Response {
    pub fn new(id: &str, created_s: u64, model: &str, choices: Vec<Choice>, usage: Usage) -> Self {
        Self {
            id: id.to_owned(),
            object: "text_completion",
            created: created_s,
            model: model.to_owned(),
            choices,
            usage,
            system_fingerprint: None,
            nvext: None,
        }
    }

    /// With what was asked for besides, one per choice: an answer of one choice has it at its root, as chunks do.
    #[must_use]
    pub fn with_nvext(mut self, each: Vec<Option<AnswerExtensions>>) -> Self {
        place(&mut self.nvext, self.choices.iter_mut().map(|choice| &mut choice.nvext), each);
        self
    }
}

impl Choice {
    pub fn new(
        index: u32,
        text: String,
        logprobs: Option<CompletionLogprobs>,
        finish: Option<FinishReason>,
    ) -> Self {
        Self { index, text, logprobs, finish_reason: finish.map(super::finish_reason), nvext: None }
    }
}
