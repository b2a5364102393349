//! gRPC's health checking protocol (service `grpc.health.v1.Health`), which orchestrators and gRPC's own load balancing ask.

use super::wire::{Fields, number};
use bytes::BytesMut;
use dynamo_types::Error;

/// Path prefix of the service's methods.
pub const HEALTH_SERVICE: &str = "/grpc.health.v1.Health/";

/// How a service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Health {
    Serving = 1,
    NotServing = 2,
    /// Nobody knows the service; for streams, as a single question is answered by an error.
    Unknown = 3,
}

impl Health {
    /// Writes a `HealthCheckResponse`.
    pub fn write(self, out: &mut BytesMut) {
        number(out, 1, self as u64);
    }
}

/// The service that a `HealthCheckRequest` asks about; empty for all of the server.
///
/// # Errors
/// 400 if it is not well-formed.
pub fn asked_service(message: &[u8]) -> Result<&str, Error> {
    let mut service = "";
    for field in Fields::of(message) {
        if let (1, value) = field? {
            service = value.text()?;
        }
    }
    Ok(service)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kserve::wire;

    #[test]
    fn questions_are_read_and_answers_written() {
        let mut message = BytesMut::new();
        assert_eq!(asked_service(&message).unwrap(), "");
        wire::text(&mut message, 1, "a.B");
        wire::number(&mut message, 2, 7);
        assert_eq!(asked_service(&message).unwrap(), "a.B");
        assert!(asked_service(&message[..3]).is_err() && asked_service(&[8, 1]).is_err());
        let mut out = BytesMut::new();
        Health::NotServing.write(&mut out);
        assert_eq!(&out[..], [8, 2]);
    }
}
