//! What OpenAI's two completion APIs share.

use crate::plan::{ChatPrompt, Head, Plan, Prompt};
use crate::record;
use bytes::{Bytes, BytesMut};
use dynamo_protocols::Piece;
use dynamo_protocols::openai::{ChunkWriter, Common, Extras, TokenLogprob, TopLogprob, Usage, chat};
use dynamo_text::parsers::Tools;
use dynamo_text::{StopCause, TextDelta, TextLogprob};
use dynamo_types::{Error, FinishReason, OutputOptions, Stopping};
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;

/// The plan of a validated body. `prompt_logprobs` repeats the answer's setting for the prompt.
pub(super) fn plan(common: Common, prompt_field: &'static str, echo: bool) -> Plan {
    Plan {
        prompt_field,
        n: common.n,
        stream: common.stream,
        max_tokens: common.max_tokens,
        seed: common.seed,
        sampling: common.sampling(),
        guide: common.guide.clone(),
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
        tools: None,
        stop: common.stop,
        model: common.model,
    }
}

/// The plan and the prompt of a conversation, whichever API it came by. `field` is where that has its messages.
pub(super) fn conversation(request: chat::Request, field: &'static str) -> (Plan, Vec<Prompt>) {
    let tools = request.template_tools().map(<[Value]>::to_vec);
    let mut plan = plan(request.common, field, false);
    plan.tools = tools.as_deref().map(|tools| Arc::new(Tools::new(tools)));
    let prompt = ChatPrompt {
        tools: tools.map(Value::Array),
        messages: request.messages,
        add_generation_prompt: request.add_generation_prompt,
        continue_final_message: request.continue_final_message,
        kwargs: request.chat_template_kwargs,
    };
    (plan, vec![Prompt::Chat(Box::new(prompt))])
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
    choices: Vec<Progress>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    begun: bool,
    /// Tool calls so far.
    calls: u32,
}

impl Frames {
    pub(super) fn new(writer: ChunkWriter, wishes: Wishes) -> Self {
        Self { writer: writer.include_usage(wishes.include_usage), wishes, choices: Vec::new() }
    }

    fn progress(&mut self, choice: u32) -> Option<&mut Progress> {
        let index = choice as usize;
        if self.choices.len() <= index {
            self.choices.resize(index + 1, Progress::default());
        }
        self.choices.get_mut(index)
    }

    /// Is this the first piece of its choice?
    pub(super) fn begin(&mut self, choice: u32) -> bool {
        self.progress(choice).is_some_and(|progress| !std::mem::replace(&mut progress.begun, true))
    }

    fn extras<'a>(&self, logprobs: &'a [TokenLogprob], counts: &record::Usage) -> Extras<'a> {
        Extras {
            logprobs: Some(logprobs).filter(|list| !list.is_empty()),
            usage: self.wishes.continuous_usage.then(|| usage(counts)),
        }
    }

    /// A piece of a split answer. Returns whether a chunk was written, and with it the log-probabilities.
    pub(super) fn split_piece(
        &mut self,
        choice: u32,
        piece: Piece<'_>,
        logprobs: &[TokenLogprob],
        counts: &record::Usage,
        out: &mut BytesMut,
    ) -> bool {
        let extras = self.extras(logprobs, counts);
        let Some(progress) = self.progress(choice) else { return false };
        if matches!(piece, Piece::ToolStart { .. }) {
            progress.calls += 1;
        }
        let call = progress.calls.saturating_sub(1);
        match piece {
            Piece::Text(text) => self.writer.content(out, choice, text, extras),
            Piece::Reasoning(text) => self.writer.reasoning(out, choice, text, extras),
            Piece::ToolStart { id, name } => self.writer.tool_start(out, choice, call, id, name, extras),
            Piece::ToolArguments(fragment) => {
                self.writer.tool_arguments(out, choice, call, fragment, extras);
            }
            // This API has no word for it.
            Piece::ToolEnd => return false,
        }
        true
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
        let extras = self.extras(logprobs, counts);
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

/// Why an answer ended, as the block-wise APIs tell it. Every answer that did not fail has a reason.
#[derive(Debug, Default)]
pub(super) struct Ending {
    reason: Option<FinishReason>,
    stop: Option<String>,
}

impl Ending {
    /// Takes it from the last delta.
    pub(super) fn note(&mut self, delta: &mut TextDelta) {
        if delta.finish.is_some() {
            self.reason = delta.finish;
            self.stop = match delta.stop.take() {
                Some(StopCause::String(stop)) => Some(stop),
                Some(StopCause::Token(_)) | None => None,
            };
        }
    }

    pub(super) fn finish(&self) -> dynamo_protocols::Finish<'_> {
        dynamo_protocols::Finish {
            reason: self.reason.unwrap_or(FinishReason::Stop),
            stop: self.stop.as_deref(),
        }
    }
}

/// A whole body.
pub(super) fn json(value: &impl Serialize) -> Result<Bytes, Error> {
    serde_json::to_vec(value).map(Bytes::from).map_err(|error| Error::internal(error.to_string()))
}
