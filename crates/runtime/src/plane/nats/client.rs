//! Makes the connection to a NATS server that all who need one share, and makes it anew after it ended.

use super::protocol::{self, Connect, Info, Operation};
use super::session::{Session, Times, send};
use super::{Error, Login, Options};
use crate::plane::wire::Streams;
use crate::sync::lock;
use bytes::BytesMut;
use std::sync::{Arc, Mutex};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// A connection to one of the servers. Clones share it; the last one ends it.
#[derive(Clone)]
pub(super) struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    options: Options,
    current: Mutex<Option<Attempt>>,
}

/// A connection that is being made, is there, or ended.
struct Attempt {
    outcome: watch::Receiver<Option<Outcome>>,
    task: AbortHandle,
}

type Outcome = Result<Arc<Session>, Error>;

impl Attempt {
    fn is_over(&self) -> bool {
        match &*self.outcome.borrow() {
            Some(Ok(session)) => session.has_ended(),
            Some(Err(_)) => true,
            None => false,
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Client {
    pub(super) fn new(options: Options) -> Self {
        Self { inner: Arc::new(Inner { options, current: Mutex::default() }) }
    }

    pub(super) fn options(&self) -> &Options {
        &self.inner.options
    }

    /// The connection, a new one if there is none. All who ask meanwhile wait for the same attempt.
    ///
    /// # Errors
    /// No server can be reached, or it turns us away.
    pub(super) async fn session(&self) -> Result<Arc<Session>, Error> {
        let mut outcome = {
            let mut current = lock(&self.inner.current);
            match &*current {
                Some(attempt) if !attempt.is_over() => attempt.outcome.clone(),
                _ => {
                    let (sender, outcome) = watch::channel(None);
                    let carrying = carry(self.inner.options.clone(), sender);
                    let task = tokio::spawn(carrying).abort_handle();
                    *current = Some(Attempt { outcome: outcome.clone(), task });
                    outcome
                }
            }
        };
        let found = outcome.wait_for(Option::is_some).await;
        found.ok().and_then(|found| found.clone()).unwrap_or_else(|| Err(Error::closed()))
    }
}

async fn carry(options: Options, outcome: watch::Sender<Option<Outcome>>) {
    let mut last = Error::Unreachable("no server is named".to_owned());
    for address in &options.servers {
        let limit = options.connect_timeout;
        let connecting = timeout(limit, connect(&options, address));
        let connected = connecting.await.unwrap_or_else(|_| {
            Err(Error::Unreachable(format!("no answer within {} ms", limit.as_millis())))
        });
        match connected {
            Ok(Connected { session, streams: (read, write), buffer }) => {
                outcome.send_replace(Some(Ok(Arc::clone(&session))));
                let times = Times { beat_every: options.beat_every, dead_after: options.dead_after };
                Arc::clone(&session).run(read, write, buffer, times).await;
                let error = session.ended().await;
                tracing::debug!(%address, %error, "the connection to NATS ended");
                return;
            }
            Err(error) => {
                last = error.at(address);
            }
        }
    }
    outcome.send_replace(Some(Err(last)));
}

struct Connected {
    session: Arc<Session>,
    streams: Streams,
    /// What was read of what comes after the greeting.
    buffer: BytesMut,
}

async fn connect(options: &Options, address: &str) -> Result<Connected, Error> {
    let io = |error: std::io::Error| Error::Unreachable(error.to_string());
    let socket = TcpStream::connect(address).await.map_err(io)?;
    socket.set_nodelay(true).map_err(io)?;
    let mut buffer = BytesMut::new();
    let (read, write) = socket.into_split();
    let mut streams: Streams = (Box::new(read), Box::new(write));
    let Operation::Info(info) = next(&mut streams, &mut buffer).await? else {
        return Err(Error::decode("no greeting"));
    };
    if info.tls_required {
        return Err(Error::Refused("it wants TLS, which is not supported".to_owned()));
    }
    let mut hello = b"CONNECT ".to_vec();
    let connect = introduce(&options.login, &info)?;
    serde_json::to_writer(&mut hello, &connect).map_err(|error| Error::decode(&error.to_string()))?;
    hello.extend_from_slice(b"\r\nPING\r\n");
    send(&mut streams.1, &hello, options.connect_timeout).await?;
    loop {
        match next(&mut streams, &mut buffer).await? {
            Operation::Pong => break,
            Operation::Error(text) if text.to_ascii_lowercase().contains("authorization") => {
                return Err(Error::Refused(format!("{text}: {}", options.login.advice())));
            }
            Operation::Error(text) => return Err(Error::Refused(text)),
            _ => {}
        }
    }
    if !info.headers {
        tracing::warn!(
            "NATS {} at {address} does not say when nobody listens: workers that die are found by their silence only",
            info.version
        );
    }
    Ok(Connected { session: Session::new(&info), streams, buffer })
}

fn introduce(login: &Login, info: &Info) -> Result<Connect, Error> {
    let mut connect = Connect {
        name: "dynamo",
        lang: "rust",
        version: env!("CARGO_PKG_VERSION"),
        protocol: 1,
        headers: info.headers,
        no_responders: info.headers,
        ..Connect::default()
    };
    login.show(&mut connect, info)?;
    Ok(connect)
}

/// The next operation before the session begins.
async fn next(streams: &mut Streams, buffer: &mut BytesMut) -> Result<Operation, Error> {
    loop {
        if let Some(operation) = protocol::take(buffer).map_err(|found| Error::decode(&found))? {
            return Ok(operation);
        }
        let count =
            streams.0.read_buf(buffer).await.map_err(|error| Error::Unreachable(error.to_string()))?;
        if count == 0 {
            return Err(Error::closed());
        }
    }
}
