//! Programs in Python that tests drive: told what to do by lines of JSON, `["command", arguments...]`.

use crate::sync::lock;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

/// A running program. The last clone ends it.
#[derive(Clone)]
pub(crate) struct Python(Arc<Mutex<Process>>);

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

impl Python {
    /// Starts a script of this crate, with the packages of tests/sdk.
    pub(crate) fn start(script: &str, arguments: &[&str]) -> Self {
        let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut child = Command::new(crate_root.join("../../scripts/python.sh"))
            .arg(crate_root.join("src").join(script))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (commands, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self(Arc::new(Mutex::new(Process { child, commands, answers: BufReader::new(answers) })))
    }

    /// The next line it says.
    pub(crate) fn line(&self) -> String {
        line(&mut lock(&self.0))
    }

    /// A command that is answered.
    pub(crate) fn tell(&self, command: &Value) -> Value {
        let mut process = lock(&self.0);
        writeln!(process.commands, "{command}").unwrap();
        serde_json::from_str(&line(&mut process)).unwrap()
    }

    /// A command that is not answered.
    pub(crate) fn whisper(&self, command: &Value) {
        writeln!(lock(&self.0).commands, "{command}").unwrap();
    }
}

fn line(process: &mut Process) -> String {
    let mut line = String::new();
    process.answers.read_line(&mut line).unwrap();
    assert!(!line.is_empty(), "the program has ended; why is on the standard error");
    line.trim().to_owned()
}
