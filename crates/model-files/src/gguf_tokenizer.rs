//! GGUF's tokenizer metadata as a Hugging Face `tokenizer.json`: byte-level BPE, and SentencePiece's of the kind "llama".
//!
//! GGUF stores the vocabulary and the merges, but names the rule that cuts text into words only by a keyword
//! (`tokenizer.ggml.pre`). The patterns behind the keywords are those that the models publish themselves.

use crate::Error;
use crate::error::quoted;
use crate::files::Description;
use crate::gguf::{File, Value};
use crate::gguf_sentencepiece::{self as sentencepiece, SentencePiece, UNKNOWN};
use dynamo_types::SpecialTokens;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Value as Json, json};
use std::sync::Arc;

const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// Control tokens that end an answer whatever `eos_token_id` says: chat models have one for the turn and one for the
/// document, and the metadata names only one of them.
const END_TOKENS: [&str; 6] =
    ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "<|end|>"];

const LLAMA_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Mistral's Tekken: words by case, every digit alone.
const TEKKEN_WORDS: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// DeepSeek V3: three cuts one after the other.
const DEEPSEEK_WORDS: [&str; 3] = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];

/// How text is cut before merges apply.
struct Words {
    normalizer: Json,
    pre_tokenizer: Json,
    /// A word that is in the vocabulary is taken whole.
    ignore_merges: bool,
}

/// How text becomes pieces.
enum Way<'a> {
    ByteLevel(Words),
    SentencePiece(SentencePiece<'a>),
}

fn byte_level(use_regex: bool) -> Json {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn words(pre: &str) -> Option<Words> {
    let splits = |patterns: &[&str]| {
        let split = |pattern: &&str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        let list: Vec<Json> = patterns.iter().map(split).chain([byte_level(false)]).collect();
        json!({"type": "Sequence", "pretokenizers": list})
    };
    let split = |pattern: &str| splits(&[pattern]);
    let plain = |pre_tokenizer| Words { normalizer: Json::Null, pre_tokenizer, ignore_merges: false };
    Some(match pre {
        "gpt-2" | "gpt2" | "default" => plain(byte_level(true)),
        "smollm" => plain(json!({"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true},
            byte_level(true),
        ]})),
        "llama-bpe" | "llama3" | "llama-v3" | "smaug-bpe" | "dbrx" | "falcon3" => {
            Words { ignore_merges: true, ..plain(split(LLAMA_WORDS)) }
        }
        "qwen2" => Words { normalizer: json!({"type": "NFC"}), ..plain(split(QWEN_WORDS)) },
        // The same cuts, in vocabularies that do not ask for NFC.
        "deepseek-r1-qwen" => plain(split(QWEN_WORDS)),
        "tekken" => Words { ignore_merges: true, ..plain(split(TEKKEN_WORDS)) },
        "deepseek-v3" => plain(splits(&DEEPSEEK_WORDS)),
        _ => return None,
    })
}

/// Tokenizer, chat template and special tokens.
pub(crate) fn describe(file: &File, vocab_size: usize) -> Result<Description, Error> {
    let model = file.text("tokenizer.ggml.model").ok_or_else(|| file.missing("tokenizer.ggml.model"))?;
    if !matches!(model, "gpt2" | "llama") {
        let expected = "\"gpt2\" (byte-level BPE) or \"llama\" (SentencePiece)";
        return Err(Error::new(file.path(), "tokenizer.ggml.model", expected, quoted(model)));
    }
    let tokens = texts(file, "tokenizer.ggml.tokens")?;
    if tokens.len() > vocab_size {
        let expected = format!("at most the {vocab_size} rows of token_embd.weight");
        return Err(Error::new(file.path(), "tokenizer.ggml.tokens", expected, tokens.len()));
    }
    let kinds: &[i64] = match file.value("tokenizer.ggml.token_type") {
        Some(Value::Integers(kinds)) => kinds,
        _ => &[],
    };
    let (way, bos_is_customary) = match model {
        "llama" => (Way::SentencePiece(sentencepiece::read(file, tokens, kinds)?), true),
        _ => {
            let words = named_words(file)?;
            let bos_is_customary = words.ignore_merges;
            (Way::ByteLevel(words), bos_is_customary)
        }
    };
    let special = special_tokens(file, tokens, kinds, bos_is_customary)?;
    let tokenizer = tokenizer(file, tokens, kinds, way, &special)?;
    let json = serde_json::to_string(&tokenizer)
        .map_err(|error| Error::new(file.path(), "tokenizer", "to write it as JSON", error))?;
    Ok(Description {
        tokenizer_json: Arc::from(json),
        chat_template: file.text("tokenizer.chat_template").map(str::to_owned),
        special,
    })
}

fn named_words(file: &File) -> Result<Words, Error> {
    let pre = file.text("tokenizer.ggml.pre").unwrap_or("default");
    words(pre).ok_or_else(|| {
        let expected = "one of: smollm, llama-bpe, qwen2, gpt-2, default, tekken, deepseek-v3, deepseek-r1-qwen, smaug-bpe, dbrx, falcon3";
        Error::new(file.path(), "tokenizer.ggml.pre", expected, quoted(pre))
    })
}

fn texts<'a>(file: &'a File, key: &str) -> Result<&'a [String], Error> {
    match file.value(key) {
        Some(Value::Texts(texts)) => Ok(texts),
        Some(_) => Err(Error::new(file.path(), key, "an array of texts", "something else")),
        None => Err(file.missing(key)),
    }
}

fn token_id(file: &File, key: &str, tokens: &[String]) -> Result<Option<u32>, Error> {
    let Some(id) = file.integer(key)? else { return Ok(None) };
    if id >= tokens.len() {
        return Err(Error::new(file.path(), key, format!("below {}", tokens.len()), id));
    }
    Ok(Some(id as u32))
}

fn special_tokens(
    file: &File,
    tokens: &[String],
    kinds: &[i64],
    bos_is_customary: bool,
) -> Result<SpecialTokens, Error> {
    let bos = token_id(file, "tokenizer.ggml.bos_token_id", tokens)?;
    let first_eos = token_id(file, "tokenizer.ggml.eos_token_id", tokens)?;
    let mut eos: Vec<u32> = first_eos.into_iter().collect();
    eos.extend(token_id(file, "tokenizer.ggml.eot_token_id", tokens)?);
    let controls = kinds.iter().zip(tokens).enumerate().filter(|(_, (kind, _))| **kind == CONTROL);
    eos.extend(
        controls.filter(|(_, (_, text))| END_TOKENS.contains(&text.as_str())).map(|(id, _)| id as u32),
    );
    let mut seen = Vec::new();
    eos.retain(|id| {
        !seen.contains(id) && {
            seen.push(*id);
            true
        }
    });
    let text = |id: Option<u32>| id.and_then(|id| tokens.get(id as usize)).cloned();
    let add_bos = match file.value("tokenizer.ggml.add_bos_token") {
        Some(Value::Bool(add)) => *add,
        _ => bos_is_customary,
    };
    Ok(SpecialTokens {
        bos,
        eos,
        bos_text: text(bos),
        eos_text: text(first_eos),
        add_bos: add_bos && bos.is_some(),
    })
}

#[derive(Serialize)]
struct Tokenizer<'a> {
    version: &'static str,
    truncation: (),
    padding: (),
    added_tokens: Vec<AddedToken<'a>>,
    normalizer: Json,
    pre_tokenizer: Json,
    post_processor: Json,
    decoder: Json,
    model: Model<'a>,
}

#[derive(Serialize)]
struct AddedToken<'a> {
    id: usize,
    content: &'a str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

#[derive(Serialize)]
struct Model<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    dropout: (),
    unk_token: Option<&'a str>,
    continuing_subword_prefix: (),
    end_of_word_suffix: (),
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    #[serde(serialize_with = "vocabulary")]
    vocab: &'a [String],
    merges: Vec<(&'a str, &'a str)>,
}

fn vocabulary<S: Serializer>(tokens: &&[String], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(tokens.len()))?;
    for (id, token) in tokens.iter().enumerate() {
        map.serialize_entry(token, &id)?;
    }
    map.end()
}

fn listed_merges(file: &File) -> Result<Vec<(&str, &str)>, Error> {
    let mut merges = Vec::new();
    for merge in texts(file, "tokenizer.ggml.merges")? {
        let pair = merge.split_once(' ').filter(|(left, right)| !left.is_empty() && !right.is_empty());
        merges.push(pair.ok_or_else(|| {
            Error::new(file.path(), "tokenizer.ggml.merges", "two parts with a space between", quoted(merge))
        })?);
    }
    Ok(merges)
}

fn tokenizer<'a>(
    file: &'a File,
    tokens: &'a [String],
    kinds: &[i64],
    way: Way<'a>,
    special: &SpecialTokens,
) -> Result<Tokenizer<'a>, Error> {
    let is_byte_level = matches!(way, Way::ByteLevel(_));
    let (words, decoder, unknown, merges) = match way {
        Way::ByteLevel(words) => (words, byte_level(true), None, listed_merges(file)?),
        Way::SentencePiece(SentencePiece { normalizer, decoder, unknown, merges }) => {
            (Words { normalizer, pre_tokenizer: Json::Null, ignore_merges: false }, decoder, unknown, merges)
        }
    };
    let added = |(id, content): (usize, &'a String)| {
        let kind = kinds.get(id).copied()?;
        matches!(kind, CONTROL | USER_DEFINED | UNKNOWN).then(|| AddedToken {
            id,
            content,
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: kind != USER_DEFINED,
        })
    };
    let post_processor = match (&special.bos_text, special.bos) {
        (Some(text), Some(id)) if special.add_bos => starting_with(text, id),
        _ if is_byte_level => byte_level(true),
        _ => Json::Null,
    };
    Ok(Tokenizer {
        version: "1.0",
        truncation: (),
        padding: (),
        added_tokens: tokens.iter().enumerate().filter_map(added).collect(),
        normalizer: words.normalizer,
        pre_tokenizer: words.pre_tokenizer,
        post_processor,
        decoder,
        model: Model {
            kind: "BPE",
            dropout: (),
            unk_token: unknown,
            continuing_subword_prefix: (),
            end_of_word_suffix: (),
            fuse_unk: !is_byte_level,
            byte_fallback: !is_byte_level,
            ignore_merges: words.ignore_merges,
            vocab: tokens,
            merges,
        },
    })
}

/// Every text starts with one token.
fn starting_with(text: &str, id: u32) -> Json {
    let bos = json!({"SpecialToken": {"id": text, "type_id": 0}});
    let second_bos = json!({"SpecialToken": {"id": text, "type_id": 1}});
    let sequence = |name: &str, type_id: u32| json!({"Sequence": {"id": name, "type_id": type_id}});
    json!({
        "type": "TemplateProcessing",
        "single": [bos, sequence("A", 0)],
        "pair": [bos, sequence("A", 0), second_bos, sequence("B", 1)],
        "special_tokens": {text: {"id": text, "ids": [id], "tokens": [text]}},
    })
}
