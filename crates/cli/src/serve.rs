//! `dynamo serve`: frontend, router and workers around one model, in one process.
//!
//! The port is taken first, so that a mistake shows at once and `/health` can say that the model is still loading;
//! then the weights are loaded once for all workers; a worker is listed when it can be called.

use crate::args::ServeArgs;
use crate::settings::{self, Engine, Settings};
use dynamo_frontend::Frontend;
use dynamo_runtime::config::{self, Loaded as Configuration, Sources};
use dynamo_runtime::discovery::{Discovery, Memory};
use dynamo_runtime::events::{EventPlane, Local};
use dynamo_runtime::metrics::Registry;
use dynamo_runtime::plane::{InProcess, RequestPlane};
use dynamo_runtime::shutdown::{EXIT_NOW, Shutdown};
use dynamo_runtime::{discovery, events, logging, plane};
use dynamo_types::{InstanceId, draw};
use dynamo_worker::embedded::{EngineOptions, KvMemory, Loaded};
use dynamo_worker::{Metrics, RealClock, Services, Worker, WorkerOptions, mock, scripted};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// File name of the default model in the cache; `make model` puts it there.
const DEFAULT_MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// How often the progress of loading is redrawn.
const PROGRESS_EVERY: Duration = Duration::from_millis(50);

/// # Errors
/// One line for the person at the terminal; the process exits 2.
pub(crate) fn run(args: &ServeArgs) -> Result<ExitCode, String> {
    let begun = Instant::now();
    let sources = Sources::process(args.config.as_deref().map(Path::new), args.overrides()?)
        .map_err(|error| error.to_string())?;
    let configuration = config::load::<Settings>(&sources, &settings::schema()).map_err(|e| e.to_string())?;
    configuration.value.check()?;
    if args.print_config {
        return print_config(&configuration, args.json);
    }
    logging::init(configuration.value.log_format).map_err(|error| error.to_string())?;
    for warning in &configuration.warnings {
        tracing::warn!("{warning}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the runtime: {error}"))?;
    let outcome = runtime.block_on(serve(&configuration.value, args.json, begun));
    runtime.shutdown_background();
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

/// The in-process planes that everything plugs into.
pub(crate) struct Planes {
    plane: InProcess,
    discovery: Arc<dyn Discovery>,
    events: Arc<dyn EventPlane>,
    pub(crate) registry: Registry,
}

impl Planes {
    pub(crate) fn new() -> Self {
        Self {
            plane: InProcess::new(plane::Options::default()),
            discovery: Arc::new(Memory::new(discovery::Options::default())),
            events: Arc::new(Local::new(events::Options::default())),
            registry: Registry::new(),
        }
    }

    pub(crate) async fn frontend(&self, settings: &Settings) -> Result<Frontend, String> {
        let services = dynamo_frontend::Services {
            plane: Arc::new(self.plane.clone()) as Arc<dyn RequestPlane>,
            discovery: Arc::clone(&self.discovery),
            events: Arc::clone(&self.events),
            router: settings.router.clone(),
            registry: self.registry.clone(),
        };
        Frontend::start(settings.frontend.clone(), services).await.map_err(|error| error.to_string())
    }

    pub(crate) fn worker(&self) -> Result<Services, String> {
        Ok(Services {
            plane: self.plane.clone(),
            discovery: Arc::clone(&self.discovery),
            events: Arc::clone(&self.events),
            metrics: Metrics::new(&self.registry).map_err(|error| error.to_string())?,
        })
    }
}

async fn serve(settings: &Settings, json: bool, begun: Instant) -> Result<ExitCode, String> {
    let shutdown = Shutdown::new();
    let _signals = shutdown.listen().map_err(|error| format!("cannot listen for signals: {error}"))?;
    let planes = Planes::new();
    let frontend = planes.frontend(settings).await?;
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
    shutdown.drain().cancelled().await;
    tracing::info!("draining: new requests are refused, running ones finish; Ctrl-C again stops at once");
    tokio::select! {
        biased;
        () = shutdown.now().cancelled() => Ok(ExitCode::from(u8::try_from(EXIT_NOW).unwrap_or(1))),
        finished = drain(settings, frontend, &workers) => {
            tracing::info!(finished, "stopped");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Frontend first: what it accepted needs the workers to the end.
async fn drain(settings: &Settings, frontend: Frontend, workers: &[Worker]) -> bool {
    let finished = frontend.drain().await;
    let deadline = Duration::from_millis(settings.frontend.drain_deadline_ms);
    for worker in workers {
        worker.drain(if finished { deadline } else { Duration::ZERO }).await;
    }
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

async fn start_workers(settings: &Settings, planes: &Planes) -> Result<Vec<Worker>, String> {
    let services = planes.worker()?;
    let source = Arc::new(load(settings).await?);
    let epoch = u64::try_from(
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() & u128::from(u64::MAX),
    )
    .unwrap_or_default();
    let mut workers = Vec::new();
    for number in 0..settings.workers {
        let mut options = WorkerOptions::new(InstanceId(draw::bits(epoch, u64::from(number))), epoch);
        options.namespace.clone_from(&settings.namespace);
        options.model_load_time_s = source.load_time_s();
        let build = |observer| source.engine(settings, observer);
        let worker = Worker::start(build, options, &services).await.map_err(|error| error.to_string())?;
        workers.push(worker);
    }
    Ok(workers)
}

/// What all workers of the process share.
enum Source {
    Embedded(Box<Loaded>),
    Mock,
    Scripted(Box<scripted::Book>),
}

async fn load(settings: &Settings) -> Result<Source, String> {
    match settings.engine {
        Engine::Mock => Ok(Source::Mock),
        Engine::Scripted => {
            let path = settings.script.clone().unwrap_or_default();
            let mut book = scripted::Book::read(Path::new(&path)).map_err(|error| error.to_string())?;
            if let Some(name) = &settings.served_model_name {
                book.model.clone_from(name);
            }
            // What the settings say wins over the script.
            book.tool_parser = settings.worker.tool_parser.clone().or(book.tool_parser);
            book.reasoning_parser = settings.worker.reasoning_parser.clone().or(book.reasoning_parser);
            Ok(Source::Scripted(Box::new(book)))
        }
        Engine::Embedded => {
            let path = model_path(settings.model.as_deref())?;
            let name = settings.served_model_name.clone();
            // Reading and repacking takes a good part of a second: not on the event loop, which serves /health by now.
            let loading = tokio::task::spawn_blocking(move || {
                let mut progress = Progress::new();
                Loaded::open(&path, name.as_deref(), &mut |done, total| progress.show(done, total))
                    .map_err(|error| error.to_string())
            });
            let mut loaded =
                loading.await.map_err(|error| format!("loading the model failed: {error}"))??;
            loaded.set_parsers(settings.worker.tool_parser.clone(), settings.worker.reasoning_parser.clone());
            Ok(Source::Embedded(Box::new(loaded)))
        }
    }
}

impl Source {
    fn load_time_s(&self) -> Option<f64> {
        match self {
            Self::Embedded(loaded) => Some(loaded.load_time_s()),
            Self::Mock | Self::Scripted(_) => None,
        }
    }

    fn engine(
        &self,
        settings: &Settings,
        observer: Arc<dyn dynamo_types::StepObserver>,
    ) -> Result<Arc<dyn dynamo_worker::Engine>, Box<dyn std::error::Error + Send + Sync>> {
        let worker = &settings.worker;
        Ok(match self {
            Self::Embedded(loaded) => {
                let options = EngineOptions {
                    threads: settings.threads_per_worker(),
                    block_size: worker.block_size,
                    kv: KvMemory::Blocks(worker.kv_blocks),
                    max_num_seqs: worker.max_num_seqs,
                    max_num_batched_tokens: worker.max_num_batched_tokens,
                    max_waiting: worker.max_waiting,
                    prefix_caching: worker.prefix_caching,
                };
                Arc::new(loaded.engine(&options, observer)?)
            }
            Self::Mock => {
                let options = mock::Options {
                    block_size: worker.block_size,
                    num_gpu_blocks: worker.kv_blocks,
                    max_num_seqs: worker.max_num_seqs,
                    max_num_batched_tokens: worker.max_num_batched_tokens,
                    max_waiting: worker.max_waiting,
                    enable_prefix_caching: worker.prefix_caching,
                    speedup_ratio: worker.mock_speedup_ratio,
                    ..mock::Options::default()
                };
                let name = settings.served_model_name.as_deref().unwrap_or("mock");
                let (mut card, options) = mock::card(name, options);
                card.tool_parser.clone_from(&worker.tool_parser);
                card.reasoning_parser.clone_from(&worker.reasoning_parser);
                Arc::new(mock::Mock::new(card, options, &RealClock::new(), observer)?)
            }
            Self::Scripted(book) => {
                Arc::new(scripted::Scripted::new((**book).clone(), Arc::new(RealClock::new()), observer)?)
            }
        })
    }
}

/// The model named, or the one that `make model` fetched.
fn model_path(named: Option<&str>) -> Result<PathBuf, String> {
    if let Some(named) = named {
        return Ok(PathBuf::from(named));
    }
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("DYNAMO_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("dynamo")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/dynamo")))
        .unwrap_or_else(|| PathBuf::from(".cache/dynamo"));
    let path = cache.join("models").join(DEFAULT_MODEL);
    if path.is_file() {
        Ok(path)
    } else {
        Err(format!(
            "no model: expected a path as argument or the default model at {}, found neither; `make model` fetches it",
            path.display()
        ))
    }
}

/// A bar on the standard error stream, if a person is looking.
struct Progress {
    shown: Option<Instant>,
    terminal: bool,
}

impl Progress {
    fn new() -> Self {
        Self { shown: None, terminal: std::io::stderr().is_terminal() }
    }

    fn show(&mut self, done: u64, total: u64) {
        const WIDTH: u64 = 30;
        let finished = done >= total;
        let due = self.shown.is_none_or(|shown| shown.elapsed() >= PROGRESS_EVERY);
        if !self.terminal || !(due || finished) {
            return;
        }
        self.shown = Some(Instant::now());
        let filled = usize::try_from(WIDTH * done.min(total) / total.max(1)).unwrap_or_default();
        let bar = format!("{}{}", "#".repeat(filled), ".".repeat(WIDTH as usize - filled));
        let end = if finished { "\r\x1b[K" } else { "" };
        // A lost bar is no reason to stop.
        let _ = write!(
            std::io::stderr(),
            "\rloading model [{bar}] {} / {} MB{end}",
            done / 1_000_000,
            total / 1_000_000
        );
    }
}

/// What a person needs to go on: where, what, and a request to paste.
fn announce(
    settings: &Settings,
    frontend: &Frontend,
    workers: &[Worker],
    json: bool,
    begun: Instant,
) -> Result<(), String> {
    let url = format!("http://{}", frontend.local_addr());
    let model = frontend.models().into_iter().next().unwrap_or_default();
    let ready_ms = begun.elapsed().as_millis();
    let mode = settings.router.mode;
    if json {
        let facts = serde_json::json!({
            "event": "serving", "url": url, "model": model, "workers": workers.len(),
            "router_mode": mode.name(), "ready_ms": u64::try_from(ready_ms).unwrap_or(u64::MAX),
        });
        return say(&format!("{facts}\n"));
    }
    let body = serde_json::json!({
        "model": model, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0,
    });
    let plural = if workers.len() == 1 { "" } else { "s" };
    // The chat's own default needs no flag.
    let elsewhere = if url == crate::chat::DEFAULT_URL { String::new() } else { format!(" --url {url}") };
    say(&format!(
        "listening on {url}\n\
         serving {model} on {} worker{plural}, {mode} routing, ready in {ready_ms} ms; try\n\n  \
         curl {url}/v1/completions -H 'content-type: application/json' -d '{body}'\n\n\
         or `dynamo chat{elsewhere}`, or open {url} in a browser. Ctrl-C drains and stops.\n",
        workers.len(),
    ))
}
