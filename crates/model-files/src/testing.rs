//! Finds the default model and writes small ones, for tests that need some.

use crate::default_model::{default_model, variable};
use crate::{Encoding, Tensor};
use std::path::PathBuf;

/// The model that tests and benches run on: `DYNAMO_MODEL`, else the default one.
///
/// # Panics
/// It is not there.
pub fn model_path() -> PathBuf {
    let path = variable("DYNAMO_MODEL").unwrap_or_else(default_model);
    assert!(path.exists(), "the default model is not at {}: run `make model`", path.display());
    path
}

/// Names, rows and columns of the tensors of a Llama of one layer, 32 wide, with two heads of 32 of which one is for keys and
/// values.
pub fn tiny_llama(vocabulary: usize) -> [(&'static str, usize, usize); 11] {
    [
        ("token_embd", vocabulary, 32),
        ("output_norm", 1, 32),
        ("blk.0.attn_norm", 1, 32),
        ("blk.0.attn_q", 64, 32),
        ("blk.0.attn_k", 32, 32),
        ("blk.0.attn_v", 32, 32),
        ("blk.0.attn_output", 32, 64),
        ("blk.0.ffn_norm", 1, 32),
        ("blk.0.ffn_gate", 64, 32),
        ("blk.0.ffn_up", 64, 32),
        ("blk.0.ffn_down", 32, 64),
    ]
}

/// A GGUF file (version 3) in the making.
#[derive(Clone, Debug, Default)]
pub struct GgufWriter {
    entries: u64,
    metadata: Vec<u8>,
    tensors: u64,
    descriptions: Vec<u8>,
    data: Vec<u8>,
}

fn push_text(to: &mut Vec<u8>, text: &str) {
    to.extend((text.len() as u64).to_le_bytes());
    to.extend(text.as_bytes());
}

impl GgufWriter {
    fn entry(&mut self, key: &str, kind: u32) -> &mut Vec<u8> {
        self.entries += 1;
        push_text(&mut self.metadata, key);
        self.metadata.extend(kind.to_le_bytes());
        &mut self.metadata
    }

    pub fn text(&mut self, key: &str, value: &str) -> &mut Self {
        push_text(self.entry(key, 8), value);
        self
    }

    pub fn integer(&mut self, key: &str, value: u32) -> &mut Self {
        self.entry(key, 4).extend(value.to_le_bytes());
        self
    }

    pub fn float(&mut self, key: &str, value: f32) -> &mut Self {
        self.entry(key, 6).extend(value.to_le_bytes());
        self
    }

    pub fn texts<T: AsRef<str>>(&mut self, key: &str, values: &[T]) -> &mut Self {
        let to = self.entry(key, 9);
        to.extend(8u32.to_le_bytes());
        to.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| push_text(to, value.as_ref()));
        self
    }

    pub fn integers(&mut self, key: &str, values: &[i32]) -> &mut Self {
        let to = self.entry(key, 9);
        to.extend(5u32.to_le_bytes());
        to.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| to.extend(value.to_le_bytes()));
        self
    }

    pub fn floats(&mut self, key: &str, values: &[f32]) -> &mut Self {
        let to = self.entry(key, 9);
        to.extend(6u32.to_le_bytes());
        to.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| to.extend(value.to_le_bytes()));
        self
    }

    pub fn boolean(&mut self, key: &str, value: bool) -> &mut Self {
        self.entry(key, 7).push(u8::from(value));
        self
    }

    pub fn tensor(&mut self, name: &str, tensor: &Tensor) -> &mut Self {
        let kind: u32 = match tensor.encoding {
            Encoding::F32 => 0,
            Encoding::F16 => 1,
            Encoding::Q4_0 => 2,
            Encoding::Q4_1 => 3,
            Encoding::Q5_0 => 6,
            Encoding::Q5_1 => 7,
            Encoding::Q8_0 => 8,
            Encoding::Bf16 => 30,
        };
        self.tensors += 1;
        self.data.resize(self.data.len().next_multiple_of(32), 0);
        push_text(&mut self.descriptions, name);
        let dimensions: &[usize] =
            if tensor.rows == 1 { &[tensor.columns] } else { &[tensor.columns, tensor.rows] };
        self.descriptions.extend((dimensions.len() as u32).to_le_bytes());
        for size in dimensions {
            self.descriptions.extend((*size as u64).to_le_bytes());
        }
        self.descriptions.extend(kind.to_le_bytes());
        self.descriptions.extend((self.data.len() as u64).to_le_bytes());
        self.data.extend_from_slice(&tensor.bytes);
        self
    }

    /// The keys a Llama must have for `config`.
    pub fn llama(&mut self, config: &crate::Config) -> &mut Self {
        self.text("general.architecture", "llama")
            .integer("llama.block_count", config.layers as u32)
            .integer("llama.context_length", config.context_length as u32)
            .integer("llama.embedding_length", config.hidden as u32)
            .integer("llama.feed_forward_length", config.feed_forward as u32)
            .integer("llama.attention.head_count", config.heads as u32)
            .integer("llama.attention.head_count_kv", config.kv_heads as u32)
            .integer("llama.attention.key_length", config.head_dim as u32)
            .integer("llama.attention.value_length", config.head_dim as u32)
            .float("llama.rope.freq_base", config.rope_theta as f32)
            .float("llama.attention.layer_norm_rms_epsilon", config.norm_epsilon)
    }

    /// A byte-level tokenizer: the 256 byte characters, `<|im_start|>` = 256, `<|im_end|>` = 257 (end), no merges but one.
    pub fn byte_tokenizer(&mut self) -> &mut Self {
        self.byte_tokenizer_cut("smollm")
    }

    /// The same, cutting words as `pre` says.
    pub fn byte_tokenizer_cut(&mut self, pre: &str) -> &mut Self {
        let mut tokens: Vec<String> = (0..=255u8).map(|byte| byte_character(byte).to_string()).collect();
        tokens.extend(["<|im_start|>".into(), "<|im_end|>".into(), "th".into()]);
        let mut kinds = vec![1; tokens.len()];
        kinds[256] = 3;
        kinds[257] = 3;
        self.text("tokenizer.ggml.model", "gpt2")
            .text("tokenizer.ggml.pre", pre)
            .texts("tokenizer.ggml.tokens", &tokens)
            .integers("tokenizer.ggml.token_type", &kinds)
            .texts("tokenizer.ggml.merges", &["t h"])
            .integer("tokenizer.ggml.bos_token_id", 256)
            .integer("tokenizer.ggml.eos_token_id", 257)
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(self.tensors.to_le_bytes());
        bytes.extend(self.entries.to_le_bytes());
        bytes.extend_from_slice(&self.metadata);
        bytes.extend_from_slice(&self.descriptions);
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend_from_slice(&self.data);
        bytes
    }
}

/// GPT-2's printable stand-in for a byte: printable Latin-1 is itself, the rest follows from U+0100 on.
fn byte_character(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|other| !printable(*other)).count() as u32;
    char::from_u32(0x100 + rank).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// A safetensors file of F32 matrices: name, rows (1 for vectors), columns, values.
pub fn safetensors(tensors: &[(String, usize, usize, Vec<f32>)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, rows, columns, values) in tensors {
        let start = data.len();
        values.iter().for_each(|value| data.extend(value.to_le_bytes()));
        let shape = if *rows == 1 { vec![*columns] } else { vec![*rows, *columns] };
        let entry = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}
