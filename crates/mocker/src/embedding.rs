//! Vectors without a meaning.

use dynamo_types::{draw, hash};

/// Keeps these draws apart from those of tokens.
const STREAM: u64 = 0x0065_6D62_6564;

/// A vector of length 1 with `size` entries. It is a function of the tokens alone; two prompts have nothing in common.
pub fn embedding(tokens: &[u32], size: u32) -> Vec<f32> {
    let seed = hash::local_hash(tokens, STREAM);
    let drawn: Vec<f64> = (0..u64::from(size.max(1))).map(|i| draw::unit(seed, i) - 0.5).collect();
    let length = drawn.iter().map(|value| value * value).sum::<f64>().sqrt();
    drawn.iter().map(|value| (value / length.max(f64::MIN_POSITIVE)) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_have_length_one_and_follow_the_tokens() {
        let one = embedding(&[1, 2, 3], 384);
        assert_eq!(one.len(), 384);
        assert_eq!(one, embedding(&[1, 2, 3], 384));
        let other = embedding(&[1, 3, 2], 384);
        let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        assert!((product(&one, &one) - 1.0).abs() < 1e-5);
        assert!(product(&one, &other).abs() < 0.3);
    }
}
