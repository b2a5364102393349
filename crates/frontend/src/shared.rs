//! What every connection and request of a frontend has in common.

use crate::body::BodyReader;
use crate::catalog::Catalog;
use crate::config::Config;
use crate::error::Error;
use crate::identity::Identities;
use crate::keys::Keys;
use crate::metrics::Metrics;
use crate::migration::Rules;
use crate::patience::Patience;
use crate::selection::Desk;
use crate::tls::Tls;
use dynamo_router::BookedLoad;
use dynamo_runtime::plane::RequestPlane;
use dynamo_runtime::trace::Tracer;
use dynamo_runtime::{CancellationToken, TaskTracker};
use dynamo_types::WorkerRank;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Where a frontend is in its life. Only ever goes forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Phase {
    Serving,
    /// New requests are refused; running ones finish.
    Draining,
    /// Running ones end with an error frame.
    Stopping,
}

/// Shared by all connections.
pub(crate) struct Shared {
    pub(crate) options: dynamo_protocols::Options,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) plane: Arc<dyn RequestPlane>,
    pub(crate) tracer: Tracer,
    pub(crate) identities: Identities,
    pub(crate) bodies: BodyReader,
    /// None: everybody may ask.
    pub(crate) keys: Option<Arc<Keys>>,
    /// None: plain HTTP.
    pub(crate) tls: Option<Arc<Tls>>,
    /// Large bodies are parsed and tokenised off the event loop, at most one per core at a time.
    pub(crate) offload: Arc<Semaphore>,
    /// Requests that are not over.
    pub(crate) requests: TaskTracker,
    /// Answers that are not written to their last byte, whatever is asked. A drain waits for these too.
    pub(crate) answers: TaskTracker,
    /// Cancelled when the first full list of discovery is in.
    pub(crate) listed: CancellationToken,
    phase: AtomicU8,
    /// Cancelled with the first phase after serving.
    leaving: CancellationToken,
    born: Instant,
    /// None: a frontend.
    pub(crate) desk: Option<Desk>,
    pub(crate) config: Config,
}

impl Shared {
    pub(crate) fn new(
        config: Config,
        catalog: Arc<Catalog>,
        metrics: Arc<Metrics>,
        plane: Arc<dyn RequestPlane>,
        tracer: Tracer,
        listed: CancellationToken,
    ) -> Result<Self, Error> {
        let positive = [
            ("max_connections", config.max_connections as u64),
            ("header_timeout_ms", config.header_timeout_ms),
            ("body_timeout_ms", config.body_timeout_ms),
            ("write_timeout_ms", config.write_timeout_ms),
            ("tls_handshake_timeout_ms", config.tls_handshake_timeout_ms),
        ];
        if let Some((key, _)) = positive.into_iter().find(|&(_, value)| value == 0) {
            return Err(Error::Config { key, reason: "must be above 0, found 0".into() });
        }
        if !(400..=999).contains(&config.overload_status) {
            let reason = format!("must be between 400 and 999, found {}", config.overload_status);
            return Err(Error::Config { key: "overload_status", reason });
        }
        let keys = config.api_keys_file.as_deref().map(Keys::open).transpose();
        let keys = keys.map_err(|reason| Error::Config { key: "api_keys_file", reason })?.map(Arc::new);
        let tls = Tls::open(&config)?.map(Arc::new);
        if config.disable_nvext {
            tracing::warn!("`nvext` and routing headers of requests are ignored (frontend.disable_nvext)");
        }
        let leaving = CancellationToken::new();
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Ok(Self {
            options: dynamo_protocols::Options {
                unknown_fields: config.unknown_fields,
                limits: config.limits.clone(),
                ignores_nvext: config.disable_nvext,
            },
            catalog,
            metrics,
            plane,
            tracer,
            identities: Identities::new(),
            bodies: BodyReader::new(&config, leaving.clone()),
            keys,
            tls,
            offload: Arc::new(Semaphore::new(cores)),
            requests: TaskTracker::new(),
            answers: TaskTracker::new(),
            listed,
            phase: AtomicU8::new(Phase::Serving as u8),
            leaving,
            born: Instant::now(),
            desk: None,
            config,
        })
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Serving,
            1 => Phase::Draining,
            _ => Phase::Stopping,
        }
    }

    pub(crate) fn advance(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
        if phase > Phase::Serving {
            self.leaving.cancel();
        }
    }

    /// Milliseconds on this frontend's own monotonic clock, as the router counts them.
    pub(crate) fn now_ms(&self) -> u64 {
        self.born.elapsed().as_millis() as u64
    }

    pub(crate) fn migration_rules(&self) -> Rules {
        Rules { limit: self.config.migration_limit, max_seq_len: self.config.migration_max_seq_len }
    }

    /// How long an answer's worker may be quiet.
    pub(crate) fn patience(&self) -> Patience {
        let time = |ms: u64| Some(Duration::from_millis(ms)).filter(|time| !time.is_zero());
        Patience {
            silence: time(self.config.silence_timeout_ms),
            gap: time(self.config.token_gap_timeout_ms),
            first: time(self.config.first_answer_timeout_ms),
        }
    }

    /// How long an answer that nobody could take up waits for somebody.
    pub(crate) fn migration_wait(&self) -> Duration {
        Duration::from_millis(self.config.migration_wait_ms)
    }

    /// None: never.
    pub(crate) fn keep_alive(&self) -> Option<Duration> {
        Some(Duration::from_millis(self.config.keep_alive_ms)).filter(|interval| !interval.is_zero())
    }

    /// What the routers have booked, over all models.
    pub(crate) fn booked(&self) -> Vec<(WorkerRank, BookedLoad)> {
        self.catalog.all().iter().flat_map(|model| model.router.loads()).collect()
    }
}
