//! A `tokenizer.json` of the byte-level BPE shape, read without the `tokenizers` crate.

use rustc_hash::FxHashMap;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::borrow::{Borrow, Cow};
use std::fmt;

/// The parts of the file that matter here.
#[derive(Debug, Deserialize)]
pub(super) struct Description<'a> {
    #[serde(default)]
    pub(super) added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pub(super) normalizer: Value,
    #[serde(default)]
    pub(super) pre_tokenizer: Value,
    #[serde(default)]
    pub(super) post_processor: Value,
    #[serde(default)]
    pub(super) decoder: Value,
    #[serde(borrow)]
    pub(super) model: Bpe<'a>,
}

/// A token that is found in the text before anything else is done to it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct AddedToken {
    pub(super) id: u32,
    pub(super) content: String,
    #[serde(default)]
    pub(super) single_word: bool,
    #[serde(default)]
    pub(super) lstrip: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
    #[serde(default)]
    pub(super) normalized: bool,
    #[serde(default)]
    pub(super) special: bool,
}

/// A BPE model.
#[derive(Debug, Deserialize)]
pub(super) struct Bpe<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    pub(super) vocab: FxHashMap<Text<'a>, u32>,
    #[serde(borrow)]
    pub(super) merges: Vec<Merge<'a>>,
    unk_token: Option<String>,
    dropout: Option<f32>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    ignore_merges: Option<bool>,
}

/// A string of the file, borrowed from it unless it is written with escapes.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl Borrow<str> for Text<'_> {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// Two neighbours that become one, in either of the published spellings: `["a", "b"]` or `"a b"`.
#[derive(Debug)]
pub(super) enum Merge<'a> {
    Pair(Text<'a>, Text<'a>),
    Joined(Text<'a>),
}

impl<'de: 'a, 'a> Deserialize<'de> for Merge<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergeVisitor;
        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = Merge<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two strings, or one with a space")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Merge::Joined(Text(Cow::Borrowed(text))))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Merge::Joined(Text(Cow::Owned(text.to_owned()))))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Self::Value, A::Error> {
                let mut part = || parts.next_element()?.ok_or_else(|| Error::custom("a merge has two parts"));
                Ok(Merge::Pair(part()?, part()?))
            }
        }
        deserializer.deserialize_any(MergeVisitor)
    }
}

impl Merge<'_> {
    pub(super) fn parts(&self) -> Option<(&str, &str)> {
        match self {
            Self::Pair(left, right) => Some((&left.0, &right.0)),
            Self::Joined(text) => text.0.split_once(' '),
        }
    }
}

impl Bpe<'_> {
    /// Nothing beyond vocabulary and merges.
    pub(super) fn is_plain(&self) -> bool {
        let absent = |text: &Option<String>| text.as_deref().unwrap_or_default().is_empty();
        self.kind == "BPE"
            && self.dropout.unwrap_or(0.0) == 0.0
            && absent(&self.continuing_subword_prefix)
            && absent(&self.end_of_word_suffix)
    }

    /// Does text outside the vocabulary become a token of its own?
    pub(super) fn has_unknown_token(&self) -> bool {
        self.unk_token.is_some()
    }

    pub(super) fn ignore_merges(&self) -> bool {
        self.ignore_merges.unwrap_or(false)
    }
}

impl Description<'_> {
    /// What the post-processor puts before and behind a text; none if it does anything else.
    pub(super) fn affixes(&self) -> Option<(Vec<u32>, Vec<u32>)> {
        affixes(&self.post_processor)
    }
}

fn affixes(processor: &Value) -> Option<(Vec<u32>, Vec<u32>)> {
    if processor.is_null() {
        return Some(Default::default());
    }
    match processor.get("type")?.as_str()? {
        "ByteLevel" => Some(Default::default()),
        "Sequence" => {
            let (mut before, mut behind) = (Vec::new(), Vec::new());
            for processor in processor.get("processors")?.as_array()? {
                let (head, tail) = affixes(processor)?;
                // A later processor wraps what an earlier one made.
                before.splice(0..0, head);
                behind.extend(tail);
            }
            Some((before, behind))
        }
        "TemplateProcessing" => template_affixes(processor),
        _ => None,
    }
}

fn template_affixes(processor: &Value) -> Option<(Vec<u32>, Vec<u32>)> {
    let (mut before, mut behind) = (Vec::new(), Vec::new());
    let mut text_seen = false;
    for piece in processor.get("single")?.as_array()? {
        if piece.get("Sequence").is_some() {
            if text_seen {
                return None;
            }
            text_seen = true;
            continue;
        }
        let name = piece.get("SpecialToken")?.get("id")?.as_str()?;
        let ids = processor.get("special_tokens")?.get(name)?.get("ids")?.as_array()?;
        let side = if text_seen { &mut behind } else { &mut before };
        for id in ids {
            side.push(u32::try_from(id.as_u64()?).ok()?);
        }
    }
    text_seen.then_some((before, behind))
}
