//! What the roles plug into: request plane, discovery, event plane, metrics, traces.

use crate::settings::{DiscoveryBackend, RequestTransport, Settings};
use dynamo_frontend::Frontend;
use dynamo_runtime::bookings::Peers;
use dynamo_runtime::discovery::{self, Discovery, Etcd, File, Memory};
use dynamo_runtime::events::{self, EventPlane, Local};
use dynamo_runtime::metrics::{self, Registry, executor};
use dynamo_runtime::plane::wire::{self, Dial};
use dynamo_runtime::plane::{self, ByTransport, InProcess, RequestPlane, nats, tcp};
use dynamo_runtime::system::{Health, System};
use dynamo_runtime::trace::{Exporter, Tracer};
use dynamo_types::Transport;
use dynamo_worker::{Metrics, Services};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Where the file backend keeps its records unless told otherwise.
const DEFAULT_STORE: &str = "dynamo_store_kv";

/// The planes of one process.
pub(crate) struct Planes {
    served: InProcess,
    discovery: Arc<dyn Discovery>,
    /// What the workers of this process say.
    own: Arc<Local>,
    /// What the router hears.
    heard: Arc<Local>,
    fleet: Option<FleetPlanes>,
    pub(crate) registry: Registry,
    /// What the roles of this process say of themselves.
    pub(crate) health: Health,
    tracer: Tracer,
    exporter: Exporter,
}

/// What processes reach each other by.
struct FleetPlanes {
    options: wire::Options,
    tls: tcp::Tls,
    caller: wire::Caller,
    /// None: other routers are not asked or told.
    peers: Option<Peers>,
    /// None: this process has no workers.
    server: Option<Served>,
}

enum Served {
    Tcp { server: tcp::Server, address: String },
    Nats(nats::Server),
}

impl Served {
    fn transport(&self) -> Transport {
        match self {
            Self::Tcp { address, .. } => Transport::Tcp(address.clone()),
            Self::Nats(server) => Transport::Nats(server.subject().to_owned()),
        }
    }

    async fn settled(&self) {
        match self {
            Self::Tcp { server, .. } => server.settled().await,
            Self::Nats(server) => server.settled().await,
        }
    }
}

impl Planes {
    /// The planes of one process by itself.
    ///
    /// # Errors
    /// What of the settings of traces cannot work.
    pub(crate) fn alone(settings: &Settings) -> Result<Self, String> {
        let discovery = Arc::new(Memory::new(discovery::Options::default()));
        let (registry, _) = families(settings)?;
        Self::with(settings, registry, discovery, None)
    }

    /// The planes that `settings` choose; `otherwise` if they leave the store open. `serves`: this process has workers.
    ///
    /// # Errors
    /// One line: the store or the port cannot be used.
    pub(crate) async fn new(
        settings: &Settings,
        otherwise: DiscoveryBackend,
        serves: bool,
    ) -> Result<Self, String> {
        let store: Result<Arc<dyn Discovery>, _> = match settings.discovery.backend.unwrap_or(otherwise) {
            DiscoveryBackend::Memory => return Self::alone(settings),
            DiscoveryBackend::File => File::open(&store_path(settings), discovery::file::Options::default())
                .map(|store| Arc::new(store) as _),
            DiscoveryBackend::Etcd => {
                Etcd::open(settings.discovery.etcd()).await.map(|store| Arc::new(store) as _)
            }
        };
        let store = store.map_err(|error| error.to_string())?;
        let (registry, metrics) = families(settings)?;
        let options = wire::Options { metrics, ..settings.request_plane.options()? };
        let heard = Arc::new(Local::new(events::Options::default()));
        let nats = nats::Dialer::new(settings.nats.options(&settings.request_plane)?);
        let is_nats = settings.request_plane.transport == RequestTransport::Nats;
        if is_nats && !serves {
            nats.check().await.map_err(|error| error.to_string())?;
        }
        let tls = settings.request_plane.tls()?;
        // Workers are called as they say, whatever those of this process are called by.
        let ways: Vec<Arc<dyn Dial>> = vec![Arc::new(tcp::Dialer::new(&tls)), Arc::new(nats)];
        let peers = settings.router.replica_sync.then(Peers::new);
        let caller =
            wire::Caller::with_peers(options.clone(), Arc::clone(&heard), Arc::new(ways), peers.clone());
        let fleet = FleetPlanes { options, tls, caller, peers, server: None };
        let mut planes = Self::with(settings, registry, store, Some((fleet, heard)))?;
        match (serves, is_nats) {
            (false, _) => {}
            (true, false) => planes.listen(settings).await?,
            (true, true) => planes.connect(settings).await?,
        }
        Ok(planes)
    }

    fn with(
        settings: &Settings,
        registry: Registry,
        discovery: Arc<dyn Discovery>,
        fleet: Option<(FleetPlanes, Arc<Local>)>,
    ) -> Result<Self, String> {
        let (tracer, exporter) =
            Tracer::start(&settings.trace, &registry).map_err(|error| error.to_string())?;
        let own = Arc::new(Local::new(events::Options::default()));
        let (fleet, heard) = match fleet {
            Some((fleet, heard)) => (Some(fleet), heard),
            None => (None, Arc::clone(&own)),
        };
        let served = InProcess::new(plane::Options::default());
        let health = Health::new(settings.system.starts_ready());
        Ok(Self { served, discovery, own, heard, fleet, registry, health, tracer, exporter })
    }

    /// The process's own port for health and metrics, if it is wanted.
    ///
    /// # Errors
    /// One line: it cannot be listened on.
    pub(crate) async fn system(&self, settings: &Settings) -> Result<Option<System>, String> {
        let Some(options) = settings.system.options() else { return Ok(None) };
        let system = System::start(options, self.registry.clone(), self.health.clone()).await;
        let system = system.map_err(|error| error.to_string())?;
        tracing::info!(address = %system.local_addr(), "health and metrics of this process");
        Ok(Some(system))
    }

    async fn listen(&mut self, settings: &Settings) -> Result<(), String> {
        let Some(fleet) = &mut self.fleet else { return Ok(()) };
        let plane = &settings.request_plane;
        let wanted = format!("{}:{}", plane.host, plane.port);
        let fault = |error: std::io::Error| format!("request plane: cannot listen on {wanted}: {error}");
        let listener = TcpListener::bind(&wanted).await.map_err(fault)?;
        let (own, tls) = (Arc::clone(&self.own), fleet.tls.clone());
        let server =
            tcp::Server::start(listener, &self.served, own, fleet.options.clone(), tls).map_err(fault)?;
        if !server.local_addr().ip().is_loopback() && fleet.options.token.is_none() {
            tracing::warn!(
                "the request plane listens on {wanted} without request_plane.token_file: whoever reaches it can call"
            );
        }
        let host = plane.advertised_host.as_ref().unwrap_or(&plane.host);
        let address = fleet.tls.address(format!("{host}:{}", server.local_addr().port()));
        fleet.server = Some(Served::Tcp { server, address });
        Ok(())
    }

    /// [`Planes::listen`] over NATS.
    async fn connect(&mut self, settings: &Settings) -> Result<(), String> {
        let Some(fleet) = &mut self.fleet else { return Ok(()) };
        let nats = settings.nats.options(&settings.request_plane)?;
        let own = Arc::clone(&self.own);
        let options = fleet.options.clone();
        let server = nats::Server::start(nats, &settings.namespace, &self.served, own, options).await;
        fleet.server = Some(Served::Nats(server.map_err(|error| error.to_string())?));
        Ok(())
    }

    /// Sends the last spans, and what was withdrawn, at most this long.
    pub(crate) async fn finish(self, deadline: Duration) {
        // What discovery is not told ends with its lease.
        let told = tokio::time::timeout(deadline, self.discovery.settled());
        let _ = tokio::join!(told, self.exporter.finish(deadline));
    }

    /// How the workers of this process are reached.
    pub(crate) fn transport(&self) -> Transport {
        let served = self.fleet.as_ref().and_then(|fleet| fleet.server.as_ref());
        served.map_or(Transport::InProcess, Served::transport)
    }

    /// Completes when what the workers of this process said last is on its way.
    pub(crate) async fn settled(&self) {
        if let Some(served) = self.fleet.as_ref().and_then(|fleet| fleet.server.as_ref()) {
            served.settled().await;
        }
    }

    /// Takes in what the workers of other processes say. None if there are no other processes.
    pub(crate) fn follow(&self) -> Option<wire::Fleet> {
        let fleet = self.fleet.as_ref()?;
        Some(wire::Fleet::follow(Arc::clone(&self.discovery), fleet.caller.clone()))
    }

    pub(crate) async fn frontend(&self, settings: &Settings) -> Result<Frontend, String> {
        let started = Frontend::start(settings.frontend.clone(), self.services(settings)).await;
        started.map_err(|error| error.to_string())
    }

    /// The selection service, over the same.
    pub(crate) async fn router(&self, settings: &Settings) -> Result<Frontend, String> {
        let (config, selection) = (settings.frontend.clone(), settings.selection.clone());
        let started = Frontend::start_router(config, selection, self.services(settings)).await;
        started.map_err(|error| error.to_string())
    }

    fn services(&self, settings: &Settings) -> dynamo_frontend::Services {
        let plane: Arc<dyn RequestPlane> = match &self.fleet {
            None => Arc::new(self.served.clone()),
            Some(fleet) => {
                Arc::new(ByTransport { in_process: self.served.clone(), others: fleet.caller.clone() })
            }
        };
        dynamo_frontend::Services {
            plane,
            discovery: Arc::clone(&self.discovery),
            events: Arc::clone(&self.heard) as Arc<dyn EventPlane>,
            peers: self.fleet.as_ref().and_then(|fleet| fleet.peers.clone()),
            router: settings.router.clone(),
            registry: self.registry.clone(),
            tracer: self.tracer.clone(),
        }
    }

    pub(crate) fn worker(&self) -> Result<Services, String> {
        Ok(Services {
            plane: self.served.clone(),
            discovery: Arc::clone(&self.discovery),
            events: Arc::clone(&self.own) as Arc<dyn EventPlane>,
            metrics: Metrics::new(&self.registry).map_err(|error| error.to_string())?,
            tracer: self.tracer.clone(),
        })
    }
}

/// The registry of the process, with what every role counts.
fn families(settings: &Settings) -> Result<(Registry, plane::Metrics), String> {
    let (registry, wrong) = Registry::configured(&|name| std::env::var(name).ok());
    for reason in wrong {
        tracing::warn!("{reason}; the edges are as always");
    }
    let fault = |error: metrics::Error| error.to_string();
    executor::register(&registry, &tokio::runtime::Handle::current()).map_err(fault)?;
    let metrics = plane::Metrics::new(&registry, &settings.namespace).map_err(fault)?;
    Ok((registry, metrics))
}

fn store_path(settings: &Settings) -> PathBuf {
    match &settings.discovery.path {
        Some(path) => Path::new(path).to_owned(),
        None => std::env::temp_dir().join(DEFAULT_STORE),
    }
}
