//! A tiny model with random weights, for tests that need a real forward pass and no download.

use crate::weights::Weights;
use dynamo_model_files::{Architecture, Config, Encoding, Error, Tensor};
use dynamo_types::draw;
use std::sync::Arc;

/// Two layers, hidden size 64, four query and two key/value heads of 32, vocabulary 300, context length 512.
pub fn tiny_config() -> Config {
    Config {
        architecture: Architecture::Llama,
        layers: 2,
        hidden: 64,
        feed_forward: 96,
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        rope_theta: 10_000.0,
        rope_factors: None,
        rope_interleaved: true,
        norm_epsilon: 1e-5,
        vocab_size: 300,
        context_length: 512,
        tied_embeddings: true,
    }
}

/// Random weights for [`tiny_config`], the same for the same seed.
pub fn tiny_weights(seed: u64) -> Result<Arc<Weights>, Error> {
    let config = tiny_config();
    Weights::build(&config, &mut |name| Ok(tiny_tensor(&config, name, seed)))
}

/// One of the random tensors: norms in F32, the embedding in Q8_0, everything else in Q4_1.
pub fn tiny_tensor(config: &Config, name: &str, seed: u64) -> Tensor {
    let Config { hidden, feed_forward, vocab_size, .. } = *config;
    let (query, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    let part = name.split('.').rev().nth(1).unwrap_or_default();
    let (rows, columns, encoding) = match part {
        "token_embd" | "output" => (vocab_size, hidden, Encoding::Q8_0),
        "attn_q" => (query, hidden, Encoding::Q4_1),
        "attn_k" | "attn_v" => (kv, hidden, Encoding::Q4_1),
        "attn_output" => (hidden, query, Encoding::Q4_1),
        "ffn_gate" | "ffn_up" => (feed_forward, hidden, Encoding::Q4_1),
        "ffn_down" => (hidden, feed_forward, Encoding::Q4_1),
        _ => (1, hidden, Encoding::F32),
    };
    let seed = name.bytes().fold(seed, |seed, byte| draw::bits(seed, u64::from(byte)));
    random_tensor(rows, columns, encoding, seed)
}

/// Random content whose products with unit-sized rows are about unit-sized. Columns are whole blocks.
pub fn random_tensor(rows: usize, columns: usize, encoding: Encoding, seed: u64) -> Tensor {
    let row_bytes = encoding.row_bytes(columns).unwrap_or(0);
    let mut bytes: Vec<u8> = (0..(rows * row_bytes) as u64).map(|i| draw::bits(seed, i) as u8).collect();
    // A uniform 4-bit value has a deviation of 4.6, an 8-bit one of 74.
    let unit = 1.0 / (columns as f32).sqrt();
    for (index, block) in bytes.chunks_exact_mut(encoding.block_bytes()).enumerate() {
        let spread = 0.5 + draw::unit(seed ^ 1, index as u64) as f32;
        let half = |value: f32| half::f16::from_f32(value).to_le_bytes();
        match encoding {
            Encoding::Q4_0 => block[..2].copy_from_slice(&half(unit * spread / 4.6)),
            Encoding::Q4_1 => {
                block[..2].copy_from_slice(&half(unit * spread / 4.6));
                block[2..4].copy_from_slice(&half(-7.0 * unit * spread / 4.6));
            }
            Encoding::Q8_0 => block[..2].copy_from_slice(&half(unit * spread / 74.0)),
            Encoding::F32 => block.copy_from_slice(&spread.to_le_bytes()),
            Encoding::F16 => block.copy_from_slice(&half(unit * (spread - 1.0))),
            Encoding::Bf16 => block.copy_from_slice(&(unit * (spread - 1.0)).to_le_bytes()[2..]),
            Encoding::Q5_0 | Encoding::Q5_1 => {
                block[..2].copy_from_slice(&half(unit * spread / 9.2));
                if encoding == Encoding::Q5_1 {
                    block[2..4].copy_from_slice(&half(-15.0 * unit * spread / 9.2));
                }
            }
        }
    }
    Tensor { encoding, rows, columns, bytes }
}
