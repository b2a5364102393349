//! `dynamo status`: the fleet as a running frontend or router sees it, for people and scripts.

mod table;

use crate::client::{DEFAULT_URL, Server, write_out};
use clap::Args;
use hyper::Method;
use serde::Deserialize;
use std::fmt::Write as _;
use std::process::ExitCode;
use table::{Head, cut, table, terminal_width};

/// Exit status if something does not serve.
const EXIT_INACTIVE: u8 = 1;
/// Longer names are cut in the table; `--json` has them whole.
const NAME_MAX_CHARS: usize = 40;

const MODEL_HEAD: [Head; 7] =
    [("MODEL", 0), ("STATE", 0), ("WORKERS", 1), ("RUNNING", 1), ("ANSWERED", 3), ("CACHED", 4), ("TTFT", 2)];

const WORKER_HEAD: [Head; 11] = [
    ("WORKER", 0),
    ("RANK", 6),
    ("MODEL", 0),
    ("STATE", 0),
    ("SENT", 1),
    ("RUNS", 3),
    ("WAITS", 3),
    ("KV USED", 2),
    ("KV CACHED", 7),
    ("VERSION", 4),
    ("AT", 5),
];

/// Column of the model's name in the table of workers.
const WORKER_MODEL: usize = 2;

/// How our own version is named by workers.
const OURS: &str = "dynamo/";

/// Show models and workers of a running server
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The server: a frontend, a router or `dynamo serve`
    #[arg(long, value_name = "URL", default_value = DEFAULT_URL)]
    url: String,

    /// As the server says it, for scripts
    #[arg(long)]
    json: bool,
}

/// What `GET /status.json` answers, as far as it is shown.
#[derive(Debug, Deserialize)]
struct Fleet {
    version: String,
    state: String,
    models: Vec<Model>,
    workers: Vec<Worker>,
    refused: Vec<Refused>,
}

#[derive(Debug, Deserialize)]
struct Model {
    name: String,
    state: String,
    reason: Option<String>,
    workers: usize,
    live_requests: i64,
    answered: u64,
    answered_prompt_tokens: u64,
    answered_cached_tokens: u64,
    first_tokens: u64,
    first_token_seconds: f64,
}

#[derive(Debug, Deserialize)]
struct Worker {
    id: String,
    rank: u32,
    model: String,
    endpoint: String,
    /// Name and version of its program. None: it has not been spoken with, or the server does not tell.
    #[serde(default)]
    version: Option<String>,
    draining: bool,
    suspended: bool,
    /// What it finds wrong with itself. Older frontends do not say.
    #[serde(default)]
    fault: Option<String>,
    requests: u32,
    load: Option<Load>,
}

#[derive(Debug, Deserialize)]
struct Load {
    running: u32,
    waiting: u32,
    active_blocks: u32,
    cached_blocks: u32,
    total_blocks: u32,
}

#[derive(Debug, Deserialize)]
struct Refused {
    id: String,
    model: String,
    reason: String,
}

/// # Errors
/// One line: the server cannot be reached, refuses, or speaks otherwise.
pub(crate) async fn run(args: StatusArgs) -> Result<ExitCode, String> {
    let server = Server::parse(&args.url)?;
    let body = server.send(Method::GET, "/status.json", Vec::new()).await?.whole().await?;
    let fleet: Fleet = serde_json::from_slice(&body)
        .map_err(|error| format!("{server} does not tell its status as this version knows it: {error}"))?;
    if args.json {
        write_out(&format!("{}\n", String::from_utf8_lossy(&body)))?;
    } else {
        write_out(&format!("{server}: {}", fleet.shown(terminal_width())))?;
    }
    Ok(if fleet.is_well() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_INACTIVE) })
}

impl Fleet {
    /// Everything that is known serves.
    fn is_well(&self) -> bool {
        self.state == "serving"
            && !self.models.is_empty()
            && self.refused.is_empty()
            && self.models.iter().all(|model| model.state == "ready")
            && self.workers.iter().all(|worker| worker.state() == "serving")
    }

    /// `width`: of the terminal, if there is one.
    fn shown(&self, width: Option<usize>) -> String {
        let mut out = format!("{}, dynamo {}\n", self.state, self.version);
        if self.models.is_empty() {
            out.push_str("\nNo model is served: no worker has been found.\n");
        } else {
            let models = table(MODEL_HEAD, self.models.iter().map(Model::row), 0, width);
            let workers = table(WORKER_HEAD, self.workers.iter().map(Worker::row), WORKER_MODEL, width);
            out.push_str(&models.text);
            let mut hidden = models.hidden;
            if !self.workers.is_empty() {
                out.push_str(&workers.text);
                hidden.extend(workers.hidden);
            }
            if !hidden.is_empty() {
                let _ = writeln!(out, "\nNo room for {}; --json has everything.", hidden.join(", "));
            }
        }
        for model in self.models.iter().filter(|model| model.state != "ready") {
            let reason = model.reason.as_deref().unwrap_or(match model.state.as_str() {
                "loading" => "its tokenizer is being built",
                _ => "no worker takes requests",
            });
            let _ = writeln!(out, "\nmodel {}: {}: {}", plain(&model.name), model.state, plain(reason));
        }
        for worker in self.workers.iter().filter(|worker| worker.state() != "serving") {
            let _ = writeln!(out, "\nworker {}: {}", worker.id, worker.why());
        }
        for refused in &self.refused {
            let Refused { id, model, reason } = refused;
            let (model, reason) = (plain(model), plain(reason));
            let _ = writeln!(out, "\nworker {id}: refused for the model {model}: {reason}");
        }
        out
    }
}

impl Model {
    fn row(&self) -> [String; 7] {
        let cached = share(self.answered_cached_tokens, self.answered_prompt_tokens);
        let first = match self.first_tokens {
            0 => "-".to_owned(),
            count => format!("{:.0} ms", self.first_token_seconds * 1000.0 / count as f64),
        };
        [
            name(&self.name),
            self.state.clone(),
            self.workers.to_string(),
            self.live_requests.to_string(),
            self.answered.to_string(),
            cached,
            first,
        ]
    }
}

impl Worker {
    fn state(&self) -> &'static str {
        match (self.draining, &self.fault, self.suspended) {
            (true, ..) => "draining",
            (false, Some(_), _) => "not ready",
            (false, None, true) => "suspended",
            (false, None, false) => "serving",
        }
    }

    fn why(&self) -> String {
        match (self.draining, &self.fault) {
            (true, _) => "draining: it finishes what it has and gets nothing new".to_owned(),
            (false, Some(fault)) => format!("not ready: {}", plain(fault)),
            (false, None) => {
                "suspended: requests failed there, or took far longer than elsewhere; it is tried again in a while"
                    .to_owned()
            }
        }
    }

    fn version(&self) -> String {
        let version = self.version.as_deref().unwrap_or("-");
        name(version.strip_prefix(OURS).unwrap_or(version))
    }

    fn row(&self) -> [String; 11] {
        let load = self.load.as_ref();
        let number = |of: fn(&Load) -> u32| load.map_or("-".to_owned(), |load| of(load).to_string());
        let blocks = |of: fn(&Load) -> u32| {
            load.map_or("-".to_owned(), |load| share(of(load).into(), load.total_blocks.into()))
        };
        [
            self.id.clone(),
            self.rank.to_string(),
            name(&self.model),
            self.state().to_owned(),
            self.requests.to_string(),
            number(|load| load.running),
            number(|load| load.waiting),
            blocks(|load| load.active_blocks),
            blocks(|load| load.cached_blocks),
            self.version(),
            name(&self.endpoint),
        ]
    }
}

fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_owned(),
        whole => format!("{:.0}%", part as f64 * 100.0 / whole as f64),
    }
}

/// What comes from elsewhere, and cannot spoil the terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A name that cannot spoil the table.
fn name(text: &str) -> String {
    cut(&plain(text), NAME_MAX_CHARS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fleet(edit: impl FnOnce(&mut serde_json::Value)) -> Fleet {
        let mut status = json!({
            "version": "1.0", "state": "serving", "refused": [],
            "models": [{ "name": "m", "state": "ready", "reason": null, "workers": 2, "live_requests": 2, "answered": 4,
                "answered_prompt_tokens": 400, "answered_cached_tokens": 100, "first_tokens": 4,
                "first_token_seconds": 0.1 }],
            "workers": [
                { "id": "17", "rank": 0, "model": "m", "endpoint": "127.0.0.1:9", "draining": false,
                  "version": "dynamo/1.0", "suspended": false, "requests": 2, "load": { "running": 1, "waiting": 1,
                  "active_blocks": 5, "cached_blocks": 10, "total_blocks": 20 } },
                { "id": "18", "rank": 0, "model": "m", "endpoint": "127.0.0.1:10", "draining": false,
                  "suspended": false, "requests": 0, "load": null },
            ],
        });
        edit(&mut status);
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn a_fleet_is_two_tables() {
        let fleet = fleet(|_| {});
        assert!(fleet.is_well());
        assert_eq!(
            fleet.shown(None),
            "serving, dynamo 1.0\n\
             \n\
             MODEL  STATE  WORKERS  RUNNING  ANSWERED  CACHED  TTFT\n\
             m      ready  2        2        4         25%     25 ms\n\
             \n\
             WORKER  RANK  MODEL  STATE    SENT  RUNS  WAITS  KV USED  KV CACHED  VERSION  AT\n\
             17      0     m      serving  2     1     1      25%      50%        1.0      127.0.0.1:9\n\
             18      0     m      serving  0     -     -      -        -          -        127.0.0.1:10\n"
        );
    }

    #[test]
    fn a_narrow_terminal_says_what_it_has_no_room_for() {
        let shown = fleet(|_| {}).shown(Some(50));
        assert!(
            shown.lines().all(|line| line.starts_with("No room") || line.chars().count() <= 50),
            "{shown}"
        );
        assert!(
            shown.contains("WORKER  MODEL  STATE    SENT") && shown.contains("KV CACHED, VERSION"),
            "{shown}"
        );
        assert!(!fleet(|_| {}).shown(Some(200)).contains("No room"));
    }

    #[test]
    fn what_does_not_serve_is_named_with_its_reason() {
        type Edit = fn(&mut serde_json::Value);
        let cases: [(Edit, &str); 7] = [
            (|status| status["workers"][0]["draining"] = json!(true), "worker 17: draining"),
            (|status| status["workers"][1]["suspended"] = json!(true), "worker 18: suspended"),
            (
                |status| status["workers"][1]["fault"] = json!("no answer to a health check"),
                "worker 18: not ready: no answer to a health check",
            ),
            (
                |status| status["models"][0]["state"] = json!("no_workers"),
                "model m: no_workers: no worker takes",
            ),
            (
                |status| {
                    status["models"][0]["state"] = json!("broken");
                    status["models"][0]["reason"] = json!("bad tokenizer");
                },
                "model m: broken: bad tokenizer",
            ),
            (
                |status| status["refused"] = json!([{ "id": "19", "model": "m", "reason": "block size 32" }]),
                "worker 19: refused for the model m: block size 32",
            ),
            (|status| (status["models"], status["workers"]) = (json!([]), json!([])), "No model is served"),
        ];
        for (edit, words) in cases {
            let fleet = fleet(edit);
            assert!(!fleet.is_well() && fleet.shown(None).contains(words), "{words}: {}", fleet.shown(None));
        }
    }

    #[test]
    fn words_of_others_cannot_spoil_the_terminal() {
        let hostile = "\u{1b}[2J\nall well";
        let fleet = fleet(|status| {
            status["models"][0]["name"] = json!(hostile);
            status["models"][0]["state"] = json!("broken");
            status["models"][0]["reason"] = json!(hostile);
            status["refused"] = json!([{ "id": "19", "model": hostile, "reason": hostile }]);
            status["workers"][0]["fault"] = json!(hostile);
        });
        assert!(
            !fleet.shown(None).contains('\u{1b}') && !fleet.shown(None).contains("\nall well"),
            "{}",
            fleet.shown(None)
        );
    }

    #[test]
    fn names_cannot_spoil_the_table() {
        assert_eq!(name("a\nb\u{1b}[2J"), "a?b?[2J");
        assert_eq!(name(&"é".repeat(40)).chars().count(), 40);
        assert_eq!(name(&"é".repeat(41)), format!("{}…", "é".repeat(39)));
    }
}
