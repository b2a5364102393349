use super::*;
use crate::metrics::Registry;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const PATIENCE: Duration = Duration::from_secs(10);

/// A collector that answers each request with the next of these statuses, and says what came.
struct Double {
    listener: TcpListener,
}

impl Double {
    async fn new() -> Self {
        Self { listener: TcpListener::bind(("127.0.0.1", 0)).await.unwrap() }
    }

    fn options(&self) -> Options {
        Options {
            export: true,
            endpoint: format!("http://{}", self.listener.local_addr().unwrap()),
            protocol: Protocol::HttpJson,
            delay_ms: 0,
            ..Options::default()
        }
    }

    /// Head and body of one request.
    async fn take(&self, status: &str) -> (String, Vec<u8>) {
        let taken = tokio::time::timeout(PATIENCE, async {
            let (mut socket, _) = self.listener.accept().await.unwrap();
            let mut all = Vec::new();
            let (head, length) = loop {
                assert!(socket.read_buf(&mut all).await.unwrap() > 0);
                let Some(end) = all.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
                let head = String::from_utf8(all[..end].to_vec()).unwrap().to_lowercase();
                let length = head.split("content-length: ").nth(1).unwrap();
                break (head.clone(), length.lines().next().unwrap().parse::<usize>().unwrap() + end + 4);
            };
            while all.len() < length {
                assert!(socket.read_buf(&mut all).await.unwrap() > 0);
            }
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}");
            socket.write_all(answer.as_bytes()).await.unwrap();
            (head.clone(), all.split_off(head.len() + 4))
        });
        taken.await.unwrap()
    }

    async fn spans(&self) -> Vec<Json> {
        let (_, body) = self.take("200 OK").await;
        let body: Json = serde_json::from_slice(&body).unwrap();
        body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone()
    }
}

fn metric(registry: &Registry, line: &str) -> u64 {
    let text = registry.text().unwrap();
    let found = text.lines().find_map(|found| found.strip_prefix(line));
    found.map_or(0, |value| value.trim().parse().unwrap())
}

const DROPPED: &str = "dynamo_trace_spans_dropped_total{reason=\"queue_full\"}";
const FAILED: &str = "dynamo_trace_spans_dropped_total{reason=\"export_failed\"}";
const EXPORTED: &str = "dynamo_trace_spans_exported_total";

#[test]
fn contexts_continue_the_callers_trace_or_begin_one() {
    let tracer = Tracer::off();
    let incoming = TraceContext::parse(PARENT).unwrap().with_state(["v=1"]);
    let context = tracer.begin(Some(&incoming));
    assert_eq!(
        (context.trace_id, context.is_sampled(), context.state()),
        (incoming.trace_id, true, Some("v=1"))
    );
    assert_ne!(context.span_id, incoming.span_id);
    let fresh: std::collections::BTreeSet<_> = (0..1000).map(|_| tracer.begin(None).trace_id).collect();
    assert_eq!(fresh.len(), 1000);
    assert!(!tracer.begin(None).is_sampled(), "nobody has decided to record");
    let mut nothing = tracer.child("route", Kind::Internal, Some(&context));
    nothing.set("n", 1u32);
    assert!(!nothing.is_recorded());
}

#[tokio::test]
async fn spans_of_one_request_are_one_trace_below_the_callers_span() {
    let double = Double::new().await;
    let registry = Registry::new();
    let (tracer, exporter) = Tracer::start(&double.options(), &registry).unwrap();
    let incoming = TraceContext::parse(PARENT).unwrap();
    let context = tracer.begin(Some(&incoming));
    let mut root = tracer.span("http-request", Kind::Server, &context, Some(incoming.span_id));
    let mut route = tracer.child("route", Kind::Internal, root.context());
    route.set("worker", "w");
    route.fail(&Fault::overloaded("secret"));
    drop(route);
    root.set("tokens", 7u32);
    root.set("stream", true);
    root.event("first_token");
    drop(root);
    let mut spans = BTreeMap::new();
    while spans.len() < 2 {
        for span in double.spans().await {
            spans.insert(span["name"].as_str().unwrap().to_owned(), span);
        }
    }
    let (root, route) = (&spans["http-request"], &spans["route"]);
    for span in [root, route] {
        assert_eq!(span["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
        let time = |field: &str| span[field].as_str().unwrap().parse::<u64>().unwrap();
        assert!(time("startTimeUnixNano") <= time("endTimeUnixNano"), "{span}");
    }
    assert_eq!((&root["parentSpanId"], &root["kind"]), (&"00f067aa0ba902b7".into(), &2.into()));
    assert_eq!(route["parentSpanId"], root["spanId"]);
    assert_eq!(route["status"], serde_json::json!({"code": 2, "message": "overload"}));
    assert_eq!(root["attributes"][0]["value"]["intValue"], "7");
    assert_eq!(root["events"][0]["name"], "first_token");
    exporter.finish(PATIENCE).await;
    assert_eq!((metric(&registry, EXPORTED), metric(&registry, DROPPED)), (2, 0));
}

#[tokio::test]
async fn a_full_queue_drops_and_counts_and_the_rest_is_sent_at_the_end() {
    let double = Double::new().await;
    let registry = Registry::new();
    // The delay is long: only the end lets anything go.
    let options = Options { queue_spans: 4, batch_spans: 4, delay_ms: 3_600_000, ..double.options() };
    let (tracer, exporter) = Tracer::start(&options, &registry).unwrap();
    let parent = TraceContext::new(TraceId(1), SpanId(2), true);
    // The task has not run yet: nothing has left the queue.
    (0..10).for_each(|_| drop(tracer.child("engine", Kind::Internal, Some(&parent))));
    assert_eq!(metric(&registry, DROPPED), 6);
    let (spans, ()) = tokio::join!(double.spans(), exporter.finish(PATIENCE));
    assert_eq!(spans.len(), 4);
    assert_eq!((metric(&registry, EXPORTED), metric(&registry, FAILED)), (4, 0));
    drop(tracer.child("engine", Kind::Internal, Some(&parent)));
    assert_eq!(metric(&registry, DROPPED), 7, "after the end nothing is taken");
}

#[tokio::test]
async fn refusals_are_final_and_busy_collectors_are_asked_again() {
    let double = Double::new().await;
    let registry = Registry::new();
    let (tracer, exporter) = Tracer::start(&double.options(), &registry).unwrap();
    let parent = TraceContext::new(TraceId(1), SpanId(2), true);
    drop(tracer.child("first", Kind::Internal, Some(&parent)));
    let (head, _) = double.take("400 Bad Request").await;
    assert!(head.starts_with("post /v1/traces http/1.1"), "{head}");
    assert!(head.contains("content-type: application/json"), "{head}");
    drop(tracer.child("second", Kind::Internal, Some(&parent)));
    let (_, refused) = double.take("503 Service Unavailable").await;
    let (_, again) = double.take("200 OK").await;
    assert_eq!(refused, again);
    exporter.finish(PATIENCE).await;
    assert_eq!((metric(&registry, FAILED), metric(&registry, EXPORTED)), (1, 1));
}

#[tokio::test]
async fn a_collector_that_is_gone_costs_the_spans_and_not_the_end() {
    let gone = Double::new().await.options();
    let registry = Registry::new();
    let (tracer, exporter) = Tracer::start(&gone, &registry).unwrap();
    drop(tracer.child("lost", Kind::Internal, Some(&TraceContext::new(TraceId(1), SpanId(2), true))));
    let ended = tokio::time::timeout(PATIENCE, exporter.finish(PATIENCE)).await;
    assert!(ended.is_ok());
    assert_eq!(metric(&registry, FAILED), 1);
}

#[tokio::test]
async fn what_is_not_sampled_is_not_recorded() {
    let double = Double::new().await;
    let options = Options { sample_ratio: 0.0, ..double.options() };
    let (tracer, _exporter) = Tracer::start(&options, &Registry::new()).unwrap();
    let fresh = tracer.begin(None);
    assert!(!tracer.span("http-request", Kind::Server, &fresh, None).is_recorded());
    let wanted = tracer.begin(TraceContext::parse(PARENT).as_ref());
    assert!(tracer.span("http-request", Kind::Server, &wanted, None).is_recorded(), "the caller decides");
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_by_name() {
    let with = |change: fn(&mut Options)| {
        let mut options = Options { export: true, ..Options::default() };
        change(&mut options);
        Tracer::start(&options, &Registry::new()).err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert!(with(|options| options.endpoint = "https://h:4318".into()).contains("TLS"));
    assert!(with(|options| options.endpoint = "localhost:4317".into()).contains("trace.endpoint"));
    assert!(with(|options| options.sample_ratio = 1.5).contains("trace.sample_ratio"));
    assert!(with(|options| options.batch_spans = 0).contains("trace.batch_spans"));
    assert!(with(|options| options.queue_spans = 0).contains("trace.queue_spans"));
    assert!(with(|options| options.protocol = Protocol::Grpc).contains("trace.protocol"));
    assert_eq!(with(|_| {}), "");
}
