//! The trace a request belongs to, as its headers say.

use dynamo_types::TraceContext;
use hyper::HeaderMap;

const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";

/// The caller's span; None if there is none, more than one, or one that is malformed. A malformed state is left out.
pub(crate) fn incoming(headers: &HeaderMap) -> Option<TraceContext> {
    let mut parents = headers.get_all(PARENT).iter();
    let (Some(parent), None) = (parents.next(), parents.next()) else { return None };
    let context = TraceContext::parse(parent.to_str().ok()?)?;
    let states: Option<Vec<&str>> = headers.get_all(STATE).iter().map(|state| state.to_str().ok()).collect();
    Some(context.with_state(states.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    const ONE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn read(headers: &[(&'static str, &[u8])]) -> Option<TraceContext> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        incoming(&map)
    }

    #[test]
    fn headers_are_read_together_or_not_at_all() {
        let context = read(&[(PARENT, ONE.as_bytes()), (STATE, b"a=1"), (STATE, b"b=2")]).unwrap();
        assert_eq!((context.parent().as_str(), context.state()), (ONE, Some("a=1,b=2")));
        assert_eq!(read(&[(PARENT, ONE.as_bytes()), (PARENT, ONE.as_bytes())]), None);
        assert_eq!(read(&[(PARENT, b"\xff")]), None);
        assert_eq!(read(&[(STATE, b"a=1")]), None);
        assert_eq!(read(&[(PARENT, ONE.as_bytes()), (STATE, b"\xff")]).unwrap().state(), None);
    }
}
