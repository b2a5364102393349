//! A future that is polled only when it was woken, whatever else wakes its task.
//!
//! A task that streams is woken for every token. What it waits for besides, such as the client's goodbye, would be asked
//! each time, which takes a lock; whether it was woken is one look at a flag.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

pub(crate) struct Aside<F> {
    future: Pin<Box<F>>,
    /// None until the first poll.
    bell: Option<Bell>,
}

struct Bell {
    ring: Arc<Ring>,
    /// Of `ring`.
    waker: Waker,
}

struct Ring {
    rung: AtomicBool,
    task: Waker,
}

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The flag first: the poll that follows the wake-up must see it.
        self.rung.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}

impl Bell {
    fn of(task: &Waker) -> Self {
        let ring = Arc::new(Ring { rung: AtomicBool::new(true), task: task.clone() });
        let waker = Waker::from(Arc::clone(&ring));
        Self { ring, waker }
    }
}

impl<F: Future> Aside<F> {
    pub(crate) fn new(future: F) -> Self {
        Self { future: Box::pin(future), bell: None }
    }

    /// Changes the future, which is polled the next time whatever wakes it.
    pub(crate) fn change(&mut self, how: impl FnOnce(Pin<&mut F>)) {
        how(self.future.as_mut());
        self.bell = None;
    }
}

impl<F: Future> Future for Aside<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, bell } = &mut *self;
        // Whoever polls may hand it on to another task.
        if bell.as_ref().is_some_and(|bell| !bell.ring.task.will_wake(cx.waker())) {
            *bell = None;
        }
        let bell = bell.get_or_insert_with(|| Bell::of(cx.waker()));
        if !bell.ring.rung.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        // Before the poll: a wake-up during it is for the next one.
        bell.ring.rung.swap(false, Ordering::AcqRel);
        future.as_mut().poll(&mut Context::from_waker(&bell.waker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::time::Duration;
    use tokio::sync::oneshot;
    use tokio::time::{Instant, sleep};

    fn poll(aside: Pin<&mut Aside<impl Future<Output = ()>>>, waker: &Waker) -> Poll<()> {
        aside.poll(&mut Context::from_waker(waker))
    }

    #[test]
    fn it_is_polled_at_first_when_woken_and_by_another_task() {
        let mut count = 0;
        let (hand_out, handed) = std::sync::mpsc::channel();
        let inner = poll_fn(|cx| {
            count += 1;
            hand_out.send(cx.waker().clone()).unwrap();
            if count == 3 { Poll::Ready(()) } else { Poll::Pending }
        });
        let mut aside = pin!(Aside::new(inner));
        let task = Waker::noop();
        assert_eq!(poll(aside.as_mut(), task), Poll::Pending);
        let inner_waker = handed.try_recv().unwrap();
        assert_eq!(poll(aside.as_mut(), task), Poll::Pending);
        assert!(handed.try_recv().is_err(), "nothing woke it");
        inner_waker.wake();
        assert_eq!(poll(aside.as_mut(), task), Poll::Pending);
        assert!(handed.try_recv().is_ok());
        let other = Waker::from(Arc::new(Ring { rung: AtomicBool::new(false), task: task.clone() }));
        assert_eq!(poll(aside.as_mut(), &other), Poll::Ready(()), "the new task is to be woken");
    }

    #[tokio::test]
    async fn a_timer_that_is_set_again_fires_again() {
        let begun = Instant::now();
        let mut timer = Aside::new(sleep(Duration::from_millis(2)));
        for _ in 0..3 {
            (&mut timer).await;
            timer.change(|sleep| sleep.reset(Instant::now() + Duration::from_millis(2)));
        }
        tokio::time::timeout(Duration::from_secs(60), timer).await.unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(8));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_wake_up_is_lost_between_threads() {
        for _ in 0..2_000 {
            let (sender, receiver) = oneshot::channel();
            let waiting = tokio::spawn(Aside::new(receiver));
            sender.send(5).unwrap();
            assert_eq!(waiting.await.unwrap(), Ok(5));
        }
    }
}
