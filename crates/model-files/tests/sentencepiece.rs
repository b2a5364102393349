//! SentencePiece vocabularies in GGUF files, against SentencePiece itself (`tests/data/make_sentencepiece.py`).
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use dynamo_model_files::testing::{GgufWriter, tiny_llama};
use dynamo_model_files::{Architecture, Config, Encoding, ModelFiles, Tensor, open};
use serde_json::Value;
use std::path::PathBuf;

/// A file that goes with the test.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn config(vocab_size: usize) -> Config {
    Config {
        architecture: Architecture::Llama,
        layers: 0,
        hidden: 32,
        feed_forward: 64,
        heads: 2,
        kv_heads: 1,
        head_dim: 32,
        rope_theta: 10_000.0,
        rope_factors: None,
        rope_interleaved: true,
        norm_epsilon: 1e-5,
        vocab_size,
        context_length: 64,
        tied_embeddings: true,
    }
}

fn vocabularies() -> Vec<Value> {
    let text = include_str!("data/sentencepiece.json");
    let data: Value = serde_json::from_str(text).unwrap();
    data["vocabularies"].as_array().unwrap().clone()
}

fn list<T>(value: &Value, each: impl Fn(&Value) -> T) -> Vec<T> {
    value.as_array().unwrap().iter().map(each).collect()
}

fn write(vocabulary: &Value, edit: impl FnOnce(&mut GgufWriter)) -> (Temporary, Result<ModelFiles, String>) {
    let pieces = list(&vocabulary["pieces"], |piece| piece.as_str().unwrap().to_owned());
    let scores = list(&vocabulary["scores"], |score| score.as_f64().unwrap() as f32);
    let kinds = list(&vocabulary["kinds"], |kind| kind.as_i64().unwrap() as i32);
    let mut writer = GgufWriter::default();
    let mut config = config(pieces.len());
    config.layers = 1;
    writer
        .llama(&config)
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &pieces)
        .floats("tokenizer.ggml.scores", &scores)
        .integers("tokenizer.ggml.token_type", &kinds)
        .integer("tokenizer.ggml.bos_token_id", 1)
        .integer("tokenizer.ggml.eos_token_id", 2);
    if vocabulary["prefixed"] == false {
        writer.boolean("tokenizer.ggml.add_space_prefix", false);
    }
    edit(&mut writer);
    for (name, rows, columns) in tiny_llama(pieces.len()) {
        let bytes = vec![0; rows * columns * 4];
        writer.tensor(&format!("{name}.weight"), &Tensor { encoding: Encoding::F32, rows, columns, bytes });
    }
    let name = format!("dynamo-sentencepiece-{}-{:?}.gguf", std::process::id(), std::thread::current().id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, writer.bytes()).unwrap();
    let files = open(&path).map_err(|error| error.to_string());
    (Temporary(path), files)
}

#[test]
fn texts_become_the_pieces_that_sentencepiece_makes() {
    for vocabulary in vocabularies() {
        let (_file, files) = write(&vocabulary, |_| {});
        let files = files.unwrap();
        let tokenizer: tokenizers::Tokenizer = files.tokenizer_json().parse().unwrap();
        let mut wrong = Vec::new();
        let cases = vocabulary["cases"].as_array().unwrap();
        for case in cases {
            let text = case[0].as_str().unwrap();
            let expected = list(&case[1], |id| id.as_u64().unwrap() as u32);
            let found = tokenizer.encode(text, false).unwrap();
            if found.get_ids() != expected {
                wrong.push(format!("{text:?}\n  expected {expected:?}\n  found    {:?}", found.get_ids()));
            }
            let shown = tokenizer.decode(&expected, true).unwrap();
            if shown != case[2].as_str().unwrap() {
                wrong.push(format!("{text:?} is shown as {shown:?}"));
            }
        }
        assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
        assert!(cases.len() >= 400);
        let special = files.special();
        assert_eq!((special.bos, special.add_bos, special.eos.as_slice()), (Some(1), true, &[2][..]));
        // Special tokens and the user's own pieces are found in a text; prompts begin with the first of them.
        let ids = tokenizer.encode("<s>fox-trot<tool></s>", true).unwrap().get_ids().to_vec();
        let id = |piece: &str| tokenizer.token_to_id(piece).unwrap();
        assert_eq!(ids, [1, 1, id("fox-trot"), id("<tool>"), 2]);
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let vocabulary = &vocabularies()[0];
    let error = |edit: fn(&mut GgufWriter)| write(vocabulary, edit).1.unwrap_err();
    let wrong = |writer: &mut GgufWriter| {
        writer.floats("tokenizer.ggml.scores", &[1.0]);
    };
    assert!(error(wrong).contains("one score for each of the 640 tokens"));
    let texts = |writer: &mut GgufWriter| {
        writer.texts("tokenizer.ggml.scores", &["a"]);
    };
    assert!(error(texts).contains("an array of floats"));
    let other = |writer: &mut GgufWriter| {
        writer.text("tokenizer.ggml.model", "t5");
    };
    assert!(error(other).contains("SentencePiece"));
}
