//! The HTTP surface itself: routes, headers, limits, metrics.

use crate::client::{Client, get};
use crate::harness::{Ending, Harness, ROUTES, all_pieces, ask, card, config, eventually};
use dynamo_frontend::{Config, Frontend, Services};
use dynamo_types::FinishReason::Stop;
use serde_json::json;
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_methods_and_types_have_clear_errors() {
    let harness = Harness::new().await;
    let _worker = harness.script(&[b"ok"], Ending::Finish(Stop)).await;
    let mut client = Client::connect(harness.address).await;
    for (method, path) in [("GET", "/nope"), ("POST", "/v1/chat"), ("GET", "/v1/models/"), ("DELETE", "/v2")]
    {
        let reply = client.ask(method, path, &[], b"").await;
        assert_eq!(reply.status, 404);
        assert_eq!(reply.error()["message"], format!("Route not found: {method} {path}"));
    }
    for (method, path, allow) in [
        ("GET", "/v1/chat/completions", "POST"),
        ("PUT", "/v1/completions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", "/v1/models/m", "GET, HEAD"),
        ("POST", "/metrics", "GET, HEAD"),
        ("DELETE", "/", "GET, HEAD"),
    ] {
        let reply = client.ask(method, path, &[], b"").await;
        assert_eq!((reply.status, reply.header("allow")), (405, Some(allow)), "{method} {path}");
        assert_eq!(reply.error()["code"], "method_not_allowed");
    }
    for path in
        ["/health", "/live", "/metrics", "/openapi.json", "/v1/models", "/v1/models/m", "/v1/models/m/ready"]
    {
        let whole = client.ask("GET", path, &[], b"").await;
        let head = client.ask("HEAD", path, &[], b"").await;
        assert_eq!((whole.status, head.status), (200, 200), "{path}");
        if path != "/metrics" {
            assert_eq!(head.header("content-length"), whole.header("content-length"), "{path}");
        }
    }
    for (route, stream) in ROUTES {
        let body = ask(route, stream, "x", json!({})).to_string();
        for (kind, status) in [
            ("text/plain", 415),
            ("application/x-www-form-urlencoded", 415),
            ("application/json; charset=utf-8", 200),
            ("APPLICATION/JSON", 200),
        ] {
            let reply = client.ask("POST", route, &[("content-type", kind)], body.as_bytes()).await;
            assert_eq!(reply.status, status, "{kind}");
        }
    }
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_ids_are_echoed_and_used() {
    let harness = Harness::new().await;
    let worker = harness.script(&[b"ok"], Ending::Finish(Stop)).await;
    let mut client = Client::connect(harness.address).await;
    let uuid = "0189d5b5-0bb4-4e5d-9f3a-6f7a8b9c0d1e";
    for (route, stream) in ROUTES {
        let body = ask(route, stream, "x", json!({})).to_string();
        let reply = client.ask("POST", route, &[("x-request-id", "mine-7")], body.as_bytes()).await;
        assert_eq!(reply.header("x-request-id"), Some("mine-7"));
        let reply = client.ask("POST", route, &[("x-dynamo-request-id", uuid)], body.as_bytes()).await;
        assert_eq!(reply.header("x-request-id"), Some(uuid));
        assert!(reply.text().contains(&format!("-{uuid}\"")), "{}", reply.text());
        assert_eq!(&*worker.requests().last().unwrap().id.0, uuid);
        let reply = client.ask("POST", route, &[("x-dynamo-request-id", "no uuid")], body.as_bytes()).await;
        assert_eq!(reply.header("x-request-id").unwrap().len(), 36);
    }
    for path in ["/health", "/nope", "/v1/models"] {
        assert_eq!(
            client.ask("GET", path, &[("x-request-id", "q")], b"").await.header("x-request-id"),
            Some("q")
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_taken_port_is_one_clear_line() {
    let harness = Harness::new().await;
    let services = Services {
        plane: Arc::new(harness.plane.clone()),
        discovery: harness.discovery.clone(),
        events: harness.events.clone(),
        peers: None,
        router: dynamo_router::Config::default(),
        registry: dynamo_runtime::metrics::Registry::new(),
        tracer: dynamo_runtime::trace::Tracer::off(),
    };
    let port = harness.address.port();
    let error = Frontend::start(Config { port, ..config() }, services).await.err().unwrap().to_string();
    assert!(error.contains(&format!("127.0.0.1:{port}")) && error.contains("in use"), "{error}");
    assert_eq!(error.lines().count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_have_limits_of_size_and_time() {
    let settings =
        Config { header_timeout_ms: 50, header_limit_bytes: 8192, header_count_limit: 20, ..config() };
    let harness = Harness::with(settings, dynamo_router::Config::default()).await;
    let long = "x".repeat(9000);
    let reply = Client::connect(harness.address).await.ask("GET", "/live", &[("x-long", &long)], b"").await;
    assert_eq!(reply.status, 431);
    let many: Vec<(&str, &str)> = (0..30).map(|_| ("x-many", "1")).collect();
    assert_eq!(Client::connect(harness.address).await.ask("GET", "/live", &many, b"").await.status, 431);
    // Slow and idle connections are closed.
    let mut slow = Client::connect(harness.address).await;
    slow.write(b"GET /live HTTP/1.1\r\nhost: ").await;
    assert!(slow.is_closed().await);
    let mut idle = Client::connect(harness.address).await;
    assert_eq!(idle.ask("GET", "/live", &[], b"").await.status, 200);
    assert!(idle.is_closed().await);
    eventually("their slots are free", || harness.frontend.ledger().connections == 0).await;
    assert_eq!(get(harness.address, "/live").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_stops_coming_is_given_up() {
    let settings = Config { body_timeout_ms: 50, ..config() };
    let harness = Harness::with(settings, dynamo_router::Config::default()).await;
    for (route, _) in ROUTES {
        let mut client = Client::connect(harness.address).await;
        client.send("POST", route, &[("content-length", "500")], b"{\"model\":").await;
        let reply = client.reply("POST").await;
        assert_eq!((reply.status, &reply.error()["code"]), (400, &json!("body_timeout")));
    }
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_above_the_limit_wait_their_turn() {
    let settings = Config { max_connections: 2, ..config() };
    let harness = Harness::with(settings, dynamo_router::Config::default()).await;
    let mut first = Client::connect(harness.address).await;
    let mut second = Client::connect(harness.address).await;
    assert_eq!(first.ask("GET", "/live", &[], b"").await.status, 200);
    assert_eq!(second.ask("GET", "/live", &[], b"").await.status, 200);
    let mut third = Client::connect(harness.address).await;
    third.send("GET", "/live", &[], b"").await;
    assert_eq!(harness.frontend.ledger().connections, 2);
    drop(first);
    assert_eq!(third.reply("GET").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quiet_streams_are_kept_alive() {
    let settings = Config { keep_alive_ms: 20, silence_timeout_ms: 0, ..config() };
    let harness = Harness::with(settings, dynamo_router::Config::default()).await;
    let _worker = harness.script(&[b"ok"], Ending::Hang).await;
    let mute: crate::harness::Behaviour = Arc::new(|_| Ok((vec![], Ending::Hang)));
    let _mute = harness.worker(2, card("mute", &[]), mute).await;
    for model in ["m", "mute"] {
        for route in [ROUTES[1].0, ROUTES[3].0] {
            let mut client = Client::connect(harness.address).await;
            client
                .send(
                    "POST",
                    route,
                    &[],
                    ask(route, true, "x", json!({"model": model})).to_string().as_bytes(),
                )
                .await;
            let seen = client.read_until(": keep-alive\n\n").await;
            assert!(seen.starts_with("HTTP/1.1 200"), "{seen}");
        }
    }
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_metric_family_is_there_after_one_request() {
    let harness = Harness::new().await;
    let _worker = harness.worker(7, card("m", &[b"a", b"b"]), all_pieces(2, Ending::Finish(Stop))).await;
    for (route, stream) in ROUTES {
        assert_eq!(harness.post(route, &ask(route, stream, "hello", json!({}))).await.status, 200);
    }
    harness.balanced().await;
    let labels = ["model=\"m\"", "endpoint=\"completions\"", "request_type=\"stream\""];
    assert_eq!(harness.metric("dynamo_frontend_requests_started_total", &labels).await, 1.0);
    let success = [&labels[..], &["status=\"success\"", "error_type=\"\""]].concat();
    assert_eq!(harness.metric("dynamo_frontend_requests_total", &success).await, 1.0);
    for (name, value) in [
        ("dynamo_frontend_request_duration_seconds_count", 4.0),
        ("dynamo_frontend_time_to_first_token_seconds_count", 4.0),
        ("dynamo_frontend_input_sequence_tokens_count", 4.0),
        ("dynamo_frontend_output_sequence_tokens_sum", 8.0),
        ("dynamo_frontend_output_tokens_total", 8.0),
        ("dynamo_frontend_cached_tokens_count", 4.0),
        ("dynamo_frontend_tokenize_seconds_count", 4.0),
        ("dynamo_frontend_template_seconds_count", 2.0),
        ("dynamo_frontend_disconnected_clients", 0.0),
        ("dynamo_frontend_model_ready", 1.0),
        ("dynamo_frontend_model_total_kv_blocks", 1024.0),
        ("dynamo_frontend_model_max_num_seqs", 64.0),
        ("dynamo_frontend_model_max_num_batched_tokens", 2048.0),
        ("dynamo_frontend_model_context_length", 1_000_000.0),
        ("dynamo_frontend_model_kv_cache_block_size", 16.0),
        ("dynamo_component_router_requests_total", 4.0),
        ("dynamo_component_router_kv_hit_rate_count", 4.0),
        ("dynamo_component_router_worker_registered", 1.0),
        ("dynamo_component_router_index_nodes", 0.0),
        ("dynamo_router_overhead_block_hashing_ms_count", 4.0),
        ("dynamo_router_overhead_scheduling_ms_count", 4.0),
    ] {
        assert_eq!(harness.metric(name, &[]).await, value, "{name}");
    }
    let text = harness.get("/metrics").await.text();
    for family in [
        "dynamo_frontend_inter_token_latency_seconds",
        "dynamo_frontend_model_cancellation_total",
        "dynamo_frontend_model_rejection_total",
        "dynamo_frontend_worker_active_decode_blocks{dp_rank=\"0\",worker_id=\"7\",worker_type=\"aggregated\"}",
        "dynamo_frontend_worker_active_prefill_tokens",
        "dynamo_frontend_open_connections",
    ] {
        assert!(text.contains(family), "{family}");
    }
}
