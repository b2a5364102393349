//! Reasoning and tool-call parsers: fixtures of every family, and laws over them and over generated answers.
//!
//! A folder below `tool`, `reasoning`, `both` or `forced` is a family: `family.json` has its names and the markers that may not
//! be left in an answer, and each case is a `.txt` with what the model wrote and a `.json` with what is read from it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod fixtures;
mod forced;
mod generated;
mod laws;
mod support;
