//! Model files from anywhere.

use crate::input::Input;
use dynamo_model_files::{ModelFiles, open};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tensors that are read of a file that opened.
const NAMES: [&str; 3] = ["token_embd.weight", "output.weight", "blk.0.attn_q.weight"];

/// A folder that goes with its guard. Fuzzers run side by side, and so do tests.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("dynamo-proofs-{}-{number}", std::process::id());
        let folder = Self(std::env::temp_dir().join(name));
        assert!(fs::create_dir_all(&folder.0).is_ok());
        folder
    }

    fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path().join(name);
        assert!(fs::write(&path, content).is_ok());
        path
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is left to the system.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn check(files: Result<ModelFiles, dynamo_model_files::Error>) {
    match files {
        Ok(files) => {
            for name in NAMES {
                let _ = files.tensor(name);
            }
            assert!(!files.tokenizer_json().is_empty() && files.config().layers > 0);
        }
        Err(error) => {
            let text = error.to_string();
            assert!(!text.is_empty() && !text.contains('\n'), "more than one line: {text:?}");
            assert!(text.len() < 4096, "{text}");
        }
    }
}

/// The whole input is a GGUF file.
pub(crate) fn gguf(data: &[u8]) {
    let folder = Folder::new();
    check(open(&folder.write("model.gguf", data)));
}

/// First byte: which file of a Hugging Face directory is hostile; the rest: its content.
pub(crate) fn safetensors(data: &[u8]) {
    const FILES: [&str; 4] = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    let mut input = Input::new(data);
    let hostile = usize::from(input.byte()) % FILES.len();
    let folder = Folder::new();
    for (index, (name, good)) in FILES.into_iter().zip(good()).enumerate() {
        let content = if index == hostile { input.rest() } else { good.as_slice() };
        folder.write(name, content);
    }
    check(open(folder.path()));
}

/// The smallest directory that opens.
fn good() -> &'static [Vec<u8>; 4] {
    static GOOD: LazyLock<[Vec<u8>; 4]> = LazyLock::new(|| {
        let config = serde_json::json!({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
            "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1,
            "num_key_value_heads": 1, "vocab_size": 4, "max_position_embeddings": 16, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": true});
        let matrices = [
            ("embed_tokens", 4, 32),
            ("layers.0.self_attn.q_proj", 32, 32),
            ("layers.0.self_attn.k_proj", 32, 32),
            ("layers.0.self_attn.v_proj", 32, 32),
            ("layers.0.self_attn.o_proj", 32, 32),
            ("layers.0.mlp.gate_proj", 32, 32),
            ("layers.0.mlp.up_proj", 32, 32),
            ("layers.0.mlp.down_proj", 32, 32),
            ("layers.0.input_layernorm", 1, 32),
            ("layers.0.post_attention_layernorm", 1, 32),
            ("norm", 1, 32),
        ];
        let matrices = matrices.map(|(name, rows, columns)| {
            (format!("model.{name}.weight"), rows, columns, vec![0.5; rows * columns])
        });
        let tokenizer = serde_json::json!({"version": "1.0", "added_tokens": [], "model":
            {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3}, "merges": ["a b"]}});
        let settings = serde_json::json!({"eos_token": "c", "chat_template": "{{ messages }}"});
        [
            config.to_string().into_bytes(),
            dynamo_model_files::testing::safetensors(&matrices),
            tokenizer.to_string().into_bytes(),
            settings.to_string().into_bytes(),
        ]
    });
    &GOOD
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise nothing behind the first check would be tried.
    #[test]
    fn the_smallest_directory_opens() {
        let folder = Folder::new();
        let names = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
        for (name, content) in names.into_iter().zip(good()) {
            folder.write(name, content);
        }
        let opened = open(folder.path());
        assert!(opened.is_ok(), "{opened:?}");
        let path = folder.path().to_owned();
        drop((opened, folder));
        assert!(!path.exists(), "{}", path.display());
    }
}
