//! A SentencePiece vocabulary of a GGUF file (`tokenizer.ggml.model = "llama"`) as the BPE of a `tokenizer.json`.
//!
//! SentencePiece joins, again and again, the two neighbours whose joined piece has the best score. So a piece is a merge of
//! every two pieces that it can be cut into, and merges rank by the score of what they make. What is in no piece is
//! spelled in bytes.

use crate::Error;
use crate::gguf::{File, Value};
use serde_json::{Value as Json, json};
use std::collections::HashMap;

const NORMAL: i64 = 1;
pub(crate) const UNKNOWN: i64 = 2;

/// Longest piece that is cut in two, in characters. Longer ones are not made of merges in any published vocabulary.
const MAX_PIECE_CHARS: usize = 256;

/// What stands for a space.
const SPACE: &str = "\u{2581}";

/// What is said of such a vocabulary besides its pieces.
pub(crate) struct SentencePiece<'a> {
    pub(crate) normalizer: Json,
    pub(crate) decoder: Json,
    pub(crate) unknown: Option<&'a str>,
    pub(crate) merges: Vec<(&'a str, &'a str)>,
}

/// # Errors
/// Says which key is missing or does not fit the others.
pub(crate) fn read<'a>(file: &File, tokens: &'a [String], kinds: &[i64]) -> Result<SentencePiece<'a>, Error> {
    const SCORES: &str = "tokenizer.ggml.scores";
    let scores = match file.value(SCORES) {
        Some(Value::Floats(scores)) => scores,
        Some(_) => return Err(Error::new(file.path(), SCORES, "an array of floats", "something else")),
        None => return Err(file.missing(SCORES)),
    };
    if scores.len() != tokens.len() {
        let expected = format!("one score for each of the {} tokens", tokens.len());
        return Err(Error::new(file.path(), SCORES, expected, scores.len()));
    }
    // As the format's first readers have it, a file that does not say adds the space.
    let prefixed = !matches!(file.value("tokenizer.ggml.add_space_prefix"), Some(Value::Bool(false)));
    let unknown = kinds.iter().position(|kind| *kind == UNKNOWN).and_then(|id| tokens.get(id));
    Ok(SentencePiece {
        normalizer: normalizer(prefixed),
        decoder: decoder(prefixed),
        unknown: unknown.map(String::as_str),
        merges: merges(tokens, kinds, scores),
    })
}

fn normalizer(prefixed: bool) -> Json {
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    match prefixed {
        true => json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, replace]}),
        false => replace,
    }
}

fn decoder(prefixed: bool) -> Json {
    let mut steps = vec![
        json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefixed {
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": steps})
}

/// The pairs that make a piece, best first.
fn merges<'a>(tokens: &'a [String], kinds: &[i64], scores: &[f32]) -> Vec<(&'a str, &'a str)> {
    let is_normal = |id: usize| kinds.get(id).is_none_or(|kind| *kind == NORMAL);
    let pieces: HashMap<&str, usize> = tokens
        .iter()
        .enumerate()
        .filter(|(id, _)| is_normal(*id))
        .map(|(id, text)| (text.as_str(), id))
        .collect();
    let mut found = Vec::new();
    for (id, text) in tokens.iter().enumerate().filter(|(id, _)| is_normal(*id)) {
        let cuts = text.char_indices().skip(1).take(MAX_PIECE_CHARS);
        for (left_chars, (cut, _)) in (1_usize..).zip(cuts) {
            let (left, right) = text.split_at(cut);
            if pieces.contains_key(left) && pieces.contains_key(right) {
                let score = scores.get(id).copied().unwrap_or(f32::NEG_INFINITY);
                found.push((score, left_chars, (left, right)));
            }
        }
    }
    // Of one piece's cuts the one with the longest left part comes first.
    found.sort_by(|(one, one_chars, _), (other, other_chars, _)| {
        other.total_cmp(one).then(other_chars.cmp(one_chars))
    });
    found.into_iter().map(|(_, _, pair)| pair).collect()
}
