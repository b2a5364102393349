//! The roles that serve: `dynamo serve`, which is frontend, router and workers around one model in one process, and `dynamo
//! frontend` and `dynamo worker`, which are its halves.
//!
//! The port is taken first, so that a mistake shows at once and `/health` can say that the model is still loading;
//! then the weights are loaded once for all workers; a worker is listed when it can be called.

use crate::args::RoleArgs;
use crate::planes::Planes;
use crate::settings::{self, DiscoveryBackend, Settings};
use crate::workers::start_workers;
use dynamo_frontend::Frontend;
use dynamo_runtime::config::{self, Loaded as Configuration, Sources};
use dynamo_runtime::logging;
use dynamo_runtime::shutdown::{EXIT_NOW, Shutdown};
use dynamo_runtime::system::System;
use dynamo_worker::{Drained, Worker};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What workers serve, by the name in `/health`.
const ENDPOINT: &str = "generate";

/// The last deltas and spans get at least this long, even if the requests took all of the drain.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Which parts of the system this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Whole,
    Frontend,
    Router,
    Worker,
}

/// # Errors
/// How long the end of the process waits for the runtime's threads. They end at their next await; only a computation
/// that was under way takes longer, and nobody is left to want its result.
const THREADS_END_WITHIN: Duration = Duration::from_secs(1);

/// One line for the person at the terminal; the process exits 2.
pub(crate) fn run(role: Role, args: &impl RoleArgs) -> Result<ExitCode, String> {
    let begun = Instant::now();
    let common = args.common();
    let sources = Sources::process(common.config.as_deref().map(Path::new), args.overrides()?)
        .map_err(|error| error.to_string())?;
    let configuration = config::load::<Settings>(&sources, &settings::schema()).map_err(|e| e.to_string())?;
    configuration.value.check()?;
    if common.print_config {
        return print_config(&configuration, common.json);
    }
    logging::init(configuration.value.log_format).map_err(|error| error.to_string())?;
    for warning in &configuration.warnings {
        tracing::warn!("{warning}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the runtime: {error}"))?;
    let settings = &configuration.value;
    let outcome = match role {
        Role::Whole => runtime.block_on(serve(settings, common.json, begun)),
        Role::Frontend | Role::Router => runtime.block_on(front(role, settings, common.json, begun)),
        Role::Worker => runtime.block_on(worker(settings, common.json, begun)),
    };
    // Nothing is logged after the line that says why the process ends.
    runtime.shutdown_timeout(THREADS_END_WITHIN);
    outcome
}

fn print_config(configuration: &Configuration<Settings>, json: bool) -> Result<ExitCode, String> {
    let text = if json {
        let rows: Vec<_> = configuration
            .effective()
            .iter()
            .map(|row| {
                serde_json::json!({"key": row.key, "value": row.value, "origin": row.origin.to_string()})
            })
            .collect();
        format!("{}\n", serde_json::Value::from(rows))
    } else {
        configuration.print()
    };
    say(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn say(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| format!("cannot write to the standard output: {error}"))
}

async fn serve(settings: &Settings, json: bool, begun: Instant) -> Result<ExitCode, String> {
    let shutdown = Shutdown::new();
    let _signals = shutdown.listen().map_err(|error| format!("cannot listen for signals: {error}"))?;
    let planes = Planes::new(settings, DiscoveryBackend::Memory, true).await?;
    let _system = planes.system(settings).await?;
    let _fleet = planes.follow();
    let frontend = planes.frontend(settings).await?;
    planes.health.ask("http", frontend.readiness());
    let workers = tokio::select! {
        biased;
        () = shutdown.drain().cancelled() => return Ok(ExitCode::SUCCESS),
        workers = start_workers(settings, &planes) => workers?,
    };
    tokio::select! {
        biased;
        () = shutdown.drain().cancelled() => return Ok(ExitCode::SUCCESS),
        routable = routable(&frontend) => routable?,
    }
    announce(settings, &frontend, &workers, json, begun)?;
    end(settings, &shutdown, Some(frontend), &workers, planes).await
}

/// `dynamo frontend` serves what workers in other processes register; `dynamo router` chooses among them for gateways that
/// send requests themselves.
async fn front(role: Role, settings: &Settings, json: bool, begun: Instant) -> Result<ExitCode, String> {
    let shutdown = Shutdown::new();
    let _signals = shutdown.listen().map_err(|error| format!("cannot listen for signals: {error}"))?;
    shared(settings)?;
    let planes = Planes::new(settings, DiscoveryBackend::File, false).await?;
    let system = planes.system(settings).await?;
    let _fleet = planes.follow();
    let mode = settings.router.mode;
    let (name, front, purpose) = match role {
        Role::Router => {
            ("router", planes.router(settings).await?, format!("choosing workers by {mode} routing"))
        }
        _ => ("frontend", planes.frontend(settings).await?, "waiting for workers".to_owned()),
    };
    planes.health.ask("http", front.readiness());
    let (url, grpc) = (url(&front), grpc(&front));
    announce_role(name, &format!("{grpc}listening on {url}, {purpose}"), &url, system.as_ref(), json, begun)?;
    end(settings, &shutdown, Some(front), &[], planes).await
}

/// `dynamo worker`: engines for frontends in other processes.
async fn worker(settings: &Settings, json: bool, begun: Instant) -> Result<ExitCode, String> {
    let shutdown = Shutdown::new();
    let _signals = shutdown.listen().map_err(|error| format!("cannot listen for signals: {error}"))?;
    shared(settings)?;
    let planes = Planes::new(settings, DiscoveryBackend::File, true).await?;
    let system = planes.system(settings).await?;
    let workers = tokio::select! {
        biased;
        () = shutdown.drain().cancelled() => return Ok(ExitCode::SUCCESS),
        workers = start_workers(settings, &planes) => workers?,
    };
    planes.health.set(ENDPOINT, true);
    let address = planes.transport().to_string();
    let model = workers.first().map(|worker| worker.card().name.to_string()).unwrap_or_default();
    let plural = if workers.len() == 1 { "" } else { "s" };
    let line = format!("serving {model} on {} worker{plural} at {address}", workers.len());
    announce_role("worker", &line, &address, system.as_ref(), json, begun)?;
    end(settings, &shutdown, None, &workers, planes).await
}

/// Refuses a role by itself that nobody could find.
fn shared(settings: &Settings) -> Result<(), String> {
    match settings.discovery.backend {
        Some(DiscoveryBackend::Memory) => {
            Err("discovery.backend: expected one that other processes share, such as `file`, found `memory`"
                .into())
        }
        _ => Ok(()),
    }
}

/// Waits for the signal, then drains.
async fn end(
    settings: &Settings,
    shutdown: &Shutdown,
    frontend: Option<Frontend>,
    workers: &[Worker],
    planes: Planes,
) -> Result<ExitCode, String> {
    shutdown.drain().cancelled().await;
    tracing::info!("draining: new requests are refused, running ones finish; Ctrl-C again stops at once");
    tokio::select! {
        biased;
        () = shutdown.now().cancelled() => Ok(ExitCode::from(u8::try_from(EXIT_NOW).unwrap_or(1))),
        finished = drain(settings, frontend, workers, planes) => {
            tracing::info!(finished, "stopped");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Frontend first: what it accepted needs the workers to the end. Workers that serve others take nothing new meanwhile.
async fn drain(settings: &Settings, frontend: Option<Frontend>, workers: &[Worker], planes: Planes) -> bool {
    let begun = Instant::now();
    let deadline = Duration::from_millis(settings.frontend.drain_deadline_ms);
    let mut finished = true;
    if let Some(frontend) = frontend {
        finished = frontend.drain().await;
    }
    if !workers.is_empty() {
        planes.health.set(ENDPOINT, false);
    }
    let left = |finished| if finished { deadline.saturating_sub(begun.elapsed()) } else { Duration::ZERO };
    workers.iter().for_each(Worker::begin_drain);
    for worker in workers {
        finished &= worker.drain(left(finished)).await == Drained::Finished;
    }
    // What they said last is with the kernel before the connections go.
    finished &= tokio::time::timeout(left(finished).max(LAST_WORDS), planes.settled()).await.is_ok();
    planes.finish(left(finished).max(LAST_WORDS)).await;
    finished
}

/// Until a request for the model would be served. The frontend has no callback for it: this is asked only while
/// starting.
///
/// # Errors
/// What keeps the model from being served.
async fn routable(frontend: &Frontend) -> Result<(), String> {
    const ASK_EVERY: Duration = Duration::from_millis(2);
    while frontend.models().is_empty() {
        if let Some(fault) = frontend.fault() {
            return Err(fault);
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
    Ok(())
}

/// The line about gRPC, if it is spoken.
fn grpc(frontend: &Frontend) -> String {
    frontend.grpc_addr().map(|address| format!("gRPC (KServe v2) on {address}\n")).unwrap_or_default()
}

fn url(frontend: &Frontend) -> String {
    let scheme = if frontend.is_tls() { "https" } else { "http" };
    format!("{scheme}://{}", frontend.local_addr())
}

/// One line for a person or a machine.
fn announce_role(
    role: &str,
    line: &str,
    address: &str,
    system: Option<&System>,
    json: bool,
    begun: Instant,
) -> Result<(), String> {
    let ready_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let system = system.map(|system| format!("http://{}", system.local_addr()));
    if json {
        let facts =
            serde_json::json!({"event": role, "address": address, "system": system, "ready_ms": ready_ms});
        return say(&format!("{facts}\n"));
    }
    if let Some(url) = system {
        say(&format!("health and metrics on {url}\n"))?;
    }
    say(&format!("{line}, ready in {ready_ms} ms. Ctrl-C drains and stops.\n"))
}

/// What a person needs to go on: where, what, and a request to paste.
fn announce(
    settings: &Settings,
    frontend: &Frontend,
    workers: &[Worker],
    json: bool,
    begun: Instant,
) -> Result<(), String> {
    let url = url(frontend);
    let model = frontend.models().into_iter().next().unwrap_or_default();
    let ready_ms = begun.elapsed().as_millis();
    let mode = settings.router.mode;
    if json {
        let facts = serde_json::json!({
            "event": "serving", "url": url, "grpc": frontend.grpc_addr().map(|address| address.to_string()),
            "model": model, "workers": workers.len(),
            "router_mode": mode.name(), "ready_ms": u64::try_from(ready_ms).unwrap_or(u64::MAX),
        });
        return say(&format!("{facts}\n"));
    }
    let body = serde_json::json!({
        "model": model, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0,
    });
    let plural = if workers.len() == 1 { "" } else { "s" };
    // The chat's own default needs no flag.
    let elsewhere = if url == crate::client::DEFAULT_URL { String::new() } else { format!(" --url {url}") };
    let grpc = grpc(frontend);
    say(&format!(
        "{grpc}listening on {url}\n\
         serving {model} on {} worker{plural}, {mode} routing, ready in {ready_ms} ms; try\n\n  \
         curl {url}/v1/completions -H 'content-type: application/json' -d '{body}'\n\n\
         or `dynamo chat{elsewhere}`, or open {url} in a browser. Ctrl-C drains and stops.\n",
        workers.len(),
    ))
}
