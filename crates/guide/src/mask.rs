//! A set of tokens.

use llguidance::toktrie::SimpleVob;

const BITS: usize = u32::BITS as usize;

/// The tokens that may come next. Never empty.
#[derive(Clone, Debug)]
pub struct Mask(SimpleVob);

impl Mask {
    pub(crate) fn new(tokens: SimpleVob) -> Self {
        Self(tokens)
    }

    /// 32 tokens a word, lowest id in the lowest bit. Bits beyond the vocabulary mean nothing.
    pub fn words(&self) -> &[u32] {
        self.0.as_slice()
    }

    pub fn allows(&self, token: u32) -> bool {
        self.words().get(token as usize / BITS).is_some_and(|word| word >> (token as usize % BITS) & 1 == 1)
    }

    /// Takes these tokens out, unless nothing would be left: then the set stays as it is.
    pub fn take_out(&mut self, tokens: &[u32]) {
        let mut rest = self.0.clone();
        for &token in tokens.iter().filter(|&&token| (token as usize) < self.0.len()) {
            rest.disallow_token(token);
        }
        if !rest.is_zero() {
            self.0 = rest;
        }
    }

    /// Sets the scores of all tokens outside the set to negative infinity; `scores` has one entry per token.
    pub fn apply(&self, scores: &mut [f32]) {
        for (index, scores) in scores.chunks_mut(BITS).enumerate() {
            let word = self.words().get(index).copied().unwrap_or(0);
            match word {
                u32::MAX => {}
                0 => scores.fill(f32::NEG_INFINITY),
                _ => {
                    for (bit, score) in scores.iter_mut().enumerate() {
                        if word >> bit & 1 == 0 {
                            *score = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
    }
}
