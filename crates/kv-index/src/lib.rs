//! The prefix index: which rank of which worker holds which KV blocks, in which tier, as told by their events; and,
//! on the same structure, which blocks the requests in flight use.
//!
//! It must never know how events travel, how a worker is chosen, or what time it is.

mod active;
mod holders;
mod index;
mod orphans;
mod prefix;
mod rank;
mod report;
mod table;
mod watermark;

pub use active::{ActiveBlocks, Ticket};
pub use holders::Slot;
pub use index::{Index, Limits};
pub use prefix::Lengths;
pub use report::{Applied, Gap, Matches, Overlap};
