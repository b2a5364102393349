//! Text on both sides of the tokens: chat templates and tokenizers on the way in; byte-exact incremental
//! detokenization, stop strings, and the parsers of reasoning and tool calls on the way out (R01-R04, R11-R19).
//!
//! It must never know where a model's files lie, how an answer is transported or what API asked for it: no I/O, no
//! clock, no async. The time a template may print is an argument.

mod decoder;
mod detokenizer;
pub mod parsers;
mod stop;
mod template;
mod text_delta;
mod tokenizer;

pub use decoder::{Decoder, DecoderOptions, PromptText};
pub use detokenizer::Detokenizer;
pub use stop::StopMatcher;
pub use template::{RenderInput, Template};
pub use text_delta::{StopCause, TextDelta, TextLogprob, TopLogprob};
pub use tokenizer::{TokenTable, Tokenizer};
