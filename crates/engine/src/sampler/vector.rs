//! Passes over a row of scores, written so that the compiler turns them into vector code. The order of all additions is fixed
//! by the source, so results do not depend on the machine.

/// Scores per chunk. A row of 49,152 has 768 chunks: few enough to look at one by one, small enough that looking at all of
/// one's scores is cheap.
pub(super) const CHUNK: usize = 64;

const LANES: usize = 16;

/// Largest of a chunk, and whether any is not a number.
fn chunk_maximum(chunk: &[f32]) -> (f32, bool) {
    let mut maxima = [f32::NEG_INFINITY; LANES];
    let mut not_a_number = [0u32; LANES];
    let (lanes, rest) = chunk.as_chunks::<LANES>();
    for values in lanes {
        for lane in 0..LANES {
            let value = values[lane];
            maxima[lane] = if value > maxima[lane] { value } else { maxima[lane] };
            not_a_number[lane] |= u32::from(value.is_nan());
        }
    }
    let mut maximum = f32::NEG_INFINITY;
    let mut invalid = not_a_number.iter().any(|&flag| flag != 0);
    for &value in maxima.iter().chain(rest) {
        maximum = if value > maximum { value } else { maximum };
        invalid |= value.is_nan();
    }
    (maximum, invalid)
}

/// Index of the largest score, the lowest one among equals; none if a score is not a number or there is no largest.
pub(super) fn argmax(scores: &[f32]) -> Option<usize> {
    let (mut best, mut best_chunk, mut invalid) = (f32::NEG_INFINITY, None, false);
    for (index, chunk) in scores.chunks(CHUNK).enumerate() {
        let (maximum, not_a_number) = chunk_maximum(chunk);
        invalid |= not_a_number;
        if maximum > best {
            (best, best_chunk) = (maximum, Some(index));
        }
    }
    let start = best_chunk.filter(|_| !invalid && best.is_finite())? * CHUNK;
    scores[start..].iter().position(|&score| score == best).map(|offset| start + offset)
}

/// Fills `maxima` with each chunk's largest score and returns the largest of all; none as in [`argmax`].
pub(super) fn chunk_maxima(scores: &[f32], maxima: &mut Vec<f32>) -> Option<f32> {
    maxima.clear();
    let (mut best, mut invalid) = (f32::NEG_INFINITY, false);
    for chunk in scores.chunks(CHUNK) {
        let (maximum, not_a_number) = chunk_maximum(chunk);
        invalid |= not_a_number;
        best = if maximum > best { maximum } else { best };
        maxima.push(maximum);
    }
    (!invalid && best.is_finite()).then_some(best)
}

/// Unnormalised probabilities: `exp((score - maximum) / temperature)`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weight {
    maximum: f32,
    /// `log2(e) / temperature`.
    scale: f32,
}

impl Weight {
    pub(super) fn new(maximum: f32, temperature: f32) -> Self {
        Self { maximum, scale: std::f32::consts::LOG2_E / temperature }
    }

    /// Weight of one score, which is at most the maximum. Relative error below 1e-6, zero below 2^-126.
    #[inline(always)]
    pub(super) fn of(self, score: f32) -> f32 {
        exp2((score - self.maximum) * self.scale)
    }

    /// Sum of the weights of a chunk.
    pub(super) fn sum(self, chunk: &[f32]) -> f32 {
        let mut sums = [0.0f32; LANES];
        let (lanes, rest) = chunk.as_chunks::<LANES>();
        for values in lanes {
            for lane in 0..LANES {
                sums[lane] += self.of(values[lane]);
            }
        }
        sums.iter().sum::<f32>() + rest.iter().map(|&score| self.of(score)).sum::<f32>()
    }
}

/// 2 to the power of `x <= 0`: the integer part goes into the exponent, the rest (at most a half) through the Taylor
/// series of `exp(x ln 2)` up to the sixth power, whose remainder is below 1.3e-7.
#[inline(always)]
fn exp2(x: f32) -> f32 {
    /// Adding it rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LOWEST: f32 = -126.0;
    const LN_2_POWERS: [f32; 6] =
        [std::f32::consts::LN_2, 0.240_226_5, 0.055_504_11, 0.009_618_129, 0.001_333_355_8, 0.000_154_035_3];
    let clamped = if x > LOWEST { x } else { LOWEST };
    let rounded = clamped + ROUND;
    let rest = clamped - (rounded - ROUND);
    let mut series = LN_2_POWERS[5];
    for coefficient in LN_2_POWERS[..5].iter().rev() {
        series = series * rest + coefficient;
    }
    let power = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    if x < LOWEST { 0.0 } else { (series * rest + 1.0) * power }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn powers_of_two_are_close() {
        let mut x = 0.0f32;
        while x > -125.9 {
            let exact = f64::from(x).exp2();
            assert!((f64::from(exp2(x)) / exact - 1.0).abs() < 1e-6, "{x}");
            x -= 0.000_7;
        }
        assert_eq!((exp2(0.0), exp2(-1.0), exp2(-200.0), exp2(f32::NEG_INFINITY)), (1.0, 0.5, 0.0, 0.0));
    }

    proptest! {
        #[test]
        fn argmax_is_the_first_of_the_largest(
            scores in prop::collection::vec(-3i8..3, 1..400),
            not_a_number in prop::option::weighted(0.2, any::<prop::sample::Index>()),
        ) {
            let mut scores: Vec<f32> = scores.into_iter().map(f32::from).collect();
            if let Some(index) = not_a_number {
                let len = scores.len();
                scores[index.index(len)] = f32::NAN;
            }
            let mut maxima = Vec::new();
            if not_a_number.is_some() {
                prop_assert_eq!(argmax(&scores), None);
                prop_assert_eq!(chunk_maxima(&scores, &mut maxima), None);
            } else {
                let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                prop_assert_eq!(argmax(&scores), scores.iter().position(|&score| score == largest));
                prop_assert_eq!(chunk_maxima(&scores, &mut maxima), Some(largest));
            }
        }
    }

    #[test]
    fn no_largest_score_is_no_choice() {
        assert_eq!(argmax(&[f32::NEG_INFINITY; 100]), None);
        assert_eq!(argmax(&[0.0, f32::INFINITY]), None);
        assert_eq!(argmax(&[]), None);
    }
}
