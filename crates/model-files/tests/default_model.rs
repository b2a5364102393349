//! The default model's tokenizer against llama.cpp's token ids (made by `scripts/reference-tokens.py`).

use serde::Deserialize;

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

#[test]
fn token_ids_are_those_of_llama_cpp() {
    let files = dynamo_model_files::open(&dynamo_model_files::testing::model_path()).unwrap();
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
