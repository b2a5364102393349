//! What an answer tells besides its text, to clients that asked: `nvext` of chunks and choices (behaviour.md 1.7).

use super::openai::logprobs;
use crate::facts::Facts;
use crate::plan::Head;
use dynamo_protocols::openai::AnswerExtensions;
use dynamo_protocols::openai::answer::{PromptLogprobs, StopReason, Timing, WorkerIds};
use dynamo_protocols::openai::nvext::ExtraFields;
use dynamo_text::{StopCause, TextDelta, TextLogprob};
use std::sync::Arc;
use std::time::Duration;

/// Gathers it, choice by choice.
pub(super) struct Extras {
    fields: ExtraFields,
    /// Token ids of the prompts.
    prompts: Vec<Arc<[u32]>>,
    /// Choices per prompt.
    n: u32,
    choices: Vec<Held>,
}

/// What the next chunk of a choice has to tell.
#[derive(Default)]
struct Held {
    facts: Option<Facts>,
    tokens: Vec<u32>,
    stop: Option<StopReason>,
    prompt_logprobs: Option<PromptLogprobs>,
    prompt_is_told: bool,
}

impl Extras {
    /// None if nothing was asked for.
    pub(super) fn new(fields: ExtraFields, head: &Head) -> Option<Self> {
        (!fields.is_empty()).then(|| Self {
            fields,
            prompts: head.prompts.clone(),
            n: head.n.max(1),
            choices: Vec::new(),
        })
    }

    fn held(&mut self, choice: u32) -> Option<&mut Held> {
        let index = choice as usize;
        if self.choices.len() <= index {
            self.choices.resize_with(index + 1, Held::default);
        }
        self.choices.get_mut(index)
    }

    pub(super) fn note(&mut self, choice: u32, facts: &Facts) {
        if let Some(held) = self.held(choice) {
            held.facts = Some(*facts);
        }
    }

    /// Takes note of a piece before anything of it is used up.
    pub(super) fn collect(&mut self, choice: u32, delta: &TextDelta) {
        let fields = self.fields;
        let Some(held) = self.held(choice) else { return };
        if fields.completion_token_ids {
            held.tokens.extend_from_slice(&delta.tokens);
        }
        if fields.prompt_logprobs && !delta.prompt_logprobs.is_empty() {
            held.prompt_logprobs = Some(prompt_logprobs(&delta.prompt_logprobs));
        }
        if let Some(stop) = &delta.stop {
            held.stop = Some(match stop {
                StopCause::String(text) => StopReason::Text(text.clone()),
                StopCause::Token(id) => StopReason::Token(*id),
            });
        }
    }

    /// What the next chunk of a choice tells, or the whole choice. `is_last`: nothing of it comes after.
    pub(super) fn due(&mut self, choice: u32, is_last: bool) -> Option<AnswerExtensions> {
        let fields = self.fields;
        let prompt = self.prompts.get((choice / self.n) as usize).cloned();
        let held = self.held(choice)?;
        let facts = held.facts.as_ref();
        let is_first = !std::mem::replace(&mut held.prompt_is_told, true);
        let tokens = std::mem::take(&mut held.tokens);
        let due = AnswerExtensions {
            worker_id: facts.filter(|_| fields.worker_id).map(worker_ids),
            timing: facts.filter(|_| fields.timing && is_last).map(timing),
            stop_reason: held.stop.take().filter(|_| fields.stop_reason),
            completion_token_ids: Some(tokens).filter(|tokens| !tokens.is_empty()),
            prompt_token_ids: prompt.filter(|_| fields.prompt_token_ids && is_first),
            prompt_logprobs: held.prompt_logprobs.take(),
        };
        Some(due).filter(|due| *due != AnswerExtensions::default())
    }
}

fn worker_ids(facts: &Facts) -> WorkerIds {
    let target = facts.placed.target;
    WorkerIds {
        prefill_worker_id: target.worker.0,
        prefill_dp_rank: target.rank,
        decode_worker_id: target.worker.0,
        decode_dp_rank: target.rank,
    }
}

fn timing(facts: &Facts) -> Timing {
    let Facts { placed, received, now } = facts;
    let ms = |duration: Duration| (duration.as_secs_f64() * 1_000_000.0).round() / 1000.0;
    Timing {
        request_received_ms: facts.received_unix_ms(),
        prefill_wait_time_ms: ms(placed.sent - *received),
        prefill_time_ms: placed.first.map(|first| ms(first - placed.sent)),
        ttft_ms: placed.first.map(|first| ms(first - *received)),
        total_time_ms: ms(*now - *received),
        kv_hit_rate: placed.hit_rate,
    }
}

fn prompt_logprobs(tokens: &[TextLogprob]) -> PromptLogprobs {
    let ids = tokens.iter().map(|token| (token.token, token.top.iter().map(|top| top.token).collect()));
    let shown = logprobs(tokens.to_vec(), 0, false);
    let mut list: Vec<_> =
        ids.zip(shown).map(|((id, rivals), shown): ((u32, Vec<u32>), _)| (id, shown, rivals)).collect();
    // Nothing predicts the first token.
    if let Some((_, first, _)) = list.first_mut() {
        first.logprob = None;
    }
    PromptLogprobs(list)
}
