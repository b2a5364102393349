//! Model files become one description: a GGUF file or a Hugging Face directory in, the configuration, the tokenizer,
//! the chat template and the tensors out. Tensors are read one at a time by positional reads, so that reading a model
//! never needs more memory than its largest tensor.
//!
//! It must never know what is computed with the tensors, how they are packed, or who serves them. Files are hostile:
//! every count and offset is checked against the file's size before anything is allocated or read.

mod config;
mod default_model;
mod error;
mod files;
mod gguf;
mod gguf_sentencepiece;
mod gguf_tokenizer;
mod huggingface;
mod tensor;
pub mod testing;

pub use config::{Architecture, Config};
pub use default_model::default_model;
pub use error::Error;
pub use files::{ModelFiles, describe, open};
pub use tensor::{Encoding, Tensor};
