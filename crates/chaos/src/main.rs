//! The chaos campaign: a fleet of real processes, clients that read from it, and a schedule of what breaks. Every stream
//! whose frontend lived must be byte for byte the undisturbed answer, or end as the rules say; afterwards the books must
//! balance. All of it is a function of a seed.

mod answer;
mod board;
mod campaign;
mod cases;
mod client;
mod dice;
mod ledger;
mod log;
mod member;
mod network;
mod options;
mod process;
mod proxy;
mod schedule;
mod wire;

use clap::Parser;
use log::{Law, Log};
use network::Kind;
use options::Options;
use std::io::{self, Write};
use std::process::ExitCode;

/// Something does not hold.
const EXIT_WRONG: u8 = 1;
/// The campaign could not be run.
const EXIT_NOT_RUN: u8 = 2;
/// What a campaign in a network of its own is told.
const INSIDE: &str = "--inside";
/// Stopped by the person at the terminal.
const EXIT_STOPPED: u8 = 130;

fn main() -> ExitCode {
    let options = Options::parse();
    let outcome =
        options.check().and_then(|()| if options.dry_run { dry_run(&options) } else { run(&options) });
    outcome.unwrap_or_else(|line| {
        let _ = writeln!(io::stderr(), "dynamo-chaos: {line}");
        ExitCode::from(EXIT_NOT_RUN)
    })
}

fn dry_run(options: &Options) -> Result<ExitCode, String> {
    say(&campaign::schedule_of(options).join("\n"));
    Ok(ExitCode::SUCCESS)
}

fn say(line: &str) {
    // Nobody is left to tell if the standard output is closed.
    let _ = writeln!(io::stdout(), "{line}");
}

/// With namespaces, this program begins once more in a network of its own.
fn network(options: &Options) -> Result<Kind, String> {
    if options.inside {
        wire::furnish()?;
        return Ok(Kind::Namespaces);
    }
    if options.network == Kind::Proxies || (options.network == Kind::Auto && !wire::is_possible()) {
        return Ok(Kind::Proxies);
    }
    Err(format!("unshare: {}", wire::enter(INSIDE)))
}

fn run(options: &Options) -> Result<ExitCode, String> {
    let network = network(options)?;
    let named = options.logs.clone();
    let unique = format!("dynamo-chaos-{}-{}", options.seed, std::process::id());
    let folder = named.clone().unwrap_or_else(|| std::env::temp_dir().join(unique));
    let log = Log::new(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    log.tell(&format!(
        "seed {}, {} frontends, {} mock workers, {} with a model, {:?}, {network:?}, {} streams in {} min; logs in {}",
        options.seed,
        options.frontends,
        options.mock_workers,
        options.model_workers,
        options.store,
        options.streams,
        options.minutes,
        folder.display()
    ));
    log.note(&format!("schedule:\n{}", campaign::schedule_of(options).join("\n")));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the runtime: {error}"))?;
    // Whichever ends first drops the other, and with it every process.
    let board = runtime.block_on(async {
        tokio::select! {
            ran = campaign::run(options, network, log) => ran.map(Some),
            _ = tokio::signal::ctrl_c() => Ok(None),
        }
    });
    drop(runtime);
    let Some(board) = board? else { return Ok(ExitCode::from(EXIT_STOPPED)) };
    let wrong = verdicts(&board.log);
    if wrong == 0 {
        if named.is_none() {
            let _ = std::fs::remove_dir_all(&folder);
        }
        return Ok(ExitCode::SUCCESS);
    }
    say(&format!("logs and schedule are in {}; again: --seed {}", folder.display(), options.seed));
    Ok(ExitCode::from(EXIT_WRONG))
}

/// In the form in which tests say it, so that one script sums up both. How many do not hold.
fn verdicts(log: &Log) -> usize {
    let mut wrong = 0;
    for (law, name) in Law::ALL {
        let holds = log.faults(law) == 0;
        wrong += usize::from(!holds);
        say(&format!("test chaos::{name} ... {}", if holds { "ok" } else { "FAILED" }));
    }
    let passed = Law::ALL.len() - wrong;
    let outcome = if wrong == 0 { "ok" } else { "FAILED" };
    say(&format!("test result: {outcome}. {passed} passed; {wrong} failed"));
    wrong
}
