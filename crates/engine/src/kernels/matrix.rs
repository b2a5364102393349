//! Weights in the order the product kernel reads them.
//!
//! A panel is sixteen output rows. Within a panel, for each 32 columns, a 64-byte vector holds four consecutive columns
//! of all sixteen rows (byte `4 * row + column % 4`): what one `vpdpbusd` multiplies. Four-bit weights put columns c
//! and c + 16 into the two nibbles of one byte, as GGUF does, so packing moves whole words. Values stay exactly
//! those of the file: Q4_0, Q4_1 and Q8_0 are only rearranged; every other encoding is quantised to Q8_0 first.

use super::LANES;
use dynamo_model_files::{Encoding, Tensor};
use half::f16;

/// Columns that share a scale.
pub(crate) const BLOCK: usize = 32;

/// 64 bytes on their own cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [u8; 64]);

/// 16 rows x 32 columns of `scale * nibble + minimum`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct NibbleBlock {
    /// Line g: columns 4g..4g+4 in the low nibbles, 16+4g..16+4g+4 in the high ones.
    pub(crate) lines: [Line; 4],
    /// f16, one for each row.
    pub(crate) scales: [u16; LANES],
    pub(crate) minima: [u16; LANES],
}

/// 16 rows x 32 columns of `scale * (byte - 128)`; the scales are kept apart so that lines stay aligned.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ByteBlock {
    /// Line g: columns 4g..4g+4.
    pub(crate) lines: [Line; 8],
}

/// Blocks of a panel follow each other along the columns, panels along the rows.
pub(crate) enum Packed {
    Nibbles(Vec<NibbleBlock>),
    Bytes { blocks: Vec<ByteBlock>, scales: Vec<[u16; LANES]> },
}

/// A packed matrix.
pub(crate) struct Matrix {
    rows: usize,
    columns: usize,
    packed: Packed,
}

impl Matrix {
    /// Packs a tensor whose columns are a multiple of 32. Row `i` of the matrix is row `source(i)` of the tensor.
    pub(crate) fn pack(tensor: &Tensor, source: impl Fn(usize) -> usize) -> Self {
        let (rows, columns) = (tensor.rows, tensor.columns);
        let packed = match tensor.encoding {
            Encoding::Q4_0 | Encoding::Q4_1 => Packed::Nibbles(pack_nibbles(tensor, source)),
            Encoding::Q8_0 => pack_bytes(rows, columns, &tensor.bytes, source),
            _ => pack_bytes(rows, columns, &quantise(&tensor.values()), source),
        };
        Self { rows, columns, packed }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Blocks of one panel.
    pub(crate) fn panel_blocks(&self) -> usize {
        self.columns / BLOCK
    }

    pub(crate) fn panels(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    pub(crate) fn packed(&self) -> &Packed {
        &self.packed
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        match &self.packed {
            Packed::Nibbles(blocks) => size_of_val(blocks.as_slice()),
            Packed::Bytes { blocks, scales } => {
                size_of_val(blocks.as_slice()) + size_of_val(scales.as_slice())
            }
        }
    }

    /// The values of one row. `row` is below [`Matrix::rows`], `values` has one element for each column.
    pub(crate) fn row(&self, row: usize, values: &mut [f32]) {
        let (first, lane) = (row / LANES * self.panel_blocks(), row % LANES);
        for (index, values) in values.chunks_exact_mut(BLOCK).enumerate() {
            match &self.packed {
                Packed::Nibbles(blocks) => {
                    let block = &blocks[first + index];
                    let scale = f16::from_bits(block.scales[lane]).to_f32();
                    let minimum = f16::from_bits(block.minima[lane]).to_f32();
                    let (low, high) = values.split_at_mut(BLOCK / 2);
                    for (i, (low, high)) in low.iter_mut().zip(high).enumerate() {
                        let byte = block.lines[i / 4].0[4 * lane + i % 4];
                        *low = scale.mul_add(f32::from(byte & 15), minimum);
                        *high = scale.mul_add(f32::from(byte >> 4), minimum);
                    }
                }
                Packed::Bytes { blocks, scales } => {
                    let scale = f16::from_bits(scales[first + index][lane]).to_f32();
                    for (i, value) in values.iter_mut().enumerate() {
                        let byte = blocks[first + index].lines[i / 4].0[4 * lane + i % 4];
                        *value = scale * (f32::from(byte) - 128.0);
                    }
                }
            }
        }
    }
}

/// Calls `place(block index, lane, bytes of the block)` for all blocks of all rows.
fn for_blocks(
    rows: usize,
    blocks: usize,
    block_bytes: usize,
    bytes: &[u8],
    source: impl Fn(usize) -> usize,
    mut place: impl FnMut(usize, usize, &[u8]),
) {
    for row in 0..rows {
        let from = source(row) * blocks * block_bytes;
        let row_bytes = &bytes[from..from + blocks * block_bytes];
        for (index, block) in row_bytes.chunks_exact(block_bytes).enumerate() {
            place(row / LANES * blocks + index, row % LANES, block);
        }
    }
}

fn pack_nibbles(tensor: &Tensor, source: impl Fn(usize) -> usize) -> Vec<NibbleBlock> {
    let empty = NibbleBlock { lines: [Line([0; 64]); 4], scales: [0; LANES], minima: [0; LANES] };
    let blocks = tensor.columns / BLOCK;
    let mut packed = vec![empty; tensor.rows.div_ceil(LANES) * blocks];
    let block_bytes = tensor.encoding.block_bytes();
    let has_minimum = tensor.encoding == Encoding::Q4_1;
    for_blocks(tensor.rows, blocks, block_bytes, &tensor.bytes, source, |index, lane, block| {
        let target = &mut packed[index];
        let scale = u16::from_le_bytes([block[0], block[1]]);
        target.scales[lane] = scale;
        // Q4_0 counts from -8: eight times an f16 is exact (short of overflow, which no weight comes near).
        target.minima[lane] = if has_minimum {
            u16::from_le_bytes([block[2], block[3]])
        } else {
            f16::from_f32(-8.0 * f16::from_bits(scale).to_f32()).to_bits()
        };
        for (line, word) in target.lines.iter_mut().zip(block[block_bytes - 16..].chunks_exact(4)) {
            line.0[4 * lane..4 * lane + 4].copy_from_slice(word);
        }
    });
    packed
}

/// `bytes` are Q8_0 blocks.
fn pack_bytes(rows: usize, columns: usize, bytes: &[u8], source: impl Fn(usize) -> usize) -> Packed {
    let count = columns / BLOCK;
    let total = rows.div_ceil(LANES) * count;
    let mut blocks = vec![ByteBlock { lines: [Line([128; 64]); 8] }; total];
    let mut scales = vec![[0; LANES]; total];
    for_blocks(rows, count, Encoding::Q8_0.block_bytes(), bytes, source, |index, lane, block| {
        scales[index][lane] = u16::from_le_bytes([block[0], block[1]]);
        for (line, word) in blocks[index].lines.iter_mut().zip(block[2..].chunks_exact(4)) {
            for (to, from) in line.0[4 * lane..4 * lane + 4].iter_mut().zip(word) {
                *to = from ^ 0x80;
            }
        }
    });
    Packed::Bytes { blocks, scales }
}

/// To Q8_0: for each 32 values `scale = largest magnitude / 127`, rounded to f16, then values over the unrounded scale.
fn quantise(values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(values.len() / BLOCK * Encoding::Q8_0.block_bytes());
    for block in values.chunks_exact(BLOCK) {
        let largest = block.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        let scale = largest / 127.0;
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        bytes.extend_from_slice(&f16::from_f32(scale).to_le_bytes());
        bytes.extend(block.iter().map(|value| ((value * inverse).round() as i8).cast_unsigned()));
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::testing::random_tensor;

    #[test]
    fn rows_come_back_exactly() {
        for encoding in [Encoding::Q4_0, Encoding::Q4_1, Encoding::Q8_0] {
            let tensor = random_tensor(37, 96, encoding, 5);
            let reversed = Matrix::pack(&tensor, |row| 36 - row);
            let values = tensor.values();
            let mut row = vec![0.0; 96];
            for index in 0..37 {
                reversed.row(index, &mut row);
                let expected = &values[(36 - index) * 96..(37 - index) * 96];
                for (found, expected) in row.iter().zip(expected) {
                    assert!(
                        (found - expected).abs() <= 1e-6 * expected.abs().max(0.1),
                        "{encoding:?} {index}"
                    );
                }
            }
        }
    }

    #[test]
    fn floats_keep_eight_bits() {
        let tensor = random_tensor(16, 64, Encoding::F16, 3);
        let matrix = Matrix::pack(&tensor, |row| row);
        let mut row = vec![0.0; 64];
        for (index, expected) in tensor.values().chunks_exact(64).enumerate() {
            matrix.row(index, &mut row);
            for (found, expected) in row.chunks_exact(32).zip(expected.chunks_exact(32)) {
                let largest = expected.iter().fold(0.0f32, |a, b| a.max(b.abs()));
                for (found, expected) in found.iter().zip(expected) {
                    assert!((found - expected).abs() <= largest / 127.0 * 0.6);
                }
            }
        }
    }
}
