//! The engine's core and its thread, over a fake model, a tiny random one, and the default one.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod batching;
mod common;
mod guides;
mod handle;
mod llama;
mod thinking;
