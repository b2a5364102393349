//! NATS as a transport, for processes that reach one server but not each other (`docs/request-plane.md`).
//!
//! Nothing of the request plane is said a second time: a pipe over two private subjects carries the frames that TCP carries
//! elsewhere. The client of NATS is our own. What counts here is when a connection to the server ended and what was
//! under way on it, and that is what clients that mend connections by themselves hide.

mod client;
#[cfg(test)]
mod fixture;
mod flow;
mod login;
mod pipe;
mod protocol;
mod session;
#[cfg(test)]
mod tests;

pub use login::{Login, Seed};

use super::InProcess;
use super::wire::{self, Dial, Hub, Streams};
use crate::BoxFuture;
use crate::events::Local;
use crate::pause::Pause;
use client::Client;
use dynamo_types::Transport;
use protocol::Message;
use session::{Inbox, Session};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

/// Callers who ask for a pipe at the same moment; one more is turned away and comes again.
const MAX_KNOCKS: usize = 1024;

/// Which server, who we are, and how long things may take.
#[derive(Clone, Debug)]
pub struct Options {
    /// `host:port` of each; one is enough.
    pub servers: Vec<String>,
    pub login: Login,
    /// How long one attempt to connect may take.
    pub connect_timeout: Duration,
    /// How long a process that starts waits for a server.
    pub startup_timeout: Duration,
    /// How often the server is asked whether it is there.
    pub beat_every: Duration,
    /// A server that says nothing for this long is gone.
    pub dead_after: Duration,
}

impl Default for Options {
    fn default() -> Self {
        let options = wire::Options::default();
        Self {
            servers: vec!["localhost:4222".to_owned()],
            login: Login::None,
            connect_timeout: options.connect_timeout,
            startup_timeout: Duration::from_secs(120),
            beat_every: options.beat_every,
            dead_after: options.dead_after,
        }
    }
}

/// Why there is no connection to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// It may be there later.
    Unreachable(String),
    /// It turned us away, or what we asked for.
    Refused(String),
}

impl Error {
    fn closed() -> Self {
        Self::Unreachable("the connection was closed".to_owned())
    }

    fn silent(limit: Duration) -> Self {
        Self::Unreachable(format!("no sign of life for {} ms", limit.as_millis()))
    }

    fn decode(found: &str) -> Self {
        Self::Refused(format!("it is no NATS server: {found}"))
    }

    fn at(self, address: &str) -> Self {
        match self {
            Self::Unreachable(reason) => Self::Unreachable(format!("{address}: {reason}")),
            Self::Refused(reason) => Self::Refused(format!("{address}: {reason}")),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(reason) => write!(f, "NATS is not reached: {reason}"),
            Self::Refused(reason) => write!(f, "NATS refused: {reason}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for wire::Error {
    fn from(error: Error) -> Self {
        Self::Io(error.to_string())
    }
}

/// Opens pipes to workers. Connects to the server when the first one is wanted.
pub struct Dialer {
    client: Client,
}

impl Dialer {
    pub fn new(options: Options) -> Self {
        Self { client: Client::new(options) }
    }

    /// Waits for the server, so that a process that cannot use it says so at its start.
    ///
    /// # Errors
    /// It turns us away, or none can be reached within [`Options::startup_timeout`].
    pub async fn check(&self) -> Result<(), Error> {
        settle(&self.client, |_| Ok(())).await.map(drop)
    }
}

impl Dial for Dialer {
    fn reaches(&self, transport: &Transport) -> bool {
        matches!(transport, Transport::Nats(_))
    }

    fn dial<'a>(&'a self, transport: &'a Transport) -> BoxFuture<'a, Result<Streams, wire::Error>> {
        Box::pin(async move {
            let Transport::Nats(subject) = transport else { return Err(wire::Error::unreached(transport)) };
            let session = self.client.session().await?;
            Ok(pipe::open(&session, subject).await?)
        })
    }
}

/// Serves whoever opens a pipe on its subject, until it is dropped, which ends all pipes.
pub struct Server {
    subject: String,
    client: Client,
    hub: Arc<Hub>,
    accepting: AbortHandle,
}

impl Server {
    /// Serves what `plane` serves, and the sources of `events`. It can be called when this returns.
    ///
    /// # Errors
    /// The server turns us away, or none can be reached within [`Options::startup_timeout`].
    pub async fn start(
        nats: Options,
        namespace: &str,
        plane: &InProcess,
        events: Arc<Local>,
        options: wire::Options,
    ) -> Result<Self, Error> {
        let subject = subject(namespace);
        let client = Client::new(nats);
        let hub = Hub::new(plane, events, options);
        let first = settle(&client, |session| Knocks::listen(session, &subject)).await?;
        let accepting = tokio::spawn(keep(client.clone(), subject.clone(), Arc::clone(&hub), first));
        Ok(Self { subject, client, hub, accepting: accepting.abort_handle() })
    }

    /// Where callers ask for a pipe.
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// Streams of all pipes that have not ended.
    pub fn stream_count(&self) -> usize {
        self.hub.stream_count()
    }

    /// Completes when everything that was said to callers is with the server. A worker that ends waits for it, with a limit
    /// of its own.
    pub async fn settled(&self) {
        self.hub.settled().await;
        if let Ok(session) = self.client.session().await {
            // What a connection that ended did not carry is lost anyhow.
            let _ = session.flush().await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// `dynamo.<namespace>.connect.<process>`. The last word is new in every life of a process: who asks for an earlier one is
/// told that nobody listens.
fn subject(namespace: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let namespace: String = namespace.chars().map(|c| if allowed(c) { c } else { '_' }).collect();
    let namespace = if namespace.is_empty() { "_" } else { &namespace };
    format!("dynamo.{namespace}.connect.{:016x}", RandomState::new().hash_one(0))
}

/// A session on which `begin` was understood by the server. A server that cannot be reached is waited for.
async fn settle<T>(
    client: &Client,
    begin: impl Fn(&Arc<Session>) -> Result<T, Error>,
) -> Result<(Arc<Session>, T), Error> {
    let deadline = Instant::now() + client.options().startup_timeout;
    let mut pause = Pause::default();
    loop {
        let settled = async {
            let session = client.session().await?;
            let begun = begin(&session)?;
            session.flush().await?;
            Ok((session, begun))
        };
        match settled.await {
            Err(error @ Error::Unreachable(_)) if Instant::now() + pause.next() > deadline => {
                return Err(error);
            }
            Err(Error::Unreachable(_)) => {}
            settled => return settled,
        }
        pause.wait().await;
    }
}

/// Those who ask for a pipe, on one session.
struct Knocks {
    waiting: mpsc::Receiver<Message>,
}

struct Door {
    subject: String,
    knocks: mpsc::Sender<Message>,
}

impl Knocks {
    fn listen(session: &Arc<Session>, subject: &str) -> Result<Self, Error> {
        let (knocks, waiting) = mpsc::channel(MAX_KNOCKS);
        session.subscribe(subject, Arc::new(Door { subject: subject.to_owned(), knocks }))?;
        Ok(Self { waiting })
    }
}

impl Inbox for Door {
    fn message(&self, session: &Session, message: Message) {
        if let Err(refused) = self.knocks.try_send(message) {
            pipe::refuse(session, &self.subject, &refused.into_inner(), "too many callers at once");
        }
    }

    fn lost(&self, _: &Error) {}
}

/// Listens for callers, on one session after the other.
async fn keep(client: Client, subject: String, hub: Arc<Hub>, first: (Arc<Session>, Knocks)) {
    let mut next = Some(first);
    let mut pause = Pause::default();
    let mut told = None;
    loop {
        if let Some((session, knocks)) = next.take() {
            let begun = Instant::now();
            accept(&session, knocks, &subject, &hub).await;
            let error = session.ended().await;
            tracing::warn!(%error, "callers cannot reach this worker until NATS is there again");
            pause.lasted(begun.elapsed());
        }
        pause.wait().await;
        let listening = match client.session().await {
            Ok(session) => Knocks::listen(&session, &subject).map(|knocks| (session, knocks)),
            Err(error) => Err(error),
        };
        match listening {
            Ok(listening) => {
                tracing::info!("NATS is there again");
                told = None;
                next = Some(listening);
            }
            Err(error) if told.as_ref() != Some(&error) => {
                tracing::warn!(%error, "still no connection to NATS");
                told = Some(error);
            }
            Err(_) => {}
        }
    }
}

async fn accept(session: &Arc<Session>, mut knocks: Knocks, subject: &str, hub: &Arc<Hub>) {
    // Dropped when the session ends, and the pipes with it.
    let mut pipes = JoinSet::new();
    // The door, and with it the sender, goes when the session ends.
    while let Some(knock) = knocks.waiting.recv().await {
        while pipes.try_join_next().is_some() {}
        if pipes.len() >= hub.max_accepted() {
            pipe::refuse(session, subject, &knock, "this worker has as many callers as it may");
            continue;
        }
        match pipe::accept(session, &knock) {
            Ok(Some(streams)) => {
                let hub = Arc::clone(hub);
                let peer = knock.reply.unwrap_or_default();
                let deadline = Instant::now() + hub.options().connect_timeout;
                pipes.spawn(async move {
                    if let Err(error) = hub.serve(streams, deadline).await {
                        tracing::debug!(%peer, %error, "the connection of a caller ended");
                    }
                });
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "a caller could not be accepted"),
        }
    }
}
