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
    /// Talk to a running server from the terminal
    Chat(crate::chat::ChatArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// GGUF file or Hugging Face directory; default: $DYNAMO_MODEL, then the model fetched by `make model`
    pub(crate) model: Option<String>,

    /// Name under which clients ask for the model [default: from the file]
    #[arg(long, value_name = "NAME")]
    served_model_name: Option<String>,

    /// Address to listen on [default: 127.0.0.1]
    #[arg(long, value_name = "HOST")]
    host: Option<String>,

    /// Port to listen on; 0 takes a free one [default: 8000]
    #[arg(long, value_name = "PORT")]
    port: Option<String>,

    /// File of API keys, one a line; requests without one get 401 [default: everybody may ask]
    #[arg(long, value_name = "FILE")]
    api_keys_file: Option<String>,

    /// Workers in this process; they share the weights [default: 2]
    #[arg(long, value_name = "N")]
    workers: Option<String>,

    /// Threads of each worker [default: cores / workers, at least 1]
    #[arg(long, value_name = "N")]
    threads: Option<String>,

    /// kv, round-robin, random, least-loaded or power-of-two [default: kv]
    #[arg(long, value_name = "MODE")]
    router_mode: Option<String>,

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

impl ServeArgs {
    /// The flags as `(configuration key, value)`.
    pub(crate) fn overrides(&self) -> Result<Vec<(String, String)>, String> {
        let named = [
            ("model", &self.model),
            ("served_model_name", &self.served_model_name),
            ("frontend.host", &self.host),
            ("frontend.port", &self.port),
            ("frontend.api_keys_file", &self.api_keys_file),
            ("workers", &self.workers),
            ("worker.threads", &self.threads),
            ("router.mode", &self.router_mode),
            ("engine", &self.engine),
            ("script", &self.script),
            ("worker.kv_blocks", &self.kv_blocks),
            ("worker.tool_parser", &self.tool_parser),
            ("worker.reasoning_parser", &self.reasoning_parser),
            ("log_format", &self.log_format),
        ];
        let mut overrides: Vec<(String, String)> = named
            .into_iter()
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
