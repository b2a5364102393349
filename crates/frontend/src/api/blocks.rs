//! Answers of the APIs that show them as a row of blocks: Anthropic's messages and OpenAI's responses.

use super::openai::{self, Ending};
use super::split::Split;
use crate::plan::{Answer, Head};
use crate::record::Usage;
use bytes::{Bytes, BytesMut};
use dynamo_protocols::pieces::{Fold, Stream};
use dynamo_text::TextDelta;
use dynamo_types::{Error, Result};

/// One of these APIs, with what its answers repeat of the request.
pub(super) trait Dialect: Send {
    /// In front of the ids of answers.
    const PREFIX: &'static str;
    type Stream: Stream + Send;
    type Fold: Fold;
    fn stream(&self, id: &str, head: &Head) -> Self::Stream;
    fn fold(&self, id: &str, head: &Head) -> Self::Fold;
}

/// Words an answer in a dialect.
pub(super) struct Blocks<D: Dialect> {
    dialect: D,
    begun: Option<Begun<D::Stream>>,
    ending: Ending,
}

struct Begun<S> {
    id: String,
    head: Head,
    stream: S,
    split: Split,
}

impl<D: Dialect> Blocks<D> {
    pub(super) fn new(dialect: D) -> Self {
        Self { dialect, begun: None, ending: Ending::default() }
    }
}

impl<D: Dialect> Answer for Blocks<D> {
    fn begin(&mut self, head: Head) {
        let id = openai::id(D::PREFIX, &head);
        let (stream, split) = (self.dialect.stream(&id, &head), Split::new(&head));
        self.begun = Some(Begun { id, head, stream, split });
    }

    fn chunk(&mut self, choice: u32, mut delta: TextDelta, usage: &Usage, out: &mut BytesMut) {
        let Some(Begun { stream, split, .. }) = &mut self.begun else { return };
        stream.start(out, openai::usage(usage));
        split.push(choice, &mut delta, |piece| stream.push(out, piece));
        self.ending.note(&mut delta);
    }

    fn end(&mut self, usage: &Usage, out: &mut BytesMut) {
        if let Some(Begun { stream, .. }) = &mut self.begun {
            stream.finish(out, &self.ending.finish(), openai::usage(usage));
        }
    }

    fn fail(&mut self, error: &Error, out: &mut BytesMut) {
        if let Some(Begun { stream, .. }) = &mut self.begun {
            stream.fail(out, error);
        }
    }

    fn whole(&mut self, choices: Vec<TextDelta>, usage: &Usage) -> Result<Bytes> {
        let Begun { id, head, split, .. } = self.begun.as_mut().ok_or_else(openai::not_begun)?;
        let mut fold = self.dialect.fold(id, head);
        for mut delta in choices {
            split.push(0, &mut delta, |piece| fold.push(piece));
            self.ending.note(&mut delta);
        }
        openai::json(&fold.finish(&self.ending.finish(), openai::usage(usage)))
    }
}
