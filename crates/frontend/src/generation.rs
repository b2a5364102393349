//! A whole answer in progress: all choices of all prompts, as one stream of text deltas.
//!
//! It is polled by whoever writes the answer, and only when there is room to write: what comes meanwhile is merged where
//! it waits (DESIGN 3.1). Dropping it cancels every choice and gives back every booking (R21, R22).

use crate::aside::Aside;
use crate::course::Course;
use crate::dispatch::Job;
use crate::facts::Facts;
use crate::patience::Patience;
use crate::record::{Record, Usage};
use crate::shared::{Phase, Shared};
use dynamo_text::{Decoder, TextDelta};
use dynamo_types::{Delta, Error};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// The timer of a generation fires at most this often.
const TICK_MIN: Duration = Duration::from_millis(10);

/// Choices of one request that are on their way at once; each further one starts when one of these is over. A batch of
/// thousands would fill the queues of the engines, and be refused for it.
const MAX_OPEN_CHOICES: usize = 128;

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

/// Takes each delta of choice `u32`, with the counts so far, and how it is made if that is to be told.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(u32, TextDelta, &Usage, Option<&Facts>);

struct Choice {
    decoder: Decoder,
    course: Course,
    /// When its latest tokens came.
    last: Option<Instant>,
    is_over: bool,
}

/// An answer in progress.
pub(crate) struct Generation {
    shared: Arc<Shared>,
    record: Record,
    choices: Vec<Choice>,
    /// Choices per prompt: cached tokens are counted for the first of each.
    n: u32,
    tells_facts: bool,
    open: usize,
    timer: Option<Aside<Sleep>>,
    last_event: Instant,
}

impl Generation {
    /// One job and decoder per choice, prompt by prompt.
    pub(crate) fn new(
        shared: Arc<Shared>,
        record: Record,
        n: u32,
        tells_facts: bool,
        jobs: Vec<(Job, Decoder)>,
    ) -> Self {
        let log = record.log_span().clone();
        let choices: Vec<Choice> = jobs
            .into_iter()
            .map(|(job, decoder)| Choice {
                decoder,
                course: Course::new(job, log.clone()),
                last: None,
                is_over: false,
            })
            .collect();
        Self {
            open: choices.len(),
            shared,
            record,
            choices,
            n: n.max(1),
            tells_facts,
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
        self.choices.iter_mut().for_each(|choice| choice.close(Course::abandon));
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
        loop {
            let mut progress = None;
            // In order, and as many further ones as are over.
            let begun = self.choices.len().min(self.choices.len() - self.open + MAX_OPEN_CHOICES);
            for index in 0..begun {
                match self.poll_choice(index, cx) {
                    Poll::Pending => {}
                    Poll::Ready(Ok(delta)) => {
                        let now = *progress.get_or_insert_with(Instant::now);
                        self.hand_over(index, delta, now, &mut *sink);
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(self.failed(error)),
                }
            }
            if let Some(now) = progress {
                self.last_event = now;
                return Poll::Ready(Step::Deltas);
            }
            match self.poll_timer(cx, &mut *sink) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(step)) => return Poll::Ready(step),
                // A choice has moved: its new attempt has not been polled.
                Poll::Ready(None) => {}
            }
        }
    }

    fn hand_over(&mut self, index: usize, delta: Delta, now: Instant, sink: Sink<'_>) {
        if let Some(text) = self.accept(index, delta, now) {
            let facts = self.facts(index, now);
            sink(index as u32, text, &self.record.usage, facts.as_ref());
        }
    }

    fn facts(&self, index: usize, now: Instant) -> Option<Facts> {
        let choice = self.choices.get(index).filter(|_| self.tells_facts)?;
        choice.course.placed().map(|&placed| Facts { placed, received: self.record.started(), now })
    }

    fn failed(&mut self, error: Error) -> Step {
        self.fail(&error);
        Step::Failed(error)
    }

    fn poll_choice(&mut self, index: usize, cx: &mut Context<'_>) -> Poll<Result<Delta, Error>> {
        match self.choices.get_mut(index) {
            Some(choice) if !choice.is_over => choice.course.poll(cx),
            Some(_) | None => Poll::Pending,
        }
    }

    /// Counts a delta, decodes it, and closes the choice if that was its last.
    fn accept(&mut self, index: usize, delta: Delta, now: Instant) -> Option<TextDelta> {
        let choice = self.choices.get_mut(index)?;
        let text = choice.decoder.push(delta);
        let count = text.tokens.len() as u32;
        choice.course.heard(count, now);
        if count > 0 {
            self.record.tokens(count, choice.last.replace(now), now);
        }
        if let Some(placed) = choice.course.placed()
            && (index == 0 || self.record.worker.is_none())
        {
            self.record.worker = Some(placed.target);
        }
        if let Some(cached) = text.cached_tokens
            && (index as u32).is_multiple_of(self.n)
        {
            *self.record.usage.cached_tokens.get_or_insert(0) += cached;
        }
        if text.finish.is_some() || choice.decoder.stopped() {
            choice.close(Course::close);
            self.open -= 1;
        }
        Some(text)
    }

    /// Keep-alive and silence share one timer, which is armed again only when it fires and looked at only when it has:
    /// nothing per token. None: look at the choices again.
    fn poll_timer(&mut self, cx: &mut Context<'_>, sink: Sink<'_>) -> Poll<Option<Step>> {
        if self.timer.is_none() {
            let limits = self.shared.keep_alive().into_iter().chain(self.shared.patience().shortest());
            let Some(interval) = limits.min() else { return Poll::Pending };
            self.timer = Some(Aside::new(sleep_until(self.last_event + interval)));
        }
        while let Some(timer) = &mut self.timer {
            ready!(Pin::new(timer).poll(cx));
            let (now, keep_alive, patience) =
                (Instant::now(), self.shared.keep_alive(), self.shared.patience());
            let next = now + self.until_due(now, keep_alive, &patience).max(TICK_MIN);
            if let Some(timer) = &mut self.timer {
                timer.change(|sleep| sleep.reset(next));
            }
            if let Some(step) = self.leave_quiet(now, &patience, &mut *sink) {
                return Poll::Ready(step);
            }
            if keep_alive.is_some_and(|interval| now - self.last_event >= interval) {
                self.last_event = now;
                return Poll::Ready(Some(Step::Quiet));
            }
        }
        Poll::Pending
    }

    /// Time until there may be something to do.
    fn until_due(&self, now: Instant, keep_alive: Option<Duration>, patience: &Patience) -> Duration {
        let since = now - self.last_event;
        let keep_alive = keep_alive.map(|interval| match interval.saturating_sub(since) {
            // It is due now, so this is about the one after.
            Duration::ZERO => interval,
            left => left,
        });
        keep_alive.into_iter().chain(patience.look_again(since)).min().unwrap_or_default()
    }

    /// Leaves the workers that have kept choices waiting for too long. The outer None: there are none.
    fn leave_quiet(&mut self, now: Instant, patience: &Patience, sink: Sink<'_>) -> Option<Option<Step>> {
        let mut step = None;
        for index in 0..self.choices.len() {
            let choice = self.choices.get_mut(index)?;
            match choice.course.leave_quiet(now, patience) {
                None => {}
                Some(Ok(None)) => step = step.or(Some(None)),
                Some(Ok(Some(delta))) => {
                    self.hand_over(index, delta, now, &mut *sink);
                    self.last_event = now;
                    step = Some(Some(Step::Deltas));
                }
                Some(Err(error)) => return Some(Some(self.failed(error))),
            }
        }
        step
    }
}

impl Choice {
    fn close(&mut self, how: impl FnOnce(&mut Course)) {
        self.is_over = true;
        how(&mut self.course);
    }
}
