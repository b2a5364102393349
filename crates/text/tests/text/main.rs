//! Tests of the whole crate, in one binary.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod decoder;
mod detokenizer;
mod encoder;
mod published;
mod smollm;
mod stop;
mod support;
