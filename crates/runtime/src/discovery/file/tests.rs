use super::super::Event;
use super::super::conformance::{self, Bench, Faults, remote, until};
use super::*;

/// A directory of its own for each test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let unique = format!("dynamo-discovery-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(unique);
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn quick() -> Options {
    Options {
        lease: Duration::from_millis(900),
        poll_every: Duration::from_millis(10),
        view: super::super::Options { relist: None, ..super::super::Options::default() },
    }
}

impl Bench for Directory {
    type Store = File;

    async fn open(&self) -> File {
        File::open(&self.0, quick()).unwrap()
    }

    async fn open_listing(&self, every: Duration) -> File {
        File::open(&self.0, listing(every, quick())).unwrap()
    }
}

fn listing(every: Duration, mut options: Options) -> Options {
    options.view.relist = Some(every);
    options
}

/// A store that goes away and comes back.
struct Fragile {
    here: Directory,
    away: Directory,
}

impl Fragile {
    fn new(name: &str) -> Self {
        Self { here: Directory::new(name), away: Directory::new(&format!("{name}-away")) }
    }

    /// Long enough for an owner on a busy machine to come round.
    fn options() -> Options {
        Options { lease: Self::LEASE, ..quick() }
    }
}

impl Bench for Fragile {
    type Store = File;

    async fn open(&self) -> File {
        File::open(&self.here.0, Self::options()).unwrap()
    }

    async fn open_listing(&self, every: Duration) -> File {
        File::open(&self.here.0, listing(every, Self::options())).unwrap()
    }
}

impl Faults for Fragile {
    const LEASE: Duration = Duration::from_secs(6);

    async fn leave(&self) {
        fs::rename(&self.here.0, &self.away.0).unwrap();
        // Not a directory, so nobody can make a store here.
        fs::write(&self.here.0, "").unwrap();
    }

    async fn come_back(&self) {
        fs::remove_file(&self.here.0).unwrap();
        fs::rename(&self.away.0, &self.here.0).unwrap();
    }

    /// In one step: entry by entry it would be a store that is there and lacks some.
    async fn lose_everything(&self) {
        fs::rename(&self.here.0, &self.away.0).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_owners_leave_and_living_ones_stay() {
    conformance::dead_owners_leave_and_living_ones_stay(&Fragile::new("dead")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r24_a_store_that_cannot_be_reached_takes_nobody_away() {
    conformance::r24_a_store_that_cannot_be_reached_takes_nobody_away(&Fragile::new("unreached")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r24_a_store_that_lost_everything_is_written_again() {
    conformance::r24_a_store_that_lost_everything_is_written_again(&Fragile::new("lost")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms() {
    conformance::suite(&Directory::new("suite")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r24_what_is_not_renewed_ends_and_what_lives_stays() {
    let directory = Directory::new("lease");
    let (here, there) = (directory.open().await, directory.open().await);
    let _held = here.register(remote(1, "m", 16)).await.unwrap();
    // A process that died leaves its files behind.
    let dead = Entries::of(&remote(2, "m", 16)).unwrap();
    here.store.write_entries(&dead).unwrap();
    let mut watch = there.watch().await;
    let mut told = BTreeMap::new();
    until(&mut watch, &mut told, &[remote(1, "m", 16), remote(2, "m", 16)]).await;
    until(&mut watch, &mut told, &[remote(1, "m", 16)]).await;
    tokio::time::sleep(3 * quick().lease).await;
    assert_eq!(there.list(), [remote(1, "m", 16)], "renewed all the while");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r24_a_store_that_was_emptied_is_written_again() {
    let directory = Directory::new("emptied");
    // Long enough for an owner on a busy machine to come round.
    let options = Options { lease: Duration::from_secs(4), ..quick() };
    let open = || File::open(&directory.0, options.clone()).unwrap();
    let (here, there) = (open(), open());
    let held = here.register(remote(1, "m", 16)).await.unwrap();
    let mut watch = there.watch().await;
    let mut told = BTreeMap::new();
    until(&mut watch, &mut told, &[remote(1, "m", 16)]).await;
    for emptied in [false, true, true] {
        // In one step: entry by entry it would be a store that is there and lacks some.
        let lost = Directory::new("emptied-lost");
        fs::rename(&directory.0, &lost.0).unwrap();
        if emptied {
            fs::create_dir(&directory.0).unwrap();
        }
        let start = Instant::now();
        // Somebody who starts meanwhile makes a store of it at once.
        let _third = emptied.then(open);
        while start.elapsed() < options.lease + options.lease / 2 {
            let seen = tokio::time::timeout(quick().poll_every, watch.next()).await;
            assert!(seen.is_err(), "nobody notices: {seen:?}");
        }
        assert_eq!((here.list().len(), there.list().len()), (1, 1));
        assert!(here.store.path(MARKER).exists(), "the store is whole again");
    }
    drop(held);
    until(&mut watch, &mut told, &[]).await;
}

/// Nothing could be touched meanwhile, so all there is looks old when it can be read again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r24_an_outage_longer_than_a_lease_takes_nobody_away() {
    let directory = Directory::new("outage");
    let options = Options { lease: Duration::from_secs(4), ..quick() };
    let open = || File::open(&directory.0, options.clone()).unwrap();
    let (here, there) = (open(), open());
    let held = here.register(remote(1, "m", 16)).await.unwrap();
    let mut watch = there.watch().await;
    let mut told = BTreeMap::new();
    until(&mut watch, &mut told, &[remote(1, "m", 16)]).await;
    let away = Directory::new("outage-away");
    fs::rename(&directory.0, &away.0).unwrap();
    // Not a directory, so nobody can make a store here.
    fs::write(&directory.0, "").unwrap();
    let quiet = async |watch: &mut Watch, time: Duration| {
        let start = Instant::now();
        while start.elapsed() < time {
            let seen = tokio::time::timeout(quick().poll_every, watch.next()).await;
            assert!(seen.is_err(), "nobody notices: {seen:?}");
        }
    };
    quiet(&mut watch, options.lease + options.lease / 4).await;
    fs::remove_file(&directory.0).unwrap();
    fs::rename(&away.0, &directory.0).unwrap();
    quiet(&mut watch, options.lease + options.lease / 2).await;
    drop(held);
    until(&mut watch, &mut told, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r25_broken_entries_leave_the_others() {
    let directory = Directory::new("broken");
    let (here, there) = (directory.open().await, directory.open().await);
    here.store.write("v1/mdc/dynamo/backend/generate/9", "{\"type\":").unwrap();
    here.store.write("v1/instances/dynamo/backend/generate/9", "[]").unwrap();
    for name in ["notes.txt", "Makefile", "v1%2Fother"] {
        fs::write(directory.0.join(name), "not ours").unwrap();
        let file = fs::File::options().write(true).open(directory.0.join(name)).unwrap();
        file.set_modified(SystemTime::now() - 100 * quick().lease).unwrap();
    }
    let _held = here.register(remote(1, "m", 16)).await.unwrap();
    let mut watch = there.watch().await;
    until(&mut watch, &mut BTreeMap::new(), &[remote(1, "m", 16)]).await;
    tokio::time::sleep(5 * quick().poll_every).await;
    for name in ["notes.txt", "Makefile", "v1%2Fother"] {
        assert!(directory.0.join(name).exists(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r26_what_was_missed_is_relisted_on_a_timer() {
    let directory = Directory::new("relist");
    let relist = Some(Duration::from_millis(50));
    let options = Options { view: super::super::Options { relist, ..quick().view }, ..quick() };
    let store = File::open(&directory.0, options).unwrap();
    let mut watch = store.watch().await;
    for _ in 0..3 {
        assert_eq!(watch.next().await, Some(Event::List(vec![])));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tokenizer_that_was_lost_is_written_again() {
    let directory = Directory::new("blob");
    let here = directory.open().await;
    let mut record = remote(1, "m", 16);
    let mut card = (*record.card).clone();
    card.tokenizer = dynamo_types::TokenizerSpec::HuggingFace { json: "\"t\" ".repeat(9000).into() };
    record.card = Arc::new(card);
    let _held = here.register(record.clone()).await.unwrap();
    let blob = Entries::of(&record).unwrap().blob.unwrap();
    let path = here.store.path(&format!("{}{}", layout::BLOBS, blob.hash));
    for half in [true, false] {
        if half {
            fs::write(&path, &blob.content[..100]).unwrap();
        } else {
            fs::remove_file(&path).unwrap();
        }
        let late = directory.open().await;
        let mut watch = late.watch().await;
        until(&mut watch, &mut BTreeMap::new(), std::slice::from_ref(&record)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r24_a_step_of_the_clock_ends_no_lease() {
    let directory = Directory::new("clock");
    let (here, there) = (directory.open().await, directory.open().await);
    let _held = here.register(remote(1, "m", 16)).await.unwrap();
    let mut watch = there.watch().await;
    until(&mut watch, &mut BTreeMap::new(), &[remote(1, "m", 16)]).await;
    // To a clock that was set forward, files touched a moment ago look old.
    let path = here.store.path(&Entries::of(&remote(1, "m", 16)).unwrap().model.0);
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - 100 * quick().lease).unwrap();
    let seen = tokio::time::timeout(20 * quick().poll_every, watch.next()).await;
    assert!(seen.is_err(), "{seen:?}");
}

#[tokio::test]
async fn a_place_that_others_can_write_is_refused_and_nothing_is_written_through_links() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let directory = Directory::new("others");
    fs::create_dir(&directory.0).unwrap();
    fs::set_permissions(&directory.0, fs::Permissions::from_mode(0o777)).unwrap();
    let error = File::open(&directory.0, quick()).err().unwrap().to_string();
    assert!(error.contains("mode 777"), "{error}");
    fs::set_permissions(&directory.0, fs::Permissions::from_mode(0o700)).unwrap();
    let victim = Directory::new("victim");
    fs::write(&victim.0, "precious").unwrap();
    for number in 0..20 {
        symlink(&victim.0, directory.0.join(format!("{}-{number}.tmp", std::process::id()))).unwrap();
    }
    drop(File::open(&directory.0, quick()).unwrap());
    assert_eq!(fs::read_to_string(&victim.0).unwrap(), "precious");
    let link = Directory::new("link");
    symlink(&directory.0, &link.0).unwrap();
    let error = File::open(&link.0, quick()).err().unwrap().to_string();
    assert!(error.contains("link"), "{error}");
    let _ = fs::remove_file(&link.0);
    let _ = fs::remove_file(&victim.0);
}

#[tokio::test]
async fn a_place_that_cannot_be_used_is_one_clear_line() {
    let directory = Directory::new("place");
    fs::write(&directory.0, "a file").unwrap();
    let error = File::open(&directory.0, quick()).err().unwrap().to_string();
    assert!(error.contains("discovery store") && error.contains(&*directory.0.to_string_lossy()), "{error}");
    let _ = fs::remove_file(&directory.0);
}
