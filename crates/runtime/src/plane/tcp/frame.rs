//! The frames of the TCP transport: `u32 length | u8 kind | MessagePack body`, the length big-endian and counting the kind
//! and the body. Bodies are maps with named fields: a reader skips fields and kinds it does not know, so the two sides may
//! differ in age.

use super::Error;
use crate::events::{self, Position};
use dynamo_types::{self as types, Delta, InstanceId, KvEventBatch, Load, Request, WorkerRank};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// The version of this protocol. A peer of another one is refused.
pub const VERSION: u32 = 1;

/// Length field and kind.
pub(super) const HEAD_BYTES: usize = 5;

/// Read buffers grow by this much at least: several small frames come in one read.
const READ_BYTES: usize = 16 << 10;

/// What a frame is. The numbers are the wire's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Hello = 1,
    Open = 2,
    Batch = 3,
    Cancel = 4,
    Ping = 5,
    Pong = 6,
    GoAway = 7,
    Subscribe = 8,
    Events = 9,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        const ALL: [Kind; 9] = [
            Kind::Hello,
            Kind::Open,
            Kind::Batch,
            Kind::Cancel,
            Kind::Ping,
            Kind::Pong,
            Kind::GoAway,
            Kind::Subscribe,
            Kind::Events,
        ];
        ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// First frame of either side.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    /// Name and version of the program, for logs.
    #[serde(default)]
    pub(super) agent: String,
    /// The largest frame this side reads.
    pub(super) max_frame_bytes: u64,
    /// The secret both sides share, from the caller only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<String>,
}

/// Begins a stream. The caller numbers its streams, never using a number twice on a connection.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Open {
    pub(super) stream: u64,
    pub(super) instance: InstanceId,
    pub(super) request: Arc<Request>,
}

/// The one field of [`Open`] that a body of any age has.
#[derive(Debug, Deserialize)]
pub(super) struct Opened {
    pub(super) stream: u64,
}

/// What one step of the engines brought, for all streams of the connection.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Batch {
    pub(super) items: Vec<Item>,
}

/// News of one stream. It ends with a delta whose `finish` is set, or with an error.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Item {
    pub(super) stream: u64,
    #[serde(default, skip_serializing_if = "Delta::is_empty")]
    pub(super) delta: Delta,
    /// Comes after the delta.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<types::Error>,
}

/// The caller wants no more of these streams.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Cancel {
    pub(super) streams: Vec<u64>,
}

/// Answered by a pong, whatever else is going on.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Beat {
    pub(super) number: u64,
}

/// The connection is about to be closed, and why.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct GoAway {
    pub(super) reason: String,
}

/// The caller wants the events of all sources, from these positions on.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Subscribe {
    pub(super) positions: Vec<(WorkerRank, Position)>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Events {
    pub(super) events: Vec<Event>,
}

/// [`crate::events::Event`] as it travels.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Event {
    Snapshot(Arc<KvEventBatch>),
    Kv(Arc<KvEventBatch>),
    Load(WorkerRank, Load),
}

impl From<events::Event> for Event {
    fn from(event: events::Event) -> Self {
        match event {
            events::Event::Snapshot(batch) => Self::Snapshot(batch),
            events::Event::Kv(batch) => Self::Kv(batch),
            events::Event::Load(source, load) => Self::Load(source, load),
        }
    }
}

/// Appends one frame.
///
/// # Errors
/// A body above `limit`, the largest frame the peer reads. Nothing is appended then.
pub(super) fn write<T: Serialize>(
    out: &mut Vec<u8>,
    kind: Kind,
    body: &T,
    limit: usize,
) -> Result<(), Error> {
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, kind as u8]);
    if let Err(error) = rmp_serde::encode::write_named(out, body) {
        out.truncate(start);
        return Err(Error::Encode(error.to_string()));
    }
    seal(out, start, limit)
}

/// Writes the length of the last frame, which begins at `start`.
///
/// # Errors
/// It is above `limit`, and taken off again.
pub(super) fn seal(out: &mut Vec<u8>, start: usize, limit: usize) -> Result<(), Error> {
    let length = out.len().saturating_sub(start + 4);
    match (u32::try_from(length), out.get_mut(start..start + 4)) {
        (Ok(wire), Some(head)) if length <= limit => {
            head.copy_from_slice(&wire.to_be_bytes());
            Ok(())
        }
        _ => {
            out.truncate(start);
            Err(Error::FrameTooLarge { found: length as u64, limit: limit as u64 })
        }
    }
}

/// Writes with an end: a peer that takes nothing for `patience` is gone.
pub(super) async fn send<W: AsyncWrite + Unpin>(
    writer: &mut W,
    mut bytes: &[u8],
    patience: Duration,
) -> Result<(), Error> {
    while !bytes.is_empty() {
        let written = timeout(patience, writer.write(bytes))
            .await
            .map_err(|_| Error::Silent(patience))?
            .map_err(|error| Error::Io(error.to_string()))?;
        if written == 0 {
            return Err(Error::Closed);
        }
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Reads a body.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    rmp_serde::from_slice(body).map_err(|error| Error::Decode(error.to_string()))
}

/// Cuts a byte stream into frames.
pub(super) struct Reader<R> {
    io: R,
    buffer: Vec<u8>,
    /// Where the unread part of `buffer` begins.
    start: usize,
    /// The largest frame taken. What a peer announces is not allocated before its bytes come.
    limit: usize,
    /// How long the peer may send nothing. By bytes and not by frames: a large frame on a slow path is a sign of life.
    patience: Duration,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(super) fn new(io: R, limit: usize, patience: Duration) -> Self {
        Self { io, buffer: Vec::new(), start: 0, limit, patience }
    }

    /// Takes larger frames from now on, or smaller ones.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// The next frame of a known kind; `None` at an end between frames. Cancel-safe: what was read stays buffered.
    ///
    /// # Errors
    /// The connection broke, ended inside a frame, or the frame is above the limit.
    pub(super) async fn next(&mut self) -> Result<Option<(Kind, &[u8])>, Error> {
        loop {
            match self.complete()? {
                Some((start, end)) => {
                    self.start = end;
                    let kind = self.buffer.get(start + 4).copied().and_then(Kind::from_byte);
                    if let Some(kind) = kind {
                        let body = self.buffer.get(start + HEAD_BYTES..end).unwrap_or_default();
                        return Ok(Some((kind, body)));
                    }
                }
                None => {
                    if !self.fill().await? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// The bounds of the first frame, if it is there as a whole.
    fn complete(&self) -> Result<Option<(usize, usize)>, Error> {
        let unread = self.buffer.get(self.start..).unwrap_or_default();
        let Some(head) = unread.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes(*head) as usize;
        if length > self.limit {
            return Err(Error::FrameTooLarge { found: length as u64, limit: self.limit as u64 });
        }
        if length == 0 {
            return Err(Error::Decode("a frame without a kind".to_owned()));
        }
        Ok((unread.len() >= 4 + length).then_some((self.start, self.start + 4 + length)))
    }

    /// Reads more; false at the end of the stream.
    async fn fill(&mut self) -> Result<bool, Error> {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        // A burst's buffer is not kept for a quiet connection.
        if self.buffer.is_empty() && self.buffer.capacity() > 64 * READ_BYTES {
            self.buffer = Vec::new();
        }
        self.buffer.reserve(READ_BYTES);
        let read = timeout(self.patience, self.io.read_buf(&mut self.buffer))
            .await
            .map_err(|_| Error::Silent(self.patience))?
            .map_err(|error| Error::Io(error.to_string()))?;
        match read {
            0 if self.buffer.is_empty() => Ok(false),
            0 => Err(Error::Io("the connection ended inside a frame".to_owned())),
            _ => Ok(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dynamo_types::draw;

    #[tokio::test]
    async fn frames_survive_any_chunking() {
        for case in 0..200u64 {
            let mut wire = Vec::new();
            let count = 1 + draw::index(case, 0, 6) as u64;
            for number in 0..count {
                write(&mut wire, Kind::Ping, &Beat { number }, 1 << 20).unwrap();
                // A frame of a kind from the future, to be skipped.
                wire.extend_from_slice(&[0, 0, 0, 3, 200, 1, 2]);
            }
            let (mut near, far) = tokio::io::duplex(1 + draw::index(case, 1, 40));
            let send = async move {
                tokio::io::AsyncWriteExt::write_all(&mut near, &wire).await.unwrap();
            };
            let receive = async move {
                let mut reader = Reader::new(far, 1 << 20, Duration::from_secs(10));
                let mut seen = 0;
                while let Some((kind, body)) = reader.next().await.unwrap() {
                    assert_eq!(kind, Kind::Ping);
                    assert_eq!(parse::<Beat>(body).unwrap().number, seen);
                    seen += 1;
                }
                assert_eq!(seen, count, "case {case}");
            };
            tokio::join!(send, receive);
        }
    }

    #[tokio::test]
    async fn what_is_cut_too_long_or_empty_is_an_error() {
        for (wire, limit, expected) in [
            (vec![0, 0, 1, 0, 1], 100, "256 bytes"),
            (vec![0, 0, 0, 9, 1, 2], 1 << 20, "inside a frame"),
            (vec![0, 0, 0, 0], 1 << 20, "without a kind"),
        ] {
            let error = Reader::new(wire.as_slice(), limit, Duration::from_secs(10))
                .next()
                .await
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_body_above_the_limit_leaves_nothing_behind() {
        let mut out = vec![7];
        let error = write(&mut out, Kind::GoAway, &GoAway { reason: "x".repeat(99) }, 50).unwrap_err();
        assert!(error.to_string().contains("limit 50"), "{error}");
        assert_eq!(out, [7]);
    }

    #[test]
    fn fields_from_the_future_are_skipped() {
        #[derive(Serialize)]
        struct Newer {
            number: u64,
            colour: &'static str,
        }
        let mut out = Vec::new();
        write(&mut out, Kind::Ping, &Newer { number: 4, colour: "green" }, 1 << 20).unwrap();
        assert_eq!(parse::<Beat>(&out[HEAD_BYTES..]).unwrap().number, 4);
    }
}
