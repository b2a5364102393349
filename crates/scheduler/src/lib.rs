//! Continuous batching as a pure state machine: which request advances by how many tokens in the next step, and in
//! which KV blocks. The embedded engine and the mock engine run the same one.
//!
//! A step is `plan`, the computation of the plan's segments by whoever owns a model, and `commit` of the tokens that were sampled.
//! Requests may be submitted and cancelled between steps.
//!
//! It must never know how logits are computed, how tokens are chosen, how long anything takes, or who reads the answers.

mod options;
mod plan;
mod planning;
mod scheduler;
mod sequence;
mod slab;

pub use dynamo_blocks::BlockId;
pub use options::Options;
pub use plan::{Finished, Plan, Sampled, Segment};
pub use scheduler::Scheduler;
pub use slab::SequenceId;
