//! Sockets: listening, one task per connection, and the way down.

use crate::catalog::Catalog;
use crate::config::Config;
use crate::error::Error;
use crate::metrics::Metrics;
use crate::model::State;
use crate::routes;
use crate::shared::{Phase, Shared};
use crate::stall::Stall;
use crate::watch::Watcher;
use dynamo_router::BookedLoad;
use dynamo_runtime::discovery::Discovery;
use dynamo_runtime::events::EventPlane;
use dynamo_runtime::metrics::Unit;
use dynamo_runtime::plane::RequestPlane;
use dynamo_runtime::{CancellationToken, TaskTracker};
use dynamo_types::WorkerRank;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
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
    pub router: dynamo_router::Config,
    /// `/metrics` shows everything in it, other parts of the process included.
    pub registry: dynamo_runtime::metrics::Registry,
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

/// How connections are told where the server is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    Serve,
    /// Close when the request at hand is answered.
    Finish,
    /// Streams write their last frames now.
    Stop,
    /// Drop everything.
    Abort,
}

/// A running frontend. Dropping it stops it at once.
pub struct Frontend {
    local_addr: SocketAddr,
    shared: Arc<Shared>,
    orders: Arc<watch::Sender<Order>>,
    connections: TaskTracker,
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
        services.router.validate().map_err(|reason| Error::Config { key: "router", reason })?;
        let metrics =
            Arc::new(Metrics::new(services.registry).map_err(|error| Error::Metrics(error.to_string()))?);
        let catalog = Arc::new(Catalog::default());
        let listed = CancellationToken::new();
        let shared = Arc::new(Shared::new(
            config,
            Arc::clone(&catalog),
            Arc::clone(&metrics),
            services.plane,
            listed.clone(),
        )?);
        let listener = listen(&shared.config.host, shared.config.port).await?;
        let local_addr = listener.local_addr().map_err(|source| Error::Listen {
            address: format!("{}:{}", shared.config.host, shared.config.port),
            source,
        })?;
        let stop_accepting = CancellationToken::new();
        let watcher = Watcher {
            catalog,
            metrics,
            discovery: services.discovery,
            events: services.events,
            router: services.router,
            seed: shared.identities.seed(),
        };
        let connections = TaskTracker::new();
        let orders = Arc::new(watch::Sender::new(Order::Serve));
        let mut tasks = JoinSet::new();
        tasks.spawn(watcher.run(listed));
        if let Some(keys) = &shared.keys {
            tasks.spawn(Arc::clone(keys).follow());
        }
        let acceptor = Acceptor {
            listener,
            shared: Arc::clone(&shared),
            orders: Arc::clone(&orders),
            connections: connections.clone(),
        };
        tasks.spawn(acceptor.run(stop_accepting.clone()));
        Ok(Self { local_addr, shared, orders, connections, stop_accepting, _tasks: tasks })
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Waits until discovery has answered for the first time, so that "no model" means "no model".
    pub async fn listed(&self) {
        self.shared.listed.cancelled().await;
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
        self.shared.requests.close();
        let finished = tokio::time::timeout(deadline, self.shared.requests.wait()).await.is_ok();
        self.stop_accepting.cancel();
        self.connections.close();
        self.orders.send_replace(Order::Finish);
        if !finished {
            self.shared.advance(Phase::Stopping);
            self.orders.send_replace(Order::Stop);
        }
        let _ = tokio::time::timeout(LAST_WORDS, self.connections.wait()).await;
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

async fn listen(host: &str, port: u16) -> Result<TcpListener, Error> {
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
        socket.listen(BACKLOG)
    };
    bind().map_err(|source| Error::Listen { address: format!("{host}:{port}"), source })
}

struct Acceptor {
    listener: TcpListener,
    shared: Arc<Shared>,
    orders: Arc<watch::Sender<Order>>,
    connections: TaskTracker,
}

impl Acceptor {
    async fn run(self, stop: CancellationToken) {
        let slots = Arc::new(Semaphore::new(self.shared.config.max_connections.min(Semaphore::MAX_PERMITS)));
        let settings = Arc::new(settings(&self.shared.config));
        loop {
            let accepted = async {
                let slot = Arc::clone(&slots).acquire_owned().await;
                (slot, self.listener.accept().await)
            };
            let (slot, accepted) = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                accepted = accepted => accepted,
            };
            match accepted {
                Ok((socket, _)) => {
                    let connection = serve(
                        socket,
                        Arc::clone(&settings),
                        Arc::clone(&self.shared),
                        self.orders.subscribe(),
                    );
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

fn settings(config: &Config) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(config.header_timeout_ms))
        .max_headers(config.header_count_limit)
        .max_header_size(config.header_limit_bytes)
        .max_buf_size(config.header_limit_bytes.max(MIN_BUFFER_BYTES))
        // A client that closes its sending half has left: only so is a goodbye noticed while there is nothing to write.
        // (One that has pipelined a further request is noticed at the next write.)
        .half_close(false);
    builder
}

/// hyper's own least buffer.
const MIN_BUFFER_BYTES: usize = 8192;

/// One connection, from accept to close.
async fn serve(
    socket: TcpStream,
    settings: Arc<http1::Builder>,
    shared: Arc<Shared>,
    mut orders: watch::Receiver<Order>,
) {
    // Without it the first token waits for the client's delayed acknowledgement: 40 ms.
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY was refused");
    }
    let socket = Stall::new(socket, Duration::from_millis(shared.config.write_timeout_ms));
    let _open = Unit::of(&shared.metrics.connections);
    let context = Arc::clone(&shared);
    let service = service_fn(move |request| {
        let context = Arc::clone(&context);
        async move { Ok::<_, Infallible>(routes::answer(context, request).await) }
    });
    let mut connection = pin!(settings.serve_connection(TokioIo::new(socket), service));
    let mut obeyed = Order::Serve;
    loop {
        let order = tokio::select! {
            done = connection.as_mut() => {
                if let Err(error) = done {
                    tracing::debug!(%error, "connection ended");
                }
                return;
            }
            order = next_order(&mut orders, obeyed) => order,
        };
        match order {
            Order::Serve => {}
            // Being polled again is what lets the streams see that they are to stop.
            Order::Finish | Order::Stop => connection.as_mut().graceful_shutdown(),
            Order::Abort => return,
        }
        obeyed = order;
    }
}

async fn next_order(orders: &mut watch::Receiver<Order>, obeyed: Order) -> Order {
    match orders.wait_for(|order| *order > obeyed).await {
        Ok(order) => *order,
        Err(_) => Order::Abort,
    }
}
