//! The embedded engine: a paged Llama decoder on the CPU, its sampler and the loop that drives both.
//!
//! It must never know of HTTP, templates, text, discovery or routing: token ids in, token ids out.

pub mod core;
mod guided;
pub mod handle;
mod kernels;
pub mod kv;
pub mod llama;
pub mod model;
mod pool;
pub mod sampler;
pub mod testing;
pub mod weights;

pub use self::core::{Core, Options};
pub use guided::Guides;
pub use handle::Handle;
pub use kernels::Isa;
pub use kv::KvOptions;
pub use llama::Llama;
pub use weights::Weights;
