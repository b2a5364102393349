//! Shutdown: the first signal drains, the second stops at once.
//!
//! On SIGINT (Ctrl-C) or SIGTERM the role drains: it withdraws, takes nothing new, finishes what runs, and exits 0. On
//! a second signal it stops where it is and exits [`EXIT_NOW`], as users of the reference system know it
//! (behaviour.md 3.6).

use std::io;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Exit code after a drain that finished.
pub const EXIT_OK: i32 = 0;
/// Exit code for a bad flag, key, file or port.
pub const EXIT_USAGE: i32 = 2;
/// Exit code after a second signal.
pub const EXIT_NOW: i32 = 70;

/// The two moments everything long-lived looks at. Clones are the same moments.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    drain: CancellationToken,
    now: CancellationToken,
}

impl Shutdown {
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancelled when draining begins, and never before.
    pub fn drain(&self) -> &CancellationToken {
        &self.drain
    }

    /// Cancelled when everything must stop; `drain` is cancelled by then too.
    pub fn now(&self) -> &CancellationToken {
        &self.now
    }

    /// One signal: the first begins the drain, any later one stops at once.
    pub fn signal(&self) {
        if self.drain.is_cancelled() {
            self.now.cancel();
        } else {
            self.drain.cancel();
        }
    }

    /// Feeds SIGINT and SIGTERM into [`Shutdown::signal`] until the guard is dropped. Needs a tokio runtime.
    pub fn listen(&self) -> io::Result<Listener> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let shutdown = self.clone();
        let task = tokio::spawn(async move {
            while !shutdown.now.is_cancelled() {
                let received = tokio::select! {
                    received = interrupt.recv() => received,
                    received = terminate.recv() => received,
                };
                if received.is_none() {
                    return;
                }
                shutdown.signal();
            }
        });
        Ok(Listener(task))
    }
}

/// Listens for signals until it is dropped.
pub struct Listener(JoinHandle<()>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn r29_first_signal_drains_second_stops() {
        let shutdown = Shutdown::new();
        let _listener = shutdown.listen().unwrap();
        assert!(!shutdown.drain().is_cancelled());
        shutdown.signal();
        shutdown.drain().cancelled().await;
        assert!(!shutdown.now().is_cancelled());
        shutdown.clone().signal();
        shutdown.now().cancelled().await;
    }
}
