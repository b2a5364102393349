//! What a client and a NATS server say to each other: lines that end in CRLF, some followed by a payload.

use bytes::{Buf as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

/// The longest line read. The server's greeting lists the members of its cluster and is the longest there is.
const MAX_LINE_BYTES: usize = 1 << 20;

/// The largest payload read: the largest that a server can be configured to let through.
const MAX_PAYLOAD_BYTES: usize = 64 << 20;

/// A payload up to this size is copied, so that a small message does not keep the whole buffer it came in.
const COPIED_BYTES: usize = 4096;

/// What the server says about itself.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Info {
    pub(super) version: String,
    pub(super) max_payload: usize,
    /// It tells a publisher when nobody listens; else death is found by silence only.
    pub(super) headers: bool,
    pub(super) tls_required: bool,
    pub(super) tls_available: bool,
    /// What is to be signed by who shows a key.
    pub(super) nonce: Option<String>,
}

/// How a client introduces itself.
#[derive(Debug, Default, Serialize)]
pub(super) struct Connect {
    pub(super) verbose: bool,
    pub(super) pedantic: bool,
    pub(super) tls_required: bool,
    pub(super) name: &'static str,
    pub(super) lang: &'static str,
    pub(super) version: &'static str,
    /// 1: the server may send its greeting again, when it changes.
    pub(super) protocol: u32,
    pub(super) headers: bool,
    pub(super) no_responders: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pass: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) auth_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) jwt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) nkey: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sig: Option<String>,
}

/// A message on a subject that was subscribed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) subscription: u64,
    pub(super) reply: Option<String>,
    /// Nobody listens where a message with this subject as its reply went.
    pub(super) is_unheard: bool,
    pub(super) payload: Bytes,
}

#[derive(Debug)]
pub(super) enum Operation {
    Info(Info),
    Message(Message),
    Ping,
    Pong,
    Error(String),
}

/// Takes the next operation from `buffer`; None if it is not there as a whole.
///
/// # Errors
/// What was found is not of this protocol.
pub(super) fn take(buffer: &mut BytesMut) -> Result<Option<Operation>, String> {
    loop {
        let Some(end) = buffer.iter().take(MAX_LINE_BYTES).position(|byte| *byte == b'\n') else {
            return if buffer.len() < MAX_LINE_BYTES {
                Ok(None)
            } else {
                Err(format!("a line of more than {MAX_LINE_BYTES} bytes"))
            };
        };
        let line = buffer.get(..end).unwrap_or_default();
        let line = std::str::from_utf8(line).map_err(|_| "a line that is no text".to_owned())?.trim_end();
        let (name, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
        let operation = match name.to_ascii_uppercase().as_str() {
            "INFO" => Operation::Info(serde_json::from_str(rest).map_err(|error| error.to_string())?),
            "PING" => Operation::Ping,
            "PONG" => Operation::Pong,
            "-ERR" => Operation::Error(rest.trim().trim_matches('\'').to_owned()),
            "+OK" => {
                buffer.advance(end + 1);
                continue;
            }
            "MSG" | "HMSG" => {
                let head = Head::parse(rest, name.len() == 4).ok_or_else(|| format!("`{line}`"))?;
                if head.total > MAX_PAYLOAD_BYTES || head.headers > head.total {
                    return Err(format!("`{line}`: a message of {} bytes", head.total));
                }
                return Ok(head.take(buffer, end + 1));
            }
            _ => return Err(format!("`{}`", name.chars().take(40).collect::<String>())),
        };
        buffer.advance(end + 1);
        return Ok(Some(operation));
    }
}

/// The line above a message.
struct Head {
    subscription: u64,
    reply: Option<String>,
    headers: usize,
    total: usize,
}

impl Head {
    /// `subject subscription [reply] [bytes of headers] bytes in all`.
    fn parse(rest: &str, has_headers: bool) -> Option<Self> {
        let mut words: Vec<&str> = rest.split_ascii_whitespace().collect();
        let total = words.pop()?.parse().ok()?;
        let headers = if has_headers { words.pop()?.parse().ok()? } else { 0 };
        let (subscription, reply) = match words.as_slice() {
            [_, subscription] => (subscription, None),
            [_, subscription, reply] => (subscription, Some((*reply).to_owned())),
            _ => return None,
        };
        Some(Self { subscription: subscription.parse().ok()?, reply, headers, total })
    }

    fn take(self, buffer: &mut BytesMut, line: usize) -> Option<Operation> {
        let whole = line + self.total + 2;
        if buffer.len() < whole {
            buffer.reserve(whole - buffer.len());
            return None;
        }
        let mut message = buffer.split_to(whole);
        message.truncate(line + self.total);
        message.advance(line);
        let headers = message.split_to(self.headers);
        let payload =
            if message.len() <= COPIED_BYTES { Bytes::copy_from_slice(&message) } else { message.freeze() };
        Some(Operation::Message(Message {
            subscription: self.subscription,
            reply: self.reply,
            is_unheard: headers.starts_with(b"NATS/1.0 503"),
            payload,
        }))
    }
}

pub(super) fn subscribe(out: &mut Vec<u8>, subject: &str, subscription: u64) {
    out.extend_from_slice(format!("SUB {subject} {subscription}\r\n").as_bytes());
}

pub(super) fn unsubscribe(out: &mut Vec<u8>, subscription: u64) {
    out.extend_from_slice(format!("UNSUB {subscription}\r\n").as_bytes());
}

/// The payload is `head` and then `body`.
pub(super) fn publish(out: &mut Vec<u8>, subject: &str, reply: &str, head: &[u8], body: &[u8]) {
    let bytes = head.len() + body.len();
    out.extend_from_slice(format!("PUB {subject} {reply} {bytes}\r\n").as_bytes());
    out.extend_from_slice(head);
    out.extend_from_slice(body);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use dynamo_types::draw;

    const WIRE: &[u8] = b"INFO {\"max_payload\":7,\"headers\":true,\"later\":[1]}\r\n+OK\r\nMSG a.b 9 inbox.1 3\r\nx\r\n\r\n\
        PING\r\nHMSG inbox.1 1 16 18\r\nNATS/1.0 503\r\n\r\nhi\r\nMSG a 2 0\r\n\r\n-ERR 'Authorization Violation'\r\npong\r\n";

    #[test]
    fn operations_survive_any_chunking() {
        for case in 0..200u64 {
            let (mut buffer, mut found, mut rest) = (BytesMut::new(), Vec::new(), WIRE);
            while !rest.is_empty() {
                let cut = (1 + draw::index(case, rest.len() as u64, 30)).min(rest.len());
                buffer.extend_from_slice(&rest[..cut]);
                rest = &rest[cut..];
                while let Some(operation) = take(&mut buffer).unwrap() {
                    found.push(operation);
                }
            }
            assert!(buffer.is_empty());
            let [
                Operation::Info(info),
                Operation::Message(first),
                Operation::Ping,
                Operation::Message(second),
                Operation::Message(third),
                Operation::Error(error),
                Operation::Pong,
            ] = &found[..]
            else {
                panic!("{found:?}");
            };
            assert_eq!((info.max_payload, info.headers, info.tls_required), (7, true, false));
            let expected = Message {
                subscription: 9,
                reply: Some("inbox.1".into()),
                is_unheard: false,
                payload: Bytes::from_static(b"x\r\n"),
            };
            assert_eq!(*first, expected);
            assert!(second.is_unheard && second.reply.is_none() && second.payload == "hi");
            assert_eq!((third.subscription, third.payload.len()), (2, 0));
            assert_eq!(error, "Authorization Violation");
        }
    }

    #[test]
    fn what_is_not_of_this_protocol_is_an_error() {
        for wire in [
            "HTTP/1.1 400 Bad Request\r\n",
            "MSG a 1 -3\r\n",
            "MSG a x 3\r\n",
            "MSG a 1 99999999999\r\n",
            "HMSG a 1 20 10\r\n",
            "INFO nothing\r\n",
        ] {
            assert!(take(&mut BytesMut::from(wire)).is_err(), "{wire}");
        }
        assert!(take(&mut BytesMut::from(&[b'a'; MAX_LINE_BYTES][..])).is_err());
        assert!(take(&mut BytesMut::from(&b"\xff\xfe\r\n"[..])).is_err());
        assert!(take(&mut BytesMut::from("MSG a 1 5\r\nab")).unwrap().is_none());
    }
}
