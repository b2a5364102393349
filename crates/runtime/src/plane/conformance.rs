//! What every transport of the request plane must do, as one suite.

use super::{DeltaStream, Handler, InProcess, Options, RequestPlane, ServeGuard};
use crate::sync::lock;
use dynamo_types::{
    Class, Delta, DeltaSink, Error, FinishReason, Instance, InstanceId, Request, Result, Stopping, Transport,
    draw,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Waits for something that another task or thread does. The limit only bounds a failing test.
pub(super) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..5000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("{what}: not within ten seconds");
}

/// Keeps every sink it gets, by the first token of the request. An empty prompt is refused.
#[derive(Default)]
pub(super) struct Holder(pub(super) Mutex<BTreeMap<u32, Box<dyn DeltaSink>>>);

impl Handler for Holder {
    fn handle(&self, request: Arc<Request>, sink: Box<dyn DeltaSink>) -> Result<()> {
        let Some(&first) = request.tokens.first() else {
            return Err(Error::invalid("empty prompt").with_param("prompt"));
        };
        lock(&self.0).insert(first, sink);
        Ok(())
    }
}

impl Holder {
    pub(super) fn push(&self, stream: u32, delta: Delta) {
        lock(&self.0).get_mut(&stream).unwrap().push(delta);
    }

    pub(super) fn drop_all(&self) {
        let sinks = std::mem::take(&mut *lock(&self.0));
        drop(sinks);
    }

    pub(super) async fn has(&self, count: usize) {
        eventually("requests arrive", || lock(&self.0).len() == count).await;
    }
}

pub(super) fn tokens(list: &[u32]) -> Delta {
    Delta { tokens: list.to_vec(), ..Delta::default() }
}

pub(super) fn last(list: &[u32]) -> Delta {
    Delta { finish: Some(FinishReason::Length), ..tokens(list) }
}

pub(super) fn request(tokens: &[u32]) -> Arc<Request> {
    Arc::new(Request {
        id: "r".into(),
        model: "m".into(),
        tokens: tokens.into(),
        resumed: 0,
        task: Default::default(),
        sampling: Default::default(),
        stopping: Stopping { max_tokens: 1, ..Default::default() },
        guide: None,
        thinking: None,
        output: Default::default(),
        routing: Default::default(),
        trace: None,
    })
}

/// One transport under test: `caller` calls what `served` serves.
pub(super) struct Setup {
    pub(super) caller: Arc<dyn RequestPlane>,
    pub(super) served: InProcess,
    pub(super) transport: Transport,
    /// What the transport needs while it is used.
    pub(super) _held: Box<dyn Send + Sync>,
}

impl Setup {
    pub(super) fn instance(&self, id: u64) -> Instance {
        instance(id, &self.transport)
    }

    pub(super) async fn fold(&self, id: u64, prompt: &[u32]) -> Result<Delta> {
        fold(&*self.caller, &self.instance(id), prompt).await
    }
}

/// Worker `id` of whoever is reached so.
pub(super) fn instance(id: u64, transport: &Transport) -> Instance {
    Instance {
        namespace: "dynamo".into(),
        component: "backend".into(),
        endpoint: "generate".into(),
        id: InstanceId(id),
        transport: transport.clone(),
        draining: false,
        fault: None,
    }
}

/// The whole answer, or the first fault.
async fn fold(caller: &dyn RequestPlane, instance: &Instance, prompt: &[u32]) -> Result<Delta> {
    let mut stream = caller.call(instance, request(prompt)).await?;
    let mut whole = Delta::default();
    while let Some(delta) = stream.next().await {
        whole.merge(delta?);
    }
    Ok(whole)
}

/// Options of the worker's side that the suite relies on.
pub(super) fn options() -> Options {
    Options { max_in_flight: 300 }
}

/// A worker under test with an engine that does what the suite says: of this process, or a program in any language.
pub(super) trait Stage: Send + Sync {
    /// Serves instance 1, anew: the engine holds nothing.
    fn serve(&self);
    /// Takes nothing new from now on; what runs goes on.
    fn withdraw(&self);
    /// The engine's next words in the stream whose prompt begins with this token.
    fn push(&self, stream: u32, delta: Delta);
    /// A group of pushes is complete.
    fn flush(&self);
    /// The engine breaks off all it holds.
    fn drop_all(&self);
    /// Streams that came since [`Stage::serve`].
    fn held(&self) -> usize;
    fn is_cancelled(&self, stream: u32) -> bool;
    /// Streams that have not ended.
    fn in_flight(&self) -> usize;
}

/// A worker of this process.
pub(super) struct Ours {
    served: InProcess,
    holder: Mutex<Arc<Holder>>,
    guard: Mutex<Option<ServeGuard>>,
}

impl Ours {
    pub(super) fn new(served: &InProcess) -> Self {
        Self { served: served.clone(), holder: Mutex::default(), guard: Mutex::default() }
    }

    fn holder(&self) -> Arc<Holder> {
        Arc::clone(&lock(&self.holder))
    }
}

impl Stage for Ours {
    fn serve(&self) {
        *lock(&self.holder) = Arc::default();
        *lock(&self.guard) = Some(self.served.serve(InstanceId(1), self.holder()));
    }

    fn withdraw(&self) {
        *lock(&self.guard) = None;
    }

    fn push(&self, stream: u32, delta: Delta) {
        self.holder().push(stream, delta);
    }

    fn flush(&self) {
        self.served.flush(InstanceId(1));
    }

    fn drop_all(&self) {
        self.holder().drop_all();
    }

    fn held(&self) -> usize {
        lock(&self.holder().0).len()
    }

    fn is_cancelled(&self, stream: u32) -> bool {
        lock(&self.holder().0)[&stream].is_cancelled()
    }

    fn in_flight(&self) -> usize {
        self.served.in_flight(InstanceId(1))
    }
}

/// One transport and one worker behind it.
pub(super) struct Subject {
    pub(super) caller: Arc<dyn RequestPlane>,
    pub(super) transport: Transport,
    pub(super) stage: Box<dyn Stage>,
}

impl Subject {
    pub(super) fn instance(&self, id: u64) -> Instance {
        instance(id, &self.transport)
    }

    async fn call(&self, prompt: &[u32]) -> DeltaStream {
        self.caller.call(&self.instance(1), request(prompt)).await.unwrap()
    }

    async fn fold(&self, id: u64, prompt: &[u32]) -> Result<Delta> {
        fold(&*self.caller, &self.instance(id), prompt).await
    }

    pub(super) async fn has(&self, count: usize) {
        eventually("requests arrive", || self.stage.held() == count).await;
    }

    async fn idle(&self) {
        eventually("nothing is in flight", || self.stage.in_flight() == 0).await;
    }
}

/// The suite, on a worker of this process.
pub(super) async fn suite(setup: &Setup) {
    let (caller, transport) = (Arc::clone(&setup.caller), setup.transport.clone());
    every_case(&Subject { caller, transport, stage: Box::new(Ours::new(&setup.served)) }).await;
}

pub(super) async fn every_case(subject: &Subject) {
    answers_come_in_order_and_end(subject).await;
    refusals_keep_their_words(subject).await;
    who_is_not_there_is_retryable(subject).await;
    a_worker_that_breaks_off_is_retryable(subject).await;
    a_reader_that_leaves_cancels(subject).await;
    full_is_full(subject).await;
    many_streams_do_not_mix(subject).await;
}

async fn answers_come_in_order_and_end(subject: &Subject) {
    subject.stage.serve();
    let mut stream = subject.call(&[1]).await;
    subject.has(1).await;
    subject.stage.push(1, tokens(&[10, 11]));
    assert_eq!(stream.next().await, Some(Ok(tokens(&[10, 11]))));
    subject.stage.push(1, last(&[12]));
    assert_eq!(stream.next().await, Some(Ok(last(&[12]))));
    assert_eq!(stream.next().await, None);
    subject.stage.drop_all();
    subject.idle().await;
}

async fn refusals_keep_their_words(subject: &Subject) {
    subject.stage.serve();
    let error = subject.fold(1, &[]).await.unwrap_err();
    assert_eq!((error.class(), error.param()), (Class::Invalid, Some("prompt")));
    assert_eq!(error.message(), "empty prompt");
    subject.idle().await;
}

async fn who_is_not_there_is_retryable(subject: &Subject) {
    subject.stage.serve();
    let mut running = subject.call(&[1]).await;
    subject.has(1).await;
    subject.stage.withdraw();
    for id in [1, 77] {
        let error = subject.fold(id, &[1]).await.unwrap_err();
        assert!(error.retryable(), "{error}");
        assert_eq!(error.class(), Class::Unavailable);
    }
    subject.stage.push(1, last(&[3]));
    assert_eq!(running.next().await, Some(Ok(last(&[3]))), "what runs goes on");
}

async fn a_worker_that_breaks_off_is_retryable(subject: &Subject) {
    subject.stage.serve();
    let mut stream = subject.call(&[1]).await;
    subject.has(1).await;
    subject.stage.push(1, tokens(&[5]));
    subject.stage.drop_all();
    assert_eq!(stream.next().await, Some(Ok(tokens(&[5]))), "what was said is heard first");
    assert!(stream.next().await.unwrap().unwrap_err().retryable());
    assert_eq!(stream.next().await, None);
}

async fn a_reader_that_leaves_cancels(subject: &Subject) {
    subject.stage.serve();
    let stream = subject.call(&[1]).await;
    subject.has(1).await;
    assert!(!subject.stage.is_cancelled(1));
    drop(stream);
    eventually("the engine is told", || subject.stage.is_cancelled(1)).await;
    subject.stage.drop_all();
    subject.idle().await;
}

async fn full_is_full(subject: &Subject) {
    subject.stage.serve();
    let mut held = Vec::new();
    for number in 0..options().max_in_flight as u32 {
        held.push(subject.call(&[number]).await);
    }
    subject.has(options().max_in_flight).await;
    let error = subject.fold(1, &[9999]).await.unwrap_err();
    assert_eq!(error.class(), Class::Overloaded);
    subject.stage.drop_all();
    subject.idle().await;
}

/// Whatever is pushed in whatever order and however the readers lag, each gets its own answer once and in order.
async fn many_streams_do_not_mix(subject: &Subject) {
    const STREAMS: u32 = 40;
    for case in 0..10u64 {
        subject.stage.serve();
        let mut readers = tokio::task::JoinSet::new();
        for stream in 0..STREAMS {
            let (caller, instance) = (Arc::clone(&subject.caller), subject.instance(1));
            readers.spawn(async move {
                let mut answer = caller.call(&instance, request(&[stream])).await.unwrap();
                let mut whole = Delta::default();
                while let Some(delta) = answer.next().await {
                    whole.merge(delta.unwrap());
                    if draw::index(case, u64::from(stream) * 64 + whole.tokens.len() as u64, 3) == 0 {
                        tokio::task::yield_now().await;
                    }
                }
                (stream, whole)
            });
        }
        subject.has(STREAMS as usize).await;
        let batched = case % 2 == 0;
        for step in 0..30u32 {
            for stream in 0..STREAMS {
                let delta = if step == 29 { last(&[step]) } else { tokens(&[stream, step]) };
                subject.stage.push(stream, delta);
            }
            if batched {
                subject.stage.flush();
            }
            if draw::index(case, 5000 + u64::from(step), 2) == 0 {
                tokio::task::yield_now().await;
            }
        }
        while let Some(read) = readers.join_next().await {
            let (stream, whole) = read.unwrap();
            let mut expected: Vec<u32> = (0..29).flat_map(|step| [stream, step]).collect();
            expected.push(29);
            assert_eq!(whole, last(&expected), "case {case}");
        }
    }
}

#[tokio::test]
async fn in_process() {
    let served = InProcess::new(options());
    let setup = Setup {
        caller: Arc::new(served.clone()),
        served,
        transport: Transport::InProcess,
        _held: Box::new(()),
    };
    suite(&setup).await;
}
