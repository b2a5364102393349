//! A process that ends with its guard.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// What can be done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Kill,
    Terminate,
    Stop,
    Continue,
}

impl Signal {
    fn number(self) -> libc::c_int {
        match self {
            Self::Kill => libc::SIGKILL,
            Self::Terminate => libc::SIGTERM,
            Self::Stop => libc::SIGSTOP,
            Self::Continue => libc::SIGCONT,
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
    pub(crate) fn start(program: &Path, flags: &[String], log: PathBuf) -> io::Result<Self> {
        let out = File::create(&log)?;
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

    #[expect(unsafe_code, reason = "no safe call of the standard library sends any signal but SIGKILL")]
    pub(crate) fn signal(&mut self, signal: Signal) {
        if self.ended().is_some() {
            return;
        }
        let Ok(id) = libc::pid_t::try_from(self.child.id()) else { return };
        // SAFETY: no memory is passed. The process was not waited for, so its number is not another's.
        let _ = unsafe { libc::kill(id, signal.number()) };
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::Kill);
        // It dies of that even if it is stopped.
        let _ = self.child.wait();
    }
}
