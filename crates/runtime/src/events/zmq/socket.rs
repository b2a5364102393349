//! Connections between sockets of ZMQ: made, greeted, and read message by message.

use super::zmtp::{self, COMMAND, GREETING_BYTES, MORE};
use super::{Endpoint, Error};
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::timeout;

/// The largest message: the events of a step that stored a million tokens fit many times.
const MAX_MESSAGE_BYTES: u64 = 64 << 20;

/// Parts of a message; ours have four at most, with room for the future's.
const MAX_PARTS: usize = 16;

/// How long connecting and the handshake may take, and one write.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

const READ_BYTES: usize = 16 << 10;

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection after its handshake.
pub(super) struct Connection {
    pub(super) reader: Reader,
    pub(super) writer: Writer,
}

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    Message(Vec<Vec<u8>>),
    /// The body of a command, name included.
    Command(Vec<u8>),
}

pub(super) struct Reader {
    io: ReadHalf<Box<dyn Io>>,
    buffer: Vec<u8>,
    /// Where the unread part of `buffer` begins.
    start: usize,
    /// The parts of the message so far.
    parts: Vec<Vec<u8>>,
    /// The peer answers pings.
    pub(super) answers_pings: bool,
}

pub(super) struct Writer(WriteHalf<Box<dyn Io>>);

/// A pair of sockets that belong together: ours, and what the other side may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) ours: &'static str,
    pub(super) theirs: &'static [&'static str],
}

pub(super) const SUB: Pair = Pair { ours: "SUB", theirs: &["PUB", "XPUB"] };
pub(super) const PUB: Pair = Pair { ours: "PUB", theirs: &["SUB", "XSUB"] };
pub(super) const DEALER: Pair = Pair { ours: "DEALER", theirs: &["ROUTER", "REP", "DEALER"] };
pub(super) const ROUTER: Pair = Pair { ours: "ROUTER", theirs: &["DEALER", "REQ", "ROUTER"] };

/// Connects, at most [`PATIENCE`] long.
pub(super) async fn connect(endpoint: &Endpoint, pair: Pair) -> Result<Connection, Error> {
    let connecting = async {
        let io: Box<dyn Io> = match endpoint {
            Endpoint::Tcp { host, port } => {
                let host = if host == "*" { "127.0.0.1" } else { host };
                let socket = TcpStream::connect((host, *port)).await?;
                socket.set_nodelay(true)?;
                Box::new(socket)
            }
            Endpoint::Ipc(path) => Box::new(UnixStream::connect(path).await?),
        };
        greet(io, pair).await
    };
    timeout(PATIENCE, connecting).await.map_err(|_| Error::Silent(PATIENCE))?
}

/// A bound socket. Dropping it takes the file of an `ipc` endpoint away.
pub(super) enum Listener {
    Tcp(TcpListener),
    Ipc { listener: UnixListener, _file: Unlink },
}

pub(super) struct Unlink(PathBuf);

impl Drop for Unlink {
    fn drop(&mut self) {
        // If somebody else took it away there is nothing to do.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    pub(super) async fn bind(endpoint: &Endpoint) -> Result<Self, Error> {
        match endpoint {
            Endpoint::Tcp { host, port } => {
                let host = if host == "*" { "0.0.0.0" } else { host };
                Ok(Self::Tcp(TcpListener::bind((host, *port)).await?))
            }
            Endpoint::Ipc(path) => {
                // As libzmq does: the file of a process that was killed is in nobody's way, one that is served is.
                if UnixStream::connect(path).await.is_err_and(|error| is_orphan(&error)) {
                    let _ = std::fs::remove_file(path);
                }
                let listener = UnixListener::bind(path)?;
                Ok(Self::Ipc { listener, _file: Unlink(path.clone()) })
            }
        }
    }

    /// Where it is reached, with the port that was given to it.
    pub(super) fn endpoint(&self, wanted: &Endpoint) -> Endpoint {
        match (self, wanted) {
            (Self::Tcp(listener), Endpoint::Tcp { host, port }) => Endpoint::Tcp {
                host: host.clone(),
                port: listener.local_addr().map_or(*port, |address| address.port()),
            },
            _ => wanted.clone(),
        }
    }

    /// The next connection, before its handshake. Cancel-safe.
    pub(super) async fn accept(&self) -> Result<Accepted, Error> {
        match self {
            Self::Tcp(listener) => {
                let (socket, _) = listener.accept().await?;
                socket.set_nodelay(true)?;
                Ok(Accepted(Box::new(socket)))
            }
            Self::Ipc { listener, .. } => {
                let (socket, _) = listener.accept().await?;
                Ok(Accepted(Box::new(socket)))
            }
        }
    }
}

fn is_orphan(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::ConnectionRefused
}

/// A connection whose peer has not been greeted yet.
pub(super) struct Accepted(Box<dyn Io>);

impl Accepted {
    pub(super) async fn greet(self, pair: Pair) -> Result<Connection, Error> {
        timeout(PATIENCE, greet(self.0, pair)).await.map_err(|_| Error::Silent(PATIENCE))?
    }
}

async fn greet(io: Box<dyn Io>, pair: Pair) -> Result<Connection, Error> {
    let (read, write) = tokio::io::split(io);
    let mut reader =
        Reader { io: read, buffer: Vec::new(), start: 0, parts: Vec::new(), answers_pings: false };
    let mut writer = Writer(write);
    writer.send(&zmtp::greeting()).await?;
    let mut greeting = [0; GREETING_BYTES];
    reader.io.read_exact(&mut greeting).await?;
    reader.answers_pings = zmtp::check_greeting(&greeting)? > 0;
    writer.send(&zmtp::ready(pair.ours)).await?;
    let Incoming::Command(body) = reader.next().await? else {
        return Err(Error::Protocol("a message before the handshake".to_owned()));
    };
    let wrong = |reason: &[u8]| Error::Protocol(String::from_utf8_lossy(reason).into_owned());
    match zmtp::command(&body) {
        Some((b"READY", properties)) => {
            let found = zmtp::socket_type(properties).unwrap_or_default();
            if pair.theirs.iter().any(|name| name.as_bytes() == found) {
                return Ok(Connection { reader, writer });
            }
            let found = String::from_utf8_lossy(found);
            Err(Error::Protocol(format!("expected one of {:?}, found {found:?}", pair.theirs)))
        }
        Some((b"ERROR", reason)) => Err(wrong(reason.get(1..).unwrap_or_default())),
        _ => Err(wrong(b"no READY in the handshake")),
    }
}

impl Writer {
    /// Writes with an end: a peer that takes nothing for [`PATIENCE`] is gone.
    pub(super) async fn send(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            let written =
                timeout(PATIENCE, self.0.write(bytes)).await.map_err(|_| Error::Silent(PATIENCE))??;
            if written == 0 {
                return Err(Error::Io("the peer closed the connection".to_owned()));
            }
            bytes = bytes.get(written..).unwrap_or_default();
        }
        Ok(())
    }
}

impl Reader {
    /// The next message or command. Cancel-safe: what was read stays.
    pub(super) async fn next(&mut self) -> Result<Incoming, Error> {
        loop {
            let Some((flags, body)) = self.frame()? else {
                self.fill().await?;
                continue;
            };
            if flags & COMMAND != 0 {
                return Ok(Incoming::Command(body));
            }
            self.parts.push(body);
            if flags & MORE == 0 {
                return Ok(Incoming::Message(std::mem::take(&mut self.parts)));
            }
            if self.parts.len() >= MAX_PARTS {
                return Err(Error::Protocol(format!("a message of more than {MAX_PARTS} parts")));
            }
        }
    }

    /// The first frame, if it is there as a whole. What a peer announces is not allocated before its bytes come.
    fn frame(&mut self) -> Result<Option<(u8, Vec<u8>)>, Error> {
        let unread = self.buffer.get(self.start..).unwrap_or_default();
        let Some(head) = zmtp::read_head(unread) else { return Ok(None) };
        let before: usize = self.parts.iter().map(Vec::len).sum();
        let found = head.body_bytes.saturating_add(before as u64);
        if found > MAX_MESSAGE_BYTES {
            return Err(Error::TooLarge { found, limit: MAX_MESSAGE_BYTES });
        }
        let end = head.head_bytes + head.body_bytes as usize;
        let Some(body) = unread.get(head.head_bytes..end) else { return Ok(None) };
        let body = body.to_vec();
        self.start += end;
        Ok(Some((head.flags, body)))
    }

    async fn fill(&mut self) -> Result<(), Error> {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        // A burst's buffer is not kept for a quiet connection.
        if self.buffer.is_empty() && self.buffer.capacity() > 64 * READ_BYTES {
            self.buffer = Vec::new();
        }
        self.buffer.reserve(READ_BYTES);
        match self.io.read_buf(&mut self.buffer).await {
            Ok(0) => Err(Error::Io("the peer closed the connection".to_owned())),
            Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
