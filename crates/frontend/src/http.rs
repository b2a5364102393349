//! Responses and the one response body type.

use crate::stream::EventStream;
use dynamo_runtime::sync::lock;
use dynamo_types::{Class, Error};
use hyper::body::{Bytes, Frame, SizeHint};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use tokio_util::task::task_tracker::TaskTrackerToken;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// How OpenAI's and Anthropic's SDKs are told whether to send the same request again, whatever the status says.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// Names of request fields that had no effect (R10).
pub(crate) const IGNORED_FIELDS: HeaderName = HeaderName::from_static("x-dynamo-ignored-fields");

/// Advice to clients that met a temporary fault without a better estimate.
const RETRY_AFTER_DEFAULT_S: u32 = 1;
/// Longest list of ignored field names in a header.
const IGNORED_FIELDS_MAX_BYTES: usize = 1024;

/// A whole body is handed out in pieces of this size: what the connection puts together for one write, and keeps room for.
const PIECE_BYTES: usize = 16 * 1024;

/// What a response carries.
pub(crate) struct Body {
    content: Content,
    /// Counts as running until the last byte has been written, or the client has left.
    running: Option<TaskTrackerToken>,
    /// Where `running` goes with the last byte.
    unwritten: Option<Arc<Unwritten>>,
}

enum Content {
    Full(Option<Bytes>),
    Events(Box<EventStream>),
}

impl Body {
    /// Keeps a drain waiting for as long as any of this is still to be written.
    pub(crate) fn hold(&mut self, running: TaskTrackerToken) {
        self.running = Some(running);
    }

    /// Goes out over a connection that knows what of it is not written.
    pub(crate) fn go_over(&mut self, unwritten: Arc<Unwritten>) {
        self.unwritten = Some(unwritten);
    }
}

/// Answers whose last bytes the connection has taken and the client's socket has not.
#[derive(Default)]
pub(crate) struct Unwritten {
    /// At most one for each answer between two flushes.
    answers: Mutex<Vec<TaskTrackerToken>>,
    /// Is there any? Flushes are many and answers few.
    any: AtomicBool,
}

impl Unwritten {
    fn add(&self, answer: TaskTrackerToken) {
        lock(&self.answers).push(answer);
        self.any.store(true, Ordering::Release);
    }

    /// Everything that the connection had is written.
    pub(crate) fn flushed(&self) {
        if self.any.swap(false, Ordering::AcqRel) {
            lock(&self.answers).clear();
        }
    }
}

impl From<Content> for Body {
    fn from(content: Content) -> Self {
        Self { content, running: None, unwritten: None }
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Self { content, running, unwritten } = self.get_mut();
        let bytes = match content {
            Content::Full(bytes) => piece(bytes),
            Content::Events(stream) => ready!(stream.poll_bytes(cx)),
        };
        if bytes.is_some()
            && content.is_over()
            && let (Some(running), Some(unwritten)) = (running.take(), &*unwritten)
        {
            unwritten.add(running);
        }
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_over()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Full(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Content::Events(_) => SizeHint::default(),
        }
    }
}

/// Takes the next piece.
fn piece(bytes: &mut Option<Bytes>) -> Option<Bytes> {
    match bytes {
        Some(rest) if rest.len() > PIECE_BYTES => Some(rest.split_to(PIECE_BYTES)),
        _ => bytes.take(),
    }
}

impl Content {
    fn is_over(&self) -> bool {
        match self {
            Self::Full(bytes) => bytes.is_none(),
            Self::Events(stream) => stream.is_finished(),
        }
    }
}

/// How an API words a fault.
pub(crate) type ErrorShape = fn(&Error) -> Vec<u8>;

pub(crate) fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    typed(status, HeaderValue::from_static("application/json"), body)
}

pub(crate) fn typed(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Content::Full(Some(body.into())).into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

pub(crate) fn events(stream: Box<EventStream>) -> Response<Body> {
    let mut response = Response::new(Content::Events(stream).into());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Common reverse proxies hold streams back without it.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

pub(crate) fn failure(error: &Error, overload_status: u16, shape: ErrorShape) -> Response<Body> {
    let status =
        StatusCode::from_u16(error.http_status(overload_status)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json(status, shape(error));
    let temporary = matches!(error.class(), Class::Unavailable | Class::Overloaded);
    if let Some(seconds) = error.retry_after_s().or(temporary.then_some(RETRY_AFTER_DEFAULT_S)) {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if let Some(helps) = error.retry_helps() {
        let helps = if helps { "true" } else { "false" };
        response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static(helps));
    }
    response
}

pub(crate) fn set_allow(response: &mut Response<Body>, methods: &str) {
    if let Ok(value) = HeaderValue::from_str(methods) {
        response.headers_mut().insert(ALLOW, value);
    }
}

/// Client-chosen names, made fit for a header: odd characters become `?`, long lists are cut.
pub(crate) fn set_ignored_fields(response: &mut Response<Body>, names: &[String]) {
    if names.is_empty() {
        return;
    }
    let mut text = names.join(", ");
    text = text.chars().map(|c| if c == ' ' || c.is_ascii_graphic() { c } else { '?' }).collect();
    text.truncate(IGNORED_FIELDS_MAX_BYTES);
    if let Ok(value) = HeaderValue::from_str(&text) {
        response.headers_mut().insert(IGNORED_FIELDS, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::body::Body as _;
    use std::task::Waker;
    use tokio_util::task::TaskTracker;

    fn shape(error: &Error) -> Vec<u8> {
        error.message().as_bytes().to_vec()
    }

    #[test]
    fn temporary_faults_say_when_to_retry() {
        let response = failure(&Error::unavailable("x"), 529, shape);
        assert_eq!(
            (response.status().as_u16(), &response.headers()[RETRY_AFTER]),
            (503, &HeaderValue::from(1))
        );
        let response = failure(&Error::overloaded("x").with_retry_after_s(9), 429, shape);
        assert_eq!(
            (response.status().as_u16(), &response.headers()[RETRY_AFTER]),
            (429, &HeaderValue::from(9))
        );
        assert_eq!(response.headers()[SHOULD_RETRY], "true");
        let response = failure(&Error::client(Class::NotImplemented, "x"), 529, shape);
        assert!(response.headers().get(RETRY_AFTER).is_none());
        assert_eq!(response.headers()[SHOULD_RETRY], "false");
    }

    #[test]
    fn an_answer_runs_until_its_last_piece_is_flushed() {
        let content: Vec<u8> = (0..PIECE_BYTES * 2 + 5).map(|at| at as u8).collect();
        let mut body = json(StatusCode::OK, content.clone()).into_body();
        let (tracker, unwritten) = (TaskTracker::new(), Arc::new(Unwritten::default()));
        body.hold(tracker.token());
        body.go_over(Arc::clone(&unwritten));
        let mut seen = Vec::new();
        let mut next = |body: &mut Body| {
            let frame = Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()));
            let Poll::Ready(frame) = frame else { panic!("it waits") };
            frame.map(|frame| seen.extend_from_slice(&frame.unwrap().into_data().unwrap()))
        };
        while next(&mut body).is_some() {
            if !body.is_end_stream() {
                unwritten.flushed();
            }
        }
        assert_eq!(seen, content);
        drop(body);
        assert_eq!(tracker.len(), 1, "the last piece is not written");
        unwritten.flushed();
        assert!(tracker.is_empty());
    }

    #[test]
    fn ignored_field_names_cannot_break_a_header() {
        let mut response = json(StatusCode::OK, "{}");
        set_ignored_fields(&mut response, &["a\r\nb: c".into(), "é".into()]);
        assert_eq!(response.headers()[IGNORED_FIELDS], "a??b: c, ?");
        set_ignored_fields(&mut response, &["x".repeat(5000)]);
        assert_eq!(response.headers()[IGNORED_FIELDS].len(), IGNORED_FIELDS_MAX_BYTES);
    }
}
