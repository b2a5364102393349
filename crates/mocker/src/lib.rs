//! The mock engine: the real scheduler and real block bookkeeping, with a speed model in place of a model and a draw in
//! place of a sampler. It behaves like an engine in everything but the meaning of its tokens.
//!
//! It must never know what time it is, who reads the answers, or how requests and events travel: time is an argument,
//! and the same request always gets the same tokens.

mod core;
mod embedding;
mod options;
mod timing;
mod vocabulary;

pub use core::{MockCore, Outcome};
pub use dynamo_scheduler::SequenceId;
pub use embedding::embedding;
pub use options::Options;
pub use timing::{StepShape, Timing};
pub use vocabulary::Vocabulary;
