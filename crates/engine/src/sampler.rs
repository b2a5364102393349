//! From a row of scores to a token.
//!
//! Order: logit bias, penalties (repetition over prompt and answer, frequency and presence over the answer), end tokens masked
//! before `min_tokens`, tokens masked that the guide does not allow; here log-probabilities are taken; then temperature, top-k, top-p (over what top-k left), min-p, draw.
//! A token that has to come, because the answer's thinking is used up, is taken in the place of a draw, unless it is masked.
//! Equal scores go by token id, lowest first. The draw for answer token `i` is `draw::unit(seed, i)`, so it depends on
//! nothing else in the batch.

mod state;
mod vector;

pub use state::State;

use dynamo_guide::Mask;
use dynamo_types::{Error, TokenLogprob, draw};
use std::cmp::Ordering;
use vector::{CHUNK, Weight};

/// A token in the running: its score and id.
type Candidate = (f32, u32);

/// How far below the best score candidates for top-p are looked for, in units of temperature: the first depth whose
/// candidates hold enough probability is used, so that usually only a few are looked at.
const NUCLEUS_DEPTHS: [f32; 4] = [3.0, 6.0, 12.0, f32::INFINITY];

/// A chosen token, with its log-probability if that was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    pub token: u32,
    pub logprob: Option<TokenLogprob>,
}

/// Scratch space shared by all sequences of an engine: once grown, choosing a token allocates nothing (but the list of
/// alternatives, if it was asked for).
#[derive(Debug, Default)]
pub struct Sampler {
    maxima: Vec<f32>,
    /// A copy of `maxima` to reorder.
    selection: Vec<f32>,
    candidates: Vec<Candidate>,
    weights: Vec<f32>,
    chunk_weights: Vec<f32>,
}

impl Sampler {
    /// Chooses the next token of a sequence; `scores` has one entry per token of the vocabulary and is changed. `mask` is that of
    /// [`State::mask`].
    ///
    /// # Errors
    /// `engine` if a score is not a number, or no token has a finite one.
    pub fn sample(
        &mut self,
        scores: &mut [f32],
        state: &State,
        mask: Option<&Mask>,
    ) -> Result<Choice, Error> {
        state.adjust(scores);
        match mask {
            Some(mask) => mask.apply(scores),
            None => state.mask_early_ends(scores),
        }
        let is_open =
            |&token: &u32| scores.get(token as usize).is_some_and(|&score| score > f32::NEG_INFINITY);
        let token = if let Some(due) = state.due().filter(is_open) {
            due
        } else if state.is_greedy() {
            vector::argmax(scores).ok_or_else(no_choice)? as u32
        } else {
            let maximum = vector::chunk_maxima(scores, &mut self.maxima).ok_or_else(no_choice)?;
            let random = draw::unit(state.sampling().seed, state.answer_index());
            self.draw(scores, maximum, state, random).ok_or_else(no_choice)?
        };
        let logprob = state.logprobs().map(|top| self.logprob(scores, token, top)).transpose()?;
        Ok(Choice { token, logprob })
    }

    /// Log-probability of a token under these scores, and of the `top` likeliest.
    ///
    /// # Errors
    /// As for [`Sampler::sample`].
    pub fn logprob(&mut self, scores: &[f32], token: u32, top: u32) -> Result<TokenLogprob, Error> {
        let maximum = vector::chunk_maxima(scores, &mut self.maxima).ok_or_else(no_choice)?;
        let weight = Weight::new(maximum, 1.0);
        let total: f64 = scores.chunks(CHUNK).map(|chunk| f64::from(weight.sum(chunk))).sum();
        let normaliser = maximum + total.ln() as f32;
        let score = scores.get(token as usize).copied().ok_or_else(no_choice)?;
        self.select_top(scores, top as usize);
        Ok(TokenLogprob {
            token,
            logprob: score - normaliser,
            top: self.candidates.iter().map(|&(score, token)| (token, score - normaliser)).collect(),
        })
    }

    /// Applies temperature and filters; `maxima` is filled. `random` is uniform in `[0, 1)`.
    fn draw(&mut self, scores: &[f32], maximum: f32, state: &State, random: f64) -> Option<u32> {
        let sampling = state.sampling();
        let weight = Weight::new(maximum, sampling.temperature);
        let (top_k, top_p, min_p) = (sampling.top_k as usize, f64::from(sampling.top_p), sampling.min_p);
        if top_k > 0 {
            self.select_top(scores, top_k);
        } else if top_p < 1.0 {
            self.select_nucleus(scores, maximum, sampling.temperature, top_p);
        } else if min_p > 0.0 {
            // A little deeper than the limit, which is then applied to the weights themselves.
            self.collect_from(scores, maximum + sampling.temperature * (min_p.ln() - 1e-3));
        } else {
            return self.draw_from_all(scores, weight, random);
        }
        self.weights.clear();
        self.weights.extend(self.candidates.iter().map(|&(score, _)| weight.of(score)));
        if top_k > 0 && top_p < 1.0 {
            let total = self.weights.iter().map(|&weight| f64::from(weight)).sum::<f64>();
            self.weights.truncate(nucleus_len(&self.weights, total * top_p));
        }
        // The likeliest has the weight 1.
        self.weights.iter_mut().filter(|weight| **weight < min_p).for_each(|weight| *weight = 0.0);
        let position = pick(&self.weights, random)?;
        self.candidates.get(position).map(|&(_, token)| token)
    }

    /// No filter: draws from the whole row in order of ids, chunk first.
    fn draw_from_all(&mut self, scores: &[f32], weight: Weight, random: f64) -> Option<u32> {
        self.chunk_weights.clear();
        self.chunk_weights.extend(scores.chunks(CHUNK).map(|chunk| weight.sum(chunk)));
        let total: f64 = self.chunk_weights.iter().map(|&weight| f64::from(weight)).sum();
        let mut target = random * total;
        let mut last = None;
        for (index, &chunk_weight) in self.chunk_weights.iter().enumerate() {
            if chunk_weight > 0.0 {
                last = Some(index);
                if target < f64::from(chunk_weight) {
                    break;
                }
                target -= f64::from(chunk_weight);
            }
        }
        let start = last? * CHUNK;
        let chunk = scores.get(start..)?.iter().take(CHUNK);
        self.weights.clear();
        self.weights.extend(chunk.map(|&score| weight.of(score)));
        pick_at(&self.weights, target).map(|offset| (start + offset) as u32)
    }

    /// `candidates` become the `count` best, best first; `maxima` is filled. The `count`-th largest of the chunk maxima is a
    /// bound below which none of them lies, so only a few chunks are looked into.
    fn select_top(&mut self, scores: &[f32], count: usize) {
        self.candidates.clear();
        if count == 0 {
            return;
        }
        let mut least = f32::NEG_INFINITY;
        if count <= self.maxima.len() {
            self.selection.clear();
            self.selection.extend_from_slice(&self.maxima);
            let (_, bound, _) =
                self.selection.select_nth_unstable_by(count - 1, |a, b| compare_scores(*b, *a));
            least = *bound;
        }
        self.collect_from(scores, least);
        if self.candidates.len() > count {
            self.candidates.select_nth_unstable_by(count - 1, best_first);
            self.candidates.truncate(count);
        }
        self.candidates.sort_unstable_by(best_first);
    }

    /// `candidates` become the smallest set of best tokens that holds `top_p` of all probability, in order
    /// of ids.
    fn select_nucleus(&mut self, scores: &[f32], maximum: f32, temperature: f32, top_p: f64) {
        let weight = Weight::new(maximum, temperature);
        let total: f64 = scores.chunks(CHUNK).map(|chunk| f64::from(weight.sum(chunk))).sum();
        for depth in NUCLEUS_DEPTHS {
            self.collect_from(scores, maximum - depth * temperature);
            let held: f64 = self.candidates.iter().map(|&(score, _)| f64::from(weight.of(score))).sum();
            if held >= total * top_p {
                break;
            }
        }
        if let Some(last) = nucleus_end(&mut self.candidates, weight, total * top_p) {
            self.collect_from(scores, last.0);
            self.candidates.retain(|candidate| best_first(candidate, &last).is_le());
        }
    }

    /// `candidates` become all tokens with at least this score, in order of ids. Masked tokens are none.
    fn collect_from(&mut self, scores: &[f32], least: f32) {
        self.candidates.clear();
        for (index, (chunk, &maximum)) in scores.chunks(CHUNK).zip(&self.maxima).enumerate() {
            if maximum < least || maximum == f32::NEG_INFINITY {
                continue;
            }
            for (offset, &score) in chunk.iter().enumerate() {
                if score >= least && score > f32::NEG_INFINITY {
                    self.candidates.push((score, (index * CHUNK + offset) as u32));
                }
            }
        }
    }
}

fn no_choice() -> Error {
    Error::engine("the model's scores are not usable: one is not a number, or none is finite")
}

/// Scores are numbers here: the maxima were found.
fn compare_scores(a: f32, b: f32) -> Ordering {
    a.partial_cmp(&b).unwrap_or(Ordering::Equal)
}

fn best_first(a: &Candidate, b: &Candidate) -> Ordering {
    compare_scores(b.0, a.0).then(a.1.cmp(&b.1))
}

/// The last candidate of the smallest set of best ones whose weights reach this sum. Halves the field again and again instead
/// of sorting it: O(n), which tells where the distribution is flat.
fn nucleus_end(candidates: &mut [Candidate], weight: Weight, mut wanted: f64) -> Option<Candidate> {
    let mut field = candidates;
    while field.len() > 1 {
        let middle = field.len() / 2;
        field.select_nth_unstable_by(middle, best_first);
        let (better, worse) = field.split_at_mut(middle);
        let held: f64 = better.iter().map(|&(score, _)| f64::from(weight.of(score))).sum();
        if held >= wanted {
            field = better;
        } else {
            wanted -= held;
            field = worse;
        }
    }
    field.first().copied()
}

/// How many of the leading weights reach this sum; at least one.
fn nucleus_len(weights: &[f32], wanted: f64) -> usize {
    let mut held = 0.0;
    let reached = weights.iter().position(|&weight| {
        held += f64::from(weight);
        held >= wanted
    });
    reached.map_or(weights.len(), |position| position + 1)
}

/// The index drawn by a uniform `random` in `[0, 1)`.
fn pick(weights: &[f32], random: f64) -> Option<usize> {
    let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
    pick_at(weights, random * total)
}

/// The index in whose share of the sum `target` lies. Rounding may leave it beyond the end: then the last that has a share.
fn pick_at(weights: &[f32], mut target: f64) -> Option<usize> {
    let mut last = None;
    for (index, &weight) in weights.iter().enumerate().filter(|&(_, &weight)| weight > 0.0) {
        last = Some(index);
        if target < f64::from(weight) {
            break;
        }
        target -= f64::from(weight);
    }
    last
}

#[cfg(test)]
mod tests;
