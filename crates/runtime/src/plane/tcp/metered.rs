//! What is counted of calls between two processes.

use super::super::Metrics;
use super::super::conformance::{self, Holder, eventually, last, request, tokens};
use super::super::wire::{Caller, Options};
use super::super::{InProcess, RequestPlane};
use super::{Dialer, Server, Tls};
use crate::events::Local;
use crate::metrics::Registry;
use crate::sync::lock;
use dynamo_types::{Instance, InstanceId, Transport};
use std::sync::Arc;
use tokio::net::TcpListener;

fn metered() -> (Registry, Options) {
    let registry = Registry::new();
    let metrics = Metrics::new(&registry, "here").unwrap();
    (registry, Options { metrics, ..Options::default() })
}

/// The value of the one series whose name, with labels, is this.
fn value(registry: &Registry, series: &str) -> f64 {
    let text = registry.text().unwrap();
    let line = text.lines().find(|line| line.rsplit_once(' ').is_some_and(|(name, _)| name == series));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("no {series} in\n{text}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_counted_on_both_sides_and_given_back() {
    let ((near, calls), (far, serves)) = (metered(), metered());
    let served = InProcess::new(conformance::options());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server =
        Server::start(listener, &served, Arc::new(Local::default()), serves, Tls::default()).unwrap();
    let holder = Arc::new(Holder::default());
    let _guard = served.serve(InstanceId(1), holder.clone());
    let instance = Instance {
        namespace: "here".into(),
        component: "backend".into(),
        endpoint: "generate".into(),
        id: InstanceId(1),
        transport: Transport::Tcp(server.local_addr().to_string()),
        draining: false,
        fault: None,
    };
    let caller = Caller::new(calls, Arc::new(Local::default()), Arc::new(Dialer::default()));
    let pool = |registry: &Registry| {
        ["active", "idle"].map(|state| value(registry, &format!("dynamo_transport_tcp_pool_{state}")))
    };
    let mut streams = Vec::new();
    for first in 1..=3 {
        streams.push(caller.call(&instance, request(&[first])).await.unwrap());
    }
    holder.has(3).await;
    assert_eq!(value(&near, "dynamo_request_plane_inflight_requests"), 3.0);
    assert_eq!(pool(&near), [1.0, 0.0]);
    assert_eq!(value(&near, "dynamo_request_plane_queue_seconds_count"), 3.0);
    assert_eq!(value(&near, "dynamo_request_plane_roundtrip_ttft_seconds_count"), 0.0, "nobody has answered");
    // One answers in two pieces, one at once, one is left.
    holder.push(1, tokens(&[7]));
    assert_eq!(streams[0].next().await, Some(Ok(tokens(&[7]))));
    holder.push(1, last(&[8]));
    holder.push(2, last(&[9]));
    assert_eq!(streams[0].next().await, Some(Ok(last(&[8]))));
    assert_eq!(streams[1].next().await, Some(Ok(last(&[9]))));
    assert_eq!(value(&near, "dynamo_request_plane_roundtrip_ttft_seconds_count"), 2.0, "first words only");
    drop(streams);
    assert_eq!(value(&near, "dynamo_request_plane_inflight_requests"), 0.0);
    assert_eq!(pool(&near), [0.0, 1.0]);
    eventually("the engine is told of the one that was left", || lock(&holder.0)[&3].is_cancelled()).await;
    assert_eq!(value(&near, "dynamo_request_plane_send_seconds_count"), 3.0);
    assert_eq!(value(&far, "dynamo_work_handler_network_transit_seconds_count"), 3.0);
    let labels = r#"{dynamo_component="backend",dynamo_endpoint="generate",dynamo_namespace="here"}"#;
    let requests = value(&far, &format!("dynamo_component_request_bytes_total{labels}"));
    // Hellos, beats and cancels are bytes of the connection, and not of requests.
    assert!(requests > 0.0 && requests < value(&near, "dynamo_transport_tcp_bytes_sent_total"));
    eventually("the answers are counted", || {
        let answers = value(&far, &format!("dynamo_component_response_bytes_total{labels}"));
        answers > 0.0 && answers <= value(&near, "dynamo_transport_tcp_bytes_received_total")
    })
    .await;
    assert_eq!(value(&near, "dynamo_transport_tcp_errors_total"), 0.0);
    // The worker dies with a stream on the connection.
    let mut broken = caller.call(&instance, request(&[4])).await.unwrap();
    holder.has(4).await;
    drop(server);
    assert!(broken.next().await.unwrap().is_err());
    eventually("the connection left the pool", || pool(&near) == [0.0, 0.0]).await;
    assert_eq!(value(&near, "dynamo_transport_tcp_errors_total"), 1.0);
    drop(broken);
    assert_eq!(value(&near, "dynamo_request_plane_inflight_requests"), 0.0);
}
