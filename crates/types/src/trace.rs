//! Where a request belongs in a trace: the W3C trace context, as it comes in HTTP headers and goes on to workers.
//!
//! What is malformed is no fault of the request: it counts as absent.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::sync::Arc;

/// Length of a version 00 `traceparent`, which every later version begins with.
const PARENT_BYTES: usize = 55;
/// List members of a `tracestate`; with more the whole header is void.
const STATE_MEMBERS: usize = 32;
/// Bytes of `tracestate` that are passed on: the least that the specification asks for. Members beyond it are dropped, the
/// long ones first.
const STATE_BYTES: usize = 512;
/// A member longer than this is dropped first.
const LONG_MEMBER_BYTES: usize = 128;
/// Bits that version 00 gives a meaning: sampled, and random trace id.
const KNOWN_FLAGS: u8 = 0b11;
const SAMPLED: u8 = 0b01;

/// All spans of one trace share it. Never zero. Shown as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TraceId(pub u128);

/// One span. Never zero. Shown as 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpanId(pub u64);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A span as others see it: the parent of what is done for it. Serialised as the two headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    pub trace_id: TraceId,
    pub span_id: SpanId,
    flags: u8,
    /// What tracing systems add for themselves; passed on as it came.
    state: Option<Arc<str>>,
}

impl TraceContext {
    pub fn new(trace_id: TraceId, span_id: SpanId, is_sampled: bool) -> Self {
        Self { trace_id, span_id, flags: u8::from(is_sampled), state: None }
    }

    /// Reads a `traceparent`; None if it is not one. Of a later version only what version 00 has is read, as that
    /// specification asks.
    pub fn parse(parent: &str) -> Option<Self> {
        let bytes = parent.as_bytes();
        let (head, rest) = bytes.split_at_checked(PARENT_BYTES)?;
        let version = u8::try_from(hex(head.get(0..2)?)?).ok()?;
        let is_whole = rest.is_empty() || (version > 0 && rest.first() == Some(&b'-'));
        let dashed = [2, 35, 52].into_iter().all(|at| head.get(at) == Some(&b'-'));
        if version == 0xff || !is_whole || !dashed {
            return None;
        }
        let trace_id = Some(hex(head.get(3..35)?)?).filter(|id| *id != 0)?;
        let span_id = u64::try_from(hex(head.get(36..52)?)?).ok().filter(|id| *id != 0)?;
        let flags = u8::try_from(hex(head.get(53..55)?)?).ok()? & KNOWN_FLAGS;
        Some(Self { trace_id: TraceId(trace_id), span_id: SpanId(span_id), flags, state: None })
    }

    /// Adds the `tracestate` headers, in their order. A malformed one counts as absent.
    #[must_use]
    pub fn with_state<'a>(mut self, headers: impl IntoIterator<Item = &'a str>) -> Self {
        self.state = state(headers);
        self
    }

    /// May what is done under it be recorded?
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// A span below this one.
    #[must_use]
    pub fn child(&self, span_id: SpanId) -> Self {
        Self { span_id, ..self.clone() }
    }

    /// The same with another decision about recording.
    #[must_use]
    pub fn sampled(mut self, is_sampled: bool) -> Self {
        self.flags = (self.flags & !SAMPLED) | u8::from(is_sampled);
        self
    }

    pub fn flags(&self) -> u8 {
        self.flags
    }

    /// The `traceparent` to send on.
    pub fn parent(&self) -> String {
        format!("00-{}-{}-{:02x}", self.trace_id, self.span_id, self.flags)
    }

    /// The `tracestate` to send on.
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }
}

/// Lower-case hexadecimal digits, at most 32 of them.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |value: u128, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u128::from(digit))
    })
}

/// All headers as one list, with empty members left out and within [`STATE_BYTES`].
fn state<'a>(headers: impl IntoIterator<Item = &'a str>) -> Option<Arc<str>> {
    let mut members: Vec<&str> = Vec::new();
    for member in headers.into_iter().flat_map(|header| header.split(',')) {
        let member = member.trim_matches([' ', '\t']);
        if member.is_empty() {
            continue;
        }
        let (key, value) = member.split_once('=')?;
        let is_known = |known: &&str| known.split('=').next() == Some(key);
        if members.len() == STATE_MEMBERS || !is_key(key) || !is_value(value) || members.iter().any(is_known)
        {
            return None;
        }
        members.push(member);
    }
    let bytes = |members: &[&str]| members.iter().map(|member| member.len() + 1).sum::<usize>();
    // A list of n members has n - 1 commas.
    while bytes(&members) > STATE_BYTES + 1 {
        let long = members.iter().rposition(|member| member.len() > LONG_MEMBER_BYTES);
        members.remove(long.unwrap_or(members.len() - 1));
    }
    Some(members.join(",")).filter(|state| !state.is_empty()).map(Arc::from)
}

/// `vendor`, or `tenant@vendor`.
fn is_key(key: &str) -> bool {
    let rest = |text: &str| {
        text.bytes().all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-' | b'*' | b'/')
        })
    };
    let letter = |text: &str| text.starts_with(|c: char| c.is_ascii_lowercase());
    let digit = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    match key.split_once('@') {
        None => key.len() <= 256 && letter(key) && rest(key),
        Some((tenant, system)) => {
            tenant.len() <= 241
                && (letter(tenant) || digit(tenant))
                && rest(tenant)
                && system.len() <= 14
                && letter(system)
                && rest(system)
        }
    }
}

fn is_value(value: &str) -> bool {
    let printable = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'=';
    (1..=256).contains(&value.len()) && value.bytes().all(printable) && !value.ends_with(' ')
}

#[derive(Serialize, Deserialize)]
struct Wire {
    parent: String,
    #[serde(default)]
    state: Option<String>,
}

impl Serialize for TraceContext {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Wire { parent: self.parent(), state: self.state().map(str::to_owned) }.serialize(serializer)
    }
}

/// For [`crate::Request`]: a context that this version cannot read must not cost the request.
pub(crate) fn lenient<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<TraceContext>, D::Error> {
    let wire = Option::<Wire>::deserialize(deserializer)?;
    Ok(wire.and_then(|wire| Some(TraceContext::parse(&wire.parent)?.with_state(wire.state.as_deref()))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn the_specifications_own_example() {
        let context = TraceContext::parse(PARENT).unwrap();
        assert_eq!(context.trace_id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(context.span_id.to_string(), "00f067aa0ba902b7");
        assert!(context.is_sampled());
        assert_eq!(context.parent(), PARENT);
        let child = context.child(SpanId(1));
        assert_eq!(child.parent(), "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000001-01");
        assert_eq!(child.sampled(false).flags(), 0);
    }

    #[test]
    fn malformed_parents_count_as_absent() {
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 ",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "0x-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
            "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-zz",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01more",
            "00-4bf92f3577b34da6a3ce929d0e0e47360-0f067aa0ba902b7-01",
            "€€-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn later_versions_are_read_as_far_as_they_are_known() {
        let later = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-fd";
        let context = TraceContext::parse(later).unwrap();
        assert_eq!(context.parent(), PARENT);
        assert_eq!(TraceContext::parse(&format!("{later}-what-will-be")), Some(context));
    }

    #[test]
    fn states_are_joined_checked_and_kept_within_their_limit() {
        let with = |headers: &[&str]| {
            let context = TraceContext::parse(PARENT).unwrap().with_state(headers.iter().copied());
            context.state().map(str::to_owned)
        };
        assert_eq!(with(&["a=1 , b@c=x y", "d=2,,"]).as_deref(), Some("a=1,b@c=x y,d=2"));
        for bad in ["A=1", "a", "a=", "a=1,a=2", "a=b=c", "a@b@c=1", "a=é", "=1", "a b=1", "@v=1", "1a=1"] {
            assert_eq!(with(&[bad]), None, "{bad:?}");
        }
        let many: Vec<String> = (0..33).map(|n| format!("k{n}=v")).collect();
        assert_eq!(with(&[&many.join(",")]), None);
        assert!(with(&[&many[..32].join(",")]).is_some());
        let long = format!("a=1,b={},c={},d=2", "x".repeat(256), "y".repeat(256));
        assert_eq!(with(&[&long]).unwrap(), format!("a=1,b={},d=2", "x".repeat(256)));
        let short: Vec<String> = (0..32).map(|n| format!("k{n:02}={}", "v".repeat(20))).collect();
        let kept = with(&[&short.join(",")]).unwrap();
        assert!(kept.len() <= 512 && kept.starts_with("k00=") && kept.split(',').count() == 20, "{kept}");
    }

    proptest! {
        #[test]
        fn any_header_is_read_or_refused_and_what_is_sent_is_read_again(
            noise in "\\PC{0,80}", trace in 1u128.., span in 1u64.., sampled: bool,
        ) {
            let _ = TraceContext::parse(&noise).map(|context| context.with_state([noise.as_str()]));
            let context = TraceContext::new(TraceId(trace), SpanId(span), sampled);
            prop_assert_eq!(TraceContext::parse(&context.parent()), Some(context));
        }
    }
}
