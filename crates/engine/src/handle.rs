//! The engine on its own thread, and beside it one that compiles grammars.

use crate::core::Core;
use crate::guided::{self, Guides};
use crate::model::Model;
use dynamo_guide::Grammar;
use dynamo_types::{DeltaSink, Error, Load, Request, StepObserver};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// What a client of a draining worker is told to wait, should no other worker take the request.
const DRAIN_RETRY_AFTER_S: u32 = 1;

struct Submission {
    request: Arc<Request>,
    /// Of a request with a guide, once it is compiled.
    grammar: Option<Grammar>,
    sink: Box<dyn DeltaSink>,
}

#[derive(Default)]
struct State {
    /// Not taken by the engine yet; with `uncompiled` and `compiling` at most [`Shared::capacity`].
    queue: VecDeque<Submission>,
    /// Those whose guide comes first.
    uncompiled: VecDeque<Submission>,
    /// A guide is being compiled.
    compiling: bool,
    load: Load,
    draining: bool,
    stopping: bool,
    /// The thread has no open request.
    idle: bool,
    /// The thread is gone.
    exited: bool,
}

impl State {
    /// Requests that the engine does not know of yet.
    fn ahead(&self) -> usize {
        self.queue.len() + self.uncompiled.len() + usize::from(self.compiling)
    }

    fn is_over(&self) -> bool {
        self.stopping || self.exited
    }
}

struct Shared {
    state: Mutex<State>,
    /// Told of each submission and of the stop.
    wake: Condvar,
    /// Told of each submission with a guide and of the end.
    wake_compiler: Condvar,
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

    /// The next request whose guide is to be compiled. Sleeps while there is none; none at the end.
    fn next_uncompiled(&self) -> Option<Submission> {
        let mut state = self.lock();
        state.compiling = false;
        while state.uncompiled.is_empty() && !state.is_over() {
            state = self.wake_compiler.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let next = if state.is_over() { None } else { state.uncompiled.pop_front() };
        state.compiling = next.is_some();
        next
    }

    /// Gives the engine a request whose guide is compiled.
    fn pass_on(&self, submission: Submission) {
        let mut state = self.lock();
        if state.is_over() {
            drop(state);
            fail([submission]);
        } else {
            // Both at once: it is always on one of the lists.
            state.compiling = false;
            state.queue.push_back(submission);
            drop(state);
            self.wake.notify_one();
        }
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
        let uncompiled = std::mem::take(&mut state.uncompiled);
        drop(state);
        self.0.wake_compiler.notify_one();
        fail(queue.into_iter().chain(uncompiled));
    }
}

fn fail(queue: impl IntoIterator<Item = Submission>) {
    for mut submission in queue {
        submission.sink.fail(stopped());
    }
}

fn stopped() -> Error {
    Error::disconnected("the worker stopped")
}

/// A running engine. Dropping it stops the thread after the step in progress; open requests end as disconnected.
pub struct Handle {
    shared: Arc<Shared>,
    /// The engine's, and the compiler's if there is one.
    threads: Vec<JoinHandle<()>>,
    guided: bool,
}

impl Handle {
    /// Starts the engine's thread. `observer` is called on it after each step that changed something. Requests with a guide
    /// are refused.
    ///
    /// # Errors
    /// `engine` if the system gives no thread.
    pub fn spawn<M: Model + 'static>(core: Core<M>, observer: Arc<dyn StepObserver>) -> Result<Self, Error> {
        Self::start(core, observer, None)
    }

    /// The same for an engine that takes requests with a guide, and for this has a second thread.
    ///
    /// # Errors
    /// As for [`Handle::spawn`].
    pub fn spawn_guided<M: Model + 'static>(
        core: Core<M>,
        observer: Arc<dyn StepObserver>,
        guides: Guides,
    ) -> Result<Self, Error> {
        Self::start(core, observer, Some(guides))
    }

    fn start<M: Model + 'static>(
        mut core: Core<M>,
        observer: Arc<dyn StepObserver>,
        guides: Option<Guides>,
    ) -> Result<Self, Error> {
        if observer.wants_tokens() {
            core.keep_tokens();
        }
        let limits = core.limits();
        let capacity = (limits.max_num_seqs as usize).saturating_add(limits.max_waiting as usize);
        let state = Mutex::new(State { load: core.load(), idle: true, ..State::default() });
        let shared =
            Arc::new(Shared { state, wake: Condvar::new(), wake_compiler: Condvar::new(), capacity });
        let guard = ExitGuard(Arc::clone(&shared));
        // Whatever fails below, dropping the handle ends the threads there are.
        let mut handle = Self { shared, threads: Vec::new(), guided: guides.is_some() };
        let engine = std::thread::Builder::new().name("engine".into());
        handle.threads.push(
            engine.spawn(move || run(core, &guard, observer.as_ref())).map_err(|error| no_thread(&error))?,
        );
        if let Some(guides) = guides {
            let shared = Arc::clone(&handle.shared);
            let compiler = std::thread::Builder::new().name("guides".into()).stack_size(guided::STACK_BYTES);
            handle
                .threads
                .push(compiler.spawn(move || compile(&shared, &guides)).map_err(|error| no_thread(&error))?);
        }
        Ok(handle)
    }

    /// Hands a request to the engine and wakes it. Never blocks. Faults found later come through the sink; those found
    /// here are told to the sink as well as to the caller.
    ///
    /// # Errors
    /// `Unavailable` while draining or after the thread ended, `Overloaded` if the queue is full, `NotImplemented` for a
    /// guide where there are none.
    pub fn submit(&self, request: Arc<Request>, mut sink: Box<dyn DeltaSink>) -> Result<(), Error> {
        let mut state = self.shared.lock();
        let refusal = if state.exited || state.stopping {
            stopped()
        } else if state.draining {
            Error::unavailable("the worker is draining").with_retry_after_s(DRAIN_RETRY_AFTER_S)
        } else if let Some(guide) = request.guide.as_ref().filter(|_| !self.guided) {
            guided::unable(guide)
        } else if state.ahead() >= self.shared.capacity {
            let capacity = self.shared.capacity;
            Error::overloaded(format!("the engine's queue is full: {capacity} requests wait already"))
        } else {
            let (queue, wake) = match request.guide {
                None => (&mut state.queue, &self.shared.wake),
                Some(_) => (&mut state.uncompiled, &self.shared.wake_compiler),
            };
            queue.push_back(Submission { request, grammar: None, sink });
            drop(state);
            wake.notify_one();
            return Ok(());
        };
        drop(state);
        sink.fail(refusal.clone());
        Err(refusal)
    }

    /// As of the last step, with what was submitted since.
    pub fn load(&self) -> Load {
        let state = self.shared.lock();
        Load { waiting: state.load.waiting + state.ahead() as u32, ..state.load }
    }

    /// From now on nothing new is taken; what was is finished.
    pub fn begin_drain(&self) {
        self.shared.lock().draining = true;
    }

    /// Tells the thread to end after the step in progress, and does not wait for it. Open requests end as disconnected.
    pub fn stop(&self) {
        self.shared.lock().stopping = true;
        self.shared.wake.notify_one();
        self.shared.wake_compiler.notify_one();
    }

    /// Draining, and nothing is open any more.
    pub fn drained(&self) -> bool {
        let state = self.shared.lock();
        state.exited || (state.draining && state.idle && state.ahead() == 0)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.stop();
        for thread in self.threads.drain(..) {
            // A panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

fn no_thread(error: &std::io::Error) -> Error {
    Error::engine("cannot start the engine's thread").with_detail(error.to_string())
}

/// Compiles one guide after the other: however many there are, they take one core.
fn compile(shared: &Shared, guides: &Guides) {
    while let Some(mut submission) = shared.next_uncompiled() {
        if submission.sink.is_cancelled() {
            submission.sink.fail(Error::cancelled());
            continue;
        }
        match guided::prepare(guides, &submission.request) {
            Ok(grammar) => {
                submission.grammar = grammar;
                shared.pass_on(submission);
            }
            Err(error) => submission.sink.fail(error),
        }
    }
    // What is left of the list is the engine's thread to break off, which ends as well.
}

fn run<M: Model>(mut core: Core<M>, guard: &ExitGuard, observer: &dyn StepObserver) {
    let shared = &guard.0;
    let mut taken = VecDeque::new();
    let mut last = core.load();
    while shared.next(core.has_work(), &mut taken) {
        for Submission { request, grammar, sink } in taken.drain(..) {
            // The sink was told.
            let _ = core.submit_guided(request, grammar, sink);
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
