//! Small tokenizers, trained where they are used.

use dynamo_text::Tokenizer;
use dynamo_types::TokenizerSpec;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::Arc;
use tokenizers::AddedToken;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

/// Prose, code, numbers and scripts: enough to learn some hundred merges over each.
pub(crate) fn corpus() -> Vec<String> {
    let text = "The quick brown fox jumps over the lazy dog, doesn't it? It's what we've learnt: they'll say I'm late.\n\
        fn main() {\n    let total: u32 = values.iter().sum();\n    println!(\"{total:>8}\");\n}\n\
        def f(x):\n\treturn {'a': [1, 2, 3], \"b\": x ** 2}  # comment\n\n\n\
        안녕하세요, 세계! 오늘은 날씨가 좋네요. 안녕히 가세요. 你好，世界。今天天气很好。こんにちは世界、元気ですか。\n\
        Привет, мир! Как дела? Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم. Élève, naïve, Straße, œuvre.\n\
        😀😃🎉👍🏽👨‍👩‍👧‍👦 1234567890 3.14159 1,000,000 ½ ² Ⅷ ٣٤ \u{a0}\u{3000}\u{2003}end\r\n  indented\r\n";
    vec![text.repeat(4); 8]
}

/// A byte-level BPE tokenizer as a `tokenizer.json`, with the given pre-tokenizer (a GPT-2 `ByteLevel` if none) and
/// `<|begin|>`, `<|end|>` as special tokens.
pub(crate) fn byte_level_json(pre_tokenizer: Option<Value>, normalizer: Option<Value>) -> String {
    let mut tokenizer = tokenizers::Tokenizer::new(BPE::default());
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    let trainer = BpeTrainerBuilder::new()
        .vocab_size(900)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    tokenizer.train(&mut TrainerWrapper::from(trainer), corpus().iter()).unwrap();
    tokenizer
        .add_special_tokens([AddedToken::from("<|begin|>", true), AddedToken::from("<|end|>", true)])
        .unwrap();
    let mut json: Value = serde_json::from_str(&tokenizer.to_string(false).unwrap()).unwrap();
    if let Some(pre_tokenizer) = pre_tokenizer {
        json["pre_tokenizer"] = pre_tokenizer;
    }
    json["normalizer"] = normalizer.unwrap_or(Value::Null);
    json.to_string()
}

/// A sentencepiece-like tokenizer with byte fallback.
pub(crate) fn byte_fallback_json() -> String {
    let mut vocabulary = serde_json::Map::new();
    let mut add = |token: String| {
        let id = vocabulary.len();
        vocabulary.entry(token).or_insert(json!(id));
    };
    ["<unk>", "<s>", "</s>"].into_iter().for_each(|token| add(token.to_owned()));
    (0..=255u8).for_each(|byte| add(format!("<0x{byte:02X}>")));
    "▁abcdefghijklmnopqrstuvwxyz,.!세계".chars().for_each(|char| add(char.to_string()));
    ["▁h", "he", "▁w", "▁▁"].into_iter().for_each(|token| add(token.to_owned()));
    let special = |(id, content): (usize, &str)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let added: Vec<Value> = ["<unk>", "<s>", "</s>"].into_iter().enumerate().map(special).collect();
    json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": vocabulary, "merges": [["▁", "h"], ["h", "e"], ["▁", "w"], ["▁", "▁"]]}
    })
    .to_string()
}

pub(crate) fn hugging_face(json: &str) -> Arc<Tokenizer> {
    Arc::new(Tokenizer::from_spec(&TokenizerSpec::HuggingFace { json: json.into() }).unwrap())
}

pub(crate) fn bytes(pieces: &[&[u8]]) -> Arc<Tokenizer> {
    let pieces = pieces.iter().map(|piece| piece.to_vec()).collect();
    Arc::new(Tokenizer::from_spec(&TokenizerSpec::Bytes { pieces }).unwrap())
}

/// Text of all kinds: words and code of the corpus, every script, controls, and anything at all.
pub(crate) fn any_text() -> impl Strategy<Value = String> {
    let words: Vec<String> = corpus()[0].split_inclusive(' ').take(120).map(str::to_owned).collect();
    let odd = vec![
        "'s",
        "'S",
        "'ll",
        "'LL",
        "'",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        " \n",
        "\u{a0}",
        "\u{3000}",
        "\u{2028}",
        "<|end|>",
        "<|begin|>",
        "<|en",
        "0",
        "12",
        "12345",
        "½",
        "ⅷ",
        "٣",
        "e\u{301}",
        "\u{1100}\u{1161}",
        "한국어",
        "漢字",
        "😀",
        "👩‍💻",
        "\u{345}",
        "ᾳ",
        "ǅ",
        "ı",
        "ſ",
        "'ſ",
        "\u{0}",
        "...",
        "--",
        "_x_",
        "$1.00",
        "\u{e000}",
        "𝒳",
    ];
    prop::collection::vec(
        prop_oneof![
            4 => prop::sample::select(words),
            4 => prop::sample::select(odd).prop_map(str::to_owned),
            1 => any::<char>().prop_map(|char| char.to_string()),
            1 => "\\PC{0,6}",
            1 => "[a-zA-Z0-9 ]{0,12}",
        ],
        0..24,
    )
    .prop_map(|parts| parts.concat())
}
