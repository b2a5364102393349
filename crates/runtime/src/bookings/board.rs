//! The board as a state machine: who placed what, and what each reader has not been told.
//!
//! Nothing is queued. A reader has one mark per placement it has to hear of, and gets what holds when it looks: what came
//! and went meanwhile it never hears of. So what waits for a reader is bounded by what is on the board and by what it was
//! told before.

use dynamo_types::{InstanceId, Placement, WorkerRank};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Waker};

/// Limits of a board.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Placements: above what all frontends of a large fleet have in flight. The next is left out.
    pub placements: usize,
    /// Block hashes of all placements, 8 bytes each. Beyond it blocks are counted and not named, so that what prompts
    /// share counts more than once.
    pub hashes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { placements: 256 << 10, hashes: 8 << 20 }
    }
}

/// What a reader gets: the placements by their number on the board. One that is put again replaces itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct News {
    pub put: Vec<(u64, Placement)>,
    /// What they take now: prefill tokens and thousandths of output blocks.
    pub changed: Vec<Change>,
    pub ended: Vec<(u64, WorkerRank)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub number: u64,
    pub target: WorkerRank,
    pub prefill_tokens: u64,
    pub output_millis: u64,
}

impl News {
    pub fn is_empty(&self) -> bool {
        self.put.is_empty() && self.changed.is_empty() && self.ended.is_empty()
    }
}

/// What a reader has to hear of one placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// All, and it has never heard of it.
    New,
    /// All, once more.
    Again,
    /// What it takes now.
    Changed,
    Ended(WorkerRank),
}

#[derive(Debug)]
struct Entry {
    writer: u64,
    placement: Placement,
}

#[derive(Debug, Default)]
struct WriterState {
    origin: Option<u64>,
    /// The writer's own numbers to the board's.
    numbers: FxHashMap<u64, u64>,
}

#[derive(Debug, Default)]
struct ReaderState {
    /// Whose placements it does not want: its own.
    except: Option<u64>,
    /// On whom it wants them; None: on all.
    wanted: Option<FxHashSet<InstanceId>>,
    marks: BTreeMap<u64, Mark>,
    waker: Option<Waker>,
}

impl ReaderState {
    fn sees(&self, origin: Option<u64>, target: WorkerRank) -> bool {
        (self.except.is_none() || self.except != origin)
            && self.wanted.as_ref().is_none_or(|wanted| wanted.contains(&target.worker))
    }

    fn mark(&mut self, number: u64, mark: Mark) {
        let before = self.marks.get(&number).copied();
        let after = match (before, mark) {
            // Never heard of, and gone.
            (Some(Mark::New), Mark::Ended(_)) => None,
            (Some(Mark::New), _) => Some(Mark::New),
            (Some(Mark::Again), Mark::Changed) => Some(Mark::Again),
            (_, mark) => Some(mark),
        };
        match after {
            Some(after) => self.marks.insert(number, after),
            None => self.marks.remove(&number),
        };
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Writers, readers and what is placed. Names of writers and readers are never used twice.
#[derive(Debug, Default)]
pub(super) struct Board {
    limits: Limits,
    entries: FxHashMap<u64, Entry>,
    /// Of all entries.
    hashes: usize,
    writers: FxHashMap<u64, WriterState>,
    readers: FxHashMap<u64, ReaderState>,
    /// Readers that want a worker, and those that want all: a frontend has one for each of hundreds of connections.
    listeners: FxHashMap<InstanceId, Vec<u64>>,
    everywhere: Vec<u64>,
    next: u64,
}

impl Board {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    fn name(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A writer; one of the same origin is closed, for it is that one's new life.
    pub(super) fn open_writer(&mut self, origin: Option<u64>) -> u64 {
        if origin.is_some() {
            let former: Vec<u64> =
                self.writers.iter().filter(|(_, it)| it.origin == origin).map(|it| *it.0).collect();
            former.into_iter().for_each(|writer| self.close_writer(writer));
        }
        let name = self.name();
        self.writers.insert(name, WriterState { origin, ..WriterState::default() });
        name
    }

    /// Everything it placed is over.
    pub(super) fn close_writer(&mut self, writer: u64) {
        let Some(state) = self.writers.remove(&writer) else { return };
        state.numbers.into_values().for_each(|number| self.remove(number, state.origin));
    }

    pub(super) fn open_reader(&mut self, except: Option<u64>, wanted: Option<&[InstanceId]>) -> u64 {
        let name = self.name();
        match wanted {
            Some(wanted) => {
                wanted.iter().for_each(|worker| self.listeners.entry(*worker).or_default().push(name));
            }
            None => self.everywhere.push(name),
        }
        let wanted = wanted.map(|wanted| wanted.iter().copied().collect());
        let mut reader = ReaderState { except, wanted, ..ReaderState::default() };
        for (number, entry) in &self.entries {
            let origin = self.writers.get(&entry.writer).and_then(|writer| writer.origin);
            if reader.sees(origin, entry.placement.target) {
                reader.marks.insert(*number, Mark::New);
            }
        }
        self.readers.insert(name, reader);
        name
    }

    pub(super) fn close_reader(&mut self, reader: u64) {
        let Some(ReaderState { wanted, .. }) = self.readers.remove(&reader) else { return };
        self.everywhere.retain(|other| *other != reader);
        for worker in wanted.into_iter().flatten() {
            if let Some(listeners) = self.listeners.get_mut(&worker) {
                listeners.retain(|other| *other != reader);
                if listeners.is_empty() {
                    self.listeners.remove(&worker);
                }
            }
        }
    }

    /// The reader wants placements on this worker too.
    pub(super) fn want(&mut self, reader: u64, worker: InstanceId) {
        let Some(state) = self.readers.get_mut(&reader) else { return };
        if state.wanted.as_mut().is_some_and(|wanted| wanted.insert(worker)) {
            self.listeners.entry(worker).or_default().push(reader);
            self.mark_all(reader, worker, Mark::New);
        }
    }

    /// The reader hears of all placements on this worker once more.
    pub(super) fn repeat(&mut self, reader: u64, worker: InstanceId) {
        self.mark_all(reader, worker, Mark::Again);
    }

    fn mark_all(&mut self, reader: u64, worker: InstanceId, mark: Mark) {
        let Some(state) = self.readers.get_mut(&reader) else { return };
        for (number, entry) in &self.entries {
            let target = entry.placement.target;
            let origin = self.writers.get(&entry.writer).and_then(|writer| writer.origin);
            if target.worker == worker && state.sees(origin, target) {
                state.mark(*number, mark);
            }
        }
    }

    /// Places a request, or replaces what the writer placed under the same `id`. False: there is no room.
    pub(super) fn put(&mut self, writer: u64, id: u64, mut placement: Placement) -> bool {
        let Some(origin) = self.writers.get(&writer).map(|state| state.origin) else { return true };
        self.end(writer, id);
        if self.entries.len() >= self.limits.placements {
            return false;
        }
        if self.hashes + placement.blocks.len() > self.limits.hashes {
            placement.anonymous_blocks += placement.blocks.len() as u64;
            placement.blocks = Arc::default();
        }
        let number = self.name();
        self.hashes += placement.blocks.len();
        let target = placement.target;
        self.entries.insert(number, Entry { writer, placement });
        if let Some(state) = self.writers.get_mut(&writer) {
            state.numbers.insert(id, number);
        }
        self.tell(number, origin, target, Mark::New);
        true
    }

    pub(super) fn change(&mut self, writer: u64, id: u64, prefill_tokens: u64, output_millis: u64) {
        let Some((number, origin)) = self.find(writer, id) else { return };
        let Some(Entry { placement, .. }) = self.entries.get_mut(&number) else { return };
        placement.prefill_tokens = prefill_tokens;
        placement.output_millis = output_millis;
        let target = placement.target;
        self.tell(number, origin, target, Mark::Changed);
    }

    pub(super) fn end(&mut self, writer: u64, id: u64) {
        let Some(state) = self.writers.get_mut(&writer) else { return };
        let origin = state.origin;
        if let Some(number) = state.numbers.remove(&id) {
            self.remove(number, origin);
        }
    }

    fn find(&self, writer: u64, id: u64) -> Option<(u64, Option<u64>)> {
        let state = self.writers.get(&writer)?;
        Some((*state.numbers.get(&id)?, state.origin))
    }

    fn remove(&mut self, number: u64, origin: Option<u64>) {
        let Some(Entry { placement, .. }) = self.entries.remove(&number) else { return };
        self.hashes -= placement.blocks.len();
        self.tell(number, origin, placement.target, Mark::Ended(placement.target));
    }

    fn tell(&mut self, number: u64, origin: Option<u64>, target: WorkerRank, mark: Mark) {
        let Self { readers, listeners, everywhere, .. } = self;
        let listeners = listeners.get(&target.worker).into_iter().flatten();
        for name in listeners.chain(everywhere.iter()) {
            if let Some(reader) = readers.get_mut(name).filter(|reader| reader.sees(origin, target)) {
                reader.mark(number, mark);
            }
        }
    }

    /// Is there anything to hear? If not, `context` is woken once there is. True for readers that are closed.
    pub(super) fn poll(&mut self, reader: u64, context: &Context<'_>) -> bool {
        let Some(state) = self.readers.get_mut(&reader) else { return true };
        if state.marks.is_empty() {
            state.waker = Some(context.waker().clone());
        }
        !state.marks.is_empty()
    }

    /// What the reader has not heard, oldest placements first, with about as many block hashes and as many placements.
    pub(super) fn take(&mut self, reader: u64, hashes: usize, placements: usize) -> News {
        let mut news = News::default();
        let Some(state) = self.readers.get_mut(&reader) else { return news };
        let mut left = hashes;
        for _ in 0..placements {
            if left == 0 {
                break;
            }
            let Some((number, mark)) = state.marks.pop_first() else { break };
            let placement = self.entries.get(&number).map(|entry| &entry.placement);
            match (mark, placement) {
                (Mark::Ended(target), _) => news.ended.push((number, target)),
                (Mark::New | Mark::Again, Some(placement)) => {
                    left = left.saturating_sub(placement.blocks.len());
                    news.put.push((number, placement.clone()));
                }
                (Mark::Changed, Some(placement)) => news.changed.push(Change {
                    number,
                    target: placement.target,
                    prefill_tokens: placement.prefill_tokens,
                    output_millis: placement.output_millis,
                }),
                // What ended is marked as ended.
                (_, None) => {}
            }
        }
        news
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize, usize, usize) {
        let readers = self.readers.len() + self.listeners.len() + self.everywhere.len();
        (self.entries.len(), self.hashes, self.writers.len(), readers)
    }

    #[cfg(test)]
    pub(super) fn waiting(&self, reader: u64) -> usize {
        self.readers.get(&reader).map_or(0, |state| state.marks.len())
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}
