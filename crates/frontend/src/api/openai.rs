//! What OpenAI's two completion APIs share.

use super::extras;
use crate::facts::Facts;
use crate::plan::{Answer, ChatPrompt, Head, Plan, PrefillPin, Prompt, Rendered};
use crate::record;
use bytes::{Bytes, BytesMut};
use dynamo_protocols::Piece;
use dynamo_protocols::openai::nvext::{Annotations, ExtraFields};
use dynamo_protocols::openai::tools::ToolChoice;
use dynamo_protocols::openai::{
    AnswerExtensions, ChunkWriter, Common, Extras, TokenLogprob, TopLogprob, Usage, chat, strict_calls,
};
use dynamo_text::parsers::{Forced, Tools};
use dynamo_text::{StopCause, TextDelta, TextLogprob};
use dynamo_types::{Error, FinishReason, OutputOptions, Stopping, Task};
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;

/// Where a body has its prompt as token ids.
pub(super) const TOKEN_DATA: &str = "nvext.token_data";

/// The plan of a validated body. `prompt_logprobs` repeats the answer's setting for the prompt.
pub(super) fn plan(common: Common, prompt_field: &'static str, echo: bool) -> Plan {
    Plan {
        task: Task::Generate,
        dimensions: None,
        add_special_tokens: true,
        prompt_field,
        n: common.n,
        best_of: common.n,
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
            prompt_logprobs: match common.extra_fields.prompt_logprobs {
                true => Some(common.logprobs.unwrap_or(0)),
                false => common.logprobs.filter(|_| echo),
            },
        },
        routing: common.routing(),
        prefill: PrefillPin { worker: common.prefill_worker, rank: common.prefill_rank },
        expected_output_tokens: common.expected_output_tokens,
        shows_prompt: echo || common.annotations.formatted_prompt,
        tells_facts: common.extra_fields.worker_id || common.extra_fields.timing,
        tools: None,
        strict_calls: Vec::new(),
        forced: None,
        max_calls: None,
        hints: Vec::new(),
        stop: common.stop,
        model: common.model,
    }
}

/// The plan and the prompt of a conversation, whichever API it came by. `field` is where that has its messages.
pub(super) fn conversation(mut request: chat::Request, field: &'static str) -> (Plan, Vec<Prompt>) {
    let tools = request.template_tools().map(<[Value]>::to_vec);
    let rendered = rendered(&mut request);
    let forced = request.forced.take();
    let mut plan = plan(request.common, field, false);
    plan.tools = tools.as_deref().map(|tools| Arc::new(Tools::new(tools)));
    plan.guide = forced.or(plan.guide);
    plan.strict_calls = strict_calls(tools.as_deref().unwrap_or_default(), &request.tool_choice);
    plan.forced = match request.tool_choice {
        ToolChoice::Required => Some(Forced::List),
        ToolChoice::Named(name) => Some(Forced::Named(name.into())),
        ToolChoice::None | ToolChoice::Auto => None,
    };
    plan.hints = std::mem::take(&mut request.hints);
    plan.max_calls = (!request.parallel_tool_calls).then_some(1);
    if let Some(rendered) = rendered {
        if matches!(rendered, Rendered::Tokens(_)) {
            plan.prompt_field = TOKEN_DATA;
        }
        return (plan, vec![Prompt::Rendered(rendered)]);
    }
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

/// The prompt of a conversation that is not for the model's template.
fn rendered(request: &mut chat::Request) -> Option<Rendered> {
    if let Some(ids) = request.common.token_data.take() {
        return Some(Rendered::Tokens(ids));
    }
    let texts = || request.messages.iter().filter_map(|message| message.content.as_ref());
    request.common.raw_prompt.then(|| Rendered::Text(texts().map(|content| content.text()).collect()))
}

/// `shift` characters stand before the text that the offsets count from. `as_ids`: no text, so that no two tokens look
/// alike.
pub(super) fn logprobs(tokens: Vec<TextLogprob>, shift: usize, as_ids: bool) -> Vec<TokenLogprob> {
    let shown = |id: u32, text: String| if as_ids { format!("token_id:{id}") } else { text };
    tokens
        .into_iter()
        .map(|token| TokenLogprob {
            token: shown(token.token, token.text),
            bytes: token.bytes,
            logprob: Some(token.logprob),
            top: token
                .top
                .into_iter()
                .map(|top| TopLogprob {
                    token: shown(top.token, top.text),
                    bytes: top.bytes,
                    logprob: top.logprob,
                })
                .collect(),
            text_offset: u32::try_from(token.text_offset + shift).unwrap_or(u32::MAX),
        })
        .collect()
}

/// What a stream of either API needs to know of its request.
#[derive(Clone, Copy, Default)]
pub(super) struct Wishes {
    include_usage: bool,
    continuous_usage: bool,
    pub(super) logprobs: bool,
    tokens_as_ids: bool,
    fields: ExtraFields,
    annotations: Annotations,
}

impl Wishes {
    pub(super) fn of(common: &Common) -> Self {
        Self {
            include_usage: common.include_usage,
            continuous_usage: common.continuous_usage,
            logprobs: common.logprobs.is_some(),
            tokens_as_ids: common.tokens_as_ids,
            fields: common.extra_fields,
            annotations: common.annotations,
        }
    }

    /// In the form of the answer.
    pub(super) fn shown(self, tokens: Vec<TextLogprob>, shift: usize) -> Vec<TokenLogprob> {
        if self.logprobs { logprobs(tokens, shift, self.tokens_as_ids) } else { Vec::new() }
    }
}

/// Frames of a stream.
pub(super) struct Frames {
    pub(super) writer: ChunkWriter,
    wishes: Wishes,
    choices: Vec<Progress>,
    extras: Option<extras::Extras>,
}

/// Of the annotation of that name.
#[derive(Serialize)]
struct LlmMetrics {
    input_tokens: u32,
    output_tokens: u32,
    cached_tokens: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    begun: bool,
    /// Tool calls so far.
    calls: u32,
}

impl Frames {
    pub(super) fn new(writer: ChunkWriter, wishes: Wishes, head: &Head) -> Self {
        Self {
            writer: writer.include_usage(wishes.include_usage),
            wishes,
            choices: Vec::new(),
            extras: extras::Extras::new(wishes.fields, head),
        }
    }

    /// The events before the answer.
    pub(super) fn open(&self, head: &Head, out: &mut BytesMut) {
        let annotations = self.wishes.annotations;
        if annotations.request_id {
            self.writer.annotation(out, "request_id", &head.id);
        }
        if annotations.formatted_prompt {
            head.texts.iter().for_each(|text| self.writer.annotation(out, "formatted_prompt", text));
        }
        if annotations.token_ids {
            head.prompts.iter().for_each(|ids| self.writer.annotation(out, "token_ids", ids));
        }
    }

    pub(super) fn note(&mut self, choice: u32, facts: &Facts) {
        if let Some(extras) = &mut self.extras {
            extras.note(choice, facts);
        }
    }

    /// Takes note of a piece before anything of it is used up.
    pub(super) fn collect(&mut self, choice: u32, delta: &TextDelta) {
        if let Some(extras) = &mut self.extras {
            extras.collect(choice, delta);
        }
    }

    fn due(&mut self, choice: u32, is_last: bool) -> Option<AnswerExtensions> {
        self.extras.as_mut().and_then(|extras| extras.due(choice, is_last))
    }

    /// What a whole choice tells besides its text.
    pub(super) fn told(&mut self, choice: u32) -> Option<AnswerExtensions> {
        self.due(choice, true)
    }

    /// The first chunk of a chat choice.
    pub(super) fn role(&mut self, choice: u32, counts: &record::Usage, out: &mut BytesMut) {
        let nvext = self.due(choice, false);
        self.writer.role(out, choice, self.extras(&[], counts, nvext.as_ref()));
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

    fn extras<'a>(
        &self,
        logprobs: &'a [TokenLogprob],
        counts: &record::Usage,
        nvext: Option<&'a AnswerExtensions>,
    ) -> Extras<'a> {
        Extras {
            logprobs: Some(logprobs).filter(|list| !list.is_empty()),
            usage: self.wishes.continuous_usage.then(|| usage(counts)),
            nvext,
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
        if matches!(piece, Piece::ToolEnd) {
            // This API has no word for it.
            return false;
        }
        let nvext = self.due(choice, false);
        let extras = self.extras(logprobs, counts, nvext.as_ref());
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
            Piece::ToolEnd => {}
        }
        true
    }

    /// A piece with the log-probabilities that belong to it. Pieces that show nothing are left out.
    pub(super) fn piece(
        &mut self,
        choice: u32,
        delta: &TextDelta,
        logprobs: &[TokenLogprob],
        counts: &record::Usage,
        out: &mut BytesMut,
    ) {
        if delta.finish.is_none() && delta.text.is_empty() && logprobs.is_empty() {
            return;
        }
        let nvext = self.due(choice, delta.finish.is_some());
        let extras = self.extras(logprobs, counts, nvext.as_ref());
        match delta.finish {
            Some(reason) => self.writer.finish(out, choice, &delta.text, extras, reason),
            None => self.writer.content(out, choice, &delta.text, extras),
        }
    }

    pub(super) fn end(&self, counts: &record::Usage, out: &mut BytesMut) {
        if self.wishes.annotations.llm_metrics {
            let counts = LlmMetrics {
                input_tokens: counts.prompt_tokens,
                output_tokens: counts.completion_tokens,
                cached_tokens: counts.cached_tokens,
            };
            self.writer.annotation(out, "llm_metrics", &counts);
        }
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

/// The words of one of the two APIs.
pub(super) trait Words: Send {
    /// Of the frames of a stream.
    fn writer(&self, head: &Head) -> ChunkWriter;
    /// The head is known.
    fn begin(&mut self, _head: &Head) {}
    /// The frames for a piece.
    fn chunk(
        &mut self,
        at: &mut Begun,
        choice: u32,
        delta: TextDelta,
        usage: &record::Usage,
        out: &mut BytesMut,
    );
    /// The body for whole choices.
    fn whole(
        &mut self,
        at: &mut Begun,
        choices: Vec<TextDelta>,
        usage: &record::Usage,
    ) -> Result<Bytes, Error>;
}

/// An answer on its way.
pub(super) struct Begun {
    pub(super) head: Head,
    pub(super) frames: Frames,
    pub(super) wishes: Wishes,
}

/// An answer of either API.
pub(super) struct Worded<W> {
    words: W,
    wishes: Wishes,
    begun: Option<Begun>,
}

impl<W> Worded<W> {
    pub(super) fn new(words: W, wishes: Wishes) -> Self {
        Self { words, wishes, begun: None }
    }
}

impl<W: Words> Answer for Worded<W> {
    fn begin(&mut self, head: Head) {
        let frames = Frames::new(self.words.writer(&head), self.wishes, &head);
        self.words.begin(&head);
        self.begun = Some(Begun { head, frames, wishes: self.wishes });
    }

    fn open(&mut self, out: &mut BytesMut) {
        if let Some(Begun { head, frames, .. }) = &self.begun {
            frames.open(head, out);
        }
    }

    fn note(&mut self, choice: u32, facts: &Facts) {
        if let Some(Begun { frames, .. }) = &mut self.begun {
            frames.note(choice, facts);
        }
    }

    fn chunk(&mut self, choice: u32, delta: TextDelta, usage: &record::Usage, out: &mut BytesMut) {
        if let Some(begun) = &mut self.begun {
            self.words.chunk(begun, choice, delta, usage, out);
        }
    }

    fn end(&mut self, usage: &record::Usage, out: &mut BytesMut) {
        if let Some(Begun { frames, .. }) = &self.begun {
            frames.end(usage, out);
        }
    }

    fn fail(&mut self, error: &Error, out: &mut BytesMut) {
        if let Some(Begun { frames, .. }) = &self.begun {
            frames.fail(error, out);
        }
    }

    fn whole(&mut self, choices: Vec<TextDelta>, usage: &record::Usage) -> Result<Bytes, Error> {
        let begun = self.begun.as_mut().ok_or_else(not_begun)?;
        self.words.whole(begun, choices, usage)
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
