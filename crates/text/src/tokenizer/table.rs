//! What the ids of a tokenizer stand for, without the part that finds the ids of a text.

use super::Tokenizer;
use super::bytes::ByteTable;
use super::description::{AddedToken, Text};
use dynamo_types::{Error, TokenizerSpec};
use rustc_hash::FxHashMap;
use serde::Deserialize;
use serde_json::Value;

/// The bytes of each token of a model. It is built from the same description as a [`Tokenizer`] in a fraction of the time
/// and the memory, for those who only look at tokens.
#[derive(Debug)]
pub struct TokenTable(ByteTable);

impl TokenTable {
    /// Reads the table of a model card's tokenizer. Faults in what only [`Tokenizer`] uses may go unseen.
    ///
    /// # Errors
    /// As [`Tokenizer::from_spec`].
    pub fn from_spec(spec: &TokenizerSpec) -> Result<Self, Error> {
        let known = match spec {
            TokenizerSpec::Bytes { pieces } => Some(ByteTable::from_pieces(pieces)),
            TokenizerSpec::HuggingFace { json } => read(json),
        };
        match known {
            Some(table) => Ok(Self(table)),
            None => Tokenizer::from_spec(spec).map(|tokenizer| Self(tokenizer.table)),
        }
    }

    /// The bytes a token stands for; empty for ids outside the vocabulary.
    pub fn bytes(&self, token: u32) -> &[u8] {
        self.0.bytes(token)
    }

    pub fn is_special(&self, token: u32) -> bool {
        self.0.is_special(token)
    }
}

/// The parts of a `tokenizer.json` that say what tokens are.
#[derive(Deserialize)]
struct Description<'a> {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    decoder: Value,
    #[serde(borrow)]
    model: Model<'a>,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    vocab: FxHashMap<Text<'a>, u32>,
}

/// `None`: another shape, which the whole tokenizer has to be built for.
fn read(json: &str) -> Option<ByteTable> {
    let Description { added_tokens, decoder, model } = serde_json::from_str(json).ok()?;
    if model.kind != "BPE" {
        return None;
    }
    let vocabulary = model.vocab.iter().map(|(token, id)| (token.0.as_ref(), *id));
    let added = added_tokens.iter().map(|token| (token.id, token.content.as_str(), token.special));
    ByteTable::from_vocabulary(vocabulary, added, &decoder).ok()
}
