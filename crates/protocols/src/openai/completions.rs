//! `POST /v1/completions`.

use super::common::{Common, Draft, conflict, missing, unsupported};
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

    /// Answers asked for: prompts times `n`. Choice index is prompt index times `n` plus choice.
    pub fn choices(&self) -> u32 {
        // The product is bounded by `Limits::prompts`.
        u32::try_from(self.prompt.len()).unwrap_or(u32::MAX).saturating_mul(self.common.n)
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
            _ => self.common.field(reader, key, Routes::COMPLETIONS, &options.limits)?,
        }
        Ok(())
    }

    fn finish(self, options: &Options) -> Result<Request, Error> {
        let prompt = self.prompt.ok_or_else(|| missing("prompt"))?;
        let common = self.common.finish(self.logprobs)?;
        if let Some(best_of) = self.best_of.filter(|&best_of| best_of != common.n) {
            if best_of < common.n {
                return Err(conflict(
                    "best_of",
                    format_args!("must be at least `n` ({}), got {best_of}", common.n),
                ));
            }
            return Err(unsupported("best_of", "is only implemented equal to `n`"));
        }
        let request = Request { common, prompt, echo: self.echo };
        if request.choices() > options.limits.prompts {
            let (prompts, n, max) = (request.prompt.len(), request.common.n, options.limits.prompts);
            return Err(conflict(
                "n",
                format_args!("times the number of prompts must be at most {max}, got {n} times {prompts}"),
            ));
        }
        Ok(request)
    }
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
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    pub index: u32,
    pub text: String,
    pub logprobs: Option<CompletionLogprobs>,
    pub finish_reason: Option<&'static str>,
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
        }
    }
}

impl Choice {
    pub fn new(
        index: u32,
        text: String,
        logprobs: Option<CompletionLogprobs>,
        finish: Option<FinishReason>,
    ) -> Self {
        Self { index, text, logprobs, finish_reason: finish.map(super::finish_reason) }
    }
}
