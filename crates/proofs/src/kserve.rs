//! KServe's calls: frames in any pieces, and requests in them.

use crate::bodies;
use crate::input::{Input, pieces};
use dynamo_protocols::kserve::frame::Frames;
use dynamo_protocols::kserve::{InferRequest, ModelName, asked_service, request_id};
use dynamo_protocols::{Options, Parsed, UnknownFields};
use dynamo_types::{Class, Error};

/// Small, so that a fuzzer gets above it.
const LIMIT_BYTES: usize = 4096;

/// All messages of a stream that comes in these pieces, and what ended it.
fn read<'a>(stream: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Vec<u8>>, Result<bool, Error>) {
    let mut frames = Frames::new(LIMIT_BYTES);
    let mut messages = Vec::new();
    for piece in stream {
        frames.push(piece);
        loop {
            match frames.next_message() {
                Ok(Some(message)) => messages.push(message.to_vec()),
                Ok(None) => break,
                Err(error) => return (messages, Err(error)),
            }
        }
    }
    (messages, Ok(frames.is_empty()))
}

fn request(message: &[u8]) {
    let under =
        |unknown_fields| InferRequest::parse(message, &Options { unknown_fields, ..Options::default() });
    match (under(UnknownFields::Warn), under(UnknownFields::Ignore)) {
        (Ok(warned), Ok(ignored)) => {
            let Parsed { request, dropped } = warned;
            assert!(request == ignored.request, "the policy on unknown fields changed the request");
            assert_eq!(request.id, request_id(message));
            assert_eq!(request.completion.common.n, 1);
            assert_eq!(under(UnknownFields::Reject).is_ok(), dropped.is_empty());
        }
        (Err(error), Err(same)) => {
            assert_eq!(error, same);
            bodies::check(&error);
        }
        (warned, ignored) => assert_eq!(warned.is_ok(), ignored.is_ok()),
    }
    let _ = asked_service(message).map_err(|error| bodies::check(&error));
    let _ = ModelName::parse(message).map_err(|error| bodies::check(&error));
}

/// First byte: how the stream is cut. The rest: the stream, which is also tried as one message.
pub(crate) fn kserve(data: &[u8]) {
    let mut input = Input::new(data);
    let seed = input.byte();
    let stream = input.rest();
    let (messages, end) = read(pieces(stream, seed));
    assert_eq!((&messages, &end), (&read([stream]).0, &read([stream]).1), "cuts change what is read");
    if let Err(error) = &end {
        let client = matches!(error.class(), Class::Invalid | Class::NotImplemented | Class::TooLarge);
        assert!(client, "the client is not to blame: {error:?}");
    }
    messages.iter().for_each(|message| request(message));
    request(stream);
}
