//! An answer as it goes out: server-sent events while it is made, or whole when it is done. Both are written from the
//! same deltas by the same [`Answer`].

use crate::generation::{Generation, Step};
use crate::plan::Answer;
use bytes::{Bytes, BytesMut};
use dynamo_text::TextDelta;
use dynamo_types::Result;
use std::future::poll_fn;
use std::task::{Context, Poll};

/// Room for the frames of a usual poll; grows when many deltas were merged.
const FRAMES_BYTES: usize = 2048;
/// An SSE comment, which clients skip.
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// The body of a streamed answer. The connection polls it when it can write, so a slow reader slows nothing down but
/// its own stream.
pub(crate) struct EventStream {
    generation: Generation,
    answer: Box<dyn Answer>,
    out: BytesMut,
    finished: bool,
}

impl EventStream {
    /// Waits for the first event, so that a fault before any output keeps its HTTP status (behaviour.md 1.3). If the
    /// first event takes longer than a keep-alive interval, the stream begins without it: intermediaries close
    /// connections on which nothing happens.
    ///
    /// # Errors
    /// The fault that came first.
    pub(crate) async fn open(generation: Generation, answer: Box<dyn Answer>) -> Result<Self> {
        let out = BytesMut::with_capacity(FRAMES_BYTES);
        let mut stream = Self { generation, answer, out, finished: false };
        let first = poll_fn(|cx| stream.poll_step(cx)).await;
        match first {
            Step::Failed(error) => Err(error),
            step => {
                stream.write(step);
                Ok(stream)
            }
        }
    }

    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        let Self { generation, answer, out, .. } = self;
        generation.poll(cx, &mut |choice, delta, usage| answer.chunk(choice, delta, usage, out))
    }

    fn write(&mut self, step: Step) {
        match step {
            Step::Deltas if self.generation.is_complete() => self.end(),
            Step::Deltas => {}
            Step::Quiet => self.out.extend_from_slice(KEEP_ALIVE),
            Step::End => self.end(),
            Step::Failed(error) => {
                self.answer.fail(&error, &mut self.out);
                self.finished = true;
            }
        }
    }

    fn end(&mut self) {
        self.answer.end(self.generation.usage(), &mut self.out);
        self.generation.succeed();
        self.finished = true;
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished && self.out.is_empty()
    }

    /// The frames that are ready, all in one piece.
    pub(crate) fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            if !self.out.is_empty() {
                // Once the connection has written the frames, their memory serves the next ones.
                return Poll::Ready(Some(self.out.split().freeze()));
            }
            if self.finished {
                return Poll::Ready(None);
            }
            match self.poll_step(cx) {
                Poll::Pending => return Poll::Pending,
                // Deltas without visible text write nothing: look again.
                Poll::Ready(step) => self.write(step),
            }
        }
    }
}

/// The whole answer: the fold of what would have been streamed.
///
/// # Errors
/// The fault of any choice.
pub(crate) async fn whole(mut generation: Generation, mut answer: Box<dyn Answer>) -> Result<Bytes> {
    let mut choices = vec![TextDelta::default(); generation.choice_count()];
    let mut collect = |choice: u32, delta: TextDelta, _: &_| {
        if let Some(folded) = choices.get_mut(choice as usize) {
            folded.merge(delta);
        }
    };
    loop {
        match poll_fn(|cx| generation.poll(cx, &mut collect)).await {
            Step::Deltas | Step::Quiet => {}
            Step::Failed(error) => return Err(error),
            Step::End => break,
        }
    }
    let body = answer.whole(choices, generation.usage());
    match &body {
        Ok(_) => generation.succeed(),
        Err(error) => generation.fail(error),
    }
    body
}
