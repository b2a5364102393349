//! A tensor as it is stored, and its values.

use half::{bf16, f16};

/// How the values of a tensor are stored. The quantised forms are those of GGUF: blocks of 32 values along a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    F32,
    F16,
    Bf16,
    /// f16 scale d, then 16 bytes: value i is `d * (low nibble of byte i - 8)`, value 16 + i the same of its high nibble.
    Q4_0,
    /// f16 scale d, f16 minimum m, then 16 bytes as in Q4_0: `d * nibble + m`.
    Q4_1,
    /// f16 scale d, u32 of fifth bits, then 16 bytes as in Q4_0: `d * (5 bits - 16)`.
    Q5_0,
    /// f16 scale d, f16 minimum m, u32 of fifth bits, then 16 bytes: `d * 5 bits + m`.
    Q5_1,
    /// f16 scale d, then 32 bytes: `d * i8`.
    Q8_0,
}

impl Encoding {
    /// For messages.
    pub(crate) const SUPPORTED: &'static str = "one of: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0";

    /// Values per block.
    pub fn block_values(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
        }
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
        }
    }

    /// Bytes of a row of `columns` values. None: not a whole number of blocks, or more than memory can hold.
    pub fn row_bytes(self, columns: usize) -> Option<usize> {
        if !columns.is_multiple_of(self.block_values()) {
            return None;
        }
        (columns / self.block_values()).checked_mul(self.block_bytes())
    }
}

/// A matrix (or a vector: one row) as it is stored, row after row without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub encoding: Encoding,
    pub rows: usize,
    pub columns: usize,
    /// `rows * encoding.row_bytes(columns)` bytes.
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// The values of all rows. Quantised values are computed in f32 as their encoding says.
    pub fn values(&self) -> Vec<f32> {
        let mut values = Vec::with_capacity(self.rows * self.columns);
        for block in self.bytes.chunks_exact(self.encoding.block_bytes()) {
            push_block(self.encoding, block, &mut values);
        }
        values
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// `block` has `encoding.block_bytes()` bytes.
fn push_block(encoding: Encoding, block: &[u8], values: &mut Vec<f32>) {
    match encoding {
        Encoding::F32 => values.push(f32::from_le_bytes([block[0], block[1], block[2], block[3]])),
        Encoding::F16 => values.push(half_at(block, 0)),
        Encoding::Bf16 => values.push(bf16::from_le_bytes([block[0], block[1]]).to_f32()),
        Encoding::Q4_0 => {
            let d = half_at(block, 0);
            push_nibbles(&block[2..18], 0, values, |q| d * (f32::from(q) - 8.0));
        }
        Encoding::Q4_1 => {
            let (d, m) = (half_at(block, 0), half_at(block, 2));
            push_nibbles(&block[4..20], 0, values, |q| d * f32::from(q) + m);
        }
        Encoding::Q5_0 => {
            let d = half_at(block, 0);
            let fifth = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
            push_nibbles(&block[6..22], fifth, values, |q| d * (f32::from(q) - 16.0));
        }
        Encoding::Q5_1 => {
            let (d, m) = (half_at(block, 0), half_at(block, 2));
            let fifth = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
            push_nibbles(&block[8..24], fifth, values, |q| d * f32::from(q) + m);
        }
        Encoding::Q8_0 => {
            let d = half_at(block, 0);
            values.extend(block[2..34].iter().map(|q| d * f32::from(q.cast_signed())));
        }
    }
}

/// Low nibbles are values 0..16, high nibbles values 16..32; bit i of `fifth` is bit 4 of value i.
fn push_nibbles(nibbles: &[u8], fifth: u32, values: &mut Vec<f32>, value: impl Fn(u8) -> f32) {
    for half in 0..2 {
        for (i, byte) in nibbles.iter().enumerate() {
            let bit = if (fifth >> (16 * half + i)) & 1 == 1 { 16 } else { 0 };
            values.push(value(((byte >> (4 * half)) & 15) | bit));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(encoding: Encoding, bytes: Vec<u8>) -> Vec<f32> {
        let columns = bytes.len() / encoding.block_bytes() * encoding.block_values();
        Tensor { encoding, rows: 1, columns, bytes }.values()
    }

    fn block(head: &[f32], rest: &[u8]) -> Vec<u8> {
        let mut bytes: Vec<u8> = head.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
        bytes.extend_from_slice(rest);
        bytes
    }

    #[test]
    fn four_bit_blocks() {
        let nibbles: Vec<u8> = (0..16).map(|i| i | ((15 - i) << 4)).collect();
        let v = values(Encoding::Q4_1, block(&[0.5, -2.0], &nibbles));
        assert_eq!(v.len(), 32);
        assert_eq!((v[0], v[15], v[16], v[31]), (-2.0, 5.5, 5.5, -2.0));
        let v = values(Encoding::Q4_0, block(&[0.5], &nibbles));
        assert_eq!((v[0], v[15], v[16], v[31]), (-4.0, 3.5, 3.5, -4.0));
    }

    #[test]
    fn five_bit_blocks() {
        let mut rest = vec![0x01, 0x00, 0x00, 0x80];
        rest.extend([0x21; 16]);
        let v = values(Encoding::Q5_0, block(&[1.0], &rest));
        assert_eq!((v[0], v[1], v[16], v[31]), (1.0, -15.0, -14.0, 2.0));
        let v = values(Encoding::Q5_1, block(&[1.0, 100.0], &rest));
        assert_eq!((v[0], v[1], v[16], v[31]), (117.0, 101.0, 102.0, 118.0));
    }

    #[test]
    fn eight_bit_and_float_blocks() {
        let v = values(Encoding::Q8_0, block(&[0.25], &[0x80; 32]));
        assert_eq!((v.len(), v[7]), (32, -32.0));
        assert_eq!(values(Encoding::F32, 1.5f32.to_le_bytes().to_vec()), [1.5]);
        assert_eq!(values(Encoding::F16, f16::from_f32(1.5).to_le_bytes().to_vec()), [1.5]);
        assert_eq!(values(Encoding::Bf16, bf16::from_f32(1.5).to_le_bytes().to_vec()), [1.5]);
    }
}
