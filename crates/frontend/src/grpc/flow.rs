//! What a call answers: messages, then how it ended.

use super::health::Watching;
use super::infer_stream::InferStream;
use dynamo_protocols::kserve::{Code, header_text};
use dynamo_types::Error;
use hyper::body::{Bytes, Frame};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Response, StatusCode};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_util::task::task_tracker::TaskTrackerToken;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
/// Tells a client that retries when to.
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
/// A status text as a header; longer ones are cut. Far below what clients take as headers.
const MESSAGE_MAX_BYTES: usize = 4096;

/// Whether a client takes what it is sent.
#[derive(Debug)]
pub(super) struct Pulse {
    born: Instant,
    /// When something was handed over last, if nothing was asked for since; 0 otherwise.
    handed_ms: AtomicU64,
}

impl Default for Pulse {
    fn default() -> Self {
        Self::new()
    }
}

impl Pulse {
    pub(super) fn new() -> Self {
        Self { born: Instant::now(), handed_ms: AtomicU64::new(0) }
    }

    /// Milliseconds since the call began; never 0.
    fn now_ms(&self) -> u64 {
        self.born.elapsed().as_millis() as u64 + 1
    }

    fn set(&self, handed: bool) {
        self.handed_ms.store(if handed { self.now_ms() } else { 0 }, Ordering::Relaxed);
    }

    /// Until nothing was taken for `patience`.
    pub(super) async fn lost(&self, patience: Duration) {
        let patience_ms = patience.as_millis() as u64;
        loop {
            sleep(patience).await;
            let handed_ms = self.handed_ms.load(Ordering::Relaxed);
            if handed_ms != 0 && self.now_ms().saturating_sub(handed_ms) >= patience_ms {
                return;
            }
        }
    }
}

/// The body of an answer.
pub(super) struct Flow {
    content: Content,
    pulse: Arc<Pulse>,
    /// The connection is not idle.
    _open: TaskTrackerToken,
    /// A drain waits for it.
    running: Option<TaskTrackerToken>,
}

enum Content {
    /// All is said.
    Over,
    Whole {
        message: Option<Bytes>,
        trailers: HeaderMap,
    },
    Stream(Box<InferStream>),
    Health(Box<Watching>),
}

impl Flow {
    fn new(content: Content, open: TaskTrackerToken, pulse: Arc<Pulse>) -> Self {
        Self { content, pulse, _open: open, running: None }
    }

    /// Keeps a drain waiting until it is written.
    pub(super) fn hold(&mut self, running: TaskTrackerToken) {
        self.running = Some(running);
    }
}

impl hyper::body::Body for Flow {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let flow = self.get_mut();
        let frame = match &mut flow.content {
            Content::Over => Poll::Ready(None),
            Content::Whole { message, trailers } => Poll::Ready(Some(match message.take() {
                Some(message) => Frame::data(message),
                None => {
                    let trailers = std::mem::take(trailers);
                    flow.content = Content::Over;
                    Frame::trailers(trailers)
                }
            })),
            Content::Stream(stream) => stream.poll_frame(cx),
            Content::Health(watching) => watching.poll_frame(cx),
        };
        if let Poll::Ready(Some(frame)) = &frame
            && frame.is_trailers()
        {
            flow.content = Content::Over;
        }
        flow.pulse.set(matches!(frame, Poll::Ready(Some(_))));
        frame.map(|frame| frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.content, Content::Over)
    }
}

/// How a call ended, as the last of its headers.
pub(super) fn trailers(outcome: Result<(), &Error>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let code = outcome.err().map_or(Code::Ok, Code::of);
    headers.insert(STATUS, HeaderValue::from(code as u16));
    let Err(error) = outcome else { return headers };
    let mut text = header_text(error.message());
    // Escapes are ASCII, and one that is cut is shown as it is.
    text.truncate(MESSAGE_MAX_BYTES);
    if let Ok(text) = HeaderValue::from_str(&text) {
        headers.insert(MESSAGE, text);
    }
    if let Some(seconds) = error.retry_after_s() {
        headers.insert(PUSHBACK, HeaderValue::from(u64::from(seconds) * 1000));
    }
    headers
}

fn respond(content: Content, open: TaskTrackerToken, pulse: Arc<Pulse>) -> Response<Flow> {
    let mut response = Response::new(Flow::new(content, open, pulse));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, GRPC);
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    response
}

/// One message, and that all is well.
pub(super) fn whole(message: Bytes, open: TaskTrackerToken, pulse: Arc<Pulse>) -> Response<Flow> {
    respond(Content::Whole { message: Some(message), trailers: trailers(Ok(())) }, open, pulse)
}

/// No message, and what is wrong.
pub(super) fn failure(error: &Error, open: TaskTrackerToken, pulse: Arc<Pulse>) -> Response<Flow> {
    let mut response = respond(Content::Over, open, pulse);
    response.headers_mut().extend(trailers(Err(error)));
    response
}

/// Messages as they come.
pub(super) fn stream(stream: InferStream, open: TaskTrackerToken, pulse: Arc<Pulse>) -> Response<Flow> {
    respond(Content::Stream(Box::new(stream)), open, pulse)
}

/// How the server is, as it changes.
pub(super) fn watch(watching: Watching, open: TaskTrackerToken, pulse: Arc<Pulse>) -> Response<Flow> {
    respond(Content::Health(Box::new(watching)), open, pulse)
}

/// For what is no gRPC.
pub(super) fn not_grpc(status: StatusCode, open: TaskTrackerToken, pulse: Arc<Pulse>) -> Response<Flow> {
    let mut response = Response::new(Flow::new(Content::Over, open, pulse));
    *response.status_mut() = status;
    response
}
