//! An answer as it goes out: server-sent events while it is made, or whole when it is done. Both are written from the
//! same deltas by the same [`Answer`].

use crate::best::Pick;
use crate::facts::Facts;
use crate::generation::{Generation, Step};
use crate::plan::Answer;
use bytes::{Bytes, BytesMut};
use dynamo_text::TextDelta;
use dynamo_types::Result;
use std::future::poll_fn;
use std::task::{Context, Poll};

/// Room for the frames of a usual poll; grows when many deltas were merged.
const FRAMES_BYTES: usize = 2048;

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
        stream.answer.open(&mut stream.out);
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
        generation.poll(cx, &mut |choice, delta, usage, facts| {
            if let Some(facts) = facts {
                answer.note(choice, facts);
            }
            answer.chunk(choice, delta, usage, out);
        })
    }

    fn write(&mut self, step: Step) {
        match step {
            Step::Deltas if self.generation.is_complete() => self.end(),
            Step::Deltas => {}
            Step::Quiet => self.answer.quiet(&mut self.out),
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

/// The whole answer: the fold of what would have been streamed, of each prompt's candidates the best.
///
/// # Errors
/// The fault of any choice.
pub(crate) async fn whole(
    mut generation: Generation,
    mut answer: Box<dyn Answer>,
    pick: Pick,
) -> Result<Bytes> {
    let mut choices = vec![(TextDelta::default(), None); generation.choice_count()];
    let mut collect = |choice: u32, delta: TextDelta, _: &_, facts: Option<&Facts>| {
        if let Some((folded, known)) = choices.get_mut(choice as usize) {
            folded.merge(delta);
            *known = facts.copied();
        }
    };
    loop {
        match poll_fn(|cx| generation.poll(cx, &mut collect)).await {
            Step::Deltas | Step::Quiet => {}
            Step::Failed(error) => return Err(error),
            Step::End => break,
        }
    }
    let (choices, facts): (Vec<_>, Vec<_>) = pick.best(choices).into_iter().unzip();
    for (choice, facts) in (0..).zip(&facts) {
        if let Some(facts) = facts {
            answer.note(choice, facts);
        }
    }
    let body = answer.whole(choices, generation.usage());
    match &body {
        Ok(_) => generation.succeed(),
        Err(error) => generation.fail(error),
    }
    body
}
