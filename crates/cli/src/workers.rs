//! The workers of this process: a model is loaded once, each worker is an engine of its own over it.

use crate::planes::Planes;
use crate::settings::{Engine, Settings};
use dynamo_model_files::default_model;
use dynamo_types::{InstanceId, draw};
use dynamo_worker::embedded::{EngineOptions, KvMemory, Loaded};
use dynamo_worker::{RealClock, Worker, WorkerOptions, mock, scripted};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often the progress of loading is redrawn.
const PROGRESS_EVERY: Duration = Duration::from_millis(50);

/// Loads, starts and registers them.
///
/// # Errors
/// One line: the model, an engine or the store.
pub(crate) async fn start_workers(settings: &Settings, planes: &Planes) -> Result<Vec<Worker>, String> {
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
        options.transport = planes.transport();
        options.model_load_time_s = source.load_time_s();
        options.limits = settings.worker.limits();
        options.canary = settings.worker.canary();
        options.zmq = settings.worker.zmq_publisher(number).await?;
        let build = |observer| source.engine(settings, observer);
        let worker = Worker::start(build, options, &services).await.map_err(|error| error.to_string())?;
        workers.push(worker);
    }
    Ok(workers)
}

/// What all workers of the process share.
enum Source {
    Embedded(Box<Loaded>),
    /// With the text side of a model, if one is named.
    Mock(Option<Box<mock::Described>>),
    Scripted(Box<scripted::Book>),
}

async fn load(settings: &Settings) -> Result<Source, String> {
    match settings.engine {
        Engine::Mock => {
            let Some(path) = settings.model.as_deref().map(Path::new) else { return Ok(Source::Mock(None)) };
            let described = mock::Described::open(path, settings.served_model_name.as_deref());
            Ok(Source::Mock(Some(Box::new(described.map_err(|error| error.to_string())?))))
        }
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
            Self::Mock(_) | Self::Scripted(_) => None,
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
            Self::Mock(described) => {
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
                let (mut card, options) = match described {
                    Some(described) => described.card(options),
                    None => mock::card(name, options),
                };
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
    let path = default_model();
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
