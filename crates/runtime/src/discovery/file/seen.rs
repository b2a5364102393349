//! What a reader of the directory remembers between two readings.

use super::super::layout;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// What was found in the directory.
#[derive(Default)]
pub(super) struct Seen {
    /// Files as they were last read, by name.
    pub(super) known: FxHashMap<String, Known>,
    /// By hash; only those that entries refer to.
    pub(super) blobs: FxHashMap<String, Arc<str>>,
    /// Faults told already, so that each is told once.
    pub(super) told: Vec<String>,
    /// The view does not show all of this yet.
    pub(super) changed: bool,
    /// When the store was first found to be lost.
    pub(super) lost: Option<Instant>,
    /// What stood in the marker when the store was last read.
    pub(super) marker: Option<Arc<str>>,
    /// When it was there again, or another one in its place.
    pub(super) returned: Option<Instant>,
}

pub(super) struct Known {
    /// Modification time and inode: replacing a file changes the inode, touching it the time.
    pub(super) stamp: (SystemTime, u64),
    pub(super) content: Arc<str>,
    /// When it was last found changed, or how long ago its time says that was if it is new to us.
    pub(super) renewed: Instant,
    /// Since when we have seen it like this.
    pub(super) observed: Instant,
    pub(super) is_live: bool,
}

impl Seen {
    /// A store with this marker was read. False: it has not been there for a lease, so what it lacks or what looks old in it
    /// may still be renewed.
    pub(super) fn settle(&mut self, marker: Arc<str>, lease: Duration) -> bool {
        let is_another = self.marker.as_ref().is_some_and(|known| *known != marker);
        self.marker = Some(marker);
        if self.lost.take().is_some() || is_another {
            self.returned = Some(Instant::now());
        }
        match self.returned {
            Some(at) if at.elapsed() <= lease => false,
            Some(_) => {
                (self.returned, self.changed) = (None, true);
                true
            }
            None => true,
        }
    }
}

/// Entries of one kind whose owners live.
pub(super) fn live<'a>(
    known: &'a FxHashMap<String, Known>,
    prefix: &str,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let prefix = layout::file_name(prefix);
    let entries = known.iter().filter(move |(name, known)| known.is_live && name.starts_with(&prefix));
    entries.map(|(name, known)| (name.as_str(), &*known.content))
}

/// Logs a fault that was not logged lately.
pub(super) fn remember(told: &mut Vec<String>, fault: String) {
    const REMEMBERED: usize = 64;
    if told.contains(&fault) {
        return;
    }
    tracing::warn!(%fault, "discovery");
    if told.len() >= REMEMBERED {
        told.remove(0);
    }
    told.push(fault);
}
