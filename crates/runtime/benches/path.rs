//! What the runtime costs on the path of a request: per delta, per call, per engine step.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a bench fails by panicking")]

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use dynamo_runtime::events::{EventPlane, Local};
use dynamo_runtime::mailbox;
use dynamo_runtime::plane::{Handler, InProcess, RequestPlane};
use dynamo_types::{
    Delta, DeltaSink, Error, FinishReason, Instance, InstanceId, KvEvent, KvEventBatch, Request, StorageTier,
    StoredBlock, Transport, WorkerRank,
};
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

fn token(token: u32) -> Delta {
    Delta { tokens: vec![token], ..Delta::default() }
}

fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => std::process::abort(),
    }
}

struct Answer;

impl Handler for Answer {
    fn handle(&self, _: Arc<Request>, mut sink: Box<dyn DeltaSink>) -> Result<(), Error> {
        sink.push(Delta { finish: Some(FinishReason::Stop), ..token(1) });
        Ok(())
    }
}

fn deltas(criterion: &mut Criterion) {
    criterion.bench_function("mailbox: push and read one token", |bench| {
        let (mut sender, mut receiver) = mailbox::channel();
        bench.iter(|| {
            sender.push(token(7));
            black_box(ready(receiver.recv()))
        });
    });
    criterion.bench_function("mailbox: push 64 tokens, read once", |bench| {
        let (mut sender, mut receiver) = mailbox::channel();
        bench.iter(|| {
            (0..64).for_each(|i| sender.push(token(i)));
            black_box(ready(receiver.recv()))
        });
    });
}

fn calls(criterion: &mut Criterion) {
    let plane = InProcess::default();
    let _guard = plane.serve(InstanceId(1), Arc::new(Answer));
    let instance = Instance {
        namespace: "dynamo".into(),
        component: "backend".into(),
        endpoint: "generate".into(),
        id: InstanceId(1),
        transport: Transport::InProcess,
        draining: false,
        fault: None,
    };
    let request = Arc::new(Request {
        id: "r".into(),
        model: "m".into(),
        tokens: vec![1].into(),
        resumed: 0,
        task: Default::default(),
        sampling: Default::default(),
        stopping: Default::default(),
        guide: None,
        thinking: None,
        output: Default::default(),
        routing: Default::default(),
        trace: None,
    });
    criterion.bench_function("plane: in-process call with an answer of one token", |bench| {
        bench.iter(|| {
            let mut stream = ready(plane.call(&instance, Arc::clone(&request))).expect("it is served");
            black_box(ready(stream.next()))
        });
    });
}

fn events(criterion: &mut Criterion) {
    let source = WorkerRank::new(InstanceId(1), 0);
    criterion.bench_function("events: publish and read a batch of four blocks", |bench| {
        let plane = Local::default();
        let mut subscription = plane.subscribe();
        let mut sequence = 0;
        let batch = |sequence: u64| {
            let block = |i: u64| StoredBlock { block_hash: sequence % 4096 * 4 + i, tokens_hash: i };
            let blocks = (0..4).map(block).collect();
            let events = vec![KvEvent::Stored { parent: None, blocks, tier: StorageTier::Device }];
            KvEventBatch { source, epoch: 1, sequence, events }
        };
        bench.iter_batched(
            || {
                sequence += 1;
                batch(sequence)
            },
            |batch| {
                plane.publish_kv(batch);
                black_box(ready(subscription.next()).unwrap())
            },
            BatchSize::SmallInput,
        );
    });
}

criterion_group!(path, deltas, calls, events);
criterion_main!(path);
