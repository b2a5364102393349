//! Our encoder against the `tokenizers` crate: the same ids for any text, under every known way of cutting words.

use crate::support::{any_text, byte_fallback_json, byte_level_json, corpus, hugging_face};
use dynamo_text::Tokenizer;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::{Arc, LazyLock};

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

struct Pair {
    name: &'static str,
    ours: Arc<Tokenizer>,
    theirs: tokenizers::Tokenizer,
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn split(pattern: &str) -> Value {
    json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false}, byte_level(false)]})
}

fn digits(each_alone: bool) -> Value {
    json!({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": each_alone}, byte_level(true)]})
}

/// Also with text that is normalised, added tokens in the second pass, affixes, and whole words before merges.
fn edited(pre_tokenizer: Value) -> String {
    let mut json: Value =
        serde_json::from_str(&byte_level_json(Some(pre_tokenizer), Some(json!({"type": "NFC"})))).unwrap();
    json["model"]["ignore_merges"] = json!(true);
    json["added_tokens"][1]["normalized"] = json!(true);
    let end = json["added_tokens"][1]["id"].clone();
    let begin = json["added_tokens"][0]["id"].clone();
    json["post_processor"] = json!({"type": "Sequence", "processors": [byte_level(true), {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "<|end|>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "<|begin|>": {"id": "<|begin|>", "ids": [begin], "tokens": ["<|begin|>"]},
            "<|end|>": {"id": "<|end|>", "ids": [end], "tokens": ["<|end|>"]}}}]});
    // The other spelling of merges.
    for merge in json["model"]["merges"].as_array_mut().unwrap() {
        *merge = json!(format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()));
    }
    json.to_string()
}

static PAIRS: LazyLock<Vec<Pair>> = LazyLock::new(|| {
    let plain = |pre_tokenizer| byte_level_json(Some(pre_tokenizer), None);
    [
        ("gpt2", byte_level_json(None, None)),
        ("gpt2 as a split", plain(split(GPT2))),
        ("smollm", plain(digits(true))),
        ("digit runs", plain(digits(false))),
        ("llama3", plain(split(LLAMA3))),
        ("qwen2", plain(split(QWEN2))),
        ("llama3, edited", edited(split(LLAMA3))),
        ("qwen2, edited", edited(split(QWEN2))),
    ]
    .into_iter()
    .map(|(name, json)| Pair { name, ours: hugging_face(&json), theirs: json.parse().unwrap() })
    .collect()
});

fn assert_same(pair: &Pair, text: &str, add_special: bool) {
    let expected = pair.theirs.encode_fast(text, add_special).unwrap();
    let found = pair.ours.encode(text, add_special).unwrap();
    assert_eq!(found, expected.get_ids(), "{}: {text:?}", pair.name);
    let least = pair.ours.least_tokens(text);
    assert!(
        least <= found.len(),
        "{}: {text:?} has at least {least} tokens, found {}",
        pair.name,
        found.len()
    );
}

#[test]
fn every_known_shape_is_ours() {
    for pair in PAIRS.iter() {
        assert!(pair.ours.is_native(), "{}", pair.name);
    }
}

#[test]
fn unknown_shapes_go_to_the_crate() {
    for pre_tokenizer in [
        split(r"\s+|\S+"),
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        json!({"type": "Whitespace"}),
    ] {
        let json = byte_level_json(Some(pre_tokenizer), None);
        let pair = Pair { name: "unknown", ours: hugging_face(&json), theirs: json.parse().unwrap() };
        assert!(!pair.ours.is_native());
        assert_same(&pair, "Hello  world, it's 123<|end|>!", true);
    }
    for (from, to) in [("\"lstrip\":false", "\"lstrip\":true"), ("\"dropout\":null", "\"dropout\":0.5")] {
        let json = byte_level_json(None, None).replacen(from, to, 1);
        assert!(!hugging_face(&json).is_native(), "{to}");
    }
    assert!(!hugging_face(&byte_fallback_json()).is_native());
}

#[test]
fn the_corpus_and_windows_of_it_are_the_same() {
    let text = &corpus()[0];
    for pair in PAIRS.iter() {
        assert_same(pair, text, true);
        for (start, _) in text.char_indices().take(900) {
            let window: String = text[start..].chars().take(40).collect();
            assert_same(pair, &window, false);
        }
    }
}

#[test]
fn every_character_is_the_same() {
    for pair in PAIRS.iter().filter(|pair| ["smollm", "llama3"].contains(&pair.name)) {
        let all: Vec<char> = (0..=0x2_FFFFu32).filter_map(char::from_u32).collect();
        for chunk in all.chunks(997) {
            let text: String =
                chunk.iter().flat_map(|&char| ['a', char, ' ', char, '\'', char, '1']).collect();
            assert_same(pair, &text, false);
        }
    }
}

#[test]
fn long_words_are_the_same_and_not_quadratic() {
    for pair in &PAIRS[..1] {
        for unit in ["a", "the", "가", "=", "ab"] {
            for len in [30, 47, 48, 49, 50, 700, 5000] {
                assert_same(pair, &unit.repeat(len), false);
            }
        }
        // Half of these are dropped, and the longest token has some dozens of bytes.
        assert!(pair.ours.least_tokens(&"the".repeat(1_000)) > 10, "{}", pair.name);
        // Minutes, if a merge cost more than its logarithm.
        assert!(!pair.ours.encode(&"the".repeat(1_000_000), false).unwrap().is_empty());
    }
}

#[test]
fn bytes_that_a_vocabulary_lacks_are_dropped() {
    let json = byte_level_json(None, None);
    let mut json: Value = serde_json::from_str(&json).unwrap();
    for absent in ["x", "\u{111}", "ñ", "ð"] {
        json["model"]["vocab"].as_object_mut().unwrap().shift_remove(absent);
    }
    json["model"]["merges"].as_array_mut().unwrap().retain(|merge| {
        !merge
            .as_array()
            .unwrap()
            .iter()
            .any(|part| part.as_str().unwrap().contains(['x', '\u{111}', 'ñ', 'ð']))
    });
    let json = json.to_string();
    let pair = Pair { name: "without some bytes", ours: hugging_face(&json), theirs: json.parse().unwrap() };
    assert!(pair.ours.is_native());
    for text in
        ["x", "axb", "thxe", "the x xx", "😀x", "xthexthexthexthexthexthexthexthexthexthexthexthexthexthe"]
    {
        assert_same(&pair, text, false);
    }
}

#[test]
fn tokens_are_found_by_their_spelling() {
    for pair in PAIRS.iter() {
        for token in ["<|begin|>", "<|end|>", "Ġthe", "the", "Ċ", "Ġ", "nonsense token", "", "é"] {
            assert_eq!(pair.ours.token_id(token), pair.theirs.token_to_id(token), "{}: {token:?}", pair.name);
        }
        assert_eq!(pair.ours.vocab_size(), pair.theirs.get_vocab_size(true), "{}", pair.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn any_text_is_the_same(text in any_text(), add_special in any::<bool>()) {
        for pair in PAIRS.iter() {
            assert_same(pair, &text, add_special);
        }
    }

    #[test]
    fn any_string_is_the_same(text in any::<String>()) {
        for pair in PAIRS.iter() {
            assert_same(pair, &text, false);
        }
    }
}

proptest! {
    // Each is tens of texts, long enough to be remembered, and theirs takes its time.
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Long messages come again with every turn, and their tokens are remembered then.
    #[test]
    fn a_conversation_that_grows_is_the_same(messages in prop::collection::vec((any_text(), 1usize..40), 1..5)) {
        let mut text = String::new();
        for (message, times) in messages {
            text.push_str("<|begin|>");
            text.push_str(&message.repeat(times));
            text.push_str("<|end|>\n");
            for pair in PAIRS.iter() {
                let expected = pair.theirs.encode_fast(text.as_str(), true).unwrap();
                for _ in 0..3 {
                    assert_eq!(pair.ours.encode(&text, true).unwrap(), expected.get_ids(), "{}", pair.name);
                }
            }
        }
    }
}
