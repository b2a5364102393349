//! Reading a request body: content type, limits of size, time and memory.

use crate::config::Config;
use dynamo_runtime::CancellationToken;
use dynamo_types::{Class, Error};
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::{Body as _, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, EXPECT};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// Bodies up to this size need no share of the memory budget; the number of connections bounds them.
const UNMETERED_BYTES: usize = 32 * 1024;
/// The budget is counted in pieces of this size, so that it fits a semaphore.
const PIECE_BYTES: usize = 64 * 1024;
/// A body that nobody wants is read to its end before the answer up to this size, so that the connection can be used
/// again. A larger one gets its answer first; then its connection is closed, not without reading on for a while.
const SKIP_BYTES: u64 = 16 * 1024 * 1024;
/// Once the server is to go away, what nobody wants is read for this long at most: it must not hold a drain.
const LAST_BYTES: Duration = Duration::from_secs(1);
/// Least pace of a body, averaged from its first byte on: twice that of a modem. Whoever is slower only occupies memory.
const PACE_BYTES_PER_S: u64 = 16 * 1024;

/// A share of the memory budget.
pub(crate) type Share = Option<OwnedSemaphorePermit>;

/// A body that has been read, and its share of the memory budget.
pub(crate) struct Received {
    pub(crate) bytes: Bytes,
    pub(crate) share: Share,
}

/// A body on its way. Tells its connection if it is dropped before its end.
pub(crate) struct Upload {
    incoming: Incoming,
    ended: bool,
    left_unread: Arc<AtomicBool>,
}

impl Upload {
    pub(crate) fn new(incoming: Incoming, left_unread: Arc<AtomicBool>) -> Self {
        Self { incoming, ended: false, left_unread }
    }

    /// There is none.
    pub(crate) fn is_absent(&self) -> bool {
        self.incoming.is_end_stream()
    }

    /// The length the client has announced; 0 if it has not.
    fn announced(&self) -> u64 {
        self.incoming.size_hint().lower()
    }

    async fn frame(&mut self) -> Option<Result<Frame<Bytes>, hyper::Error>> {
        let frame = self.incoming.frame().await;
        self.ended |= frame.is_none();
        frame
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.ended && !self.incoming.is_end_stream() {
            self.left_unread.store(true, Ordering::Relaxed);
        }
    }
}

/// How fast a body has come so far.
pub(crate) struct Pace {
    begun: Instant,
    gap: Duration,
    bytes: u64,
}

impl Pace {
    fn new(gap: Duration) -> Self {
        Self { begun: Instant::now(), gap, bytes: 0 }
    }

    /// So many more bytes have come.
    pub(crate) fn came(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// When the next piece has to be there.
    pub(crate) fn deadline(&self) -> Instant {
        let earned = Duration::from_secs(self.bytes / PACE_BYTES_PER_S);
        (Instant::now() + self.gap).min(self.begun + self.gap + earned)
    }

    pub(crate) fn missed(&self) -> Error {
        let text = format!(
            "the request body comes too slowly: a pause above {} ms, or less than {PACE_BYTES_PER_S} bytes per second",
            self.gap.as_millis()
        );
        Error::invalid(text).with_code("body_timeout")
    }
}

/// Reads request bodies within the limits of a [`Config`].
pub(crate) struct BodyReader {
    limit_bytes: usize,
    gap: Duration,
    memory: Arc<Semaphore>,
    leaving: CancellationToken,
}

impl BodyReader {
    /// `leaving` is cancelled when the server is to go away.
    pub(crate) fn new(config: &Config, leaving: CancellationToken) -> Self {
        let pieces = (config.body_memory_bytes / PIECE_BYTES).min(Semaphore::MAX_PERMITS);
        Self {
            limit_bytes: config.body_limit_bytes,
            gap: Duration::from_millis(config.body_timeout_ms),
            memory: Arc::new(Semaphore::new(pieces)),
            leaving,
        }
    }

    /// The whole body.
    ///
    /// # Errors
    /// 415 for a content type that is not JSON; as [`BodyReader::read_any`].
    pub(crate) async fn read(&self, headers: &HeaderMap, body: Upload) -> Result<Received, Error> {
        self.read_up_to(self.limit_bytes, headers, body).await
    }

    /// The same for bodies that are known to be small.
    ///
    /// # Errors
    /// As [`BodyReader::read`].
    pub(crate) async fn read_up_to(
        &self,
        limit_bytes: usize,
        headers: &HeaderMap,
        body: Upload,
    ) -> Result<Received, Error> {
        if let Err(error) = check_content_type(headers) {
            self.skip(headers, body).await;
            return Err(error);
        }
        self.receive(limit_bytes.min(self.limit_bytes), headers, body).await
    }

    /// The whole body, of whatever type.
    ///
    /// # Errors
    /// 413 above the limit, 503 while other requests hold the memory budget, 400 when the client is too slow or breaks
    /// off.
    pub(crate) async fn read_any(&self, headers: &HeaderMap, body: Upload) -> Result<Received, Error> {
        self.receive(self.limit_bytes, headers, body).await
    }

    async fn receive(
        &self,
        limit_bytes: usize,
        headers: &HeaderMap,
        mut body: Upload,
    ) -> Result<Received, Error> {
        let announced = body.announced();
        let refused = match announced {
            found if found > limit_bytes as u64 => Err(self.too_large(limit_bytes, found)),
            found => self.reserve(found as usize),
        };
        let mut share = match refused {
            Ok(share) => share,
            Err(error) => {
                self.skip(headers, body).await;
                return Err(error);
            }
        };
        let mut reserved = announced as usize;
        let mut bytes = Vec::with_capacity(announced as usize);
        let mut first = None;
        let mut pace = Pace::new(self.gap);
        while let Some(piece) = piece(&mut body, &mut pace).await? {
            let total = bytes.len() + piece.len() + first.as_ref().map_or(0, Bytes::len);
            if total > limit_bytes {
                return Err(self.too_large(limit_bytes, total as u64));
            }
            if total > reserved {
                // Length unknown (chunked): the share doubles as the buffer does.
                let more = total.max(PIECE_BYTES);
                share = merge(share, self.reserve(more)?);
                reserved += more;
            }
            // A small body comes in one piece and needs no copy.
            match (first.take(), bytes.is_empty()) {
                (None, true) => first = Some(piece),
                (None, false) => bytes.extend_from_slice(&piece),
                (Some(earlier), _) => {
                    bytes.extend_from_slice(&earlier);
                    bytes.extend_from_slice(&piece);
                }
            }
        }
        Ok(Received { bytes: first.unwrap_or_else(|| bytes.into()), share })
    }

    /// Reads a body that nobody wants to its end, within reason.
    pub(crate) async fn skip(&self, headers: &HeaderMap, mut body: Upload) {
        if headers.contains_key(EXPECT) || body.announced() > SKIP_BYTES {
            return;
        }
        let mut pace = Pace::new(self.gap);
        let skipped = async {
            while pace.bytes <= SKIP_BYTES {
                let Ok(Some(_)) = piece(&mut body, &mut pace).await else { return };
            }
        };
        let enough = async {
            self.leaving.cancelled().await;
            tokio::time::sleep(LAST_BYTES).await;
        };
        // Read or not, the answer is the same.
        tokio::select! {
            biased;
            () = skipped => {}
            () = enough => {}
        }
    }

    /// For a body that somebody else reads.
    pub(crate) fn pace(&self) -> Pace {
        Pace::new(self.gap)
    }

    /// A share of the budget for a body of `bytes`.
    ///
    /// # Errors
    /// 503 while other requests hold it.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<Share, Error> {
        if bytes <= UNMETERED_BYTES {
            return Ok(None);
        }
        let pieces = u32::try_from(bytes.div_ceil(PIECE_BYTES)).unwrap_or(u32::MAX);
        Arc::clone(&self.memory).try_acquire_many_owned(pieces).map(Some).map_err(|_| {
            Error::unavailable("too many large request bodies are being received; try again shortly")
        })
    }

    fn too_large(&self, limit_bytes: usize, found: u64) -> Error {
        let whose = if limit_bytes == self.limit_bytes { " (body_limit_bytes)" } else { "" };
        let text =
            format!("the request body has {found} bytes or more; the limit is {limit_bytes} bytes{whose}");
        Error::client(Class::TooLarge, text).with_code("body_too_large")
    }
}

/// The next bytes; none at the end.
async fn piece(body: &mut Upload, pace: &mut Pace) -> Result<Option<Bytes>, Error> {
    loop {
        let frame = timeout_at(pace.deadline(), body.frame()).await.map_err(|_| pace.missed())?;
        match frame {
            None => return Ok(None),
            Some(Err(error)) => {
                return Err(Error::invalid("the request body broke off").with_detail(error.to_string()));
            }
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data()
                    && !data.is_empty()
                {
                    pace.came(data.len());
                    return Ok(Some(data));
                }
            }
        }
    }
}

fn merge(held: Share, more: Share) -> Share {
    match (held, more) {
        (Some(mut held), Some(more)) => {
            held.merge(more);
            Some(held)
        }
        (held, more) => held.or(more),
    }
}

fn check_content_type(headers: &HeaderMap) -> Result<(), Error> {
    let value = headers.get(CONTENT_TYPE).map_or("", |value| value.to_str().unwrap_or("?"));
    let essence = value.split(';').next().unwrap_or("").trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let found = if value.is_empty() { "none".into() } else { format!("{value:?}") };
    Err(Error::client(
        Class::UnsupportedMedia,
        format!("content-type must be application/json; found {found}"),
    )
    .with_param("content-type"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn content_types() {
        let mut headers = HeaderMap::new();
        assert!(check_content_type(&headers).is_err());
        for (value, good) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/json;charset=utf-8", true),
            ("text/plain", false),
            ("application/jsonl", false),
        ] {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(value));
            assert_eq!(check_content_type(&headers).is_ok(), good, "{value}");
        }
    }

    #[test]
    fn the_memory_budget_is_shared_and_returned() {
        let config = Config { body_memory_bytes: 4 * PIECE_BYTES, ..Config::default() };
        let reader = BodyReader::new(&config, CancellationToken::new());
        assert!(reader.reserve(UNMETERED_BYTES).unwrap().is_none());
        let held = reader.reserve(3 * PIECE_BYTES).unwrap();
        assert_eq!(reader.reserve(2 * PIECE_BYTES).unwrap_err().class(), Class::Unavailable);
        drop(held);
        assert!(reader.reserve(4 * PIECE_BYTES).unwrap().is_some());
    }
}
