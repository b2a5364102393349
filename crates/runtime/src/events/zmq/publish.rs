//! What our engines store, in the engines' common form: a PUB socket for what happens, a ROUTER for what was missed.

use super::socket::{Connection, Incoming, Listener, PUB, Pair, ROUTER};
use super::{Endpoint, Error, TOPIC, wire, zmtp};
use crate::sync::lock;
use dynamo_types::KvEvent;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// Messages kept for subscribers that lag and for replays: as many as vLLM keeps, and not more than these bytes.
const RING_MESSAGES: usize = 10_000;
const RING_BYTES: usize = 64 << 20;

/// Connections to one socket; the next waits in the kernel's queue.
const MAX_PEERS: usize = 256;

/// Subscriptions of one peer. More of them would be refused nothing but memory.
const MAX_PREFIXES: usize = 64;

/// Bytes that are written at once.
const WRITE_BYTES: usize = 1 << 20;

/// Pause after a failed accept, which is the machine's trouble (no file descriptors) and would come again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The number of the message that ends a replay.
const END: [u8; 8] = [0xFF; 8];

/// Where a worker's events are published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishOptions {
    pub events: Endpoint,
    /// None: no replays are answered.
    pub replay: Option<Endpoint>,
    /// Named in each message.
    pub rank: u32,
}

/// Publishes until it is dropped.
#[derive(Debug)]
pub struct Publisher {
    shared: Arc<Shared>,
    events: Endpoint,
    replay: Option<Endpoint>,
    accepting: Vec<AbortHandle>,
}

#[derive(Debug)]
struct Shared {
    ring: Mutex<Ring>,
    /// The number of the next message.
    next: watch::Sender<u64>,
    rank: u32,
}

#[derive(Debug, Default)]
struct Ring {
    messages: VecDeque<(u64, Arc<[u8]>)>,
    bytes: usize,
    next: u64,
}

impl Ring {
    fn push(&mut self, payload: Vec<u8>) {
        self.bytes += payload.len();
        self.messages.push_back((self.next, payload.into()));
        self.next += 1;
        while self.messages.len() > RING_MESSAGES || self.bytes > RING_BYTES {
            let Some((_, oldest)) = self.messages.pop_front() else { return };
            self.bytes -= oldest.len();
        }
    }

    /// From this number on, or what is left of it: as many as one write takes, one at least if there is any.
    fn from(&self, number: u64) -> Vec<(u64, Arc<[u8]>)> {
        let start = self.messages.partition_point(|(sequence, _)| *sequence < number);
        let mut bytes = 0;
        let fits = |(_, payload): &&(u64, Arc<[u8]>)| {
            let before = bytes;
            bytes += payload.len();
            before < WRITE_BYTES
        };
        self.messages.range(start..).take_while(fits).cloned().collect()
    }
}

impl Publisher {
    /// # Errors
    /// An endpoint that cannot be bound.
    pub async fn bind(options: PublishOptions) -> Result<Self, Error> {
        let listener = Listener::bind(&options.events).await?;
        let events = listener.endpoint(&options.events);
        let next = watch::Sender::new(0);
        let shared = Arc::new(Shared { ring: Mutex::default(), next, rank: options.rank });
        let mut publisher = Self { shared, events, replay: None, accepting: Vec::new() };
        publisher.serve(listener, PUB, publish);
        if let Some(wanted) = &options.replay {
            let listener = Listener::bind(wanted).await?;
            publisher.replay = Some(listener.endpoint(wanted));
            publisher.serve(listener, ROUTER, replay);
        }
        Ok(publisher)
    }

    fn serve<F>(
        &mut self,
        listener: Listener,
        pair: Pair,
        handle: impl Fn(Connection, Arc<Shared>) -> F + Copy + Send + 'static,
    ) where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let shared = Arc::clone(&self.shared);
        let accepting = async move {
            // Dropped with this task, and the connections with it.
            let mut peers = JoinSet::new();
            loop {
                while peers.try_join_next().is_some() {}
                if peers.len() >= MAX_PEERS {
                    peers.join_next().await;
                    continue;
                }
                let accepted = match listener.accept().await {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(%error, "a subscriber of KV events could not be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                };
                let shared = Arc::clone(&shared);
                peers.spawn(async move {
                    let ended = match accepted.greet(pair).await {
                        Ok(connection) => handle(connection, shared).await,
                        Err(error) => Err(error),
                    };
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a subscriber of KV events has left");
                    }
                });
            }
        };
        self.accepting.push(tokio::spawn(accepting).abort_handle());
    }

    /// Where subscribers connect to.
    pub fn endpoint(&self) -> &Endpoint {
        &self.events
    }

    /// Where replays are asked for.
    pub fn replay_endpoint(&self) -> Option<&Endpoint> {
        self.replay.as_ref()
    }

    /// What a step changed, and the tokens of the blocks it stored, one after another. Never blocks.
    pub fn publish(&self, events: &[KvEvent], tokens: &[u32], time_s: f64) {
        let Some(payload) = wire::encode(events, tokens, time_s, self.shared.rank) else { return };
        let mut ring = lock(&self.shared.ring);
        ring.push(payload);
        self.shared.next.send_replace(ring.next);
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.accepting.iter().for_each(AbortHandle::abort);
    }
}

/// Sends what happens from the subscription on. A subscriber that falls behind the ring misses what has left it, and sees so by
/// the numbers.
async fn publish(mut connection: Connection, shared: Arc<Shared>) -> Result<(), Error> {
    let mut next = shared.next.subscribe();
    let mut prefixes: Vec<Vec<u8>> = Vec::new();
    let mut at = 0;
    let mut bytes = Vec::new();
    loop {
        let is_wanted = prefixes.iter().any(|prefix| TOPIC.as_bytes().starts_with(prefix));
        tokio::select! {
            incoming = connection.reader.next() => {
                if let Some(pong) = heed(&incoming?, &mut prefixes)? {
                    connection.writer.send(&pong).await?;
                }
                if !is_wanted {
                    at = *shared.next.borrow();
                }
            }
            () = more(&mut next, at), if is_wanted => {
                let messages = lock(&shared.ring).from(at);
                for (sequence, payload) in &messages {
                    zmtp::write_message(&mut bytes, &[TOPIC.as_bytes(), &sequence.to_be_bytes(), payload]);
                    at = sequence + 1;
                }
                connection.writer.send(&bytes).await?;
                bytes.clear();
                bytes.shrink_to(WRITE_BYTES);
            }
        }
    }
}

/// Completes when a message of this number is there. The sender lives in what the connection holds, so waiting cannot fail.
async fn more(next: &mut watch::Receiver<u64>, at: u64) {
    let _ = next.wait_for(|next| *next > at).await;
}

/// Takes note of what a subscriber wants. The answer, if it asked whether we live.
fn heed(incoming: &Incoming, prefixes: &mut Vec<Vec<u8>>) -> Result<Option<Vec<u8>>, Error> {
    let change = match incoming {
        Incoming::Command(body) => {
            if let Some((b"PING", rest)) = zmtp::command(body) {
                return Ok(Some(zmtp::pong(rest)));
            }
            zmtp::subscription(true, body)
        }
        Incoming::Message(parts) => parts.first().and_then(|body| zmtp::subscription(false, body)),
    };
    match change {
        Some((true, _)) if prefixes.len() >= MAX_PREFIXES => {
            return Err(Error::Protocol(format!("more than {MAX_PREFIXES} subscriptions")));
        }
        Some((true, prefix)) => prefixes.push(prefix.to_vec()),
        Some((false, prefix)) => {
            if let Some(at) = prefixes.iter().position(|known| known == prefix) {
                prefixes.swap_remove(at);
            }
        }
        None => {}
    }
    Ok(None)
}

/// Answers each question for a replay: all from a number on, then the end.
async fn replay(mut connection: Connection, shared: Arc<Shared>) -> Result<(), Error> {
    loop {
        let parts = match connection.reader.next().await? {
            Incoming::Message(parts) => parts,
            Incoming::Command(body) => {
                if let Some((b"PING", rest)) = zmtp::command(&body) {
                    connection.writer.send(&zmtp::pong(rest)).await?;
                }
                continue;
            }
        };
        let number = parts.last().and_then(|part| part.first_chunk::<8>());
        let Some(mut at) = number.copied().map(u64::from_be_bytes) else {
            return Err(Error::Protocol("a question for a replay without a number".to_owned()));
        };
        // What stands before the number is the envelope, and comes back.
        let envelope: Vec<&[u8]> = parts.iter().rev().skip(1).rev().map(Vec::as_slice).collect();
        let mut bytes = Vec::new();
        loop {
            let messages = lock(&shared.ring).from(at);
            for (sequence, payload) in &messages {
                let sequence_bytes = sequence.to_be_bytes();
                let parts: [&[u8]; 3] = [TOPIC.as_bytes(), &sequence_bytes, payload];
                zmtp::write_message(&mut bytes, &[&envelope[..], &parts].concat());
                at = sequence + 1;
            }
            if messages.is_empty() {
                break;
            }
            connection.writer.send(&bytes).await?;
            bytes.clear();
        }
        zmtp::write_message(&mut bytes, &[&envelope[..], &[&[], &END, &[]]].concat());
        connection.writer.send(&bytes).await?;
    }
}
