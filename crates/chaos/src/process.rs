//! A process that ends with its guard.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

/// What can be done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Terminate,
    Stop,
    Continue,
}

impl Signal {
    fn name(self) -> &'static str {
        match self {
            Self::Terminate => "TERM",
            Self::Stop => "STOP",
            Self::Continue => "CONT",
        }
    }
}

/// Killed when dropped.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// What it says goes to `log`.
    pub(crate) fn start(command: &[String], log: PathBuf) -> io::Result<Self> {
        let out = File::create(&log)?;
        let (program, flags) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let child = Command::new(program)
            .args(flags)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()?;
        Ok(Self { child, log })
    }

    /// What came after `mark` on the line where it stands first, up to a white space or a comma.
    pub(crate) fn said(&self, mark: &str) -> Option<String> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let (_, rest) = text.split_once(mark)?;
        // A line that is not whole yet may lack a part of the word.
        let (line, _) = rest.split_once('\n')?;
        line.split([' ', ',']).next().map(str::to_owned)
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// The number is its own: it was not waited for, so no other process has it.
    pub(crate) fn signal(&mut self, signal: Signal) {
        if self.ended().is_some() {
            return;
        }
        let line = format!("kill -{} {}", signal.name(), self.child.id());
        let _ = Command::new("sh").args(["-c", &line]).stdin(Stdio::null()).status();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It dies of that even if it is stopped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
