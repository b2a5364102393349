//! A pipe: bytes in order in both directions, over two private subjects.
//!
//! A gap, an end of either connection to the server, or a peer whom the server does not know any more ends it. The pipe is
//! not mended, because what got lost with it is not known; who used it begins anew.

use super::Error;
use super::flow::{self, Flow, HEAD_BYTES, Kind};
use super::protocol::Message;
use super::session::{Inbox, Session};
use crate::plane::wire::Streams;
use crate::sync::lock;
use bytes::{Buf as _, Bytes};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Data of one message, at most: what is said by others on the same connection need not wait for a large one.
const MAX_PIECE_BYTES: usize = 128 << 10;

/// A caller that heard nothing for so long asks the server, once, whether the worker is there. So a worker that dies in the
/// middle of its answers is found after this time, and one that rests costs a message for each of its signs of life.
const PROBE_AFTER: Duration = Duration::from_millis(50);

/// Longest reason given for an end.
const MAX_REASON_BYTES: usize = 1024;

struct Pipe {
    session: Arc<Session>,
    /// The peer sends here.
    subject: String,
    state: Mutex<State>,
}

struct State {
    /// Where the peer listens; none before it was heard.
    peer: Option<String>,
    flow: Flow,
    chunks: VecDeque<Bytes>,
    /// No message counts after it.
    end: Option<End>,
    /// We said it.
    has_ended: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

#[derive(Clone)]
enum End {
    Said,
    Fault(String),
}

impl State {
    fn new(peer: Option<String>) -> Self {
        Self {
            peer,
            flow: Flow::new(),
            chunks: VecDeque::new(),
            end: None,
            has_ended: false,
            reader: None,
            writer: None,
        }
    }

    fn receive(&mut self, message: Message) -> Result<(), String> {
        if message.is_unheard {
            return Err(match self.peer {
                None => "nobody listens there".to_owned(),
                Some(_) => "the other side is not connected to NATS any more".to_owned(),
            });
        }
        let Some((kind, number, body)) = flow::parse(message.payload) else { return Ok(()) };
        match kind {
            Kind::Probe | Kind::Open => {}
            Kind::Accept => {
                self.peer = self.peer.take().or(message.reply);
                self.flow.allow(number);
            }
            Kind::Credit => self.flow.allow(number),
            Kind::Data => {
                self.flow.receive(number, body.len())?;
                // Empty ones are bounded by nothing.
                if !body.is_empty() {
                    self.chunks.push_back(body);
                }
            }
            Kind::End => {
                self.flow.receive(number, 0)?;
                self.end = Some(if body.is_empty() {
                    End::Said
                } else {
                    let reason = body.get(..body.len().min(MAX_REASON_BYTES)).unwrap_or_default();
                    End::Fault(String::from_utf8_lossy(reason).into_owned())
                });
            }
        }
        Ok(())
    }
}

impl Inbox for Pipe {
    fn message(&self, _: &Session, message: Message) {
        let mut state = lock(&self.state);
        if state.end.is_some() {
            return;
        }
        if let Err(fault) = state.receive(message) {
            state.end = Some(End::Fault(fault));
        }
        wake(state);
    }

    fn lost(&self, error: &Error) {
        let mut state = lock(&self.state);
        state.end.get_or_insert_with(|| End::Fault(error.to_string()));
        wake(state);
    }
}

fn wake(mut state: std::sync::MutexGuard<'_, State>) {
    let (reader, writer) = (state.reader.take(), state.writer.take());
    drop(state);
    reader.into_iter().chain(writer).for_each(Waker::wake);
}

fn broken(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, reason)
}

/// The subscription of a pipe. Whoever reads or writes holds it.
struct Held {
    pipe: Arc<Pipe>,
    subscription: u64,
}

impl Held {
    fn new(session: &Arc<Session>, peer: Option<String>) -> Result<Arc<Self>, Error> {
        if session.max_payload() <= HEAD_BYTES {
            return Err(Error::Refused(format!(
                "the server lets messages of {} bytes through, and {} are the least",
                session.max_payload(),
                HEAD_BYTES + 1
            )));
        }
        let subject = session.private_subject();
        let state = Mutex::new(State::new(peer));
        let pipe = Arc::new(Pipe { session: Arc::clone(session), subject, state });
        let subscription = session.subscribe(&pipe.subject, Arc::clone(&pipe) as Arc<dyn Inbox>)?;
        Ok(Arc::new(Self { pipe, subscription }))
    }

    fn say(&self, to: &str, kind: Kind, number: u64, body: &[u8]) {
        self.pipe.session.publish(to, &self.pipe.subject, &flow::head(kind, number), body);
    }

    fn streams(self: Arc<Self>, is_caller: bool) -> Streams {
        let probe = is_caller.then(|| Box::pin(tokio::time::sleep(PROBE_AFTER)));
        let reader = Reader { held: Arc::clone(&self), probe, is_armed: true };
        (Box::new(reader), Box::new(Writer { held: self }))
    }

    /// Says that nothing comes any more, and of a fault what it was.
    fn end(&self) {
        let mut state = lock(&self.pipe.state);
        let Some(peer) = state.peer.clone() else { return };
        let reason = match &state.end {
            Some(End::Said) => return,
            Some(End::Fault(reason)) => reason.clone(),
            None => String::new(),
        };
        if std::mem::replace(&mut state.has_ended, true) {
            return;
        }
        let number = state.flow.send(0);
        drop(state);
        self.say(&peer, Kind::End, number, reason.as_bytes());
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.pipe.session.unsubscribe(self.subscription);
    }
}

/// Asks whoever listens on `subject` for a pipe.
///
/// # Errors
/// Nobody listens, we are turned away, or the connection to the server ended.
pub(super) async fn open(session: &Arc<Session>, subject: &str) -> Result<Streams, Error> {
    let held = Held::new(session, None)?;
    let granted = lock(&held.pipe.state).flow.granted();
    held.say(subject, Kind::Open, granted, &[]);
    let answer = poll_fn(|context| {
        let mut state = lock(&held.pipe.state);
        match (&state.end, &state.peer) {
            // What came after the answer is the reader's to find.
            (_, Some(_)) => Poll::Ready(Ok(())),
            (Some(End::Fault(reason)), _) => Poll::Ready(Err(Error::Refused(format!("{subject}: {reason}")))),
            (Some(End::Said), _) => Poll::Ready(Err(Error::closed())),
            (None, None) => {
                state.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    });
    answer.await?;
    Ok(held.streams(true))
}

/// Grants the pipe that `knock` asks for. None: it asks for none.
///
/// # Errors
/// The connection to the server ended.
pub(super) fn accept(session: &Arc<Session>, knock: &Message) -> Result<Option<Streams>, Error> {
    let Some((peer, limit)) = asks(knock) else { return Ok(None) };
    let held = Held::new(session, Some(peer.to_owned()))?;
    let granted = {
        let mut state = lock(&held.pipe.state);
        state.flow.allow(limit);
        state.flow.granted()
    };
    held.say(peer, Kind::Accept, granted, &[]);
    Ok(Some(held.streams(false)))
}

/// Turns away who asks for a pipe.
pub(super) fn refuse(session: &Session, subject: &str, knock: &Message, reason: &str) {
    if let Some((peer, _)) = asks(knock) {
        session.publish(peer, subject, &flow::head(Kind::End, 0), reason.as_bytes());
    }
}

/// Where the asker listens, and what it grants.
fn asks(knock: &Message) -> Option<(&str, u64)> {
    let peer = knock.reply.as_deref()?;
    match flow::parse(knock.payload.clone())? {
        (Kind::Open, limit, _) => Some((peer, limit)),
        _ => None,
    }
}

struct Reader {
    held: Arc<Held>,
    /// The caller's: goes off after [`PROBE_AFTER`] without data.
    probe: Option<Pin<Box<Sleep>>>,
    /// It did not go off since data came.
    is_armed: bool,
}

impl Reader {
    /// Asks the server whether the peer is there, if it is time.
    fn poll_probe(&mut self, context: &mut Context<'_>) {
        let Some(probe) = &mut self.probe else { return };
        if !self.is_armed || probe.as_mut().poll(context).is_pending() {
            return;
        }
        self.is_armed = false;
        let peer = lock(&self.held.pipe.state).peer.clone();
        if let Some(peer) = peer {
            self.held.say(&peer, Kind::Probe, 0, &[]);
        }
    }
}

impl AsyncRead for Reader {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut state = lock(&this.held.pipe.state);
        let mut count = 0;
        while let Some(chunk) = state.chunks.front_mut()
            && buffer.remaining() > 0
        {
            let bytes = chunk.len().min(buffer.remaining());
            buffer.put_slice(chunk.get(..bytes).unwrap_or_default());
            chunk.advance(bytes);
            count += bytes;
            if chunk.is_empty() {
                state.chunks.pop_front();
            }
        }
        if count > 0 {
            let credit = state.flow.take(count);
            let peer = credit.and_then(|_| state.peer.clone());
            drop(state);
            if let (Some(limit), Some(peer)) = (credit, peer) {
                this.held.say(&peer, Kind::Credit, limit, &[]);
            }
            if let Some(probe) = &mut this.probe {
                probe.as_mut().reset(Instant::now() + PROBE_AFTER);
                this.is_armed = true;
            }
            return Poll::Ready(Ok(()));
        }
        match &state.end {
            Some(End::Said) => return Poll::Ready(Ok(())),
            Some(End::Fault(reason)) => return Poll::Ready(Err(broken(reason.clone()))),
            None => state.reader = Some(context.waker().clone()),
        }
        drop(state);
        this.poll_probe(context);
        Poll::Pending
    }
}

struct Writer {
    held: Arc<Held>,
}

impl AsyncWrite for Writer {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let pipe = &self.held.pipe;
        if pipe.session.poll_room(context).is_pending() {
            return Poll::Pending;
        }
        let mut state = lock(&pipe.state);
        match &state.end {
            Some(End::Said) => return Poll::Ready(Err(broken("the other side ended the pipe".to_owned()))),
            Some(End::Fault(reason)) => return Poll::Ready(Err(broken(reason.clone()))),
            None if state.has_ended => return Poll::Ready(Err(broken("the pipe was ended".to_owned()))),
            None => {}
        }
        let piece = MAX_PIECE_BYTES.min(pipe.session.max_payload() - HEAD_BYTES);
        let count = bytes.len().min(state.flow.room()).min(piece);
        let Some(peer) = state.peer.clone().filter(|_| count > 0 || bytes.is_empty()) else {
            state.writer = Some(context.waker().clone());
            return Poll::Pending;
        };
        if count > 0 {
            let number = state.flow.send(count);
            // Under the lock: numbers leave in their order.
            self.held.say(&peer, Kind::Data, number, bytes.get(..count).unwrap_or_default());
        }
        drop(state);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.held.end();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.held.end();
    }
}
