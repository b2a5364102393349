//! Reproducible randomness without state.
//!
//! A draw is a function of a seed and a position, so a stream that moves to another worker continues with the same
//! numbers (R06 and migration), and a test can name the exact case that failed.

/// A uniform 64-bit value for `(seed, position)`: SplitMix64 of the pair (Steele, Lea, Flood 2014).
pub fn bits(seed: u64, position: u64) -> u64 {
    let mut z = seed ^ position.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(17);
    z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A uniform value in `[0, 1)` with 53 bits of precision.
pub fn unit(seed: u64, position: u64) -> f64 {
    (bits(seed, position) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// A uniform index below `len` (0 when `len` is 0).
pub fn index(seed: u64, position: u64, len: usize) -> usize {
    ((bits(seed, position) as u128 * len as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_spread_and_reproducible() {
        let mut counts = [0u32; 10];
        for position in 0..10_000 {
            counts[index(7, position, 10)] += 1;
            assert_eq!(unit(7, position).to_bits(), unit(7, position).to_bits());
            assert!((0.0..1.0).contains(&unit(7, position)));
        }
        assert!(counts.iter().all(|&count| (900..1100).contains(&count)), "{counts:?}");
        assert_eq!(index(1, 1, 0), 0);
    }
}
