//! Tests of the whole crate, in one binary.

mod decoder;
mod detokenizer;
mod encoder;
mod smollm;
mod stop;
mod support;
mod template;
