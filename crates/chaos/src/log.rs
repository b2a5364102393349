//! What happened when: for the person who watches, and in a file for the one who looks for the cause.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

/// The campaign's own log and what is wrong so far.
pub(crate) struct Log {
    folder: PathBuf,
    begun: Instant,
    inner: Mutex<Inner>,
}

struct Inner {
    file: File,
    faults: Vec<(Law, String)>,
}

/// What must hold, one verdict each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Law {
    /// Every stream whose frontend lived is the undisturbed answer, or ends as the rules say.
    Streams,
    /// Every stream ends.
    Ends,
    /// Nothing is held for requests that are over.
    Ledger,
    /// All workers are found by all frontends, and serve.
    Found,
    /// Processes end only if they are told to, and without a panic.
    Processes,
    /// Answers moved: the campaign tests what it says.
    Moved,
}

impl Law {
    pub(crate) const ALL: [(Self, &'static str); 6] = [
        (Self::Streams, "streams_are_the_undisturbed_answers"),
        (Self::Ends, "every_stream_ends"),
        (Self::Ledger, "ledgers_balance"),
        (Self::Found, "all_workers_are_found_and_serve"),
        (Self::Processes, "processes_end_only_when_told_to"),
        (Self::Moved, "answers_moved"),
    ];
}

/// Faults that are told at once; the rest is in the file.
const SHOWN: usize = 20;

impl Log {
    pub(crate) fn new(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let file = File::create(folder.join("campaign.log"))?;
        let inner = Mutex::new(Inner { file, faults: Vec::new() });
        Ok(Self { folder: folder.to_owned(), begun: Instant::now(), inner })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        // A line half written is no reason not to write the next.
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// For the file only.
    pub(crate) fn note(&self, what: &str) {
        let at = self.begun.elapsed().as_secs_f64();
        let _ = writeln!(self.inner().file, "{at:9.3} {what}");
    }

    /// For everybody.
    pub(crate) fn tell(&self, what: &str) {
        self.note(what);
        let _ = writeln!(io::stdout(), "{:7.1} s  {what}", self.begun.elapsed().as_secs_f64());
    }

    pub(crate) fn fault(&self, law: Law, what: String) {
        let shown = self.inner().faults.len() < SHOWN;
        let line = format!("WRONG ({law:?}) {what}");
        if shown {
            self.tell(&line);
        } else {
            self.note(&line);
        }
        self.inner().faults.push((law, what));
    }

    pub(crate) fn faults(&self, law: Law) -> usize {
        self.inner().faults.iter().filter(|(found, _)| *found == law).count()
    }
}
