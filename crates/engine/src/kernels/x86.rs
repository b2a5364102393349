//! The lanes on AVX2 (two registers) and AVX-512 with VNNI (one register).
#![expect(
    unsafe_code,
    reason = "vector intrinsics; every call is guarded by a value that proves the feature"
)]

use super::lanes::{LANES, Lanes};
use std::arch::is_x86_feature_detected;
use std::arch::x86_64::*;

/// Proof that AVX2, FMA and F16C were detected: the field is private and only [`Avx2::detect`] sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Avx2(());

/// Proof that AVX-512 F, BW, VL, DQ and VNNI (and FMA, F16C) were detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Avx512(());

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Self(()))
    }
}

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        (Avx2::detect().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni"))
        .then_some(Self(()))
    }
}

/// Lane i plus lane i + 4, then i + 2, i + 1.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn reduce_add_256(value: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps::<1>(value));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn reduce_max_256(value: __m256) -> f32 {
    let four = _mm_max_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps::<1>(value));
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_256(value: __m256i) -> i32 {
    let four = _mm_add_epi32(_mm256_castsi256_si128(value), _mm256_extracti128_si256::<1>(value));
    let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
    _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)))
}

/// Products of u8 of at most 15 with i8: the sums of two are below 2^15, so nothing saturates.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_nibbles_256(sum: __m256i, weights: __m256i, quad: i32) -> __m256i {
    let pairs = _mm256_maddubs_epi16(weights, _mm256_set1_epi32(quad));
    _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
}

/// Any u8: both nibbles apart, since sums of two products with whole bytes could saturate.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_bytes_256(sum: __m256i, weights: __m256i, quad: i32) -> __m256i {
    let mask = _mm256_set1_epi8(15);
    let high = _mm256_and_si256(_mm256_srli_epi16::<4>(weights), mask);
    let high = dot_nibbles_256(_mm256_setzero_si256(), high, quad);
    let sum = _mm256_add_epi32(sum, _mm256_slli_epi32::<4>(high));
    dot_nibbles_256(sum, _mm256_and_si256(weights, mask), quad)
}

/// One expression of intrinsics for a method of `Lanes`.
macro_rules! vector {
    ($expression:expr) => {
        // SAFETY: `self` proves that the processor has the instructions; pointers come from references to arrays of
        // exactly the accessed size, and the accesses are unaligned ones.
        unsafe { $expression }
    };
}

/// The same expression for both registers.
macro_rules! both {
    ($($name:ident),* => $expression:expr) => {{
        let low = { $(let $name = $name[0];)* vector!($expression) };
        let high = { $(let $name = $name[1];)* vector!($expression) };
        [low, high]
    }};
}

impl Lanes for Avx2 {
    type Floats = [__m256; 2];
    type Integers = [__m256i; 2];
    type Bytes = [__m256i; 2];

    const PRODUCT_ROWS: usize = 2;
    const ATTENTION_ROWS: usize = 3;
    const WIDE_VALUES: bool = false;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Floats {
        [vector!(_mm256_set1_ps(value)); 2]
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::Floats {
        vector!([_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))])
    }
    #[inline(always)]
    fn store(self, value: Self::Floats, to: &mut [f32; LANES]) {
        vector!({
            _mm256_storeu_ps(to.as_mut_ptr(), value[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), value[1]);
        });
    }
    #[inline(always)]
    fn load_half(self, from: &[u16; LANES]) -> Self::Floats {
        vector!([
            _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().add(8).cast())),
        ])
    }
    #[inline(always)]
    fn store_half(self, value: Self::Floats, to: &mut [u16; LANES]) {
        vector!({
            let low = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value[0]);
            let high = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value[1]);
            _mm_storeu_si128(to.as_mut_ptr().cast(), low);
            _mm_storeu_si128(to.as_mut_ptr().add(8).cast(), high);
        });
    }
    #[inline(always)]
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        both!(a, b => _mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        both!(a, b => _mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        both!(a, b => _mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        both!(a, b => _mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        both!(a, b, c => _mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        both!(a, b => _mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        both!(a, b => _mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn zero_below(self, value: Self::Floats, x: Self::Floats, limit: f32) -> Self::Floats {
        both!(value, x => _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x, _mm256_set1_ps(limit)), value))
    }
    #[inline(always)]
    fn reduce_max(self, value: Self::Floats) -> f32 {
        vector!(reduce_max_256(_mm256_max_ps(value[0], value[1])))
    }
    #[inline(always)]
    fn reduce_add(self, value: Self::Floats) -> f32 {
        vector!(reduce_add_256(_mm256_add_ps(value[0], value[1])))
    }
    #[inline(always)]
    fn splat_integer(self, value: i32) -> Self::Integers {
        [vector!(_mm256_set1_epi32(value)); 2]
    }
    #[inline(always)]
    fn round(self, value: Self::Floats) -> Self::Integers {
        both!(value => _mm256_cvtps_epi32(value))
    }
    #[inline(always)]
    fn to_floats(self, value: Self::Integers) -> Self::Floats {
        both!(value => _mm256_cvtepi32_ps(value))
    }
    #[inline(always)]
    fn power_of_two(self, value: Self::Integers) -> Self::Floats {
        both!(value => _mm256_castsi256_ps(_mm256_slli_epi32::<23>(
            _mm256_add_epi32(value, _mm256_set1_epi32(127))
        )))
    }
    #[inline(always)]
    fn sum(self, value: Self::Integers) -> i32 {
        vector!(sum_256(_mm256_add_epi32(value[0], value[1])))
    }
    #[inline(always)]
    fn quads(self, value: Self::Integers) -> [i32; 4] {
        let mut lanes = [0i32; LANES];
        vector!({
            _mm256_storeu_si256(lanes.as_mut_ptr().cast(), value[0]);
            _mm256_storeu_si256(lanes.as_mut_ptr().add(8).cast(), value[1]);
        });
        super::lanes::Portable.quads(lanes)
    }
    #[inline(always)]
    fn load_bytes(self, from: &[u8; 4 * LANES]) -> Self::Bytes {
        vector!([_mm256_loadu_si256(from.as_ptr().cast()), _mm256_loadu_si256(from.as_ptr().add(32).cast()),])
    }
    #[inline(always)]
    fn low_nibbles(self, value: Self::Bytes) -> Self::Bytes {
        both!(value => _mm256_and_si256(value, _mm256_set1_epi8(15)))
    }
    #[inline(always)]
    fn high_nibbles(self, value: Self::Bytes) -> Self::Bytes {
        both!(value => _mm256_and_si256(_mm256_srli_epi16::<4>(value), _mm256_set1_epi8(15)))
    }
    #[inline(always)]
    fn store_bytes(self, value: Self::Bytes, to: &mut [u8; 4 * LANES]) {
        vector!({
            _mm256_storeu_si256(to.as_mut_ptr().cast(), value[0]);
            _mm256_storeu_si256(to.as_mut_ptr().add(32).cast(), value[1]);
        });
    }
    #[inline(always)]
    fn dot_nibbles(self, sum: Self::Integers, weights: Self::Bytes, quad: i32) -> Self::Integers {
        both!(sum, weights => dot_nibbles_256(sum, weights, quad))
    }
    #[inline(always)]
    fn dot_bytes(self, sum: Self::Integers, weights: Self::Bytes, quad: i32) -> Self::Integers {
        both!(sum, weights => dot_bytes_256(sum, weights, quad))
    }
}

impl Lanes for Avx512 {
    type Floats = __m512;
    type Integers = __m512i;
    type Bytes = __m512i;

    const PRODUCT_ROWS: usize = 8;
    const ATTENTION_ROWS: usize = 6;
    const WIDE_VALUES: bool = true;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Floats {
        vector!(_mm512_set1_ps(value))
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::Floats {
        vector!(_mm512_loadu_ps(from.as_ptr()))
    }
    #[inline(always)]
    fn store(self, value: Self::Floats, to: &mut [f32; LANES]) {
        vector!(_mm512_storeu_ps(to.as_mut_ptr(), value));
    }
    #[inline(always)]
    fn load_half(self, from: &[u16; LANES]) -> Self::Floats {
        vector!(_mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())))
    }
    #[inline(always)]
    fn store_half(self, value: Self::Floats, to: &mut [u16; LANES]) {
        vector!({
            let half = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value);
            _mm256_storeu_si256(to.as_mut_ptr().cast(), half);
        });
    }
    #[inline(always)]
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        vector!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        vector!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        vector!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        vector!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        vector!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        vector!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        vector!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn zero_below(self, value: Self::Floats, x: Self::Floats, limit: f32) -> Self::Floats {
        vector!({
            let keep = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(limit));
            _mm512_maskz_mov_ps(keep, value)
        })
    }
    #[inline(always)]
    fn reduce_max(self, value: Self::Floats) -> f32 {
        vector!(reduce_max_256(_mm256_max_ps(
            _mm512_castps512_ps256(value),
            _mm512_extractf32x8_ps::<1>(value)
        )))
    }
    #[inline(always)]
    fn reduce_add(self, value: Self::Floats) -> f32 {
        vector!(reduce_add_256(_mm256_add_ps(
            _mm512_castps512_ps256(value),
            _mm512_extractf32x8_ps::<1>(value)
        )))
    }
    #[inline(always)]
    fn splat_integer(self, value: i32) -> Self::Integers {
        vector!(_mm512_set1_epi32(value))
    }
    #[inline(always)]
    fn round(self, value: Self::Floats) -> Self::Integers {
        vector!(_mm512_cvtps_epi32(value))
    }
    #[inline(always)]
    fn to_floats(self, value: Self::Integers) -> Self::Floats {
        vector!(_mm512_cvtepi32_ps(value))
    }
    #[inline(always)]
    fn power_of_two(self, value: Self::Integers) -> Self::Floats {
        vector!(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(value, _mm512_set1_epi32(127)))))
    }
    #[inline(always)]
    fn sum(self, value: Self::Integers) -> i32 {
        vector!(_mm512_reduce_add_epi32(value))
    }
    #[inline(always)]
    fn quads(self, value: Self::Integers) -> [i32; 4] {
        let mut quads = [0; 4];
        vector!(_mm_storeu_si128(quads.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(value)));
        quads
    }
    #[inline(always)]
    fn load_bytes(self, from: &[u8; 4 * LANES]) -> Self::Bytes {
        vector!(_mm512_loadu_si512(from.as_ptr().cast()))
    }
    #[inline(always)]
    fn low_nibbles(self, value: Self::Bytes) -> Self::Bytes {
        vector!(_mm512_and_si512(value, _mm512_set1_epi8(15)))
    }
    #[inline(always)]
    fn high_nibbles(self, value: Self::Bytes) -> Self::Bytes {
        vector!(_mm512_and_si512(_mm512_srli_epi16::<4>(value), _mm512_set1_epi8(15)))
    }
    #[inline(always)]
    fn store_bytes(self, value: Self::Bytes, to: &mut [u8; 4 * LANES]) {
        vector!(_mm512_storeu_si512(to.as_mut_ptr().cast(), value));
    }
    #[inline(always)]
    fn dot_nibbles(self, sum: Self::Integers, weights: Self::Bytes, quad: i32) -> Self::Integers {
        self.dot_bytes(sum, weights, quad)
    }
    #[inline(always)]
    fn dot_bytes(self, sum: Self::Integers, weights: Self::Bytes, quad: i32) -> Self::Integers {
        vector!(_mm512_dpbusd_epi32(sum, weights, _mm512_set1_epi32(quad)))
    }
}

#[cfg(test)]
#[path = "x86_tests.rs"]
mod tests;
