//! One worker: an engine on the request plane, its events on the event plane, its record in discovery.

use crate::admission::{Admission, Limits};
use crate::canary::{self, Pulse};
use crate::engine::{Engine, draining, refuse};
use crate::metrics::{MeteredSink, Metrics, Series};
use crate::publisher::Publisher;
use crate::traced::Traced;
use dynamo_runtime::discovery::{self, Discovery, Registration};
use dynamo_runtime::events::{EventPlane, zmq};
use dynamo_runtime::plane::{Handler, InProcess, ServeGuard};
use dynamo_runtime::trace::Tracer;
use dynamo_types::{
    DeltaSink, Instance, InstanceId, ModelCard, ModelRecord, Request, Result, StepObserver, Transport,
    WorkerRank,
};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// Who a worker is.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    pub instance_id: InstanceId,
    pub namespace: String,
    /// `backend` for aggregated and decode workers.
    pub component: String,
    pub endpoint: String,
    /// How others reach it. Whatever this says, the worker is served on the plane of its process.
    pub transport: Transport,
    /// Names this life of the worker: whoever restarts under the same id must choose another (R33). Time of the start
    /// serves.
    pub epoch: u64,
    /// Reported as it is; none: there was nothing to load.
    pub model_load_time_s: Option<f64>,
    /// None: its engine decides what it takes.
    pub limits: Option<Limits>,
    /// None: its engine is not asked how it does.
    pub canary: Option<canary::Options>,
    /// Where KV events are published besides the event plane.
    pub zmq: Option<Arc<zmq::Publisher>>,
}

impl WorkerOptions {
    /// With the conventional names of an aggregated worker (behaviour.md 3.1).
    pub fn new(instance_id: InstanceId, epoch: u64) -> Self {
        Self {
            instance_id,
            namespace: "dynamo".into(),
            component: "backend".into(),
            endpoint: "generate".into(),
            transport: Transport::InProcess,
            epoch,
            model_load_time_s: None,
            limits: None,
            canary: None,
            zmq: None,
        }
    }
}

/// What a worker plugs into.
#[derive(Clone)]
pub struct Services {
    pub plane: InProcess,
    pub discovery: Arc<dyn Discovery>,
    pub events: Arc<dyn EventPlane>,
    pub metrics: Metrics,
    pub tracer: Tracer,
}

/// Why a worker did not start.
#[derive(Debug)]
pub enum Error {
    /// The engine could not be made.
    Engine(Box<dyn std::error::Error + Send + Sync>),
    /// Discovery refused the record.
    Discovery(discovery::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine(error) => write!(f, "the engine did not start: {error}"),
            Self::Discovery(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for Error {}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Everything that ran came to its end.
    Finished,
    /// The deadline came first; this many requests are still running.
    Deadline { in_flight: usize },
}

/// A running worker. Dropping it withdraws it first, then ends its engine; what still ran breaks off, which callers see
/// as a retryable fault.
pub struct Worker {
    // Dropped in this order: nobody is sent here any more, nobody gets in any more, then the engine ends.
    canary: Option<Watching>,
    registration: Arc<Registration>,
    serving: ServeGuard,
    intake: Arc<Intake>,
    record: ModelRecord,
}

impl Worker {
    /// Makes an engine with `build`, which gets the observer that the engine must report to, serves it, and registers
    /// it last: what is listed can be called (R28).
    pub async fn start<E>(
        build: impl FnOnce(Arc<dyn StepObserver>) -> Result<Arc<dyn Engine>, E>,
        options: WorkerOptions,
        services: &Services,
    ) -> Result<Self, Error>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let instance = Instance {
            namespace: options.namespace,
            component: options.component,
            endpoint: options.endpoint,
            id: options.instance_id,
            transport: options.transport,
            draining: false,
            fault: None,
        };
        let source = WorkerRank::new(instance.id, 0);
        let events = Arc::clone(&services.events);
        let pulse = Arc::new(Pulse::new());
        let publisher =
            Publisher::new(services.plane.clone(), events, source, options.epoch, Arc::clone(&pulse));
        let publisher = Arc::new(publisher.and_over(options.zmq));
        let observer = Arc::clone(&publisher) as Arc<dyn StepObserver>;
        let engine = build(observer).map_err(|error| Error::Engine(error.into()))?;
        let series = services.metrics.series(&instance, &engine.card().name);
        publisher.count_into(&series);
        series.load_time.set(options.model_load_time_s.unwrap_or(0.0));
        let load = engine.load();
        series.set_load(&load);
        services.events.publish_load(source, load);
        let card = Arc::clone(engine.card());
        let intake = Arc::new(Intake {
            engine,
            admission: Admission::new(options.limits, Arc::clone(&series)),
            pulse,
            series,
            draining: AtomicBool::new(false),
            instance: instance.clone(),
            tracer: services.tracer.clone(),
        });
        let serving = services.plane.serve(instance.id, Arc::clone(&intake) as Arc<dyn Handler>);
        let record = ModelRecord { instance, card };
        let registration = services.discovery.register(record.clone()).await.map_err(Error::Discovery)?;
        let registration = Arc::new(registration);
        let canary = options.canary.map(|options| Watching::start(&intake, &registration, options));
        Ok(Self { canary, registration, serving, intake, record })
    }

    pub fn id(&self) -> InstanceId {
        self.record.instance.id
    }

    pub fn card(&self) -> &Arc<ModelCard> {
        &self.record.card
    }

    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.intake.engine
    }

    /// Requests whose engine still holds their sink.
    pub fn in_flight(&self) -> usize {
        self.serving.in_flight()
    }

    /// Takes nothing new from now on.
    pub fn begin_drain(&self) {
        if !self.intake.draining.swap(true, Ordering::AcqRel) {
            if let Some(canary) = &self.canary {
                canary.0.abort();
            }
            self.registration.set_draining();
            self.intake.engine.begin_drain();
        }
    }

    /// Takes nothing new and waits until what runs has ended, at most this long (R29). The record stays, marked as
    /// draining, so that frontends keep what they know of the streams they accepted.
    pub async fn drain(&self, deadline: Duration) -> Drained {
        let begun = Instant::now();
        self.begin_drain();
        let idle = tokio::time::timeout(deadline, self.serving.idle()).await;
        self.intake.series.drain_time.set(begun.elapsed().as_secs_f64());
        match idle {
            Ok(()) => Drained::Finished,
            Err(_) => Drained::Deadline { in_flight: self.in_flight() },
        }
    }
}

/// Where calls come in.
/// Watches over the engine until dropped.
struct Watching(AbortHandle);

impl Watching {
    fn start(intake: &Intake, registration: &Arc<Registration>, options: canary::Options) -> Self {
        let (engine, registration) = (Arc::downgrade(&intake.engine), Arc::downgrade(registration));
        let (pulse, series) = (Arc::clone(&intake.pulse), Arc::downgrade(&intake.series));
        Self(tokio::spawn(canary::watch(engine, pulse, registration, series, options)).abort_handle())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Intake {
    engine: Arc<dyn Engine>,
    admission: Arc<Admission>,
    pulse: Arc<Pulse>,
    series: Arc<Series>,
    draining: AtomicBool,
    instance: Instance,
    tracer: Tracer,
}

impl Handler for Intake {
    fn handle(&self, request: Arc<Request>, sink: Box<dyn DeltaSink>) -> Result<()> {
        self.series.requests.inc();
        let traced = Traced::new(&self.tracer, &self.instance, &request);
        let log = traced.log().clone();
        let draining = if self.draining.load(Ordering::Acquire) { Err(draining()) } else { Ok(()) };
        let (room, refused) = match draining.and_then(|()| self.admission.admit()) {
            Ok(room) => (Some(room), None),
            Err(error) => (None, Some(error)),
        };
        let (series, pulse) = (Arc::clone(&self.series), Arc::clone(&self.pulse));
        let sink = MeteredSink::new(sink, Arc::clone(&request), series, traced, pulse, room);
        if let Some(error) = refused {
            return refuse(Box::new(sink), error);
        }
        log.in_scope(|| self.engine.submit(request, Box::new(sink)))
    }
}

#[cfg(test)]
mod care_tests;
#[cfg(test)]
mod tests;
