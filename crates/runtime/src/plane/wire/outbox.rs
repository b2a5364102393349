//! What a worker has to say to one caller, until the connection takes it.
//!
//! Deltas of a stream that were not written yet are one delta: a caller that reads slowly gets fewer and larger ones, and
//! what waits is bounded by the answers themselves. Everything that waits leaves as one frame, so a step of the engine is one
//! frame however many streams it advanced.

use super::frame::Item;
use crate::sync::lock;
use dynamo_types::{Delta, DeltaSink, Error};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

#[derive(Default)]
pub(super) struct Outbox {
    state: Mutex<State>,
    ready: Notify,
    /// Told whenever all that waited was written.
    written: Notify,
}

#[derive(Default)]
struct State {
    items: Vec<Item>,
    /// Counts how often `items` was taken: an item's place holds for one round only.
    round: u64,
    /// Streams that have not ended, by number.
    open: FxHashMap<u64, Stream>,
    /// Items were taken that are not written yet.
    is_writing: bool,
    closed: bool,
}

struct Stream {
    cancelled: Arc<AtomicBool>,
    /// The worker took the request. What a sink is told before is held back, because a refusal has better words.
    admitted: bool,
    early: Option<Error>,
}

impl Outbox {
    /// A sink for a new stream. None: the number is in use, which no caller may do.
    ///
    /// # Errors
    /// The connection is closed, or it has `limit` streams.
    pub(super) fn open(self: &Arc<Self>, stream: u64, limit: usize) -> Option<Result<Sink, Error>> {
        let mut state = lock(&self.state);
        if state.closed {
            return Some(Err(Error::disconnected("the connection to the worker is closed")));
        }
        if state.open.len() >= limit {
            return Some(Err(Error::overloaded("the chosen worker has no room for another request")
                .with_detail(format!("{limit} streams on one connection, which is the limit"))));
        }
        if state.open.contains_key(&stream) {
            return None;
        }
        let cancelled = Arc::new(AtomicBool::new(false));
        state.open.insert(stream, Stream { cancelled: Arc::clone(&cancelled), admitted: false, early: None });
        drop(state);
        Some(Ok(Sink {
            outbox: Arc::clone(self),
            stream,
            cancelled,
            place: 0,
            round: u64::MAX,
            ended: false,
            batched: false,
        }))
    }

    /// Says that a stream could not begin.
    pub(super) fn refuse(&self, stream: u64, error: Error) {
        let mut state = lock(&self.state);
        if !state.closed {
            state.items.push(Item { stream, delta: Delta::default(), error: Some(error) });
        }
        drop(state);
        self.ready.notify_one();
    }

    /// The worker took the request of this stream, or refused it.
    pub(super) fn settle(&self, stream: u64, taken: Result<(), Error>) {
        let mut state = lock(&self.state);
        let fault = match taken {
            Err(refusal) => Some(refusal),
            Ok(()) => match state.open.get_mut(&stream) {
                Some(known) => {
                    known.admitted = true;
                    known.early.take()
                }
                None => None,
            },
        };
        let Some(fault) = fault else { return };
        state.open.remove(&stream);
        drop(state);
        self.refuse(stream, fault);
    }

    /// The caller wants no more of this stream. Unknown numbers ended by themselves meanwhile.
    pub(super) fn cancel(&self, stream: u64) {
        if let Some(known) = lock(&self.state).open.remove(&stream) {
            known.cancelled.store(true, Ordering::Release);
        }
    }

    /// Ends every stream: nobody reads any more.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.is_writing = false;
        state.items = Vec::new();
        state.round += 1;
        state.open.drain().for_each(|(_, stream)| stream.cancelled.store(true, Ordering::Release));
        drop(state);
        self.written.notify_waiters();
    }

    /// Lets go what was pushed.
    pub(super) fn flush(&self) {
        if !lock(&self.state).items.is_empty() {
            self.ready.notify_one();
        }
    }

    /// Waits until something was let go. Cancel-safe; may complete for nothing.
    pub(super) async fn ready(&self) {
        self.ready.notified().await;
    }

    /// Takes all that waits, in the order in which the streams came.
    pub(super) fn take(&self) -> Vec<Item> {
        let mut state = lock(&self.state);
        state.round += 1;
        state.is_writing |= !state.items.is_empty();
        std::mem::take(&mut state.items)
    }

    /// What was taken is with the kernel.
    pub(super) fn wrote(&self) {
        lock(&self.state).is_writing = false;
        self.written.notify_waiters();
    }

    /// Completes when nothing that was pushed waits any more.
    pub(super) async fn settled(&self) {
        loop {
            let written = self.written.notified();
            {
                let state = lock(&self.state);
                if state.closed || (state.items.is_empty() && !state.is_writing) {
                    return;
                }
            }
            self.ready.notify_one();
            written.await;
        }
    }

    pub(super) fn open_count(&self) -> usize {
        lock(&self.state).open.len()
    }
}

/// A stream's end in the engine's hands.
pub(super) struct Sink {
    outbox: Arc<Outbox>,
    stream: u64,
    cancelled: Arc<AtomicBool>,
    /// Where this stream's item is, if `round` is the outbox's.
    place: usize,
    round: u64,
    ended: bool,
    /// Somebody flushes after each group of pushes.
    batched: bool,
}

impl Sink {
    /// Leaves the flush after a push to whoever made it.
    pub(super) fn set_batched(&mut self) {
        self.batched = true;
    }

    fn update(&mut self, delta: Delta, error: Option<Error>) {
        let outbox = Arc::clone(&self.outbox);
        let mut state = lock(&outbox.state);
        if self.ended || state.closed || self.is_cancelled() {
            return;
        }
        self.ended = delta.finish.is_some() || error.is_some();
        if let (Some(error), Some(stream)) = (&error, state.open.get_mut(&self.stream))
            && !stream.admitted
        {
            stream.early = Some(error.clone());
            return;
        }
        if self.ended {
            state.open.remove(&self.stream);
        }
        let place = if self.round == state.round { state.items.get_mut(self.place) } else { None };
        if let Some(item) = place {
            item.delta.merge(delta);
            item.error = error;
        } else {
            self.round = state.round;
            self.place = state.items.len();
            state.items.push(Item { stream: self.stream, delta, error });
        }
    }
}

impl DeltaSink for Sink {
    fn push(&mut self, delta: Delta) {
        if delta.is_empty() {
            return;
        }
        self.update(delta, None);
        if !self.batched {
            self.outbox.ready.notify_one();
        }
    }

    fn fail(&mut self, error: Error) {
        if !self.ended {
            self.update(Delta::default(), Some(error));
            self.outbox.ready.notify_one();
        }
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.fail(Error::disconnected("the worker broke off the answer"));
    }
}
