//! GGUF files, whole and broken.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use dynamo_model_files::testing::{GgufWriter, tiny_llama};
use dynamo_model_files::{Architecture, Config, Encoding, Tensor, open};
use proptest::prelude::*;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that goes with the test.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("dynamo-gguf-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, bytes: &[u8]) -> PathBuf {
        let path = self.0.join("tiny.Q8_0.gguf");
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn config() -> Config {
    Config {
        architecture: Architecture::Llama,
        layers: 1,
        hidden: 32,
        feed_forward: 64,
        heads: 2,
        kv_heads: 1,
        head_dim: 32,
        rope_theta: 10_000.0,
        rope_factors: None,
        rope_interleaved: true,
        norm_epsilon: 1e-5,
        vocab_size: 259,
        context_length: 64,
        tied_embeddings: true,
    }
}

fn add_tensors(writer: &mut GgufWriter) {
    for (name, rows, columns) in tiny_llama(259) {
        let encoding = if rows == 1 { Encoding::F32 } else { Encoding::Q8_0 };
        let length = encoding.row_bytes(columns).unwrap() * rows;
        let bytes = (0..length).map(|i| (i % 251) as u8).collect();
        writer.tensor(&format!("{name}.weight"), &Tensor { encoding, rows, columns, bytes });
    }
}

fn tiny() -> Vec<u8> {
    let mut writer = GgufWriter::default();
    writer.llama(&config()).byte_tokenizer().text("tokenizer.chat_template", "{{ messages }}");
    add_tensors(&mut writer);
    writer.bytes()
}

fn error_of(path: &Path) -> String {
    let text = open(path).map(|_| ()).unwrap_err().to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("expected") && text.contains("found") && text.contains(".gguf"), "{text}");
    text
}

#[test]
fn a_whole_file_is_read() {
    let directory = Directory::new();
    let files = open(&directory.file(&tiny())).unwrap();
    assert_eq!(files.config(), &config());
    assert_eq!(files.name(), "tiny");
    assert_eq!(files.chat_template().as_deref(), Some("{{ messages }}"));
    let special = files.special();
    assert_eq!((special.bos, special.eos, special.add_bos), (Some(256), vec![257], false));
    assert_eq!(special.eos_text.as_deref(), Some("<|im_end|>"));
    let tensor = files.tensor("blk.0.attn_q.weight").unwrap();
    assert_eq!((tensor.rows, tensor.columns, tensor.bytes.len()), (64, 32, 64 * 34));
    assert_eq!(tensor.bytes[300], (300 % 251) as u8);
    assert!(files.tensor("blk.7.attn_q.weight").unwrap_err().to_string().contains("no such tensor"));
    assert!(files.weight_bytes() > 10_000);
}

#[test]
fn the_tokenizer_works() {
    let directory = Directory::new();
    let files = open(&directory.file(&tiny())).unwrap();
    let tokenizer: tokenizers::Tokenizer = files.tokenizer_json().parse().unwrap();
    let encoding = tokenizer.encode("<|im_start|>the 12 é<|im_end|>", false).unwrap();
    let expected = [256, 258, u32::from(b'e'), 32, u32::from(b'1'), u32::from(b'2'), 32, 0xc3, 0xa9, 257];
    assert_eq!(encoding.get_ids(), expected);
    assert_eq!(tokenizer.decode(encoding.get_ids(), true).unwrap(), "the 12 é");
}

/// The way of cutting that a file names is the published one, held against `tokenizers` for Python in `dynamo-text`.
#[test]
fn names_mean_the_published_expressions() {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../text/tests/data/tokenizers.json");
    let fixtures: Value = serde_json::from_str(&std::fs::read_to_string(fixtures).unwrap()).unwrap();
    let directory = Directory::new();
    let mut names = 0;
    for shape in fixtures["shapes"].as_array().unwrap() {
        for name in shape["gguf"].as_array().unwrap() {
            let mut writer = GgufWriter::default();
            writer.llama(&config()).byte_tokenizer_cut(name.as_str().unwrap());
            add_tensors(&mut writer);
            let files = open(&directory.file(&writer.bytes())).unwrap();
            let made: Value = serde_json::from_str(&files.tokenizer_json()).unwrap();
            let published = &shape["json"];
            assert_eq!(made["pre_tokenizer"], published["pre_tokenizer"], "{name}");
            assert_eq!(made["normalizer"], published["normalizer"], "{name}");
            assert_eq!(made["model"]["ignore_merges"], published["model"]["ignore_merges"], "{name}");
            names += 1;
        }
    }
    assert!(names >= 8, "{names}");
}

/// Cut anywhere: one line that says so, never a panic.
#[test]
fn cut_files_are_refused() {
    let directory = Directory::new();
    let whole = tiny();
    for length in (0..600).chain((600..whole.len()).step_by(97)).chain([whole.len() - 1]) {
        let text = error_of(&directory.file(&whole[..length]));
        assert!(text.contains("cut short"), "{length}: {text}");
    }
}

#[test]
fn wrong_files_are_refused() {
    let directory = Directory::new();
    let change = |at: usize, bytes: &[u8]| {
        let mut file = tiny();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        error_of(&directory.file(&file))
    };
    assert!(change(0, b"PK\x03\x04").contains("expected \"GGUF\""));
    assert!(change(4, &[9]).contains("expected 2 or 3, found 9"));
    assert!(change(8, &u64::MAX.to_le_bytes()).contains("tensor count"));
    assert!(change(16, &(u64::MAX / 2).to_le_bytes()).contains("metadata count"));
    assert!(change(24, &(1u64 << 40).to_le_bytes()).contains("metadata key"));
}

fn with(edit: impl FnOnce(&mut GgufWriter) -> &mut GgufWriter) -> String {
    let directory = Directory::new();
    let mut writer = GgufWriter::default();
    writer.llama(&config()).byte_tokenizer();
    add_tensors(&mut writer);
    edit(&mut writer);
    error_of(&directory.file(&writer.bytes()))
}

#[test]
fn what_cannot_be_computed_is_named() {
    assert!(with(|w| w.text("general.architecture", "mamba")).contains("one of: llama, found \"mamba\""));
    assert!(with(|w| w.text("tokenizer.ggml.model", "bert")).contains("byte-level BPE"));
    assert!(with(|w| w.text("tokenizer.ggml.model", "llama")).contains("tokenizer.ggml.scores"));
    assert!(with(|w| w.text("tokenizer.ggml.pre", "viking")).contains("smollm"));
    assert!(with(|w| w.text("llama.rope.scaling.type", "yarn")).contains("yarn"));
    assert!(with(|w| w.integer("llama.expert_count", 8)).contains("mixture of experts"));
    assert!(with(|w| w.integer("llama.attention.head_count_kv", 0)).contains("key/value heads"));
    assert!(with(|w| w.integer("llama.block_count", 2)).contains("blk.1.attn_norm.weight"));
    assert!(with(|w| w.integer("llama.feed_forward_length", 96)).contains("expected 96 x 32"));
    assert!(with(|w| w.integer("llama.block_count", u32::MAX)).contains("layers"));
    assert!(with(|w| w.integer("tokenizer.ggml.eos_token_id", 999)).contains("below 259"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Any change of a few bytes of the header: read or refused in one line, no panic, no huge allocation.
    #[test]
    fn changed_headers_do_no_harm(changes in prop::collection::vec((0usize..9000, any::<u8>()), 1..6)) {
        let directory = Directory::new();
        let mut file = tiny();
        for (at, byte) in changes {
            let at = at % file.len();
            file[at] = byte;
        }
        let path = directory.file(&file);
        match open(&path) {
            Ok(files) => prop_assert!(files.tensor("output_norm.weight").is_ok()),
            Err(error) => prop_assert_eq!(error.to_string().lines().count(), 1),
        }
    }
}
