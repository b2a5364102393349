//! What a selection is about: a prompt as its length and the chained hashes of its complete blocks, however the caller
//! gave it.

use super::input::Input;
use crate::model::Model;
use crate::prepare::{self, Spent};
use crate::shared::Shared;
use dynamo_types::hash::{Scope, local_hashes, sequence_hashes};
use dynamo_types::{Error, Result};
use std::sync::Arc;

/// A prompt as the router sees it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Prompt {
    /// In tokens.
    pub(super) length: u32,
    /// Of its complete blocks.
    pub(super) sequences: Arc<[u64]>,
    pub(super) block_size: u32,
}

/// The ways to give one.
const WAYS: &str = "token_ids, block_hashes, sequence_hashes, prompt";

impl Prompt {
    /// # Errors
    /// 400 for none or several ways at once, for lengths that contradict, and for hashes with what they already
    /// contain; as [`Model::usable`] for texts.
    pub(super) fn of(shared: &Shared, model: &Model, input: &Input) -> Result<Self> {
        let block_size = model.router.block_size().unwrap_or(model.card.blocks.block_size).max(1);
        let given = [
            input.token_ids.is_some(),
            input.block_hashes.is_some(),
            input.sequence_hashes.is_some(),
            input.prompt.is_some(),
        ];
        if given.into_iter().filter(|given| *given).count() != 1 {
            return Err(Error::invalid(format!("exactly one of {WAYS} is needed")));
        }
        if let Some(text) = &input.prompt {
            let mut spent = Spent::default();
            let tokens = prepare::encode(model, model.usable()?, text, true, &mut spent)?;
            spent.observe(&shared.metrics);
            return Self::of_tokens(&tokens, block_size, input);
        }
        if let Some(tokens) = &input.token_ids {
            return Self::of_tokens(tokens, block_size, input);
        }
        if let Some(field) = [("lora_name", &input.lora_name), ("cache_salt", &input.cache_salt)]
            .into_iter()
            .find_map(|(field, value)| value.as_ref().is_some_and(|value| !value.is_empty()).then_some(field))
        {
            return Err(Error::invalid(format!(
                "{field} is part of the hashes already; give token_ids with it"
            )));
        }
        let sequences = match (&input.block_hashes, &input.sequence_hashes) {
            (Some(locals), _) => sequence_hashes(locals),
            (None, sequences) => sequences.clone().unwrap_or_default(),
        };
        let covered = sequences.len() as u64 * u64::from(block_size);
        let length = input.isl_tokens.map_or(covered, u64::from);
        if length < covered || length - covered >= u64::from(block_size) {
            return Err(Error::invalid(format!(
                "isl_tokens must be between {covered} and {} for {} blocks of {block_size} tokens, found {length}",
                covered + u64::from(block_size) - 1,
                sequences.len()
            )));
        }
        Self::new(length, sequences, block_size)
    }

    fn of_tokens(tokens: &[u32], block_size: u32, input: &Input) -> Result<Self> {
        let length = tokens.len() as u64;
        if let Some(found) = input.isl_tokens.filter(|found| u64::from(*found) != length) {
            return Err(Error::invalid(format!("isl_tokens is {found}, but the prompt has {length} tokens")));
        }
        let scope = Scope { lora: input.lora_name.as_deref(), salt: input.cache_salt.as_deref() };
        let locals = local_hashes(tokens, block_size as usize, &scope);
        Self::new(length, sequence_hashes(&locals), block_size)
    }

    fn new(length: u64, sequences: Vec<u64>, block_size: u32) -> Result<Self> {
        if length == 0 {
            return Err(Error::invalid("the prompt has no tokens; at least 1 is needed"));
        }
        let length = u32::try_from(length)
            .map_err(|_| Error::invalid(format!("the prompt has {length} tokens, which no model takes")))?;
        Ok(Self { length, sequences: sequences.into(), block_size })
    }

    /// Bytes it occupies.
    pub(super) fn weight(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.sequences)
    }

    /// So many blocks, in tokens.
    pub(super) fn tokens(&self, blocks: u32) -> u64 {
        u64::from(blocks) * u64::from(self.block_size)
    }
}
