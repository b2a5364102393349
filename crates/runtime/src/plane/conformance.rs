//! What every transport of the request plane must do, as one suite.

use super::{Handler, InProcess, Options, RequestPlane};
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
        Instance {
            namespace: "dynamo".into(),
            component: "backend".into(),
            endpoint: "generate".into(),
            id: InstanceId(id),
            transport: self.transport.clone(),
            draining: false,
        }
    }

    /// The whole answer, or the first fault.
    pub(super) async fn fold(&self, id: u64, prompt: &[u32]) -> Result<Delta> {
        let mut stream = self.caller.call(&self.instance(id), request(prompt)).await?;
        let mut whole = Delta::default();
        while let Some(delta) = stream.next().await {
            whole.merge(delta?);
        }
        Ok(whole)
    }
}

/// Options of the worker's side that the suite relies on.
pub(super) fn options() -> Options {
    Options { max_in_flight: 300 }
}

pub(super) async fn suite(setup: &Setup) {
    answers_come_in_order_and_end(setup).await;
    refusals_keep_their_words(setup).await;
    who_is_not_there_is_retryable(setup).await;
    a_worker_that_breaks_off_is_retryable(setup).await;
    a_reader_that_leaves_cancels(setup).await;
    full_is_full(setup).await;
    many_streams_do_not_mix(setup).await;
}

async fn answers_come_in_order_and_end(setup: &Setup) {
    let holder = Arc::new(Holder::default());
    let guard = setup.served.serve(InstanceId(1), holder.clone());
    let mut stream = setup.caller.call(&setup.instance(1), request(&[1])).await.unwrap();
    holder.has(1).await;
    holder.push(1, tokens(&[10, 11]));
    assert_eq!(stream.next().await, Some(Ok(tokens(&[10, 11]))));
    holder.push(1, last(&[12]));
    assert_eq!(stream.next().await, Some(Ok(last(&[12]))));
    assert_eq!(stream.next().await, None);
    holder.drop_all();
    guard.idle().await;
}

async fn refusals_keep_their_words(setup: &Setup) {
    let guard = setup.served.serve(InstanceId(1), Arc::new(Holder::default()));
    let error = setup.fold(1, &[]).await.unwrap_err();
    assert_eq!((error.class(), error.param()), (Class::Invalid, Some("prompt")));
    assert_eq!(error.message(), "empty prompt");
    assert_eq!(guard.in_flight(), 0);
}

async fn who_is_not_there_is_retryable(setup: &Setup) {
    let holder = Arc::new(Holder::default());
    let guard = setup.served.serve(InstanceId(1), holder.clone());
    let mut running = setup.caller.call(&setup.instance(1), request(&[1])).await.unwrap();
    holder.has(1).await;
    drop(guard);
    for id in [1, 77] {
        let error = setup.fold(id, &[1]).await.unwrap_err();
        assert!(error.retryable(), "{error}");
        assert_eq!(error.class(), Class::Unavailable);
    }
    holder.push(1, last(&[3]));
    assert_eq!(running.next().await, Some(Ok(last(&[3]))), "what runs goes on");
}

async fn a_worker_that_breaks_off_is_retryable(setup: &Setup) {
    let holder = Arc::new(Holder::default());
    let _guard = setup.served.serve(InstanceId(1), holder.clone());
    let mut stream = setup.caller.call(&setup.instance(1), request(&[1])).await.unwrap();
    holder.has(1).await;
    holder.push(1, tokens(&[5]));
    holder.drop_all();
    assert_eq!(stream.next().await, Some(Ok(tokens(&[5]))), "what was said is heard first");
    assert!(stream.next().await.unwrap().unwrap_err().retryable());
    assert_eq!(stream.next().await, None);
}

async fn a_reader_that_leaves_cancels(setup: &Setup) {
    let holder = Arc::new(Holder::default());
    let guard = setup.served.serve(InstanceId(1), holder.clone());
    let stream = setup.caller.call(&setup.instance(1), request(&[1])).await.unwrap();
    holder.has(1).await;
    assert!(!lock(&holder.0)[&1].is_cancelled());
    drop(stream);
    eventually("the engine is told", || lock(&holder.0)[&1].is_cancelled()).await;
    holder.drop_all();
    guard.idle().await;
}

async fn full_is_full(setup: &Setup) {
    let holder = Arc::new(Holder::default());
    let guard = setup.served.serve(InstanceId(1), holder.clone());
    let mut held = Vec::new();
    for number in 0..options().max_in_flight as u32 {
        held.push(setup.caller.call(&setup.instance(1), request(&[number])).await.unwrap());
    }
    holder.has(options().max_in_flight).await;
    let error = setup.fold(1, &[9999]).await.unwrap_err();
    assert_eq!(error.class(), Class::Overloaded);
    holder.drop_all();
    guard.idle().await;
}

/// Whatever is pushed in whatever order and however the readers lag, each gets its own answer once and in order.
async fn many_streams_do_not_mix(setup: &Setup) {
    const STREAMS: u32 = 40;
    for case in 0..10u64 {
        let holder = Arc::new(Holder::default());
        let _guard = setup.served.serve(InstanceId(1), holder.clone());
        let mut readers = tokio::task::JoinSet::new();
        for stream in 0..STREAMS {
            let (caller, instance) = (Arc::clone(&setup.caller), setup.instance(1));
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
        holder.has(STREAMS as usize).await;
        let batched = case % 2 == 0;
        for step in 0..30u32 {
            for stream in 0..STREAMS {
                let delta = if step == 29 { last(&[step]) } else { tokens(&[stream, step]) };
                holder.push(stream, delta);
            }
            if batched {
                setup.served.flush(InstanceId(1));
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
