//! What a decoder must know of its model besides the weights.

use crate::Error;
use std::path::Path;

/// Limits on what a file may claim, far above any model of these families. They keep a corrupt file from driving
/// sizes that are computed from these numbers.
const MAX_LAYERS: usize = 1024;
pub(crate) const MAX_WIDTH: usize = 1 << 20;
const MAX_VOCABULARY: usize = 1 << 22;
const MAX_CONTEXT: usize = 1 << 24;

/// Model families that can be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    Llama,
}

impl Architecture {
    /// For messages: every name that [`Architecture::parse`] takes.
    pub(crate) const SUPPORTED: &'static str = "one of: llama";

    pub(crate) fn parse(name: &str) -> Option<Self> {
        (name == "llama").then_some(Self::Llama)
    }

    /// The name in `general.architecture`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
        }
    }
}

/// Sizes and constants of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub architecture: Architecture,
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width between the two halves of the feed-forward layer.
    pub feed_forward: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    pub head_dim: usize,
    pub rope_theta: f64,
    /// Divisors of the rotary frequencies, one for each of the `head_dim / 2` pairs (Llama 3.1 and later).
    pub rope_factors: Option<Vec<f32>>,
    /// Rotary pairs are neighbours (2i, 2i+1). Always true after loading: rows of Hugging Face checkpoints, whose pairs
    /// are half a head apart, are permuted when they are read.
    pub rope_interleaved: bool,
    pub norm_epsilon: f32,
    pub vocab_size: usize,
    pub context_length: usize,
    /// The output head is the embedding matrix.
    pub tied_embeddings: bool,
}

impl Config {
    /// Refuses what no model of these families has.
    pub(crate) fn check(&self, path: &Path) -> Result<(), Error> {
        let ranges = [
            ("layers", self.layers, MAX_LAYERS),
            ("hidden size", self.hidden, MAX_WIDTH),
            ("feed-forward size", self.feed_forward, MAX_WIDTH),
            ("attention heads", self.heads, MAX_WIDTH),
            ("key/value heads", self.kv_heads, MAX_WIDTH),
            ("head dimension", self.head_dim, MAX_WIDTH),
            ("vocabulary size", self.vocab_size, MAX_VOCABULARY),
            ("context length", self.context_length, MAX_CONTEXT),
        ];
        for (what, value, limit) in ranges {
            if value == 0 || value > limit {
                return Err(Error::new(path, what, format!("1..={limit}"), value));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let expected = format!("a multiple of the {} key/value heads", self.kv_heads);
            return Err(Error::new(path, "attention heads", expected, self.heads));
        }
        for (what, value) in [("hidden size", self.hidden), ("feed-forward size", self.feed_forward)] {
            if !value.is_multiple_of(32) {
                return Err(Error::new(path, what, "a multiple of 32", value));
            }
        }
        if !self.head_dim.is_multiple_of(32) {
            return Err(Error::new(path, "head dimension", "a multiple of 32", self.head_dim));
        }
        if self.heads * self.head_dim > MAX_WIDTH {
            let found = format!("{} x {}", self.heads, self.head_dim);
            return Err(Error::new(path, "heads x head dimension", format!("at most {MAX_WIDTH}"), found));
        }
        if !(self.norm_epsilon.is_finite() && self.norm_epsilon > 0.0) {
            return Err(Error::new(path, "norm epsilon", "a positive number", self.norm_epsilon));
        }
        if !(self.rope_theta.is_finite() && self.rope_theta >= 1.0) {
            return Err(Error::new(path, "rope theta", "a number of at least 1", self.rope_theta));
        }
        let usable = |factors: &Vec<f32>| {
            factors.len() == self.head_dim / 2
                && factors.iter().all(|factor| factor.is_finite() && *factor > 0.0)
        };
        if let Some(factors) = self.rope_factors.as_ref().filter(|factors| !usable(factors)) {
            let expected = format!("{} positive numbers", self.head_dim / 2);
            return Err(Error::new(path, "rope factors", expected, format!("{} others", factors.len())));
        }
        Ok(())
    }

    /// Every tensor the decoder needs, as (canonical name, rows, columns); vectors have one row.
    pub(crate) fn shapes(&self) -> Vec<(String, usize, usize)> {
        let (query, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut shapes = vec![
            ("token_embd.weight".to_owned(), self.vocab_size, self.hidden),
            ("output_norm.weight".to_owned(), 1, self.hidden),
        ];
        if !self.tied_embeddings {
            shapes.push(("output.weight".to_owned(), self.vocab_size, self.hidden));
        }
        for layer in 0..self.layers {
            for (part, rows, columns) in [
                ("attn_norm", 1, self.hidden),
                ("attn_q", query, self.hidden),
                ("attn_k", kv, self.hidden),
                ("attn_v", kv, self.hidden),
                ("attn_output", self.hidden, query),
                ("ffn_norm", 1, self.hidden),
                ("ffn_gate", self.feed_forward, self.hidden),
                ("ffn_up", self.feed_forward, self.hidden),
                ("ffn_down", self.hidden, self.feed_forward),
            ] {
                shapes.push((format!("blk.{layer}.{part}.weight"), rows, columns));
            }
        }
        shapes
    }
}
