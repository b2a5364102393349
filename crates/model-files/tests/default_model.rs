//! The default model's tokenizer against llama.cpp's token ids (made by `scripts/reference-tokens.py`).
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use serde::Deserialize;
use std::path::PathBuf;

#[derive(Deserialize)]
struct Reference {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    answer: String,
}

fn model_path() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let path = variable("DYNAMO_MODEL").unwrap_or_else(|| {
        let cache = variable("DYNAMO_CACHE").unwrap_or_else(|| {
            let base = variable("XDG_CACHE_HOME")
                .unwrap_or_else(|| variable("HOME").expect("HOME is set").join(".cache"));
            base.join("dynamo")
        });
        cache.join("models/SmolLM2-135M-Instruct.Q4_1.gguf")
    });
    assert!(path.exists(), "the default model is not at {}: run `make model`", path.display());
    path
}

#[test]
fn token_ids_are_those_of_llama_cpp() {
    let files = dynamo_model_files::open(&model_path()).unwrap();
    let tokenizer: tokenizers::Tokenizer = files.tokenizer_json().parse().unwrap();
    let reference = include_str!("../../engine/tests/data/reference.json");
    let reference: Reference = serde_json::from_str(reference).unwrap();
    for case in reference.cases {
        let encoding = tokenizer.encode(case.text.as_str(), true).unwrap();
        assert_eq!(encoding.get_ids(), case.prompt, "{:?}", case.text);
        assert_eq!(tokenizer.decode(&case.greedy, false).unwrap(), case.answer);
    }
    let special = files.special();
    assert_eq!((special.bos, special.eos, special.add_bos), (Some(1), vec![2, 0], false));
}
