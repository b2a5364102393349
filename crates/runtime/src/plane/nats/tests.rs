//! Over a real server, one for each test.

use super::super::conformance::{self, Holder, Setup, eventually, last, request, tokens};
use super::super::wire::frame::{self, Kind as FrameKind};
use super::super::wire::{self, Caller};
use super::super::{InProcess, RequestPlane};
use super::client::Client;
use super::fixture::{Process, Way};
use super::flow::{self, Kind, WINDOW_BYTES};
use super::protocol::Message;
use super::session::{Inbox, Session};
use super::{Dialer, Error, Knocks, Login, Options, Server, login, pipe};
use crate::events::{EventPlane, Local};
use crate::sync::lock;
use dynamo_types::{
    Class, InstanceId, KvEvent, KvEventBatch, StorageTier, StoredBlock, Transport, WorkerRank,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// What is not found otherwise is not found within a test.
const NEVER: Duration = Duration::from_secs(600);

/// Neither side's silence is what ends anything here.
fn patient() -> wire::Options {
    wire::Options {
        connect_timeout: NEVER,
        beat_every: NEVER,
        dead_after: 2 * NEVER,
        ..wire::Options::default()
    }
}

/// A worker process and a caller, each with a way of its own to the server.
struct Pair {
    setup: Setup,
    caller: Caller,
    dialer: Arc<Dialer>,
    near: Arc<Local>,
    far: Arc<Local>,
    near_way: Way,
    far_way: Way,
    server: Option<Server>,
    process: Process,
}

impl Pair {
    async fn with(config: &str, options: wire::Options) -> Self {
        let process = Process::start(config).await;
        let (near_way, far_way) = (process.way().await, process.way().await);
        let (near, far) = (Arc::new(Local::default()), Arc::new(Local::default()));
        let served = InProcess::new(conformance::options());
        let server =
            Server::start(far_way.options(), "a b.>", &served, Arc::clone(&far), options.clone()).await;
        let server = server.unwrap();
        let transport = Transport::Nats(server.subject().to_owned());
        let dialer = Arc::new(Dialer::new(near_way.options()));
        let caller = Caller::new(options, Arc::clone(&near), Arc::clone(&dialer) as _);
        let setup = Setup { caller: Arc::new(caller.clone()), served, transport, _held: Box::new(()) };
        Self { setup, caller, dialer, near, far, near_way, far_way, server: Some(server), process }
    }

    /// Begins a stream, of which one token arrived.
    async fn begun(&self, holder: &Holder) -> crate::plane::DeltaStream {
        let mut stream = self.caller.call(&self.setup.instance(1), request(&[1])).await.unwrap();
        holder.has(1).await;
        holder.push(1, tokens(&[4]));
        assert_eq!(stream.next().await, Some(Ok(tokens(&[4]))));
        stream
    }

    /// Calls until one is answered.
    async fn recovers(&self, holder: &Arc<Holder>) {
        for attempt in 0.. {
            let called = self.caller.call(&self.setup.instance(1), request(&[2])).await;
            if let Ok(mut stream) = called {
                let arrives = async {
                    while !lock(&holder.0).contains_key(&2) {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                };
                tokio::select! {
                    () = arrives => {
                        holder.push(2, last(&[5]));
                        assert_eq!(stream.next().await, Some(Ok(last(&[5]))));
                        return;
                    }
                    failed = stream.next() => assert!(failed.unwrap().unwrap_err().retryable()),
                }
            }
            assert!(attempt < 4000, "no call is answered again");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Every stream, and every subscription but those of the pipe that stays.
    async fn nothing_is_left(&self) {
        let server = self.server.as_ref().unwrap();
        eventually("no stream is left", || server.stream_count() == 0).await;
        for (client, most) in [(&self.dialer.client, 1), (&server.client, 2)] {
            let session = client.session().await.unwrap();
            eventually("no subscription is left", || session.subscription_count() <= most).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms() {
    let pair = Pair::with("", wire::Options::default()).await;
    conformance::suite(&pair.setup).await;
    assert_eq!(pair.caller.connection_count(), 1, "one pipe carries everything");
    pair.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms_however_small_messages_must_be() {
    let pair = Pair::with("max_payload: 40", wire::Options::default()).await;
    conformance::suite(&pair.setup).await;
    let holder = Arc::new(Holder::default());
    let _guard = pair.setup.served.serve(InstanceId(1), holder.clone());
    let prompt: Vec<u32> = (0..3000).map(|i| i * 70_000).collect();
    let mut stream = pair.caller.call(&pair.setup.instance(1), request(&prompt)).await.unwrap();
    holder.has(1).await;
    holder.push(0, last(&prompt));
    assert_eq!(stream.next().await, Some(Ok(last(&prompt))), "what is larger is cut");
}

#[tokio::test]
async fn r30_streams_break_when_the_server_dies_and_begin_again_when_it_is_back() {
    let mut pair = Pair::with("", patient()).await;
    let holder = Arc::new(Holder::default());
    let _guard = pair.setup.served.serve(InstanceId(1), holder.clone());
    for _ in 0..3 {
        let mut stream = pair.begun(&holder).await;
        pair.process.kill();
        let error = stream.next().await.unwrap().unwrap_err();
        assert!(error.retryable() && error.counts_against_worker(), "{error}");
        eventually("its engine is told", || lock(&holder.0)[&1].is_cancelled()).await;
        let error = pair.setup.fold(1, &[1]).await.unwrap_err();
        assert!(error.retryable(), "{error}");
        assert!(error.detail().unwrap().contains("NATS is not reached"), "{error}");
        pair.process.run().await;
        pair.recovers(&holder).await;
        holder.drop_all();
        pair.nothing_is_left().await;
    }
}

#[tokio::test]
async fn r30_whoever_loses_the_server_breaks_the_streams_and_both_come_back() {
    // The worker has a beat, by which it hears that the caller is gone.
    let options = wire::Options { beat_every: Duration::from_millis(50), ..patient() };
    let pair = Pair::with("", options).await;
    let holder = Arc::new(Holder::default());
    let _guard = pair.setup.served.serve(InstanceId(1), holder.clone());
    for way in [&pair.near_way, &pair.far_way] {
        let mut stream = pair.begun(&holder).await;
        way.cut();
        let error = stream.next().await.unwrap().unwrap_err();
        assert!(error.retryable(), "{error}");
        eventually("its engine is told", || lock(&holder.0)[&1].is_cancelled()).await;
        way.mend();
        pair.recovers(&holder).await;
        holder.drop_all();
        pair.nothing_is_left().await;
    }
}

#[tokio::test]
async fn r30_a_worker_that_dies_is_found_without_waiting_for_its_silence() {
    // It cannot say goodbye, and no beat of either side is due: the server says that nobody listens.
    let pair = Pair::with("", patient()).await;
    let holder = Arc::new(Holder::default());
    let _guard = pair.setup.served.serve(InstanceId(1), holder.clone());
    let mut stream = pair.begun(&holder).await;
    pair.far_way.cut();
    let error = stream.next().await.unwrap().unwrap_err();
    assert!(error.retryable() && error.counts_against_worker(), "{error}");
    assert!(error.detail().unwrap().contains("not connected to NATS any more"), "{error}");
}

#[tokio::test]
async fn a_peer_that_hangs_is_found_by_its_silence() {
    let process = Process::start("").await;
    let way = process.way().await;
    let client = Client::new(way.options());
    let session = client.session().await.unwrap();
    let mut knocks = Knocks::listen(&session, "there").unwrap();
    let hang = tokio::spawn(async move {
        let knock = knocks.waiting.recv().await.unwrap();
        let (_read, mut write) = pipe::accept(&session, &knock).unwrap().unwrap();
        let mut bytes = Vec::new();
        let hello = wire::hello(&wire::Options::default(), None);
        frame::write(&mut bytes, FrameKind::Hello, &hello, usize::MAX).unwrap();
        write.write_all(&bytes).await.unwrap();
        std::future::pending::<()>().await;
    });
    let options = wire::Options {
        connect_timeout: Duration::from_secs(20),
        beat_every: Duration::from_millis(50),
        dead_after: Duration::from_millis(600),
        ..wire::Options::default()
    };
    let caller = Caller::new(options, Arc::default(), Arc::new(Dialer::new(way.options())));
    let mut instance = dynamo_types::Instance {
        namespace: "dynamo".into(),
        component: "backend".into(),
        endpoint: "generate".into(),
        id: InstanceId(1),
        transport: Transport::Nats("there".into()),
        draining: false,
        fault: None,
    };
    let mut stream = caller.call(&instance, request(&[1])).await.unwrap();
    let error = stream.next().await.unwrap().unwrap_err();
    assert!(error.detail().unwrap().contains("no sign of life for 600 ms"), "{error}");
    hang.abort();
    // Nobody is there at all.
    instance.transport = Transport::Nats("nowhere".into());
    let caller = Caller::new(patient(), Arc::default(), Arc::new(Dialer::new(way.options())));
    let mut stream = caller.call(&instance, request(&[1])).await.unwrap();
    let error = stream.next().await.unwrap().unwrap_err();
    assert!(error.retryable(), "{error}");
    assert_eq!(error.class(), Class::Unavailable);
    assert!(error.detail().unwrap().contains("nowhere: nobody listens there"), "{error}");
}

/// Two ends of one pipe, the caller's first.
async fn piped(way: &Way) -> (Client, wire::Streams, wire::Streams) {
    let client = Client::new(way.options());
    let session = client.session().await.unwrap();
    let mut knocks = Knocks::listen(&session, "there").unwrap();
    let accepting = async {
        let knock = knocks.waiting.recv().await.unwrap();
        pipe::accept(&session, &knock).unwrap().unwrap()
    };
    let (near, far) = tokio::join!(pipe::open(&session, "there"), accepting);
    (client, near.unwrap(), far)
}

#[tokio::test]
async fn a_reader_that_lags_holds_up_the_writer_and_loses_nothing() {
    let process = Process::start("").await;
    let way = process.way().await;
    let (client, near, far) = piped(&way).await;
    let sent: Vec<u8> = (0..4 * WINDOW_BYTES as u32).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect();
    for ((_, mut write), (mut read, _)) in [(far, near)] {
        let mut written = 0;
        // Until no more is taken; nothing was read yet, so that comes, and at the window.
        while written < WINDOW_BYTES as usize {
            written += write.write(&sent[written..]).await.unwrap();
        }
        assert_eq!(written, WINDOW_BYTES as usize);
        let session = client.session().await.unwrap();
        session.flush().await.unwrap();
        let more = std::future::poll_fn(|context| {
            let polled = AsyncWrite::poll_write(std::pin::Pin::new(&mut write), context, &sent[written..]);
            std::task::Poll::Ready(polled.is_ready())
        });
        assert!(!more.await, "the window is full");
        let rest = async {
            write.write_all(&sent[written..]).await.unwrap();
            write.shutdown().await.unwrap();
        };
        let mut got = Vec::new();
        let (_, count) = tokio::join!(rest, read.read_to_end(&mut got));
        assert_eq!((count.unwrap(), got == sent), (sent.len(), true));
    }
}

/// Keeps what comes.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<bytes::Bytes>>>);

impl Inbox for Told {
    fn message(&self, _: &Session, message: Message) {
        lock(&self.0).push(message.payload);
    }

    fn lost(&self, _: &Error) {}
}

#[tokio::test]
async fn a_gap_ends_a_pipe_after_what_came_before_it() {
    let process = Process::start("").await;
    let way = process.way().await;
    let client = Client::new(way.options());
    let session = client.session().await.unwrap();
    let mut knocks = Knocks::listen(&session, "there").unwrap();
    let told = Told::default();
    session.subscribe("mine", Arc::new(told.clone())).unwrap();
    let told = told.0;
    let accepting = async {
        let knock = knocks.waiting.recv().await.unwrap();
        let peer = knock.reply.unwrap();
        let say = |kind, number, body: &[u8]| session.publish(&peer, "mine", &flow::head(kind, number), body);
        say(Kind::Accept, WINDOW_BYTES, b"");
        say(Kind::Data, 0, b"before");
        say(Kind::Data, 2, b"after");
    };
    let (near, ()) = tokio::join!(pipe::open(&session, "there"), accepting);
    let (mut read, mut write) = near.unwrap();
    let mut got = Vec::new();
    let error = read.read_to_end(&mut got).await.unwrap_err();
    assert_eq!(got, b"before");
    assert!(error.to_string().contains("message 2 came where 1 was due"), "{error}");
    assert!(write.write(b"more").await.is_err());
    drop((read, write));
    eventually("the other side is told", || {
        let told = lock(&told);
        let last = told.last().and_then(|payload| flow::parse(payload.clone()));
        last.is_some_and(|(kind, _, why)| {
            kind == Kind::End && why.ends_with(b"message 2 came where 1 was due")
        })
    })
    .await;
}

#[tokio::test]
async fn what_the_server_refuses_is_told_with_the_setting() {
    let process = Process::start("authorization { token: sesame }").await;
    let way = process.way().await;
    let start = async |login| {
        let options = Options { login, startup_timeout: NEVER, ..way.options() };
        let checked = Dialer::new(options.clone()).check().await;
        let events = Arc::<Local>::default();
        let started =
            Server::start(options, "n", &InProcess::default(), events, wire::Options::default()).await;
        assert_eq!(checked.err(), started.as_ref().err().cloned());
        started.map(drop)
    };
    assert_eq!(start(Login::Token("sesame".into())).await, Ok(()));
    for (login, expected) in [
        (Login::None, "nats.username and nats.password, nats.token, nats.nkey or nats.credentials_file"),
        (Login::Token("other".into()), "look at nats.token"),
        (Login::Password { user: "u".into(), password: "secret".into() }, "look at nats.username"),
    ] {
        let error = start(login).await.unwrap_err();
        assert!(matches!(error, Error::Refused(_)), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        assert!(error.to_string().contains(&way.address), "{error}");
    }
}

#[tokio::test]
async fn a_key_is_shown_by_what_it_signs() {
    let (_, seed) = login::tests::seed(1);
    let key = login::tests::public(&seed);
    let process = Process::start(&format!("authorization {{ users = [ {{ nkey: {key} }} ] }}")).await;
    let way = process.way().await;
    let check = async |login| Dialer::new(Options { login, ..way.options() }).check().await;
    assert_eq!(check(Login::Key(seed.clone())).await, Ok(()));
    let error = check(Login::Key(login::tests::seed(2).1)).await.unwrap_err().to_string();
    assert!(error.contains("look at nats.nkey"), "{error}");
    let stranger = Login::Credentials { jwt: "a.b.c".into(), seed: seed.clone() };
    let error = check(stranger).await.unwrap_err().to_string();
    assert!(error.contains("look at nats.credentials_file"), "{error}");
    let process = Process::start("").await;
    let way = process.way().await;
    let error = Dialer::new(Options { login: Login::Key(seed), ..way.options() }).check().await.unwrap_err();
    assert!(error.to_string().contains("it asks for no key"), "{error}");
}

#[tokio::test]
async fn credentials_are_taken_by_who_knows_their_signer() {
    use login::tests::{public, public_as, seed, token};
    let [(_, operator), (_, account), (text, user)] = [seed(3), seed(4), seed(5)];
    let (operator_id, account_id) = (public_as(b'O', &operator), public_as(b'A', &account));
    let claims = r#"{"type":"operator","version":2}"#;
    let operator_token = token(&operator_id, &operator, &operator_id, claims);
    let claims = r#"{"limits":{"subs":-1,"data":-1,"payload":-1,"imports":-1,"exports":-1,"wildcards":true,"conn":-1,
        "leaf":-1},"type":"account","version":2}"#;
    let account_token = token(&operator_id, &operator, &account_id, claims);
    let claims = r#"{"subs":-1,"data":-1,"payload":-1,"type":"user","version":2}"#;
    let user_token = token(&account_id, &account, &public(&user), claims);
    let config = format!(
        "operator: {operator_token}\nresolver: MEMORY\nresolver_preload: {{ {account_id}: {account_token} }}"
    );
    let process = Process::start(&config).await;
    let way = process.way().await;
    let check = async |jwt: &str| {
        let file = format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\
             -----BEGIN USER NKEY SEED-----\n{text}\n------END USER NKEY SEED------\n"
        );
        let login = Login::from_credentials(&file).unwrap();
        Dialer::new(Options { login, ..way.options() }).check().await
    };
    assert_eq!(check(&user_token).await, Ok(()));
    let forged = token(&account_id, &operator, &public(&user), claims);
    assert!(check(&forged).await.unwrap_err().to_string().contains("look at nats.credentials_file"));
}

#[tokio::test]
async fn what_is_not_permitted_is_told_at_once() {
    let config = "authorization { users = [
        { user: worker, password: w, permissions { publish: \"_INBOX.>\", subscribe: [\"dynamo.>\", \"_INBOX.>\"] } }
        { user: nobody, password: n, permissions { publish: \"x\", subscribe: \"_INBOX.>\" } } ] }";
    let process = Process::start(config).await;
    let way = process.way().await;
    let login = |user: &str, password: &str| Login::Password { user: user.into(), password: password.into() };
    let start = async |login| {
        let options = Options { login, startup_timeout: NEVER, ..way.options() };
        Server::start(options, "n", &InProcess::default(), Arc::default(), wire::Options::default()).await
    };
    let server = start(login("worker", "w")).await.unwrap();
    let error = start(login("nobody", "n")).await.err().unwrap().to_string();
    assert!(error.contains("Permissions Violation for Subscription to \"dynamo.n.connect."), "{error}");
    let caller = Dialer::new(Options { login: login("nobody", "n"), ..way.options() });
    let caller = Caller::new(patient(), Arc::default(), Arc::new(caller));
    let served = InProcess::default();
    let transport = Transport::Nats(server.subject().to_owned());
    let setup = Setup { caller: Arc::new(caller), served, transport, _held: Box::new(()) };
    let error = setup.fold(1, &[1]).await.unwrap_err();
    assert!(error.detail().unwrap().contains("Permissions Violation for Publish"), "{error}");
}

#[tokio::test]
async fn a_worker_that_starts_waits_for_the_server() {
    let mut process = Process::start("").await;
    let way = process.way().await;
    process.kill();
    let impatient = Options { startup_timeout: Duration::ZERO, ..way.options() };
    let served = InProcess::default();
    let start = |options| Server::start(options, "n", &served, Arc::default(), patient());
    let error = start(impatient).await.err().unwrap();
    assert!(matches!(&error, Error::Unreachable(reason) if reason.contains(&way.address)), "{error}");
    let (started, ()) = tokio::join!(start(way.options()), process.run());
    assert!(started.unwrap().subject().starts_with("dynamo.n.connect."));
}

fn batch(source: WorkerRank, sequence: u64) -> KvEventBatch {
    let blocks = vec![StoredBlock { block_hash: sequence, tokens_hash: sequence }];
    let events = vec![KvEvent::Stored { parent: None, blocks, tier: StorageTier::Device }];
    KvEventBatch { source, epoch: 1, sequence, events }
}

#[tokio::test]
async fn r32_events_cross_and_what_is_missed_comes_after_an_outage() {
    let mut pair = Pair::with("", patient()).await;
    let source = WorkerRank::new(InstanceId(1), 0);
    (0..5).for_each(|i| pair.far.publish_kv(batch(source, i)));
    let _follow = pair.caller.follow(&pair.setup.instance(1)).unwrap();
    let at = |pair: &Pair| pair.near.position(source).map(|position| position.sequence);
    eventually("a late start gets what is there", || at(&pair) == Some(4)).await;
    pair.process.kill();
    pair.far.publish_kv(batch(source, 5));
    pair.process.run().await;
    eventually("what was missed comes", || at(&pair) == Some(5)).await;
    pair.far.publish_kv(batch(source, 6));
    eventually("and what follows", || at(&pair) == Some(6)).await;
}

/// A worker that ends waits for what it said last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_said_before_the_end_arrives() {
    let mut pair = Pair::with("", wire::Options::default()).await;
    for _ in 0..20 {
        let served = InProcess::new(conformance::options());
        let events = Arc::clone(&pair.far);
        let options = wire::Options::default();
        let server = Server::start(pair.far_way.options(), "n", &served, events, options).await.unwrap();
        pair.setup.transport = Transport::Nats(server.subject().to_owned());
        let holder = Arc::new(Holder::default());
        let guard = served.serve(InstanceId(1), holder.clone());
        served.flush(InstanceId(1));
        let mut streams = Vec::new();
        for number in 0..20 {
            streams.push(pair.caller.call(&pair.setup.instance(1), request(&[number])).await.unwrap());
        }
        holder.has(20).await;
        (0..20).for_each(|number| holder.push(number, last(&[number; 5000])));
        holder.drop_all();
        guard.idle().await;
        server.settled().await;
        drop(server);
        for (number, mut stream) in (0..).zip(streams) {
            assert_eq!(stream.next().await, Some(Ok(last(&[number; 5000]))));
        }
    }
}
