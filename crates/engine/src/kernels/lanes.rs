//! Sixteen lanes of f32: the one vector type all kernels are written in.

use half::f16;

/// Values per vector.
pub(crate) const LANES: usize = 16;

/// Operations on sixteen lanes. Every implementation gives the same bits for finite input.
///
/// A value of the implementing type is the proof that the processor has the instructions.
pub(crate) trait Lanes: Copy + Send + Sync + 'static {
    /// Sixteen f32.
    type Floats: Copy;
    /// Sixteen i32.
    type Integers: Copy;
    /// Sixty-four u8: four for each lane.
    type Bytes: Copy;

    /// Rows of activations that a matrix kernel holds in registers, at most [`super::TILE_ROWS`].
    const PRODUCT_ROWS: usize;
    /// Query rows that attention holds in registers, at most 6.
    const ATTENTION_ROWS: usize;
    /// Vectors of a value head that attention holds in registers for each query row: 4 or 1.
    const WIDE_VALUES: bool;

    fn splat(self, value: f32) -> Self::Floats;
    fn load(self, from: &[f32; LANES]) -> Self::Floats;
    fn store(self, value: Self::Floats, to: &mut [f32; LANES]);
    /// Exact.
    fn load_half(self, from: &[u16; LANES]) -> Self::Floats;
    /// Rounds to nearest, ties to even.
    fn store_half(self, value: Self::Floats, to: &mut [u16; LANES]);
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn sub(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn div(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// `a > b ? a : b`; so b if a is not a number.
    fn max(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a < b ? a : b`; so b if a is not a number.
    fn min(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `x < limit ? 0 : value`.
    fn zero_below(self, value: Self::Floats, x: Self::Floats, limit: f32) -> Self::Floats;
    fn reduce_max(self, value: Self::Floats) -> f32;
    /// Lane i plus lane i + 8, then i + 4, i + 2, i + 1.
    fn reduce_add(self, value: Self::Floats) -> f32;

    fn splat_integer(self, value: i32) -> Self::Integers;
    /// Rounds to nearest, ties to even; values must be within i32.
    fn round(self, value: Self::Floats) -> Self::Integers;
    /// Rounds to nearest, ties to even.
    fn to_floats(self, value: Self::Integers) -> Self::Floats;
    /// `2^value` for values in -126..=127.
    fn power_of_two(self, value: Self::Integers) -> Self::Floats;
    fn sum(self, value: Self::Integers) -> i32;
    /// The low bytes of the lanes, four to an i32 in memory order.
    fn quads(self, value: Self::Integers) -> [i32; 4];

    fn load_bytes(self, from: &[u8; 4 * LANES]) -> Self::Bytes;
    fn low_nibbles(self, value: Self::Bytes) -> Self::Bytes;
    fn high_nibbles(self, value: Self::Bytes) -> Self::Bytes;
    fn store_bytes(self, value: Self::Bytes, to: &mut [u8; 4 * LANES]);
    /// Adds to each lane the products of its four u8 (at most 15 each) with the four i8 in `quad`.
    fn dot_nibbles(self, sum: Self::Integers, weights: Self::Bytes, quad: i32) -> Self::Integers;
    /// Adds to each lane the products of its four u8 with the four i8 in `quad`.
    fn dot_bytes(self, sum: Self::Integers, weights: Self::Bytes, quad: i32) -> Self::Integers;
}

/// `e^x`, relative error about 2^-23, 0 below -87, growing no further above 88.
///
/// Range reduction by multiples of ln 2 in two parts, then the Taylor series to the seventh power over
/// [-ln 2 / 2, ln 2 / 2], whose remainder is below 2^-27.
#[inline(always)]
pub(crate) fn exp<L: Lanes>(l: L, x: L::Floats) -> L::Floats {
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let clamped = l.max(l.min(x, l.splat(88.0)), l.splat(-87.0));
    let n = l.round(l.mul(clamped, l.splat(std::f32::consts::LOG2_E)));
    let count = l.to_floats(n);
    let r = l.fma(count, l.splat(-LN_2_HIGH), clamped);
    let r = l.fma(count, l.splat(-LN_2_LOW), r);
    let mut p = l.splat(1.0 / 5040.0);
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = l.fma(p, r, l.splat(c));
    }
    l.zero_below(l.mul(p, l.power_of_two(n)), x, -87.0)
}

/// Plain Rust.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Portable;

#[inline(always)]
fn map2(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn fold<T: Copy>(mut value: [T; LANES], f: impl Fn(T, T) -> T) -> T {
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            value[i] = f(value[i], value[i + width]);
        }
    }
    value[0]
}

impl Lanes for Portable {
    type Floats = [f32; LANES];
    type Integers = [i32; LANES];
    type Bytes = [u8; 4 * LANES];

    const PRODUCT_ROWS: usize = 2;
    const ATTENTION_ROWS: usize = 3;
    const WIDE_VALUES: bool = false;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Floats {
        [value; LANES]
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::Floats {
        *from
    }
    #[inline(always)]
    fn store(self, value: Self::Floats, to: &mut [f32; LANES]) {
        *to = value;
    }
    #[inline(always)]
    fn load_half(self, from: &[u16; LANES]) -> Self::Floats {
        from.map(|bits| f16::from_bits(bits).to_f32())
    }
    #[inline(always)]
    fn store_half(self, value: Self::Floats, to: &mut [u16; LANES]) {
        *to = value.map(|value| f16::from_f32(value).to_bits());
    }
    #[inline(always)]
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        map2(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        map2(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        map2(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn zero_below(self, value: Self::Floats, x: Self::Floats, limit: f32) -> Self::Floats {
        map2(value, x, |value, x| if x < limit { 0.0 } else { value })
    }
    #[inline(always)]
    fn reduce_max(self, value: Self::Floats) -> f32 {
        fold(value, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn reduce_add(self, value: Self::Floats) -> f32 {
        fold(value, |a, b| a + b)
    }
    #[inline(always)]
    fn splat_integer(self, value: i32) -> Self::Integers {
        [value; LANES]
    }
    #[inline(always)]
    fn round(self, value: Self::Floats) -> Self::Integers {
        value.map(|value| value.round_ties_even() as i32)
    }
    #[inline(always)]
    fn to_floats(self, value: Self::Integers) -> Self::Floats {
        value.map(|value| value as f32)
    }
    #[inline(always)]
    fn power_of_two(self, value: Self::Integers) -> Self::Floats {
        value.map(|value| f32::from_bits((value.wrapping_add(127) << 23).cast_unsigned()))
    }
    #[inline(always)]
    fn sum(self, value: Self::Integers) -> i32 {
        fold(value, i32::wrapping_add)
    }
    #[inline(always)]
    fn quads(self, value: Self::Integers) -> [i32; 4] {
        std::array::from_fn(|i| i32::from_le_bytes(std::array::from_fn(|j| value[4 * i + j] as u8)))
    }
    #[inline(always)]
    fn load_bytes(self, from: &[u8; 4 * LANES]) -> Self::Bytes {
        *from
    }
    #[inline(always)]
    fn low_nibbles(self, value: Self::Bytes) -> Self::Bytes {
        value.map(|byte| byte & 15)
    }
    #[inline(always)]
    fn high_nibbles(self, value: Self::Bytes) -> Self::Bytes {
        value.map(|byte| byte >> 4)
    }
    #[inline(always)]
    fn store_bytes(self, value: Self::Bytes, to: &mut [u8; 4 * LANES]) {
        *to = value;
    }
    #[inline(always)]
    fn dot_nibbles(self, sum: Self::Integers, weights: Self::Bytes, quad: i32) -> Self::Integers {
        self.dot_bytes(sum, weights, quad)
    }
    #[inline(always)]
    fn dot_bytes(self, sum: Self::Integers, weights: Self::Bytes, quad: i32) -> Self::Integers {
        let quad = quad.to_le_bytes().map(|byte| i32::from(byte.cast_signed()));
        std::array::from_fn(|i| (0..4).fold(sum[i], |sum, j| sum + i32::from(weights[4 * i + j]) * quad[j]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close() {
        let mut worst = 0.0f64;
        for i in -8700..8800 {
            let x = i as f32 / 100.0;
            let found = f64::from(exp(Portable, [x; LANES])[0]);
            worst = worst.max((found / f64::from(x).exp() - 1.0).abs());
        }
        assert!(worst < 3e-7, "{worst}");
    }

    #[test]
    fn exp_of_the_ends() {
        let found = exp(
            Portable,
            [
                f32::NEG_INFINITY,
                -87.5,
                0.0,
                1000.0,
                1e30,
                -1e30,
                1.0,
                2.0,
                3.0,
                0.0,
                0.0,
                0.0,
                0.0,
                0.0,
                0.0,
                0.0,
            ],
        );
        assert_eq!(&found[..3], &[0.0, 0.0, 1.0]);
        assert!(found[3].is_finite() && found[4].is_finite());
        assert_eq!(found[5], 0.0);
    }
}
