//! Server-sent events, read and written.

use crate::input::{Input, pieces};
use bytes::BytesMut;
use dynamo_protocols::sse::{self, Error, Event, Reader};

/// Small enough that a fuzzer reaches it.
const LIMIT: usize = 64;

fn read(parts: &[&[u8]], limit: usize) -> (Vec<Event>, Option<Error>) {
    let (mut reader, mut events, mut fault) = (Reader::new(limit), Vec::new(), None);
    for part in parts {
        fault = reader.push(part).err();
        events.extend(std::iter::from_fn(|| reader.next_event()));
        if fault.is_some() {
            // It stays so.
            assert_eq!(reader.push(b"data: x\n\n").err(), fault);
            assert_eq!(reader.next_event(), None);
            break;
        }
    }
    (events, fault)
}

/// First byte: how the stream is cut. The rest: the stream. Any cutting gives the same events, no event is above the
/// limit, and what is written is read as it was meant.
pub(crate) fn sse(data: &[u8]) {
    let mut input = Input::new(data);
    let seed = input.byte();
    let stream = input.rest();
    for limit in [LIMIT, sse::MAX_BYTES] {
        let whole = read(&[stream], limit);
        for parts in [pieces(stream, seed), stream.chunks(1).collect()] {
            assert_eq!(read(&parts, limit), whole);
        }
        assert!(whole.0.iter().all(|event| event.data.len() <= limit * 3), "U+FFFD has three bytes for one");
    }
    let text = input.text();
    let mut out = BytesMut::new();
    sse::comment(&mut out, &text);
    assert_eq!(read(&[&out], sse::MAX_BYTES), (vec![], None), "a comment is no event");
    let value = serde_json::Value::String(text.into_owned());
    sse::event(&mut out, "name", &value);
    let (events, fault) = read(&pieces(&out, seed), sse::MAX_BYTES);
    assert_eq!(fault, None);
    assert_eq!(events.len(), 1);
    for event in events {
        assert_eq!(event.event.as_deref(), Some("name"));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&event.data).ok().as_ref(), Some(&value));
    }
}
