//! The suites of the request plane, driving the worker of `examples/python-worker`: what docs/request-plane.md says is enough
//! to write a worker in another language.

use super::super::conformance::{self, Stage, Subject};
use super::super::wire::{Caller, Options};
use super::{Dialer, by_hand};
use crate::events::Local;
use crate::sync::lock;
use dynamo_types::{Delta, Transport};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

/// Silence of a caller that the worker bears, in seconds: the suite waits for it once; a busy machine must not keep it from speaking for as long.
const DEAD_S: &str = "4";

/// A worker process that is told what to do by lines of JSON, `["command", arguments...]`, and answers each with one.
#[derive(Clone)]
struct Foreign(Arc<Mutex<Process>>);

struct Process {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the worker has ended; why is on the standard error");
        line
    }
}

impl Foreign {
    /// The worker and its address.
    fn start() -> (Self, String) {
        let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut child = Command::new(crate_root.join("../../scripts/python.sh"))
            .arg(crate_root.join("src/plane/tcp/foreign.py"))
            .args([&conformance::options().max_in_flight.to_string(), DEAD_S])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (commands, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut process = Process { child, commands, answers: BufReader::new(answers) };
        let address = process.line().trim().to_owned();
        (Self(Arc::new(Mutex::new(process))), address)
    }

    fn tell(&self, command: &Value) -> Value {
        let mut process = lock(&self.0);
        writeln!(process.commands, "{command}").unwrap();
        serde_json::from_str(&process.line()).unwrap()
    }

    fn count(&self, command: &str) -> usize {
        self.tell(&json!([command])).as_u64().unwrap() as usize
    }
}

impl Stage for Foreign {
    fn serve(&self) {
        self.tell(&json!(["serve"]));
    }

    fn withdraw(&self) {
        self.tell(&json!(["withdraw"]));
    }

    fn push(&self, stream: u32, delta: Delta) {
        // Unanswered: several that come at once wait together, and are merged.
        writeln!(lock(&self.0).commands, "{}", json!(["push", stream, delta])).unwrap();
    }

    /// It writes whenever it has something.
    fn flush(&self) {}

    fn drop_all(&self) {
        self.tell(&json!(["drop_all"]));
    }

    fn held(&self) -> usize {
        self.count("held")
    }

    fn is_cancelled(&self, stream: u32) -> bool {
        self.tell(&json!(["is_cancelled", stream])).as_bool().unwrap()
    }

    fn in_flight(&self) -> usize {
        self.count("in_flight")
    }
}

// The stage blocks a thread while it waits for an answer; the connections have their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_in_python_conforms() {
    let (foreign, address) = Foreign::start();
    let caller = Caller::new(Options::default(), Arc::new(Local::default()), Arc::new(Dialer::default()));
    let subject = Subject {
        caller: Arc::new(caller.clone()),
        transport: Transport::Tcp(address),
        stage: Box::new(foreign.clone()),
    };
    conformance::every_case(&subject).await;
    assert_eq!(caller.connection_count(), 1, "one connection carries everything");
    by_hand::every_case(&subject, &|hash| {
        foreign.tell(&json!(["report", hash]));
    })
    .await;
}
