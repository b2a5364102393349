//! Faults in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

use crate::escape::{self, Sink};
use dynamo_types::{Class, Error};

/// The body of an error answer.
pub fn error_body(error: &Error) -> Vec<u8> {
    let mut body = Vec::with_capacity(160 + error.message().len());
    write(&mut body, error);
    body
}

/// Official SDKs choose their exception by the status; `type` and `code` are for people and for code that switches
/// on them, so every class has its own pair even where OpenAI sends null.
fn kind(class: Class) -> (&'static str, &'static str) {
    match class {
        Class::Invalid => ("invalid_request_error", "invalid_request"),
        Class::Unauthorized => ("authentication_error", "invalid_api_key"),
        Class::NotFound => ("invalid_request_error", "not_found"),
        Class::Conflict => ("invalid_request_error", "conflict"),
        Class::MethodNotAllowed => ("invalid_request_error", "method_not_allowed"),
        Class::TooLarge => ("invalid_request_error", "request_too_large"),
        Class::UnsupportedMedia => ("invalid_request_error", "unsupported_media_type"),
        Class::HeadersTooLarge => ("invalid_request_error", "headers_too_large"),
        Class::Cancelled => ("cancelled_error", "request_cancelled"),
        Class::NotImplemented => ("not_implemented_error", "not_implemented"),
        Class::Unavailable => ("service_unavailable_error", "service_unavailable"),
        Class::Timeout => ("timeout_error", "timeout"),
        Class::Overloaded => ("overloaded_error", "overloaded"),
        Class::Internal => ("server_error", "internal_error"),
    }
}

/// Appends the body. All text goes through the escaper, so there is no line end in it (R07).
pub(crate) fn write(out: &mut impl Sink, error: &Error) {
    let (kind, code) = kind(error.class());
    out.put(b"{\"error\":{\"message\":");
    escape::string(out, error.message());
    out.put(b",\"type\":");
    escape::string(out, kind);
    out.put(b",\"param\":");
    match error.param() {
        Some(param) => escape::string(out, param),
        None => out.put(b"null"),
    }
    out.put(b",\"code\":");
    escape::string(out, error.code().unwrap_or(code));
    out.put(b"}}");
}
