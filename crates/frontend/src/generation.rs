//! A whole answer in progress: all choices of all prompts, as one stream of text deltas.
//!
//! It is polled by whoever writes the answer, and only when there is room to write: what comes meanwhile is merged where
//! it waits (DESIGN 3.1). Dropping it cancels every choice and gives back every booking (R21, R22).

use crate::dispatch::{Job, Started, silent, start};
use crate::model::{Model, Worker};
use crate::record::{Record, Usage};
use crate::shared::{Phase, Shared};
use dynamo_router::Booking;
use dynamo_runtime::BoxFuture;
use dynamo_runtime::plane::DeltaStream;
use dynamo_text::{Decoder, TextDelta};
use dynamo_types::{Delta, Error, InstanceId, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// The timer of a generation fires at most this often.
const TICK_MIN: Duration = Duration::from_millis(10);

/// What one poll brought.
#[derive(Debug)]
pub(crate) enum Step {
    /// Deltas were handed over; there may be more at once.
    Deltas,
    /// Nothing for a keep-alive interval.
    Quiet,
    /// All choices are complete.
    End,
    /// Nothing more comes.
    Failed(Error),
}

/// Takes each delta of choice `u32`, with the counts so far.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(u32, TextDelta, &Usage);

enum State {
    Dispatching(BoxFuture<'static, Result<Started>>),
    Streaming(Streaming),
    Done,
}

struct Streaming {
    stream: DeltaStream,
    booking: Booking,
    worker: Arc<Worker>,
    /// When its latest tokens came.
    last: Option<Instant>,
    /// When anything of it last came.
    heard: Instant,
}

struct Choice {
    decoder: Decoder,
    state: State,
}

/// An answer in progress.
pub(crate) struct Generation {
    shared: Arc<Shared>,
    model: Arc<Model>,
    record: Record,
    choices: Vec<Choice>,
    /// Choices per prompt: cached tokens are counted for the first of each.
    n: u32,
    open: usize,
    timer: Option<Pin<Box<Sleep>>>,
    last_event: Instant,
}

impl Generation {
    /// One job and decoder per choice, prompt by prompt.
    pub(crate) fn new(
        shared: Arc<Shared>,
        model: Arc<Model>,
        record: Record,
        n: u32,
        jobs: Vec<(Job, Decoder)>,
    ) -> Self {
        let choices: Vec<Choice> = jobs
            .into_iter()
            .map(|(job, decoder)| Choice { decoder, state: State::Dispatching(Box::pin(start(job))) })
            .collect();
        Self {
            open: choices.len(),
            shared,
            model,
            record,
            choices,
            n: n.max(1),
            timer: None,
            last_event: Instant::now(),
        }
    }

    pub(crate) fn usage(&self) -> &Usage {
        &self.record.usage
    }

    pub(crate) fn choice_count(&self) -> usize {
        self.choices.len()
    }

    /// Are all choices complete?
    pub(crate) fn is_complete(&self) -> bool {
        self.open == 0
    }

    /// The answer was handed over whole.
    pub(crate) fn succeed(&mut self) {
        self.record.succeed();
    }

    pub(crate) fn fail(&mut self, error: &Error) {
        self.record.fail(error);
        // Whatever runs is of no use any more.
        self.choices.iter_mut().for_each(|choice| choice.state = State::Done);
        self.open = 0;
    }

    /// Hands over everything that is there. After anything but `Pending` and `End`, call again: only a `Pending` has
    /// arranged for a wake-up.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, sink: Sink<'_>) -> Poll<Step> {
        if self.open == 0 {
            return Poll::Ready(Step::End);
        }
        if self.shared.phase() == Phase::Stopping {
            return Poll::Ready(self.failed(Error::unavailable("the server is shutting down")));
        }
        let mut progress = None;
        for index in 0..self.choices.len() {
            match self.poll_choice(index, cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(delta)) => {
                    let now = *progress.get_or_insert_with(Instant::now);
                    if let Some(text) = self.accept(index, delta, now) {
                        sink(index as u32, text, &self.record.usage);
                    }
                }
                Poll::Ready(Err(error)) => return Poll::Ready(self.failed(error)),
            }
        }
        match progress {
            Some(now) => {
                self.last_event = now;
                Poll::Ready(Step::Deltas)
            }
            None => self.poll_timer(cx),
        }
    }

    fn failed(&mut self, error: Error) -> Step {
        self.fail(&error);
        Step::Failed(error)
    }

    fn poll_choice(&mut self, index: usize, cx: &mut Context<'_>) -> Poll<Result<Delta>> {
        let Some(choice) = self.choices.get_mut(index) else { return Poll::Pending };
        match &mut choice.state {
            State::Done => Poll::Pending,
            State::Dispatching(dispatch) => match dispatch.as_mut().poll(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Ready(Ok(started)) => {
                    self.record.worker.get_or_insert(started.target);
                    choice.state = State::Streaming(Streaming {
                        stream: started.stream,
                        booking: started.booking,
                        worker: started.worker,
                        last: None,
                        heard: Instant::now(),
                    });
                    Poll::Ready(Ok(started.first))
                }
            },
            State::Streaming(streaming) => {
                let error = match streaming.stream.poll_next(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Ok(delta))) => return Poll::Ready(Ok(delta)),
                    Poll::Ready(Some(Err(error))) => error,
                    Poll::Ready(None) => Error::disconnected("the worker ended the answer without a reason"),
                };
                let id = streaming.worker.instance.id;
                self.model.router.report(id, Some(&error), self.shared.now_ms());
                Poll::Ready(Err(error))
            }
        }
    }

    /// Counts a delta, decodes it, and closes the choice if that was its last.
    fn accept(&mut self, index: usize, delta: Delta, now: Instant) -> Option<TextDelta> {
        let choice = self.choices.get_mut(index)?;
        let text = choice.decoder.push(delta);
        let count = text.tokens.len() as u32;
        if let State::Streaming(streaming) = &mut choice.state {
            streaming.worker.seen(now);
            streaming.heard = now;
            if count > 0 {
                if streaming.last.is_none() {
                    streaming.booking.first_token();
                }
                streaming.booking.output_tokens(count);
                self.record.tokens(count, streaming.last.replace(now), now);
            }
        }
        if let Some(cached) = text.cached_tokens
            && (index as u32).is_multiple_of(self.n)
        {
            *self.record.usage.cached_tokens.get_or_insert(0) += cached;
        }
        if text.finish.is_some() || choice.decoder.stopped() {
            // Dropping the stream cancels an engine that would go on; the booking goes with it.
            if let State::Streaming(done) = std::mem::replace(&mut choice.state, State::Done) {
                self.model.router.report(done.worker.instance.id, None, self.shared.now_ms());
            }
            self.open -= 1;
        }
        Some(text)
    }

    /// Keep-alive and silence share one timer, which is armed again only when it fires: nothing per token.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        let (keep_alive, silence) = (self.shared.keep_alive(), self.shared.silence_timeout());
        let Some(interval) = keep_alive.into_iter().chain(silence).min() else { return Poll::Pending };
        loop {
            let armed = self.timer.take();
            let mut timer = armed.unwrap_or_else(|| Box::pin(sleep_until(self.last_event + interval)));
            if timer.as_mut().poll(cx).is_pending() {
                self.timer = Some(timer);
                return Poll::Pending;
            }
            let now = Instant::now();
            timer.as_mut().reset(now + self.until_due(now, keep_alive, silence).max(TICK_MIN));
            self.timer = Some(timer);
            if let Some(timeout) = silence
                && let Some(worker) = self.silent_worker(now, timeout)
            {
                let error = silent(timeout);
                self.model.router.report(worker, Some(&error), self.shared.now_ms());
                return Poll::Ready(self.failed(error));
            }
            if keep_alive.is_some_and(|interval| now - self.last_event >= interval) {
                self.last_event = now;
                return Poll::Ready(Step::Quiet);
            }
        }
    }

    /// Time until there may be something to do.
    fn until_due(&self, now: Instant, keep_alive: Option<Duration>, silence: Option<Duration>) -> Duration {
        let since = now - self.last_event;
        let keep_alive = keep_alive.map(|interval| match interval.saturating_sub(since) {
            // It is due now, so this is about the one after.
            Duration::ZERO => interval,
            left => left,
        });
        let silence = silence.map(|timeout| match timeout.saturating_sub(since) {
            // The worker is heard of, though not by this request: look again soon.
            Duration::ZERO => timeout / 4,
            left => left,
        });
        keep_alive.into_iter().chain(silence).min().unwrap_or_default()
    }

    /// A worker that a choice waits for and that is not heard of. Choices still being dispatched look after themselves.
    fn silent_worker(&self, now: Instant, timeout: Duration) -> Option<InstanceId> {
        self.choices.iter().find_map(|choice| match &choice.state {
            State::Streaming(streaming)
                if now - streaming.heard >= timeout && streaming.worker.quiet_for(now) >= timeout =>
            {
                Some(streaming.worker.instance.id)
            }
            State::Streaming(_) | State::Dispatching(_) | State::Done => None,
        })
    }
}
