//! Model files from anywhere.

use crate::input::Input;
use dynamo_model_files::{ModelFiles, open};
use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

/// Tensors that are read of a file that opened.
const NAMES: [&str; 3] = ["token_embd.weight", "output.weight", "blk.0.attn_q.weight"];

/// One folder per process: fuzzers run side by side.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("dynamo-proofs-{}", std::process::id()));
    assert!(fs::create_dir_all(folder.join("model")).is_ok());
    folder
});

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
    let path = FOLDER.join("model.gguf");
    assert!(fs::write(&path, data).is_ok());
    check(open(&path));
    let _ = fs::remove_file(&path);
}

/// First byte: which file of a Hugging Face directory is hostile; the rest: its content.
pub(crate) fn safetensors(data: &[u8]) {
    const FILES: [&str; 4] = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    let mut input = Input::new(data);
    let hostile = usize::from(input.byte()) % FILES.len();
    let folder = FOLDER.join("model");
    for (index, (name, good)) in FILES.into_iter().zip(good()).enumerate() {
        let content = if index == hostile { input.rest() } else { good.as_slice() };
        assert!(fs::write(folder.join(name), content).is_ok());
    }
    check(open(&folder));
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
        let folder = FOLDER.join("good");
        fs::create_dir_all(&folder).expect("a folder");
        let names = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
        for (name, content) in names.into_iter().zip(good()) {
            fs::write(folder.join(name), content).expect("a file");
        }
        let opened = open(&folder);
        assert!(opened.is_ok(), "{opened:?}");
    }
}
