//! The APIs: each a translation into a [`crate::plan::Call`] and back.

pub(crate) mod chat;
pub(crate) mod completions;
mod openai;
