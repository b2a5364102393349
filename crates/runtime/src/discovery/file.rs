//! Discovery over a directory that all processes of one host share: the default when there are several.
//!
//! An entry is a file, named by its key, and lives as long as its owner touches it. Readers look every
//! [`Options::poll_every`]; whatever changed is read again. A directory that cannot be read, or lost its marker, leaves the
//! view as it was for one lease; one that is there again, or with another marker than before, takes nothing away for as long.
//! Owners write again what is missing, so a store that was lost or emptied is whole again within a third of that, and nobody
//! notices (R24). Leases are measured by each reader's own steady clock, from the moment it saw a
//! file change; the clock on the wall counts for files it sees for the first time only.

use self::seen::{Known, Seen, live, remember};
use super::layout::{self, Blob, Entries};
use super::{Discovery, Error, Lease, Registration, View, Watch, check};
use crate::BoxFuture;
use crate::sync::lock;
use dynamo_types::{Instance, InstanceId, ModelRecord};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use tokio::task::AbortHandle;

/// An entry larger than this is none of ours.
const MAX_ENTRY_BYTES: u64 = 4 << 20;

/// The same for a large text of a card: above every tokenizer there is.
const MAX_BLOB_BYTES: u64 = 256 << 20;

/// An entry that is there as long as nobody emptied the store. Whoever makes it writes something new into it.
const MARKER: &str = "v1/store";

/// What temporary files end in.
const TEMPORARY: &str = ".tmp";

/// How often an owner touches its entries within a lease.
const TOUCHES_PER_LEASE: u32 = 3;

/// An entry is removed by others when it was seen unchanged for this many leases.
const LEASES_UNTIL_REMOVAL: u32 = 6;

/// Times and limits of [`File`].
#[derive(Clone, Debug)]
pub struct Options {
    /// An entry that was not touched for this long is not there.
    pub lease: Duration,
    pub poll_every: Duration,
    /// As for every view.
    pub view: super::Options,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            poll_every: Duration::from_millis(200),
            view: super::Options::default(),
        }
    }
}

/// Discovery over a directory. Dropping it ends every watch.
pub struct File {
    store: Arc<Store>,
    polling: AbortHandle,
}

struct Store {
    root: PathBuf,
    options: Options,
    view: Arc<View>,
    /// Held for moments only: async threads take it.
    own: Mutex<Own>,
    /// Held while the directory is read, by threads that may block.
    seen: Mutex<Seen>,
    /// Held while entries of one record are written or removed, so that one who renews does not bring back what another
    /// takes away.
    writing: Mutex<()>,
    /// Numbers temporary files.
    next: AtomicU64,
}

/// What this process has registered.
#[derive(Default)]
struct Own {
    records: BTreeMap<InstanceId, Owned>,
    /// Withdrawn, and perhaps still in what a reader found before.
    withdrawn: BTreeSet<InstanceId>,
}

struct Owned {
    record: ModelRecord,
    entries: Entries,
    /// The store holds an older state.
    is_unwritten: bool,
}

impl File {
    /// Uses the directory, which is made if it is not there, for this user only.
    ///
    /// # Errors
    /// The directory cannot be made or read, or others may write into it, who could name us workers of their own.
    pub fn open(root: &Path, options: Options) -> Result<Self, Error> {
        let store = Arc::new(Store {
            root: root.to_owned(),
            view: View::new(options.view.watch_queue),
            options,
            own: Mutex::default(),
            seen: Mutex::default(),
            writing: Mutex::default(),
            next: AtomicU64::new(0),
        });
        let fault = |error: io::Error| Error::Store(format!("{}: {error}", root.display()));
        store.make_root().and_then(|()| store.mark()).map_err(fault)?;
        store.scan().map_err(fault)?;
        let polling = tokio::spawn(poll(Arc::clone(&store))).abort_handle();
        Ok(Self { store, polling })
    }

    /// All records, by instance id.
    pub fn list(&self) -> Vec<ModelRecord> {
        self.store.view.list()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.polling.abort();
        self.store.view.close();
    }
}

impl Discovery for File {
    fn register(&self, record: ModelRecord) -> BoxFuture<'_, Result<Registration, Error>> {
        Box::pin(async move {
            let store = Arc::clone(&self.store);
            let registered = tokio::task::spawn_blocking(move || {
                let id = record.instance.id;
                store.register(record)?;
                Ok(Registration::new(Entry { store, id }))
            });
            registered.await.map_err(|error| Error::Store(error.to_string()))?
        })
    }

    fn watch(&self) -> BoxFuture<'_, Watch> {
        Box::pin(std::future::ready(self.store.view.watch(self.store.options.view.relist)))
    }
}

/// Keeps what is ours alive and takes in what others write.
async fn poll(store: Arc<Store>) {
    let touch_every = store.options.lease / TOUCHES_PER_LEASE;
    let mut touched = tokio::time::Instant::now();
    loop {
        tokio::time::sleep(store.options.poll_every).await;
        let due = touched.elapsed() >= touch_every;
        if due {
            touched = tokio::time::Instant::now();
        }
        let working = Arc::clone(&store);
        // A blocked disk holds up this task and nothing else.
        let _ = tokio::task::spawn_blocking(move || working.round(due)).await;
    }
}

impl Store {
    fn path(&self, key: &str) -> PathBuf {
        self.root.join(layout::file_name(key))
    }

    /// Makes the directory if it is not there.
    ///
    /// # Errors
    /// It is no directory of this user's alone.
    fn make_root(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.root)?;
        let facts = fs::symlink_metadata(&self.root)?;
        if !facts.is_dir() {
            return Err(io::Error::other("expected a directory, found something else or a link"));
        }
        if facts.mode() & 0o022 != 0 {
            let mode = facts.mode() & 0o777;
            return Err(io::Error::other(format!(
                "expected a directory only its owner can write, found mode {mode:o}"
            )));
        }
        let (file, path) = self.temporary()?;
        let ours = file.metadata().map(|facts| facts.uid());
        fs::remove_file(path)?;
        let ours = ours?;
        if ours != facts.uid() {
            let theirs = facts.uid();
            return Err(io::Error::other(format!(
                "expected a directory of user id {ours}, found user id {theirs}"
            )));
        }
        Ok(())
    }

    /// A new file, whatever somebody may have put in its place.
    fn temporary(&self) -> io::Result<(fs::File, PathBuf)> {
        const TRIES: u32 = 1000;
        let mut tried = 0;
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let path = self.root.join(format!("{}-{number}{TEMPORARY}", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tried < TRIES => tried += 1,
                opened => return opened.map(|file| (file, path)),
            }
        }
    }

    /// Readers see the old content or the new one, never half of it.
    fn write(&self, key: &str, content: &str) -> io::Result<()> {
        let (mut file, temporary) = self.temporary()?;
        let written =
            file.write_all(content.as_bytes()).and_then(|()| fs::rename(&temporary, self.path(key)));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    /// Makes the marker, if there is none.
    fn mark(&self) -> io::Result<()> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let unique = format!("{} {}", std::process::id(), now.as_nanos());
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.path(MARKER)) {
            Ok(mut file) => file.write_all(unique.as_bytes()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn marker(&self) -> io::Result<Arc<str>> {
        let lost = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => io::Error::new(error.kind(), "the store is gone, or was emptied"),
            _ => error,
        };
        read_limited(&self.path(MARKER), MAX_ENTRY_BYTES).map_err(lost)
    }

    fn write_entries(&self, entries: &Entries) -> io::Result<()> {
        self.make_root()?;
        if let Some(Blob { hash, content }) = &entries.blob {
            let key = format!("{}{hash}", layout::BLOBS);
            let is_there = fs::metadata(self.path(&key)).is_ok_and(|file| file.len() == content.len() as u64);
            if !is_there {
                self.write(&key, content)?;
            }
        }
        self.write(&entries.instance.0, &entries.instance.1)?;
        self.write(&entries.model.0, &entries.model.1)
    }

    fn register(&self, record: ModelRecord) -> Result<(), Error> {
        let store_fault = |error: io::Error| Error::Store(format!("{}: {error}", self.root.display()));
        self.scan().map_err(store_fault)?;
        let limit = self.options.view.max_records;
        let entries = Entries::of(&record).map_err(|error| Error::Store(error.to_string()))?;
        let id = record.instance.id;
        {
            let mut own = lock(&self.own);
            self.view.try_put(record.clone(), |existing| {
                if existing.len() >= limit { Err(Error::Full { limit }) } else { check(existing, &record) }
            })?;
            own.withdrawn.remove(&id);
            own.records.insert(id, Owned { record, entries: entries.clone(), is_unwritten: false });
        }
        let written = {
            let _writing = lock(&self.writing);
            self.write_entries(&entries)
        };
        if let Err(error) = written {
            self.withdraw(id);
            return Err(store_fault(error));
        }
        Ok(())
    }

    fn withdraw(&self, id: InstanceId) {
        let entries = {
            let mut own = lock(&self.own);
            let Some(owned) = own.records.remove(&id) else { return };
            own.withdrawn.insert(id);
            self.view.delete(id);
            owned.entries
        };
        let _writing = lock(&self.writing);
        for key in [&entries.model.0, &entries.instance.0] {
            // What is not there need not be removed, and what cannot be ends with its lease.
            let _ = fs::remove_file(self.path(key));
        }
    }

    fn change(&self, id: InstanceId, change: impl Fn(&mut Instance)) {
        let mut own = lock(&self.own);
        let Some(owned) = own.records.get_mut(&id) else { return };
        change(&mut owned.record.instance);
        match Entries::of(&owned.record) {
            Ok(entries) => owned.entries = entries,
            Err(error) => tracing::warn!(%error, "a record cannot be written"),
        }
        owned.is_unwritten = true;
        self.view.update(id, |record| change(&mut record.instance));
    }

    fn round(&self, touch: bool) {
        self.renew(touch);
        let Err(error) = self.scan() else { return };
        self.tell(format!("{}: {error}", self.root.display()));
        let mut seen = lock(&self.seen);
        let lost = seen.lost.get_or_insert_with(Instant::now).elapsed();
        if lost > self.options.lease {
            drop(seen);
            // Who lives has written itself down again by now.
            let _ = self.make_root().and_then(|()| self.mark());
        }
    }

    /// Writes what the store does not know yet; with `touch`, renews what is ours and writes again what somebody took away.
    fn renew(&self, touch: bool) {
        let due: Vec<InstanceId> = {
            let own = lock(&self.own);
            own.records.iter().filter(|(_, owned)| touch || owned.is_unwritten).map(|(&id, _)| id).collect()
        };
        for id in due {
            let _writing = lock(&self.writing);
            let (entries, is_unwritten) = match lock(&self.own).records.get(&id) {
                Some(owned) => (owned.entries.clone(), owned.is_unwritten),
                None => continue,
            };
            let renewed = !is_unwritten && self.touch(&entries).is_ok();
            let written = if renewed { Ok(()) } else { self.write_entries(&entries) };
            match written {
                Ok(()) => {
                    if let Some(owned) = lock(&self.own).records.get_mut(&id)
                        && owned.entries == entries
                    {
                        owned.is_unwritten = false;
                    }
                }
                Err(error) => self.tell(format!("{}: {error}", self.root.display())),
            }
        }
    }

    fn touch(&self, entries: &Entries) -> io::Result<()> {
        let now = SystemTime::now();
        let touch = |key: &str| {
            let file = OpenOptions::new().write(true).open(self.path(key))?;
            file.set_modified(now)?;
            file.metadata().map(|facts| facts.len())
        };
        if let Some(Blob { hash, content }) = &entries.blob
            && touch(&format!("{}{hash}", layout::BLOBS))? != content.len() as u64
        {
            return Err(io::Error::other("a blob is not whole"));
        }
        touch(&entries.instance.0)?;
        touch(&entries.model.0)?;
        Ok(())
    }

    /// Brings the view to what the directory holds.
    fn scan(&self) -> io::Result<()> {
        let seen = &mut *lock(&self.seen);
        let marker = self.marker()?;
        // Their files are gone if this reading does not find them.
        let before = lock(&self.own).withdrawn.clone();
        seen.changed |= self.read_all(&mut seen.known)?;
        // What was read is one store only if it was there all the while.
        if self.marker()? != marker {
            return Err(io::Error::other("the store was replaced while it was read"));
        }
        let is_settled = seen.settle(marker, self.options.lease);
        if !seen.changed {
            return Ok(());
        }
        seen.changed = false;
        self.read_blobs(seen);
        let (mut records, faults) = layout::assemble(
            live(&seen.known, layout::INSTANCES),
            live(&seen.known, layout::MODELS),
            |hash| seen.blobs.get(hash).cloned(),
        );
        {
            let mut own = lock(&self.own);
            let found: BTreeSet<InstanceId> = records.iter().map(|record| record.instance.id).collect();
            own.withdrawn.retain(|id| found.contains(id) || !before.contains(id));
            // What is ours is there, and what we took away is not, whatever the files say.
            records.retain(|record| {
                let id = &record.instance.id;
                !own.records.contains_key(id) && !own.withdrawn.contains(id)
            });
            if !is_settled {
                // Who lives writes itself down again.
                let missing = self.view.list().into_iter().filter(|record| {
                    let id = &record.instance.id;
                    !found.contains(id) && !own.records.contains_key(id) && !own.withdrawn.contains(id)
                });
                records.extend(missing);
            }
            records.truncate(self.options.view.max_records.saturating_sub(own.records.len()));
            records.extend(own.records.values().map(|owned| owned.record.clone()));
            self.view.reconcile(records);
        }
        for fault in faults {
            remember(&mut seen.told, fault);
        }
        Ok(())
    }

    fn read_blobs(&self, seen: &mut Seen) {
        let wanted: BTreeSet<String> =
            live(&seen.known, layout::MODELS).filter_map(|(_, model)| layout::blob_of(model)).collect();
        seen.blobs.retain(|hash, _| wanted.contains(hash));
        for hash in wanted {
            if seen.blobs.contains_key(&hash) {
                continue;
            }
            match read_limited(&self.path(&format!("{}{hash}", layout::BLOBS)), MAX_BLOB_BYTES) {
                Ok(content) if layout::is_named(&content, &hash) => {
                    seen.blobs.insert(hash, content);
                }
                // It may be whole the next time.
                _ => seen.changed = true,
            }
        }
    }

    /// Reads what was written since the last time. True if anything differs from then.
    fn read_all(&self, known: &mut FxHashMap<String, Known>) -> io::Result<bool> {
        let mut found = FxHashMap::default();
        let mut changed = false;
        for entry in fs::read_dir(&self.root)? {
            let Ok(entry) = entry else { continue };
            let Ok(name) = entry.file_name().into_string() else { continue };
            let key = layout::key_of(&name).unwrap_or_default();
            let is_blob = key.starts_with(layout::BLOBS);
            if !(is_blob || key.starts_with(layout::INSTANCES) || key.starts_with(layout::MODELS)) {
                // Somebody else's; but for what a process left behind that ended while it wrote.
                if name.ends_with(TEMPORARY) && name.starts_with(|first: char| first.is_ascii_digit()) {
                    self.remove_if_old(&entry);
                }
                continue;
            }
            if is_blob {
                self.remove_if_old(&entry);
                continue;
            }
            let before = known.remove(&name);
            let was_live = before.as_ref().is_some_and(|before| before.is_live);
            let old = before.as_ref().map(|before| Arc::clone(&before.content));
            let Some(now) = self.look(&entry, before) else { continue };
            if now.observed.elapsed() > self.options.lease * LEASES_UNTIL_REMOVAL {
                let _ = fs::remove_file(entry.path());
            }
            changed |= was_live != now.is_live || (now.is_live && old.as_ref() != Some(&now.content));
            found.insert(name, now);
        }
        changed |= known.values().any(|gone| gone.is_live);
        *known = found;
        Ok(changed)
    }

    /// A file as it is now. None: it is gone, or none of ours.
    fn look(&self, entry: &fs::DirEntry, before: Option<Known>) -> Option<Known> {
        let lease = self.options.lease;
        let facts = entry.metadata().and_then(|facts| Ok((facts.modified()?, facts.ino())));
        let stamp = match (facts, before.as_ref()) {
            (Ok(stamp), _) => stamp,
            (Err(error), Some(before)) if error.kind() != io::ErrorKind::NotFound => before.stamp,
            (Err(_), _) => return None,
        };
        let now = Instant::now();
        let Some(before) = before else {
            let age = SystemTime::now().duration_since(stamp.0).unwrap_or_default();
            let content = read_limited(&entry.path(), MAX_ENTRY_BYTES).ok()?;
            let renewed = now.checked_sub(age).unwrap_or(now);
            return Some(Known { stamp, content, renewed, observed: now, is_live: age <= lease });
        };
        if before.stamp == stamp {
            let is_live = before.is_live && before.renewed.elapsed() <= lease;
            return Some(Known { is_live, ..before });
        }
        // A touched file has a new time and the content it had.
        let content = match read_limited(&entry.path(), MAX_ENTRY_BYTES) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            // What cannot be read now has not gone.
            Err(_) => Arc::clone(&before.content),
        };
        Some(Known { stamp, content, renewed: now, observed: now, is_live: true })
    }

    fn remove_if_old(&self, entry: &fs::DirEntry) {
        let age = entry.metadata().and_then(|facts| facts.modified()).map(|time| time.elapsed());
        if let Ok(Ok(age)) = age
            && age > self.options.lease * LEASES_UNTIL_REMOVAL
        {
            let _ = fs::remove_file(entry.path());
        }
    }

    fn tell(&self, fault: String) {
        remember(&mut lock(&self.seen).told, fault);
    }
}

fn read_limited(path: &Path, limit: u64) -> io::Result<Arc<str>> {
    let length = fs::metadata(path)?.len();
    if length > limit {
        return Err(io::Error::other(format!("{length} bytes, limit {limit}")));
    }
    fs::read_to_string(path).map(Arc::from)
}

/// What is kept for one registered record.
struct Entry {
    store: Arc<Store>,
    id: InstanceId,
}

impl Lease for Entry {
    fn set_draining(&self) {
        self.store.change(self.id, |instance| instance.draining = true);
    }

    fn set_fault(&self, fault: Option<&str>) {
        self.store.change(self.id, |instance| instance.fault = fault.map(str::to_owned));
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.store.withdraw(self.id);
    }
}

mod seen;
#[cfg(test)]
mod tests;
