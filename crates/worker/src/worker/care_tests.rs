//! What a worker takes in, and how it looks after its engine.

use super::tests::{fleet, fold, request, small};
use super::*;
use crate::mock::{self, Mock};
use dynamo_runtime::discovery::Event;
use dynamo_runtime::plane::RequestPlane;
use dynamo_runtime::sync::lock;
use dynamo_types::{Class, Delta, FinishReason, Load};
use std::sync::Mutex;

/// An engine that answers when it is told to, or at once.
struct Moody {
    card: Arc<ModelCard>,
    is_well: AtomicBool,
    held: Mutex<Vec<Box<dyn DeltaSink>>>,
}

fn finish(sink: &mut Box<dyn DeltaSink>) {
    sink.push(Delta { tokens: vec![1], finish: Some(FinishReason::Length), ..Delta::default() });
}

impl Moody {
    fn new() -> Arc<Self> {
        let (card, _) = mock::card("mock", small(16));
        Arc::new(Self { card: Arc::new(card), is_well: AtomicBool::new(true), held: Mutex::default() })
    }

    fn set_well(&self, is_well: bool) {
        self.is_well.store(is_well, Ordering::Release);
        if is_well {
            let mut held = std::mem::take(&mut *lock(&self.held));
            held.iter_mut().for_each(finish);
        }
    }
}

impl Engine for Moody {
    fn card(&self) -> &Arc<ModelCard> {
        &self.card
    }

    fn submit(&self, _: Arc<Request>, mut sink: Box<dyn DeltaSink>) -> Result<()> {
        if self.is_well.load(Ordering::Acquire) {
            finish(&mut sink);
        } else {
            lock(&self.held).push(sink);
        }
        Ok(())
    }

    fn load(&self) -> Load {
        Load::default()
    }

    fn begin_drain(&self) {}

    fn is_drained(&self) -> bool {
        true
    }
}

fn options(id: u64) -> WorkerOptions {
    WorkerOptions::new(InstanceId(id), 1)
}

#[tokio::test]
async fn what_is_above_the_limits_is_refused_and_may_go_elsewhere() {
    let fleet = fleet();
    let (card, mock) = mock::card("mock", small(16));
    let build = |observer| -> Result<Arc<dyn Engine>> {
        Ok(Arc::new(Mock::new(card, mock, &fleet.clock, observer).unwrap()))
    };
    let limits = Some(Limits { requests: 2, queue: 3 });
    let worker = Worker::start(build, WorkerOptions { limits, ..options(1) }, &fleet.services).await.unwrap();
    let metric = |family: &str| {
        let text = fleet.registry.text().unwrap();
        let line = text.lines().find(|line| line.starts_with(&format!("{family}{{"))).unwrap().to_owned();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let mut streams = Vec::new();
    for number in 0..5 {
        streams.push(fleet.call(&worker, request("r", vec![number + 1], 2)).await.unwrap());
    }
    for refusals in 1..=3 {
        let error = fleet.call(&worker, request("r", vec![9], 2)).await.err().unwrap();
        assert_eq!((error.class(), error.retryable()), (Class::Overloaded, true));
        assert!(error.retry_after_s().is_some() && !error.counts_against_worker());
        assert_eq!(metric("dynamo_rejection_request_total"), f64::from(refusals));
    }
    assert_eq!((metric("dynamo_engine_request"), metric("dynamo_request_queue")), (2.0, 3.0));
    // One that leaves makes room for one.
    drop(streams.pop());
    fleet.clock.advance_ms(1);
    let again = fleet.call(&worker, request("r", vec![9], 2)).await.unwrap();
    streams.push(again);
    assert!(fleet.call(&worker, request("r", vec![9], 2)).await.is_err());
    fleet.clock.advance_ms(1000);
    for stream in streams {
        assert_eq!(fold(stream).await.unwrap().tokens.len(), 2);
    }
    assert_eq!((metric("dynamo_engine_request"), metric("dynamo_request_queue")), (0.0, 0.0));
    drop(worker);
    assert_eq!(fleet.series_count(), 0);
}

/// The next change that discovery tells.
async fn fault(watch: &mut dynamo_runtime::discovery::Watch) -> Option<String> {
    match tokio::time::timeout(Duration::from_secs(60), watch.next()).await.expect("nothing changes") {
        Some(Event::Put(record)) => record.instance.fault,
        other => panic!("expected a change, found {other:?}"),
    }
}

#[tokio::test]
async fn an_engine_that_does_not_answer_its_canary_is_marked_until_it_does() {
    let fleet = fleet();
    let engine = Moody::new();
    let build = |_| -> Result<Arc<dyn Engine>> { Ok(Arc::clone(&engine) as Arc<dyn Engine>) };
    // Longer than a busy machine keeps a task waiting that could answer.
    let canary = canary::Options { wait: Duration::from_millis(20), timeout: Duration::from_secs(2) };
    let options = WorkerOptions { canary: Some(canary), ..options(1) };
    let mut watch = fleet.memory.watch().await;
    assert_eq!(watch.next().await, Some(Event::List(vec![])));
    let worker = Worker::start(build, options, &fleet.services).await.unwrap();
    assert_eq!(fault(&mut watch).await, None, "it registers");
    engine.set_well(false);
    let reason = fault(&mut watch).await.unwrap();
    assert!(reason.contains("health check within 2000 ms"), "{reason}");
    engine.set_well(true);
    assert_eq!(fault(&mut watch).await, None);
    assert_eq!(worker.in_flight(), 0, "its own questions are no requests");
    drop(worker);
    assert_eq!(watch.next().await, Some(Event::Delete(InstanceId(1))));
    assert_eq!(fleet.series_count(), 0);
    assert_eq!(Arc::strong_count(&engine), 1, "nobody holds the engine");
}

#[tokio::test]
async fn a_drain_is_no_fault() {
    let fleet = fleet();
    let (card, mock) = mock::card("mock", small(16));
    let build = |observer| -> Result<Arc<dyn Engine>> {
        Ok(Arc::new(Mock::new(card, mock, &fleet.clock, observer).unwrap()))
    };
    let canary = canary::Options { wait: Duration::from_millis(5), timeout: Duration::from_secs(60) };
    let options = WorkerOptions { canary: Some(canary), ..options(1) };
    let worker = Worker::start(build, options, &fleet.services).await.unwrap();
    worker.begin_drain();
    let stream = fleet.services.plane.call(&worker.record.instance, Arc::new(request("r", vec![1], 1))).await;
    assert_eq!(stream.err().unwrap().class(), Class::Unavailable);
    fleet.clock.advance_ms(1000);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(fleet.memory.list()[0].instance.fault, None);
}
