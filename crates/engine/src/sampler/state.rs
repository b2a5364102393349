//! What sampling must remember of one sequence.

use dynamo_guide::{Mask, Matcher};
use dynamo_types::{Error, Request, Sampling, Spelling, ThinkingMeter};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Temperatures below this are greedy: scores divided by them leave no second candidate.
pub(super) const GREEDY_BELOW: f32 = 1e-5;

/// Answer tokens for which room is made ahead; a longer answer may grow the table.
const RESERVED_TOKENS: u32 = 1024;

/// Sampling of one sequence: its parameters, and what it has seen.
#[derive(Debug)]
pub struct State {
    request: Arc<Request>,
    /// Ids that end the answer, sorted.
    ends: Vec<u32>,
    /// Occurrences in the answer of each token seen in prompt or answer. Kept only if a penalty needs it.
    seen: Option<FxHashMap<u32, u32>>,
    /// Answer tokens, those of earlier workers included.
    answer_len: u32,
    /// Of an answer that may think only so much.
    thinking: Option<ThinkingMeter>,
}

impl State {
    /// `eos` are the model's own end tokens. The request has passed [`State::check`].
    pub fn new(request: Arc<Request>, eos: &[u32]) -> Self {
        let mut ends = request.stopping.stop_token_ids.clone();
        if !request.stopping.ignore_eos {
            ends.extend_from_slice(eos);
        }
        ends.sort_unstable();
        ends.dedup();
        let sampling = &request.sampling;
        let penalised = sampling.repetition_penalty != 1.0
            || sampling.frequency_penalty != 0.0
            || sampling.presence_penalty != 0.0;
        let (prompt, answer) = request.tokens.split_at(request.prompt_len());
        let seen = penalised.then(|| {
            let mut seen = FxHashMap::default();
            seen.reserve(prompt.len() + request.stopping.max_tokens.min(RESERVED_TOKENS) as usize);
            seen.extend(prompt.iter().map(|&token| (token, 0)));
            answer.iter().for_each(|&token| *seen.entry(token).or_insert(0) += 1);
            seen
        });
        Self { answer_len: answer.len() as u32, request, ends, seen, thinking: None }
    }

    /// Holds the answer to its request's limit of thinking, if it has one. Without a spelling nobody can.
    #[must_use]
    pub fn with_spelling(mut self, spelling: Option<&Arc<Spelling>>) -> Self {
        self.thinking = spelling.and_then(|spelling| ThinkingMeter::new(&self.request, spelling));
        self
    }

    /// Can this be sampled with a vocabulary of that size?
    ///
    /// # Errors
    /// `Invalid`, naming the field and what was found.
    pub fn check(request: &Request, vocab_size: usize) -> Result<(), Error> {
        let outside = |token: u32| token as usize >= vocab_size;
        if let Some(token) = request.tokens.iter().copied().find(|&token| outside(token)) {
            return Err(Error::invalid(format!(
                "token id {token} is outside the vocabulary of {vocab_size} tokens"
            ))
            .with_param("prompt"));
        }
        let ends = request.thinking.iter().flat_map(|limit| limit.ends.iter().flatten());
        if let Some(token) = ends.copied().find(|&token| outside(token)) {
            return Err(Error::invalid(format!(
                "the end of thinking has token id {token}, outside the vocabulary of {vocab_size} tokens"
            )));
        }
        let sampling = &request.sampling;
        if let Some((token, _)) = sampling.logit_bias.iter().find(|&&(token, _)| outside(token)) {
            return Err(Error::invalid(format!(
                "logit_bias names token id {token}, outside the vocabulary of {vocab_size} tokens"
            ))
            .with_param("logit_bias"));
        }
        let bias = sampling.logit_bias.iter().map(|&(_, bias)| bias).find(|bias| !bias.is_finite());
        let bias = bias.map(|bias| ("logit_bias", bias, "a finite number"));
        match bias.or_else(|| out_of_range(sampling)) {
            None => Ok(()),
            Some((field, found, range)) => {
                Err(Error::invalid(format!("{field} must be {range}, not {found}")).with_param(field))
            }
        }
    }

    pub(super) fn sampling(&self) -> &Sampling {
        &self.request.sampling
    }

    pub(super) fn is_greedy(&self) -> bool {
        self.request.sampling.temperature < GREEDY_BELOW || self.request.sampling.top_k == 1
    }

    /// Alternatives wanted with each token; none: no log-probabilities.
    pub(super) fn logprobs(&self) -> Option<u32> {
        self.request.output.logprobs
    }

    /// Index of the next token in the answer: the position of its draw.
    pub(super) fn answer_index(&self) -> u64 {
        u64::from(self.answer_len)
    }

    /// The token that has to come next, whatever its score.
    pub(super) fn due(&self) -> Option<u32> {
        self.thinking.as_ref().and_then(ThinkingMeter::due)
    }

    /// Bias and penalties.
    pub(super) fn adjust(&self, scores: &mut [f32]) {
        let sampling = &self.request.sampling;
        for &(token, bias) in &sampling.logit_bias {
            if let Some(score) = scores.get_mut(token as usize) {
                *score += bias;
            }
        }
        for (&token, &count) in self.seen.iter().flatten() {
            let Some(score) = scores.get_mut(token as usize) else { continue };
            let penalty = sampling.repetition_penalty;
            // A tiny penalty must not make a score infinite: the row would count as broken.
            let penalised = if *score > 0.0 { *score / penalty } else { *score * penalty };
            *score = penalised.clamp(f32::MIN, f32::MAX);
            if count > 0 {
                *score -= sampling.frequency_penalty * count as f32 + sampling.presence_penalty;
            }
        }
    }

    /// Is the answer shorter than `min_tokens`?
    fn is_early(&self) -> bool {
        self.answer_len < self.request.stopping.min_tokens
    }

    /// Masks end tokens that would come too early.
    pub(super) fn mask_early_ends(&self, scores: &mut [f32]) {
        if self.is_early() {
            for &token in &self.ends {
                if let Some(score) = scores.get_mut(token as usize) {
                    *score = f32::NEG_INFINITY;
                }
            }
        }
    }

    /// What the guide allows, less what `min_tokens` and `ignore_eos` forbid. Where the two leave nothing the guide wins: a
    /// complete answer ends.
    ///
    /// # Errors
    /// As for [`Matcher::mask`].
    pub fn mask(&self, matcher: &mut Matcher, eos: &[u32]) -> Result<Mask, Error> {
        let mut mask = matcher.mask()?;
        if self.is_early() {
            mask.take_out(&self.ends);
        }
        if self.request.stopping.ignore_eos {
            mask.take_out(eos);
        }
        Ok(mask)
    }

    /// Does this token end the answer?
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.binary_search(&token).is_ok()
    }

    /// The token was chosen and is part of the answer.
    pub fn accept(&mut self, token: u32) {
        self.answer_len += 1;
        if let Some(seen) = &mut self.seen {
            *seen.entry(token).or_insert(0) += 1;
        }
        if let Some(thinking) = &mut self.thinking {
            thinking.take(token);
        }
    }
}

/// The first parameter that makes no sense: field, value, what it must be.
fn out_of_range(sampling: &Sampling) -> Option<(&'static str, f32, &'static str)> {
    let at_least = |value: f32, least: f32| value.is_finite() && value >= least;
    let unit = |value: f32| (0.0..=1.0).contains(&value);
    let repetition = sampling.repetition_penalty;
    [
        ("temperature", sampling.temperature, at_least(sampling.temperature, 0.0), "a number from 0"),
        ("top_p", sampling.top_p, unit(sampling.top_p), "a number from 0 to 1"),
        ("min_p", sampling.min_p, unit(sampling.min_p), "a number from 0 to 1"),
        ("repetition_penalty", repetition, repetition.is_normal() && repetition > 0.0, "a number above 0"),
        ("frequency_penalty", sampling.frequency_penalty, sampling.frequency_penalty.is_finite(), "finite"),
        ("presence_penalty", sampling.presence_penalty, sampling.presence_penalty.is_finite(), "finite"),
    ]
    .into_iter()
    .find_map(|(field, value, valid, range)| (!valid).then_some((field, value, range)))
}
