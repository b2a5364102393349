//! The event plane of one process, and the publisher's end of every other: a network transport is a subscriber that
//! forwards what it gets.
//!
//! Nothing is queued per subscriber. Each source keeps a ring of its latest batches, each subscriber a position per
//! source; what lies between is what it gets next, and where the ring no longer reaches back, a snapshot stands in.

use super::{Event, EventPlane, Mirror, Position};
use crate::sync::lock;
use dynamo_types::{InstanceId, KvEventBatch, Load, WorkerRank};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// Limits of [`Local`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Batches kept per source for subscribers that lag: at one batch per engine step, ten seconds and more.
    pub ring_batches: usize,
    /// Blocks remembered per source for snapshots. About 60 bytes each; above the block count of any engine.
    pub snapshot_blocks: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { ring_batches: 1024, snapshot_blocks: 4 << 20 }
    }
}

/// The event plane of one process. Dropping it ends every subscription, after what is pending.
pub struct Local {
    hub: Arc<Hub>,
}

struct Hub {
    options: Options,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sources: FxHashMap<WorkerRank, Source>,
    subscribers: FxHashMap<u64, Subscriber>,
    next_subscriber: u64,
    closed: bool,
}

#[derive(Clone)]
struct Source {
    /// Of the last batch; none before the first.
    position: Option<Position>,
    /// The latest batches, without a gap, ending at `position`.
    ring: VecDeque<Arc<KvEventBatch>>,
    mirror: Mirror,
    load: Option<Load>,
}

#[derive(Default)]
struct Subscriber {
    positions: FxHashMap<WorkerRank, Position>,
    /// Sources that have something for this subscriber, in the order in which they got it.
    ready: VecDeque<WorkerRank>,
    /// The same as a set, so that a source waits once.
    ready_set: FxHashSet<WorkerRank>,
    /// Sources whose load changed since this subscriber last saw it.
    loads: FxHashSet<WorkerRank>,
    waker: Option<Waker>,
}

impl Source {
    fn new(options: &Options) -> Self {
        Self {
            position: None,
            ring: VecDeque::new(),
            mirror: Mirror::new(options.snapshot_blocks),
            load: None,
        }
    }

    /// False if the batch is one we have.
    fn append(&mut self, batch: KvEventBatch, options: &Options) -> bool {
        let position = Position { epoch: batch.epoch, sequence: batch.sequence };
        match self.position {
            Some(last) if last.epoch == position.epoch => {
                if position.sequence <= last.sequence {
                    return false;
                }
                if position.sequence != last.sequence + 1 {
                    self.ring.clear();
                }
            }
            _ => {
                // A new life of the publisher: what it said before is void (R33).
                self.ring.clear();
                self.mirror = Mirror::new(options.snapshot_blocks);
            }
        }
        batch.events.iter().for_each(|event| self.mirror.apply(event));
        self.position = Some(position);
        if self.ring.len() >= options.ring_batches.max(1) {
            self.ring.pop_front();
        }
        self.ring.push_back(Arc::new(batch));
        true
    }

    /// Takes over what the source holds, in place of all it said before.
    fn replace(&mut self, batch: &KvEventBatch, options: &Options) {
        self.ring.clear();
        self.mirror = Mirror::new(options.snapshot_blocks);
        batch.events.iter().for_each(|event| self.mirror.apply(event));
        self.position = Some(Position { epoch: batch.epoch, sequence: batch.sequence });
    }

    /// What a subscriber at `at` needs next, and where it stands then. None if it has everything.
    fn next(&self, source: WorkerRank, at: Option<Position>) -> Option<(Event, Position)> {
        let last = self.position?;
        if let Some(at) = at.filter(|at| at.epoch == last.epoch && at.sequence <= last.sequence) {
            let missed = last.sequence - at.sequence;
            if missed == 0 {
                return None;
            }
            let index = (self.ring.len() as u64).checked_sub(missed);
            if let Some(batch) = index.and_then(|index| self.ring.get(index as usize)) {
                let position = Position { epoch: batch.epoch, sequence: batch.sequence };
                return Some((Event::Kv(Arc::clone(batch)), position));
            }
        }
        let snapshot = KvEventBatch {
            source,
            epoch: last.epoch,
            sequence: last.sequence,
            events: self.mirror.snapshot(),
        };
        Some((Event::Snapshot(Arc::new(snapshot)), last))
    }
}

impl Subscriber {
    fn mark(&mut self, source: WorkerRank) {
        if self.ready_set.insert(source) {
            self.ready.push_back(source);
        }
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn take(&mut self, sources: &FxHashMap<WorkerRank, Source>) -> Option<Event> {
        while let Some(&rank) = self.ready.front() {
            let source = sources.get(&rank);
            if let Some(source) = source {
                if let Some((event, position)) = source.next(rank, self.positions.get(&rank).copied()) {
                    self.positions.insert(rank, position);
                    return Some(event);
                }
                if let Some(load) = source.load.filter(|_| self.loads.remove(&rank)) {
                    return Some(Event::Load(rank, load));
                }
            }
            self.ready.pop_front();
            self.ready_set.remove(&rank);
        }
        None
    }
}

impl State {
    fn mark(&mut self, source: WorkerRank, load: bool) {
        for subscriber in self.subscribers.values_mut() {
            if load {
                subscriber.loads.insert(source);
            }
            subscriber.mark(source);
        }
    }
}

impl Local {
    pub fn new(options: Options) -> Self {
        Self { hub: Arc::new(Hub { options, state: Mutex::default() }) }
    }

    /// Takes over what another process says its source holds, in place of all it said before.
    pub fn publish_snapshot(&self, batch: &KvEventBatch) {
        let source = batch.source;
        let mut state = lock(&self.hub.state);
        let entry = state.sources.entry(source).or_insert_with(|| Source::new(&self.hub.options));
        entry.replace(batch, &self.hub.options);
        state.mark(source, false);
    }

    /// Where this plane stands with each source, for a subscription elsewhere.
    pub fn positions(&self) -> Vec<(WorkerRank, Position)> {
        let state = lock(&self.hub.state);
        state.sources.iter().filter_map(|(&rank, source)| Some((rank, source.position?))).collect()
    }

    /// Where this plane stands with one source.
    pub fn position(&self, source: WorkerRank) -> Option<Position> {
        lock(&self.hub.state).sources.get(&source)?.position
    }

    /// Forgets all ranks of a worker that is gone.
    pub fn retire_worker(&self, worker: InstanceId) {
        let ranks: Vec<WorkerRank> =
            lock(&self.hub.state).sources.keys().filter(|rank| rank.worker == worker).copied().collect();
        ranks.into_iter().for_each(|rank| self.retire(rank));
    }

    /// Sources that are remembered now.
    pub fn source_count(&self) -> usize {
        lock(&self.hub.state).sources.len()
    }

    /// Subscriptions there are now.
    pub fn subscriber_count(&self) -> usize {
        lock(&self.hub.state).subscribers.len()
    }
}

impl Default for Local {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let mut state = lock(&self.hub.state);
        state.closed = true;
        state.subscribers.values_mut().filter_map(|subscriber| subscriber.waker.take()).for_each(Waker::wake);
    }
}

impl EventPlane for Local {
    fn publish_kv(&self, batch: KvEventBatch) {
        let source = batch.source;
        let mut state = lock(&self.hub.state);
        let entry = state.sources.entry(source).or_insert_with(|| Source::new(&self.hub.options));
        if entry.append(batch, &self.hub.options) {
            state.mark(source, false);
        }
    }

    fn publish_load(&self, source: WorkerRank, load: Load) {
        let mut state = lock(&self.hub.state);
        let entry = state.sources.entry(source).or_insert_with(|| Source::new(&self.hub.options));
        if entry.load.replace(load) != Some(load) {
            state.mark(source, true);
        }
    }

    fn retire(&self, source: WorkerRank) {
        let mut state = lock(&self.hub.state);
        state.sources.remove(&source);
        for subscriber in state.subscribers.values_mut() {
            subscriber.positions.remove(&source);
            subscriber.loads.remove(&source);
        }
    }

    fn subscribe_from(&self, positions: &[(WorkerRank, Position)]) -> Subscription {
        let mut state = lock(&self.hub.state);
        let mut subscriber =
            Subscriber { positions: positions.iter().copied().collect(), ..Subscriber::default() };
        for (&rank, source) in &state.sources {
            if source.load.is_some() {
                subscriber.loads.insert(rank);
            }
            subscriber.mark(rank);
        }
        let id = state.next_subscriber;
        state.next_subscriber += 1;
        state.subscribers.insert(id, subscriber);
        Subscription { hub: Arc::clone(&self.hub), id }
    }
}

/// One reader of an event plane.
pub struct Subscription {
    hub: Arc<Hub>,
    id: u64,
}

impl Subscription {
    /// The next thing to know; `None` once the plane was shut down and everything was read. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// The next thing to know, if there is one now.
    pub fn try_next(&mut self) -> Option<Event> {
        let state = &mut *lock(&self.hub.state);
        state.subscribers.get_mut(&self.id)?.take(&state.sources)
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let state = &mut *lock(&self.hub.state);
        let Some(subscriber) = state.subscribers.get_mut(&self.id) else { return Poll::Ready(None) };
        if let Some(event) = subscriber.take(&state.sources) {
            return Poll::Ready(Some(event));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        subscriber.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        lock(&self.hub.state).subscribers.remove(&self.id);
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;
    use dynamo_types::{KvEvent, StorageTier, StoredBlock, draw};

    const CASES: u64 = 300;
    const SOURCE: WorkerRank = WorkerRank::new(InstanceId(1), 0);

    fn batch(epoch: u64, sequence: u64, events: Vec<KvEvent>) -> KvEventBatch {
        KvEventBatch { source: SOURCE, epoch, sequence, events }
    }

    fn stored(hash: u64) -> KvEvent {
        KvEvent::Stored {
            parent: None,
            blocks: vec![StoredBlock { block_hash: hash, tokens_hash: hash }],
            tier: StorageTier::Device,
        }
    }

    fn removed(hash: u64) -> KvEvent {
        KvEvent::Removed { hashes: vec![hash], tier: StorageTier::Device }
    }

    fn poll_once(subscription: &mut Subscription) -> Option<Event> {
        match subscription.poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(event) => event,
            Poll::Pending => None,
        }
    }

    /// What a router would keep: the blocks, by applying whatever comes.
    fn drain(subscription: &mut Subscription, mirror: &mut Mirror) -> (u32, u32) {
        let (mut snapshots, mut batches) = (0, 0);
        while let Some(event) = poll_once(subscription) {
            let batch = match event {
                Event::Snapshot(batch) => {
                    snapshots += 1;
                    batch
                }
                Event::Kv(batch) => {
                    batches += 1;
                    batch
                }
                Event::Load(..) => continue,
            };
            batch.events.iter().for_each(|event| mirror.apply(event));
        }
        (snapshots, batches)
    }

    #[test]
    fn r32_a_late_subscriber_gets_a_snapshot_then_what_follows() {
        let plane = Local::default();
        (0..3).for_each(|i| plane.publish_kv(batch(1, i, vec![stored(i)])));
        let mut late = plane.subscribe();
        plane.publish_kv(batch(1, 3, vec![removed(0)]));
        let mut mirror = Mirror::new(100);
        assert_eq!(drain(&mut late, &mut mirror), (1, 0), "one snapshot holds it all");
        assert_eq!(mirror.len(), 2);
        plane.publish_kv(batch(1, 4, vec![stored(9)]));
        plane.publish_kv(batch(1, 4, vec![stored(9)]));
        assert_eq!(drain(&mut late, &mut mirror), (0, 1), "a duplicate is dropped");
        assert_eq!(mirror.len(), 3);
    }

    #[test]
    fn r32_a_subscriber_that_says_where_it_stands_gets_a_replay() {
        let plane = Local::default();
        (0..6).for_each(|i| plane.publish_kv(batch(1, i, vec![stored(i)])));
        let mut back = plane.subscribe_from(&[(SOURCE, Position { epoch: 1, sequence: 2 })]);
        let mut mirror = Mirror::new(100);
        assert_eq!(drain(&mut back, &mut mirror), (0, 3));
        for lost in [Position { epoch: 0, sequence: 2 }, Position { epoch: 1, sequence: 9 }] {
            let mut lost = plane.subscribe_from(&[(SOURCE, lost)]);
            assert_eq!(drain(&mut lost, &mut mirror), (1, 0), "it stands where we never were");
        }
    }

    #[test]
    fn r32_falling_behind_the_ring_or_a_gap_ends_in_a_snapshot() {
        let plane = Local::new(Options { ring_batches: 4, ..Options::default() });
        plane.publish_kv(batch(1, 0, vec![stored(0)]));
        let mut subscription = plane.subscribe();
        let mut mirror = Mirror::new(100);
        assert_eq!(drain(&mut subscription, &mut mirror), (1, 0));
        (1..=4).for_each(|i| plane.publish_kv(batch(1, i, vec![stored(i)])));
        assert_eq!(drain(&mut subscription, &mut mirror), (0, 4), "the ring just reaches back");
        (5..=9).for_each(|i| plane.publish_kv(batch(1, i, vec![stored(i)])));
        assert_eq!(drain(&mut subscription, &mut mirror), (1, 0));
        plane.publish_kv(batch(1, 12, vec![stored(12)]));
        assert_eq!(drain(&mut subscription, &mut mirror), (1, 0));
        assert_eq!(mirror.len(), 11);
    }

    #[test]
    fn r33_a_new_epoch_voids_the_old_one() {
        let plane = Local::default();
        let mut subscription = plane.subscribe();
        (0..50).for_each(|i| plane.publish_kv(batch(1, i, vec![stored(i)])));
        let mut mirror = Mirror::new(100);
        drain(&mut subscription, &mut mirror);
        plane.publish_kv(batch(2, 0, vec![stored(77)]));
        assert_eq!(drain(&mut subscription, &mut mirror), (1, 0));
        assert_eq!(mirror.len(), 1);
    }

    #[test]
    fn the_latest_load_wins_and_sources_can_be_forgotten() {
        let plane = Local::default();
        let mut subscription = plane.subscribe();
        let load = |running| Load { running, ..Load::default() };
        (0..5).for_each(|running| plane.publish_load(SOURCE, load(running)));
        assert_eq!(poll_once(&mut subscription), Some(Event::Load(SOURCE, load(4))));
        assert_eq!(poll_once(&mut subscription), None);
        plane.publish_load(SOURCE, load(4));
        assert_eq!(poll_once(&mut subscription), None, "nothing changed");
        assert_eq!(poll_once(&mut plane.subscribe()), Some(Event::Load(SOURCE, load(4))));
        plane.publish_load(SOURCE, load(1));
        plane.retire(SOURCE);
        assert_eq!(poll_once(&mut subscription), None);
        assert_eq!((plane.source_count(), plane.subscriber_count()), (0, 1));
    }

    #[tokio::test]
    async fn dropping_the_plane_ends_subscriptions() {
        let plane = Local::default();
        let mut subscription = plane.subscribe();
        plane.publish_kv(batch(1, 0, vec![stored(0)]));
        drop(plane);
        assert!(subscription.next().await.is_some());
        assert_eq!(subscription.next().await, None);
    }

    /// However a subscriber lags, and whoever restarts, it ends up with what the publisher holds.
    #[test]
    fn r25_r32_r33_subscribers_converge() {
        for case in 0..CASES {
            let plane =
                Local::new(Options { ring_batches: 1 + draw::index(case, 0, 5), ..Options::default() });
            let mut subscription = plane.subscribe();
            let (mut seen, mut truth) = (Mirror::new(1000), Mirror::new(1000));
            let (mut epoch, mut sequence) = (0, 0);
            for step in 1..80u64 {
                let hash = draw::index(case, step * 3, 20) as u64;
                let event =
                    if draw::index(case, step * 3 + 1, 3) == 0 { removed(hash) } else { stored(hash) };
                truth.apply(&event);
                plane.publish_kv(batch(epoch, sequence, vec![event]));
                sequence += 1;
                match draw::index(case, step * 3 + 2, 12) {
                    0 => {
                        (epoch, sequence) = (epoch + 1, 0);
                        truth = Mirror::new(1000);
                        plane.publish_kv(batch(epoch, sequence, vec![]));
                        sequence += 1;
                    }
                    1..4 => {
                        drain(&mut subscription, &mut seen);
                    }
                    _ => {}
                }
            }
            drain(&mut subscription, &mut seen);
            assert_eq!(sorted(&seen), sorted(&truth), "case {case}");
        }
    }

    fn sorted(mirror: &Mirror) -> Vec<u64> {
        let mut hashes: Vec<u64> = mirror
            .snapshot()
            .iter()
            .flat_map(|event| match event {
                KvEvent::Stored { blocks, .. } => blocks.iter().map(|block| block.block_hash).collect(),
                _ => vec![],
            })
            .collect();
        hashes.sort_unstable();
        hashes
    }
}
