//! The configuration of `dynamo serve`: one struct, and what is said about its keys.

use dynamo_runtime::config::{Key, Schema, nearest};
use dynamo_runtime::logging::Format;
use dynamo_runtime::plane::wire;
use dynamo_runtime::trace;
use dynamo_text::parsers;
use serde::{Deserialize, Serialize};
use std::time::Duration;

mod etcd;
mod nats;
mod plane_tls;
mod system;
mod worker_health;
mod zmq;

pub(crate) use nats::{NatsSettings, RequestTransport};
pub(crate) use system::SystemSettings;

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
    pub(crate) selection: dynamo_frontend::SelectionConfig,
    pub(crate) trace: trace::Options,
    pub(crate) worker: WorkerSettings,
    pub(crate) discovery: DiscoverySettings,
    pub(crate) request_plane: RequestPlaneSettings,
    pub(crate) system: SystemSettings,
    pub(crate) nats: NatsSettings,
}

/// How processes find each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DiscoverySettings {
    /// None: what suits the role.
    pub(crate) backend: Option<DiscoveryBackend>,
    pub(crate) path: Option<String>,
    pub(crate) etcd_endpoints: Option<String>,
    pub(crate) etcd_username: Option<String>,
    pub(crate) etcd_password: Option<String>,
    pub(crate) etcd_lease_s: Option<u64>,
    pub(crate) etcd_connect_timeout_ms: Option<u64>,
}

/// What discovery keeps its records in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DiscoveryBackend {
    /// This process.
    Memory,
    /// A directory that the processes of one host share.
    File,
    /// A service that processes of any host share.
    Etcd,
}

/// How frontends reach workers of other processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RequestPlaneSettings {
    pub(crate) transport: RequestTransport,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// None: the address that is listened on.
    pub(crate) advertised_host: Option<String>,
    pub(crate) token_file: Option<String>,
    pub(crate) connect_timeout_ms: u64,
    pub(crate) beat_ms: u64,
    pub(crate) dead_after_ms: u64,
    pub(crate) tls_cert_path: Option<String>,
    pub(crate) tls_key_path: Option<String>,
    pub(crate) tls_client_ca_cert_path: Option<String>,
    pub(crate) tls_ca_cert_path: Option<String>,
    pub(crate) tls_client_cert_path: Option<String>,
    pub(crate) tls_client_key_path: Option<String>,
    pub(crate) tls_server_name: Option<String>,
}

impl Default for RequestPlaneSettings {
    fn default() -> Self {
        let options = wire::Options::default();
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            transport: RequestTransport::default(),
            host: "127.0.0.1".into(),
            port: 0,
            advertised_host: None,
            token_file: None,
            connect_timeout_ms: ms(options.connect_timeout),
            beat_ms: ms(options.beat_every),
            dead_after_ms: ms(options.dead_after),
            tls_cert_path: None,
            tls_key_path: None,
            tls_client_ca_cert_path: None,
            tls_ca_cert_path: None,
            tls_client_cert_path: None,
            tls_client_key_path: None,
            tls_server_name: None,
        }
    }
}

impl RequestPlaneSettings {
    /// # Errors
    /// One line: the file of the token cannot be used.
    pub(crate) fn options(&self) -> Result<wire::Options, String> {
        Ok(wire::Options {
            connect_timeout: Duration::from_millis(self.connect_timeout_ms),
            beat_every: Duration::from_millis(self.beat_ms),
            dead_after: Duration::from_millis(self.dead_after_ms),
            token: self.token_file.as_deref().map(read_token).transpose()?,
            ..wire::Options::default()
        })
    }

    fn check(&self) -> Result<(), String> {
        let Self { connect_timeout_ms, beat_ms, dead_after_ms, .. } = *self;
        if connect_timeout_ms == 0 {
            return Err("request_plane.connect_timeout_ms: expected at least 1, found 0".into());
        }
        if beat_ms == 0 || dead_after_ms <= beat_ms {
            return Err(format!(
                "request_plane.dead_after_ms: expected more than request_plane.beat_ms, and that at least 1, \
                 found {dead_after_ms} and {beat_ms}"
            ));
        }
        Ok(())
    }
}

/// The secret in a file, without the white space around it.
fn read_token(path: &str) -> Result<String, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("request_plane.token_file: cannot read {path}: {error}"))?;
    let token = text.trim();
    if token.is_empty() {
        return Err(format!("request_plane.token_file: expected a secret in {path}, found nothing"));
    }
    Ok(token.to_owned())
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
    pub(crate) engine_request_limit: Option<u32>,
    pub(crate) engine_request_queue: u32,
    pub(crate) health_check_enabled: bool,
    pub(crate) canary_wait_s: u64,
    pub(crate) health_check_timeout_ms: u64,
    pub(crate) zmq_events_endpoint: Option<String>,
    pub(crate) zmq_replay_endpoint: Option<String>,
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
            selection: dynamo_frontend::SelectionConfig::default(),
            router: dynamo_router::Config::default(),
            trace: trace::Options::default(),
            worker: WorkerSettings::default(),
            discovery: DiscoverySettings::default(),
            request_plane: RequestPlaneSettings::default(),
            system: SystemSettings::default(),
            nats: NatsSettings::default(),
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
            engine_request_limit: None,
            engine_request_queue: 16,
            health_check_enabled: false,
            canary_wait_s: 10,
            health_check_timeout_ms: 3000,
            zmq_events_endpoint: None,
            zmq_replay_endpoint: None,
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
        self.request_plane.check()?;
        self.nats.options(&self.request_plane)?;
        self.discovery.check()?;
        self.system.check()?;
        self.worker.check_health()?;
        self.worker.check_zmq(self.workers)?;
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
    let keys = keys
        .into_iter()
        .chain(frontend_keys())
        .chain(router_keys())
        .chain(selection_keys())
        .chain(trace_keys())
        .chain(worker_keys())
        .chain(zmq::keys())
        .chain(fleet_keys())
        .chain(etcd::keys())
        .chain(plane_tls::keys())
        .chain(nats::keys())
        .chain(system::keys())
        .chain(worker_health::keys());
    Schema::new(keys).other_env(&["DYN_LOG", "DYN_METRICS_*"])
}

fn frontend_keys() -> impl Iterator<Item = Key> {
    [
        Key::new("frontend.host", "Address to listen on").flag("--host").env("DYN_HTTP_HOST"),
        Key::new("frontend.port", "Port to listen on; 0 takes a free one")
            .flag("--port")
            .env("DYN_HTTP_PORT"),
        Key::new(
            "frontend.grpc_port",
            "Port for KServe's v2 gRPC service; unset: no gRPC; 0 takes a free one",
        )
        .flag("--grpc-port"),
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
        Key::new("frontend.tls_cert_path", "Certificate chain of the server (PEM); with its key, HTTPS only")
            .flag("--tls-cert-path")
            .env("DYN_TLS_CERT_PATH"),
        Key::new("frontend.tls_key_path", "Private key of that certificate (PEM)")
            .flag("--tls-key-path")
            .env("DYN_TLS_KEY_PATH"),
        Key::new(
            "frontend.tls_client_ca_cert_path",
            "Authorities of clients' certificates (PEM); clients need one (mutual TLS)",
        )
        .flag("--tls-client-ca-cert-path")
        .env("DYN_TLS_CLIENT_CA_CERT_PATH"),
        Key::new("frontend.tls_handshake_timeout_ms", "Longest TLS handshake"),
        Key::new("frontend.max_connections", "Open client connections"),
        Key::new("frontend.unknown_fields", "Request fields nobody knows: `ignore`, `warn` or `reject`"),
        Key::new("frontend.limits.stop", "Most stop strings of one request"),
        Key::new("frontend.limits.n", "Most choices of one request"),
        Key::new("frontend.limits.prompts", "Most prompts of one completions request"),
        Key::new("frontend.disable_admin_api", "No `/busy_threshold`: 404")
            .env("DYN_DISABLE_FRONTEND_ADMIN_API"),
        Key::new("frontend.disable_nvext", "`nvext` and routing headers say nothing, but for cache salts")
            .env("DYN_DISABLE_FRONTEND_NVEXT"),
        Key::new("frontend.log_prompts", "Requests are logged with what the client sent, prompts included"),
        Key::new("frontend.overload_status", "HTTP status when everything is full")
            .env("DYN_HTTP_OVERLOAD_STATUS_CODE"),
        Key::new("frontend.keep_alive_ms", "Quiet time after which a stream gets a comment; 0 never")
            .env("DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS"),
        Key::new(
            "frontend.silence_timeout_ms",
            "A worker that shows no sign of life for this long has failed; 0 never",
        )
        .scaled_env("DYN_HTTP_BACKEND_STREAM_TIMEOUT_SECS", 1000),
        Key::new("frontend.migration_limit", "How often an answer may move to another worker; 0 never")
            .flag("--migration-limit")
            .env("DYN_MIGRATION_LIMIT"),
        Key::new("frontend.migration_max_seq_len", "Longest prompt and answer, in tokens, that move")
            .flag("--migration-max-seq-len")
            .env("DYN_MIGRATION_MAX_SEQ_LEN"),
        Key::new(
            "frontend.migration_wait_ms",
            "Time an answer whose worker died waits for another one to join, or for it to be heard of again",
        ),
        Key::new(
            "frontend.token_gap_timeout_ms",
            "Time without a token after which an answer moves, if it can; 0 never",
        ),
        Key::new(
            "frontend.first_answer_timeout_ms",
            "Time without a word of a request after which it is asked elsewhere; 0 never",
        ),
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
        Key::new("router.replica_sync", "Frontends know what the others have sent to each worker")
            .env("DYN_ROUTER_REPLICA_SYNC"),
        Key::new("router.breaker_failures", "Faults in a row after which a worker is suspended"),
        Key::new("router.breaker_open_ms", "For how long"),
        Key::new(
            "router.outlier_error_rate",
            "Share of faults, 0 to 1, from which a worker much worse than the others is suspended; 0 never",
        ),
        Key::new(
            "router.outlier_latency_ratio",
            "Multiple of the others' time per token from which a worker is suspended; 0 never",
        ),
        Key::new("router.outlier_window_ms", "Age of the answers it is judged by"),
        Key::new("router.outlier_min_requests", "Answers it takes to judge a worker"),
        Key::new(
            "router.active_decode_blocks_threshold",
            "Share of its KV blocks in use, 0 to 1, above which a worker is busy and gets nothing new",
        )
        .flag("--active-decode-blocks-threshold")
        .env("DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD"),
        Key::new(
            "router.active_prefill_tokens_threshold",
            "Prompt tokens sent there and not computed yet, above which a worker is busy",
        )
        .flag("--active-prefill-tokens-threshold")
        .env("DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD"),
        Key::new(
            "router.active_prefill_tokens_threshold_frac",
            "The same as a multiple of `max_num_batched_tokens`",
        )
        .flag("--active-prefill-tokens-threshold-frac")
        .env("DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC"),
    ]
    .into_iter()
}

fn selection_keys() -> impl Iterator<Item = Key> {
    [
        Key::new("selection.port", "Port of `dynamo router`; 0 takes a free one"),
        Key::new("selection.expiry_ms", "A reservation that nobody mentions for this long is given back")
            .scaled_env("DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS", 1000),
        Key::new("selection.max_reservations", "Reservations at once; 529 above it"),
        Key::new("selection.selection_ttl_ms", "A selection can become a reservation for this long"),
        Key::new("selection.max_selections", "Selections remembered for that; the oldest make room"),
        Key::new("selection.max_selections_bytes", "Memory of their prompts' hashes"),
    ]
    .into_iter()
}

fn trace_keys() -> impl Iterator<Item = Key> {
    [
        Key::new("trace.export", "Send spans to an OpenTelemetry collector").env("OTEL_EXPORT_ENABLED"),
        Key::new("trace.endpoint", "The collector; `/v1/traces` is added").env("OTEL_EXPORTER_OTLP_ENDPOINT"),
        Key::new("trace.traces_endpoint", "The whole address for spans, if it is another one")
            .env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        Key::new("trace.protocol", "`http/protobuf` or `http/json`")
            .env("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
            .env("OTEL_EXPORTER_OTLP_PROTOCOL"),
        Key::new(
            "trace.sampler",
            "`always_on`, `always_off` or `traceidratio`; after `parentbased_`, only where the caller has not decided",
        )
        .env("OTEL_TRACES_SAMPLER"),
        Key::new("trace.sample_ratio", "Share of the traces that begin here, 0 to 1")
            .env("OTEL_TRACES_SAMPLE_RATIO")
            .env("OTEL_TRACES_SAMPLER_ARG"),
        Key::new("trace.service_name", "Under which the spans stand").env("OTEL_SERVICE_NAME"),
        Key::new("trace.queue_spans", "Spans that wait for the collector; further ones are dropped and counted")
            .env("OTEL_BSP_MAX_QUEUE_SIZE"),
        Key::new("trace.batch_spans", "Spans of one request to the collector")
            .env("OTEL_BSP_MAX_EXPORT_BATCH_SIZE"),
        Key::new("trace.delay_ms", "Longest wait of a span for others to go with")
            .env("OTEL_BSP_SCHEDULE_DELAY"),
        Key::new("trace.timeout_ms", "Longest request to the collector").env("OTEL_EXPORTER_OTLP_TIMEOUT"),
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

fn fleet_keys() -> impl Iterator<Item = Key> {
    [
        Key::new(
            "discovery.backend",
            "Where processes find each other: `memory` (this one only), `file` (this host) or `etcd`; default `memory` for `serve`, else `file`",
        )
        .flag("--discovery-backend")
        .env("DYN_DISCOVERY_BACKEND"),
        Key::new("discovery.path", "Directory of the file backend").flag("--discovery-path").env("DYN_FILE_KV"),
        Key::new("request_plane.host", "Address on which frontends reach the workers of this process")
            .flag("--request-plane-host")
            .env("DYN_TCP_RPC_HOST"),
        Key::new("request_plane.port", "Port for frontends; 0 takes a free one")
            .flag("--request-plane-port")
            .env("DYN_TCP_RPC_PORT"),
        Key::new("request_plane.advertised_host", "Host that frontends are told, if it is another one"),
        Key::new(
            "request_plane.token_file",
            "File with the secret that frontends show to workers; both need the same one",
        ),
        Key::new("request_plane.connect_timeout_ms", "Longest wait for a connection to a worker"),
        Key::new("request_plane.beat_ms", "Quiet time after which either side shows that it lives"),
        Key::new("request_plane.dead_after_ms", "Quiet time after which the other side is gone"),
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
