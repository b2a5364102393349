use super::super::conformance::{self, Holder, Setup, eventually, last, request, tokens};
use super::super::wire::frame::{self, Batch, Kind, Open, Reader};
use super::super::wire::{self, Caller, Fleet, Options};
use super::super::{Handler, InProcess, RequestPlane};
use super::{Dialer, Server, Tls, by_hand};
use crate::events::{EventPlane, Local, Mirror};
use crate::sync::lock;
use dynamo_types::{
    Class, Delta, FinishReason, InstanceId, KvEvent, KvEventBatch, Load, StorageTier, StoredBlock, Transport,
    WorkerRank,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

/// Quick enough for tests of silence, slow enough for a busy machine.
fn quick() -> Options {
    Options {
        connect_timeout: Duration::from_secs(2),
        beat_every: Duration::from_millis(50),
        dead_after: Duration::from_millis(600),
        ..Options::default()
    }
}

fn calling(options: Options, events: Arc<Local>) -> Caller {
    Caller::new(options, events, Arc::new(Dialer::default()))
}

pub(super) async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// A worker process and a caller, with their planes.
pub(super) struct Pair {
    pub(super) setup: Setup,
    pub(super) caller: Caller,
    /// Of the caller's process.
    near: Arc<Local>,
    /// Of the worker's process.
    far: Arc<Local>,
    server: Option<Server>,
}

impl Pair {
    async fn with(options: Options) -> Self {
        Self::over(Tls::default(), options).await
    }

    pub(super) async fn over(tls: Tls, options: Options) -> Self {
        let (near, far) = (Arc::new(Local::default()), Arc::new(Local::default()));
        let served = InProcess::new(conformance::options());
        let dialer = Dialer::new(&tls);
        let listener = listener().await;
        let address = tls.address(listener.local_addr().unwrap().to_string());
        let server = Server::start(listener, &served, Arc::clone(&far), options.clone(), tls).unwrap();
        let transport = Transport::Tcp(address);
        let caller = Caller::new(options, Arc::clone(&near), Arc::new(dialer));
        let setup = Setup { caller: Arc::new(caller.clone()), served, transport, _held: Box::new(()) };
        Self { setup, caller, near, far, server: Some(server) }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms() {
    let pair = Pair::with(Options::default()).await;
    conformance::suite(&pair.setup).await;
    assert_eq!(pair.caller.connection_count(), 1, "one connection carries everything");
    eventually("no stream is left", || pair.server.as_ref().unwrap().stream_count() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeps_to_the_wire() {
    // The suite's own connections say nothing for as long as a busy machine keeps them from it.
    let pair = Pair::with(Options { dead_after: Duration::from_secs(4), ..quick() }).await;
    let sequence = AtomicU64::new(0);
    let report = |hash| {
        let sequence = sequence.fetch_add(1, Ordering::Relaxed);
        pair.far.publish_kv(batch(WorkerRank::new(InstanceId(1), 0), 1, sequence, hash));
    };
    let stage = Box::new(conformance::Ours::new(&pair.setup.served));
    let caller = Arc::new(pair.caller.clone());
    let subject = conformance::Subject { caller, transport: pair.setup.transport.clone(), stage };
    by_hand::every_case(&subject, &report).await;
    eventually("no stream is left", || pair.server.as_ref().unwrap().stream_count() == 0).await;
}

#[tokio::test]
async fn r30_a_worker_that_dies_breaks_its_streams_at_once() {
    let mut pair = Pair::with(Options::default()).await;
    let holder = Arc::new(Holder::default());
    let _guard = pair.setup.served.serve(InstanceId(1), holder.clone());
    let instance = pair.setup.instance(1);
    let mut stream = pair.caller.call(&instance, request(&[1])).await.unwrap();
    holder.has(1).await;
    holder.push(1, tokens(&[4]));
    assert_eq!(stream.next().await, Some(Ok(tokens(&[4]))));
    drop(pair.server.take());
    let error = stream.next().await.unwrap().unwrap_err();
    assert!(error.retryable() && error.counts_against_worker(), "{error}");
    eventually("its engine is told", || lock(&holder.0)[&1].is_cancelled()).await;
    let error = pair.setup.fold(1, &[1]).await.unwrap_err();
    assert!(error.retryable(), "{error}");
}

#[tokio::test]
async fn a_peer_that_hangs_is_found_by_its_silence() {
    // Accepts and says hello, then never anything again: what a stopped process looks like.
    let hung = listener().await;
    let address = hung.local_addr().unwrap().to_string();
    let hang = tokio::spawn(async move {
        let (mut socket, _) = hung.accept().await.unwrap();
        let mut bytes = Vec::new();
        frame::write(&mut bytes, Kind::Hello, &wire::hello(&Options::default(), None), usize::MAX).unwrap();
        socket.write_all(&bytes).await.unwrap();
        std::future::pending::<()>().await;
    });
    let caller = calling(quick(), Arc::new(Local::default()));
    let mut instance = Pair::with(quick()).await.setup.instance(1);
    instance.transport = Transport::Tcp(address);
    let mut stream = caller.call(&instance, request(&[1])).await.unwrap();
    let error = stream.next().await.unwrap().unwrap_err();
    assert!(error.retryable(), "{error}");
    assert!(error.detail().unwrap().contains("no sign of life for 600 ms"), "{error}");
    hang.abort();
}

/// Whoever leaves while the connection is being made is not heard of at the worker, and others on it are.
#[tokio::test]
async fn r21_leaving_before_the_connection_is_made_sends_nothing() {
    let late = listener().await;
    let address = late.local_addr().unwrap().to_string();
    let caller = calling(Options::default(), Arc::new(Local::default()));
    let mut instance = Pair::with(quick()).await.setup.instance(1);
    instance.transport = Transport::Tcp(address);
    let leaving = caller.call(&instance, request(&[1])).await.unwrap();
    let _staying = caller.call(&instance, request(&[2])).await.unwrap();
    drop(leaving);
    let (mut socket, _) = late.accept().await.unwrap();
    let mut bytes = Vec::new();
    frame::write(&mut bytes, Kind::Hello, &wire::hello(&Options::default(), None), usize::MAX).unwrap();
    socket.write_all(&bytes).await.unwrap();
    let mut reader = Reader::new(socket, 1 << 20, Duration::from_secs(60));
    loop {
        let (kind, body) = reader.next().await.unwrap().expect("the one that stayed");
        match kind {
            Kind::Cancel => panic!("what was never sent needs no goodbye"),
            Kind::Open => {
                let open: Open = frame::parse(body).unwrap();
                assert_eq!(*open.request.tokens, [2], "the one that left was sent");
                break;
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn quiet_connections_stay() {
    let pair = Pair::with(quick()).await;
    let holder = Arc::new(Holder::default());
    let _guard = pair.setup.served.serve(InstanceId(1), holder.clone());
    let mut stream = pair.caller.call(&pair.setup.instance(1), request(&[1])).await.unwrap();
    holder.has(1).await;
    tokio::time::sleep(2 * quick().dead_after).await;
    holder.push(1, last(&[1]));
    assert_eq!(stream.next().await, Some(Ok(last(&[1]))));
}

#[tokio::test]
async fn versions_and_tokens_are_checked_and_the_reason_is_told() {
    let secret = Options { token: Some("open sesame".into()), ..Options::default() };
    let pair = Pair::with(secret.clone()).await;
    let _guard = pair.setup.served.serve(InstanceId(1), Arc::new(Answer));
    assert_eq!(pair.setup.fold(1, &[1]).await, Ok(last(&[1])), "the right token");
    for token in [None, Some("open sesamf".to_owned()), Some("open".to_owned())] {
        let caller = calling(Options { token, ..Options::default() }, Arc::new(Local::default()));
        let mut stream = caller.call(&pair.setup.instance(1), request(&[1])).await.unwrap();
        let error = stream.next().await.unwrap().unwrap_err();
        assert!(error.detail().unwrap().contains("token"), "{error}");
        assert!(!error.message().contains("sesame"));
    }
}

/// Ends every answer at once with the last token of the prompt.
pub(super) struct Answer;

impl Handler for Answer {
    fn handle(
        &self,
        request: Arc<dynamo_types::Request>,
        mut sink: Box<dyn dynamo_types::DeltaSink>,
    ) -> dynamo_types::Result<()> {
        sink.push(last(&request.tokens[request.tokens.len() - 1..]));
        Ok(())
    }
}

#[tokio::test]
async fn requests_larger_than_the_worker_takes_are_refused_and_others_go_on() {
    let worker = Options { max_frame_bytes: 4096, ..Options::default() };
    let pair = Pair::with(worker).await;
    let _guard = pair.setup.served.serve(InstanceId(1), Arc::new(Answer));
    let caller = calling(Options::default(), Arc::new(Local::default()));
    let instance = pair.setup.instance(1);
    let mut small = caller.call(&instance, request(&[7])).await.unwrap();
    let mut large = caller.call(&instance, request(&[70_000; 5000])).await.unwrap();
    let error = large.next().await.unwrap().unwrap_err();
    assert_eq!(error.class(), Class::TooLarge);
    assert!(!error.retryable());
    assert_eq!(small.next().await, Some(Ok(last(&[7]))));
    let bounded = Options { max_queued_bytes: 1000, max_streams: 2, ..Options::default() };
    let caller = calling(bounded, Arc::new(Local::default()));
    assert_eq!(
        caller.call(&instance, request(&[1; 200])).await.err().unwrap().class(),
        Class::Overloaded,
        "too much waits"
    );
}

/// A step of the engine is one frame, whatever it advanced, and a reader that lags gets merged deltas.
#[tokio::test]
async fn a_step_is_one_frame_and_what_waits_is_merged() {
    let pair = Pair::with(Options::default()).await;
    let holder = Arc::new(Holder::default());
    let _guard = pair.setup.served.serve(InstanceId(1), holder.clone());
    pair.setup.served.flush(InstanceId(1));
    let mut socket = TcpStream::connect(pair.server.as_ref().unwrap().local_addr()).await.unwrap();
    let mut bytes = Vec::new();
    frame::write(&mut bytes, Kind::Hello, &wire::hello(&quick(), None), usize::MAX).unwrap();
    for stream in 0..20 {
        let open = Open {
            stream,
            instance: InstanceId(1),
            request: request(&[stream as u32]),
            written_unix_ns: None,
        };
        frame::write(&mut bytes, Kind::Open, &open, usize::MAX).unwrap();
    }
    socket.write_all(&bytes).await.unwrap();
    holder.has(20).await;
    // Three steps nobody flushed: they wait, and leave as one.
    for step in 0..3 {
        (0..20).for_each(|stream| holder.push(stream, tokens(&[step])));
    }
    pair.setup.served.flush(InstanceId(1));
    let mut reader = Reader::new(socket, 1 << 20, Duration::from_secs(5));
    loop {
        let (kind, body) = reader.next().await.unwrap().unwrap();
        if kind == Kind::Batch {
            let items = frame::parse::<Batch>(body).unwrap().items;
            assert_eq!(items.len(), 20);
            assert!(items.iter().all(|item| item.delta == tokens(&[0, 1, 2])));
            break;
        }
    }
}

fn batch(source: WorkerRank, epoch: u64, sequence: u64, hash: u64) -> KvEventBatch {
    let blocks = vec![StoredBlock { block_hash: hash, tokens_hash: hash }];
    let events = vec![KvEvent::Stored { parent: None, blocks, tier: StorageTier::Device }];
    KvEventBatch { source, epoch, sequence, events }
}

/// Blocks a new subscriber of this plane would learn of.
fn blocks(plane: &Local) -> usize {
    let mut mirror = Mirror::new(10_000);
    let mut subscription = plane.subscribe();
    while let Some(event) = subscription.try_next() {
        if let crate::events::Event::Snapshot(batch) | crate::events::Event::Kv(batch) = event {
            batch.events.iter().for_each(|event| mirror.apply(event));
        }
    }
    mirror.len()
}

#[tokio::test]
async fn r32_r33_events_cross_and_survive_late_starts_and_restarts() {
    let mut pair = Pair::with(quick()).await;
    let (source, other) = (WorkerRank::new(InstanceId(1), 0), WorkerRank::new(InstanceId(2), 0));
    (0..5).for_each(|i| pair.far.publish_kv(batch(source, 1, i, i)));
    pair.far.publish_kv(batch(other, 1, 0, 0));
    let load = Load { running: 3, ..Load::default() };
    pair.far.publish_load(source, load);
    let instance = pair.setup.instance(1);
    let follow = pair.caller.follow(&instance).unwrap();
    eventually("a late start gets what is there", || blocks(&pair.near) == 5).await;
    assert_eq!(pair.near.source_count(), 1, "only followed workers count");
    pair.far.publish_kv(batch(source, 1, 5, 5));
    eventually("then what follows", || blocks(&pair.near) == 6).await;
    let second = pair.caller.follow(&pair.setup.instance(2)).unwrap();
    eventually("a second one on the same connection", || pair.near.source_count() == 2).await;
    drop(second);
    assert_eq!(pair.near.source_count(), 1);
    // The process dies and comes back at the same address, with another life of the worker in it.
    let address = pair.server.as_ref().unwrap().local_addr();
    drop(pair.server.take());
    let far = Arc::new(Local::default());
    far.publish_kv(batch(source, 2, 0, 77));
    let mut listener = TcpListener::bind(address).await;
    while listener.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        listener = TcpListener::bind(address).await;
    }
    let _server = Server::start(listener.unwrap(), &pair.setup.served, far, quick(), Tls::default()).unwrap();
    eventually("what the earlier life said is void", || blocks(&pair.near) == 1).await;
    drop(follow);
    assert_eq!(pair.near.source_count(), 0);
}

#[tokio::test]
async fn logprobs_and_errors_cross_unchanged() {
    let pair = Pair::with(Options::default()).await;
    let holder = Arc::new(Holder::default());
    let _guard = pair.setup.served.serve(InstanceId(1), holder.clone());
    let mut stream = pair.caller.call(&pair.setup.instance(1), request(&[1])).await.unwrap();
    holder.has(1).await;
    let delta = Delta {
        tokens: vec![1, 70_000],
        logprobs: vec![
            dynamo_types::TokenLogprob { token: 1, logprob: -0.25, top: vec![(1, -0.25), (2, f32::MIN)] },
            dynamo_types::TokenLogprob { token: 70_000, logprob: -1.5e-7, top: vec![] },
        ],
        cached_tokens: Some(16),
        finish: Some(FinishReason::Stop),
        ..Delta::default()
    };
    holder.push(1, delta.clone());
    assert_eq!(stream.next().await, Some(Ok(delta)));
    let mut stream = pair.caller.call(&pair.setup.instance(1), request(&[2])).await.unwrap();
    eventually("it arrives", || lock(&holder.0).contains_key(&2)).await;
    let error = dynamo_types::Error::overloaded("full").with_retry_after_s(3).with_code("queue");
    lock(&holder.0).get_mut(&2).unwrap().fail(error.clone());
    assert_eq!(stream.next().await, Some(Err(error)));
}

#[tokio::test]
async fn whoever_is_in_discovery_is_followed() {
    let pair = Pair::with(quick()).await;
    let discovery: Arc<dyn crate::discovery::Discovery> = Arc::new(crate::discovery::Memory::default());
    let _fleet = Fleet::follow(Arc::clone(&discovery), pair.caller.clone());
    pair.far.publish_kv(batch(WorkerRank::new(InstanceId(1), 0), 1, 0, 5));
    let mut record = crate::discovery::fixture::record(1, "m", 16);
    record.instance = pair.setup.instance(1);
    let registered = discovery.register(record).await.unwrap();
    eventually("its events arrive", || blocks(&pair.near) == 1).await;
    registered.set_draining();
    tokio::task::yield_now().await;
    assert_eq!(blocks(&pair.near), 1, "a draining worker is followed");
    drop(registered);
    eventually("it is forgotten", || pair.near.source_count() == 0).await;
}

#[tokio::test]
async fn strangers_cannot_stay() {
    let few = Options { max_connections: 1, ..Options::default() };
    let pair = Pair::with(few).await;
    let _guard = pair.setup.served.serve(InstanceId(1), Arc::new(Answer));
    let _silent: Vec<TcpStream> = {
        let mut silent = Vec::new();
        for _ in 0..5 {
            silent.push(TcpStream::connect(pair.server.as_ref().unwrap().local_addr()).await.unwrap());
        }
        silent
    };
    assert_eq!(pair.setup.fold(1, &[1]).await, Ok(last(&[1])), "who says nothing takes nobody's place");
    let second = calling(Options::default(), Arc::new(Local::default()));
    let mut stream = second.call(&pair.setup.instance(1), request(&[1])).await.unwrap();
    let error = stream.next().await.unwrap().unwrap_err();
    assert!(error.detail().unwrap().contains("1 connections"), "{error}");
}

/// A worker that ends waits for what it said last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_said_before_the_end_arrives() {
    for _ in 0..50 {
        let mut pair = Pair::with(Options::default()).await;
        let holder = Arc::new(Holder::default());
        let guard = pair.setup.served.serve(InstanceId(1), holder.clone());
        pair.setup.served.flush(InstanceId(1));
        let mut streams = Vec::new();
        for number in 0..20 {
            streams.push(pair.caller.call(&pair.setup.instance(1), request(&[number])).await.unwrap());
        }
        holder.has(20).await;
        (0..20).for_each(|number| holder.push(number, last(&[number; 5000])));
        holder.drop_all();
        guard.idle().await;
        pair.server.as_ref().unwrap().settled().await;
        drop(pair.server.take());
        for (number, mut stream) in (0..).zip(streams) {
            assert_eq!(stream.next().await, Some(Ok(last(&[number; 5000]))));
        }
    }
}

#[tokio::test]
async fn a_caller_that_ends_at_once_leaves_no_reader_waiting() {
    let pair = Pair::with(Options::default()).await;
    let caller = calling(Options::default(), Arc::new(Local::default()));
    let mut stream = caller.call(&pair.setup.instance(1), request(&[1])).await.unwrap();
    drop(caller);
    assert!(stream.next().await.unwrap().unwrap_err().retryable());
}
