//! Server-sent events: reading them from any chunking, and writing comments and named events.

use crate::escape::Sink;
use bytes::BytesMut;
use std::collections::VecDeque;
use std::fmt;

/// One event, as the HTML standard defines its fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The type, when one was given.
    pub event: Option<String>,
    /// The last id seen on the stream.
    pub id: Option<String>,
    /// Lines joined by `\n`.
    pub data: String,
}

/// The stream is not one this reader accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A line is longer than `limit` bytes.
    LineTooLong { limit: usize },
    /// The data of one event is longer than `limit` bytes.
    EventTooLong { limit: usize },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LineTooLong { limit } => {
                write!(f, "a line of the event stream is longer than {limit} bytes")
            }
            Self::EventTooLong { limit } => {
                write!(f, "an event of the event stream is longer than {limit} bytes")
            }
        }
    }
}

impl std::error::Error for Error {}

/// Longest line, and longest event data, by default: room for a chunk that carries a whole long answer.
pub const MAX_BYTES: usize = 16 << 20;

/// Incremental reader. Bytes go in with [`Reader::push`] in any pieces, events come out of [`Reader::next_event`].
///
/// Lines may end in LF, CR or CRLF; a byte order mark at the start, comments and unknown fields are skipped; an event
/// without data is none; an unfinished event at the end of the stream is dropped. After an error nothing more comes.
#[derive(Debug)]
pub struct Reader {
    limit: usize,
    line: Vec<u8>,
    after_cr: bool,
    first_line: bool,
    pending: Event,
    has_data: bool,
    ready: VecDeque<Event>,
    failed: Option<Error>,
}

impl Default for Reader {
    fn default() -> Self {
        Self::new(MAX_BYTES)
    }
}

impl Reader {
    /// `limit` bounds each line and the data of each event, in bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            line: Vec::new(),
            after_cr: false,
            first_line: true,
            pending: Event::default(),
            has_data: false,
            ready: VecDeque::new(),
            failed: None,
        }
    }

    /// Takes the next piece of the stream.
    ///
    /// # Errors
    /// A line or event above the limit, now or in an earlier call.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        loop {
            if self.after_cr && !bytes.is_empty() {
                self.after_cr = false;
                bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
            }
            let end = memchr::memchr2(b'\n', b'\r', bytes);
            let part = &bytes[..end.unwrap_or(bytes.len())];
            if self.line.len() + part.len() > self.limit {
                return self.fail(Error::LineTooLong { limit: self.limit });
            }
            let Some(end) = end else {
                self.line.extend_from_slice(part);
                return Ok(());
            };
            if self.line.is_empty() {
                self.take_line(part)?;
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(part);
                self.take_line(&line)?;
                line.clear();
                self.line = line;
            }
            self.after_cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
        }
    }

    /// The next whole event, if one has arrived.
    pub fn next_event(&mut self) -> Option<Event> {
        self.ready.pop_front()
    }

    fn fail(&mut self, error: Error) -> Result<(), Error> {
        self.failed = Some(error);
        self.line = Vec::new();
        self.pending = Event::default();
        Err(error)
    }

    fn take_line(&mut self, mut line: &[u8]) -> Result<(), Error> {
        if std::mem::take(&mut self.first_line) {
            line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
        }
        if line.is_empty() {
            self.dispatch();
            return Ok(());
        }
        let (name, value) = match memchr::memchr(b':', line) {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &b""[..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => {
                if self.pending.data.len() + value.len() >= self.limit {
                    return self.fail(Error::EventTooLong { limit: self.limit });
                }
                if self.has_data {
                    self.pending.data.push('\n');
                }
                self.has_data = true;
                self.pending.data.push_str(&String::from_utf8_lossy(value));
            }
            b"event" => self.pending.event = Some(String::from_utf8_lossy(value).into_owned()),
            b"id" if !value.contains(&0) => {
                self.pending.id = Some(String::from_utf8_lossy(value).into_owned());
            }
            // Comments (an empty name), `retry`, and what later versions may add.
            _ => {}
        }
        Ok(())
    }

    fn dispatch(&mut self) {
        // The id stays for the events that follow.
        let next = Event { id: self.pending.id.clone(), ..Event::default() };
        let event = std::mem::replace(&mut self.pending, next);
        if std::mem::take(&mut self.has_data) {
            let event = Event { event: event.event.filter(|name| !name.is_empty()), ..event };
            self.ready.push_back(event);
        }
    }
}

/// Appends a comment, which clients skip; keeps idle connections alive. Line ends in `text` become further comment
/// lines.
pub fn comment(out: &mut BytesMut, text: &str) {
    for line in text.split(['\r', '\n']) {
        out.put(b": ");
        out.put(line.as_bytes());
        out.put(b"\n");
    }
    out.put(b"\n");
}

/// Appends a named event with one JSON value as its data. Line ends in `name` are left out.
pub fn event(out: &mut BytesMut, name: &str, data: &serde_json::Value) {
    out.put(b"event: ");
    for part in name.split(['\r', '\n']) {
        out.put(part.as_bytes());
    }
    out.put(b"\ndata: ");
    out.put(data.to_string().as_bytes());
    out.put(b"\n\n");
}

#[cfg(test)]
#[path = "sse_tests.rs"]
mod tests;
