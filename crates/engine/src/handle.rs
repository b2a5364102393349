//! The engine on its own thread.

use crate::core::Core;
use crate::model::Model;
use dynamo_types::{DeltaSink, Error, Load, Request, StepObserver};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// What a client of a draining worker is told to wait, should no other worker take the request.
const DRAIN_RETRY_AFTER_S: u32 = 1;

type Submission = (Arc<Request>, Box<dyn DeltaSink>);

#[derive(Default)]
struct State {
    /// Not taken by the engine yet; at most [`Shared::capacity`].
    queue: VecDeque<Submission>,
    load: Load,
    draining: bool,
    stopping: bool,
    /// The thread has no open request.
    idle: bool,
    /// The thread is gone.
    exited: bool,
}

struct Shared {
    state: Mutex<State>,
    /// Told of each submission and of the stop.
    wake: Condvar,
    capacity: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No step under the lock can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the queue into `taken`. Sleeps while there is nothing to do. False: stop.
    fn next(&self, has_work: bool, taken: &mut VecDeque<Submission>) -> bool {
        let mut state = self.lock();
        while !has_work && state.queue.is_empty() && !state.stopping {
            state.idle = true;
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.idle = false;
        std::mem::swap(&mut state.queue, taken);
        !state.stopping
    }
}

/// Marks the thread as gone, however it ends, and breaks off what it never took.
struct ExitGuard(Arc<Shared>);

impl Drop for ExitGuard {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.exited = true;
        state.load = Load { total_blocks: state.load.total_blocks, ..Load::default() };
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        fail(queue);
    }
}

fn fail(queue: impl IntoIterator<Item = Submission>) {
    for (_, mut sink) in queue {
        sink.fail(stopped());
    }
}

fn stopped() -> Error {
    Error::disconnected("the worker stopped")
}

/// A running engine. Dropping it stops the thread after the step in progress; open requests end as disconnected.
pub struct Handle {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Handle {
    /// Starts the engine's thread. `observer` is called on it after each step that changed something.
    ///
    /// # Errors
    /// `engine` if the system gives no thread.
    pub fn spawn<M: Model + 'static>(core: Core<M>, observer: Arc<dyn StepObserver>) -> Result<Self, Error> {
        let limits = core.limits();
        let capacity = (limits.max_num_seqs as usize).saturating_add(limits.max_waiting as usize);
        let state = Mutex::new(State { load: core.load(), idle: true, ..State::default() });
        let shared = Arc::new(Shared { state, wake: Condvar::new(), capacity });
        let guard = ExitGuard(Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || run(core, &guard, observer.as_ref()))
            .map_err(|error| {
                Error::engine("cannot start the engine's thread").with_detail(error.to_string())
            })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Hands a request to the engine and wakes it. Never blocks. Faults found later come through the sink; those found
    /// here are told to the sink as well as to the caller.
    ///
    /// # Errors
    /// `Unavailable` while draining or after the thread ended, `Overloaded` if the queue is full.
    pub fn submit(&self, request: Arc<Request>, mut sink: Box<dyn DeltaSink>) -> Result<(), Error> {
        let mut state = self.shared.lock();
        let refusal = if state.exited || state.stopping {
            stopped()
        } else if state.draining {
            Error::unavailable("the worker is draining").with_retry_after_s(DRAIN_RETRY_AFTER_S)
        } else if state.queue.len() >= self.shared.capacity {
            let capacity = self.shared.capacity;
            Error::overloaded(format!("the engine's queue is full: {capacity} requests wait already"))
        } else {
            state.queue.push_back((request, sink));
            drop(state);
            self.shared.wake.notify_one();
            return Ok(());
        };
        drop(state);
        sink.fail(refusal.clone());
        Err(refusal)
    }

    /// As of the last step, with what was submitted since.
    pub fn load(&self) -> Load {
        let state = self.shared.lock();
        Load { waiting: state.load.waiting + state.queue.len() as u32, ..state.load }
    }

    /// From now on nothing new is taken; what was is finished.
    pub fn begin_drain(&self) {
        self.shared.lock().draining = true;
    }

    /// Tells the thread to end after the step in progress, and does not wait for it. Open requests end as disconnected.
    pub fn stop(&self) {
        self.shared.lock().stopping = true;
        self.shared.wake.notify_one();
    }

    /// Draining, and nothing is open any more.
    pub fn drained(&self) -> bool {
        let state = self.shared.lock();
        state.exited || (state.draining && state.idle && state.queue.is_empty())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // A panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

fn run<M: Model>(mut core: Core<M>, guard: &ExitGuard, observer: &dyn StepObserver) {
    let shared = &guard.0;
    let mut taken = VecDeque::new();
    let mut last = core.load();
    while shared.next(core.has_work(), &mut taken) {
        for (request, sink) in taken.drain(..) {
            // The sink was told.
            let _ = core.submit(request, sink);
        }
        let report = core.step();
        let rows = report.prefill_tokens + report.decode_tokens;
        let changed = rows > 0 || !report.events.is_empty() || report.load != last;
        last = report.load;
        shared.lock().load = report.load;
        if changed {
            observer.on_step(report);
        }
    }
    fail(taken);
    core.fail_all(&stopped());
}
