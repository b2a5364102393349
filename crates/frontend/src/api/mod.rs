//! The APIs: each a translation into a [`crate::plan::Call`] and back.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod messages;
mod openai;
pub(crate) mod responses;
mod split;
pub(crate) mod tokenize;
