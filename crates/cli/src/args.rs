//! The command line: what can be typed, and which configuration key each flag sets.

use clap::{Args, Parser, Subcommand};

/// Distributed inference runtime: one binary, every role.
#[derive(Debug, Parser)]
#[command(name = "dynamo", version, arg_required_else_help = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The whole system in one process: frontend, router and workers around one model
    Serve(Box<ServeArgs>),
    /// HTTP, routing and text, for workers in other processes
    Frontend(Box<FrontendArgs>),
    /// Choosing workers for other gateways, over HTTP
    Router(Box<RouterArgs>),
    /// Engines, for frontends in other processes
    Worker(Box<WorkerArgs>),
    /// Show models and workers of a running server
    Status(crate::status::StatusArgs),
    /// Talk to a running server from the terminal
    Chat(crate::chat::ChatArgs),
}

/// The whole system.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) worker: WorkerFlags,
    #[command(flatten)]
    pub(crate) frontend: FrontendFlags,
    #[command(flatten)]
    pub(crate) common: CommonFlags,
}

/// A frontend alone.
#[derive(Debug, Args)]
pub(crate) struct FrontendArgs {
    #[command(flatten)]
    pub(crate) frontend: FrontendFlags,
    #[command(flatten)]
    pub(crate) common: CommonFlags,
}

/// The selection service.
#[derive(Debug, Args)]
pub(crate) struct RouterArgs {
    /// Address to listen on [default: 127.0.0.1]
    #[arg(long, value_name = "HOST")]
    host: Option<String>,

    /// Port to listen on; 0 takes a free one [default: 8092]
    #[arg(long, value_name = "PORT")]
    port: Option<String>,

    /// File of API keys, one a line; requests without one get 401 [default: everybody may ask]
    #[arg(long, value_name = "FILE")]
    api_keys_file: Option<String>,

    /// kv, round-robin, random, least-loaded or power-of-two [default: kv]
    #[arg(long, value_name = "MODE")]
    router_mode: Option<String>,

    #[command(flatten)]
    pub(crate) common: CommonFlags,
}

/// Workers alone.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    #[command(flatten)]
    pub(crate) worker: WorkerFlags,
    #[command(flatten)]
    pub(crate) common: CommonFlags,
}

/// What is said about workers.
#[derive(Debug, Args)]
pub(crate) struct WorkerFlags {
    /// GGUF file or Hugging Face directory; default: $DYNAMO_MODEL, then the model fetched by `make model`. The mock engine
    /// takes its tokenizer and template, no weights
    pub(crate) model: Option<String>,

    /// Name under which clients ask for the model [default: from the file]
    #[arg(long, value_name = "NAME")]
    served_model_name: Option<String>,

    /// Workers in this process; they share the weights [default: 2]
    #[arg(long, value_name = "N")]
    workers: Option<String>,

    /// Threads of each worker [default: cores / workers, at least 1]
    #[arg(long, value_name = "N")]
    threads: Option<String>,

    /// embedded, mock or scripted [default: embedded]
    #[arg(long, value_name = "ENGINE")]
    engine: Option<String>,

    /// For `--engine scripted`: JSON file of scripts
    #[arg(long, value_name = "FILE")]
    script: Option<String>,

    /// KV blocks of each worker [default: 2048]
    #[arg(long, value_name = "N")]
    kv_blocks: Option<String>,

    /// How the model writes tool calls, such as hermes [default: calls stay in the text]
    #[arg(long, value_name = "NAME")]
    tool_parser: Option<String>,

    /// How the model marks its reasoning, such as qwen3 [default: reasoning stays in the text]
    #[arg(long, value_name = "NAME")]
    reasoning_parser: Option<String>,

    /// Address on which frontends reach the workers of this process [default: 127.0.0.1]
    #[arg(long, value_name = "HOST")]
    request_plane_host: Option<String>,

    /// Port for frontends; 0 takes a free one [default: 0]
    #[arg(long, value_name = "PORT")]
    request_plane_port: Option<String>,
}

/// What is said about the frontend and its router.
#[derive(Debug, Args)]
pub(crate) struct FrontendFlags {
    /// Address to listen on [default: 127.0.0.1]
    #[arg(long, value_name = "HOST")]
    host: Option<String>,

    /// Port to listen on; 0 takes a free one [default: 8000]
    #[arg(long, value_name = "PORT")]
    port: Option<String>,

    /// Port for KServe's v2 gRPC service; 0 takes a free one [default: no gRPC]
    #[arg(long, value_name = "PORT")]
    grpc_port: Option<String>,

    /// File of API keys, one a line; requests without one get 401 [default: everybody may ask]
    #[arg(long, value_name = "FILE")]
    api_keys_file: Option<String>,

    /// Certificate chain of the server, PEM; with --tls-key-path the port speaks HTTPS only [default: plain HTTP]
    #[arg(long, value_name = "FILE")]
    tls_cert_path: Option<String>,

    /// Private key of that certificate, PEM
    #[arg(long, value_name = "FILE")]
    tls_key_path: Option<String>,

    /// Authorities of clients' certificates, PEM: clients without one are refused (mutual TLS)
    #[arg(long, value_name = "FILE")]
    tls_client_ca_cert_path: Option<String>,

    /// How often an answer may move to another worker when its own fails; 0 never [default: 3]
    #[arg(long, value_name = "N")]
    migration_limit: Option<String>,

    /// Longest prompt and answer together, in tokens, that move [default: no limit]
    #[arg(long, value_name = "N")]
    migration_max_seq_len: Option<String>,

    /// kv, round-robin, random, least-loaded or power-of-two [default: kv]
    #[arg(long, value_name = "MODE")]
    router_mode: Option<String>,

    /// Share of its KV blocks in use, 0 to 1, above which a worker gets nothing new [default: no limit]
    #[arg(long, value_name = "SHARE")]
    active_decode_blocks_threshold: Option<String>,

    /// Prompt tokens waiting to be computed, above which a worker gets nothing new [default: no limit]
    #[arg(long, value_name = "N")]
    active_prefill_tokens_threshold: Option<String>,

    /// The same as a multiple of the tokens of one engine step [default: no limit]
    #[arg(long, value_name = "X")]
    active_prefill_tokens_threshold_frac: Option<String>,
}

/// What every role can be told.
#[derive(Debug, Args)]
pub(crate) struct CommonFlags {
    /// Where processes find each other: memory (this process only), file (this host) or etcd [default: memory for `serve`, else file]
    #[arg(long, value_name = "BACKEND")]
    discovery_backend: Option<String>,

    /// How frontends reach workers: tcp or nats (see NATS_SERVER) [default: tcp]
    #[arg(long, value_name = "TRANSPORT")]
    request_plane: Option<String>,

    /// Directory of the file backend [default: dynamo_store_kv in the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    discovery_path: Option<String>,

    /// human or json [default: human]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,

    /// TOML file with any of the keys that --print-config shows
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<String>,

    /// Any configuration key, e.g. --set frontend.body_limit_bytes=67108864 (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Print the effective configuration, with the origin of each value, and exit
    #[arg(long)]
    pub(crate) print_config: bool,

    /// With --print-config: as JSON. While serving: print the start-up facts as one JSON line
    #[arg(long)]
    pub(crate) json: bool,
}

impl WorkerFlags {
    fn named(&self) -> Vec<(&'static str, &Option<String>)> {
        vec![
            ("model", &self.model),
            ("served_model_name", &self.served_model_name),
            ("workers", &self.workers),
            ("worker.threads", &self.threads),
            ("engine", &self.engine),
            ("script", &self.script),
            ("worker.kv_blocks", &self.kv_blocks),
            ("worker.tool_parser", &self.tool_parser),
            ("worker.reasoning_parser", &self.reasoning_parser),
            ("request_plane.host", &self.request_plane_host),
            ("request_plane.port", &self.request_plane_port),
        ]
    }
}

impl FrontendFlags {
    fn named(&self) -> Vec<(&'static str, &Option<String>)> {
        vec![
            ("frontend.host", &self.host),
            ("frontend.port", &self.port),
            ("frontend.grpc_port", &self.grpc_port),
            ("frontend.api_keys_file", &self.api_keys_file),
            ("frontend.tls_cert_path", &self.tls_cert_path),
            ("frontend.tls_key_path", &self.tls_key_path),
            ("frontend.tls_client_ca_cert_path", &self.tls_client_ca_cert_path),
            ("frontend.migration_limit", &self.migration_limit),
            ("frontend.migration_max_seq_len", &self.migration_max_seq_len),
            ("router.mode", &self.router_mode),
            ("router.active_decode_blocks_threshold", &self.active_decode_blocks_threshold),
            ("router.active_prefill_tokens_threshold", &self.active_prefill_tokens_threshold),
            ("router.active_prefill_tokens_threshold_frac", &self.active_prefill_tokens_threshold_frac),
        ]
    }
}

impl CommonFlags {
    /// The flags of a role as `(configuration key, value)`.
    fn overrides(
        &self,
        of_the_role: Vec<(&'static str, &Option<String>)>,
    ) -> Result<Vec<(String, String)>, String> {
        let common = [
            ("discovery.backend", &self.discovery_backend),
            ("discovery.path", &self.discovery_path),
            ("request_plane.transport", &self.request_plane),
            ("log_format", &self.log_format),
        ];
        let mut overrides: Vec<(String, String)> = of_the_role
            .into_iter()
            .chain(common)
            .filter_map(|(key, value)| value.clone().map(|value| (key.to_owned(), value)))
            .collect();
        for pair in &self.set {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(format!("--set {pair}: expected KEY=VALUE, found no '='"));
            };
            overrides.push((key.trim().to_owned(), value.to_owned()));
        }
        Ok(overrides)
    }
}

/// What a role was told on the command line.
pub(crate) trait RoleArgs {
    fn common(&self) -> &CommonFlags;
    /// The flags as `(configuration key, value)`.
    fn overrides(&self) -> Result<Vec<(String, String)>, String>;
}

impl RoleArgs for ServeArgs {
    fn common(&self) -> &CommonFlags {
        &self.common
    }

    fn overrides(&self) -> Result<Vec<(String, String)>, String> {
        let mut named = self.worker.named();
        named.extend(self.frontend.named());
        self.common.overrides(named)
    }
}

impl RoleArgs for FrontendArgs {
    fn common(&self) -> &CommonFlags {
        &self.common
    }

    fn overrides(&self) -> Result<Vec<(String, String)>, String> {
        self.common.overrides(self.frontend.named())
    }
}

impl RoleArgs for RouterArgs {
    fn common(&self) -> &CommonFlags {
        &self.common
    }

    fn overrides(&self) -> Result<Vec<(String, String)>, String> {
        self.common.overrides(vec![
            ("frontend.host", &self.host),
            ("selection.port", &self.port),
            ("frontend.api_keys_file", &self.api_keys_file),
            ("router.mode", &self.router_mode),
        ])
    }
}

impl RoleArgs for WorkerArgs {
    fn common(&self) -> &CommonFlags {
        &self.common
    }

    fn overrides(&self) -> Result<Vec<(String, String)>, String> {
        self.common.overrides(self.worker.named())
    }
}
