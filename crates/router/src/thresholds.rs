//! When a rank counts as busy (behaviour.md 10.2): pure comparisons of its load with the limits of its model.

use serde::{Deserialize, Serialize};

/// Limits above which a rank gets nothing new. None of them set: nothing is ever refused for load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Thresholds {
    /// Share of the rank's KV blocks that requests hold, 0 to 1.
    pub active_decode_blocks_threshold: Option<f64>,
    /// Prompt tokens sent there and not computed yet.
    pub active_prefill_tokens_threshold: Option<u64>,
    /// The same as a multiple of the tokens that one engine step takes (`max_num_batched_tokens`).
    pub active_prefill_tokens_threshold_frac: Option<f64>,
}

/// What is compared: of what is booked and what the engine reports, the larger.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Pressure {
    pub(crate) decode_blocks: f64,
    pub(crate) prefill_tokens: u64,
    /// 0: not known, and nothing is a share of it.
    pub(crate) total_blocks: u32,
    pub(crate) max_num_batched_tokens: u32,
}

impl Thresholds {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What `newer` sets, and the rest as it is.
    #[must_use]
    pub fn updated(self, newer: Self) -> Self {
        Self {
            active_decode_blocks_threshold: newer
                .active_decode_blocks_threshold
                .or(self.active_decode_blocks_threshold),
            active_prefill_tokens_threshold: newer
                .active_prefill_tokens_threshold
                .or(self.active_prefill_tokens_threshold),
            active_prefill_tokens_threshold_frac: newer
                .active_prefill_tokens_threshold_frac
                .or(self.active_prefill_tokens_threshold_frac),
        }
    }

    /// Refuses limits that mean nothing. The message names the field, the limit and the value.
    pub fn validate(&self) -> Result<(), String> {
        if let Some(share) = self.active_decode_blocks_threshold.filter(|share| !(0.0..=1.0).contains(share))
        {
            return Err(format!("active_decode_blocks_threshold must be between 0 and 1, found {share}"));
        }
        match self.active_prefill_tokens_threshold_frac.filter(|share| !(share.is_finite() && *share >= 0.0))
        {
            Some(share) => Err(format!(
                "active_prefill_tokens_threshold_frac must be a finite number >= 0, found {share}"
            )),
            None => Ok(()),
        }
    }

    /// Is any limit exceeded?
    pub(crate) fn exceeded_by(&self, pressure: &Pressure) -> bool {
        let tokens = pressure.prefill_tokens as f64;
        let above = |value: f64, share: Option<f64>, whole: u32| {
            whole > 0 && share.is_some_and(|share| value > share * f64::from(whole))
        };
        above(pressure.decode_blocks, self.active_decode_blocks_threshold, pressure.total_blocks)
            || self.active_prefill_tokens_threshold.is_some_and(|limit| pressure.prefill_tokens > limit)
            || above(tokens, self.active_prefill_tokens_threshold_frac, pressure.max_num_batched_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_limit_alone_makes_busy_and_only_above_it() {
        let at = |decode_blocks, prefill_tokens| Pressure {
            decode_blocks,
            prefill_tokens,
            total_blocks: 100,
            max_num_batched_tokens: 1000,
        };
        let decode = Thresholds { active_decode_blocks_threshold: Some(0.5), ..Thresholds::default() };
        assert!(!decode.exceeded_by(&at(50.0, 1_000_000)) && decode.exceeded_by(&at(51.0, 0)));
        let prefill = Thresholds { active_prefill_tokens_threshold: Some(500), ..Thresholds::default() };
        assert!(!prefill.exceeded_by(&at(100.0, 500)) && prefill.exceeded_by(&at(0.0, 501)));
        let share = Thresholds { active_prefill_tokens_threshold_frac: Some(1.5), ..Thresholds::default() };
        assert!(!share.exceeded_by(&at(100.0, 1500)) && share.exceeded_by(&at(0.0, 1501)));
        let all = decode.updated(prefill).updated(share);
        for busy in [at(51.0, 0), at(0.0, 501)] {
            assert!(all.exceeded_by(&busy), "{busy:?}");
        }
        assert!(!all.exceeded_by(&at(50.0, 500)));
        assert!(!Thresholds::default().exceeded_by(&at(1e9, u64::MAX)));
    }

    #[test]
    fn shares_of_what_is_not_known_make_nobody_busy() {
        let shares = Thresholds {
            active_decode_blocks_threshold: Some(0.0),
            active_prefill_tokens_threshold_frac: Some(0.0),
            ..Thresholds::default()
        };
        let unknown = Pressure { decode_blocks: 5.0, prefill_tokens: 5, ..Pressure::default() };
        assert!(!shares.exceeded_by(&unknown));
        assert!(shares.exceeded_by(&Pressure { total_blocks: 10, ..unknown }));
    }

    #[test]
    fn senseless_limits_are_refused_by_name() {
        for share in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            let limits = Thresholds { active_decode_blocks_threshold: Some(share), ..Thresholds::default() };
            assert!(limits.validate().unwrap_err().contains("active_decode_blocks_threshold"), "{share}");
        }
        for share in [-0.1, f64::NAN, f64::INFINITY] {
            let limits =
                Thresholds { active_prefill_tokens_threshold_frac: Some(share), ..Thresholds::default() };
            assert!(limits.validate().unwrap_err().contains("threshold_frac"), "{share}");
        }
        assert_eq!(Thresholds::default().validate(), Ok(()));
    }
}
