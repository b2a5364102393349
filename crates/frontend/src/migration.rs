//! The rules by which an answer moves to another worker, as pure functions (behaviour.md 10.1, DESIGN 3.10).
//!
//! One rule for what has not begun (R30) and for what breaks off in the middle: the prompt and what was generated so far
//! go to a worker that has not failed this request yet, or, if there is none, to one that did and was heard of since.

use dynamo_types::{Error, FinishReason, InstanceId, Request};
use std::time::Duration;
use tokio::time::Instant;

/// What a worker said before it failed may be taken in this much later.
const AFTERGLOW: Duration = Duration::from_millis(100);

/// A worker that failed an answer, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) worker: InstanceId,
    pub(crate) at: Instant,
}

impl Failure {
    /// A sign of life came after the fault: it was the connection's, or is over. `quiet`: time since the last one.
    pub(crate) fn is_over(&self, quiet: Duration, now: Instant) -> bool {
        (now - self.at).saturating_sub(quiet) > AFTERGLOW
    }
}

/// What a frontend allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Workers that may be tried after the first.
    pub(crate) limit: u32,
    /// Longest prompt and answer together, in tokens, that move.
    pub(crate) max_seq_len: Option<u32>,
}

/// What becomes of an answer whose worker failed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Another worker goes on.
    Move,
    /// It would, but the sequence is longer than [`Rules::max_seq_len`].
    TooLong,
    /// The fault is the client's to know.
    End,
}

/// What becomes of an answer that broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is complete.
    Ended(FinishReason),
    Moves,
    /// It would, but the sequence is longer than [`Rules::max_seq_len`].
    TooLong,
    /// The fault is the client's to know.
    Fails,
}

impl Rules {
    /// `generated` came of the answer to `request` before its worker said `error`, the last of `failed` that did.
    pub(crate) fn after(
        &self,
        request: &Request,
        generated: &[u32],
        eos: &[u32],
        failed: u32,
        error: &Error,
    ) -> Outcome {
        if error.retryable()
            && let Some(finish) = ended(request, generated, eos)
        {
            return Outcome::Ended(finish);
        }
        match self.judge(request, generated.len(), failed, error) {
            Verdict::Move => Outcome::Moves,
            Verdict::TooLong => Outcome::TooLong,
            Verdict::End => Outcome::Fails,
        }
    }

    /// `failed` workers failed the client's `request`, the one that said `error` included; `generated` tokens of the
    /// answer have come.
    pub(crate) fn judge(&self, request: &Request, generated: usize, failed: u32, error: &Error) -> Verdict {
        let pinned = request.routing.worker.is_some();
        // Not every engine can take up a grammar in the middle of an answer.
        let bound = request.guide.is_some() && generated > 0;
        if pinned || bound || !error.retryable() || failed > self.limit {
            return Verdict::End;
        }
        let length = request.tokens.len().saturating_add(generated);
        match self.max_seq_len {
            Some(most) if length > most as usize => Verdict::TooLong,
            _ => Verdict::Move,
        }
    }
}

/// How an answer that broke off has ended nevertheless: the worker said its last token, but not that it was the last.
pub(crate) fn ended(request: &Request, generated: &[u32], eos: &[u32]) -> Option<FinishReason> {
    let last = generated.last()?;
    let stopping = &request.stopping;
    let is_end = stopping.stop_token_ids.contains(last) || (!stopping.ignore_eos && eos.contains(last));
    if is_end && generated.len() > stopping.min_tokens as usize {
        return Some(FinishReason::Stop);
    }
    (generated.len() >= stopping.max_tokens as usize).then_some(FinishReason::Length)
}

/// What the next worker is asked. `prompt_told`: the client has the prompt's log-probabilities.
pub(crate) fn continuation(request: &Request, generated: &[u32], prompt_told: bool) -> Request {
    let mut moved = request.clone();
    if prompt_told {
        moved.output.prompt_logprobs = None;
    }
    if !generated.is_empty() {
        let count = u32::try_from(generated.len()).unwrap_or(u32::MAX);
        moved.tokens = request.tokens.iter().chain(generated).copied().collect();
        moved.resumed = request.resumed.saturating_add(count);
        moved.stopping.max_tokens = request.stopping.max_tokens.saturating_sub(count);
    }
    moved
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
