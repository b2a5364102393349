//! The APIs: each a translation into a [`crate::plan::Call`] and back.

mod blocks;
pub(crate) mod busy;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
mod extras;
pub(crate) mod kserve;
pub(crate) mod messages;
mod openai;
pub(crate) mod responses;
mod split;
pub(crate) mod tokenize;
