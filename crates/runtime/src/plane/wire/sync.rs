//! Booking sync over a connection: the caller says what it places on the workers behind it, the worker what its other
//! callers do.
//!
//! Both ends read a board and write on another. What is to be said waits a moment for company: it rides with whatever is
//! written anyway, and costs a write of its own at most every [`LINGER`].

use super::Error;
use super::frame::{self, Kind};
use crate::bookings::{Exchange, News, Peers, Reader, Writer};
use crate::sync::lock;
use dynamo_types::{InstanceId, Placement};
use serde::{Deserialize, Serialize};
use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// How old news get before they are written by themselves: two of these and the way is how much later another frontend
/// knows.
const LINGER: Duration = Duration::from_millis(2);
/// Block hashes and placements of one frame, about: half a megabyte.
const FRAME_HASHES: usize = 64 << 10;
const FRAME_PLACEMENTS: usize = 8 << 10;

/// Kind 10.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Bookings {
    /// Who the caller is; in its first frame, which also says that it wants to hear of others.
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    put: Vec<(u64, Placement)>,
    /// Number, prefill tokens, thousandths of output blocks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changed: Vec<(u64, u64, u64)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ended: Vec<u64>,
}

impl From<News> for Bookings {
    fn from(news: News) -> Self {
        let change =
            |change: crate::bookings::Change| (change.number, change.prefill_tokens, change.output_millis);
        Self {
            origin: None,
            put: news.put,
            changed: news.changed.into_iter().map(change).collect(),
            ended: news.ended.into_iter().map(|(number, _)| number).collect(),
        }
    }
}

impl Bookings {
    fn len(&self) -> usize {
        self.put.len() + self.changed.len() + self.ended.len()
    }

    /// The later part of more than one thing; neither part is empty.
    fn split(&mut self) -> Self {
        let (puts, changes, ends) = (self.put.len(), self.changed.len(), self.ended.len());
        let kinds = [puts, changes, ends].into_iter().filter(|len| *len > 0).count();
        // One kind is halved; of several the first stays as it is.
        let (put, changed, ended) = match kinds {
            0 | 1 => (puts / 2, changes / 2, ends / 2),
            _ if puts > 0 => (puts, 0, 0),
            _ => (0, changes, 0),
        };
        Self {
            origin: None,
            put: self.put.split_off(put),
            changed: self.changed.split_off(changed),
            ended: self.ended.split_off(ended),
        }
    }

    fn write_on(self, writer: &Writer) {
        self.put.into_iter().for_each(|(number, placement)| writer.put(number, placement));
        self.changed.into_iter().for_each(|(number, prefill, output)| writer.change(number, prefill, output));
        self.ended.into_iter().for_each(|number| writer.end(number));
    }
}

/// What one end says.
#[derive(Default)]
pub(super) struct Says {
    reader: Option<Reader>,
    /// Since when something waits.
    since: Option<Instant>,
    /// Still to be sent.
    origin: Option<u64>,
}

impl Says {
    /// A caller's end.
    pub(super) fn caller(peers: Option<&Peers>, workers: &[InstanceId]) -> Self {
        Self {
            reader: peers.map(|peers| peers.own().reader(None, Some(workers))),
            since: None,
            origin: peers.map(Peers::origin),
        }
    }

    /// The workers behind the connection are these by now.
    pub(super) fn want(&self, workers: &[InstanceId]) {
        if let Some(reader) = &self.reader {
            workers.iter().for_each(|worker| reader.want(*worker));
        }
    }

    /// Completes when something has waited long enough. Cancel-safe.
    pub(super) async fn due(&mut self) {
        let Some(reader) = &self.reader else { return std::future::pending().await };
        let since = match self.since {
            Some(since) => since,
            None => {
                reader.changed().await;
                *self.since.insert(Instant::now())
            }
        };
        sleep_until(since + LINGER).await;
    }

    /// Appends what is to be said now.
    pub(super) fn append(&mut self, bytes: &mut Vec<u8>, peer_limit: usize) -> Result<(), Error> {
        let Some(reader) = &self.reader else { return Ok(()) };
        self.since = None;
        let mut body = Bookings::from(reader.take(FRAME_HASHES, FRAME_PLACEMENTS));
        body.origin = self.origin.take();
        if body.origin.is_none() && body.len() == 0 {
            return Ok(());
        }
        write(bytes, body, peer_limit)
    }
}

/// As one frame, or as several if the peer takes no larger ones.
fn write(bytes: &mut Vec<u8>, mut body: Bookings, peer_limit: usize) -> Result<(), Error> {
    match frame::write(bytes, Kind::Bookings, &body, peer_limit) {
        Err(Error::FrameTooLarge { .. }) if body.len() > 1 => {
            let rest = body.split();
            write(bytes, body, peer_limit)?;
            write(bytes, rest, peer_limit)
        }
        Err(error @ Error::FrameTooLarge { .. }) => {
            tracing::warn!(%error, "a placement is larger than the peer takes");
            match body.origin {
                Some(_) => frame::write(
                    bytes,
                    Kind::Bookings,
                    &Bookings { origin: body.origin, ..Bookings::default() },
                    peer_limit,
                ),
                None => Ok(()),
            }
        }
        written => written,
    }
}

/// What a caller hears of others, until the connection ends.
pub(super) struct Hears(Option<Writer>);

impl Hears {
    pub(super) fn caller(peers: Option<&Peers>) -> Self {
        Self(peers.map(|peers| peers.heard().writer(None)))
    }

    pub(super) fn hear(&self, body: &[u8]) -> Result<(), Error> {
        let Some(writer) = &self.0 else { return Ok(()) };
        frame::parse::<Bookings>(body)?.write_on(writer);
        Ok(())
    }
}

/// A worker's end, the listening half; the speaking half takes its reader from here.
#[derive(Default)]
pub(super) struct Relay {
    reader: Mutex<Option<Reader>>,
}

impl Relay {
    /// What a caller says. The first time it makes a `voice`, and a reader, which `made` tells of.
    pub(super) fn hear(
        &self,
        body: &[u8],
        board: &Exchange,
        voice: &mut Option<Writer>,
        made: &Notify,
    ) -> Result<(), Error> {
        let bookings: Bookings = frame::parse(body)?;
        if let Some(origin) = bookings.origin
            && voice.is_none()
        {
            *voice = Some(board.writer(Some(origin)));
            *lock(&self.reader) = Some(board.reader(Some(origin), None));
            made.notify_one();
        }
        if let Some(writer) = voice {
            bookings.write_on(writer);
        }
        Ok(())
    }

    /// The speaking half begins, or goes on.
    pub(super) fn give(&self, says: &mut Says) {
        if let Some(reader) = lock(&self.reader).take() {
            *says = Says { reader: Some(reader), since: None, origin: None };
        }
    }
}

#[cfg(test)]
mod tests;
