//! Writes and reads open frames: the tokens of a long prompt by hand, everything else by serde. What is on the wire is the
//! same, and whatever is not in its usual form is serde's as a whole.

use super::Error;
use super::frame::{self, HEAD_BYTES, Kind, Open};
use super::pack::{Bytes, put_tokens};
use dynamo_types::Request;
use std::ops::Range;
use std::sync::Arc;

/// Prompts from this many tokens on are worth it.
const MANY_TOKENS: usize = 64;

/// Appends the frame.
///
/// # Errors
/// It is larger than `limit`, the largest frame the peer reads. Nothing is appended then.
pub(super) fn write(out: &mut Vec<u8>, open: &Open, limit: usize) -> Result<(), Error> {
    let tokens = &open.request.tokens;
    if tokens.len() < MANY_TOKENS {
        return frame::write(out, Kind::Open, open, limit);
    }
    let request = Request { tokens: Arc::default(), ..Request::clone(&open.request) };
    let bare = Open { stream: open.stream, instance: open.instance, request: Arc::new(request) };
    let start = out.len();
    frame::write(out, Kind::Open, &bare, usize::MAX)?;
    let body = start + HEAD_BYTES;
    let Some((place, _)) = out.get(body..).and_then(tokens_of) else {
        out.truncate(start);
        return frame::write(out, Kind::Open, open, limit);
    };
    let rest = out.split_off(body + place.end);
    out.truncate(body + place.start);
    put_tokens(out, tokens);
    out.extend_from_slice(&rest);
    frame::seal(out, start, limit)
}

/// Reads a body.
///
/// # Errors
/// It is not understood.
pub(super) fn read(body: &[u8]) -> Result<Open, Error> {
    let Some((place, tokens)) = tokens_of(body).filter(|(_, tokens)| tokens.len() >= MANY_TOKENS) else {
        return frame::parse(body);
    };
    let (before, after) = (body.get(..place.start), body.get(place.end..));
    let bare = [before.unwrap_or_default(), &[NO_TOKENS], after.unwrap_or_default()].concat();
    let mut open: Open = frame::parse(&bare)?;
    // Nobody else has it yet.
    Arc::make_mut(&mut open.request).tokens = tokens.into();
    Ok(open)
}

/// An empty list.
const NO_TOKENS: u8 = 0x90;

/// Where in a body the list of tokens stands, and what it says. `None`: not where it usually is.
fn tokens_of(body: &[u8]) -> Option<(Range<usize>, Vec<u32>)> {
    let mut bytes = Bytes::new(body);
    find(&mut bytes, b"request")?;
    find(&mut bytes, b"tokens")?;
    let start = body.len() - bytes.left();
    let tokens = bytes.tokens()?;
    Some((start..body.len() - bytes.left(), tokens))
}

/// Goes to the value of a field of the map that begins here.
fn find(bytes: &mut Bytes<'_>, field: &[u8]) -> Option<()> {
    for _ in 0..bytes.map()? {
        if bytes.text()? == field {
            return Some(());
        }
        bytes.skip()?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use dynamo_types::{Guide, InstanceId, Stopping};
    use proptest::prelude::*;
    use serde::Serialize;

    fn open_of(tokens: Vec<u32>, guide: Option<&str>) -> Open {
        let request = Request {
            id: "r".into(),
            model: "tokens".into(),
            tokens: tokens.into(),
            resumed: 1,
            task: Default::default(),
            sampling: Default::default(),
            stopping: Stopping { max_tokens: 9, ..Default::default() },
            guide: guide.map(|schema| Guide::JsonSchema(schema.into())),
            output: Default::default(),
            routing: Default::default(),
            trace: None,
        };
        Open { stream: 70_000, instance: InstanceId(u64::MAX), request: Arc::new(request) }
    }

    fn opens() -> impl Strategy<Value = Open> {
        let tokens = prop::collection::vec(prop_oneof![0u32..300, 60_000u32..70_000, any::<u32>()], 0..300);
        (tokens, prop::option::of("[a-z]{0,300}"))
            .prop_map(|(tokens, guide)| open_of(tokens, guide.as_deref()))
    }

    fn content(open: Result<Open, Error>) -> Option<(u64, InstanceId, Request)> {
        open.ok().map(|Open { stream, instance, request }| (stream, instance, Request::clone(&request)))
    }

    proptest! {
        #[test]
        fn the_wire_is_the_one_serde_writes(open in opens()) {
            let (mut by_hand, mut by_serde) = (vec![7], vec![7]);
            write(&mut by_hand, &open, 1 << 20).unwrap();
            frame::write(&mut by_serde, Kind::Open, &open, 1 << 20).unwrap();
            prop_assert_eq!(&by_hand, &by_serde);
            let body = &by_hand[1 + HEAD_BYTES..];
            prop_assert_eq!(content(read(body)), content(Ok(open)));
        }

        #[test]
        fn damage_is_judged_as_serde_judges_it(open in opens(), at in any::<usize>(), byte in any::<u8>()) {
            let mut body = rmp_serde::to_vec_named(&open).unwrap();
            let at = at % body.len();
            prop_assert!(read(&body[..at]).is_err());
            body[at] = byte;
            if let Some(expected) = content(frame::parse(&body)) {
                // NaN is never equal to itself, so texts are compared.
                prop_assert_eq!(format!("{:?}", content(read(&body))), format!("{:?}", Some(expected)));
            }
        }
    }

    #[test]
    fn a_newer_callers_fields_are_passed_over_wherever_they_stand() {
        #[derive(Serialize)]
        struct Newer {
            colour: (u8, &'static str),
            instance: InstanceId,
            request: NewerRequest,
            stream: u64,
        }
        #[derive(Serialize)]
        struct NewerRequest {
            stopping: Stopping,
            shade: Option<f64>,
            tokens: Vec<u32>,
            model: &'static str,
            id: &'static str,
        }
        let tokens: Vec<u32> = (0..500).collect();
        let request = NewerRequest {
            stopping: Stopping::default(),
            shade: None,
            tokens: tokens.clone(),
            model: "m",
            id: "i",
        };
        let newer = Newer { colour: (3, "red"), instance: InstanceId(2), request, stream: 5 };
        let open = read(&rmp_serde::to_vec_named(&newer).unwrap()).unwrap();
        assert_eq!((open.stream, open.instance, &*open.request.tokens), (5, InstanceId(2), &*tokens));
        // Without names, which serde takes too.
        let plain = open_of(tokens, None);
        let listed = rmp_serde::to_vec(&plain).unwrap();
        assert_eq!(content(read(&listed)), content(Ok(plain)));
    }

    #[test]
    fn a_frame_above_the_limit_leaves_nothing_behind() {
        let mut out = vec![7];
        let error = write(&mut out, &open_of(vec![70_000; 1000], None), 2000).unwrap_err();
        assert!(matches!(error, Error::FrameTooLarge { found, limit: 2000 } if found > 5000), "{error}");
        assert_eq!(out, [7]);
    }
}
