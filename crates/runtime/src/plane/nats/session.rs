//! One connection to a NATS server, from after the greeting until it ended. It is never made anew: what was under way on it
//! ended with it, which is what a pipe must know.

use super::Error;
use super::protocol::{self, Info, Message, Operation};
use crate::sync::lock;
use bytes::BytesMut;
use rustc_hash::FxHashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

/// Bytes that may wait for the socket; who sends data waits then. Credits and ends are small and pass.
const MAX_QUEUED_BYTES: usize = 1 << 20;

/// Read buffers grow by this much at least.
const READ_BYTES: usize = 64 << 10;

/// Who gets the messages of a subscription.
pub(super) trait Inbox: Send + Sync {
    /// Never blocks: it is called by the one who reads for all.
    fn message(&self, session: &Session, message: Message);

    /// The connection ended; no message comes any more.
    fn lost(&self, error: &Error);
}

pub(super) struct Session {
    max_payload: usize,
    /// Of subjects that only this connection knows.
    secret: String,
    inboxes: Mutex<Inboxes>,
    out: Mutex<Out>,
    /// Something waits to be written.
    work: Notify,
    pongs: watch::Sender<u64>,
    ended: watch::Sender<Option<Error>>,
}

#[derive(Default)]
struct Inboxes {
    known: FxHashMap<u64, Arc<dyn Inbox>>,
    next: u64,
    closed: bool,
}

#[derive(Default)]
struct Out {
    bytes: Vec<u8>,
    /// Who waits for room.
    blocked: Vec<Waker>,
    pings: u64,
    closed: bool,
}

/// A server that says nothing for `dead_after` is gone; it is asked every `beat_every`.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) beat_every: Duration,
    pub(super) dead_after: Duration,
}

impl Session {
    pub(super) fn new(info: &Info) -> Arc<Self> {
        let secret =
            format!("{:016x}{:016x}", RandomState::new().hash_one(0), RandomState::new().hash_one(1));
        Arc::new(Self {
            max_payload: info.max_payload,
            secret,
            inboxes: Mutex::default(),
            out: Mutex::default(),
            work: Notify::new(),
            pongs: watch::Sender::new(0),
            ended: watch::Sender::new(None),
        })
    }

    /// Bytes of one message that the server lets through.
    pub(super) fn max_payload(&self) -> usize {
        self.max_payload
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Completes when the connection has ended, with the reason.
    pub(super) async fn ended(&self) -> Error {
        let mut ended = self.ended.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let found = ended.wait_for(Option::is_some).await;
        found.ok().and_then(|found| found.clone()).unwrap_or_else(Error::closed)
    }

    /// The number of a new subscription, which lasts until it is given back.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) fn subscribe(&self, subject: &str, inbox: Arc<dyn Inbox>) -> Result<u64, Error> {
        let mut inboxes = lock(&self.inboxes);
        if inboxes.closed {
            return Err(self.ended.borrow().clone().unwrap_or_else(Error::closed));
        }
        inboxes.next += 1;
        let number = inboxes.next;
        inboxes.known.insert(number, inbox);
        drop(inboxes);
        self.write(|out| protocol::subscribe(out, subject, number));
        Ok(number)
    }

    /// A subject that nobody else knows.
    pub(super) fn private_subject(&self) -> String {
        let mut inboxes = lock(&self.inboxes);
        inboxes.next += 1;
        format!("_INBOX.{}.{}", self.secret, inboxes.next)
    }

    pub(super) fn unsubscribe(&self, number: u64) {
        let known = lock(&self.inboxes).known.remove(&number);
        if known.is_some() {
            self.write(|out| protocol::unsubscribe(out, number));
        }
    }

    /// Subscriptions there are.
    #[cfg(test)]
    pub(super) fn subscription_count(&self) -> usize {
        lock(&self.inboxes).known.len()
    }

    /// Sends a small message, whatever waits.
    pub(super) fn publish(&self, subject: &str, reply: &str, head: &[u8], body: &[u8]) {
        self.write(|out| protocol::publish(out, subject, reply, head, body));
    }

    /// Is there room for data? Else `context` is woken when there is.
    pub(super) fn poll_room(&self, context: &Context<'_>) -> Poll<()> {
        let mut out = lock(&self.out);
        if out.bytes.len() < MAX_QUEUED_BYTES || out.closed {
            return Poll::Ready(());
        }
        if !out.blocked.iter().any(|known| known.will_wake(context.waker())) {
            out.blocked.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// Completes when the server has all that was sent before.
    ///
    /// # Errors
    /// The connection ended.
    pub(super) async fn flush(&self) -> Result<(), Error> {
        let number = {
            let mut out = lock(&self.out);
            out.pings += 1;
            out.bytes.extend_from_slice(b"PING\r\n");
            out.pings
        };
        self.work.notify_one();
        let mut pongs = self.pongs.subscribe();
        tokio::select! {
            _ = pongs.wait_for(|seen| *seen >= number) => Ok(()),
            error = self.ended() => Err(error),
        }
    }

    fn write(&self, append: impl FnOnce(&mut Vec<u8>)) {
        let mut out = lock(&self.out);
        if out.closed {
            return;
        }
        let was_empty = out.bytes.is_empty();
        append(&mut out.bytes);
        drop(out);
        if was_empty {
            self.work.notify_one();
        }
    }

    /// Carries until the connection ends; dropping the future ends it too. `buffer` holds what was read already.
    pub(super) async fn run<R, W>(self: Arc<Self>, read: R, write: W, buffer: BytesMut, times: Times)
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let ending = Ending(self);
        let session = &ending.0;
        let ended = tokio::select! {
            ended = session.listen(read, buffer, times) => ended,
            ended = session.speak(write, times) => ended,
        };
        session.end(&ended.err().unwrap_or_else(Error::closed));
    }

    async fn listen<R: AsyncRead + Unpin>(
        &self,
        mut read: R,
        mut buffer: BytesMut,
        times: Times,
    ) -> Result<(), Error> {
        loop {
            while let Some(operation) = protocol::take(&mut buffer).map_err(|found| Error::decode(&found))? {
                self.obey(operation)?;
            }
            buffer.reserve(READ_BYTES);
            let count = timeout(times.dead_after, read.read_buf(&mut buffer))
                .await
                .map_err(|_| Error::silent(times.dead_after))?
                .map_err(|error| Error::Unreachable(error.to_string()))?;
            if count == 0 {
                return Err(Error::closed());
            }
        }
    }

    fn obey(&self, operation: Operation) -> Result<(), Error> {
        match operation {
            Operation::Message(message) => {
                let inbox = lock(&self.inboxes).known.get(&message.subscription).cloned();
                if let Some(inbox) = inbox {
                    inbox.message(self, message);
                }
            }
            Operation::Ping => self.write(|out| out.extend_from_slice(b"PONG\r\n")),
            Operation::Pong => self.pongs.send_modify(|seen| *seen += 1),
            // What was not permitted will not be the next time: whoever waits for it is told so at once.
            Operation::Error(text) => return Err(Error::Refused(text)),
            Operation::Info(_) => {}
        }
        Ok(())
    }

    async fn speak<W: AsyncWrite + Unpin>(&self, mut write: W, times: Times) -> Result<(), Error> {
        let mut bytes = Vec::new();
        let mut beat = Instant::now() + times.beat_every;
        loop {
            let blocked = {
                let mut out = lock(&self.out);
                std::mem::swap(&mut out.bytes, &mut bytes);
                std::mem::take(&mut out.blocked)
            };
            blocked.into_iter().for_each(Waker::wake);
            if !bytes.is_empty() {
                send(&mut write, &bytes, times.dead_after).await?;
                bytes.clear();
                bytes.shrink_to(MAX_QUEUED_BYTES);
                continue;
            }
            tokio::select! {
                () = self.work.notified() => {}
                () = tokio::time::sleep_until(beat) => {
                    beat = Instant::now() + times.beat_every;
                    let mut out = lock(&self.out);
                    out.pings += 1;
                    out.bytes.extend_from_slice(b"PING\r\n");
                }
            }
        }
    }

    fn end(&self, error: &Error) {
        let first = self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            ended.get_or_insert_with(|| error.clone());
            first
        });
        if !first {
            return;
        }
        let inboxes = {
            let mut inboxes = lock(&self.inboxes);
            inboxes.closed = true;
            std::mem::take(&mut inboxes.known)
        };
        let blocked = {
            let mut out = lock(&self.out);
            out.closed = true;
            out.bytes = Vec::new();
            std::mem::take(&mut out.blocked)
        };
        inboxes.into_values().for_each(|inbox| inbox.lost(error));
        blocked.into_iter().for_each(Waker::wake);
    }
}

/// With an end: a server that takes nothing for `patience` is gone.
pub(super) async fn send<W: AsyncWrite + Unpin>(
    write: &mut W,
    mut bytes: &[u8],
    patience: Duration,
) -> Result<(), Error> {
    let fault = |error: std::io::Error| Error::Unreachable(error.to_string());
    while !bytes.is_empty() {
        let count = timeout(patience, write.write(bytes)).await.map_err(|_| Error::silent(patience))?;
        match count.map_err(fault)? {
            0 => return Err(Error::closed()),
            count => bytes = bytes.get(count..).unwrap_or_default(),
        }
    }
    // TLS keeps what is not flushed.
    timeout(patience, write.flush()).await.map_err(|_| Error::silent(patience))?.map_err(fault)
}

/// Ends a session whose task was dropped.
struct Ending(Arc<Session>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end(&Error::closed());
    }
}
