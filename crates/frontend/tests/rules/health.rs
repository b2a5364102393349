//! gRPC's health checks, as orchestrators and load balancers ask them.

use crate::client::PATIENCE;
use crate::grpc::{Call, Ended, Grpc, ended, framed};
use crate::harness::{Ending, Harness, config};
use bytes::{Bytes, BytesMut};
use dynamo_frontend::Config;
use dynamo_protocols::kserve::wire::{self, Fields};
use dynamo_protocols::kserve::{HEALTH_SERVICE, SERVICE};
use dynamo_types::FinishReason::Stop;
use std::net::SocketAddr;
use tokio::time::timeout;

const SERVING: u64 = 1;
const NOT_SERVING: u64 = 2;
const UNKNOWN: u64 = 3;

async fn harness(config: Config) -> (Harness, SocketAddr) {
    let config = Config { grpc_port: Some(0), ..config };
    let harness = Harness::with(config, dynamo_router::Config::default()).await;
    let address = harness.frontend.grpc_addr().unwrap();
    (harness, address)
}

fn question(service: &str) -> Vec<Bytes> {
    let mut message = BytesMut::new();
    wire::text(&mut message, 1, service);
    vec![framed(&message)]
}

fn status(message: &[u8]) -> u64 {
    Fields::of(message).next().unwrap().unwrap().1.varint().unwrap()
}

async fn check(grpc: &mut Grpc, service: &str) -> Ended {
    let (send, response) = grpc.request(&format!("{HEALTH_SERVICE}Check"), &[], question(service)).await;
    drop(send);
    ended(timeout(PATIENCE, response).await.unwrap().unwrap()).await
}

async fn watch(grpc: &mut Grpc, service: &str, headers: &[(&str, &str)]) -> Call {
    let (send, response) = grpc.request(&format!("{HEALTH_SERVICE}Watch"), headers, question(service)).await;
    drop(send);
    Call::reading(timeout(PATIENCE, response).await.unwrap().unwrap())
}

fn own_service() -> &'static str {
    SERVICE.trim_matches('/')
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_follows_the_models_and_needs_no_key() {
    let path = std::env::temp_dir().join(format!("dynamo-health-keys-{}", std::process::id()));
    std::fs::write(&path, "sk-0123456789abcdef\n").unwrap();
    let (harness, address) = harness(Config { api_keys_file: Some(path.clone()), ..config() }).await;
    std::fs::remove_file(&path).unwrap();
    let mut grpc = Grpc::connect(address).await;
    let mut watched = watch(&mut grpc, own_service(), &[]).await;
    let mut stranger = watch(&mut grpc, "some.Other", &[]).await;
    assert_eq!(status(&watched.next().await.unwrap()), NOT_SERVING);
    assert_eq!(status(&stranger.next().await.unwrap()), UNKNOWN);
    for service in ["", own_service()] {
        let answer = check(&mut grpc, service).await;
        assert_eq!((answer.code, status(&answer.messages[0])), (0, NOT_SERVING));
    }
    let worker = harness.script(&[b"a"], Ending::Finish(Stop)).await;
    assert_eq!(status(&watched.next().await.unwrap()), SERVING);
    for service in ["", own_service()] {
        let answer = check(&mut grpc, service).await;
        assert_eq!((answer.code, status(&answer.messages[0])), (0, SERVING));
    }
    let unknown = check(&mut grpc, "some.Other").await;
    assert_eq!((unknown.code, unknown.messages.len()), (5, 0), "{unknown:?}");
    drop(worker);
    assert_eq!(status(&watched.next().await.unwrap()), NOT_SERVING);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_tells_watchers_and_does_not_wait_for_them() {
    let (harness, address) = harness(config()).await;
    let _worker = harness.script(&[b"a"], Ending::Finish(Stop)).await;
    let mut grpc = Grpc::connect(address).await;
    let mut watched = watch(&mut grpc, "", &[]).await;
    assert_eq!(status(&watched.next().await.unwrap()), SERVING);
    let late = watch(&mut grpc, "", &[("grpc-timeout", "1m")]).await;
    assert_eq!(late.rest().await.code, 4);
    let Harness { frontend, .. } = harness;
    let rest = tokio::spawn(watched.rest());
    assert!(timeout(PATIENCE, frontend.drain()).await.unwrap());
    let rest = rest.await.unwrap();
    assert_eq!((status(&rest.messages[0]), rest.messages.len(), rest.code), (NOT_SERVING, 1, 14));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_health_check_is_refused() {
    let (_harness, address) = harness(config()).await;
    let mut grpc = Grpc::connect(address).await;
    for (method, pieces, code) in [
        ("List", question(""), 12),
        ("Check", vec![framed(&[8, 1])], 3),
        ("Watch", vec![framed(&[10, 200])], 3),
        ("Watch", vec![], 3),
        ("Check", vec![framed(&vec![b'x'; 100_000])], 8),
    ] {
        let (send, response) = grpc.request(&format!("{HEALTH_SERVICE}{method}"), &[], pieces).await;
        drop(send);
        let answer = ended(timeout(PATIENCE, response).await.unwrap().unwrap()).await;
        assert_eq!(answer.code, code, "{method} {answer:?}");
    }
}
