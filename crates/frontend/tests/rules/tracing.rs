//! The W3C trace context: continued where it is well-formed, begun where it is not, and always handed to the worker.

use crate::client::Client;
use crate::harness::{ALL_ROUTES, Ending, Harness, ask};
use dynamo_types::FinishReason::Stop;
use dynamo_types::TraceContext;
use serde_json::json;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

async fn asked(
    harness: &Harness,
    worker: &crate::harness::Worker,
    (route, stream): (&str, bool),
    headers: &[(&str, &str)],
) -> Vec<TraceContext> {
    let before = worker.requests().len();
    let fields = if route.contains("completions") { json!({"n": 2}) } else { json!({}) };
    let body = ask(route, stream, "hi", fields).to_string();
    let mut client = Client::connect(harness.address).await;
    let reply = client.ask("POST", route, headers, body.as_bytes()).await;
    assert_eq!(reply.status, 200, "{route}: {}", reply.text());
    worker.requests()[before..].iter().map(|request| request.trace.clone().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_traces_go_on_to_workers_on_every_route() {
    let harness = Harness::new().await;
    let worker = harness.script(&[b"ok"], Ending::Finish(Stop)).await;
    for route in ALL_ROUTES {
        let headers = [("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b@c=2")];
        let contexts = asked(&harness, &worker, route, &headers).await;
        assert!(!contexts.is_empty());
        for context in &contexts {
            assert_eq!(context.trace_id.to_string(), TRACE);
            assert_ne!(
                context.span_id.to_string(),
                "00f067aa0ba902b7",
                "ours is between the caller and the worker"
            );
            assert_eq!((context.is_sampled(), context.state()), (true, Some("a=1,b@c=2")));
            assert_eq!(context, &contexts[0], "all choices are asked for by one span");
        }
        let other = asked(&harness, &worker, route, &headers).await;
        assert_ne!(other[0].span_id, contexts[0].span_id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_contexts_are_ignored_and_a_new_trace_begins() {
    let harness = Harness::new().await;
    let worker = harness.script(&[b"ok"], Ending::Finish(Stop)).await;
    let mut seen = std::collections::BTreeSet::new();
    for headers in [
        &[][..],
        &[("traceparent", "00-00000000000000000000000000000000-00f067aa0ba902b7-01")],
        &[("traceparent", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")],
        &[("traceparent", "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01")],
        &[("traceparent", PARENT), ("traceparent", PARENT)],
        &[("traceparent", "nonsense"), ("tracestate", "a=1")],
        &[("tracestate", "a=1")],
    ] {
        let contexts = asked(&harness, &worker, ALL_ROUTES[0], headers).await;
        assert_ne!(contexts[0].trace_id.to_string(), TRACE, "{headers:?}");
        assert_eq!((contexts[0].is_sampled(), contexts[0].state()), (false, None));
        assert!(seen.insert(contexts[0].trace_id), "every request begins a trace of its own");
    }
}
