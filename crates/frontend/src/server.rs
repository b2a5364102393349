//! Listening, one task per connection, and the way down.

use crate::catalog::Catalog;
use crate::config::Config;
use crate::connection::{self, Order, Serving};
use crate::error::Error;
use crate::metrics::Metrics;
use crate::model::State;
use crate::selection::{self, Config as SelectionConfig, Desk};
use crate::shared::{Phase, Shared};
use crate::watch::Watcher;
use dynamo_router::BookedLoad;
use dynamo_runtime::bookings::Peers;
use dynamo_runtime::discovery::Discovery;
use dynamo_runtime::events::EventPlane;
use dynamo_runtime::metrics::executor::Canary;
use dynamo_runtime::plane::RequestPlane;
use dynamo_runtime::trace::Tracer;
use dynamo_runtime::{CancellationToken, TaskTracker};
use dynamo_types::WorkerRank;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// Connections the kernel holds for us before we accept them (behaviour.md 1.1).
const BACKLOG: u32 = 4096;
/// Pause after a failed accept: the usual reason is that file descriptors ran out, and trying at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Streams that were told to stop get this long to write their last frames.
const LAST_WORDS: Duration = Duration::from_millis(1000);

/// What a frontend stands on.
pub struct Services {
    pub plane: Arc<dyn RequestPlane>,
    pub discovery: Arc<dyn Discovery>,
    pub events: Arc<dyn EventPlane>,
    /// Who else places requests on the same workers. None: nobody, or it is not to be known.
    pub peers: Option<Peers>,
    pub router: dynamo_router::Config,
    /// `/metrics` shows everything in it, other parts of the process included.
    pub registry: dynamo_runtime::metrics::Registry,
    pub tracer: Tracer,
}

/// Everything that must be back where it began when nothing runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Ledger {
    pub requests: usize,
    pub connections: usize,
    pub booked: Vec<(WorkerRank, BookedLoad)>,
}

impl Ledger {
    /// Is nothing running and nothing booked? Open connections may be idle ones.
    pub fn is_balanced(&self) -> bool {
        self.requests == 0 && self.booked.iter().all(|(_, load)| load.is_idle())
    }
}

/// A running frontend. Dropping it stops it at once.
pub struct Frontend {
    local_addr: SocketAddr,
    grpc_addr: Option<SocketAddr>,
    shared: Arc<Shared>,
    orders: Arc<watch::Sender<Order>>,
    connections: TaskTracker,
    /// That are listened on.
    ports: TaskTracker,
    /// Ends the accept loop.
    stop_accepting: CancellationToken,
    /// The accept loop and the watch of discovery; aborted when dropped.
    _tasks: JoinSet<()>,
}

impl Frontend {
    /// Listens, and serves until dropped or drained. Models appear as discovery names them.
    ///
    /// # Errors
    /// One line for the person who started it: the address is taken or no address, a setting cannot work, a metric name
    /// is taken.
    pub async fn start(config: Config, services: Services) -> Result<Self, Error> {
        Self::start_as(config, None, services).await
    }

    /// The same over the routes of the selection service, at its own port.
    ///
    /// # Errors
    /// As [`Frontend::start`].
    pub async fn start_router(
        config: Config,
        selection: SelectionConfig,
        services: Services,
    ) -> Result<Self, Error> {
        selection.check().map_err(|(key, reason)| Error::Config { key, reason: reason.into() })?;
        let config = Config { port: selection.port, grpc_port: None, ..config };
        Self::start_as(config, Some(selection), services).await
    }

    async fn start_as(
        config: Config,
        selection: Option<SelectionConfig>,
        services: Services,
    ) -> Result<Self, Error> {
        services.router.validate().map_err(|reason| Error::Config { key: "router", reason })?;
        let desk = match selection {
            Some(selection) => {
                let metrics = selection::Metrics::new(&services.registry)
                    .map_err(|error| Error::Metrics(error.to_string()))?;
                Some(Desk::new(selection, metrics, Arc::clone(&services.events)))
            }
            None => None,
        };
        let metrics =
            Arc::new(Metrics::new(services.registry).map_err(|error| Error::Metrics(error.to_string()))?);
        let canary = Canary::new(&metrics.registry).map_err(|error| Error::Metrics(error.to_string()))?;
        let catalog = Arc::new(Catalog::new(services.router.thresholds()));
        let listed = CancellationToken::new();
        let mut shared = Shared::new(
            config,
            Arc::clone(&catalog),
            Arc::clone(&metrics),
            services.plane,
            services.tracer,
            listed.clone(),
        )?;
        shared.desk = desk;
        let shared = Arc::new(shared);
        let host = &shared.config.host;
        let (listener, local_addr) = listen(host, shared.config.port, "--port").await?;
        let grpc = match shared.config.grpc_port {
            Some(port) => Some(listen(host, port, "--grpc-port").await?),
            None => None,
        };
        let grpc_addr = grpc.as_ref().map(|(_, address)| *address);
        let stop_accepting = CancellationToken::new();
        let watcher = Watcher {
            catalog,
            metrics,
            discovery: services.discovery,
            events: services.events,
            peers: services.peers,
            roster: shared.desk.as_ref().map(|desk| desk.roster.view()),
            router: services.router,
            seed: shared.identities.seed(),
        };
        let (connections, ports) = (TaskTracker::new(), TaskTracker::new());
        let orders = Arc::new(watch::Sender::new(Order::Serve));
        let mut tasks = JoinSet::new();
        tasks.spawn(watcher.run(listed));
        tasks.spawn(canary.run());
        if shared.desk.is_some() {
            tasks.spawn(selection::sweep(Arc::clone(&shared)));
        }
        if let Some(keys) = &shared.keys {
            tasks.spawn(Arc::clone(keys).follow());
        }
        let most = shared.config.max_connections.min(Semaphore::MAX_PERMITS);
        let slots = Arc::new(Semaphore::new(most));
        let http = (listener, Serving::http1(Arc::clone(&shared)));
        let grpc = grpc.map(|(listener, _)| (listener, Serving::grpc(Arc::clone(&shared))));
        for (listener, serving) in [http].into_iter().chain(grpc) {
            let acceptor = Acceptor {
                listener,
                serving: Arc::new(serving),
                slots: Arc::clone(&slots),
                orders: Arc::clone(&orders),
                connections: connections.clone(),
            };
            tasks.spawn(ports.track_future(acceptor.run(stop_accepting.clone())));
        }
        Ok(Self { local_addr, grpc_addr, shared, orders, connections, ports, stop_accepting, _tasks: tasks })
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Where gRPC is spoken, if it is.
    pub fn grpc_addr(&self) -> Option<SocketAddr> {
        self.grpc_addr
    }

    /// Do the ports speak TLS?
    pub fn is_tls(&self) -> bool {
        self.shared.tls.is_some()
    }

    /// Waits until discovery has answered for the first time, so that "no model" means "no model".
    pub async fn listed(&self) {
        self.shared.listed.cancelled().await;
    }

    /// Does it do what it promises, whenever that is asked: is there a model that can be asked for?
    pub fn readiness(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || shared.phase() == Phase::Serving && !shared.catalog.ready().is_empty()
    }

    /// Names of the models that can be asked for now.
    pub fn models(&self) -> Vec<String> {
        self.shared.catalog.ready().iter().map(|model| model.name().to_string()).collect()
    }

    /// Why something that registered cannot be asked for, if anything did: a model whose tokenizer or template cannot
    /// be built, or a worker that was refused.
    pub fn fault(&self) -> Option<String> {
        let catalog = &self.shared.catalog;
        let broken = catalog.all().into_iter().find_map(|model| match model.state() {
            State::Broken(error) => Some(format!("model {} cannot be served: {error}", model.name())),
            _ => None,
        });
        broken.or_else(|| catalog.refused().into_values().next().map(|refused| refused.reason))
    }

    /// What is running and booked.
    pub fn ledger(&self) -> Ledger {
        Ledger {
            requests: self.shared.requests.len(),
            connections: self.connections.len(),
            booked: self.shared.booked(),
        }
    }

    /// Refuses new requests with 503, on open connections and new ones alike, lets running ones finish, and stops when
    /// none is left or the configured deadline has passed; then streams end with an error frame (R29). Discovery and
    /// bookings stay alive until then. Returns whether everything finished by itself.
    pub async fn drain(self) -> bool {
        self.begin_drain();
        let deadline = Duration::from_millis(self.shared.config.drain_deadline_ms);
        let (requests, answers) = (&self.shared.requests, &self.shared.answers);
        requests.close();
        answers.close();
        let done = async {
            requests.wait().await;
            answers.wait().await;
        };
        let finished = tokio::time::timeout(deadline, done).await.is_ok();
        self.stop_accepting.cancel();
        self.connections.close();
        self.ports.close();
        self.orders.send_replace(Order::Finish);
        if !finished {
            self.shared.advance(Phase::Stopping);
            self.orders.send_replace(Order::Stop);
        }
        let gone = async {
            self.ports.wait().await;
            self.connections.wait().await;
        };
        let _ = tokio::time::timeout(LAST_WORDS, gone).await;
        finished
    }

    /// The first half of [`Frontend::drain`], for those who have more to stop.
    pub fn begin_drain(&self) {
        self.shared.advance(Phase::Draining);
    }
}

impl Drop for Frontend {
    fn drop(&mut self) {
        self.shared.advance(Phase::Stopping);
        self.orders.send_replace(Order::Abort);
    }
}

async fn listen(host: &str, port: u16, flag: &'static str) -> Result<(TcpListener, SocketAddr), Error> {
    let resolved = tokio::net::lookup_host((host, port)).await;
    let not_found = || io::Error::new(io::ErrorKind::NotFound, "no address");
    let address = resolved
        .and_then(|mut addresses| addresses.next().ok_or_else(not_found))
        .map_err(|source| Error::Host { host: host.to_owned(), source })?;
    let bind = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // A restart must not wait for the kernel to forget the connections of its predecessor.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(BACKLOG)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    bind().map_err(|source| Error::Listen { address: format!("{host}:{port}"), flag, source })
}

struct Acceptor {
    listener: TcpListener,
    serving: Arc<Serving>,
    /// Of all ports together.
    slots: Arc<Semaphore>,
    orders: Arc<watch::Sender<Order>>,
    connections: TaskTracker,
}

impl Acceptor {
    async fn run(self, stop: CancellationToken) {
        loop {
            let accepted = async {
                let slot = Arc::clone(&self.slots).acquire_owned().await;
                (slot, self.listener.accept().await)
            };
            let (slot, accepted) = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                accepted = accepted => accepted,
            };
            match accepted {
                Ok((socket, _)) => {
                    let connection =
                        connection::serve(socket, Arc::clone(&self.serving), self.orders.subscribe());
                    self.connections.spawn(async move {
                        connection.await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}
