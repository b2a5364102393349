//! What gRPC says around messages: status codes, their texts, time limits.

use dynamo_types::{Class, Error};
use std::fmt::Write;
use std::time::Duration;

/// A gRPC status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    Ok = 0,
    Cancelled = 1,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

impl Code {
    /// What a fault is in gRPC's terms.
    pub fn of(error: &Error) -> Self {
        match error.class() {
            Class::Invalid | Class::UnsupportedMedia => Self::InvalidArgument,
            Class::Unauthorized => Self::Unauthenticated,
            Class::NotFound => Self::NotFound,
            Class::Conflict => Self::AlreadyExists,
            Class::MethodNotAllowed | Class::NotImplemented => Self::Unimplemented,
            Class::TooLarge | Class::HeadersTooLarge | Class::Overloaded => Self::ResourceExhausted,
            Class::Cancelled => Self::Cancelled,
            Class::Unavailable => Self::Unavailable,
            Class::Timeout => Self::DeadlineExceeded,
            Class::Internal => Self::Internal,
        }
    }
}

/// A text as the `grpc-message` header carries it: percent-encoded UTF-8.
pub fn header_text(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => text.push(char::from(byte)),
            _ => {
                // Writing to a string cannot fail.
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
    text
}

/// Reads a `grpc-timeout` header: at most eight digits and a unit.
///
/// # Errors
/// 400 for anything else.
pub fn timeout(header: &[u8]) -> Result<Duration, Error> {
    let parsed = header.split_last().and_then(|(unit, digits)| {
        if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
        match unit {
            b'H' => Some(Duration::from_secs(number * 3600)),
            b'M' => Some(Duration::from_secs(number * 60)),
            b'S' => Some(Duration::from_secs(number)),
            b'm' => Some(Duration::from_millis(number)),
            b'u' => Some(Duration::from_micros(number)),
            b'n' => Some(Duration::from_nanos(number)),
            _ => None,
        }
    });
    parsed.ok_or_else(|| {
        Error::invalid("`grpc-timeout` must be one to eight digits and one of H, M, S, m, u, n")
            .with_param("grpc-timeout")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_survive_headers() {
        assert_eq!(header_text("100% of `é`\r\n"), "100%25 of `%C3%A9`%0D%0A");
    }

    #[test]
    fn timeouts() {
        for (text, limit) in [("1S", 1_000_000), ("20m", 20_000), ("5u", 5), ("2M", 120_000_000)] {
            assert_eq!(timeout(text.as_bytes()).unwrap(), Duration::from_micros(limit), "{text}");
        }
        assert_eq!(timeout(b"99999999H").unwrap().as_secs(), 99_999_999 * 3600);
        for bad in ["", "S", "1", "1s", "-1S", "123456789S", "1 S", "é"] {
            assert_eq!(timeout(bad.as_bytes()).unwrap_err().param(), Some("grpc-timeout"), "{bad}");
        }
    }

    #[test]
    fn codes_follow_classes() {
        assert_eq!(Code::of(&Error::invalid("x")) as u8, 3);
        assert_eq!(Code::of(&Error::overloaded("x")), Code::ResourceExhausted);
        assert_eq!(Code::of(&Error::disconnected("x")), Code::Unavailable);
        assert_eq!(Code::of(&Error::cancelled()), Code::Cancelled);
    }
}
