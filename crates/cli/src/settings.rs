//! The configuration of `dynamo serve`: one struct, and what is said about its keys.

use dynamo_runtime::config::{Key, Schema, nearest};
use dynamo_runtime::logging::Format;
use dynamo_text::parsers;
use serde::{Deserialize, Serialize};

/// Everything that can be set about `dynamo serve`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) model: Option<String>,
    pub(crate) served_model_name: Option<String>,
    pub(crate) engine: Engine,
    pub(crate) script: Option<String>,
    pub(crate) workers: u32,
    pub(crate) namespace: String,
    pub(crate) log_format: Format,
    pub(crate) frontend: dynamo_frontend::Config,
    pub(crate) router: dynamo_router::Config,
    pub(crate) worker: WorkerSettings,
}

/// Which engine a worker runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Engine {
    /// Real tokens from a real model, on the CPU.
    #[default]
    Embedded,
    /// Timing and block bookkeeping of an engine, without one.
    Mock,
    /// Emits what a script says.
    Scripted,
}

/// What is alike for all workers of the process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct WorkerSettings {
    /// 0: cores divided by workers, at least 1.
    pub(crate) threads: u32,
    pub(crate) block_size: u32,
    pub(crate) kv_blocks: u32,
    pub(crate) max_num_seqs: u32,
    pub(crate) max_num_batched_tokens: u32,
    pub(crate) max_waiting: u32,
    pub(crate) prefix_caching: bool,
    /// Speed of the mock engine as a multiple of its timing model.
    pub(crate) mock_speedup_ratio: f64,
    pub(crate) tool_parser: Option<String>,
    pub(crate) reasoning_parser: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            model: None,
            served_model_name: None,
            engine: Engine::default(),
            script: None,
            workers: 2,
            namespace: "dynamo".into(),
            log_format: Format::default(),
            frontend: dynamo_frontend::Config::default(),
            router: dynamo_router::Config::default(),
            worker: WorkerSettings::default(),
        }
    }
}

impl Default for WorkerSettings {
    fn default() -> Self {
        Self {
            threads: 0,
            block_size: 16,
            // 32,768 tokens: 720 MiB of address space for the default model, taken from memory only as it is used.
            kv_blocks: 2048,
            max_num_seqs: 256,
            // One step's prefill: on one core about a third of a second, which bounds the wait of running streams.
            max_num_batched_tokens: 512,
            max_waiting: 4096,
            prefix_caching: true,
            mock_speedup_ratio: 1.0,
            tool_parser: None,
            reasoning_parser: None,
        }
    }
}

/// Limits of what can be asked of one process.
const MAX_WORKERS: u32 = 256;
/// 268 million tokens at 16 per block; bookkeeping for so many takes about a gigabyte.
const MAX_KV_BLOCKS: u32 = 1 << 24;

impl Settings {
    /// Refuses combinations that cannot work, in one line.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !(1..=MAX_WORKERS).contains(&self.workers) {
            return Err(format!("workers: expected 1 to {MAX_WORKERS}, found {}", self.workers));
        }
        if self.engine == Engine::Scripted && self.script.is_none() {
            return Err("script: --engine scripted needs --script FILE, found none".into());
        }
        let positive = [
            ("worker.block_size", self.worker.block_size),
            ("worker.kv_blocks", self.worker.kv_blocks),
            ("worker.max_num_seqs", self.worker.max_num_seqs),
            ("worker.max_num_batched_tokens", self.worker.max_num_batched_tokens),
        ];
        if self.worker.kv_blocks > MAX_KV_BLOCKS {
            let found = self.worker.kv_blocks;
            return Err(format!("worker.kv_blocks: expected at most {MAX_KV_BLOCKS}, found {found}"));
        }
        if let Some((key, _)) = positive.into_iter().find(|(_, value)| *value == 0) {
            return Err(format!("{key}: expected at least 1, found 0"));
        }
        let (tool, reasoning) = (&self.worker.tool_parser, &self.worker.reasoning_parser);
        known("worker.tool_parser", tool.as_deref(), parsers::tool_names())?;
        known("worker.reasoning_parser", reasoning.as_deref(), parsers::reasoning_names())
    }

    pub(crate) fn threads_per_worker(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        match self.worker.threads {
            0 => (cores / self.workers as usize).max(1),
            threads => threads as usize,
        }
    }
}

/// Refuses a name that is not among `names`.
fn known(key: &str, name: Option<&str>, names: impl Iterator<Item = &'static str>) -> Result<(), String> {
    let Some(name) = name else { return Ok(()) };
    let names: Vec<&str> = names.collect();
    if names.contains(&name) {
        return Ok(());
    }
    let meant = nearest(name, names.iter().copied()).unwrap_or_default();
    Err(format!("{key}: unknown parser `{name}`; did you mean `{meant}`? Known are {}", names.join(", ")))
}

/// What is said about the keys: meaning, flag, and the names under which users of the reference system know them.
pub(crate) fn schema() -> Schema {
    let keys = [
        Key::new("model", "GGUF file or Hugging Face directory").flag("MODEL").env("DYNAMO_MODEL"),
        Key::new("served_model_name", "Name under which clients ask for the model")
            .flag("--served-model-name"),
        Key::new("engine", "`embedded`, `mock` or `scripted`").flag("--engine"),
        Key::new("script", "JSON file of scripts for the scripted engine").flag("--script"),
        Key::new("workers", "Workers in this process; they share the weights").flag("--workers"),
        Key::new("namespace", "Namespace under which the workers register").env("DYN_NAMESPACE"),
        Key::new("log_format", "`human` or `json`").flag("--log-format").env("DYN_LOGGING_CONSOLE_FORMAT"),
    ];
    let keys = keys.into_iter().chain(frontend_keys()).chain(router_keys()).chain(worker_keys());
    Schema::new(keys).other_env(&["DYN_LOG"])
}

fn frontend_keys() -> impl Iterator<Item = Key> {
    [
        Key::new("frontend.host", "Address to listen on").flag("--host").env("DYN_HTTP_HOST"),
        Key::new("frontend.port", "Port to listen on; 0 takes a free one")
            .flag("--port")
            .env("DYN_HTTP_PORT"),
        Key::new("frontend.body_limit_bytes", "Largest request body; 413 above it")
            .scaled_env("DYN_HTTP_BODY_LIMIT_MB", 1024 * 1024),
        Key::new("frontend.body_memory_bytes", "All bodies being read at once; 503 above it"),
        Key::new("frontend.header_limit_bytes", "Request line and headers; 431 above it"),
        Key::new("frontend.header_count_limit", "Number of headers; 431 above it"),
        Key::new("frontend.header_timeout_ms", "Longest wait for a complete request head"),
        Key::new("frontend.body_timeout_ms", "Longest pause inside a request body"),
        Key::new(
            "frontend.write_timeout_ms",
            "A client that reads nothing of its answer for this long is dropped",
        ),
        Key::new("frontend.api_keys_file", "File of API keys, one a line; requests without one get 401")
            .flag("--api-keys-file"),
        Key::new("frontend.max_connections", "Open client connections"),
        Key::new("frontend.unknown_fields", "Request fields nobody knows: `ignore`, `warn` or `reject`"),
        Key::new("frontend.limits.stop", "Most stop strings of one request"),
        Key::new("frontend.limits.n", "Most choices of one request"),
        Key::new("frontend.limits.prompts", "Most prompts of one completions request"),
        Key::new("frontend.overload_status", "HTTP status when everything is full")
            .env("DYN_HTTP_OVERLOAD_STATUS_CODE"),
        Key::new("frontend.keep_alive_ms", "Quiet time after which a stream gets a comment; 0 never")
            .env("DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS"),
        Key::new(
            "frontend.silence_timeout_ms",
            "A worker that shows no sign of life for this long has failed; 0 never",
        )
        .scaled_env("DYN_HTTP_BACKEND_STREAM_TIMEOUT_SECS", 1000),
        Key::new("frontend.max_attempts", "Workers one request may be sent to before it fails"),
        Key::new("frontend.drain_deadline_ms", "Time running requests get to finish once a drain began")
            .scaled_env("DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS", 1000),
    ]
    .into_iter()
}

fn router_keys() -> impl Iterator<Item = Key> {
    [
        Key::new("router.mode", "`kv`, `round-robin`, `random`, `least-loaded` or `power-of-two`")
            .flag("--router-mode")
            .env("DYN_ROUTER_MODE"),
        Key::new("router.overlap_score_credit", "Blocks of prefill forgiven per block cached on the device"),
        Key::new("router.overlap_score_credit_decay", "How fast the credit fades with queued prefill"),
        Key::new("router.host_weight", "Blocks forgiven per block in host memory"),
        Key::new("router.disk_weight", "Blocks forgiven per block on disk"),
        Key::new("router.shared_weight", "Blocks forgiven per block in a cache all workers share"),
        Key::new("router.prefill_load_scale", "Weight of a block to prefill against one to decode"),
        Key::new("router.decode_active_request_weight", "Cost of each request in flight"),
        Key::new("router.temperature", "0 takes the cheapest; above, the choice is drawn")
            .env("DYN_ROUTER_TEMPERATURE"),
        Key::new("router.assume_kv_reuse", "Requests with a common prefix share its blocks on a worker"),
        Key::new("router.track_output_blocks", "Count a block each time an answer crosses a block boundary")
            .env("DYN_ROUTER_TRACK_OUTPUT_BLOCKS"),
        Key::new("router.breaker_failures", "Faults in a row after which a worker is suspended"),
        Key::new("router.breaker_open_ms", "For how long"),
    ]
    .into_iter()
}

fn worker_keys() -> impl Iterator<Item = Key> {
    [
        Key::new("worker.threads", "Threads of each worker; 0: cores / workers").flag("--threads"),
        Key::new("worker.block_size", "Tokens per KV block, a multiple of 16 for the embedded engine")
            .env("DYN_KV_CACHE_BLOCK_SIZE"),
        Key::new("worker.kv_blocks", "KV blocks of each worker").flag("--kv-blocks"),
        Key::new("worker.max_num_seqs", "Requests that advance together on one worker"),
        Key::new("worker.max_num_batched_tokens", "Rows of one engine step, prefill and decode together"),
        Key::new("worker.max_waiting", "Requests one worker holds back; 529 above it"),
        Key::new("worker.prefix_caching", "Reuse the KV of prompts that begin alike"),
        Key::new("worker.tool_parser", "How the model writes tool calls: a parser's name, such as `hermes`")
            .flag("--tool-parser"),
        Key::new(
            "worker.reasoning_parser",
            "How the model marks its reasoning: a parser's name, such as `qwen3`",
        )
        .flag("--reasoning-parser"),
        Key::new("worker.mock_speedup_ratio", "Speed of the mock engine as a multiple of its timing model"),
    ]
    .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senseless_sizes_are_refused_with_key_limit_and_value() {
        let with = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings.check().unwrap_err()
        };
        let refused = with(|settings| settings.worker.kv_blocks = u32::MAX);
        assert_eq!(refused, "worker.kv_blocks: expected at most 16777216, found 4294967295");
        assert_eq!(with(|settings| settings.workers = 0), "workers: expected 1 to 256, found 0");
        assert!(with(|settings| settings.worker.kv_blocks = 0).contains("worker.kv_blocks"));
        assert_eq!(Settings::default().check(), Ok(()));
    }
}
