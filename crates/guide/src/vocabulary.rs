//! What each token spells.

use dynamo_types::Error;
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};
use std::sync::Arc;

/// The vocabulary of one model as a tree of bytes.
#[derive(Clone)]
pub struct Vocabulary {
    pub(crate) environment: TokEnv,
    pub(crate) special: Special,
}

/// Tokens that stand for themselves and not for text, as markers around an answer do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Special {
    /// Longest name first.
    names: Vec<(String, u32)>,
    eos: Vec<u32>,
}

/// A piece of a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    Text(&'a str),
    Token(u32),
}

impl Special {
    /// Those that do not end an answer.
    pub(crate) fn inner(&self) -> impl Iterator<Item = u32> + '_ {
        self.names.iter().map(|&(_, id)| id).filter(|id| !self.eos.contains(id))
    }

    /// Cuts a marker into its special tokens and the text between them.
    pub(crate) fn pieces<'a>(&self, marker: &'a str) -> Vec<Piece<'a>> {
        let (mut pieces, mut rest) = (Vec::new(), marker);
        while !rest.is_empty() {
            let found =
                self.names.iter().filter_map(|(name, id)| Some((rest.find(name.as_str())?, name, *id)));
            // Of those that begin at one place the longest comes first, and stays.
            let Some((at, name, id)) = found.min_by_key(|(at, ..)| *at) else { break };
            let (before, after) = rest.split_at(at);
            if !before.is_empty() {
                pieces.push(Piece::Text(before));
            }
            pieces.push(Piece::Token(id));
            rest = after.get(name.len()..).unwrap_or_default();
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest));
        }
        pieces
    }
}

impl Vocabulary {
    /// `bytes` tells what an id below `size` spells; empty for ids that no grammar may use: those the model does not have,
    /// and special tokens. `eos` are the ids that may follow a complete answer.
    ///
    /// # Errors
    /// `engine` for an end token outside the vocabulary.
    pub fn new(size: u32, eos: &[u32], mut bytes: impl FnMut(u32) -> Vec<u8>) -> Result<Self, Error> {
        if let Some(id) = eos.iter().find(|&&id| id >= size) {
            return Err(Error::engine(format!("end token {id} is outside the vocabulary of {size} tokens")));
        }
        let words: Vec<Vec<u8>> = (0..size)
            .map(|id| {
                let word = bytes(id);
                // 0xFF is in no text; the tree would take it for the start of a special token.
                if word.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) { Vec::new() } else { word }
            })
            .collect();
        let info = TokRxInfo::new(size, eos.first().copied().unwrap_or(INVALID_TOKEN));
        let mut tree = TokTrie::from(&info, &words);
        if !eos.is_empty() {
            tree = tree.with_eos_tokens(eos);
        }
        let special = Special { names: Vec::new(), eos: eos.to_vec() };
        Ok(Self { environment: Arc::new(ApproximateTokEnv::new(tree)), special })
    }

    /// With the names of special tokens, so that the markers of a frame can be written with them.
    #[must_use]
    pub fn with_special(mut self, names: impl IntoIterator<Item = (u32, String)>) -> Self {
        let size = self.size();
        let names = names.into_iter().filter(|(id, name)| !name.is_empty() && (*id as usize) < size);
        self.special.names = names.map(|(id, name)| (name, id)).collect();
        self.special.names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        self
    }

    /// Ids, those that spell nothing included.
    pub fn size(&self) -> usize {
        self.environment.tok_trie().vocab_size()
    }
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("size", &self.size()).finish()
    }
}
