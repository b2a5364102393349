//! The caller's side of one connection.

use super::batch::Batches;
use super::frame::{self, Beat, Cancel, Event, Events, GoAway, Hello, Item, Kind, Open, Reader, Subscribe};
use super::sync::{Hears, Says};
use super::{Dial, Error, Options, open};
use crate::bookings::Peers;
use crate::events::{EventPlane, Local, continues};
use crate::mailbox;
use crate::plane::metrics::{Call, Place, unix_ns};
use crate::sync::lock;
use dynamo_types::{self as types, DeltaSink, InstanceId, Request, Transport};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

/// Bytes of a request that its frame needs besides its tokens, at most in practice; only the bound on what waits uses it.
const REQUEST_BYTES: usize = 512;

/// What is kept of a worker's name for its program.
const AGENT_MAX_CHARS: usize = 64;

/// Events of more bytes than this wait for the answers that came before them. A worker's load alone is far below it.
const MUCH_BYTES: usize = 1024;

/// MessagePack's largest form of a token id.
const TOKEN_BYTES: usize = 5;

/// One connection, from before it is made until it ended. Calls may be queued at once.
pub(super) struct Link {
    options: Options,
    state: Mutex<State>,
    /// Something waits to be written.
    work: Notify,
    ended: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    streams: FxHashMap<u64, Stream>,
    place: Place,
    /// What the worker's hello said of its program.
    agent: Option<Arc<str>>,
    next_stream: u64,
    opens: VecDeque<Open>,
    opens_bytes: usize,
    cancels: Vec<u64>,
    subscribe: bool,
    /// Set once; nothing begins after it.
    fault: Option<Error>,
}

struct Stream {
    sender: mailbox::Sender,
    call: Call,
}

/// What is written now.
struct Collected {
    requests: usize,
    /// Other workers are followed than before.
    subscribed: bool,
}

/// The hello of either side.
pub(crate) fn hello(options: &Options, token: Option<&str>) -> Hello {
    Hello {
        version: frame::VERSION,
        agent: crate::plane::AGENT.to_owned(),
        max_frame_bytes: options.max_frame_bytes as u64,
        token: token.map(str::to_owned),
    }
}

fn bytes_of(request: &Request) -> usize {
    REQUEST_BYTES + TOKEN_BYTES * request.tokens.len()
}

/// What streams of a broken connection are told.
fn broken(error: &Error) -> types::Error {
    types::Error::disconnected("the connection to the worker broke").with_detail(error.to_string())
}

impl Link {
    pub(super) fn new(options: Options) -> Arc<Self> {
        let state = State { place: Place::new(options.metrics.clone()), ..State::default() };
        Arc::new(Self {
            options,
            state: Mutex::new(state),
            work: Notify::new(),
            ended: watch::Sender::new(false),
        })
    }

    /// Name and version of the worker's program.
    pub(super) fn agent(&self) -> Option<Arc<str>> {
        lock(&self.state).agent.clone()
    }

    pub(super) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Why it ended.
    pub(super) fn fault(&self) -> Option<Error> {
        lock(&self.state).fault.clone()
    }

    /// Completes when the connection has ended.
    pub(super) async fn end(&self) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Queues a request. Its faults, those of connecting among them, come through the mailbox.
    pub(super) fn open(
        self: &Arc<Self>,
        instance: InstanceId,
        request: Arc<Request>,
    ) -> types::Result<(mailbox::Receiver, Guard)> {
        let mut state = lock(&self.state);
        if let Some(fault) = &state.fault {
            return Err(broken(fault));
        }
        let bytes = state.opens_bytes + bytes_of(&request);
        let streams = state.streams.len();
        if streams >= self.options.max_streams || bytes > self.options.max_queued_bytes {
            return Err(types::Error::overloaded("the connection to the chosen worker is full").with_detail(
                format!(
                    "{streams} streams of {}, {bytes} bytes of requests waiting of {}",
                    self.options.max_streams, self.options.max_queued_bytes
                ),
            ));
        }
        let stream = state.next_stream;
        state.next_stream += 1;
        let (sender, receiver) = mailbox::channel();
        state.streams.insert(stream, Stream { sender, call: self.options.metrics.call() });
        state.place.carry(streams + 1);
        state.opens_bytes = bytes;
        state.opens.push_back(Open { stream, instance, request, written_unix_ns: None });
        drop(state);
        self.work.notify_one();
        Ok((receiver, Guard { link: Arc::clone(self), stream }))
    }

    /// Has the worker send what the event plane misses, once more.
    pub(super) fn subscribe(&self) {
        lock(&self.state).subscribe = true;
        self.work.notify_one();
    }

    /// Connects and carries until the connection ends. Dropping the future ends it too, even if it was never polled.
    pub(super) fn run(
        self: Arc<Self>,
        to: Transport,
        dial: Arc<dyn Dial>,
        followed: Arc<Followed>,
    ) -> impl Future<Output = ()> + Send {
        let ending = Ending(self);
        async move {
            let link = &ending.0;
            let error = link.session(&to, &*dial, &followed).await.err().unwrap_or(Error::Closed);
            tracing::debug!(%to, %error, "the connection to a worker ended");
            // A worker that leaves when nobody wants anything of it is no fault.
            if error != Error::Closed || !lock(&link.state).streams.is_empty() {
                link.options.metrics.broke();
            }
            link.finish(error);
        }
    }

    async fn session(&self, to: &Transport, dial: &dyn Dial, followed: &Followed) -> Result<(), Error> {
        let limit = self.options.connect_timeout;
        let connect = async {
            let (read, write) = dial.dial(to).await?;
            self.greet(read, write).await
        };
        let (mut reader, mut writer, peer_limit) =
            timeout(limit, connect).await.map_err(|_| Error::Timeout(limit))??;
        reader.count_into(&self.options.metrics);
        {
            let mut state = lock(&self.state);
            let streams = state.streams.len();
            state.place.enter(streams);
        }
        tokio::select! {
            ended = self.listen(&mut reader, followed) => ended,
            ended = self.speak(&mut writer, to, followed, peer_limit) => ended,
        }
    }

    async fn greet<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &self,
        read: R,
        mut writer: W,
    ) -> Result<(Reader<R>, W, usize), Error> {
        let mut bytes = Vec::new();
        let hello = hello(&self.options, self.options.token.as_deref());
        frame::write(&mut bytes, Kind::Hello, &hello, usize::MAX)?;
        frame::send(&mut writer, &bytes, self.options.connect_timeout).await?;
        let mut reader = Reader::new(read, self.options.max_frame_bytes, self.options.dead_after);
        let answer: Hello = match reader.next().await? {
            Some((Kind::Hello, body)) => frame::parse(body)?,
            Some((Kind::GoAway, body)) => {
                return Err(Error::Refused(frame::parse::<GoAway>(body)?.reason));
            }
            Some((kind, _)) => return Err(Error::Decode(format!("{kind:?} before hello"))),
            None => return Err(Error::Closed),
        };
        if answer.version != frame::VERSION {
            return Err(Error::Refused(format!(
                "the worker speaks version {} of the request plane, this caller version {}",
                answer.version,
                frame::VERSION
            )));
        }
        let agent: String = answer.agent.chars().take(AGENT_MAX_CHARS).collect();
        lock(&self.state).agent = Some(agent).filter(|agent| !agent.is_empty()).map(Arc::from);
        Ok((reader, writer, usize::try_from(answer.max_frame_bytes).unwrap_or(usize::MAX)))
    }

    async fn listen<R: AsyncRead + Unpin>(
        &self,
        reader: &mut Reader<R>,
        followed: &Followed,
    ) -> Result<(), Error> {
        let mut batches = Batches::default();
        let others = Hears::caller(followed.peers.as_ref());
        while let Some((kind, body)) = reader.next().await? {
            match kind {
                Kind::Batch => self.deliver(batches.read(body)?),
                Kind::Events => {
                    // What was delivered is written to the clients before much is taken note of.
                    if body.len() > MUCH_BYTES {
                        tokio::task::yield_now().await;
                    }
                    followed.apply(frame::parse(body)?);
                }
                Kind::Bookings => others.hear(body)?,
                Kind::GoAway => return Err(Error::Refused(frame::parse::<GoAway>(body)?.reason)),
                Kind::Pong => {}
                Kind::Ping | Kind::Hello | Kind::Open | Kind::Cancel | Kind::Subscribe => {
                    return Err(Error::Decode(format!("{kind:?} from a worker")));
                }
            }
        }
        Ok(())
    }

    fn deliver(&self, items: impl Iterator<Item = Item>) {
        let mut state = lock(&self.state);
        for Item { stream, delta, error } in items {
            // Unknown streams were cancelled meanwhile.
            let Some(Stream { sender, call }) = state.streams.get_mut(&stream) else { continue };
            let ends = delta.finish.is_some() || error.is_some();
            call.heard();
            sender.push(delta);
            if let Some(error) = error {
                sender.fail(error);
            }
            if ends {
                state.streams.remove(&stream);
            }
        }
        let streams = state.streams.len();
        state.place.carry(streams);
    }

    async fn speak<W: AsyncWrite + Unpin>(
        &self,
        writer: &mut W,
        to: &Transport,
        followed: &Followed,
        peer_limit: usize,
    ) -> Result<(), Error> {
        let mut bytes = Vec::new();
        let mut beat = Instant::now() + self.options.beat_every;
        let mut number = 0;
        let mut says = Says::caller(followed.peers.as_ref(), &followed.at(to));
        loop {
            let Collected { requests, subscribed } = self.collect(&mut bytes, followed, peer_limit)?;
            if subscribed {
                says.want(&followed.at(to));
            }
            says.append(&mut bytes, peer_limit)?;
            if bytes.is_empty() {
                tokio::select! {
                    () = self.work.notified() => {}
                    () = says.due() => {}
                    () = tokio::time::sleep_until(beat) => {
                        number += 1;
                        frame::write(&mut bytes, Kind::Ping, &Beat { number }, peer_limit)?;
                    }
                }
            }
            if !bytes.is_empty() {
                let begun = Instant::now();
                frame::send(writer, &bytes, self.options.dead_after).await?;
                self.options.metrics.wrote(requests, bytes.len(), begun.elapsed());
                bytes.clear();
                bytes.shrink_to(1 << 20);
                beat = Instant::now() + self.options.beat_every;
            }
        }
    }

    /// Everything that waits to be written.
    fn collect(
        &self,
        bytes: &mut Vec<u8>,
        followed: &Followed,
        peer_limit: usize,
    ) -> Result<Collected, Error> {
        let mut state = lock(&self.state);
        let opens = std::mem::take(&mut state.opens);
        let requests = opens.len();
        let now = std::time::Instant::now();
        for open in &opens {
            if let Some(Stream { call, .. }) = state.streams.get_mut(&open.stream) {
                call.written(now);
            }
        }
        let streams = std::mem::take(&mut state.cancels);
        let subscribe = std::mem::take(&mut state.subscribe);
        state.opens_bytes = 0;
        drop(state);
        if subscribe {
            let positions = followed.events.positions();
            frame::write(bytes, Kind::Subscribe, &Subscribe { positions }, peer_limit)?;
        }
        let written_unix_ns = (requests > 0).then(unix_ns);
        for request in opens {
            let request = Open { written_unix_ns, ..request };
            if let Err(error) = open::write(bytes, &request, peer_limit) {
                let refused = too_large(&error);
                let mut state = lock(&self.state);
                let stream = state.streams.remove(&request.stream);
                let streams = state.streams.len();
                state.place.carry(streams);
                drop(state);
                if let Some(mut stream) = stream {
                    stream.sender.fail(refused);
                }
            }
        }
        if !streams.is_empty() {
            frame::write(bytes, Kind::Cancel, &Cancel { streams }, peer_limit)?;
        }
        Ok(Collected { requests, subscribed: subscribe })
    }

    fn finish(&self, error: Error) {
        let mut state = lock(&self.state);
        let fault = state.fault.get_or_insert(error).clone();
        let streams = std::mem::take(&mut state.streams);
        state.opens = VecDeque::new();
        state.cancels = Vec::new();
        state.place.leave();
        drop(state);
        for (_, mut stream) in streams {
            stream.sender.fail(broken(&fault));
        }
        self.ended.send_replace(true);
    }

    /// A stream whose reader left.
    fn cancel(&self, stream: u64) {
        let mut state = lock(&self.state);
        let Some(ended) = state.streams.remove(&stream) else { return };
        let streams = state.streams.len();
        state.place.carry(streams);
        let before = state.opens.len();
        state.opens.retain(|open| open.stream != stream);
        // What was never sent needs no goodbye.
        if state.opens.len() == before {
            state.cancels.push(stream);
        }
        drop(state);
        drop(ended);
        self.work.notify_one();
    }
}

fn too_large(error: &Error) -> types::Error {
    types::Error::client(types::Class::TooLarge, "the request is larger than the worker takes")
        .with_detail(error.to_string())
}

/// Ends a link whose task was dropped.
struct Ending(Arc<Link>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.finish(Error::Closed);
    }
}

/// Held by the reader of a stream; dropping it cancels the stream if it has not ended.
pub(super) struct Guard {
    link: Arc<Link>,
    stream: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.link.cancel(self.stream);
    }
}

/// Where events go, and whose are wanted: a worker that left discovery may still speak for a while.
pub(super) struct Followed {
    pub(super) events: Arc<Local>,
    /// Who else places requests. None: nobody is asked or told.
    pub(super) peers: Option<Peers>,
    /// Where each instance is, and how many followers it has.
    pub(super) instances: Mutex<FxHashMap<InstanceId, (Transport, u32)>>,
}

impl Followed {
    /// The instances that are reached so.
    fn at(&self, to: &Transport) -> Vec<InstanceId> {
        let instances = lock(&self.instances);
        instances.iter().filter(|(_, (known, _))| known == to).map(|(id, _)| *id).collect()
    }

    fn apply(&self, Events { events }: Events) {
        let instances = lock(&self.instances);
        for event in events {
            let source = match &event {
                Event::Snapshot(batch) | Event::Kv(batch) => batch.source,
                Event::Load(source, _) => *source,
            };
            if !instances.contains_key(&source.worker) {
                continue;
            }
            match event {
                Event::Snapshot(batch) => self.events.publish_snapshot(&batch),
                Event::Kv(batch) => {
                    if continues(self.events.position(source), batch.epoch) {
                        self.events.publish_kv(Arc::unwrap_or_clone(batch));
                    }
                }
                Event::Load(source, load) => self.events.publish_load(source, load),
            }
        }
    }
}
