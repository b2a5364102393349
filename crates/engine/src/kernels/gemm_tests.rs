use super::super::rows::quantise;
use super::*;
use crate::testing::random_tensor;
use dynamo_model_files::{Encoding, Tensor};
use dynamo_types::draw;
use proptest::prelude::*;

fn random_rows(rows: usize, columns: usize, seed: u64) -> Vec<f32> {
    (0..(rows * columns) as u64).map(|i| draw::unit(seed, i) as f32 * 4.0 - 2.0).collect()
}

fn quantised(isa: Isa, values: &[f32], columns: usize) -> QuantisedRows {
    let mut rows = QuantisedRows::default();
    rows.resize(values.len() / columns, columns);
    let blocks = rows.tile_blocks();
    for (index, row) in values.chunks_exact(columns).enumerate() {
        let tile = index / TILE_ROWS * blocks;
        quantise(isa, row, &mut rows.blocks_mut()[tile..tile + blocks], index % TILE_ROWS);
    }
    rows
}

fn run(isa: Isa, threads: usize, tensor: &Tensor, values: &[f32]) -> Vec<f32> {
    let matrix = Matrix::pack(tensor, |row| row);
    let rows = quantised(isa, values, tensor.columns);
    let mut out = vec![f32::NAN; rows.rows() * tensor.rows];
    multiply(isa, &Team::new(threads).unwrap(), &matrix, &rows, &mut out, tensor.rows);
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn encodings() -> impl Strategy<Value = Encoding> {
    use Encoding::{Bf16, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
    prop::sample::select(vec![Bf16, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Every instruction set, every number of threads, and every row alone: the same bits.
    #[test]
    fn products_are_the_same_everywhere(
        rows in 1usize..70, outputs in 1usize..90, blocks in 1usize..6, encoding in encodings(), seed: u64,
    ) {
        let columns = 32 * blocks;
        let tensor = random_tensor(outputs, columns, encoding, seed);
        let values = random_rows(rows, columns, seed ^ 7);
        let expected = run(Isa::portable(), 1, &tensor, &values);
        for isa in Isa::available() {
            for threads in [1, 3] {
                let found = run(isa, threads, &tensor, &values);
                prop_assert_eq!(bits(&found), bits(&expected), "{} with {} threads", isa.name(), threads);
            }
        }
        let isa = Isa::detect();
        for (row, expected) in values.chunks_exact(columns).zip(expected.chunks_exact(outputs)) {
            prop_assert_eq!(bits(&run(isa, 1, &tensor, row)), bits(expected));
        }
    }

    /// Against a product in f64 of the unquantised values.
    #[test]
    fn products_are_close(rows in 1usize..10, encoding in encodings(), seed: u64) {
        let (outputs, columns) = (33, 256);
        let tensor = random_tensor(outputs, columns, encoding, seed);
        let values = random_rows(rows, columns, seed ^ 9);
        let found = run(Isa::detect(), 1, &tensor, &values);
        let weights = tensor.values();
        for (row, found) in values.chunks_exact(columns).zip(found.chunks_exact(outputs)) {
            for (weights, found) in weights.chunks_exact(columns).zip(found) {
                let terms = row.iter().zip(weights).map(|(x, w)| f64::from(*x) * f64::from(*w));
                let size: f64 = weights.iter().map(|w| f64::from(*w) * f64::from(*w)).sum::<f64>().sqrt();
                let expected: f64 = terms.sum();
                // Half a step of 2/127 in every term, independent: a deviation of 0.0046 times the norm.
                prop_assert!((expected - f64::from(*found)).abs() < 0.04 * size + 1e-6, "{expected} {found}");
            }
        }
    }
}

#[test]
fn largest_bytes_do_not_saturate() {
    let mut tensor = random_tensor(16, 32, Encoding::Q8_0, 1);
    for byte in [0x80u8, 0x7f] {
        for block in tensor.bytes.chunks_exact_mut(34) {
            block[..2].copy_from_slice(&half::f16::from_f32(1.0).to_le_bytes());
            block[2..].fill(byte);
        }
        for sign in [1.0f32, -1.0] {
            let values = vec![sign; 32];
            for isa in Isa::available() {
                let found = run(isa, 1, &tensor, &values);
                let expected = 32.0 * f32::from(byte.cast_signed()) * sign;
                assert!(
                    found.iter().all(|value| (value - expected).abs() < 1e-2),
                    "{} {found:?}",
                    isa.name()
                );
            }
        }
    }
}
