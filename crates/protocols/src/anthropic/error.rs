//! Faults in Anthropic's shape: `{"type": "error", "error": {"type", "message"}}`.

use crate::escape::{self, Sink};
use dynamo_types::{Class, Error};

/// The body of an error answer.
pub fn error_body(error: &Error) -> Vec<u8> {
    let mut body = Vec::with_capacity(96 + error.message().len());
    write(&mut body, error);
    body
}

/// The types that Anthropic documents. The status tells apart what shares one.
fn kind(error: &Error) -> &'static str {
    match error.class() {
        Class::Invalid
        | Class::MethodNotAllowed
        | Class::Conflict
        | Class::UnsupportedMedia
        | Class::HeadersTooLarge
        | Class::Cancelled
        | Class::NotImplemented => "invalid_request_error",
        Class::Unauthorized => "authentication_error",
        Class::NotFound => "not_found_error",
        Class::TooLarge => "request_too_large",
        Class::Overloaded if error.code() == Some("rate_limit_exceeded") => "rate_limit_error",
        Class::Overloaded => "overloaded_error",
        Class::Timeout => "timeout_error",
        Class::Unavailable | Class::Internal => "api_error",
    }
}

/// Appends the body. All text goes through the escaper, so there is no line end in it (R07).
pub(super) fn write(out: &mut impl Sink, error: &Error) {
    out.put(b"{\"type\":\"error\",\"error\":{\"type\":\"");
    out.put(kind(error).as_bytes());
    out.put(b"\",\"message\":");
    escape::string(out, error.message());
    out.put(b"}}");
}
