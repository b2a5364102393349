//! The worker's side: whatever is served on the in-process plane can be called from other processes.

use super::frame::{
    self, Batch, Beat, Cancel, Events, GoAway, Hello, Item, Kind, Open, Opened, Reader, Subscribe,
};
use super::outbox::Outbox;
use super::{Error, Options, open};
use crate::events::{self, EventPlane, Local, Subscription};
use crate::plane::{Flush, InProcess};
use crate::sync::lock;
use dynamo_types::{self as types, Delta, InstanceId};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout};

/// Events of one frame, a snapshot being one. Frames that a peer does not take are halved, whatever they hold.
const MAX_BATCH_EVENTS: usize = 256;

/// The largest hello: nothing larger is read from who has not shown the token.
const MAX_HELLO_BYTES: usize = 16 << 10;

/// Connections that have not said hello yet, besides the others. They have [`Options::connect_timeout`] for it.
const MAX_STRANGERS: usize = 1024;

/// Pause after a failed accept, which is the machine's trouble (no file descriptors) and would come again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts callers until it is dropped, which ends all connections.
pub struct Server {
    address: SocketAddr,
    hub: Arc<Hub>,
    accepting: AbortHandle,
}

struct Hub {
    plane: InProcess,
    events: Arc<Local>,
    options: Options,
    outboxes: Mutex<Vec<Weak<Outbox>>>,
    /// One for each connection that has said hello.
    room: Semaphore,
}

impl Flush for Hub {
    fn flush(&self, _: InstanceId) {
        for outbox in lock(&self.outboxes).iter().filter_map(Weak::upgrade) {
            outbox.flush();
        }
    }
}

impl Server {
    /// Serves what `plane` serves, and the sources of `events`.
    ///
    /// # Errors
    /// The listener has no address.
    pub fn start(
        listener: TcpListener,
        plane: &InProcess,
        events: Arc<Local>,
        options: Options,
    ) -> std::io::Result<Self> {
        let address = listener.local_addr()?;
        let room = Semaphore::new(options.max_connections);
        let hub = Arc::new(Hub { plane: plane.clone(), events, options, outboxes: Mutex::default(), room });
        plane.on_flush(Arc::downgrade(&hub) as Weak<dyn Flush>);
        let accepting = tokio::spawn(accept(listener, Arc::clone(&hub))).abort_handle();
        Ok(Self { address, hub, accepting })
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Streams of all connections that have not ended.
    pub fn stream_count(&self) -> usize {
        self.outboxes().iter().map(|outbox| outbox.open_count()).sum()
    }

    /// Completes when everything that was said to callers is on its way to them. A worker that ends waits for it, with a
    /// limit of its own.
    pub async fn settled(&self) {
        for outbox in self.outboxes() {
            outbox.settled().await;
        }
    }

    fn outboxes(&self) -> Vec<Arc<Outbox>> {
        lock(&self.hub.outboxes).iter().filter_map(Weak::upgrade).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, hub: Arc<Hub>) {
    // Dropped with this task, and the connections with it.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= hub.options.max_connections.saturating_add(MAX_STRANGERS) {
            connections.join_next().await;
            continue;
        }
        match listener.accept().await {
            Ok((socket, peer)) => {
                connections.spawn(connection(socket, peer, Arc::clone(&hub)));
            }
            Err(error) => {
                tracing::warn!(%error, "a caller could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(socket: TcpStream, peer: SocketAddr, hub: Arc<Hub>) {
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%peer, %error, "a caller left at once");
        return;
    }
    let (read, write) = socket.into_split();
    let outcome = Connection::greet(read, write, &hub).await;
    let ended = match outcome {
        Ok(connection) => connection.run(&hub).await,
        Err(error) => Err(error),
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "the connection of a caller ended");
    }
}

struct Connection<'a, R, W> {
    reader: Reader<R>,
    writer: W,
    /// The largest frame the caller reads.
    peer_limit: usize,
    outbox: Arc<Outbox>,
    _room: SemaphorePermit<'a>,
}

impl<'a, R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Connection<'a, R, W> {
    /// Exchanges hellos.
    async fn greet(read: R, mut writer: W, hub: &'a Hub) -> Result<Self, Error> {
        let options = &hub.options;
        let mut reader = Reader::new(read, options.max_frame_bytes.min(MAX_HELLO_BYTES), options.dead_after);
        let hello: Hello = timeout(options.connect_timeout, async {
            match reader.next().await? {
                Some((Kind::Hello, body)) => frame::parse(body),
                Some((kind, _)) => Err(Error::Decode(format!("{kind:?} before hello"))),
                None => Err(Error::Closed),
            }
        })
        .await
        .map_err(|_| Error::Timeout(options.connect_timeout))??;
        let peer_limit = usize::try_from(hello.max_frame_bytes).unwrap_or(usize::MAX);
        let room = hub.room.try_acquire();
        let admitted = admit(&hello, options.token.as_deref()).and_then(|()| {
            room.map_err(|_| format!("this worker has {} connections, its limit", options.max_connections))
        });
        let room = match admitted {
            Ok(room) => room,
            Err(reason) => {
                let mut bytes = Vec::new();
                frame::write(&mut bytes, Kind::GoAway, &GoAway { reason: reason.clone() }, usize::MAX)?;
                frame::send(&mut writer, &bytes, options.connect_timeout).await?;
                // The caller reads the reason before it finds the connection closed.
                let _ = writer.shutdown().await;
                return Err(Error::Refused(reason));
            }
        };
        reader.set_limit(options.max_frame_bytes);
        let mut bytes = Vec::new();
        frame::write(&mut bytes, Kind::Hello, &super::link::hello(options, None), peer_limit)?;
        frame::send(&mut writer, &bytes, options.connect_timeout).await?;
        let outbox = Arc::new(Outbox::default());
        let mut outboxes = lock(&hub.outboxes);
        outboxes.retain(|known| known.strong_count() > 0);
        outboxes.push(Arc::downgrade(&outbox));
        drop(outboxes);
        Ok(Self { reader, writer, peer_limit, outbox, _room: room })
    }

    /// Serves until the caller leaves or breaks the protocol.
    async fn run(self, hub: &Hub) -> Result<(), Error> {
        let Self { reader, writer, peer_limit, outbox, _room } = self;
        let _closing = Closing(Arc::clone(&outbox));
        let wishes = Wishes::default();
        tokio::select! {
            ended = listen(reader, hub, &outbox, &wishes) => ended,
            ended = speak(writer, hub, &outbox, &wishes, peer_limit) => ended,
        }
    }
}

/// What the listening half asks of the speaking half. The latest of a kind stands for all before it, so listening never
/// waits for speaking.
#[derive(Default)]
struct Wishes {
    pong: Mutex<Option<u64>>,
    subscribe: Mutex<Option<Subscribe>>,
    made: Notify,
}

impl Wishes {
    fn pong(&self, number: u64) {
        *lock(&self.pong) = Some(number);
        self.made.notify_one();
    }

    fn subscribe(&self, subscribe: Subscribe) {
        *lock(&self.subscribe) = Some(subscribe);
        self.made.notify_one();
    }
}

/// Tells the engines that nobody listens any more, however the connection ends.
struct Closing(Arc<Outbox>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// # Errors
/// Why the caller is sent away.
fn admit(hello: &Hello, token: Option<&str>) -> Result<(), String> {
    if hello.version != frame::VERSION {
        return Err(format!(
            "the caller speaks version {} of the request plane, this worker version {}",
            hello.version,
            frame::VERSION
        ));
    }
    let Some(expected) = token else { return Ok(()) };
    let given = hello.token.as_deref().unwrap_or_default();
    // Every byte is looked at, so that the time taken tells nothing about how much was right.
    let differs = given.len() != expected.len();
    let difference = given.bytes().zip(expected.bytes()).fold(0u8, |all, (a, b)| all | (a ^ b));
    if differs || difference != 0 {
        return Err("the token is missing or wrong".to_owned());
    }
    Ok(())
}

async fn listen<R: AsyncRead + Unpin>(
    mut reader: Reader<R>,
    hub: &Hub,
    outbox: &Arc<Outbox>,
    wishes: &Wishes,
) -> Result<(), Error> {
    while let Some((kind, body)) = reader.next().await? {
        match kind {
            Kind::Open => open(body, hub, outbox)?,
            Kind::Cancel => {
                let Cancel { streams } = frame::parse(body)?;
                streams.into_iter().for_each(|stream| outbox.cancel(stream));
            }
            Kind::Ping => wishes.pong(frame::parse::<Beat>(body)?.number),
            Kind::Subscribe => wishes.subscribe(frame::parse(body)?),
            Kind::GoAway => return Err(Error::Refused(frame::parse::<GoAway>(body)?.reason)),
            Kind::Pong => {}
            Kind::Hello | Kind::Batch | Kind::Events => {
                return Err(Error::Decode(format!("{kind:?} from a caller")));
            }
        }
    }
    Ok(())
}

/// # Errors
/// What breaks the connection: not a request that is not understood, which is one stream's misfortune.
fn open(body: &[u8], hub: &Hub, outbox: &Arc<Outbox>) -> Result<(), Error> {
    let Open { stream, instance, request } = match open::read(body) {
        Ok(open) => open,
        Err(error) => {
            let Opened { stream } = frame::parse(body)?;
            let refusal = types::Error::engine("the worker does not understand this request");
            outbox.refuse(stream, refusal.with_detail(error.to_string()));
            return Ok(());
        }
    };
    match outbox.open(stream, hub.options.max_streams) {
        None => return Err(Error::Decode(format!("stream {stream} was begun twice"))),
        Some(Ok(mut sink)) => {
            if hub.plane.is_flushed(instance) {
                sink.set_batched();
            }
            outbox.settle(stream, hub.plane.deliver(instance, request, Box::new(sink)));
        }
        Some(Err(error)) => outbox.refuse(stream, error),
    }
    Ok(())
}

async fn speak<W: AsyncWrite + Unpin>(
    mut writer: W,
    hub: &Hub,
    outbox: &Outbox,
    wishes: &Wishes,
    peer_limit: usize,
) -> Result<(), Error> {
    let mut bytes = Vec::new();
    let mut subscription: Option<Subscription> = None;
    let mut beat = Instant::now() + hub.options.beat_every;
    loop {
        let mut news = Vec::new();
        tokio::select! {
            () = outbox.ready() => {}
            () = wishes.made.notified() => {
                if let Some(number) = lock(&wishes.pong).take() {
                    frame::write(&mut bytes, Kind::Pong, &Beat { number }, peer_limit)?;
                }
                if let Some(at) = lock(&wishes.subscribe).take() {
                    subscription = Some(hub.events.subscribe_from(&at.positions));
                }
            }
            event = next_event(&mut subscription) => match event {
                Some(event) => news.push(event),
                None => subscription = None,
            },
            () = tokio::time::sleep_until(beat) => {
                frame::write(&mut bytes, Kind::Pong, &Beat { number: 0 }, peer_limit)?;
            }
        }
        append_items(&mut bytes, outbox.take(), peer_limit)?;
        append_events(&mut bytes, news, subscription.as_mut(), peer_limit)?;
        if !bytes.is_empty() {
            frame::send(&mut writer, &bytes, hub.options.dead_after).await?;
            outbox.wrote();
            bytes.clear();
            bytes.shrink_to(1 << 20);
            beat = Instant::now() + hub.options.beat_every;
        }
    }
}

async fn next_event(subscription: &mut Option<Subscription>) -> Option<events::Event> {
    match subscription {
        Some(subscription) => subscription.next().await,
        None => std::future::pending().await,
    }
}

/// All items as one frame, or as several if the peer takes no larger ones.
fn append_items(bytes: &mut Vec<u8>, items: Vec<Item>, peer_limit: usize) -> Result<(), Error> {
    if items.is_empty() {
        return Ok(());
    }
    let mut batch = Batch { items };
    match frame::write(bytes, Kind::Batch, &batch, peer_limit) {
        Err(Error::FrameTooLarge { .. }) if batch.items.len() > 1 => {
            let rest = batch.items.split_off(batch.items.len() / 2);
            append_items(bytes, batch.items, peer_limit)?;
            append_items(bytes, rest, peer_limit)
        }
        Err(error @ Error::FrameTooLarge { .. }) => {
            let stream = batch.items.first().map_or(0, |item| item.stream);
            let refusal = types::Error::engine("the answer is larger than the caller takes");
            let error = Some(refusal.with_detail(error.to_string()));
            let items = vec![Item { stream, delta: Delta::default(), error }];
            frame::write(bytes, Kind::Batch, &Batch { items }, peer_limit)
        }
        written => written,
    }
}

/// `news`, and what can be had without waiting.
fn append_events(
    bytes: &mut Vec<u8>,
    mut news: Vec<events::Event>,
    subscription: Option<&mut Subscription>,
    peer_limit: usize,
) -> Result<(), Error> {
    if news.is_empty() {
        return Ok(());
    }
    if let Some(subscription) = subscription {
        while news.len() < MAX_BATCH_EVENTS {
            let Some(event) = subscription.try_next() else { break };
            news.push(event);
        }
    }
    write_events(bytes, news.into_iter().map(frame::Event::from).collect(), peer_limit)
}

fn write_events(bytes: &mut Vec<u8>, events: Vec<frame::Event>, peer_limit: usize) -> Result<(), Error> {
    let mut frame = Events { events };
    match frame::write(bytes, Kind::Events, &frame, peer_limit) {
        Err(Error::FrameTooLarge { .. }) if frame.events.len() > 1 => {
            let rest = frame.events.split_off(frame.events.len() / 2);
            write_events(bytes, frame.events, peer_limit)?;
            write_events(bytes, rest, peer_limit)
        }
        Err(error @ Error::FrameTooLarge { .. }) => {
            // A router that knows nothing of a worker's cache still routes to it.
            tracing::warn!(%error, "the events of a worker are larger than a caller takes");
            Ok(())
        }
        written => written,
    }
}
