//! The same weights as GGUF and as a Hugging Face directory give the same logits.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use dynamo_blocks::BlockId;
use dynamo_engine::model::{Logits, Model, Segment};
use dynamo_engine::testing::{random_tensor, tiny_config};
use dynamo_engine::{KvOptions, Llama, Weights};
use dynamo_model_files::testing::{GgufWriter, safetensors};
use dynamo_model_files::{Config, Encoding, Tensor, open};
use std::path::{Path, PathBuf};

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("dynamo-formats-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Canonical name, the name in a Hugging Face checkpoint, rows, columns.
fn shapes(config: &Config) -> Vec<(String, String, usize, usize)> {
    let (query, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    let (hidden, width) = (config.hidden, config.feed_forward);
    let mut shapes = vec![
        ("token_embd.weight".into(), "model.embed_tokens.weight".into(), config.vocab_size, hidden),
        ("output_norm.weight".into(), "model.norm.weight".into(), 1, hidden),
        ("output.weight".into(), "lm_head.weight".into(), config.vocab_size, hidden),
    ];
    for layer in 0..config.layers {
        for (ours, theirs, rows, columns) in [
            ("attn_norm", "input_layernorm", 1, hidden),
            ("attn_q", "self_attn.q_proj", query, hidden),
            ("attn_k", "self_attn.k_proj", kv, hidden),
            ("attn_v", "self_attn.v_proj", kv, hidden),
            ("attn_output", "self_attn.o_proj", hidden, query),
            ("ffn_norm", "post_attention_layernorm", 1, hidden),
            ("ffn_gate", "mlp.gate_proj", width, hidden),
            ("ffn_up", "mlp.up_proj", width, hidden),
            ("ffn_down", "mlp.down_proj", hidden, width),
        ] {
            let theirs = format!("model.layers.{layer}.{theirs}.weight");
            shapes.push((format!("blk.{layer}.{ours}.weight"), theirs, rows, columns));
        }
    }
    shapes
}

/// GGUF's row order (pairs are neighbours) to Hugging Face's (pairs are half a head apart).
fn halves(values: &[f32], columns: usize, head_dim: usize) -> Vec<f32> {
    let rows = values.len() / columns;
    let mut out = Vec::new();
    for row in 0..rows {
        let (head, within) = (row / head_dim, row % head_dim);
        let half = head_dim / 2;
        let source = head * head_dim + if within < half { 2 * within } else { 2 * (within - half) + 1 };
        out.extend_from_slice(&values[source * columns..(source + 1) * columns]);
    }
    out
}

fn write_both(directory: &Path, config: &Config) -> PathBuf {
    let mut writer = GgufWriter::default();
    writer.llama(config).byte_tokenizer();
    let mut tensors = Vec::new();
    for (index, (ours, theirs, rows, columns)) in shapes(config).into_iter().enumerate() {
        let encoding = if rows == 1 { Encoding::F32 } else { Encoding::Q8_0 };
        let values = random_tensor(rows, columns, encoding, index as u64).values();
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        writer.tensor(&ours, &Tensor { encoding: Encoding::F32, rows, columns, bytes });
        let rotated = ours.contains("attn_q") || ours.contains("attn_k");
        let values = if rotated { halves(&values, columns, config.head_dim) } else { values };
        tensors.push((theirs, rows, columns, values));
    }
    let gguf = directory.join("tiny.gguf");
    std::fs::write(&gguf, writer.bytes()).unwrap();
    std::fs::write(directory.join("model.safetensors"), safetensors(&tensors)).unwrap();
    let json = serde_json::json!({
        "model_type": "llama", "num_hidden_layers": config.layers, "hidden_size": config.hidden,
        "intermediate_size": config.feed_forward, "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads, "head_dim": config.head_dim, "rms_norm_eps": 1e-5,
        "vocab_size": config.vocab_size, "max_position_embeddings": config.context_length,
        "tie_word_embeddings": false, "rope_theta": config.rope_theta, "hidden_act": "silu", "eos_token_id": 257,
    });
    std::fs::write(directory.join("config.json"), json.to_string()).unwrap();
    let files = open(&gguf).unwrap();
    std::fs::write(directory.join("tokenizer.json"), files.tokenizer_json().as_bytes()).unwrap();
    let tokenizer_config = r#"{"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>",
        "chat_template": [{"name": "default", "template": "{{ x }}"}]}"#;
    std::fs::write(directory.join("tokenizer_config.json"), tokenizer_config).unwrap();
    gguf
}

fn logits(path: &Path) -> Vec<u32> {
    let mut seen = Vec::new();
    let files = open(path).unwrap();
    let weights = Weights::load(&files, &mut |done, total| seen.push((done, total))).unwrap();
    assert_eq!(seen.last().map(|(done, total)| done == total), Some(true));
    let mut model = Llama::new(weights, KvOptions { block_size: 16, total_blocks: 4 }, 1).unwrap();
    let tokens: Vec<u32> = (0..50).map(|i| i * 5 % 300).collect();
    let blocks: Vec<BlockId> = (0..4).map(BlockId).collect();
    let mut logits = Vec::new();
    let segment = Segment { tokens: &tokens, start: 0, blocks: &blocks, logits: Logits::All };
    model.forward(&[segment], &mut logits).unwrap();
    logits.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn a_directory_is_the_same_model() {
    let directory = Directory::new("same");
    let config = Config { tied_embeddings: false, ..tiny_config() };
    let gguf = write_both(&directory.0, &config);
    let files = open(&directory.0).unwrap();
    assert_eq!(files.config(), open(&gguf).unwrap().config());
    let special = files.special();
    assert_eq!((special.bos, special.eos, special.add_bos), (Some(256), vec![257], false));
    assert_eq!(files.chat_template().as_deref(), Some("{{ x }}"));
    assert_eq!(logits(&gguf), logits(&directory.0));
}

#[test]
fn broken_directories_are_refused_in_one_line() {
    let directory = Directory::new("broken");
    write_both(&directory.0, &Config { tied_embeddings: false, ..tiny_config() });
    let weights = directory.0.join("model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    let error = || {
        let text = open(&directory.0).map(|_| ()).unwrap_err().to_string();
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    };
    for length in [0, 7, 8, 100, 5000, whole.len() - 1] {
        std::fs::write(&weights, &whole[..length]).unwrap();
        assert!(error().contains("cut short"), "{length}: {}", error());
    }
    std::fs::write(&weights, [u64::MAX.to_le_bytes().as_slice(), &whole[8..]].concat()).unwrap();
    assert!(error().contains("at most 100000000"), "{}", error());
    std::fs::remove_file(&weights).unwrap();
    assert!(error().contains("model.safetensors"), "{}", error());
    std::fs::write(&weights, &whole).unwrap();
    let config = directory.0.join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    for (from, to, expected) in [
        ("\"llama\"", "\"mixtral\"", "one of: llama"),
        ("\"silu\"", "\"gelu\"", "expected silu"),
        ("\"hidden_size\":64", "\"hidden_size\":96", "token_embd.weight"),
        ("\"hidden_size\":64", "\"hidden\":64", "hidden_size"),
        ("\"num_hidden_layers\":2", "\"num_hidden_layers\":3", "blk.2"),
    ] {
        std::fs::write(&config, text.replace(from, to)).unwrap();
        assert!(error().contains(expected), "{}", error());
    }
}
