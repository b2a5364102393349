//! The engine on its own thread.

use crate::common::{Reader, Told, alone, core, options, poll, request, wait};
use dynamo_engine::handle::Handle;
use dynamo_scheduler::Options;
use dynamo_types::{Class, StepObserver, StepReport};
use std::sync::{Arc, Condvar, Mutex};

/// Keeps reports, and can hold the engine's thread between two steps.
#[derive(Default)]
struct Observer {
    reports: Mutex<Vec<StepReport>>,
    changed: Condvar,
    gate: Mutex<()>,
}

impl Observer {
    fn wait(&self, until: impl Fn(&[StepReport]) -> bool) {
        wait(&self.reports, &self.changed, |reports| until(reports));
    }
}

impl StepObserver for Observer {
    fn on_step(&self, report: StepReport) {
        self.reports.lock().unwrap().push(report);
        self.changed.notify_all();
        drop(self.gate.lock().unwrap());
    }
}

fn engine(options: Options) -> (Handle, Arc<Observer>) {
    let observer = Arc::new(Observer::default());
    (Handle::spawn(core(options, &[]), observer.clone()).unwrap(), observer)
}

fn submit(handle: &Handle, prompt: &[u32], max_tokens: u32) -> Reader {
    let reader = Reader::default();
    handle.submit(Arc::new(request(prompt, max_tokens)), reader.sink()).unwrap();
    reader
}

fn over(told: &Told) -> bool {
    told.over
}

#[test]
fn many_clients_get_what_they_would_get_alone() {
    let (handle, observer) = engine(options(60));
    std::thread::scope(|scope| {
        for client in 0..8u32 {
            let handle = &handle;
            scope.spawn(move || {
                for turn in 0..10 {
                    let prompt: Vec<u32> = (0..20 + turn).map(|i| (i * 3 + client % 3) % 80).collect();
                    let reader = submit(handle, &prompt, 20);
                    reader.wait(over);
                    assert_eq!(reader.tokens(), alone(&request(&prompt, 20), 512, &[]).tokens);
                }
            });
        }
    });
    let idle = |report: &StepReport| (report.load.running, report.load.waiting) == (0, 0);
    observer.wait(|reports| reports.last().is_some_and(idle));
    let load = handle.load();
    assert_eq!((load.active_blocks, load.prefill_tokens, load.total_blocks), (0, 0, 60));
    let sampled: u32 = observer.reports.lock().unwrap().iter().map(|report| report.decode_tokens).sum();
    assert_eq!(sampled, 8 * 10 * 20);
}

#[test]
fn r21_a_reader_that_leaves_frees_its_blocks() {
    let (handle, _) = engine(options(200));
    let readers: Vec<_> = (0..20).map(|i| submit(&handle, &[i, 1, 2], 500)).collect();
    readers.iter().for_each(Reader::cancel);
    readers.iter().for_each(|reader| reader.wait(over));
    poll(|| (handle.load().active_blocks, handle.load().running) == (0, 0));
    assert!(readers.iter().all(|reader| reader.tokens().len() < 500));
}

#[test]
fn r29_drain_refuses_the_new_and_finishes_the_old() {
    let (handle, observer) = engine(options(200));
    let gate = observer.gate.lock().unwrap();
    let running = submit(&handle, &[1, 2, 3], 50);
    running.wait(|told| told.deltas > 0);
    let waiting = submit(&handle, &[4, 5, 6], 50);
    assert!(!handle.drained());
    handle.begin_drain();
    assert!(!handle.drained());
    let refused = Reader::default();
    let error = handle.submit(Arc::new(request(&[7], 5)), refused.sink()).unwrap_err();
    assert_eq!((error.class(), error.retryable()), (Class::Unavailable, true));
    assert!(error.retry_after_s().is_some());
    assert_eq!(refused.with(|told| told.error.clone()), Some(error));
    drop(gate);
    for reader in [running, waiting] {
        reader.wait(over);
        assert_eq!(reader.answer().tokens.len(), 50);
    }
    poll(|| handle.drained());
}

#[test]
fn r06_dropping_the_engine_ends_every_stream() {
    let (handle, observer) = engine(Options { max_num_seqs: 2, ..options(200) });
    let gate = observer.gate.lock().unwrap();
    let readers: Vec<_> = (0..5).map(|i| submit(&handle, &[i, 1], 400)).collect();
    readers[0].wait(|told| told.deltas > 0);
    let late = submit(&handle, &[50], 400);
    handle.stop();
    drop(gate);
    drop(handle);
    for reader in readers.iter().chain([&late]) {
        reader.wait(over);
        let error = reader.with(|told| told.error.clone()).unwrap();
        assert_eq!((error.class(), error.side()), (Class::Unavailable, dynamo_types::Side::Network));
    }
}

#[test]
fn a_full_queue_is_overload() {
    let (handle, observer) = engine(Options { max_num_seqs: 1, max_waiting: 3, ..options(200) });
    let gate = observer.gate.lock().unwrap();
    let first = submit(&handle, &[1], 4);
    first.wait(|told| told.deltas > 0);
    let queued: Vec<_> = (0..4).map(|i| submit(&handle, &[i], 4)).collect();
    let error = handle.submit(Arc::new(request(&[9], 4)), Reader::default().sink()).unwrap_err();
    assert_eq!(error.class(), Class::Overloaded);
    assert!(handle.load().waiting >= 4);
    drop(gate);
    // The engine holds one already, so one of the four is too many for it.
    queued.iter().for_each(|reader| reader.wait(over));
    let refused = queued.iter().filter(|reader| reader.with(|told| told.error.is_some())).count();
    assert_eq!(refused, 1);
}

#[test]
fn an_observer_that_panics_breaks_streams_but_hangs_nobody() {
    struct Broken;
    impl StepObserver for Broken {
        fn on_step(&self, report: StepReport) {
            assert_eq!(report.load.total_blocks, 0, "told to panic");
        }
    }
    let handle = Handle::spawn(core(options(100), &[]), Arc::new(Broken)).unwrap();
    let reader = Reader::default();
    handle.submit(Arc::new(request(&[1], 50)), reader.sink()).unwrap();
    reader.wait(over);
    poll(|| handle.drained());
    let error = handle.submit(Arc::new(request(&[1], 5)), Reader::default().sink()).unwrap_err();
    assert_eq!(error.class(), Class::Unavailable);
}
