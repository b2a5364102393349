//! A socket that gives up on a peer which has stopped reading.
//!
//! Such a peer costs the engine nothing, but its connection, its request and the load booked for it would stay for as
//! long as it pleases.

use crate::http::Unwritten;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Fails with [`io::ErrorKind::TimedOut`] once a write has made no progress at all for `timeout`.
pub(crate) struct Stall<S> {
    inner: S,
    timeout: Duration,
    /// Made at the first stall and used again; nothing is armed while writes succeed.
    timer: Option<Pin<Box<Sleep>>>,
    stalled: bool,
    /// For a socket that holds back what was written to it.
    counter: Option<TaskTracker>,
    unflushed: Option<TaskTrackerToken>,
    /// Told of every flush.
    unwritten: Option<Arc<Unwritten>>,
}

impl<S> Stall<S> {
    pub(crate) fn new(inner: S, timeout: Duration) -> Self {
        Self { inner, timeout, timer: None, stalled: false, counter: None, unflushed: None, unwritten: None }
    }

    /// Counts as running from a write until all is flushed.
    pub(crate) fn counted(self, counter: TaskTracker) -> Self {
        Self { counter: Some(counter), ..self }
    }

    /// Tells when everything that came here is written.
    pub(crate) fn telling(self, unwritten: Arc<Unwritten>) -> Self {
        Self { unwritten: Some(unwritten), ..self }
    }

    fn wrote<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if self.unflushed.is_none() && written.is_ready() {
            self.unflushed = self.counter.as_ref().map(TaskTracker::token);
        }
        self.check(cx, written)
    }

    fn check<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = false;
            return written;
        }
        let timeout = self.timeout;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(timeout)));
        if !self.stalled {
            self.stalled = true;
            timer.as_mut().reset(Instant::now() + timeout);
        }
        match timer.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                let text = format!("the client has read nothing for {} ms", timeout.as_millis());
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, text)))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stall<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stall<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.wrote(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, slices);
        self.wrote(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        if flushed.is_ready() {
            self.unflushed = None;
            if let Some(unwritten) = &self.unwritten {
                unwritten.flushed();
            }
        }
        self.check(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS says goodbye, which has to be taken as well.
        let closed = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.check(cx, closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter, duplex};

    /// Last words that nobody takes, as TLS has them.
    #[tokio::test]
    async fn a_goodbye_has_a_limit_too() {
        let (ours, _theirs) = duplex(10);
        let mut socket = Stall::new(BufWriter::new(ours), Duration::from_millis(50));
        socket.write_all(&[7; 34]).await.unwrap();
        let closed = tokio::time::timeout(Duration::from_secs(60), socket.shutdown()).await;
        assert_eq!(closed.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn only_a_reader_that_stands_still_is_given_up() {
        let (ours, mut theirs) = duplex(10);
        let mut socket = Stall::new(ours, Duration::from_secs(1));
        // Longer than the limit in all, each pause far below it.
        let slow = async {
            let mut byte = [0u8; 1];
            for _ in 0..24 {
                tokio::time::sleep(Duration::from_millis(50)).await;
                theirs.read_exact(&mut byte).await.unwrap();
            }
            theirs
        };
        let (written, theirs) = tokio::join!(socket.write_all(&[7; 34]), slow);
        written.unwrap();
        let error = socket.write_all(&[7; 34]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(theirs);
    }
}
