//! Which KV block holds what, who uses it, and what goes when room is needed: the block manager of one device pool.
//!
//! It must never know where a block's bytes lie, how they are computed, or what a request is. No I/O, no clock.

mod event;
mod list;
mod manager;
mod registry;

pub use manager::{BlockId, BlockManager, Completed, Prefix};
