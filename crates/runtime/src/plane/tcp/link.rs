//! The caller's side of one connection.

use super::batch::Batches;
use super::frame::{self, Beat, Cancel, Event, Events, GoAway, Hello, Item, Kind, Open, Reader, Subscribe};
use super::{Error, Options, open};
use crate::events::{EventPlane, Local};
use crate::mailbox;
use crate::sync::lock;
use dynamo_types::{self as types, DeltaSink, InstanceId, Request};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

/// Bytes of a request that its frame needs besides its tokens, at most in practice; only the bound on what waits uses it.
const REQUEST_BYTES: usize = 512;

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
    streams: FxHashMap<u64, mailbox::Sender>,
    next_stream: u64,
    opens: VecDeque<Open>,
    opens_bytes: usize,
    cancels: Vec<u64>,
    subscribe: bool,
    /// Set once; nothing begins after it.
    fault: Option<Error>,
}

/// The hello of either side.
pub(super) fn hello(options: &Options, token: Option<&str>) -> Hello {
    Hello {
        version: frame::VERSION,
        agent: concat!("dynamo/", env!("CARGO_PKG_VERSION")).to_owned(),
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
        Arc::new(Self {
            options,
            state: Mutex::default(),
            work: Notify::new(),
            ended: watch::Sender::new(false),
        })
    }

    pub(super) fn has_ended(&self) -> bool {
        *self.ended.borrow()
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
        state.streams.insert(stream, sender);
        state.opens_bytes = bytes;
        state.opens.push_back(Open { stream, instance, request });
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
        address: String,
        followed: Arc<Followed>,
    ) -> impl Future<Output = ()> + Send {
        let ending = Ending(self);
        async move {
            let link = &ending.0;
            let error = link.session(&address, &followed).await.err().unwrap_or(Error::Closed);
            tracing::debug!(%address, %error, "the connection to a worker ended");
            link.finish(error);
        }
    }

    async fn session(&self, address: &str, followed: &Followed) -> Result<(), Error> {
        let limit = self.options.connect_timeout;
        let connect = async {
            let socket = TcpStream::connect(address).await.map_err(|error| Error::Io(error.to_string()))?;
            socket.set_nodelay(true).map_err(|error| Error::Io(error.to_string()))?;
            let (read, write) = socket.into_split();
            self.greet(read, write).await
        };
        let (mut reader, mut writer, peer_limit) =
            timeout(limit, connect).await.map_err(|_| Error::Timeout(limit))??;
        tokio::select! {
            ended = self.listen(&mut reader, followed) => ended,
            ended = self.speak(&mut writer, followed, peer_limit) => ended,
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
        Ok((reader, writer, usize::try_from(answer.max_frame_bytes).unwrap_or(usize::MAX)))
    }

    async fn listen<R: AsyncRead + Unpin>(
        &self,
        reader: &mut Reader<R>,
        followed: &Followed,
    ) -> Result<(), Error> {
        let mut batches = Batches::default();
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
            let Some(sender) = state.streams.get_mut(&stream) else { continue };
            let ends = delta.finish.is_some() || error.is_some();
            sender.push(delta);
            if let Some(error) = error {
                sender.fail(error);
            }
            if ends {
                state.streams.remove(&stream);
            }
        }
    }

    async fn speak<W: AsyncWrite + Unpin>(
        &self,
        writer: &mut W,
        followed: &Followed,
        peer_limit: usize,
    ) -> Result<(), Error> {
        let mut bytes = Vec::new();
        let mut beat = Instant::now() + self.options.beat_every;
        let mut number = 0;
        loop {
            self.collect(&mut bytes, followed, peer_limit)?;
            if bytes.is_empty() {
                tokio::select! {
                    () = self.work.notified() => {}
                    () = tokio::time::sleep_until(beat) => {
                        number += 1;
                        frame::write(&mut bytes, Kind::Ping, &Beat { number }, peer_limit)?;
                    }
                }
            }
            if !bytes.is_empty() {
                frame::send(writer, &bytes, self.options.dead_after).await?;
                bytes.clear();
                bytes.shrink_to(1 << 20);
                beat = Instant::now() + self.options.beat_every;
            }
        }
    }

    /// Everything that waits to be written.
    fn collect(&self, bytes: &mut Vec<u8>, followed: &Followed, peer_limit: usize) -> Result<(), Error> {
        let mut state = lock(&self.state);
        let opens = std::mem::take(&mut state.opens);
        let streams = std::mem::take(&mut state.cancels);
        let subscribe = std::mem::take(&mut state.subscribe);
        state.opens_bytes = 0;
        drop(state);
        if subscribe {
            let positions = followed.events.positions();
            frame::write(bytes, Kind::Subscribe, &Subscribe { positions }, peer_limit)?;
        }
        for request in opens {
            if let Err(error) = open::write(bytes, &request, peer_limit) {
                let refused = too_large(&error);
                let sender = lock(&self.state).streams.remove(&request.stream);
                if let Some(mut sender) = sender {
                    sender.fail(refused);
                }
            }
        }
        if !streams.is_empty() {
            frame::write(bytes, Kind::Cancel, &Cancel { streams }, peer_limit)?;
        }
        Ok(())
    }

    fn finish(&self, error: Error) {
        let mut state = lock(&self.state);
        let fault = state.fault.get_or_insert(error).clone();
        let streams = std::mem::take(&mut state.streams);
        state.opens = VecDeque::new();
        state.cancels = Vec::new();
        drop(state);
        for (_, mut sender) in streams {
            sender.fail(broken(&fault));
        }
        self.ended.send_replace(true);
    }

    /// A stream whose reader left.
    fn cancel(&self, stream: u64) {
        let mut state = lock(&self.state);
        let Some(sender) = state.streams.remove(&stream) else { return };
        let before = state.opens.len();
        state.opens.retain(|open| open.stream != stream);
        // What was never sent needs no goodbye.
        if state.opens.len() == before {
            state.cancels.push(stream);
        }
        drop(state);
        drop(sender);
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
    /// How many followers each instance has.
    pub(super) instances: Mutex<FxHashMap<InstanceId, u32>>,
}

impl Followed {
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
                // A subscription begins with a snapshot. What comes before it is of one that was made for others, and
                // would hide what this worker held until then.
                Event::Kv(batch) => {
                    if self.events.position(source).is_some_and(|known| known.epoch == batch.epoch) {
                        self.events.publish_kv(Arc::unwrap_or_clone(batch));
                    }
                }
                Event::Load(source, load) => self.events.publish_load(source, load),
            }
        }
    }
}
