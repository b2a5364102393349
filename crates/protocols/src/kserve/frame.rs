//! gRPC's framing of messages: one byte that says whether it is compressed, four for the length, the message.

use bytes::{BufMut, Bytes, BytesMut};
use dynamo_types::{Class, Error};

/// Bytes in front of a message.
pub const PREFIX_BYTES: usize = 5;

/// Writes a message that `fill` writes, with its prefix.
pub fn write(out: &mut BytesMut, fill: impl FnOnce(&mut BytesMut)) {
    let mut message = BytesMut::new();
    fill(&mut message);
    out.reserve(PREFIX_BYTES + message.len());
    out.put_u8(0);
    // No answer comes near four gigabytes: it is bounded by the context of a model.
    out.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    out.put_slice(&message);
}

/// Takes messages out of a stream of bytes, however it is cut.
#[derive(Debug)]
pub struct Frames {
    buffer: BytesMut,
    /// Longest message.
    limit_bytes: usize,
}

impl Frames {
    pub fn new(limit_bytes: usize) -> Self {
        Self { buffer: BytesMut::new(), limit_bytes }
    }

    /// Takes more bytes. After each call, [`Frames::next_message`] has to be asked until it has none: then no more than
    /// one message is ever held.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Has no message begun?
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Length of the message that has begun, as announced.
    fn announced(&self) -> Option<usize> {
        let length: [u8; 4] = self.buffer.get(1..PREFIX_BYTES)?.try_into().ok()?;
        usize::try_from(u32::from_be_bytes(length)).ok()
    }

    /// Length of the message that is being waited for, if it has begun and is allowed.
    pub fn awaited(&self) -> Option<usize> {
        self.announced().filter(|&length| length <= self.limit_bytes)
    }

    /// The next message; none until more bytes are there.
    ///
    /// # Errors
    /// 501 for a compressed message, 413 above the limit, 400 for what is no frame. Nothing can be read after it.
    pub fn next_message(&mut self) -> Result<Option<Bytes>, Error> {
        match self.buffer.first() {
            None | Some(0) => {}
            Some(1) => {
                return Err(Error::client(Class::NotImplemented, "compressed messages are not supported")
                    .with_code("unsupported_compression"));
            }
            Some(flag) => {
                let text = format!("the first byte of a message must be 0 or 1, found {flag}");
                return Err(Error::invalid(text).with_code("malformed_frame"));
            }
        }
        let Some(length) = self.announced() else { return Ok(None) };
        if length > self.limit_bytes {
            let limit = self.limit_bytes;
            let text =
                format!("the message has {length} bytes; the limit is {limit} bytes (body_limit_bytes)");
            return Err(Error::client(Class::TooLarge, text).with_code("body_too_large"));
        }
        if self.buffer.len() < PREFIX_BYTES + length {
            return Ok(None);
        }
        let mut frame = self.buffer.split_to(PREFIX_BYTES + length);
        Ok(Some(frame.split_off(PREFIX_BYTES).freeze()))
    }
}

/// The message of a body that has to be exactly one.
///
/// # Errors
/// As [`Frames::next_message`]; 400 if there is none, or more than one.
pub fn only(body: &[u8], limit_bytes: usize) -> Result<Bytes, Error> {
    let mut frames = Frames::new(limit_bytes);
    frames.push(body);
    let message = frames.next_message()?;
    let (Some(message), true) = (message, frames.is_empty()) else {
        return Err(Error::invalid("the call takes exactly one whole message").with_code("malformed_frame"));
    };
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All messages of a stream cut at `cuts`, and what ended it.
    fn read(stream: &[u8], cuts: &[usize], limit: usize) -> (Vec<Bytes>, Result<bool, Class>) {
        let mut frames = Frames::new(limit);
        let mut messages = Vec::new();
        let mut at = 0;
        for end in cuts.iter().copied().chain([stream.len()]) {
            let end = end.clamp(at, stream.len());
            frames.push(&stream[at..end]);
            at = end;
            loop {
                match frames.next_message() {
                    Ok(Some(message)) => messages.push(message),
                    Ok(None) => break,
                    Err(error) => return (messages, Err(error.class())),
                }
            }
        }
        (messages, Ok(frames.is_empty()))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn any_cut_gives_the_same_messages(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..6),
            mut cuts in prop::collection::vec(0usize..400, 0..8),
        ) {
            let mut stream = BytesMut::new();
            messages.iter().for_each(|message| write(&mut stream, |out| out.put_slice(message)));
            cuts.sort_unstable();
            let (found, end) = read(&stream, &cuts, 50);
            prop_assert_eq!(found, messages);
            prop_assert_eq!(end, Ok(true));
        }

        /// No bytes panic, and where they are cut changes nothing.
        #[test]
        fn any_bytes_are_refused_or_read(
            stream in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..60),
            mut cuts in prop::collection::vec(0usize..60, 0..8),
        ) {
            cuts.sort_unstable();
            prop_assert_eq!(read(&stream, &cuts, 20), read(&stream, &[], 20));
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        let framed = |message: &[u8]| {
            let mut out = BytesMut::new();
            write(&mut out, |out| out.put_slice(message));
            out
        };
        assert_eq!(only(&framed(b"abc"), 3).unwrap(), "abc");
        assert_eq!(only(&framed(b"abcd"), 3).unwrap_err().class(), Class::TooLarge);
        assert_eq!(only(&[1, 0, 0, 0, 0], 3).unwrap_err().class(), Class::NotImplemented);
        for bad in [&b""[..], &[0, 0, 0, 0, 1], &[2, 0, 0, 0, 0], &framed(b"a").repeat(2)] {
            assert_eq!(only(bad, 3).unwrap_err().class(), Class::Invalid, "{bad:?}");
        }
        // The length is refused before any of it has come.
        let mut frames = Frames::new(3);
        frames.push(&[0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!((frames.awaited(), frames.next_message().unwrap_err().class()), (None, Class::TooLarge));
    }
}
