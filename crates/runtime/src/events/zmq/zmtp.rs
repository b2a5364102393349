//! ZMTP 3.1 with the NULL mechanism, as bytes: greetings, frames and commands.

use super::Error;

/// Length of a greeting.
pub(super) const GREETING_BYTES: usize = 64;

/// Frame flags.
pub(super) const MORE: u8 = 1;
const LONG: u8 = 2;
pub(super) const COMMAND: u8 = 4;

/// What both sides say first.
pub(super) fn greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    let parts: [(usize, &[u8]); 4] = [(0, &[0xFF]), (9, &[0x7F]), (10, &[3, 1]), (12, b"NULL")];
    for (at, part) in parts {
        if let Some(place) = bytes.get_mut(at..at + part.len()) {
            place.copy_from_slice(part);
        }
    }
    bytes
}

/// The minor version of the peer.
///
/// # Errors
/// The peer speaks something else, an older version, or wants encryption.
pub(super) fn check_greeting(bytes: &[u8; GREETING_BYTES]) -> Result<u8, Error> {
    let [first, rest @ ..] = bytes;
    if *first != 0xFF || rest[8] != 0x7F {
        return Err(Error::Protocol("the peer does not speak ZMTP".to_owned()));
    }
    if rest[9] < 3 {
        return Err(Error::Protocol(format!("the peer speaks ZMTP {}, expected 3", rest[9])));
    }
    let mechanism = rest[11..31].split(|byte| *byte == 0).next().unwrap_or_default();
    if mechanism != b"NULL" {
        let name = String::from_utf8_lossy(mechanism).into_owned();
        return Err(Error::Protocol(format!("the peer asks for security {name:?}, expected NULL")));
    }
    Ok(rest[10])
}

/// Appends one frame.
pub(super) fn write_frame(out: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(length) => out.extend_from_slice(&[flags, length]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(body);
}

/// Appends a message of several parts.
pub(super) fn write_message(out: &mut Vec<u8>, parts: &[&[u8]]) {
    for (index, part) in parts.iter().enumerate() {
        write_frame(out, if index + 1 < parts.len() { MORE } else { 0 }, part);
    }
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) flags: u8,
    pub(super) head_bytes: usize,
    pub(super) body_bytes: u64,
}

/// The head of the frame that begins here; none if more bytes are needed.
pub(super) fn read_head(bytes: &[u8]) -> Option<Head> {
    let (&flags, rest) = bytes.split_first()?;
    if flags & LONG == 0 {
        return Some(Head { flags, head_bytes: 2, body_bytes: u64::from(*rest.first()?) });
    }
    Some(Head { flags, head_bytes: 9, body_bytes: u64::from_be_bytes(*rest.first_chunk()?) })
}

/// The command that ends a handshake, as a frame.
pub(super) fn ready(socket_type: &str) -> Vec<u8> {
    let mut body = b"\x05READY".to_vec();
    let properties = [("Socket-Type", socket_type), ("Identity", "")];
    for (name, value) in properties {
        body.push(name.len() as u8);
        body.extend_from_slice(name.as_bytes());
        body.extend_from_slice(&(value.len() as u32).to_be_bytes());
        body.extend_from_slice(value.as_bytes());
    }
    let mut out = Vec::new();
    write_frame(&mut out, COMMAND, &body);
    out
}

/// Name and rest of a command.
pub(super) fn command(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = body.split_first()?;
    rest.split_at_checked(usize::from(length))
}

/// The kind of socket that a READY command names.
pub(super) fn socket_type(mut properties: &[u8]) -> Option<&[u8]> {
    loop {
        let (&length, rest) = properties.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(length))?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(value);
        }
        properties = rest;
    }
}

/// A PING that asks for nothing but an answer.
pub(super) fn ping() -> Vec<u8> {
    let mut out = Vec::new();
    write_frame(&mut out, COMMAND, b"\x04PING\x00\x00");
    out
}

/// The answer to a PING with this body after its name: its context, without the two bytes of its time to live.
pub(super) fn pong(ping: &[u8]) -> Vec<u8> {
    let mut body = b"\x04PONG".to_vec();
    body.extend_from_slice(ping.get(2..).unwrap_or_default());
    let mut out = Vec::new();
    write_frame(&mut out, COMMAND, &body);
    out
}

/// A change of subscription, in either of the two forms: as a command, or as a message of one part. The prefix, and whether it
/// is wanted from now on.
pub(super) fn subscription(is_command: bool, body: &[u8]) -> Option<(bool, &[u8])> {
    if is_command {
        return match command(body)? {
            (b"SUBSCRIBE", prefix) => Some((true, prefix)),
            (b"CANCEL", prefix) => Some((false, prefix)),
            _ => None,
        };
    }
    match body.split_first()? {
        (1, prefix) => Some((true, prefix)),
        (0, prefix) => Some((false, prefix)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn greetings_are_taken_apart() {
        assert_eq!(check_greeting(&greeting()), Ok(1));
        let with = |at: usize, byte: u8| {
            let mut bytes = greeting();
            bytes[at] = byte;
            check_greeting(&bytes)
        };
        assert_eq!(with(11, 0), Ok(0));
        assert!(with(0, b'H').unwrap_err().to_string().contains("does not speak ZMTP"));
        assert!(with(10, 2).unwrap_err().to_string().contains("ZMTP 2"));
        assert!(with(12, b'P').unwrap_err().to_string().contains("PULL"));
    }

    #[test]
    fn commands_and_subscriptions_are_taken_apart() {
        let frame = ready("SUB");
        let head = read_head(&frame).unwrap();
        assert_eq!((head.flags, head.head_bytes), (COMMAND, 2));
        let (name, rest) = command(&frame[2..]).unwrap();
        assert_eq!((name, socket_type(rest)), (&b"READY"[..], Some(&b"SUB"[..])));
        assert_eq!(socket_type(&rest[..rest.len() / 4]), None, "cut off");
        assert_eq!(subscription(false, b"\x01kv"), Some((true, &b"kv"[..])));
        assert_eq!(subscription(false, b"\x00"), Some((false, &b""[..])));
        assert_eq!(subscription(true, b"\x09SUBSCRIBEkv"), Some((true, &b"kv"[..])));
        assert_eq!(subscription(true, b"\x06CANCEL"), Some((false, &b""[..])));
        assert_eq!(subscription(true, b"\x04PONG"), None);
        assert_eq!(pong(b"\x00\x07abc"), b"\x04\x08\x04PONGabc");
    }

    proptest! {
        #[test]
        fn frames_survive_and_nothing_panics(body in prop::collection::vec(any::<u8>(), 0..600), flags in 0u8..8) {
            let mut out = Vec::new();
            write_frame(&mut out, flags & !LONG, &body);
            let head = read_head(&out).unwrap();
            prop_assert_eq!(head.flags & !LONG, flags & !LONG);
            prop_assert_eq!(&out[head.head_bytes..], &body[..]);
            prop_assert_eq!(head.body_bytes, body.len() as u64);
            let _ = (command(&body), socket_type(&body), subscription(true, &body), subscription(false, &body));
            let _ = (read_head(&body), pong(&body));
        }
    }
}
