//! What each token spells.

use dynamo_types::Error;
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};
use std::sync::Arc;

/// The vocabulary of one model as a tree of bytes.
#[derive(Clone)]
pub struct Vocabulary {
    pub(crate) environment: TokEnv,
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
        Ok(Self { environment: Arc::new(ApproximateTokEnv::new(tree)) })
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
