//! What can be set about a frontend.

use dynamo_protocols::UnknownFields;
use dynamo_protocols::limits::Limits;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Settings of one frontend. Every limit a client can run into is here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Address to listen on. The default is reachable from this machine only.
    pub host: String,
    /// 0 takes any free port.
    pub port: u16,
    /// Port for KServe's v2 gRPC service, at the same host; 0 takes any free port. None: no gRPC.
    pub grpc_port: Option<u16>,
    /// Largest request body; 413 above it.
    pub body_limit_bytes: usize,
    /// Bytes that all requests together may hold while their bodies are being read; 503 above it. Keeps many large
    /// uploads from taking the process's memory.
    pub body_memory_bytes: usize,
    /// Request line and headers together; 431 above it.
    pub header_limit_bytes: usize,
    /// Number of request headers; 431 above it.
    pub header_count_limit: usize,
    /// A connection without a complete request head for this long is closed: the limit for slow headers and for idle
    /// kept-alive connections. Above the 60 s that common proxies keep idle connections to their upstreams.
    pub header_timeout_ms: u64,
    /// Longest pause between two pieces of a request body.
    pub body_timeout_ms: u64,
    /// A connection whose client reads nothing of a waiting answer for this long is closed.
    pub write_timeout_ms: u64,
    /// File of API keys, one a line; requests without one of them get 401, except for `/`, `/health` and `/live`. Read
    /// again when it changes. None: everybody may ask.
    pub api_keys_file: Option<PathBuf>,
    /// Certificate chain of the server, as PEM; with it and `tls_key_path` the port speaks TLS only. All three files are
    /// read again when they change.
    pub tls_cert_path: Option<PathBuf>,
    /// Private key of that certificate, as PEM.
    pub tls_key_path: Option<PathBuf>,
    /// Authorities that sign clients' certificates, as PEM. With it, a client without one is refused (mutual TLS).
    pub tls_client_ca_cert_path: Option<PathBuf>,
    /// A connection whose TLS handshake takes longer is closed.
    pub tls_handshake_timeout_ms: u64,
    /// Open client connections; further ones wait in the kernel's accept queue.
    pub max_connections: usize,
    /// What happens to request fields nobody knows (R10).
    pub unknown_fields: UnknownFields,
    /// Limits on request fields that may be set; the others stand in [`dynamo_protocols::limits::TABLE`].
    pub limits: Limits,
    /// No `/busy_threshold`: 404.
    pub disable_admin_api: bool,
    /// `nvext` in bodies and routing in headers say nothing, but for what keeps caches apart.
    pub disable_nvext: bool,
    /// The log line of a request holds what the client sent, prompts included, up to 64 KiB of it.
    pub log_prompts: bool,
    /// HTTP status when everything that could serve is full. 529 is not registered and some proxies rewrite it.
    pub overload_status: u16,
    /// A stream that has been quiet for this long gets an SSE comment, so that proxies keep it open. 0: never.
    pub keep_alive_ms: u64,
    /// An answer moves to another worker, or fails where it may not, when its worker has shown no sign of life at all - no
    /// token of any request, no load report - for this long, before or between tokens. Queueing behind other work does not
    /// count. 0: wait for ever.
    pub silence_timeout_ms: u64,
    /// An answer that has begun and got no token for this long moves to another worker if one could take it, although its
    /// worker serves others. If none could, it waits, as an engine that ran out of memory lets some answers rest, and ends
    /// after thirty times as long. 0: never.
    pub token_gap_timeout_ms: u64,
    /// A worker that serves others and says nothing of a request for this long is left for another one. Queueing is no
    /// fault, so this is far above every queue. 0: never.
    pub first_answer_timeout_ms: u64,
    /// How often an answer may move to another worker, before or after its first token, until the fault is the client's.
    /// 0: never.
    pub migration_limit: u32,
    /// Prompt and answer above this many tokens do not move: a long prefill is done again. None: all do.
    pub migration_max_seq_len: Option<u32>,
    /// An answer whose worker died while no other could take it waits this long for one to join. 0: it ends at once.
    pub migration_wait_ms: u64,
    /// Running requests get this long to finish once a drain has begun; the rest end with an error frame.
    pub drain_deadline_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".into(),
            port: 8000,
            grpc_port: None,
            body_limit_bytes: 192 * 1024 * 1024,
            body_memory_bytes: 1024 * 1024 * 1024,
            header_limit_bytes: 64 * 1024,
            header_count_limit: 128,
            header_timeout_ms: 75_000,
            body_timeout_ms: 30_000,
            write_timeout_ms: 60_000,
            api_keys_file: None,
            tls_cert_path: None,
            tls_key_path: None,
            tls_client_ca_cert_path: None,
            tls_handshake_timeout_ms: 10_000,
            max_connections: 16_384,
            unknown_fields: UnknownFields::Warn,
            limits: Limits::default(),
            disable_admin_api: false,
            disable_nvext: false,
            log_prompts: false,
            overload_status: 529,
            keep_alive_ms: 15_000,
            silence_timeout_ms: 30_000,
            token_gap_timeout_ms: 10_000,
            first_answer_timeout_ms: 600_000,
            migration_limit: 3,
            migration_max_seq_len: None,
            migration_wait_ms: 5_000,
            drain_deadline_ms: 30_000,
        }
    }
}
