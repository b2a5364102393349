//! A client's TCP connection in two hands: one reads and writes it, the other looks after it meanwhile, and to the end.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, timeout, timeout_at};

/// After the last answer, what the client still sends is read and thrown away for this long at most ...
const LINGER: Duration = Duration::from_secs(30);
/// ... as long as it comes without pauses above this ...
const LINGER_GAP: Duration = Duration::from_secs(2);
/// ... and is not more than this: some times the largest body, which only a client that never stops gets through.
const LINGER_BYTES: usize = 1 << 30;
/// Read at a time.
const SCRATCH_BYTES: usize = 64 * 1024;

/// The hand that reads and writes.
pub(crate) struct Socket {
    read: OwnedReadHalf,
    shared: Arc<Both>,
}

/// The hand that looks on.
pub(crate) struct Watch(Arc<Both>);

struct Both {
    /// Writes need no exclusive access, so this half can be looked at too.
    write: OwnedWriteHalf,
    /// Reads and writes that did something. Only [`Socket`] counts, and it is in one place at a time.
    moves: AtomicU64,
}

impl Both {
    fn moved(&self) {
        self.moves.store(self.moves.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    fn stream(&self) -> &TcpStream {
        self.write.as_ref()
    }
}

pub(crate) fn split(stream: TcpStream) -> (Socket, Watch) {
    let (read, write) = stream.into_split();
    let shared = Arc::new(Both { write, moves: AtomicU64::new(0) });
    (Socket { read, shared: Arc::clone(&shared) }, Watch(shared))
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.read).poll_read(cx, buffer);
        if read.is_ready() {
            self.shared.moved();
        }
        read
    }
}

impl Socket {
    fn poll_with<T>(
        &self,
        cx: &mut Context<'_>,
        mut write: impl FnMut(&TcpStream) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let stream = self.shared.stream();
        loop {
            ready!(stream.poll_write_ready(cx))?;
            match write(stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => {
                    self.shared.moved();
                    return Poll::Ready(written);
                }
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |stream| stream.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The kernel has it.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(shut_down(self.shared.stream()))
    }
}

fn shut_down(stream: &TcpStream) -> io::Result<()> {
    match socket2::SockRef::from(stream).shutdown(Shutdown::Write) {
        Err(error) if error.kind() != io::ErrorKind::NotConnected => Err(error),
        _ => Ok(()),
    }
}

impl Watch {
    /// Does [`Watch::hung_up`] see anything on this system?
    pub(crate) const SEES_HANG_UPS: bool = cfg!(any(target_os = "linux", target_os = "android"));

    /// Grows with every read and write that did something.
    pub(crate) fn moves(&self) -> u64 {
        self.0.moves.load(Ordering::Relaxed)
    }

    /// The first byte that comes; none if the client leaves without one.
    pub(crate) async fn first_byte(&self) -> io::Result<Option<u8>> {
        let mut first = [0];
        let found = self.0.stream().peek(&mut first).await?;
        Ok((found > 0).then_some(first[0]))
    }

    /// Until the client has said that nothing more comes from it, be it read or not.
    ///
    /// Readiness for urgent data is what this asks for, because it comes with "the other side closed" and without
    /// "there is something to read", which may stay true for as long as nobody reads.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) async fn hung_up(&self) {
        use tokio::io::Interest;
        let stream = self.0.stream();
        loop {
            match stream.ready(Interest::PRIORITY).await {
                Ok(ready) if !ready.is_read_closed() => {
                    let clear = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
                    let _ = stream.try_io(Interest::PRIORITY, clear);
                }
                _ => return,
            }
        }
    }

    /// Elsewhere only reading tells.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(crate) async fn hung_up(&self) {
        std::future::pending().await
    }

    /// Ends the answer and reads what the client still sends, within limits: a connection closed over unread data is
    /// reset, and the client may then never see the answer.
    pub(crate) async fn linger(&self) {
        let stream = self.0.stream();
        if shut_down(stream).is_err() {
            return;
        }
        let end = Instant::now() + LINGER;
        let mut scratch = vec![0; SCRATCH_BYTES];
        let mut left = LINGER_BYTES;
        while let Ok(Ok(Ok(()))) = timeout_at(end, timeout(LINGER_GAP, stream.readable())).await {
            match stream.try_read(&mut scratch) {
                Ok(0) => return,
                Ok(read) => match left.checked_sub(read) {
                    Some(rest) => left = rest,
                    None => return,
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }
}
