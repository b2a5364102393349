//! Holds an answer to a grammar: JSON schemas, regular expressions, choices and Lark grammars become masks over the
//! vocabulary, one per token, so that what cannot be continued to a valid answer is never chosen.
//!
//! It must never know how tokens are scored or scheduled, nor what a request is: grammar and token ids in, masks out.

mod bound;
mod cache;
mod compiler;
mod framed;
mod grammar;
mod mask;
mod matcher;
mod vocabulary;

pub use compiler::{Compiler, Limits};
pub use mask::Mask;
pub use matcher::{Grammar, Matcher};
pub use vocabulary::Vocabulary;
