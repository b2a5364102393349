//! One submitted request on its way.

use crate::slab::SequenceId;
use dynamo_blocks::{BlockId, BlockManager, Completed};
use dynamo_types::{FinishReason, Request, Task, hash};
use std::cmp::Reverse;
use std::sync::Arc;

/// Who goes first: higher tier, higher priority, earlier arrival. The order is total and never changes for a sequence, which
/// is why nobody starves: the first of all can take what it needs from every other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// Tier, then priority within it.
    pub(crate) priority: Reverse<(u32, i32)>,
    pub(crate) arrival: u64,
    pub(crate) id: SequenceId,
}

#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) request: Arc<Request>,
    pub(crate) rank: Rank,
    /// Given tokens, then sampled ones.
    pub(crate) tokens: Vec<u32>,
    /// Tokens whose keys and values are in `blocks`.
    pub(crate) computed: usize,
    /// Block table, root first.
    pub(crate) blocks: Vec<BlockId>,
    /// The last token ended the answer.
    pub(crate) ended: bool,
    /// Prompt tokens that needed no prefill before the first token was sampled.
    pub(crate) cached_tokens: Option<u32>,
    /// Local hashes of the complete blocks of `tokens`; empty if blocks are not shared.
    local_hashes: Vec<u64>,
    /// Seed of the local hashes, or none if blocks are not shared.
    seed: Option<u64>,
    /// Blocks at the head of the table that need no registration any more.
    settled: usize,
}

impl Sequence {
    pub(crate) fn new(request: Arc<Request>, rank: Rank, block_size: usize, shared: bool) -> Self {
        let routing = &request.routing;
        let scope = hash::Scope { lora: routing.lora.as_deref(), salt: routing.salt.as_deref() };
        let mut sequence = Self {
            tokens: request.tokens.to_vec(),
            rank,
            computed: 0,
            blocks: Vec::new(),
            ended: false,
            cached_tokens: None,
            local_hashes: Vec::new(),
            seed: shared.then(|| scope.seed()),
            settled: 0,
            request,
        };
        sequence.hash_complete_blocks(block_size);
        sequence
    }

    /// Tokens not computed yet.
    pub(crate) fn remaining(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Given tokens not computed yet.
    pub(crate) fn prompt_remaining(&self) -> usize {
        self.request.tokens.len().saturating_sub(self.computed)
    }

    /// Tokens sampled so far, here.
    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.request.tokens.len()
    }

    /// Does it need the logits of every prompt token?
    pub(crate) fn wants_prompt_logits(&self) -> bool {
        self.request.output.prompt_logprobs.is_some()
    }

    pub(crate) fn is_embedded(&self) -> bool {
        self.request.task == Task::Embed
    }

    /// Hashes of the blocks that may be taken from others: complete ones, and never all tokens, because the logits of
    /// the last one are needed. None if something is needed of every row: its logits, or its part of an embedding.
    pub(crate) fn reusable_hashes(&self, block_size: usize) -> &[u64] {
        if self.wants_prompt_logits() || self.is_embedded() {
            return &[];
        }
        let most = self.tokens.len().saturating_sub(1) / block_size;
        &self.local_hashes[..most.min(self.local_hashes.len())]
    }

    /// Starts (again) on blocks found in the cache, which the caller acquired.
    pub(crate) fn start(&mut self, found: &[BlockId], block_size: usize) {
        self.blocks.clear();
        self.blocks.extend_from_slice(found);
        self.settled = found.len();
        self.computed = found.len() * block_size;
        let cached = self.computed.min(self.request.prompt_len()) as u32;
        if self.generated() == 0 {
            self.cached_tokens = Some(cached);
        }
    }

    /// Takes blocks that others have computed since this sequence started, instead of computing the same ones again.
    /// Two prompts that begin alike and come together so cost little more than one.
    pub(crate) fn adopt(&mut self, manager: &mut BlockManager, block_size: usize, found: &mut Vec<BlockId>) {
        found.clear();
        let mut parent = self.settled.checked_sub(1).map(|last| self.blocks[last]);
        let hashes = self.reusable_hashes(block_size).get(self.settled..).unwrap_or_default();
        let blocks = self.tokens.chunks_exact(block_size).skip(self.settled);
        for (&local_hash, tokens) in hashes.iter().zip(blocks) {
            let Some(block) = manager.find(parent, local_hash, tokens) else { break };
            found.push(block);
            parent = Some(block);
        }
        let computed = (self.settled + found.len()) * block_size;
        if computed <= self.computed {
            return;
        }
        manager.acquire(found);
        manager.release(&self.blocks[self.settled..]);
        self.blocks.truncate(self.settled);
        self.blocks.extend_from_slice(found);
        self.settled = self.blocks.len();
        if self.generated() == 0
            && let Some(cached) = &mut self.cached_tokens
        {
            let saved =
                computed.min(self.request.prompt_len()) - self.computed.min(self.request.prompt_len());
            *cached += saved as u32;
        }
        self.computed = computed;
    }

    /// Gives all blocks back.
    pub(crate) fn stop(&mut self, manager: &mut BlockManager) {
        manager.release(&self.blocks);
        self.blocks.clear();
        self.settled = 0;
        self.computed = 0;
    }

    fn hash_complete_blocks(&mut self, block_size: usize) {
        let Some(seed) = self.seed else { return };
        let hashed = self.local_hashes.len() * block_size;
        let blocks = self.tokens[hashed..].chunks_exact(block_size);
        self.local_hashes.extend(blocks.map(|block| hash::local_hash(block, seed)));
    }

    /// Registers the blocks that became complete. May swap blocks for earlier ones with the same content.
    pub(crate) fn register_complete_blocks(&mut self, manager: &mut BlockManager, block_size: usize) {
        let complete = self.computed / block_size;
        if complete <= self.settled || self.seed.is_none() {
            return;
        }
        self.hash_complete_blocks(block_size);
        while self.settled < complete {
            let index = self.settled;
            let parent = index.checked_sub(1).map(|previous| self.blocks[previous]);
            let tokens = &self.tokens[index * block_size..(index + 1) * block_size];
            match manager.complete(self.blocks[index], parent, self.local_hashes[index], tokens) {
                Completed::Duplicate(first) => self.blocks[index] = first,
                Completed::Registered | Completed::Private => {}
            }
            self.settled += 1;
        }
    }

    /// Is the answer over?
    pub(crate) fn finish_reason(&self, context_length: usize) -> Option<FinishReason> {
        if self.ended || self.is_embedded() {
            return Some(FinishReason::Stop);
        }
        let spent = self.generated() >= self.request.stopping.max_tokens as usize;
        (spent || self.tokens.len() >= context_length).then_some(FinishReason::Length)
    }
}
