//! The wire formats of the HTTP surface: what clients send becomes typed, validated requests; what models answer
//! becomes bytes. Every limit on a request field stands in one table ([`limits::TABLE`]), which also makes the
//! documentation and the OpenAPI schemas.
//!
//! It must never know how a prompt is rendered or tokenised, where a request runs, or what a socket is: no I/O, no
//! clock, no async, no randomness.

pub mod anthropic;
mod conversation;
mod escape;
mod json;
pub mod kserve;
pub mod limits;
pub mod openai;
pub mod openapi;
mod options;
pub mod pieces;
pub mod responses;
pub mod sse;
pub mod tokenize;

pub use json::echo;
pub use openai::chunk::{ChunkWriter, Extras};
pub use openai::error::error_body;
pub use options::{Options, Parsed, UnknownFields};
pub use pieces::{Finish, Piece};
