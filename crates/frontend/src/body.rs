//! Reading a request body: content type, size and time limits.

use crate::config::Config;
use dynamo_types::{Class, Error};
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, EXPECT};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bodies up to this size need no share of the memory budget; the number of connections bounds them.
const UNMETERED_BYTES: usize = 32 * 1024;
/// The budget is counted in pieces of this size, so that it fits a semaphore.
const PIECE_BYTES: usize = 64 * 1024;
/// A body over the limit is read to its end (and thrown away) up to this many bytes beyond it, so that a client which
/// writes before it reads sees the 413 and not a reset connection.
const DISCARD_BYTES: u64 = 16 * 1024 * 1024;

/// A body that has been read, and its share of the memory budget.
pub(crate) struct Received {
    pub(crate) bytes: Bytes,
    _permit: Option<OwnedSemaphorePermit>,
}

/// Reads request bodies within the limits of a [`Config`].
pub(crate) struct BodyReader {
    limit_bytes: usize,
    gap: Duration,
    memory: Arc<Semaphore>,
}

impl BodyReader {
    pub(crate) fn new(config: &Config) -> Self {
        let pieces = (config.body_memory_bytes / PIECE_BYTES).min(Semaphore::MAX_PERMITS);
        Self {
            limit_bytes: config.body_limit_bytes,
            gap: Duration::from_millis(config.body_timeout_ms),
            memory: Arc::new(Semaphore::new(pieces)),
        }
    }

    /// The whole body.
    ///
    /// # Errors
    /// 415 for a content type that is not JSON, 413 above the limit, 503 while other requests hold the memory budget,
    /// 400 when the client pauses too long or breaks off.
    pub(crate) async fn read(&self, headers: &HeaderMap, mut body: Incoming) -> Result<Received, Error> {
        if let Err(error) = check_content_type(headers) {
            self.skip(headers, body).await;
            return Err(error);
        }
        let announced = body.size_hint().lower();
        if announced > self.limit_bytes as u64 {
            let waits_for_continue = headers.contains_key(EXPECT);
            if !waits_for_continue && announced <= self.limit_bytes as u64 + DISCARD_BYTES {
                self.discard(&mut body, announced).await;
            }
            return Err(self.too_large(announced));
        }
        let mut reserved = announced as usize;
        let mut permit = match self.reserve(reserved) {
            Ok(permit) => permit,
            Err(error) => {
                self.skip(headers, body).await;
                return Err(error);
            }
        };
        let mut bytes = Vec::with_capacity(announced as usize);
        let mut first = None;
        while let Some(piece) = self.piece(&mut body).await? {
            let total = bytes.len() + piece.len() + first.as_ref().map_or(0, Bytes::len);
            if total > self.limit_bytes {
                drop(bytes);
                self.discard(&mut body, DISCARD_BYTES).await;
                return Err(self.too_large(total as u64));
            }
            if total > reserved {
                // Length unknown (chunked): the share doubles as the buffer does.
                let more = total.max(PIECE_BYTES);
                permit = merge(permit, self.reserve(more)?);
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
        Ok(Received { bytes: first.unwrap_or_else(|| bytes.into()), _permit: permit })
    }

    /// Reads a body that nobody wants to its end, within reason: a connection closed over unread data is reset, and the
    /// client may then never see the answer.
    pub(crate) async fn skip(&self, headers: &HeaderMap, mut body: Incoming) {
        if !headers.contains_key(EXPECT) {
            self.discard(&mut body, DISCARD_BYTES).await;
        }
    }

    async fn piece(&self, body: &mut Incoming) -> Result<Option<Bytes>, Error> {
        loop {
            let frame = tokio::time::timeout(self.gap, body.frame()).await.map_err(|_| {
                Error::invalid(format!("no data of the request body for {} ms", self.gap.as_millis()))
                    .with_code("body_timeout")
            })?;
            match frame {
                None => return Ok(None),
                Some(Err(error)) => {
                    return Err(Error::invalid("the request body broke off").with_detail(error.to_string()));
                }
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data()
                        && !data.is_empty()
                    {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// A share of the budget for a body of `bytes`.
    fn reserve(&self, bytes: usize) -> Result<Option<OwnedSemaphorePermit>, Error> {
        if bytes <= UNMETERED_BYTES {
            return Ok(None);
        }
        let pieces = u32::try_from(bytes.div_ceil(PIECE_BYTES)).unwrap_or(u32::MAX);
        Arc::clone(&self.memory).try_acquire_many_owned(pieces).map(Some).map_err(|_| {
            Error::unavailable("too many large request bodies are being received; try again shortly")
        })
    }

    async fn discard(&self, body: &mut Incoming, bytes: u64) {
        let mut left = bytes;
        while let Ok(Some(piece)) = self.piece(body).await {
            let Some(rest) = left.checked_sub(piece.len() as u64) else { return };
            left = rest;
        }
    }

    fn too_large(&self, found: u64) -> Error {
        Error::client(
            Class::TooLarge,
            format!(
                "the request body has {found} bytes or more; the limit is {} bytes (body_limit_bytes)",
                self.limit_bytes
            ),
        )
        .with_code("body_too_large")
    }
}

fn merge(
    held: Option<OwnedSemaphorePermit>,
    more: Option<OwnedSemaphorePermit>,
) -> Option<OwnedSemaphorePermit> {
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
        let reader = BodyReader::new(&config);
        assert!(reader.reserve(UNMETERED_BYTES).unwrap().is_none());
        let held = reader.reserve(3 * PIECE_BYTES).unwrap();
        assert_eq!(reader.reserve(2 * PIECE_BYTES).unwrap_err().class(), Class::Unavailable);
        drop(held);
        assert!(reader.reserve(4 * PIECE_BYTES).unwrap().is_some());
    }
}
