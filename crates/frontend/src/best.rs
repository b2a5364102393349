//! `best_of`: which of a prompt's candidates are answered.

use dynamo_text::TextDelta;

/// How many of how many, per prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    pub(crate) keep: u32,
    pub(crate) of: u32,
}

impl Pick {
    /// Does each candidate become a choice?
    pub(crate) fn is_all(self) -> bool {
        self.keep >= self.of
    }

    /// The candidates of each prompt with the highest log-probability per token, best first; equals in their order.
    pub(crate) fn best<T>(self, candidates: Vec<(TextDelta, T)>) -> Vec<(TextDelta, T)> {
        if self.is_all() {
            return candidates;
        }
        let mut candidates = candidates.into_iter();
        let mut kept = Vec::with_capacity(candidates.len());
        loop {
            let mut prompt: Vec<_> = candidates.by_ref().take(self.of as usize).collect();
            if prompt.is_empty() {
                return kept;
            }
            prompt.sort_by(|a, b| mean_logprob(&b.0).total_cmp(&mean_logprob(&a.0)));
            prompt.truncate(self.keep as usize);
            kept.append(&mut prompt);
        }
    }
}

/// Of an answer whose engine reports none, the least there is.
fn mean_logprob(answer: &TextDelta) -> f64 {
    if answer.logprobs.is_empty() {
        return f64::NEG_INFINITY;
    }
    let sum: f64 = answer.logprobs.iter().map(|token| f64::from(token.logprob)).sum();
    sum / answer.logprobs.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use dynamo_text::TextLogprob;

    fn answer(text: &str, logprobs: &[f32]) -> (TextDelta, ()) {
        let token = |&logprob: &f32| TextLogprob { logprob, ..TextLogprob::default() };
        (
            TextDelta {
                text: text.into(),
                logprobs: logprobs.iter().map(token).collect(),
                ..TextDelta::default()
            },
            (),
        )
    }

    #[test]
    fn the_best_of_each_prompt_by_mean_and_not_by_sum() {
        let candidates = || {
            vec![
                answer("long and likely", &[-0.5; 8]),
                answer("short", &[-1.0]),
                answer("unlikely", &[-9.0, -0.1]),
                answer("worse", &[-2.0]),
                answer("none", &[]),
                answer("better", &[-1.0, -1.0]),
            ]
        };
        let texts = |keep| {
            let best = Pick { keep, of: 3 }.best(candidates());
            best.into_iter().map(|(answer, ())| answer.text).collect::<Vec<_>>()
        };
        assert_eq!(texts(1), ["long and likely", "better"]);
        assert_eq!(texts(2), ["long and likely", "short", "better", "worse"]);
        assert_eq!(texts(3)[2], "unlikely", "where all are answered they keep their order");
    }
}
