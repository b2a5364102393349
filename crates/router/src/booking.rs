//! The guard that holds a request's load on its worker (R38).

use crate::peers::Told;
use crate::router::Shared;
use crate::state::Charge;
use dynamo_types::WorkerRank;
use std::fmt;
use std::sync::Arc;

/// Load booked at selection. Dropping it, wherever and for whatever reason, gives everything back.
pub struct Booking {
    shared: Arc<Shared>,
    target: WorkerRank,
    incarnation: u64,
    charge: Charge,
    /// Output accounting; None if output blocks are not tracked.
    output: Option<Output>,
    /// Blocks of the answer that were told one by one.
    told_blocks: u64,
    /// Given up by dropping it, and others know.
    told: Option<Told>,
}

/// How the answer grows in blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) block_size: u32,
    /// Prompt tokens in its last, incomplete block.
    pub(crate) prompt_rest: u32,
    pub(crate) expected_tokens: Option<u32>,
    pub(crate) generated: u32,
}

impl Output {
    /// Blocks completed by the answer.
    fn blocks(&self) -> u32 {
        (self.prompt_rest.saturating_add(self.generated)) / self.block_size.max(1)
    }

    /// Thousandths of blocks, weighted by the share of the answer still to come if its length can be guessed:
    /// `1 - generated / expected` (behaviour.md 2.3).
    fn millis(&self) -> u64 {
        let blocks = u64::from(self.blocks()) * 1000;
        match self.expected_tokens.map(u64::from).filter(|expected| *expected > 0) {
            Some(expected) => blocks * expected.saturating_sub(u64::from(self.generated)) / expected,
            None => blocks,
        }
    }
}

impl Booking {
    pub(crate) fn new(
        shared: Arc<Shared>,
        target: WorkerRank,
        incarnation: u64,
        charge: Charge,
        output: Option<Output>,
        told: Option<Told>,
    ) -> Self {
        Self { shared, target, incarnation, charge, output, told_blocks: 0, told }
    }

    pub fn target(&self) -> WorkerRank {
        self.target
    }

    /// Prompt tokens on the books: those that have to be computed, until the first token is there.
    pub fn prefill_tokens(&self) -> u64 {
        self.charge.prefill_tokens
    }

    /// The answer fills one more block, for callers that count blocks and not tokens. All of its blocks weigh `weight`
    /// each from now on, 0 to 1: the share of the answer still to come, if its length can be guessed, else 1. Not
    /// together with [`Booking::output_tokens`].
    pub fn output_block(&mut self, weight: f64) {
        self.first_token();
        self.told_blocks = self.told_blocks.saturating_add(1);
        // Beyond 2^53 thousandths of a block nobody counts.
        let after = (self.told_blocks as f64 * 1000.0 * weight.clamp(0.0, 1.0)) as u64;
        self.output(after);
    }

    /// Prefill is done: its tokens are taken off the books. Later calls do nothing.
    pub fn first_token(&mut self) {
        let tokens = std::mem::take(&mut self.charge.prefill_tokens);
        if tokens > 0 {
            self.shared.state().prefill_done(self.target, self.incarnation, tokens);
            self.tell();
        }
    }

    fn output(&mut self, after: u64) {
        let before = std::mem::replace(&mut self.charge.output_millis, after);
        self.shared.state().output(self.target, self.incarnation, before, after);
        self.tell();
    }

    fn tell(&self) {
        if let Some(told) = &self.told {
            told.changed(&self.charge);
        }
    }

    /// `tokens` more were generated. Touches the books only when the answer crosses a block boundary.
    pub fn output_tokens(&mut self, tokens: u32) {
        if tokens > 0 {
            self.first_token();
        }
        let Some(output) = &mut self.output else { return };
        let blocks = output.blocks();
        output.generated = output.generated.saturating_add(tokens);
        if output.blocks() != blocks {
            let after = output.millis();
            self.output(after);
        }
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        let charge = std::mem::take(&mut self.charge);
        self.shared.state().give_back(self.target, self.incarnation, charge);
    }
}

impl fmt::Debug for Booking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Booking").field("target", &self.target).field("charge", &self.charge).finish()
    }
}
