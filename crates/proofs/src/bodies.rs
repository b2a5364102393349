//! Request bodies of every route.

use crate::input::Input;
use dynamo_protocols::openai::{chat, completions, embeddings};
use dynamo_protocols::{Options, Parsed, UnknownFields, anthropic, error_body, responses, tokenize};
use dynamo_types::{Class, Error};
use std::fmt::Debug;

/// A message is read by people; what it quotes is cut.
const MAX_MESSAGE_BYTES: usize = 4096;

type Read = Result<(String, Vec<String>), Error>;
type Parse = fn(&[u8], &Options) -> Read;

fn shown<T: Debug>(parsed: Result<Parsed<T>, Error>) -> Read {
    parsed.map(|parsed| (format!("{:?}", parsed.request), parsed.dropped))
}

const ROUTES: [Parse; 9] = [
    |body, options| {
        let parsed = chat::Request::parse(body, options)?;
        let _ = (parsed.request.common.sampling(), parsed.request.common.routing());
        let _ = parsed.request.template_tools().map(<[_]>::len);
        // What a template reads can always be written.
        assert!(serde_json::to_value(&parsed.request.messages).is_ok());
        shown(Ok(parsed))
    },
    |body, options| shown(completions::Request::parse(body, options)),
    |body, options| shown(anthropic::Request::parse(body, options)),
    |body, options| shown(anthropic::Request::parse_count(body, options)),
    |body, options| shown(responses::Request::parse(body, options)),
    |body, options| shown(responses::Request::parse_input_tokens(body, options)),
    |body, options| shown(embeddings::Request::parse(body, options)),
    |body, options| shown(tokenize::Request::parse(body, options)),
    |body, options| shown(tokenize::DetokenizeRequest::parse(body, options)),
];

/// A fault is the client's, says so in few words, and can be told in every API's shape (R08).
pub(crate) fn check(error: &Error) {
    assert!(
        matches!(error.class(), Class::Invalid | Class::NotImplemented | Class::NotFound),
        "the client is not to blame: {error:?}"
    );
    assert!(!error.message().is_empty() && error.message().len() < MAX_MESSAGE_BYTES, "{error:?}");
    for body in [error_body(error), anthropic::error_body(error)] {
        assert!(serde_json::from_slice::<serde_json::Value>(&body).is_ok());
    }
}

/// First byte: the route. The rest: the body.
pub(crate) fn bodies(data: &[u8]) {
    let mut input = Input::new(data);
    let parse = input.pick(&ROUTES);
    let body = input.rest();
    let under = |unknown_fields| parse(body, &Options { unknown_fields, ..Options::default() });
    let (warned, ignored, rejected) =
        (under(UnknownFields::Warn), under(UnknownFields::Ignore), under(UnknownFields::Reject));
    match (&warned, &ignored) {
        (Ok((request, dropped)), Ok((same, none))) => {
            assert!(request == same && none.is_empty(), "the policy on unknown fields changed the request");
            assert_eq!(rejected.is_ok(), dropped.is_empty(), "dropped {dropped:?}, but {rejected:?}");
        }
        (Err(error), Err(same)) => {
            assert_eq!(error, same);
            check(error);
            assert!(rejected.is_err());
        }
        _ => assert!(warned.is_ok() == ignored.is_ok(), "{warned:?} but {ignored:?}"),
    }
    if let Err(error) = &rejected {
        check(error);
    }
}
