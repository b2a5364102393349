//! The request plane of one process, and the workers' end of every other: a network transport delivers to it.

use super::{DeltaStream, Flush, Handler, RequestPlane};
use crate::BoxFuture;
use crate::mailbox;
use crate::sync::{lock, read, write};
use dynamo_types::{Delta, DeltaSink, Error, Instance, InstanceId, Request, Result};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};
use tokio::sync::Notify;

/// Limits of [`InProcess`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Requests one instance may have at once; the next is refused as overloaded, so that a flood meets a clear
    /// answer and not a growing queue. The default is the reference system's for engines without a limit of their
    /// own (behaviour.md 3.8).
    pub max_in_flight: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_in_flight: 10_000 }
    }
}

/// The request plane of workers in this very process. Clones are the same plane.
#[derive(Clone, Default)]
pub struct InProcess {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    options: Options,
    served: RwLock<FxHashMap<InstanceId, Arc<Served>>>,
    /// One per transport that serves this plane to other processes.
    flushes: Mutex<Vec<Weak<dyn Flush>>>,
}

struct Served {
    handler: Arc<dyn Handler>,
    count: Arc<Count>,
}

/// Requests whose engine still holds their sink. Apart from the handler, because sinks point here and must not keep
/// alive the engine that keeps them.
#[derive(Default)]
struct Count {
    in_flight: AtomicUsize,
    /// Its pushes are followed by [`InProcess::flush`].
    flushed: AtomicBool,
    /// Told whenever `in_flight` falls to zero.
    idle: Notify,
}

impl InProcess {
    pub fn new(options: Options) -> Self {
        Self { inner: Arc::new(Inner { options, ..Inner::default() }) }
    }

    /// Makes `handler` reachable under `id` until the guard is dropped. A second call for the same id takes over.
    pub fn serve(&self, id: InstanceId, handler: Arc<dyn Handler>) -> ServeGuard {
        let count = Arc::new(Count::default());
        let served = Arc::new(Served { handler, count: Arc::clone(&count) });
        write(&self.inner.served).insert(id, served);
        ServeGuard { inner: Arc::clone(&self.inner), id, count }
    }

    /// Requests whose engine still holds their sink. 0 for an unknown instance.
    pub fn in_flight(&self, id: InstanceId) -> usize {
        read(&self.inner.served).get(&id).map_or(0, |served| served.count.in_flight.load(Ordering::Acquire))
    }

    /// Tells the transports that a group of pushes is complete. Whoever calls this for an instance once calls it after
    /// every group, because from then on its pushes may wait for it.
    pub fn flush(&self, id: InstanceId) {
        if let Some(served) = read(&self.inner.served).get(&id) {
            served.count.flushed.store(true, Ordering::Release);
        }
        for transport in lock(&self.inner.flushes).iter().filter_map(Weak::upgrade) {
            transport.flush(id);
        }
    }

    /// Will be told of every flush.
    pub fn on_flush(&self, transport: Weak<dyn Flush>) {
        let mut flushes = lock(&self.inner.flushes);
        flushes.retain(|known| known.strong_count() > 0);
        flushes.push(transport);
    }

    /// Are the pushes of this instance followed by a flush?
    pub fn is_flushed(&self, id: InstanceId) -> bool {
        read(&self.inner.served).get(&id).is_some_and(|served| served.count.flushed.load(Ordering::Acquire))
    }

    /// Hands a request to the instance. After an error the sink may have been told one too; this one counts.
    ///
    /// # Errors
    /// The instance is not served here, is full, or refuses the request.
    pub fn deliver(&self, id: InstanceId, request: Arc<Request>, sink: Box<dyn DeltaSink>) -> Result<()> {
        let served = read(&self.inner.served).get(&id).cloned();
        let Some(served) = served else {
            return Err(Error::disconnected("the chosen worker is gone")
                .with_detail(format!("instance {id} is not served in this process")));
        };
        let slot = Slot::take(&served.count, self.inner.options.max_in_flight)?;
        served.handler.handle(request, Box::new(CountedSink { sink, _slot: slot }))
    }

    /// Is the instance reached here?
    pub fn serves(&self, id: InstanceId) -> bool {
        read(&self.inner.served).contains_key(&id)
    }

    fn dispatch(&self, instance: &Instance, request: Arc<Request>) -> Result<DeltaStream> {
        let (sender, receiver) = mailbox::channel();
        self.deliver(instance.id, request, Box::new(sender))?;
        Ok(DeltaStream::new(receiver))
    }
}

impl RequestPlane for InProcess {
    fn call<'a>(
        &'a self,
        instance: &'a Instance,
        request: Arc<Request>,
    ) -> BoxFuture<'a, Result<DeltaStream>> {
        Box::pin(std::future::ready(self.dispatch(instance, request)))
    }

    fn agent(&self, _: &Instance) -> Option<Arc<str>> {
        Some(super::AGENT.into())
    }
}

/// Keeps an instance reachable. Dropping it stops new calls; streams that run go on.
pub struct ServeGuard {
    inner: Arc<Inner>,
    id: InstanceId,
    count: Arc<Count>,
}

impl ServeGuard {
    /// Requests whose engine still holds their sink.
    pub fn in_flight(&self) -> usize {
        self.count.in_flight.load(Ordering::Acquire)
    }

    /// Completes at a moment when nothing is in flight.
    pub async fn idle(&self) {
        loop {
            let idle = self.count.idle.notified();
            if self.in_flight() == 0 {
                return;
            }
            idle.await;
        }
    }
}

impl Drop for ServeGuard {
    fn drop(&mut self) {
        let mut served = write(&self.inner.served);
        let ours = served.get(&self.id).is_some_and(|current| Arc::ptr_eq(&current.count, &self.count));
        let withdrawn = if ours { served.remove(&self.id) } else { None };
        drop(served);
        // The last holder of a handler may be the one to end its engine, which must not happen under the lock.
        drop(withdrawn);
    }
}

/// One unit of an instance's `in_flight`.
struct Slot(Arc<Count>);

impl Slot {
    fn take(count: &Arc<Count>, limit: usize) -> Result<Self> {
        let before = count.in_flight.fetch_add(1, Ordering::AcqRel);
        let slot = Self(Arc::clone(count));
        if before >= limit {
            return Err(Error::overloaded("the chosen worker has no room for another request")
                .with_detail(format!("{before} requests in flight, limit {limit}")));
        }
        Ok(slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.0.in_flight.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

/// A sink whose request counts as in flight until the engine lets go of it.
struct CountedSink {
    sink: Box<dyn DeltaSink>,
    _slot: Slot,
}

impl DeltaSink for CountedSink {
    fn push(&mut self, delta: Delta) {
        self.sink.push(delta);
    }

    fn fail(&mut self, error: Error) {
        self.sink.fail(error);
    }

    fn is_cancelled(&self) -> bool {
        self.sink.is_cancelled()
    }
}

#[cfg(test)]
mod tests {
    use super::super::conformance::request;
    use super::*;
    use crate::sync::lock;
    use dynamo_types::{Class, FinishReason, Transport};
    use std::sync::Mutex;

    /// Keeps every sink it gets.
    #[derive(Default)]
    struct Holder(Mutex<Vec<Box<dyn DeltaSink>>>);

    impl Handler for Holder {
        fn handle(&self, request: Arc<Request>, sink: Box<dyn DeltaSink>) -> Result<()> {
            if request.tokens.is_empty() {
                return Err(Error::invalid("empty prompt"));
            }
            lock(&self.0).push(sink);
            Ok(())
        }
    }

    fn instance(id: u64) -> Instance {
        Instance {
            namespace: "dynamo".into(),
            component: "backend".into(),
            endpoint: "generate".into(),
            id: InstanceId(id),
            transport: Transport::InProcess,
            draining: false,
            fault: None,
        }
    }

    #[tokio::test]
    async fn calls_reach_their_handler_and_end() {
        let plane = InProcess::default();
        let holder = Arc::new(Holder::default());
        let guard = plane.serve(InstanceId(1), holder.clone());
        let mut stream = plane.call(&instance(1), request(&[1])).await.unwrap();
        assert_eq!(plane.in_flight(InstanceId(1)), 1);
        let mut sink = lock(&holder.0).pop().unwrap();
        let last = Delta { tokens: vec![5], finish: Some(FinishReason::Length), ..Delta::default() };
        sink.push(last.clone());
        drop(sink);
        assert_eq!(plane.in_flight(InstanceId(1)), 0);
        assert_eq!(stream.next().await, Some(Ok(last)));
        assert_eq!(stream.next().await, None);
        guard.idle().await;
    }

    #[tokio::test]
    async fn unknown_and_withdrawn_instances_are_retryable() {
        let plane = InProcess::default();
        let holder = Arc::new(Holder::default());
        let guard = plane.serve(InstanceId(1), holder.clone());
        let mut running = plane.call(&instance(1), request(&[1])).await.unwrap();
        drop(guard);
        for target in [instance(1), instance(2)] {
            let error = plane.call(&target, request(&[1])).await.err().unwrap();
            assert!(error.retryable());
            assert_eq!(error.class(), Class::Unavailable);
        }
        lock(&holder.0)[0].push(Delta { tokens: vec![3], ..Delta::default() });
        assert_eq!(running.next().await.unwrap().unwrap().tokens, [3], "what runs goes on");
        lock(&holder.0).clear();
        assert!(running.next().await.unwrap().unwrap_err().retryable());
    }

    #[tokio::test]
    async fn refusals_and_limits_leave_nothing_in_flight() {
        let plane = InProcess::new(Options { max_in_flight: 2 });
        let holder = Arc::new(Holder::default());
        let guard = plane.serve(InstanceId(1), holder.clone());
        assert_eq!(plane.call(&instance(1), request(&[])).await.err().unwrap().class(), Class::Invalid);
        assert_eq!(guard.in_flight(), 0);
        let _streams =
            [plane.call(&instance(1), request(&[1])).await, plane.call(&instance(1), request(&[1])).await];
        let error = plane.call(&instance(1), request(&[1])).await.err().unwrap();
        assert_eq!(error.class(), Class::Overloaded);
        assert_eq!(guard.in_flight(), 2);
        lock(&holder.0).clear();
        assert_eq!(guard.in_flight(), 0);
    }

    #[tokio::test]
    async fn an_older_guard_does_not_withdraw_its_successor() {
        let plane = InProcess::default();
        let first = plane.serve(InstanceId(1), Arc::new(Holder::default()));
        let _second = plane.serve(InstanceId(1), Arc::new(Holder::default()));
        drop(first);
        assert!(plane.call(&instance(1), request(&[1])).await.is_ok());
    }

    #[tokio::test]
    async fn a_guard_of_the_transport_lives_as_long_as_the_stream() {
        let held = Arc::new(());
        let (_sender, receiver) = mailbox::channel();
        let stream = DeltaStream::new(receiver).with_guard(Arc::clone(&held));
        assert_eq!(Arc::strong_count(&held), 2);
        drop(stream);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
