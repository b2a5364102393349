//! etcd's API over gRPC: one connection to one of several endpoints, and calls on it that all have a limit in time.

use super::wire::{Changes, Done, Found, Granted, Malformed, Message, Transaction, authenticate, token};
use crate::sync::lock;
use bytes::{Buf as _, Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// A message larger than this is refused: above a list of all records there may be.
const MAX_MESSAGE_BYTES: usize = 256 << 20;

/// What the store may send ahead of what is read.
const WINDOW_BYTES: u32 = 1 << 20;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The store cannot be reached, fell silent, or is no etcd.
    Connection(String),
    /// The store's own answer: a code of gRPC's and a text.
    Refused { code: u32, text: String },
}

impl Fault {
    /// The lease is not there any more.
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: 5, .. })
    }

    /// The lease is there already.
    pub(super) fn exists(&self) -> bool {
        matches!(self, Self::Refused { code: 9, .. })
    }

    /// To ask again would change nothing: the request is malformed, or not permitted.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Refused { code: 3 | 7, .. })
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connection(text) | Self::Refused { text, .. } => f.write_str(text),
        }
    }
}

impl From<Malformed> for Fault {
    fn from(error: Malformed) -> Self {
        Self::Connection(error.to_string())
    }
}

/// How the store is reached.
#[derive(Clone)]
pub(super) struct Access {
    /// `host:port` of each; one is enough.
    pub(super) endpoints: Vec<String>,
    /// User and password.
    pub(super) login: Option<(String, String)>,
    /// Limit of one call.
    pub(super) patience: Duration,
}

/// A client of the store. Dropping it closes the connection.
pub(super) struct Client {
    access: Access,
    /// Of the endpoint that is tried next, or used.
    next: usize,
    connection: Option<Connection>,
}

struct Connection {
    requests: SendRequest<Body>,
    authority: String,
    token: Option<HeaderValue>,
    _tasks: Ending,
}

impl Client {
    pub(super) fn new(access: Access) -> Self {
        Self { access, next: 0, connection: None }
    }

    /// Gives up the connection, after a fault on it; the next call opens one to another endpoint.
    pub(super) fn reset(&mut self) {
        if self.connection.take().is_some() {
            self.next += 1;
        }
    }

    async fn connected(&mut self) -> Result<&mut Connection, Fault> {
        if self.connection.as_ref().is_none_or(|connection| connection.requests.is_closed()) {
            self.connection = None;
            let count = self.access.endpoints.len().max(1);
            let endpoint = self.access.endpoints.get(self.next % count).cloned().unwrap_or_default();
            match self.connect(&endpoint).await {
                Ok(connection) => self.connection = Some(connection),
                Err(fault) => {
                    self.next += 1;
                    return Err(fault);
                }
            }
        }
        self.connection.as_mut().ok_or_else(|| Fault::Connection("not connected".into()))
    }

    async fn connect(&self, endpoint: &str) -> Result<Connection, Fault> {
        let fault = |error: &dyn std::fmt::Display| Fault::Connection(format!("etcd at {endpoint}: {error}"));
        let patience = self.access.patience;
        let silent = || fault(&"no answer");
        let stream = timeout(patience, TcpStream::connect(endpoint))
            .await
            .map_err(|_| silent())?
            .map_err(|e| fault(&e))?;
        stream.set_nodelay(true).map_err(|error| fault(&error))?;
        let tasks = Tasks::default();
        let handshake = http2::Builder::new(tasks.clone())
            .timer(TokioTimer::new())
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .handshake(TokioIo::new(stream));
        let (requests, driver) =
            timeout(patience, handshake).await.map_err(|_| silent())?.map_err(|e| fault(&e))?;
        tasks.spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(%error, "a connection to etcd ended");
            }
        });
        let mut connection =
            Connection { requests, authority: endpoint.to_owned(), token: None, _tasks: Ending(tasks) };
        if let Some((user, password)) = &self.access.login {
            let said = connection
                .call("Auth/Authenticate", &authenticate(user, password), patience)
                .await
                .map_err(|error| fault(&error))?;
            let token = HeaderValue::try_from(token(&said)?).map_err(|error| fault(&error))?;
            connection.token = Some(token);
        }
        Ok(connection)
    }

    pub(super) async fn call(&mut self, method: &str, message: &Message) -> Result<Bytes, Fault> {
        let patience = self.access.patience;
        self.connected().await?.call(method, message, patience).await
    }

    pub(super) async fn range(&mut self, range: &Message) -> Result<Found, Fault> {
        Ok(Found::of(&self.call("KV/Range", range).await?)?)
    }

    pub(super) async fn put(&mut self, put: &Message) -> Result<(), Fault> {
        self.call("KV/Put", put).await.map(|_| ())
    }

    pub(super) async fn transact(&mut self, transaction: &Transaction) -> Result<Done, Fault> {
        Ok(Done::of(&self.call("KV/Txn", transaction.message()).await?)?)
    }

    pub(super) async fn grant(&mut self, grant: &Message) -> Result<Granted, Fault> {
        Ok(Granted::of(&self.call("Lease/LeaseGrant", grant).await?)?)
    }

    pub(super) async fn revoke(&mut self, lease: &Message) -> Result<(), Fault> {
        self.call("Lease/LeaseRevoke", lease).await.map(|_| ())
    }

    pub(super) async fn keep_alive(&mut self, lease: &Message) -> Result<Granted, Fault> {
        Ok(Granted::of(&self.call("Lease/LeaseKeepAlive", lease).await?)?)
    }

    pub(super) async fn watch(&mut self, create: &Message) -> Result<Watching, Fault> {
        let patience = self.access.patience;
        let connection = self.connected().await?;
        let mut frames = BytesMut::new();
        frame(&mut frames, create);
        let body = Body { message: Some(frames.freeze()), stays_open: true };
        Ok(Watching(connection.open("Watch/Watch", body, patience).await?))
    }
}

impl Connection {
    async fn call(&mut self, method: &str, message: &Message, patience: Duration) -> Result<Bytes, Fault> {
        let mut frames = BytesMut::new();
        frame(&mut frames, message);
        let body = Body { message: Some(frames.freeze()), stays_open: false };
        let authority = self.authority.clone();
        let call = async {
            let mut messages = self.open(method, body, patience).await?;
            let message = messages.next().await?;
            // A stream that is read to its end needs no reset.
            while messages.next().await?.is_some() {}
            message.ok_or_else(|| Fault::Connection("expected a message, found the end of the answer".into()))
        };
        let silent = |_| Fault::Connection(format!("etcd at {authority}: no answer to {method}"));
        timeout(patience, call).await.map_err(silent)?
    }

    async fn open(&mut self, method: &str, body: Body, patience: Duration) -> Result<Messages, Fault> {
        let authority = self.authority.clone();
        let fault =
            |error: &dyn std::fmt::Display| Fault::Connection(format!("etcd at {authority}: {error}"));
        let uri: Uri =
            format!("http://{authority}/etcdserverpb.{method}").parse().map_err(|error| fault(&error))?;
        let mut request = Request::post(uri).body(body).map_err(|error| fault(&error))?;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        // A member without a majority says so instead of falling silent.
        headers.insert("hasleader", HeaderValue::from_static("true"));
        if let Some(token) = &self.token {
            headers.insert("token", token.clone());
        }
        let sent = async {
            self.requests.ready().await?;
            self.requests.send_request(request).await
        };
        let response =
            timeout(patience, sent).await.map_err(|_| fault(&"no answer"))?.map_err(|error| fault(&error))?;
        if response.status() != StatusCode::OK {
            return Err(fault(&format_args!("expected gRPC, found HTTP status {}", response.status())));
        }
        status(response.headers())?;
        Ok(Messages { body: response.into_body(), buffer: BytesMut::new() })
    }
}

/// One message as gRPC frames it: not compressed, its length, itself.
fn frame(frames: &mut BytesMut, message: &Message) {
    let bytes = message.as_bytes();
    frames.extend_from_slice(&[0]);
    frames.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    frames.extend_from_slice(bytes);
}

/// The outcome of a call, if the headers say one.
fn status(headers: &HeaderMap) -> Result<(), Fault> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match text("grpc-status") {
        "" | "0" => Ok(()),
        code => Err(Fault::Refused {
            code: code.parse().unwrap_or(2),
            text: format!("etcd: {}", text("grpc-message")),
        }),
    }
}

/// The messages of an answer as they come.
struct Messages {
    body: Incoming,
    buffer: BytesMut,
}

impl Messages {
    /// The next one; None at the end of a call that went well. Cancel-safe.
    async fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            let frame = match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(Fault::Connection(format!("etcd: {error}"))),
                Some(Ok(frame)) => frame,
            };
            match frame.into_data() {
                Ok(data) => self.buffer.extend_from_slice(&data),
                Err(frame) => {
                    if let Some(trailers) = frame.trailers_ref() {
                        status(trailers)?;
                    }
                }
            }
        }
    }

    fn take(&mut self) -> Result<Option<Bytes>, Fault> {
        let Some((head, _)) = self.buffer.split_first_chunk::<5>() else { return Ok(None) };
        let [_, length @ ..] = *head;
        let length = u32::from_be_bytes(length) as usize;
        if length > MAX_MESSAGE_BYTES {
            return Err(Fault::Connection(format!(
                "expected messages of at most {MAX_MESSAGE_BYTES} bytes, found one of {length}"
            )));
        }
        if self.buffer.len() < 5 + length {
            return Ok(None);
        }
        self.buffer.advance(5);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}

/// An open watch. Dropping it ends it.
pub(super) struct Watching(Messages);

impl Watching {
    /// What is said next. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Changes, Fault> {
        match self.0.next().await? {
            Some(message) => Ok(Changes::of(&message)?),
            None => Err(Fault::Connection("etcd ended a watch".into())),
        }
    }
}

/// What is sent on a call.
struct Body {
    message: Option<Bytes>,
    /// Nothing more is sent, and the other side is not to end the call for that.
    stays_open: bool,
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let body = self.get_mut();
        match body.message.take() {
            Some(message) => Poll::Ready(Some(Ok(Frame::data(message)))),
            // Nothing will come that somebody would have to be woken for.
            None if body.stays_open => Poll::Pending,
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.message.is_none() && !self.stays_open
    }
}

/// The tasks of a connection. They hold it too, so that it does not end them by itself.
#[derive(Clone, Default)]
struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl Tasks {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut set = lock(&self.0);
        while set.try_join_next().is_some() {}
        set.spawn(task);
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, task: F) {
        self.spawn(task);
    }
}

/// Ends the tasks of a connection when it is dropped.
struct Ending(Tasks);

impl Drop for Ending {
    fn drop(&mut self) {
        lock(&self.0.0).abort_all();
    }
}
