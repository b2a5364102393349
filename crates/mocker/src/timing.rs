//! How long a step takes.

use serde::{Deserialize, Serialize};

/// What the time of a step depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepShape {
    /// Uncached prompt tokens computed in this step.
    pub prefill_tokens: usize,
    /// Rows that decode.
    pub decode_rows: usize,
    /// KV tokens of the decoding requests, the new ones included.
    pub decode_kv_tokens: usize,
    /// KV tokens the engine has room for.
    pub capacity_tokens: usize,
}

/// Formula for the time of a step. Prefill and decode in one step add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "snake_case")]
pub enum Timing {
    /// The reference system's, measured on its shipped binary (behaviour.md 4.9): a quadratic in the step's prompt
    /// tokens, and one in the share of KV memory that decoding requests fill.
    #[default]
    Polynomial,
    /// So many prompt tokens per second, and so long per step that decodes.
    Fixed { prefill_tokens_per_s: f64, decode_step_ms: f64 },
}

impl Timing {
    /// Milliseconds of prefill and of decode in one step, before any speed-up.
    pub fn parts_ms(&self, shape: &StepShape) -> (f64, f64) {
        let tokens = shape.prefill_tokens as f64;
        let (prefill, decode) = match *self {
            Self::Polynomial => {
                let filled = shape.decode_kv_tokens as f64 / shape.capacity_tokens.max(1) as f64;
                (
                    4.209_989e-7 * tokens * tokens + 1.518_344e-2 * tokens + 16.50142,
                    -25.74 * filled * filled + 54.01 * filled + 5.74,
                )
            }
            Self::Fixed { prefill_tokens_per_s, decode_step_ms } => {
                (1000.0 * tokens / prefill_tokens_per_s, decode_step_ms)
            }
        };
        let if_any = |count: usize, ms: f64| if count > 0 && ms.is_finite() { ms.max(0.0) } else { 0.0 };
        (if_any(shape.prefill_tokens, prefill), if_any(shape.decode_rows, decode))
    }

    /// Milliseconds of a step. A speed-up that is not positive makes it take no time.
    pub fn step_ms(&self, shape: &StepShape, speedup: f64, decode_speedup: f64) -> f64 {
        let (prefill, decode) = self.parts_ms(shape);
        let divided = |ms: f64, by: f64| if by > 0.0 { ms / by } else { 0.0 };
        divided(prefill, speedup) + divided(divided(decode, speedup), decode_speedup)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefill(tokens: usize) -> StepShape {
        StepShape { prefill_tokens: tokens, ..StepShape::default() }
    }

    fn decode(kv_tokens: usize, capacity: usize) -> StepShape {
        StepShape {
            decode_rows: 1,
            decode_kv_tokens: kv_tokens,
            capacity_tokens: capacity,
            ..StepShape::default()
        }
    }

    #[test]
    fn the_polynomial_has_its_check_values() {
        let ms = |shape: StepShape| Timing::Polynomial.step_ms(&shape, 1.0, 1.0);
        let checks = [
            (ms(prefill(1)), 16.516604),
            (ms(prefill(64)), 17.474885),
            (ms(prefill(512)), 24.385704),
            (ms(prefill(1000)), 32.105859),
            (ms(prefill(2000)), 48.552296),
            (ms(prefill(4000)), 83.971162),
            (ms(prefill(8192)), 169.136918),
            (ms(decode(1001, 1 << 20)), 5.791536),
            (ms(decode(2002, 1 << 20)), 5.843025),
            (ms(decode(100_001, 1 << 20)), 10.656738),
            (ms(decode(500_001, 1 << 20)), 25.641405),
            (ms(decode(900_001, 1 << 20)), 33.134745),
            (ms(decode(1001, 1 << 19)), 5.843025),
            (ms(decode(1001, 1 << 14)), 8.943724),
            (Timing::Polynomial.step_ms(&prefill(1000), 2.0, 1.0), 16.05293),
            (Timing::Polynomial.step_ms(&decode(1001, 1 << 20), 2.0, 4.0), 0.723942),
        ];
        for (i, (found, expected)) in checks.into_iter().enumerate() {
            assert!((found - expected).abs() < 1e-5, "check {i}: {found} is not {expected}");
        }
    }

    #[test]
    fn fixed_speeds_add_up_and_no_speed_takes_no_time() {
        let fixed = Timing::Fixed { prefill_tokens_per_s: 2000.0, decode_step_ms: 7.0 };
        let both = StepShape { prefill_tokens: 100, ..decode(10, 100) };
        assert_eq!(fixed.step_ms(&both, 1.0, 1.0), 57.0);
        assert_eq!(fixed.step_ms(&both, 0.0, 1.0), 0.0);
        let stuck = Timing::Fixed { prefill_tokens_per_s: 0.0, decode_step_ms: -1.0 };
        assert_eq!(stuck.step_ms(&both, 1.0, 1.0), 0.0);
    }
}
