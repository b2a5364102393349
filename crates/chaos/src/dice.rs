//! Draws in a row, all of them a function of one seed.

use dynamo_types::draw;

/// A seed and how often it was drawn from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dice {
    seed: u64,
    position: u64,
}

impl Dice {
    /// `stream` keeps apart what is drawn for different things from one seed.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        Self { seed: draw::bits(seed, stream), position: 0 }
    }

    fn turn(&mut self) -> u64 {
        self.position += 1;
        self.position
    }

    /// Below `len`; 0 if that is 0.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        let position = self.turn();
        draw::index(self.seed, position, len)
    }

    /// From `low` to `high`, the latter not included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        let width = usize::try_from(high.saturating_sub(low)).unwrap_or(usize::MAX);
        low + self.index(width) as u64
    }

    /// True once in `times`.
    pub(crate) fn one_in(&mut self, times: usize) -> bool {
        self.index(times) == 0
    }
}
