use super::super::lanes::{Portable, exp};
use super::*;
use dynamo_types::draw;

fn floats(seed: u64) -> [f32; LANES] {
    std::array::from_fn(|i| {
        let exponent = draw::index(seed, 100 + i as u64, 60) as i32 - 30;
        (draw::unit(seed, i as u64) as f32 - 0.5) * 2f32.powi(exponent)
    })
}

fn bits(value: [f32; LANES]) -> [u32; LANES] {
    value.map(f32::to_bits)
}

/// Everything a set of lanes can do, on one input.
#[inline(always)]
fn everything<L: Lanes>(l: L, a: &[f32; LANES], b: &[f32; LANES], bytes: &[u8; 64], quad: i32) -> Vec<u32> {
    let (x, y) = (l.load(a), l.load(b));
    let mut seen = Vec::new();
    let mut see = |value: L::Floats| {
        let mut out = [0.0; LANES];
        l.store(value, &mut out);
        seen.extend(bits(out));
    };
    let small = l.mul(x, l.splat(1e-3));
    for value in [
        l.add(x, y),
        l.sub(x, y),
        l.mul(x, y),
        l.div(x, y),
        l.fma(x, y, x),
        l.max(x, y),
        l.min(x, y),
        l.zero_below(x, y, 0.25),
        exp(l, small),
        l.to_floats(l.round(l.mul(x, l.splat(0.01)))),
        l.power_of_two(l.round(l.max(l.min(x, l.splat(127.0)), l.splat(-126.0)))),
    ] {
        see(value);
    }
    let mut half = [0; LANES];
    l.store_half(small, &mut half);
    let mut loaded = [0.0; LANES];
    l.store(l.load_half(&half), &mut loaded);
    let weights = l.load_bytes(bytes);
    let mut nibbles = [0; 64];
    l.store_bytes(l.high_nibbles(weights), &mut nibbles);
    let start = l.splat_integer(-5);
    let dots = [
        l.dot_bytes(start, weights, quad),
        l.dot_nibbles(start, l.low_nibbles(weights), quad),
        l.dot_nibbles(start, l.high_nibbles(weights), quad),
    ];
    for dot in dots {
        let mut out = [0.0; LANES];
        l.store(l.to_floats(dot), &mut out);
        seen.extend(bits(out));
        seen.extend(l.quads(dot).map(i32::cast_unsigned));
        seen.push(l.sum(dot).cast_unsigned());
    }
    seen.extend(half.map(u32::from));
    seen.extend(bits(loaded));
    seen.extend(nibbles.map(u32::from));
    seen.extend([l.reduce_add(x).to_bits(), l.reduce_max(x).to_bits()]);
    seen
}

#[test]
fn all_lanes_agree() {
    for seed in 0..2000u64 {
        let (a, b) = (floats(seed), floats(seed ^ 0xabc));
        let bytes: [u8; 64] = std::array::from_fn(|i| draw::bits(seed, 500 + i as u64) as u8);
        let quad = draw::bits(seed, 900) as i32;
        let expected = everything(Portable, &a, &b, &bytes, quad);
        if let Some(lanes) = Avx2::detect() {
            assert_eq!(everything(lanes, &a, &b, &bytes, quad), expected, "avx2, seed {seed}");
        }
        if let Some(lanes) = Avx512::detect() {
            assert_eq!(everything(lanes, &a, &b, &bytes, quad), expected, "avx512, seed {seed}");
        }
    }
}
