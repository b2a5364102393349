//! Time for engines that are not real: one that runs by itself, and one that tests move by hand.

use dynamo_runtime::sync::lock;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Something that acts at moments it names.
pub trait Machine: Send + Sync {
    /// Does all that is due at `now_us`, and says when to come again; later than `now_us`, or never.
    fn run(&self, now_us: u64) -> Option<u64>;
}

/// Runs machines. Microseconds count from the clock's own beginning.
pub trait Clock: Send + Sync {
    fn now_us(&self) -> u64;

    /// Runs `machine` when it is due, until the handle is dropped.
    fn attach(&self, name: &str, machine: Arc<dyn Machine>) -> io::Result<Box<dyn Drive>>;
}

/// A machine that is being run. Dropping it stops the machine; no call of it goes on afterwards.
pub trait Drive: Send + Sync {
    /// There is something new: runs the machine now.
    fn ring(&self);
}

/// The clock on the wall. Each machine has a thread of its own.
#[derive(Debug)]
pub struct RealClock {
    origin: Instant,
}

impl RealClock {
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Default for RealClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for RealClock {
    fn now_us(&self) -> u64 {
        micros_since(self.origin)
    }

    fn attach(&self, name: &str, machine: Arc<dyn Machine>) -> io::Result<Box<dyn Drive>> {
        let bell = Arc::new(Bell::default());
        let (origin, heard) = (self.origin, Arc::clone(&bell));
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            let mut next = machine.run(micros_since(origin));
            while heard.wait(next.map(|at_us| origin + Duration::from_micros(at_us))) {
                next = machine.run(micros_since(origin));
            }
        })?;
        Ok(Box::new(ThreadDrive { bell, thread: Some(thread) }))
    }
}

fn micros_since(origin: Instant) -> u64 {
    origin.elapsed().as_micros() as u64
}

#[derive(Default)]
struct Bell {
    state: Mutex<Rung>,
    changed: Condvar,
}

#[derive(Default)]
struct Rung {
    rung: bool,
    stop: bool,
}

impl Bell {
    fn set(&self, change: impl FnOnce(&mut Rung)) {
        change(&mut lock(&self.state));
        self.changed.notify_one();
    }

    /// Waits until the moment has come or the bell is rung. False: stop.
    fn wait(&self, until: Option<Instant>) -> bool {
        let mut state = lock(&self.state);
        loop {
            if state.stop {
                return false;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if std::mem::take(&mut state.rung) || left == Some(Duration::ZERO) {
                return true;
            }
            state = match left {
                Some(left) => self.wait_for(state, left),
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn wait_for<'a>(&self, state: MutexGuard<'a, Rung>, left: Duration) -> MutexGuard<'a, Rung> {
        self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
    }
}

struct ThreadDrive {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl Drive for ThreadDrive {
    fn ring(&self) {
        self.bell.set(|state| state.rung = true);
    }
}

impl Drop for ThreadDrive {
    fn drop(&mut self) {
        self.bell.set(|state| state.stop = true);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A machine that panicked is gone, which is all that is asked for here.
            let _ = thread.join();
        }
    }
}

/// A clock that stands still until it is moved. Machines run on the thread of whoever moves it or brings them something
/// new, so when a call returns, everything that was due has happened. Clones are the same clock.
#[derive(Clone, Default)]
pub struct ManualClock {
    state: Arc<Mutex<Manual>>,
}

#[derive(Default)]
struct Manual {
    now_us: u64,
    machines: Vec<Weak<Entry>>,
}

struct Entry {
    machine: Arc<dyn Machine>,
    /// When it is due. Held while the machine runs, so that it runs once at a time.
    next_us: Mutex<Option<u64>>,
}

impl ManualClock {
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves on, stopping at each moment at which a machine is due.
    pub fn advance_ms(&self, ms: u64) {
        let target = self.now_us() + ms * 1000;
        while let Some((at_us, entry)) = self.next_due(target) {
            let now = {
                let mut state = lock(&self.state);
                state.now_us = state.now_us.max(at_us);
                state.now_us
            };
            entry.run(now);
        }
        let mut state = lock(&self.state);
        state.now_us = state.now_us.max(target);
    }

    fn next_due(&self, target: u64) -> Option<(u64, Arc<Entry>)> {
        let entries: Vec<Arc<Entry>> = {
            let mut state = lock(&self.state);
            state.machines.retain(|entry| entry.strong_count() > 0);
            state.machines.iter().filter_map(Weak::upgrade).collect()
        };
        entries
            .into_iter()
            .filter_map(|entry| {
                let next = *lock(&entry.next_us);
                Some((next?, entry))
            })
            .filter(|(at_us, _)| *at_us <= target)
            .min_by_key(|(at_us, _)| *at_us)
    }
}

impl Clock for ManualClock {
    fn now_us(&self) -> u64 {
        lock(&self.state).now_us
    }

    fn attach(&self, _name: &str, machine: Arc<dyn Machine>) -> io::Result<Box<dyn Drive>> {
        let entry = Arc::new(Entry { machine, next_us: Mutex::new(None) });
        lock(&self.state).machines.push(Arc::downgrade(&entry));
        let drive = ManualDrive { clock: self.clone(), entry };
        drive.ring();
        Ok(Box::new(drive))
    }
}

impl Entry {
    fn run(&self, now_us: u64) {
        let mut next = lock(&self.next_us);
        *next = self.machine.run(now_us);
    }
}

struct ManualDrive {
    clock: ManualClock,
    entry: Arc<Entry>,
}

impl Drive for ManualDrive {
    fn ring(&self) {
        self.entry.run(self.clock.now_us());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Is due every so many microseconds, and says when it ran.
    struct Ticker(u64, Mutex<Vec<u64>>);

    impl Machine for Ticker {
        fn run(&self, now_us: u64) -> Option<u64> {
            lock(&self.1).push(now_us);
            Some(now_us + self.0)
        }
    }

    #[test]
    fn a_manual_clock_stops_where_machines_are_due() {
        let clock = ManualClock::new();
        let machines = [400, 700].map(|period| Arc::new(Ticker(period, Mutex::default())));
        let drives = machines.each_ref().map(|machine| clock.attach("t", machine.clone()).unwrap());
        clock.advance_ms(1);
        clock.clone().advance_ms(1);
        assert_eq!(*lock(&machines[0].1), [0, 400, 800, 1200, 1600, 2000]);
        assert_eq!(*lock(&machines[1].1), [0, 700, 1400]);
        drives[1].ring();
        assert_eq!(lock(&machines[1].1).last(), Some(&2000));
        drop(drives);
        clock.advance_ms(9);
        assert_eq!(lock(&machines[0].1).len(), 6);
        assert_eq!(clock.now_us(), 11_000);
    }

    #[test]
    fn a_real_clock_runs_machines_and_stops() {
        struct Once(std::sync::mpsc::Sender<u64>);
        impl Machine for Once {
            fn run(&self, now_us: u64) -> Option<u64> {
                self.0.send(now_us).ok().map(|()| now_us + 200)
            }
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        let drive = RealClock::new().attach("t", Arc::new(Once(sender))).unwrap();
        let runs: Vec<u64> = receiver.iter().take(5).collect();
        assert!(runs.is_sorted(), "{runs:?}");
        drive.ring();
        drop(drive);
        assert!(receiver.iter().count() < usize::MAX, "the sender is gone, so this ends");
    }
}
