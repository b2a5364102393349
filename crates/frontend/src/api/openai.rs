//! What OpenAI's two completion APIs share.

use crate::plan::{Head, Plan};
use crate::record;
use bytes::BytesMut;
use dynamo_protocols::openai::{ChunkWriter, Common, Extras, TokenLogprob, TopLogprob, Usage};
use dynamo_text::{TextDelta, TextLogprob};
use dynamo_types::{Error, OutputOptions, Stopping};

/// The plan of a validated body. `prompt_logprobs` repeats the answer's setting for the prompt.
pub(super) fn plan(common: Common, prompt_field: &'static str, echo: bool) -> Plan {
    Plan {
        prompt_field,
        n: common.n,
        stream: common.stream,
        max_tokens: common.max_tokens,
        seed: common.seed,
        sampling: common.sampling(),
        stopping: Stopping {
            max_tokens: 0,
            min_tokens: common.min_tokens,
            ignore_eos: common.ignore_eos,
            stop_token_ids: common.stop_token_ids.clone(),
        },
        include_stop_str_in_output: common.include_stop_str_in_output,
        skip_special_tokens: common.skip_special_tokens,
        output: OutputOptions {
            logprobs: common.logprobs,
            prompt_logprobs: common.logprobs.filter(|_| echo),
        },
        routing: common.routing(),
        expected_output_tokens: common.expected_output_tokens,
        echo,
        stop: common.stop,
        model: common.model,
    }
}

pub(super) fn usage(usage: &record::Usage) -> Usage {
    Usage::new(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens.unwrap_or(0))
}

/// `shift` characters stand before the text that the offsets count from.
pub(super) fn logprobs(tokens: Vec<TextLogprob>, shift: usize) -> Vec<TokenLogprob> {
    tokens
        .into_iter()
        .map(|token| TokenLogprob {
            token: token.text,
            bytes: token.bytes,
            logprob: Some(token.logprob),
            top: token
                .top
                .into_iter()
                .map(|top| TopLogprob { token: top.text, bytes: top.bytes, logprob: top.logprob })
                .collect(),
            text_offset: u32::try_from(token.text_offset + shift).unwrap_or(u32::MAX),
        })
        .collect()
}

/// What a stream of either API needs to know of its request.
#[derive(Clone, Copy)]
pub(super) struct Wishes {
    include_usage: bool,
    continuous_usage: bool,
    logprobs: bool,
}

impl Wishes {
    pub(super) fn of(common: &Common) -> Self {
        Self {
            include_usage: common.include_usage,
            continuous_usage: common.continuous_usage,
            logprobs: common.logprobs.is_some(),
        }
    }

    pub(super) fn logprobs(self) -> bool {
        self.logprobs
    }
}

/// Frames of a stream.
pub(super) struct Frames {
    pub(super) writer: ChunkWriter,
    wishes: Wishes,
    /// Choices that have been written to.
    begun: Vec<bool>,
}

impl Frames {
    pub(super) fn new(writer: ChunkWriter, wishes: Wishes) -> Self {
        Self { writer: writer.include_usage(wishes.include_usage), wishes, begun: Vec::new() }
    }

    /// Is this the first piece of its choice?
    pub(super) fn begin(&mut self, choice: u32) -> bool {
        let index = choice as usize;
        if self.begun.len() <= index {
            self.begun.resize(index + 1, false);
        }
        self.begun.get_mut(index).is_some_and(|begun| !std::mem::replace(begun, true))
    }

    /// A piece with the log-probabilities that belong to it. Pieces that show nothing are left out.
    pub(super) fn piece(
        &self,
        choice: u32,
        delta: &TextDelta,
        logprobs: &[TokenLogprob],
        counts: &record::Usage,
        out: &mut BytesMut,
    ) {
        let extras = Extras {
            logprobs: Some(logprobs).filter(|list| !list.is_empty()),
            usage: self.wishes.continuous_usage.then(|| usage(counts)),
        };
        match delta.finish {
            Some(reason) => self.writer.finish(out, choice, &delta.text, extras, reason),
            None if delta.text.is_empty() && logprobs.is_empty() => {}
            None => self.writer.content(out, choice, &delta.text, extras),
        }
    }

    pub(super) fn end(&self, counts: &record::Usage, out: &mut BytesMut) {
        if self.wishes.include_usage {
            self.writer.usage(out, &usage(counts));
        }
        self.writer.done(out);
    }

    pub(super) fn fail(&self, error: &Error, out: &mut BytesMut) {
        self.writer.error(out, error);
        self.writer.done(out);
    }
}

/// An answer that was not begun cannot be written; the pipeline begins every answer.
pub(super) fn not_begun() -> Error {
    Error::internal("an answer was written before it was begun")
}

/// The id under which a client knows the answer.
pub(super) fn id(prefix: &str, head: &Head) -> String {
    format!("{prefix}{}", head.id)
}
