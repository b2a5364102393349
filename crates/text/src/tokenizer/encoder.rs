//! Our own encoder for byte-level BPE, which covers the models most people run. It gives the ids that the `tokenizers`
//! crate gives (held against it by property tests) in a fraction of the time.

use super::bytes::ByteTable;
use super::description::{AddedToken, Description};
use super::merges::{Merges, Scratch};
use super::repeats::{RepeatCounts, Repeats};
use super::words::{Words, is_surely_composed};
use rustc_hash::FxHashMap;
use serde_json::Value;

/// Bytes of text per token, roughly, to size the answer.
const BYTES_PER_TOKEN: usize = 4;

/// How many times longer in bytes a text may be before it is put into NFC: no character has a canonical decomposition
/// of more than three times its own length in UTF-8.
const NFC_SHRINKS: usize = 3;

#[derive(Debug)]
pub(super) struct Encoder {
    words: Words,
    /// Text is put into NFC first. Only text that already is in it is encoded here.
    composes: bool,
    /// Tokens found in the text as it is, and in what then remains.
    passes: [AddedTokens; 2],
    merges: Merges,
    before: Vec<u32>,
    behind: Vec<u32>,
    added_ids: FxHashMap<String, u32>,
    /// Of texts between tokens of the first pass: what is beside them has no influence on them.
    repeats: Repeats,
}

impl Encoder {
    /// None if the description has anything that is not covered here.
    pub(super) fn build(description: &Description<'_>, table: &ByteTable) -> Option<Self> {
        let composes = match description.normalizer.get("type").and_then(Value::as_str) {
            None if description.normalizer.is_null() => false,
            Some("NFC") => true,
            _ => return None,
        };
        let special_rules = |token: &AddedToken| {
            token.single_word
                || token.lstrip
                || token.rstrip
                || token.content.is_empty()
                || (composes && token.normalized && !token.content.is_ascii())
        };
        let added = &description.added_tokens;
        if !description.model.is_plain() || added.iter().any(special_rules) {
            return None;
        }
        let (before, behind) = description.affixes()?;
        let pass =
            |normalized: bool| AddedTokens::new(added.iter().filter(|token| token.normalized == normalized));
        Some(Self {
            words: Words::read(&description.pre_tokenizer)?,
            composes,
            passes: [pass(false), pass(true)],
            merges: Merges::build(&description.model, table)?,
            before,
            behind,
            added_ids: added.iter().map(|token| (token.content.clone(), token.id)).collect(),
            repeats: Repeats::default(),
        })
    }

    pub(super) fn take_repeat_counts(&self) -> RepeatCounts {
        self.repeats.take_counts()
    }

    /// None for text that would have to be normalised first.
    pub(super) fn encode(&self, text: &str, add_special: bool, table: &ByteTable) -> Option<Vec<u32>> {
        if self.composes && !is_surely_composed(text) {
            return None;
        }
        let mut out =
            Vec::with_capacity(text.len() / BYTES_PER_TOKEN + self.before.len() + self.behind.len());
        let mut scratch = Scratch::default();
        if add_special {
            out.extend_from_slice(&self.before);
        }
        self.passes[0].split(text, &mut |piece| match piece {
            Piece::Token(id) => out.push(id),
            Piece::Text(text) => self.repeats.encode(text, &mut out, |text, out| {
                self.encode_text(text, table, &mut scratch, out);
            }),
        });
        if add_special {
            out.extend_from_slice(&self.behind);
        }
        Some(out)
    }

    /// A text without tokens of the first pass.
    fn encode_text(&self, text: &str, table: &ByteTable, scratch: &mut Scratch, out: &mut Vec<u32>) {
        self.passes[1].split(text, &mut |piece| match piece {
            Piece::Token(id) => out.push(id),
            Piece::Text(text) => self.words.split(text, &mut |word| {
                self.merges.encode(word.as_bytes(), table, scratch, out);
            }),
        });
    }

    /// A number of tokens that `text` has at the least.
    pub(super) fn least_tokens(&self, text: &str, table: &ByteTable) -> usize {
        let shrinks = if self.composes { NFC_SHRINKS } else { 1 };
        self.merges.known_bytes(text).div_ceil(table.longest().max(1) * shrinks)
    }

    /// The id of a token in the vocabulary's spelling, given also as the bytes it stands for.
    pub(super) fn token_id(&self, token: &str, bytes: Option<&[u8]>, table: &ByteTable) -> Option<u32> {
        self.added_ids.get(token).copied().or_else(|| self.merges.token(bytes?, table))
    }
}

enum Piece<'t> {
    Text(&'t str),
    Token(u32),
}

/// Tokens to be found in a text: at the leftmost place the longest one.
#[derive(Debug)]
struct AddedTokens {
    /// By first byte.
    groups: FxHashMap<u8, Group>,
    is_first: Box<[bool; 256]>,
    /// The same as a list, while it is short enough for a vectorised search.
    firsts: Option<Firsts>,
}

/// Up to three bytes, some perhaps twice.
#[derive(Clone, Copy, Debug)]
struct Firsts([u8; 3]);

impl Firsts {
    fn of(bytes: impl Iterator<Item = u8>) -> Option<Self> {
        let bytes: Vec<u8> = bytes.take(4).collect();
        match bytes[..] {
            [a] => Some(Self([a, a, a])),
            [a, b] => Some(Self([a, b, b])),
            [a, b, c] => Some(Self([a, b, c])),
            _ => None,
        }
    }
}

/// Tokens with the same first byte.
#[derive(Debug, Default)]
struct Group {
    /// What all of them start with: most places that merely look like a token fail here.
    common: String,
    /// Longest first.
    tokens: Vec<(String, u32)>,
}

impl AddedTokens {
    fn new<'a>(tokens: impl Iterator<Item = &'a AddedToken>) -> Self {
        let mut added = Self { groups: FxHashMap::default(), is_first: Box::new([false; 256]), firsts: None };
        for token in tokens {
            let Some(&first) = token.content.as_bytes().first() else { continue };
            added.is_first[first as usize] = true;
            added.groups.entry(first).or_default().tokens.push((token.content.clone(), token.id));
        }
        for group in added.groups.values_mut() {
            group.tokens.sort_by_key(|(content, _)| std::cmp::Reverse(content.len()));
            let mut common = group.tokens.first().map(|(content, _)| content.clone()).unwrap_or_default();
            for (content, _) in &group.tokens {
                while !content.starts_with(&common) {
                    common.pop();
                }
            }
            group.common = common;
        }
        added.firsts = Firsts::of(added.groups.keys().copied());
        added
    }

    /// The next place from `at` on where a token may start.
    fn candidate(&self, bytes: &[u8], at: usize) -> Option<usize> {
        let rest = bytes.get(at..)?;
        let found = match self.firsts {
            _ if self.groups.is_empty() => None,
            Some(Firsts([a, b, c])) => memchr::memchr3(a, b, c, rest),
            None => rest.iter().position(|&byte| self.is_first[byte as usize]),
        };
        found.map(|offset| at + offset)
    }

    fn split<'t>(&self, text: &'t str, piece: &mut impl FnMut(Piece<'t>)) {
        let bytes = text.as_bytes();
        let mut done = 0;
        let mut at = 0;
        while let Some(start) = self.candidate(bytes, at) {
            at = start;
            match self.token_at(&bytes[at..]) {
                Some((len, id)) => {
                    if done < at {
                        piece(Piece::Text(&text[done..at]));
                    }
                    piece(Piece::Token(id));
                    at += len;
                    done = at;
                }
                None => at += 1,
            }
        }
        if done < bytes.len() {
            piece(Piece::Text(&text[done..]));
        }
    }

    fn token_at(&self, rest: &[u8]) -> Option<(usize, u32)> {
        let group = self.groups.get(rest.first()?)?;
        if !rest.starts_with(group.common.as_bytes()) {
            return None;
        }
        let found = group.tokens.iter().find(|(content, _)| rest.starts_with(content.as_bytes()));
        found.map(|(content, id)| (content.len(), *id))
    }
}
