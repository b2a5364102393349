//! Who advances in the next step, and by how much.

use crate::plan::{Plan, Segment};
use crate::scheduler::Scheduler;
use crate::sequence::{Rank, Sequence};
use crate::slab::SequenceId;

/// Prompt tokens per step whose logits are wanted. Each costs a row of the vocabulary's size (200 kB at 49,152 tokens), so this
/// bounds the engine's memory for logits where the token budget would allow hundreds of megabytes.
const MAX_PROMPT_LOGITS_PER_STEP: usize = 64;

/// What is left of the step.
struct Budget {
    tokens: usize,
    prompt_logits: usize,
}

impl Budget {
    fn grant(&self, sequence: &Sequence) -> usize {
        let tokens = sequence.remaining().min(self.tokens);
        if sequence.wants_prompt_logits() && sequence.prompt_remaining() > 0 {
            tokens.min(self.prompt_logits)
        } else {
            tokens
        }
    }

    fn take(&mut self, sequence: &Sequence, len: usize) {
        self.tokens -= len;
        if sequence.wants_prompt_logits() && sequence.prompt_remaining() > 0 {
            self.prompt_logits -= len;
        }
    }

    fn give_back(&mut self, sequence: &Sequence, len: usize) {
        self.tokens += len;
        if sequence.wants_prompt_logits() && sequence.prompt_remaining() > 0 {
            self.prompt_logits += len;
        }
    }
}

impl Scheduler {
    /// Chooses the next step. Empty only if no request is open. Compute its segments and [`Scheduler::commit`] it, or
    /// drop it and plan again.
    pub fn plan(&mut self) -> Plan {
        let mut plan = Plan::default();
        let mut budget = Budget {
            tokens: self.options.max_num_batched_tokens as usize,
            prompt_logits: MAX_PROMPT_LOGITS_PER_STEP,
        };
        for prefill in [false, true] {
            self.plan_running(&mut plan, &mut budget, prefill);
        }
        // Starting another one now would take the blocks that were just freed for somebody else.
        if plan.preempted.is_empty() {
            self.admit(&mut plan, &mut budget);
        }
        plan
    }

    fn plan_running(&mut self, plan: &mut Plan, budget: &mut Budget, prefill: bool) {
        let mut position = 0;
        while budget.tokens > 0
            && let Some(&rank) = self.running.get(position)
        {
            position += 1;
            let remaining = self.sequences.get(rank.id).map_or(0, Sequence::remaining);
            if (remaining > 1) == prefill {
                self.place(rank, plan, budget);
            }
        }
    }

    /// Plans as many tokens of a running sequence as budget and blocks allow. If there is no block for even one, the tail of
    /// the running list loses its blocks; the tail itself waits where it is.
    fn place(&mut self, rank: Rank, plan: &mut Plan, budget: &mut Budget) {
        self.adopt(rank.id);
        loop {
            let Some(sequence) = self.sequences.get(rank.id) else { return };
            let wanted = budget.grant(sequence);
            if wanted == 0 {
                return;
            }
            let len = self.reserve(rank.id, wanted);
            if len > 0 {
                let Some(sequence) = self.sequences.get(rank.id) else { return };
                budget.take(sequence, len);
                plan.segments.push(segment(rank.id, sequence, len));
                return;
            }
            if self.running.last() == Some(&rank) {
                return;
            }
            self.preempt_tail(plan, budget);
        }
    }

    /// Extends a block table so that `wanted` more tokens fit, as far as there are blocks. Returns how many fit.
    fn reserve(&mut self, id: SequenceId, wanted: usize) -> usize {
        let block_size = self.block_size();
        let Some(sequence) = self.sequences.get_mut(id) else { return 0 };
        let target = sequence.computed + wanted;
        while sequence.blocks.len() * block_size < target {
            let Some(block) = self.manager.allocate() else { break };
            sequence.blocks.push(block);
        }
        (sequence.blocks.len() * block_size).min(target) - sequence.computed
    }

    fn preempt_tail(&mut self, plan: &mut Plan, budget: &mut Budget) {
        let Some(victim) = self.running.pop() else { return };
        if let Some(position) = plan.segments.iter().rposition(|segment| segment.sequence == victim.id) {
            let segment = plan.segments.remove(position);
            if let Some(sequence) = self.sequences.get(victim.id) {
                budget.give_back(sequence, segment.len);
            }
        }
        self.requeue(victim);
        plan.preempted.push(victim.id);
    }

    /// Starts waiting sequences, in order. One starts only if all its known tokens fit beside what the running ones
    /// still need for theirs plus one block each to grow: else it would soon be preempted, and its work lost.
    fn admit(&mut self, plan: &mut Plan, budget: &mut Budget) {
        let block_size = self.block_size();
        let mut promised: usize = self.running.iter().map(|rank| self.missing_blocks(rank.id) + 1).sum();
        while budget.tokens > 0
            && self.running.len() < self.options.max_num_seqs as usize
            && let Some(&rank) = self.waiting.first()
        {
            let Some(sequence) = self.sequences.get(rank.id) else { return };
            let needed = sequence.tokens.len().div_ceil(block_size);
            let available = self.manager.available() as usize;
            let alone = self.running.is_empty();
            if !alone && promised >= available {
                return;
            }
            self.found.clear();
            let prefix = self.manager.find_prefix(
                sequence.reusable_hashes(block_size),
                &sequence.tokens,
                &mut self.found,
            );
            let taken = needed - prefix.blocks as usize + prefix.inactive as usize;
            if !alone && promised + taken > available {
                return;
            }
            self.start(rank);
            self.place(rank, plan, budget);
            promised += self.missing_blocks(rank.id) + 1;
        }
    }

    /// Blocks that the known tokens of a sequence still need.
    fn missing_blocks(&self, id: SequenceId) -> usize {
        let Some(sequence) = self.sequences.get(id) else { return 0 };
        sequence.tokens.len().div_ceil(self.block_size()).saturating_sub(sequence.blocks.len())
    }
}

fn segment(id: SequenceId, sequence: &Sequence, len: usize) -> Segment {
    let start = sequence.computed;
    Segment {
        sequence: id,
        start,
        len,
        sample: start + len == sequence.tokens.len()
            && sequence.request.stopping.max_tokens > 0
            && !sequence.is_embedded(),
        decode: len == 1 && start >= sequence.request.tokens.len(),
    }
}
