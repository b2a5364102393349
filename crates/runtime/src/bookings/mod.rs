//! Booking sync: what routers of other processes have placed on the workers (DESIGN 3.5, behaviour.md 2.8).
//!
//! Everyone who places requests writes them on a board; whoever wants to know reads it. A frontend has a board of its own
//! placements, which the connection to each worker reads, and one of what it hears of others. Each worker process has one
//! between the two: the connections of its frontends write on it and read what the other frontends wrote. What a
//! connection wrote ends with the connection, so a frontend that dies is forgotten where its streams end, and so is all
//! that was heard from a worker that cannot be reached.

mod board;
#[cfg(test)]
mod tests;

pub use board::{Change, Limits, News};

use crate::sync::lock;
use board::Board;
use dynamo_types::{InstanceId, Placement, Placements};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

/// A board that several tasks share. Clones are the same board.
#[derive(Clone, Debug, Default)]
pub struct Exchange {
    board: Arc<Mutex<Board>>,
}

impl Exchange {
    pub fn new(limits: Limits) -> Self {
        Self { board: Arc::new(Mutex::new(Board::new(limits))) }
    }

    /// Someone who places requests. A writer of the same `origin` loses its voice, and what it placed.
    pub fn writer(&self, origin: Option<u64>) -> Writer {
        let id = lock(&self.board).open_writer(origin);
        Writer { board: Arc::clone(&self.board), id, is_full: AtomicBool::new(false) }
    }

    /// Someone who wants to know all that is placed on the `wanted` (None: on all), except by `except`. First it hears of
    /// all that is there.
    pub fn reader(&self, except: Option<u64>, wanted: Option<&[InstanceId]>) -> Reader {
        let id = lock(&self.board).open_reader(except, wanted);
        Reader { board: Arc::clone(&self.board), id }
    }

    /// Placements that are on the board.
    pub fn len(&self) -> usize {
        lock(&self.board).len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Writes on a board. What it placed ends when it is dropped.
#[derive(Debug)]
pub struct Writer {
    board: Arc<Mutex<Board>>,
    id: u64,
    /// Something was left out, which has been said.
    is_full: AtomicBool,
}

impl Writer {
    /// Places a request under a number of the writer's own, or replaces it.
    pub fn put(&self, id: u64, placement: Placement) {
        if !lock(&self.board).put(self.id, id, placement) && !self.is_full.swap(true, Ordering::Relaxed) {
            tracing::warn!("too many requests are in flight; other frontends are not told of all");
        }
    }

    pub fn change(&self, id: u64, prefill_tokens: u64, output_millis: u64) {
        lock(&self.board).change(self.id, id, prefill_tokens, output_millis);
    }

    pub fn end(&self, id: u64) {
        lock(&self.board).end(self.id, id);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        lock(&self.board).close_writer(self.id);
    }
}

/// Reads a board.
#[derive(Debug)]
pub struct Reader {
    board: Arc<Mutex<Board>>,
    id: u64,
}

impl Reader {
    /// Waits until there is something to hear. Cancel-safe.
    pub async fn changed(&self) {
        std::future::poll_fn(|context| {
            if lock(&self.board).poll(self.id, context) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// What was not heard yet; with at most `placements`, and no more once they have this many block `hashes`.
    pub fn take(&self, hashes: usize, placements: usize) -> News {
        lock(&self.board).take(self.id, hashes, placements)
    }

    /// Wants to know of placements on this worker too.
    pub fn want(&self, worker: InstanceId) {
        lock(&self.board).want(self.id, worker);
    }

    /// Wants to hear all on this worker once more.
    pub fn repeat(&self, worker: InstanceId) {
        lock(&self.board).repeat(self.id, worker);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        lock(&self.board).close_reader(self.id);
    }
}

/// What a process that places requests has to do with others of its kind. Clones share the boards.
#[derive(Clone, Debug)]
pub struct Peers {
    /// Names this process to workers, so that it does not hear of itself, whichever connection it comes by.
    origin: u64,
    own: Exchange,
    heard: Exchange,
    placed: Arc<Placed>,
}

impl Peers {
    pub fn new() -> Self {
        // The standard library seeds each hasher from the operating system.
        Self::with_origin(RandomState::new().hash_one(0))
    }

    /// Another process with the same `origin` would not be heard.
    pub(crate) fn with_origin(origin: u64) -> Self {
        let own = Exchange::default();
        let placed = Placed { writer: own.writer(Some(origin)), next: AtomicU64::new(0) };
        Self { origin, own, heard: Exchange::default(), placed: Arc::new(placed) }
    }

    pub fn origin(&self) -> u64 {
        self.origin
    }

    /// Where this process's routers say what they place.
    pub fn placements(&self) -> Arc<dyn Placements> {
        Arc::clone(&self.placed) as Arc<dyn Placements>
    }

    /// What this process places.
    pub fn own(&self) -> &Exchange {
        &self.own
    }

    /// What others place.
    pub fn heard(&self) -> &Exchange {
        &self.heard
    }
}

impl Default for Peers {
    fn default() -> Self {
        Self::new()
    }
}

/// The placements of this process, numbered.
#[derive(Debug)]
struct Placed {
    writer: Writer,
    next: AtomicU64,
}

impl Placements for Placed {
    fn placed(&self, placement: Placement) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.writer.put(id, placement);
        id
    }

    fn changed(&self, id: u64, prefill_tokens: u64, output_millis: u64) {
        self.writer.change(id, prefill_tokens, output_millis);
    }

    fn ended(&self, id: u64) {
        self.writer.end(id);
    }
}
