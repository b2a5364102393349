//! Discovery inside one process.

use super::{Discovery, Error, Lease, Registration, View, Watch, check};
use crate::BoxFuture;
use dynamo_types::{InstanceId, ModelRecord};
use std::sync::Arc;
use std::time::Duration;

/// Limits of [`Memory`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Changes that may wait for one watcher before it gets a fresh list in their place. A list costs about as much
    /// as this many changes, so more would only be slower.
    pub watch_queue: usize,
    /// Watchers get a full list this often, should they or we have missed something (R26). None: never.
    pub relist: Option<Duration>,
    /// Records the store may hold: far above any fleet in one process, far below what would hurt.
    pub max_records: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { watch_queue: 256, relist: Some(Duration::from_secs(30)), max_records: 10_000 }
    }
}

/// Discovery inside one process. Dropping it ends every watch.
pub struct Memory {
    view: Arc<View>,
    options: Options,
}

impl Memory {
    pub fn new(options: Options) -> Self {
        Self { view: View::new(options.watch_queue), options }
    }

    /// All records, by instance id.
    pub fn list(&self) -> Vec<ModelRecord> {
        self.view.list()
    }

    /// Watchers there are now.
    pub fn watcher_count(&self) -> usize {
        self.view.watcher_count()
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.view.close();
    }
}

impl Discovery for Memory {
    fn register(&self, record: ModelRecord) -> BoxFuture<'_, Result<Registration, Error>> {
        let id = record.instance.id;
        let limit = self.options.max_records;
        let admitted = self.view.try_put(record.clone(), |existing| {
            if existing.len() >= limit { Err(Error::Full { limit }) } else { check(existing, &record) }
        });
        let view = Arc::clone(&self.view);
        Box::pin(std::future::ready(admitted.map(|()| Registration::new(Entry { view, id }))))
    }

    fn watch(&self) -> BoxFuture<'_, Watch> {
        Box::pin(std::future::ready(self.view.watch(self.options.relist)))
    }
}

struct Entry {
    view: Arc<View>,
    id: InstanceId,
}

impl Lease for Entry {
    fn set_draining(&self) {
        self.view.update(self.id, |record| record.instance.draining = true);
    }

    fn set_fault(&self, fault: Option<&str>) {
        self.view.update(self.id, |record| record.instance.fault = fault.map(str::to_owned));
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.view.delete(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Event;
    use super::super::conformance::{self, Bench};
    use super::super::fixture::record;
    use super::*;
    use dynamo_types::draw;
    use std::collections::BTreeMap;

    const CASES: u64 = 200;

    fn quiet() -> Memory {
        Memory::new(Options { relist: None, ..Options::default() })
    }

    /// In one process every view is the same store.
    impl Discovery for Arc<Memory> {
        fn register(&self, record: ModelRecord) -> BoxFuture<'_, Result<Registration, Error>> {
            Memory::register(self, record)
        }

        fn watch(&self) -> BoxFuture<'_, Watch> {
            Memory::watch(self)
        }
    }

    struct One(Arc<Memory>);

    impl Bench for One {
        type Store = Arc<Memory>;

        async fn open(&self) -> Arc<Memory> {
            Arc::clone(&self.0)
        }

        async fn open_listing(&self, _: Duration) -> Arc<Memory> {
            Arc::clone(&self.0)
        }
    }

    #[tokio::test]
    async fn conforms() {
        let relist = Some(Duration::from_millis(200));
        conformance::suite(&One(Arc::new(Memory::new(Options { relist, ..Options::default() })))).await;
    }

    #[tokio::test]
    async fn a_list_comes_first_then_changes() {
        let memory = quiet();
        let first = memory.register(record(1, "a", 16)).await.unwrap();
        let mut watch = memory.watch().await;
        assert_eq!(watch.next().await, Some(Event::List(vec![record(1, "a", 16)])));
        let second = memory.register(record(2, "b", 16)).await.unwrap();
        first.set_draining();
        drop(first);
        assert_eq!(watch.next().await, Some(Event::Put(record(2, "b", 16))));
        let mut draining = record(1, "a", 16);
        draining.instance.draining = true;
        assert_eq!(watch.next().await, Some(Event::Put(draining)));
        assert_eq!(watch.next().await, Some(Event::Delete(InstanceId(1))));
        drop(second);
        drop(memory);
        assert_eq!(watch.next().await, Some(Event::Delete(InstanceId(2))));
        assert_eq!(watch.next().await, None);
    }

    #[tokio::test]
    async fn r26_a_lagging_watcher_gets_a_list_in_place_of_lost_changes() {
        let memory = Memory::new(Options { watch_queue: 3, relist: None, ..Options::default() });
        let mut watch = memory.watch().await;
        assert_eq!(watch.next().await, Some(Event::List(vec![])));
        let mut held = Vec::new();
        for id in 0..4 {
            held.push(memory.register(record(id, "a", 16)).await.unwrap());
        }
        held.truncate(1);
        assert_eq!(watch.next().await, Some(Event::List(vec![record(0, "a", 16)])));
        drop(held);
        assert_eq!(watch.next().await, Some(Event::Delete(InstanceId(0))));
        drop(watch);
        assert_eq!(memory.watcher_count(), 0);
    }

    #[tokio::test]
    async fn r26_a_silent_watch_is_relisted_on_a_timer() {
        let every = Duration::from_millis(20);
        let memory = Memory::new(Options { relist: Some(every), ..Options::default() });
        let mut watch = memory.watch().await;
        assert_eq!(watch.next().await, Some(Event::List(vec![])));
        let start = tokio::time::Instant::now();
        assert_eq!(watch.next().await, Some(Event::List(vec![])));
        assert_eq!(watch.next().await, Some(Event::List(vec![])));
        assert!(start.elapsed() >= 2 * every, "relisted before the time");
    }

    #[tokio::test]
    async fn r35_a_different_block_contract_is_refused_with_both_values() {
        let memory = quiet();
        let _first = memory.register(record(1, "a", 16)).await.unwrap();
        let refused = memory.register(record(2, "a", 64)).await.err().unwrap().to_string();
        assert!(refused.contains("block size 16") && refused.contains("block size 64"), "{refused}");
        let _other_model = memory.register(record(3, "b", 64)).await.unwrap();
        assert_eq!(memory.list().len(), 2);
    }

    #[tokio::test]
    async fn taken_ids_and_a_full_store_are_refused() {
        let memory = Memory::new(Options { max_records: 1, relist: None, ..Options::default() });
        let first = memory.register(record(1, "a", 16)).await.unwrap();
        assert_eq!(memory.register(record(2, "a", 16)).await.err(), Some(Error::Full { limit: 1 }));
        drop(first);
        let memory = quiet();
        let _held = memory.register(record(1, "a", 16)).await.unwrap();
        assert_eq!(memory.register(record(1, "b", 16)).await.err(), Some(Error::Duplicate(InstanceId(1))));
    }

    /// Whatever is registered and withdrawn, and however the watcher lags, what it was told adds up to what is there.
    #[tokio::test]
    async fn r25_watchers_converge() {
        for case in 0..CASES {
            let queue = 1 + draw::index(case, 0, 4);
            let memory = Memory::new(Options { watch_queue: queue, relist: None, ..Options::default() });
            let (mut held, mut told) = (BTreeMap::new(), BTreeMap::new());
            let mut watch = Some(memory.watch().await);
            for step in 1..60u64 {
                let id = draw::index(case, step * 3, 5) as u64;
                match draw::index(case, step * 3 + 1, 4) {
                    0 => {
                        held.remove(&id);
                    }
                    1 if held.contains_key(&id) => {
                        let registration: &Registration = &held[&id];
                        registration.set_draining();
                    }
                    _ if !held.contains_key(&id) => {
                        held.insert(id, memory.register(record(id, "a", 16)).await.unwrap());
                    }
                    _ => {}
                }
                if draw::index(case, step * 3 + 2, 3) == 0 {
                    read_one(watch.as_mut().unwrap(), &mut told).await;
                }
            }
            let mut expected = BTreeMap::new();
            memory.list().into_iter().for_each(|record| {
                expected.insert(record.instance.id, record);
            });
            drop(memory);
            let mut watch = watch.take().unwrap();
            while read_one(&mut watch, &mut told).await {}
            assert_eq!(told, expected, "case {case}");
        }
    }

    /// Applies what there is to read now; false at the end.
    async fn read_one(watch: &mut Watch, told: &mut BTreeMap<InstanceId, ModelRecord>) -> bool {
        let event = tokio::select! {
            biased;
            event = watch.next() => event,
            () = std::future::ready(()) => return true,
        };
        match event {
            None => return false,
            Some(Event::List(records)) => {
                *told = records.into_iter().map(|record| (record.instance.id, record)).collect();
            }
            Some(Event::Put(record)) => {
                told.insert(record.instance.id, record);
            }
            Some(Event::Delete(id)) => {
                told.remove(&id);
            }
        }
        true
    }
}
