//! Text to token ids, and the table from ids to bytes that everything on the way out reads.

mod bytes;
mod description;
mod encoder;
mod merges;
mod repeats;
mod table;
mod words;

pub use table::TokenTable;

use bytes::{ByteTable, byte_level_bytes};
use description::Description;
use dynamo_types::{Error, TokenizerSpec};
use encoder::Encoder;
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

/// A model's tokenizer. Shared between requests; all methods are `&self`.
#[derive(Debug)]
pub struct Tokenizer {
    table: ByteTable,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// One id per byte; `pieces` finds the id of a longer piece.
    Bytes { pieces: FxHashMap<Vec<u8>, u32> },
    /// Byte-level BPE in our own encoder. What that does not take (text outside NFC) goes to the `tokenizers` crate,
    /// which is loaded when it is first needed.
    ByteLevel {
        encoder: Box<Encoder>,
        json: Arc<str>,
        theirs: OnceLock<Result<Box<tokenizers::Tokenizer>, Error>>,
    },
    /// Every other shape.
    HuggingFace(Box<tokenizers::Tokenizer>),
}

impl Tokenizer {
    /// Reads the tokenizer of a model card.
    ///
    /// # Errors
    /// An internal error whose detail says what in the description is broken or not supported.
    pub fn from_spec(spec: &TokenizerSpec) -> Result<Self, Error> {
        match spec {
            TokenizerSpec::Bytes { pieces } => Ok(Self {
                table: ByteTable::from_pieces(pieces),
                kind: Kind::Bytes {
                    pieces: pieces.iter().zip(256..).map(|(piece, id)| (piece.clone(), id)).collect(),
                },
            }),
            TokenizerSpec::HuggingFace { json } => match Self::byte_level(json) {
                Some(tokenizer) => Ok(tokenizer),
                None => Self::hugging_face(json),
            },
        }
    }

    fn byte_level(json: &Arc<str>) -> Option<Self> {
        let description: Description<'_> = serde_json::from_str(json).ok()?;
        let vocabulary = description.model.vocab.iter().map(|(token, id)| (token.0.as_ref(), *id));
        let added =
            description.added_tokens.iter().map(|token| (token.id, token.content.as_str(), token.special));
        let table = ByteTable::from_vocabulary(vocabulary, added, &description.decoder).ok()?;
        let encoder = Box::new(Encoder::build(&description, &table)?);
        Some(Self {
            table,
            kind: Kind::ByteLevel { encoder, json: Arc::clone(json), theirs: OnceLock::new() },
        })
    }

    fn hugging_face(json: &str) -> Result<Self, Error> {
        let inner = load(json)?;
        let decoder = serde_json::to_value(inner.get_decoder())
            .map_err(|error| Error::internal(format!("tokenizer.json, decoder: {error}")))?;
        let vocabulary = inner.get_vocab(true);
        let added = inner.get_added_tokens_decoder();
        let table = ByteTable::from_vocabulary(
            vocabulary.iter().map(|(token, id)| (token.as_str(), *id)),
            added.iter().map(|(id, token)| (*id, token.content.as_str(), token.special)),
            &decoder,
        )?;
        Ok(Self { table, kind: Kind::HuggingFace(inner) })
    }

    /// Token ids of `text`. Special tokens spelled in the text become their ids. `add_special` lets the tokenizer's
    /// own post-processor add what it adds to every prompt (often a begin token, so the caller adds none): for plain
    /// prompts, not for rendered chat templates, which spell it themselves.
    ///
    /// # Errors
    /// An internal error, should the tokenizer refuse the text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, Error> {
        match &self.kind {
            Kind::Bytes { .. } => Ok(text.bytes().map(u32::from).collect()),
            Kind::ByteLevel { encoder, json, theirs } => match encoder.encode(text, add_special, &self.table)
            {
                Some(tokens) => Ok(tokens),
                None => match theirs.get_or_init(|| load(json)) {
                    Ok(theirs) => encode(theirs, text, add_special),
                    Err(error) => Err(error.clone()),
                },
            },
            Kind::HuggingFace(inner) => encode(inner, text, add_special),
        }
    }

    /// A number of tokens that `text` has at the least, found without looking for them: a token stands for so many bytes
    /// at most. 0 where nothing is known: a tokenizer may drop characters, or make one token of many unknown ones.
    pub fn least_tokens(&self, text: &str) -> usize {
        match &self.kind {
            Kind::Bytes { .. } => text.len(),
            Kind::ByteLevel { encoder, .. } => encoder.least_tokens(text, &self.table),
            Kind::HuggingFace(_) => 0,
        }
    }

    /// Text of a whole token sequence; broken UTF-8 becomes U+FFFD.
    pub fn decode(&self, tokens: &[u32], skip_special: bool) -> String {
        let mut bytes = Vec::with_capacity(tokens.len() * 4);
        for &token in tokens {
            if !(skip_special && self.is_special(token)) {
                bytes.extend_from_slice(self.token_bytes(token));
            }
        }
        let spaces =
            bytes.iter().take(self.leading_spaces_stripped()).take_while(|&&byte| byte == b' ').count();
        String::from_utf8_lossy(&bytes[spaces..]).into_owned()
    }

    /// The bytes a token stands for; empty for ids outside the vocabulary.
    pub fn token_bytes(&self, token: u32) -> &[u8] {
        self.table.bytes(token)
    }

    /// The same as text, lossy where the token is a piece of a character.
    pub fn token_text(&self, token: u32) -> String {
        match String::from_utf8_lossy(self.token_bytes(token)) {
            Cow::Borrowed(text) => text.to_owned(),
            Cow::Owned(text) => text,
        }
    }

    pub fn is_special(&self, token: u32) -> bool {
        self.table.is_special(token)
    }

    /// The largest id plus one.
    pub fn vocab_size(&self) -> usize {
        self.table.len()
    }

    /// The id of exactly this token, as the vocabulary spells it.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        match &self.kind {
            Kind::Bytes { pieces } => match token.as_bytes() {
                &[byte] => Some(u32::from(byte)),
                bytes => pieces.get(bytes).copied(),
            },
            Kind::ByteLevel { encoder, .. } => {
                encoder.token_id(token, byte_level_bytes(token).as_deref(), &self.table)
            }
            Kind::HuggingFace(inner) => inner.token_to_id(token),
        }
    }

    /// Does our own encoder take this tokenizer's text, rather than the `tokenizers` crate?
    pub fn is_native(&self) -> bool {
        !matches!(self.kind, Kind::HuggingFace(_))
    }

    /// How many spaces are taken off the very start of a decoded text.
    pub(crate) fn leading_spaces_stripped(&self) -> usize {
        self.table.leading_spaces_stripped()
    }
}

fn load(json: &str) -> Result<Box<tokenizers::Tokenizer>, Error> {
    let mut inner: tokenizers::Tokenizer =
        json.parse().map_err(|error| Error::internal(format!("tokenizer.json: {error}")))?;
    inner
        .with_truncation(None)
        .map_err(|error| Error::internal(format!("tokenizer.json, truncation: {error}")))?;
    inner.with_padding(None);
    Ok(Box::new(inner))
}

fn encode(inner: &tokenizers::Tokenizer, text: &str, add_special: bool) -> Result<Vec<u32>, Error> {
    inner
        .encode_fast(text, add_special)
        .map(|encoding| encoding.get_ids().to_vec())
        .map_err(|error| Error::internal(format!("tokenizer: {error}")))
}
