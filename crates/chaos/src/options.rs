//! The command line.

use crate::cases::{MOCK_MODEL, REAL_MODEL};
use crate::network;
use crate::schedule::Fleet;
use clap::Parser;
use std::path::PathBuf;
use std::time::Duration;

/// Disturbs a fleet while clients read from it, and holds what they read against the undisturbed answers
#[derive(Clone, Debug, Parser)]
#[command(name = "dynamo-chaos")]
pub(crate) struct Options {
    /// How long streams begin and things break; it ends some time after that
    #[arg(long, value_name = "N", default_value_t = 4.0)]
    pub(crate) minutes: f64,

    /// Streams in that time
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub(crate) streams: usize,

    /// What breaks when, and who asks what, is a function of this
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) frontends: usize,

    /// Workers with a mock engine
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) mock_workers: usize,

    /// Workers with a model
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) model_workers: usize,

    /// The model [default: $DYNAMO_MODEL, else the workers' own default]
    #[arg(long, value_name = "PATH")]
    pub(crate) model: Option<String>,

    /// The program under test [default: $DYNAMO_BIN, else `dynamo` beside this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) bin: Option<PathBuf>,

    /// How processes find each other
    #[arg(long, value_enum, default_value_t)]
    pub(crate) store: StoreKind,

    /// What keeps processes apart
    #[arg(long, value_enum, default_value_t)]
    pub(crate) network: network::Kind,

    /// It runs in a network of its own
    #[arg(long, hide = true)]
    pub(crate) inside: bool,

    /// Where logs go; kept if something is wrong [default: a directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) logs: Option<PathBuf>,

    /// Show the schedule of this seed and end
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Nothing breaks
    #[arg(long)]
    pub(crate) calm: bool,

    /// A configuration key of every process (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

/// How processes find each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum StoreKind {
    /// By an etcd of the campaign's own, which breaks like everything else
    #[default]
    Etcd,
    /// By files
    File,
}

impl Options {
    pub(crate) fn fleet(&self) -> Fleet {
        Fleet {
            frontends: self.frontends,
            mock_workers: self.mock_workers,
            model_workers: self.model_workers,
            stores: usize::from(self.store == StoreKind::Etcd),
        }
    }

    /// # Errors
    /// One line: what cannot be run.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.frontends == 0 || self.mock_workers + self.model_workers == 0 {
            return Err("expected at least one frontend and one worker".into());
        }
        if !(self.minutes.is_finite() && self.minutes > 0.0 && self.minutes <= 24.0 * 60.0) {
            return Err(format!("--minutes: expected more than 0 and at most 1440, found {}", self.minutes));
        }
        Ok(())
    }

    /// What the workers serve.
    pub(crate) fn models(&self) -> Vec<&'static str> {
        let served = [(MOCK_MODEL, self.mock_workers), (REAL_MODEL, self.model_workers)];
        served.into_iter().filter(|(_, workers)| *workers > 0).map(|(model, _)| model).collect()
    }

    pub(crate) fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.minutes * 60.0)
    }

    /// # Errors
    /// There is none.
    pub(crate) fn program(&self) -> Result<PathBuf, String> {
        let named = self.bin.clone().or_else(|| std::env::var_os("DYNAMO_BIN").map(PathBuf::from));
        let beside = || std::env::current_exe().ok()?.parent().map(|folder| folder.join("dynamo"));
        let path = named.or_else(beside).unwrap_or_default();
        if path.is_file() {
            Ok(path)
        } else {
            Err(format!("no program at {}: `make build` makes it", path.display()))
        }
    }

    pub(crate) fn model(&self) -> Option<String> {
        self.model.clone().or_else(|| std::env::var("DYNAMO_MODEL").ok())
    }
}
