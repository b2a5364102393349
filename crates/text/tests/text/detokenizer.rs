//! Incremental detokenization against decoding at once, and against the `tokenizers` crate's own decoder.

use crate::support::{any_text, byte_fallback_json, byte_level_json, bytes, hugging_face};
use dynamo_text::{Detokenizer, TokenTable, Tokenizer};
use dynamo_types::TokenizerSpec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::sync::{Arc, LazyLock};

static BYTE_LEVEL: LazyLock<String> = LazyLock::new(|| byte_level_json(None, None));
static BYTE_LEVEL_OURS: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| hugging_face(&BYTE_LEVEL));
static BYTE_LEVEL_THEIRS: LazyLock<tokenizers::Tokenizer> = LazyLock::new(|| BYTE_LEVEL.parse().unwrap());
static FALLBACK: LazyLock<String> = LazyLock::new(byte_fallback_json);
static FALLBACK_OURS: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| hugging_face(&FALLBACK));
static FALLBACK_THEIRS: LazyLock<tokenizers::Tokenizer> = LazyLock::new(|| FALLBACK.parse().unwrap());

fn chunks(tokenizer: &Arc<Tokenizer>, tokens: &[u32], skip_special: bool) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer), skip_special);
    let mut chunks = Vec::new();
    for &token in tokens {
        let mut text = String::new();
        detokenizer.push(token, &mut text);
        chunks.push(text);
    }
    let mut text = String::new();
    detokenizer.finish(&mut text);
    chunks.push(text);
    chunks.retain(|chunk| !chunk.is_empty());
    chunks
}

const PARAGRAPH: &str =
    "Hello, 안녕하세요 세계! 😀 mixed 👨‍👩‍👧‍👦 text, 한국어 문장과 emoji 🎉🇰🇷, plain ASCII again. 끝.";

#[test]
fn r01_an_emoji_in_four_pieces_is_whole() {
    let tokenizer = bytes(&[]);
    let chunks = chunks(&tokenizer, &[0xF0, 0x9F, 0x98, 0x80, 0x41], true);
    assert_eq!(chunks, ["😀", "A"]);
}

#[test]
fn r01_two_hundred_random_splits() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for _ in 0..200 {
        let cuts =
            prop::collection::btree_set(1..PARAGRAPH.len(), 0..60).new_tree(&mut runner).unwrap().current();
        let mut pieces: Vec<&[u8]> = Vec::new();
        let mut start = 0;
        for end in cuts.into_iter().chain([PARAGRAPH.len()]) {
            pieces.push(&PARAGRAPH.as_bytes()[start..end]);
            start = end;
        }
        let tokenizer = bytes(&pieces);
        let tokens: Vec<u32> = (256..256 + pieces.len() as u32).collect();
        let chunks = chunks(&tokenizer, &tokens, true);
        assert!(chunks.iter().all(|chunk| !chunk.contains('\u{FFFD}')));
        assert_eq!(chunks.concat(), PARAGRAPH);
    }
}

#[test]
fn leading_space_is_stripped_once_and_only_at_the_start() {
    let id = |token: &str| FALLBACK_OURS.token_id(token).unwrap();
    let tokens =
        [id("<s>"), id("▁h"), id("e"), id("▁w"), id("<0x20>"), id("<0xEC>"), id("<0x84>"), id("<0xB8>")];
    assert_eq!(chunks(&FALLBACK_OURS, &tokens, true).concat(), "he w 세");
    assert_eq!(chunks(&FALLBACK_OURS, &tokens, false).concat(), "<s> he w 세");
    assert_eq!(FALLBACK_OURS.decode(&tokens, true), "he w 세");
}

#[test]
fn unknown_ids_have_no_text() {
    assert_eq!(BYTE_LEVEL_OURS.token_bytes(u32::MAX), b"");
    assert_eq!(BYTE_LEVEL_OURS.token_bytes(BYTE_LEVEL_OURS.vocab_size() as u32), b"");
    assert!(!BYTE_LEVEL_OURS.is_special(u32::MAX));
    let end = BYTE_LEVEL_OURS.token_id("<|end|>").unwrap();
    assert!(BYTE_LEVEL_OURS.is_special(end));
    assert_eq!(BYTE_LEVEL_OURS.token_text(end), "<|end|>");
}

#[test]
fn broken_descriptions_are_errors() {
    use dynamo_types::TokenizerSpec;
    for json in ["", "{}", "{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}"] {
        let error = Tokenizer::from_spec(&TokenizerSpec::HuggingFace { json: json.into() }).unwrap_err();
        assert!(error.detail().unwrap().starts_with("tokenizer.json"), "{error:?}");
    }
    let huge = BYTE_LEVEL.replacen("\"!\":0", "\"!\":4000000000", 1);
    let error = Tokenizer::from_spec(&TokenizerSpec::HuggingFace { json: huge.into() }).unwrap_err();
    assert!(error.detail().unwrap().contains("limit"), "{error:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn r01_joined_chunks_equal_decoding_at_once(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5), 0..40),
    ) {
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        let tokenizer = bytes(&pieces);
        let tokens: Vec<u32> = (256..256 + pieces.len() as u32).collect();
        let whole = pieces.concat();
        let expected = String::from_utf8_lossy(&whole);
        prop_assert_eq!(chunks(&tokenizer, &tokens, true).concat(), expected.as_ref());
        prop_assert_eq!(tokenizer.decode(&tokens, true), expected);
    }

    #[test]
    fn r01_byte_level_equals_the_tokenizers_crate_on_any_ids(
        tokens in prop::collection::vec(0u32..905, 0..40), skip in any::<bool>(),
    ) {
        let expected = BYTE_LEVEL_THEIRS.decode(&tokens, skip).unwrap();
        prop_assert_eq!(chunks(&BYTE_LEVEL_OURS, &tokens, skip).concat(), expected.as_str());
        prop_assert_eq!(BYTE_LEVEL_OURS.decode(&tokens, skip), expected);
    }

    #[test]
    fn r01_text_survives_the_round_trip(text in any_text()) {
        let tokens = BYTE_LEVEL_OURS.encode(&text, false).unwrap();
        prop_assert_eq!(chunks(&BYTE_LEVEL_OURS, &tokens, false).concat(), text);
    }

    #[test]
    fn r01_byte_fallback_equals_the_tokenizers_crate_on_text(text in "[a-z ,.!세계😀é]{0,20}") {
        let tokens = FALLBACK_OURS.encode(&text, false).unwrap();
        let expected = FALLBACK_THEIRS.decode(&tokens, true).unwrap();
        prop_assert_eq!(chunks(&FALLBACK_OURS, &tokens, true).concat(), expected.as_str());
        prop_assert_eq!(FALLBACK_OURS.decode(&tokens, true), expected);
    }
}

/// The table alone says what the whole tokenizer says, of every shape.
#[test]
fn a_table_is_the_tokenizers_own() {
    let json = |json: String| TokenizerSpec::HuggingFace { json: json.into() };
    for spec in [
        TokenizerSpec::Bytes { pieces: vec![b"ab".to_vec(), vec![0xff]] },
        json(byte_level_json(None, None)),
        json(byte_fallback_json()),
    ] {
        let (table, whole) = (TokenTable::from_spec(&spec).unwrap(), Tokenizer::from_spec(&spec).unwrap());
        for id in 0..whole.vocab_size() as u32 + 2 {
            assert_eq!(table.bytes(id), whole.token_bytes(id), "{id}");
            assert_eq!(table.is_special(id), whole.is_special(id), "{id}");
        }
    }
    let broken = TokenTable::from_spec(&json("{".into())).unwrap_err();
    assert!(broken.detail().unwrap().starts_with("tokenizer.json"), "{broken:?}");
}
