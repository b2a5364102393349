//! The request plane: `call(instance, request) -> stream of deltas` (DESIGN 3.4).
//!
//! A transport is two halves that meet here: callers see [`RequestPlane`], workers give a [`Handler`]. Every transport
//! ends in a [`mailbox`](crate::mailbox), so merging, cancellation and broken streams behave alike on all of them.

use crate::BoxFuture;
use crate::mailbox;
use crate::sync::{read, write};
use dynamo_types::{Delta, DeltaSink, Error, Instance, InstanceId, Request, Result, Transport};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::task::{Context, Poll};
use tokio::sync::Notify;

/// The caller's half of a transport.
pub trait RequestPlane: Send + Sync {
    /// Sends the request to this very instance. An error here means that nothing was generated, so a retryable one
    /// may be tried elsewhere.
    fn call<'a>(
        &'a self,
        instance: &'a Instance,
        request: Arc<Request>,
    ) -> BoxFuture<'a, Result<DeltaStream>>;
}

/// The worker's half of a transport. Never blocks: it hands the request to its engine and returns.
pub trait Handler: Send + Sync {
    /// Takes the request. What is refused here is told to the caller, whatever the sink was told.
    fn handle(&self, request: Arc<Request>, sink: Box<dyn DeltaSink>) -> Result<()>;
}

/// The answer to one call. Dropping it cancels the request.
pub struct DeltaStream {
    receiver: mailbox::Receiver,
    /// What the transport keeps for this stream; dropped with it.
    _guard: Option<Box<dyn Send + Sync>>,
}

impl DeltaStream {
    pub fn new(receiver: mailbox::Receiver) -> Self {
        Self { receiver, _guard: None }
    }

    /// Keeps `guard` as long as the stream is held: its `Drop` is where a transport tells the other side.
    #[must_use]
    pub fn with_guard(self, guard: impl Send + Sync + 'static) -> Self {
        Self { receiver: self.receiver, _guard: Some(Box::new(guard)) }
    }

    /// Everything that arrived since the last call, as one delta; `None` after the last one or an error. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Delta>> {
        self.receiver.recv().await
    }

    /// [`DeltaStream::next`] for hand-written futures.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Delta>>> {
        self.receiver.poll_recv(context)
    }

    /// Asks the engine to stop, and still reads what is there.
    pub fn cancel(&self) {
        self.receiver.cancel();
    }
}

impl From<mailbox::Receiver> for DeltaStream {
    fn from(receiver: mailbox::Receiver) -> Self {
        Self::new(receiver)
    }
}

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
    /// Told whenever `in_flight` falls to zero.
    idle: Notify,
}

impl InProcess {
    pub fn new(options: Options) -> Self {
        Self { inner: Arc::new(Inner { options, served: RwLock::default() }) }
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

    fn dispatch(&self, instance: &Instance, request: Arc<Request>) -> Result<DeltaStream> {
        let served = match instance.transport {
            Transport::InProcess => read(&self.inner.served).get(&instance.id).cloned(),
            Transport::Tcp(_) | Transport::Nats(_) => None,
        };
        let Some(served) = served else {
            return Err(Error::disconnected("the chosen worker is gone")
                .with_detail(format!("instance {} is not served in this process", instance.id)));
        };
        let slot = Slot::take(&served.count, self.inner.options.max_in_flight)?;
        let (sender, receiver) = mailbox::channel();
        served.handler.handle(request, Box::new(CountedSink { sender, _slot: slot }))?;
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

/// A mailbox whose request counts as in flight until the engine lets go of it.
struct CountedSink {
    sender: mailbox::Sender,
    _slot: Slot,
}

impl DeltaSink for CountedSink {
    fn push(&mut self, delta: Delta) {
        self.sender.push(delta);
    }

    fn fail(&mut self, error: Error) {
        self.sender.fail(error);
    }

    fn is_cancelled(&self) -> bool {
        self.sender.is_cancelled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::lock;
    use dynamo_types::{Class, FinishReason, Stopping};
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
        }
    }

    fn request(tokens: &[u32]) -> Arc<Request> {
        Arc::new(Request {
            id: "r".into(),
            model: "m".into(),
            tokens: tokens.into(),
            resumed: 0,
            sampling: Default::default(),
            stopping: Stopping { max_tokens: 1, ..Default::default() },
            guide: None,
            output: Default::default(),
            routing: Default::default(),
        })
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
    async fn unknown_withdrawn_and_foreign_instances_are_retryable() {
        let plane = InProcess::default();
        let holder = Arc::new(Holder::default());
        let guard = plane.serve(InstanceId(1), holder.clone());
        let mut running = plane.call(&instance(1), request(&[1])).await.unwrap();
        drop(guard);
        let foreign = Instance { transport: Transport::Tcp("h:1".into()), ..instance(1) };
        for target in [instance(1), instance(2), foreign] {
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
