//! The binary `dynamo`: reads the command line and starts the role it names. Nothing depends on this crate, and it
//! decides nothing about requests.

mod args;
mod chat;
mod client;
mod planes;
#[cfg(test)]
mod reference;
mod serve;
mod settings;
mod status;
mod workers;

use args::{Cli, Command};
use clap::Parser;
use clap::error::ErrorKind;
use dynamo_runtime::shutdown::EXIT_USAGE;
use serve::Role;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let outcome = match cli.command {
        Command::Serve(args) => serve::run(Role::Whole, &*args),
        Command::Frontend(args) => serve::run(Role::Frontend, &*args),
        Command::Router(args) => serve::run(Role::Router, &*args),
        Command::Worker(args) => serve::run(Role::Worker, &*args),
        Command::Status(args) => talk(status::run(args)),
        Command::Chat(args) => talk(chat::run(args)),
    };
    outcome.unwrap_or_else(|line| complain(&line))
}

fn talk(task: impl Future<Output = Result<ExitCode, String>>) -> Result<ExitCode, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the runtime: {error}"))?;
    runtime.block_on(task)
}

/// Help and version as clap prints them; any mistake as one line, with clap's hint if it has one.
fn refuse(error: &clap::Error) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        let failed = error.print().is_err() || error.exit_code() != 0;
        return if failed { usage() } else { ExitCode::SUCCESS };
    }
    let text = error.to_string();
    let what: Vec<&str> =
        text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:")).collect();
    let line = what.into_iter().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    complain(line.strip_prefix("error: ").unwrap_or(&line))
}

fn complain(line: &str) -> ExitCode {
    // Nobody is left to tell if the standard error stream is closed.
    let _ = writeln!(std::io::stderr(), "dynamo: {line}");
    usage()
}

fn usage() -> ExitCode {
    ExitCode::from(u8::try_from(EXIT_USAGE).unwrap_or(2))
}
