//! Tokenizers: text there and back, any ids, and the same ids as the `tokenizers` crate.

use crate::input::Input;
use dynamo_text::{Detokenizer, Tokenizer};
use dynamo_types::TokenizerSpec;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, LazyLock};

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Merges of the small vocabularies, in order of rank.
const MERGES: [(&str, &str); 18] = [
    ("t", "h"),
    ("th", "e"),
    ("Ġ", "the"),
    ("i", "n"),
    ("in", "g"),
    ("Ġ", "a"),
    ("Ġ", "Ġ"),
    ("ĠĠ", "ĠĠ"),
    ("1", "2"),
    ("12", "3"),
    ("'", "s"),
    ("Ã", "©"),
    ("ð", "Ł"),
    ("ðŁ", "ĺ"),
    ("Ċ", "Ċ"),
    (".", "."),
    ("..", "."),
    ("ì", "ķ"),
];

struct Pair {
    ours: Arc<Tokenizer>,
    /// None: no such description.
    theirs: Option<tokenizers::Tokenizer>,
    /// Whether text comes back as it was.
    is_exact: bool,
}

/// GPT-2's printable stand-in for a byte.
fn stand_in(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|other| !printable(*other)).count() as u32;
    char::from_u32(0x100 + rank).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn added(id: usize, content: &str) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true})
}

fn vocabulary(tokens: impl IntoIterator<Item = String>) -> Value {
    tokens
        .into_iter()
        .enumerate()
        .map(|(id, token)| (token, json!(id)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn byte_level(pre_tokenizer: &Value, normalizer: &Value) -> Value {
    let bytes = (0..=255u8).map(|byte| stand_in(byte).to_string());
    let tokens = bytes.chain(MERGES.iter().map(|(left, right)| format!("{left}{right}")));
    let merges: Vec<_> = MERGES.iter().map(|(left, right)| [left, right]).collect();
    let next = 256 + MERGES.len();
    json!({
        "version": "1.0",
        "added_tokens": [added(next, "<|begin|>"), added(next + 1, "<|end|>"), added(next + 2, "<|end|>x")],
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocabulary(tokens), "merges": merges, "ignore_merges": false}
    })
}

fn byte_fallback() -> Value {
    let fixed = ["<unk>", "<s>", "</s>"].into_iter().map(str::to_owned);
    let bytes = (0..=255u8).map(|byte| format!("<0x{byte:02X}>"));
    let letters = "▁abcdefghijklmnopqrstuvwxyz,.!세계".chars().map(|letter| letter.to_string());
    let merges = [["▁", "h"], ["h", "e"], ["▁", "w"], ["▁", "▁"]];
    let tokens = fixed.chain(bytes).chain(letters).chain(merges.iter().map(|pair| pair.concat()));
    json!({
        "version": "1.0",
        "added_tokens": [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": vocabulary(tokens), "merges": merges}
    })
}

fn pair(json: &str, is_exact: bool) -> Option<Pair> {
    let ours = Tokenizer::from_spec(&TokenizerSpec::HuggingFace { json: json.into() });
    assert!(ours.is_ok(), "{ours:?}");
    Some(Pair { ours: Arc::new(ours.ok()?), theirs: json.parse().ok(), is_exact })
}

/// The default model's own description, where the model is at hand.
fn real() -> Option<Pair> {
    let path = std::env::var_os("DYNAMO_MODEL")?;
    let files = dynamo_model_files::open(Path::new(&path)).ok()?;
    let mut pair = pair(&files.tokenizer_json(), true)?;
    // Some vocabularies leave out control characters.
    let has =
        |byte: u8| (0..pair.ours.vocab_size() as u32).any(|token| pair.ours.token_bytes(token) == [byte]);
    pair.is_exact = (0..=255).all(has);
    Some(pair)
}

static PAIRS: LazyLock<Vec<Pair>> = LazyLock::new(|| {
    let level = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex});
    let row = |first: Value, second: Value| json!({"type": "Sequence", "pretokenizers": [first, second]});
    let split = |pattern: &str| {
        let split =
            json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        row(split, level(false))
    };
    let none = Value::Null;
    let descriptions = [
        (byte_level(&level(true), &none), true),
        (byte_level(&row(json!({"type": "Digits", "individual_digits": true}), level(true)), &none), true),
        (byte_level(&split(LLAMA3), &none), true),
        (byte_level(&split(QWEN2), &json!({"type": "NFC"})), false),
        (byte_fallback(), false),
    ];
    let mut list: Vec<Pair> =
        descriptions.iter().filter_map(|(json, is_exact)| pair(&json.to_string(), *is_exact)).collect();
    assert!(list.len() == descriptions.len() && list.iter().all(|pair| pair.theirs.is_some()));
    let pieces = ["the", "é", "😀", "\u{1f600}a"].map(|piece| piece.as_bytes().to_vec()).to_vec();
    let bytes = Tokenizer::from_spec(&TokenizerSpec::Bytes { pieces });
    list.extend(bytes.ok().map(|ours| Pair { ours: Arc::new(ours), theirs: None, is_exact: true }));
    list.extend(real());
    list
});

/// What is told token by token is what all of them say at once (R01).
fn incremental(tokenizer: &Arc<Tokenizer>, tokens: &[u32], skip_special: bool) {
    let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer), skip_special);
    let mut text = String::new();
    for &token in tokens {
        detokenizer.push(token, &mut text);
    }
    detokenizer.finish(&mut text);
    assert_eq!(text, tokenizer.decode(tokens, skip_special), "{tokens:?}");
}

/// First byte: the tokenizer. The rest: text.
pub(crate) fn text(data: &[u8]) {
    let mut input = Input::new(data);
    let pair = &PAIRS[usize::from(input.byte()) % PAIRS.len()];
    let text = input.text();
    let tokens = pair.ours.encode(&text, false);
    assert!(tokens.is_ok(), "{tokens:?}");
    let tokens = tokens.unwrap_or_default();
    if let Some(theirs) = &pair.theirs {
        let expected = theirs.encode_fast(text.as_ref(), false).map(|encoding| encoding.get_ids().to_vec());
        assert_eq!(Some(&tokens), expected.as_ref().ok(), "{text:?}");
    }
    if pair.is_exact {
        assert_eq!(pair.ours.decode(&tokens, false), text, "{tokens:?}");
    }
    incremental(&pair.ours, &tokens, false);
    incremental(&pair.ours, &tokens, true);
}

/// First byte: the tokenizer. The rest: ids, two bytes each; some are outside the vocabulary.
pub(crate) fn ids(data: &[u8]) {
    let mut input = Input::new(data);
    let pair = &PAIRS[usize::from(input.byte()) % PAIRS.len()];
    let tokens: Vec<u32> =
        input.rest().chunks_exact(2).map(|two| u32::from(u16::from_le_bytes([two[0], two[1]]))).collect();
    for &token in &tokens {
        let _ = pair.ours.token_text(token);
        assert!(pair.ours.token_bytes(token).is_empty() || (token as usize) < pair.ours.vocab_size());
    }
    incremental(&pair.ours, &tokens, false);
    incremental(&pair.ours, &tokens, true);
}
