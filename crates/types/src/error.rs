//! The one error type of the request path (DESIGN 3.2).
//!
//! A fault is described once, where it arises: its class, whose side it is on, whether another worker may be
//! tried, and the text the client may read. HTTP status, metric label, breaker and retry rule are derived here and
//! nowhere else, so two layers can never disagree about what an error means.

use serde::{Deserialize, Serialize};
use std::fmt;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// The client sent something that can never work: 400.
    Invalid,
    /// Credentials are missing or wrong: 401.
    Unauthorized,
    /// The named model or route does not exist: 404.
    NotFound,
    /// The route exists, the method does not: 405.
    MethodNotAllowed,
    /// The name is in use: 409.
    Conflict,
    /// The body is above the configured limit: 413.
    TooLarge,
    /// The content type is not JSON: 415.
    UnsupportedMedia,
    /// Request headers are above the limit: 431.
    HeadersTooLarge,
    /// The client went away, or asked to stop: 499.
    Cancelled,
    /// Understood, but not built or not served by any worker: 501.
    NotImplemented,
    /// Nothing can serve this at the moment: 503.
    Unavailable,
    /// No answer within a limit: 504.
    Timeout,
    /// Everything that could serve is full: 529.
    Overloaded,
    /// A fault of ours or of an engine: 500.
    Internal,
}

/// Who has to change something for the request to succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    Client,
    Frontend,
    Worker,
    Network,
}

/// A fault on the request path. Boxed inside, so that `Result` stays one word wide.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Inner {
    class: Class,
    side: Side,
    retryable: bool,
    /// What the client reads. Never contains prompts, paths or addresses.
    message: String,
    /// The request field at fault, in the client's own spelling (`messages[0].role`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    param: Option<String>,
    /// Machine-readable reason (`context_length_exceeded`), when one is customary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    /// For the log only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    /// Seconds the client should wait before it tries again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_after_s: Option<u32>,
}

impl Error {
    fn new(class: Class, side: Side, retryable: bool, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            class,
            side,
            retryable,
            message: message.into(),
            param: None,
            code: None,
            detail: None,
            retry_after_s: None,
        }))
    }

    /// The client's mistake: 400. Name the field with [`Error::with_param`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Class::Invalid, Side::Client, false, message)
    }

    /// 404 for a model or a route.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Class::NotFound, Side::Client, false, message)
    }

    /// Any other client mistake, by class.
    pub fn client(class: Class, message: impl Into<String>) -> Self {
        Self::new(class, Side::Client, false, message)
    }

    /// No worker can take it now; another one, or a later moment, may.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Class::Unavailable, Side::Frontend, true, message)
    }

    /// A worker could not be reached, or its stream broke.
    pub fn disconnected(message: impl Into<String>) -> Self {
        Self::new(Class::Unavailable, Side::Network, true, message)
    }

    /// Full: another worker may have room.
    pub fn overloaded(message: impl Into<String>) -> Self {
        Self::new(Class::Overloaded, Side::Worker, true, message)
    }

    /// A limit of time passed.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(Class::Timeout, Side::Network, true, message)
    }

    /// A worker that is there let a limit of time pass.
    pub fn overdue(message: impl Into<String>) -> Self {
        Self::new(Class::Timeout, Side::Worker, true, message)
    }

    /// The client left or asked to stop.
    pub fn cancelled() -> Self {
        Self::new(Class::Cancelled, Side::Client, false, "request cancelled")
    }

    /// A fault inside a worker's engine.
    pub fn engine(message: impl Into<String>) -> Self {
        Self::new(Class::Internal, Side::Worker, false, message)
    }

    /// A fault of ours. `detail` goes to the log; the client reads a fixed text.
    pub fn internal(detail: impl Into<String>) -> Self {
        Self::new(Class::Internal, Side::Frontend, false, "internal error").with_detail(detail)
    }

    #[must_use]
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.0.param = Some(param.into());
        self
    }

    #[must_use]
    pub fn with_code(mut self, code: impl Into<String>) -> Self {
        self.0.code = Some(code.into());
        self
    }

    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.0.detail = Some(detail.into());
        self
    }

    #[must_use]
    pub fn with_retry_after_s(mut self, seconds: u32) -> Self {
        self.0.retry_after_s = Some(seconds);
        self
    }

    pub fn class(&self) -> Class {
        self.0.class
    }

    pub fn side(&self) -> Side {
        self.0.side
    }

    /// The text for the client.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    pub fn param(&self) -> Option<&str> {
        self.0.param.as_deref()
    }

    pub fn code(&self) -> Option<&str> {
        self.0.code.as_deref()
    }

    pub fn detail(&self) -> Option<&str> {
        self.0.detail.as_deref()
    }

    pub fn retry_after_s(&self) -> Option<u32> {
        self.0.retry_after_s
    }

    /// May the same request be sent to another worker? (R30)
    pub fn retryable(&self) -> bool {
        self.0.retryable
    }

    /// Can the client get an answer by sending the same again later? None: it may try, we do not know.
    pub fn retry_helps(&self) -> Option<bool> {
        match self.0.class {
            Class::Unavailable | Class::Timeout | Class::Overloaded => Some(true),
            Class::Internal => None,
            Class::Invalid
            | Class::Unauthorized
            | Class::NotFound
            | Class::MethodNotAllowed
            | Class::Conflict
            | Class::TooLarge
            | Class::UnsupportedMedia
            | Class::HeadersTooLarge
            | Class::Cancelled
            | Class::NotImplemented => Some(false),
        }
    }

    /// Does this count against the worker that answered it? Client mistakes and goodbyes are neutral (R31).
    pub fn counts_against_worker(&self) -> bool {
        matches!(self.0.class, Class::Unavailable | Class::Timeout | Class::Internal)
            && matches!(self.0.side, Side::Worker | Side::Network)
    }

    /// HTTP status; `overload_status` is the configured one for [`Class::Overloaded`] (default 529).
    pub fn http_status(&self, overload_status: u16) -> u16 {
        match self.0.class {
            Class::Invalid => 400,
            Class::Unauthorized => 401,
            Class::NotFound => 404,
            Class::MethodNotAllowed => 405,
            Class::Conflict => 409,
            Class::TooLarge => 413,
            Class::UnsupportedMedia => 415,
            Class::HeadersTooLarge => 431,
            Class::Cancelled => 499,
            Class::Internal => 500,
            Class::NotImplemented => 501,
            Class::Unavailable => 503,
            Class::Timeout => 504,
            Class::Overloaded => overload_status,
        }
    }

    /// The metric label `error_type` (behaviour.md 1.3); an empty string stands for success and is not one of these.
    pub fn metric_label(&self) -> &'static str {
        match self.0.class {
            Class::Invalid
            | Class::Unauthorized
            | Class::MethodNotAllowed
            | Class::Conflict
            | Class::TooLarge
            | Class::UnsupportedMedia
            | Class::HeadersTooLarge => "validation",
            Class::NotFound => "not_found",
            Class::Overloaded => "overload",
            Class::Unavailable => "unavailable",
            Class::Cancelled => "cancelled",
            Class::Timeout => "response_timeout",
            Class::Internal => "internal",
            Class::NotImplemented => "not_implemented",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if let Some(detail) = &self.0.detail {
            write!(f, " ({detail})")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r31_breaker_counts_only_server_faults() {
        for neutral in
            [Error::invalid("x"), Error::cancelled(), Error::not_found("x"), Error::overloaded("x")]
        {
            assert!(!neutral.counts_against_worker(), "{neutral:?}");
        }
        for fault in [Error::disconnected("x"), Error::timeout("x"), Error::overdue("x"), Error::engine("x")]
        {
            assert!(fault.counts_against_worker(), "{fault:?}");
        }
    }

    #[test]
    fn survives_serialisation() {
        let error = Error::invalid("too many").with_param("stop").with_code("limit").with_retry_after_s(2);
        let text = serde_json::to_string(&error).unwrap();
        assert_eq!(serde_json::from_str::<Error>(&text).unwrap(), error);
    }
}
