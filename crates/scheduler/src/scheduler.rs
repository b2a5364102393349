//! The scheduler's state: submission, cancellation, results. Planning is next door.

use crate::options::Options;
use crate::plan::{Finished, Plan, Sampled};
use crate::sequence::{Rank, Sequence};
use crate::slab::{SequenceId, Slab};
use dynamo_blocks::{BlockId, BlockManager};
use dynamo_types::{Error, KvEvent, Load, Request, Task};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The continuous-batching state machine.
///
/// Sequences *wait* (hold no blocks) or *run*. Both queues are ordered by priority, then arrival. Every step serves decode
/// rows first, then prefill, under one token budget; what is left starts waiting sequences, in order and without
/// overtaking. When blocks run out, the last of the running order gives up its blocks.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) options: Options,
    pub(crate) manager: BlockManager,
    pub(crate) sequences: Slab,
    /// In order of rank; the tail is preempted first.
    pub(crate) running: Vec<Rank>,
    pub(crate) waiting: BTreeSet<Rank>,
    /// Scratch for prefix matches.
    pub(crate) found: Vec<BlockId>,
    arrivals: u64,
    /// Sum of [`Sequence::prompt_remaining`].
    prompt_remaining: usize,
}

impl Scheduler {
    pub fn new(options: Options) -> Self {
        let options = options.sane();
        Self {
            manager: BlockManager::new(options.total_blocks, options.block_size),
            sequences: Slab::default(),
            running: Vec::with_capacity(options.max_num_seqs.min(1024) as usize),
            waiting: BTreeSet::new(),
            found: Vec::new(),
            arrivals: 0,
            prompt_remaining: 0,
            options,
        }
    }

    /// The limits in force, moved to what makes sense.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Takes a request into the waiting queue.
    ///
    /// # Errors
    /// `Invalid` with `context_length_exceeded` if the prompt leaves no room for an answer; `Overloaded` if
    /// `max_num_seqs + max_waiting` requests are open already.
    pub fn submit(&mut self, request: Arc<Request>) -> Result<SequenceId, Error> {
        self.check_length(&request)?;
        let limit = self.options.max_num_seqs as usize + self.options.max_waiting as usize;
        if self.sequences.len() >= limit {
            return Err(Error::overloaded(format!(
                "the engine's queue is full: {limit} requests are open already"
            )));
        }
        self.arrivals += 1;
        let routing = &request.routing;
        let (priority, arrival) = (Reverse((routing.strict_priority, routing.priority)), self.arrivals);
        let (block_size, shared) = (self.block_size(), self.options.prefix_caching);
        self.prompt_remaining += request.tokens.len();
        let id = self.sequences.insert(|id| {
            self.waiting.insert(Rank { priority, arrival, id });
            Sequence::new(request, Rank { priority, arrival, id }, block_size, shared)
        });
        Ok(id)
    }

    fn check_length(&self, request: &Request) -> Result<(), Error> {
        let context = self.options.context_length as usize;
        let len = request.tokens.len();
        if len == 0 {
            return Err(Error::invalid("the prompt has no tokens; at least 1 is needed").with_param("prompt"));
        }
        // An embedding needs no room for an answer.
        let (most, why) = match request.task {
            Task::Generate => (context.saturating_sub(1), " leaves room for at most "),
            Task::Embed => (context, " allows at most "),
        };
        if len > most {
            return Err(Error::invalid(format!(
                "the prompt has {len} tokens; the context length of {context} tokens{why}{most}"
            ))
            .with_param("prompt")
            .with_code("context_length_exceeded"));
        }
        Ok(())
    }

    /// Ends a sequence at once and gives its blocks back. False if it is over already.
    pub fn cancel(&mut self, id: SequenceId) -> bool {
        let Some(mut sequence) = self.sequences.remove(id) else { return false };
        self.prompt_remaining -= sequence.prompt_remaining();
        sequence.stop(&mut self.manager);
        if !self.waiting.remove(&sequence.rank)
            && let Ok(position) = self.running.binary_search(&sequence.rank)
        {
            self.running.remove(position);
        }
        true
    }

    /// Takes in what a step brought: `sampled` has a token for each segment with `sample` set (in any order; a segment without
    /// one is planned again). Sequences cancelled since the plan was made are passed over. Returns who is over.
    pub fn commit(&mut self, plan: &Plan, sampled: &[Sampled]) -> Vec<Finished> {
        for choice in sampled {
            if let Some(sequence) = self.sequences.get_mut(choice.sequence) {
                sequence.tokens.push(choice.token);
                sequence.ended = choice.end;
            }
        }
        let (block_size, context) = (self.block_size(), self.options.context_length as usize);
        let mut finished = Vec::new();
        for segment in &plan.segments {
            let id = segment.sequence;
            let Some(sequence) = self.sequences.get_mut(id) else { continue };
            self.prompt_remaining -= sequence.prompt_remaining();
            sequence.computed = segment.end();
            if segment.sample {
                sequence.computed = sequence.computed.min(sequence.tokens.len() - 1);
            }
            self.prompt_remaining += sequence.prompt_remaining();
            sequence.register_complete_blocks(&mut self.manager, block_size);
            let at_the_end = segment.sample || sequence.remaining() == 0;
            if at_the_end && let Some(reason) = sequence.finish_reason(context) {
                finished.push(Finished { sequence: id, reason });
            }
        }
        for end in &finished {
            self.cancel(end.sequence);
        }
        finished
    }

    /// The KV blocks of a sequence, root first; they reach at least to the end of its planned segment. Empty for an
    /// unknown id.
    pub fn block_table(&self, id: SequenceId) -> &[BlockId] {
        self.sequences.get(id).map_or(&[], |sequence| &sequence.blocks)
    }

    /// Given and sampled tokens of a sequence. Empty for an unknown id.
    pub fn tokens(&self, id: SequenceId) -> &[u32] {
        self.sequences.get(id).map_or(&[], |sequence| &sequence.tokens)
    }

    pub fn request(&self, id: SequenceId) -> Option<&Arc<Request>> {
        self.sequences.get(id).map(|sequence| &sequence.request)
    }

    /// Prompt tokens that needed no prefill; known once the sequence started.
    pub fn cached_tokens(&self, id: SequenceId) -> Option<u32> {
        self.sequences.get(id)?.cached_tokens
    }

    /// Is any request open?
    pub fn has_work(&self) -> bool {
        self.sequences.len() > 0
    }

    pub fn load(&self) -> Load {
        Load {
            running: self.running.len() as u32,
            waiting: self.waiting.len() as u32,
            prefill_tokens: u32::try_from(self.prompt_remaining).unwrap_or(u32::MAX),
            active_blocks: self.manager.active(),
            cached_blocks: self.manager.inactive(),
            total_blocks: self.manager.total(),
        }
    }

    /// Forgets all cached blocks; running sequences keep theirs.
    pub fn clear_cache(&mut self) {
        self.manager.clear();
    }

    /// Changes of the cache since the last call, in order. Call it once per step: they pile up.
    pub fn drain_events(&mut self) -> Vec<KvEvent> {
        self.manager.drain_events()
    }

    /// Keeps the tokens of stored blocks for [`Scheduler::drain_tokens`] from now on.
    pub fn keep_tokens(&mut self) {
        self.manager.keep_tokens();
    }

    /// Tokens of the blocks that the events of the same call stored, one block after another.
    pub fn drain_tokens(&mut self) -> Vec<u32> {
        self.manager.drain_tokens()
    }

    pub(crate) fn block_size(&self) -> usize {
        self.options.block_size as usize
    }

    /// Prefill only: a decode row's next block is its own.
    pub(crate) fn adopt(&mut self, id: SequenceId) {
        let block_size = self.block_size();
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        if sequence.remaining() > 1 {
            self.prompt_remaining -= sequence.prompt_remaining();
            sequence.adopt(&mut self.manager, block_size, &mut self.found);
            self.prompt_remaining += sequence.prompt_remaining();
        }
    }

    /// Takes all blocks from a running sequence and sends it back to wait.
    pub(crate) fn requeue(&mut self, rank: Rank) {
        let Some(sequence) = self.sequences.get_mut(rank.id) else { return };
        self.prompt_remaining -= sequence.prompt_remaining();
        sequence.stop(&mut self.manager);
        self.prompt_remaining += sequence.prompt_remaining();
        self.waiting.insert(rank);
    }

    /// Moves the head of the waiting queue to the running list, on the blocks in `found`.
    pub(crate) fn start(&mut self, rank: Rank) {
        let block_size = self.block_size();
        let Some(sequence) = self.sequences.get_mut(rank.id) else { return };
        self.manager.acquire(&self.found);
        self.prompt_remaining -= sequence.prompt_remaining();
        sequence.start(&self.found, block_size);
        self.prompt_remaining += sequence.prompt_remaining();
        self.waiting.remove(&rank);
        if let Err(position) = self.running.binary_search(&rank) {
            self.running.insert(position, rank);
        }
    }
}
