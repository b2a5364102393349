//! Where deltas wait for their reader.
//!
//! A mailbox holds at most one pending delta: whatever is pushed before the reader comes is merged into it. So the
//! engine never waits, a slow reader gets fewer and larger pieces, and what waits is bounded by the answer itself
//! (DESIGN 3.1). It belongs to no async runtime: any thread may push, any executor may read.

use crate::sync::lock;
use dynamo_types::{Delta, DeltaSink, Error};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// A new, empty mailbox.
pub fn channel() -> (Sender, Receiver) {
    let shared = Arc::new(Shared {
        state: Mutex::new(State { pending: None, end: End::Open, waker: None }),
        cancelled: AtomicBool::new(false),
    });
    (Sender { shared: Arc::clone(&shared) }, Receiver { shared })
}

struct Shared {
    state: Mutex<State>,
    /// Outside the lock, because engines look at it for every sequence of every step.
    cancelled: AtomicBool,
}

struct State {
    pending: Option<Delta>,
    end: End,
    /// Present only while the reader waits.
    waker: Option<Waker>,
}

enum End {
    /// More may come.
    Open,
    /// Nothing comes after what is pending.
    Finished,
    /// This fault comes after what is pending.
    Failed(Error),
}

impl Shared {
    /// Changes the state while the stream is open, then wakes the reader if it waits.
    fn update(&self, change: impl FnOnce(&mut State)) {
        let waker = {
            let mut state = lock(&self.state);
            if !matches!(state.end, End::Open) || self.cancelled.load(Ordering::Acquire) {
                return;
            }
            change(&mut state);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The engine's end. Dropping it before the stream ended tells the reader that the worker broke off.
pub struct Sender {
    shared: Arc<Shared>,
}

impl DeltaSink for Sender {
    fn push(&mut self, delta: Delta) {
        if delta.is_empty() {
            return;
        }
        self.shared.update(|state| {
            if delta.finish.is_some() {
                state.end = End::Finished;
            }
            match &mut state.pending {
                Some(pending) => pending.merge(delta),
                empty => *empty = Some(delta),
            }
        });
    }

    fn fail(&mut self, error: Error) {
        self.shared.update(|state| state.end = End::Failed(error));
    }

    fn is_cancelled(&self) -> bool {
        self.shared.cancelled.load(Ordering::Acquire)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.fail(Error::disconnected("the worker broke off the answer"));
    }
}

/// The reader's end. Dropping it cancels the request.
pub struct Receiver {
    shared: Arc<Shared>,
}

impl Receiver {
    /// Everything that was pushed since the last call, as one delta; after a delta with `finish` set or an error,
    /// `None`. Cancel-safe: a call that is dropped takes nothing.
    pub async fn recv(&mut self) -> Option<Result<Delta, Error>> {
        std::future::poll_fn(|context| self.poll_recv(context)).await
    }

    /// [`Receiver::recv`] for hand-written futures.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Delta, Error>>> {
        let mut state = lock(&self.shared.state);
        if let Some(delta) = state.pending.take() {
            return Poll::Ready(Some(Ok(delta)));
        }
        match std::mem::replace(&mut state.end, End::Finished) {
            End::Finished => Poll::Ready(None),
            End::Failed(error) => Poll::Ready(Some(Err(error))),
            End::Open => {
                state.end = End::Open;
                match &mut state.waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    empty => *empty = Some(context.waker().clone()),
                }
                Poll::Pending
            }
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.cancelled.store(true, Ordering::Release);
        let mut state = lock(&self.shared.state);
        state.pending = None;
        state.waker = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dynamo_types::FinishReason;
    use dynamo_types::draw;

    fn tokens(list: &[u32]) -> Delta {
        Delta { tokens: list.to_vec(), ..Delta::default() }
    }

    fn poll_once(receiver: &mut Receiver) -> Poll<Option<Result<Delta, Error>>> {
        receiver.poll_recv(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn deltas_before_the_reader_are_merged_and_the_end_is_final() {
        let (mut sender, mut receiver) = channel();
        assert_eq!(poll_once(&mut receiver), Poll::Pending);
        sender.push(tokens(&[1, 2]));
        sender.push(Delta::default());
        sender.push(tokens(&[3]));
        sender.push(Delta { finish: Some(FinishReason::Stop), ..Delta::default() });
        sender.push(tokens(&[9]));
        sender.fail(Error::engine("late"));
        let expected = Delta { finish: Some(FinishReason::Stop), ..tokens(&[1, 2, 3]) };
        assert_eq!(poll_once(&mut receiver), Poll::Ready(Some(Ok(expected))));
        assert_eq!(poll_once(&mut receiver), Poll::Ready(None));
        drop(sender);
        assert_eq!(poll_once(&mut receiver), Poll::Ready(None));
    }

    #[test]
    fn faults_come_after_what_was_pushed() {
        let (mut sender, mut receiver) = channel();
        sender.push(tokens(&[1]));
        drop(sender);
        assert_eq!(poll_once(&mut receiver), Poll::Ready(Some(Ok(tokens(&[1])))));
        let Poll::Ready(Some(Err(error))) = poll_once(&mut receiver) else { panic!("no error") };
        assert!(error.retryable());
        assert_eq!(poll_once(&mut receiver), Poll::Ready(None));
    }

    #[test]
    fn r21_dropping_the_reader_cancels() {
        let (mut sender, receiver) = channel();
        assert!(!sender.is_cancelled());
        drop(receiver);
        assert!(sender.is_cancelled());
        sender.push(tokens(&[1]));
        assert!(lock(&sender.shared.state).pending.is_none(), "nothing is kept for a reader that left");
    }

    /// The reader sees the fold of what was pushed, wherever the two threads happen to meet.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn any_interleaving_equals_the_fold() {
        for case in 0..2_000u64 {
            let (mut sender, mut receiver) = channel();
            let pieces: Vec<Delta> = (0..draw::index(case, 0, 12) as u32)
                .map(|i| {
                    let len = draw::index(case, u64::from(i) + 1, 4) as u32;
                    Delta {
                        tokens: (0..len).map(|j| i * 10 + j).collect(),
                        cached_tokens: (i == 0).then_some(7),
                        ..Delta::default()
                    }
                })
                .collect();
            let fails = case % 3 == 0;
            let mut expected = Delta::default();
            pieces.iter().cloned().for_each(|piece| expected.merge(piece));
            if !fails {
                expected.finish = Some(FinishReason::Length);
            }
            let writer = std::thread::spawn(move || {
                for (i, piece) in pieces.into_iter().enumerate() {
                    sender.push(piece);
                    (0..draw::index(case, 100 + i as u64, 3)).for_each(|_| std::thread::yield_now());
                }
                if fails {
                    sender.fail(Error::engine("x"));
                } else {
                    sender.push(Delta { finish: Some(FinishReason::Length), ..Delta::default() });
                }
            });
            let (mut seen, mut error) = (Delta::default(), None);
            while let Some(item) = receiver.recv().await {
                match item {
                    Ok(delta) => seen.merge(delta),
                    Err(fault) => error = Some(fault),
                }
            }
            assert_eq!(seen, expected, "case {case}");
            assert_eq!(error, fails.then(|| Error::engine("x")), "case {case}");
            writer.join().unwrap();
        }
    }

    #[tokio::test]
    async fn a_dropped_recv_takes_nothing() {
        let (mut sender, mut receiver) = channel();
        tokio::select! {
            biased;
            _ = receiver.recv() => panic!("nothing was sent"),
            () = std::future::ready(()) => {}
        }
        sender.push(tokens(&[4]));
        assert_eq!(receiver.recv().await, Some(Ok(tokens(&[4]))));
    }
}
