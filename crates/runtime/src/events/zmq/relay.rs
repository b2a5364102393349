//! From an engine's sockets to our event plane.

use super::feed::{Counts, Feed, Message, Source, Step};
use super::socket::{self, Connection, DEALER, Incoming, Listener, PATIENCE, SUB};
use super::{Endpoint, Error, zmtp};
use crate::events::EventPlane;
use crate::pause::Pause;
use crate::sync::lock;
use dynamo_types::WorkerRank;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

/// A publisher that says nothing for this long is asked whether it lives, and is gone if it does not answer for three times that:
/// a host that vanished does not close its connections.
const QUIET: Duration = Duration::from_secs(5);
const DEAD: Duration = Duration::from_secs(15);

/// Bounds on the answer to a replay: engines keep 10,000 messages.
const MAX_REPLAY_MESSAGES: usize = 20_000;
const MAX_REPLAY_BYTES: usize = 256 << 20;

/// Which side of the events' connection binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// The engine is bound, as it is with `*` in its endpoint and over `ipc`.
    Connect,
    /// The engine connects to us, as vLLM and SGLang do to an endpoint that names a host.
    Bind,
}

/// What is relayed.
#[derive(Clone, Debug)]
pub struct RelayOptions {
    /// Where the engine publishes.
    pub events: Endpoint,
    pub attach: Attach,
    /// Where it answers replays. None: what is missed is lost.
    pub replay: Option<Endpoint>,
    /// Prefix of the topics that are wanted; empty for all.
    pub topic: String,
    pub source: Source,
}

/// Takes in an engine's events until it is dropped; then its ranks are forgotten.
pub struct Relay {
    endpoint: Endpoint,
    counts: Arc<Mutex<Counts>>,
    task: AbortHandle,
}

impl Relay {
    /// # Errors
    /// The endpoint cannot be bound. One that cannot be reached is tried again and again.
    pub async fn start(options: RelayOptions, plane: Arc<dyn EventPlane>) -> Result<Self, Error> {
        let listener = match options.attach {
            Attach::Connect => None,
            Attach::Bind => Some(Listener::bind(&options.events).await?),
        };
        let endpoint = match &listener {
            Some(listener) => listener.endpoint(&options.events),
            None => options.events.clone(),
        };
        let counts = Arc::new(Mutex::new(Counts::default()));
        let feed = Feed::new(options.source.clone(), options.replay.is_some());
        let session =
            Session { options, plane, feed, counts: Arc::clone(&counts), ranks: BTreeSet::new(), listener };
        let task = tokio::spawn(session.run()).abort_handle();
        Ok(Self { endpoint, counts, task })
    }

    /// Where it listens or connects to.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub fn counts(&self) -> Counts {
        *lock(&self.counts)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Session {
    options: RelayOptions,
    plane: Arc<dyn EventPlane>,
    feed: Feed,
    counts: Arc<Mutex<Counts>>,
    /// Whose events were published.
    ranks: BTreeSet<WorkerRank>,
    listener: Option<Listener>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.ranks.iter().for_each(|rank| self.plane.retire(*rank));
    }
}

/// The next connection of a publisher that connects to us; never, if we connect.
async fn accept(listener: Option<&Listener>) -> Result<Connection, Error> {
    match listener {
        Some(listener) => listener.accept().await?.greet(SUB).await,
        None => std::future::pending().await,
    }
}

impl Session {
    async fn run(mut self) {
        let mut pause = Pause::default();
        loop {
            let begun = Instant::now();
            let Err(error) = self.follow().await;
            let endpoint = &self.options.events;
            tracing::debug!(%endpoint, %error, "no connection to an engine's KV events");
            pause.lasted(begun.elapsed());
            pause.wait().await;
        }
    }

    async fn follow(&mut self) -> Result<std::convert::Infallible, Error> {
        let mut connection = match &self.listener {
            Some(_) => accept(self.listener.as_ref()).await?,
            None => socket::connect(&self.options.events, SUB).await?,
        };
        loop {
            let mut wish = Vec::new();
            zmtp::write_frame(&mut wish, 0, &[&[1], self.options.topic.as_bytes()].concat());
            connection.writer.send(&wish).await?;
            let step = self.feed.connected();
            self.take_steps(step).await;
            // A publisher that connects anew is the one that lives, whatever the old connection looks like.
            connection = self.listen(connection).await?;
        }
    }

    /// Takes in what comes, until another publisher is there.
    async fn listen(&mut self, mut connection: Connection) -> Result<Connection, Error> {
        let mut heard = Instant::now();
        loop {
            let incoming = tokio::select! {
                newer = accept(self.listener.as_ref()) => match newer {
                    Ok(newer) => return Ok(newer),
                    Err(error) => {
                        tracing::debug!(%error, "a publisher of KV events was refused");
                        continue;
                    }
                },
                incoming = timeout(QUIET, connection.reader.next()) => incoming,
            };
            let Ok(incoming) = incoming else {
                if connection.reader.answers_pings {
                    if heard.elapsed() > DEAD {
                        return Err(Error::Silent(DEAD));
                    }
                    connection.writer.send(&zmtp::ping()).await?;
                }
                continue;
            };
            heard = Instant::now();
            match incoming? {
                Incoming::Message(parts) => {
                    if let Some(message) = message(parts) {
                        let step = self.feed.live(message);
                        self.take_steps(step).await;
                    }
                }
                Incoming::Command(body) => {
                    if let Some((b"PING", rest)) = zmtp::command(&body) {
                        connection.writer.send(&zmtp::pong(rest)).await?;
                    }
                }
            }
        }
    }

    /// Replays as long as the feed asks for one, and publishes what came of it.
    async fn take_steps(&mut self, mut step: Step) {
        while let Step::Replay { from } = step {
            step = match self.replay(from).await {
                Ok(messages) => self.feed.replayed(&messages),
                Err(error) => {
                    tracing::warn!(%error, from, "an engine's KV events cannot be replayed");
                    self.feed.not_replayed();
                    Step::Done
                }
            };
        }
        for batch in self.feed.take() {
            self.ranks.insert(batch.source);
            self.plane.publish_kv(batch);
        }
        let counts = self.feed.counts();
        let before = std::mem::replace(&mut *lock(&self.counts), counts);
        if counts.lost > before.lost {
            let lost = counts.lost - before.lost;
            tracing::warn!(lost, "messages of an engine's KV events are lost; some of its cache is unknown");
        }
        if counts.skipped > 0 && before.skipped == 0 {
            let block_size = self.options.source.block_size;
            tracing::warn!(block_size, "an engine's KV events cannot be used, or are of another block size");
        }
    }

    async fn replay(&self, from: u64) -> Result<Vec<Message>, Error> {
        let Some(endpoint) = &self.options.replay else { return Ok(Vec::new()) };
        let mut connection = socket::connect(endpoint, DEALER).await?;
        let mut question = Vec::new();
        zmtp::write_message(&mut question, &[&[], &from.to_be_bytes()]);
        connection.writer.send(&question).await?;
        let (mut messages, mut bytes) = (Vec::new(), 0);
        loop {
            let incoming = timeout(PATIENCE, connection.reader.next());
            let incoming = incoming.await.map_err(|_| Error::Silent(PATIENCE))??;
            let Incoming::Message(parts) = incoming else { continue };
            let Some(message) = message(parts) else {
                return Err(Error::Protocol("an answer to a replay without a number".to_owned()));
            };
            if message.payload.is_empty() {
                return Ok(messages);
            }
            bytes += message.payload.len();
            if messages.len() >= MAX_REPLAY_MESSAGES || bytes > MAX_REPLAY_BYTES {
                return Err(Error::TooLarge { found: bytes as u64, limit: MAX_REPLAY_BYTES as u64 });
            }
            messages.push(message);
        }
    }
}

/// Number and payload, the last two parts. Before them stands a topic, which older engines leave out in replays.
fn message(mut parts: Vec<Vec<u8>>) -> Option<Message> {
    let payload = parts.pop()?;
    let sequence = u64::from_be_bytes(parts.pop()?.try_into().ok()?);
    Some(Message { sequence, payload })
}
