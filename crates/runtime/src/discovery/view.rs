//! The last known picture of the fleet, and those who watch it.

use super::Event;
use crate::sync::lock;
use dynamo_types::{InstanceId, ModelRecord};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// The records a back end knows of. Every change is told to every watcher; a watcher that does not keep up gets a
/// fresh list in place of the changes it missed.
pub struct View {
    state: Mutex<State>,
    /// Changes that may wait for one watcher.
    queue_limit: usize,
}

#[derive(Default)]
struct State {
    records: BTreeMap<InstanceId, ModelRecord>,
    watchers: FxHashMap<u64, Watcher>,
    next_watcher: u64,
    closed: bool,
}

struct Watcher {
    changes: VecDeque<Event>,
    /// The next thing to tell is the full list.
    stale: bool,
    waker: Option<Waker>,
}

impl State {
    fn tell(&mut self, event: &Event, queue_limit: usize) {
        for watcher in self.watchers.values_mut() {
            if !watcher.stale {
                if watcher.changes.len() < queue_limit {
                    watcher.changes.push_back(event.clone());
                } else {
                    watcher.changes.clear();
                    watcher.stale = true;
                }
            }
            if let Some(waker) = watcher.waker.take() {
                waker.wake();
            }
        }
    }

    fn make_stale(&mut self) {
        for watcher in self.watchers.values_mut() {
            watcher.changes.clear();
            watcher.stale = true;
            if let Some(waker) = watcher.waker.take() {
                waker.wake();
            }
        }
    }
}

impl View {
    pub fn new(queue_limit: usize) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), queue_limit })
    }

    /// All records, by instance id.
    pub fn list(&self) -> Vec<ModelRecord> {
        lock(&self.state).records.values().cloned().collect()
    }

    /// A new record, or a new state of a known one. Nothing is told if it changes nothing.
    pub fn put(&self, record: ModelRecord) {
        let mut state = lock(&self.state);
        let known = state.records.insert(record.instance.id, record.clone());
        if known.as_ref() != Some(&record) {
            state.tell(&Event::Put(record), self.queue_limit);
        }
    }

    /// Puts the record only if `admit` accepts it next to what is there.
    pub fn try_put<E>(
        &self,
        record: ModelRecord,
        admit: impl FnOnce(&mut dyn ExactSizeIterator<Item = &ModelRecord>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = lock(&self.state);
        admit(&mut state.records.values())?;
        state.records.insert(record.instance.id, record.clone());
        state.tell(&Event::Put(record), self.queue_limit);
        Ok(())
    }

    /// Changes a known record.
    pub fn update(&self, id: InstanceId, change: impl FnOnce(&mut ModelRecord)) {
        let mut state = lock(&self.state);
        let Some(record) = state.records.get_mut(&id) else { return };
        change(record);
        let record = record.clone();
        state.tell(&Event::Put(record), self.queue_limit);
    }

    pub fn delete(&self, id: InstanceId) {
        let mut state = lock(&self.state);
        if state.records.remove(&id).is_some() {
            state.tell(&Event::Delete(id), self.queue_limit);
        }
    }

    /// Takes over a full list from the store. Watchers get it as a list, so nothing they hold outlives it.
    pub fn replace(&self, records: Vec<ModelRecord>) {
        let mut state = lock(&self.state);
        state.records = records.into_iter().map(|record| (record.instance.id, record)).collect();
        state.make_stale();
    }

    /// Takes over a full list as the changes that lead to it.
    pub fn reconcile(&self, records: Vec<ModelRecord>) {
        let wanted: BTreeMap<InstanceId, ModelRecord> =
            records.into_iter().map(|record| (record.instance.id, record)).collect();
        let mut state = lock(&self.state);
        let gone: Vec<InstanceId> =
            state.records.keys().filter(|id| !wanted.contains_key(id)).copied().collect();
        for id in gone {
            state.records.remove(&id);
            state.tell(&Event::Delete(id), self.queue_limit);
        }
        for (id, record) in wanted {
            if state.records.get(&id) != Some(&record) {
                state.records.insert(id, record.clone());
                state.tell(&Event::Put(record), self.queue_limit);
            }
        }
    }

    /// Ends every watch, after what is pending.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.watchers.values_mut().filter_map(|watcher| watcher.waker.take()).for_each(Waker::wake);
    }

    /// A new watcher, which gets the full list first, and again every `relist` if that is given.
    pub fn watch(self: &Arc<Self>, relist: Option<Duration>) -> Watch {
        let mut state = lock(&self.state);
        let id = state.next_watcher;
        state.next_watcher += 1;
        state.watchers.insert(id, Watcher { changes: VecDeque::new(), stale: true, waker: None });
        Watch { view: Arc::clone(self), id, relist, timer: None }
    }

    /// Watchers there are now.
    pub fn watcher_count(&self) -> usize {
        lock(&self.state).watchers.len()
    }
}

/// A full list, then changes, and a full list again whenever changes were lost or the relist interval passed.
pub struct Watch {
    view: Arc<View>,
    id: u64,
    relist: Option<Duration>,
    timer: Option<std::pin::Pin<Box<Sleep>>>,
}

impl Watch {
    /// The next thing to know; `None` once discovery was shut down. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let relist_due = self.relist.is_some() && self.poll_timer(context).is_ready();
        let event = {
            let mut state = lock(&self.view.state);
            let closed = state.closed;
            let Some(watcher) = state.watchers.get_mut(&self.id) else { return Poll::Ready(None) };
            if watcher.stale || relist_due {
                watcher.stale = false;
                watcher.changes.clear();
                Event::List(state.records.values().cloned().collect())
            } else if let Some(change) = watcher.changes.pop_front() {
                return Poll::Ready(Some(change));
            } else if closed {
                return Poll::Ready(None);
            } else {
                watcher.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
        };
        self.timer = None;
        if self.relist.is_some() {
            // Arms the timer for a caller that is not polled again before it fires.
            let _ = self.poll_timer(context);
        }
        Poll::Ready(Some(event))
    }

    fn poll_timer(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(relist) = self.relist else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + relist)));
        timer.as_mut().poll(context)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        lock(&self.view.state).watchers.remove(&self.id);
    }
}
