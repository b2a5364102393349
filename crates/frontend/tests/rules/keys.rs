//! Requests without a key are turned away, on every route but those for probes and the page.

use crate::client::{Client, Reply};
use crate::harness::{Ending, Harness, ROUTES, ask, config};
use dynamo_frontend::{Config, Frontend, Services};
use dynamo_types::FinishReason::Stop;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const FIRST: &str = "sk-first-0123456789";
const SECOND: &str = "sk-second-9876543210";

/// A file that is gone after the test.
struct KeyFile(PathBuf);

impl KeyFile {
    fn new(text: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("dynamo-keys-{}-{count}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    async fn harness(&self) -> Harness {
        let settings = Config { api_keys_file: Some(self.0.clone()), ..config() };
        Harness::with(settings, dynamo_router::Config::default()).await
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn with_key(client: &mut Client, method: &str, path: &str, key: Option<&str>, body: &str) -> Reply {
    let value = key.map(|key| format!("Bearer {key}"));
    let headers: Vec<(&str, &str)> = value.iter().map(|value| ("authorization", value.as_str())).collect();
    client.ask(method, path, &headers, body.as_bytes()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_key_only_probes_and_the_page_are_served() {
    let file = KeyFile::new(&format!("# people\n{FIRST}\n{SECOND}\n"));
    let harness = file.harness().await;
    // The harness lists models by the frontend's own view, so it needs no key.
    let worker = harness.script(&[b"ok"], Ending::Finish(Stop)).await;
    let mut client = Client::connect(harness.address).await;
    let mut closed: Vec<(&str, &str, String)> = ROUTES
        .iter()
        .map(|&(route, stream)| ("POST", route, ask(route, stream, "x", json!({})).to_string()))
        .collect();
    for path in ["/v1/models", "/v1/models/m", "/metrics", "/status.json", "/openapi.json", "/nothing"] {
        closed.push(("GET", path, String::new()));
    }
    closed.push(("POST", "/tokenize", json!({"prompt": "x"}).to_string()));
    closed.push(("DELETE", "/health/", String::new()));
    for (method, path, body) in &closed {
        for key in [None, Some("sk-wrong-0123456789"), Some(&FIRST[1..]), Some("")] {
            let reply = with_key(&mut client, method, path, key, body).await;
            assert_eq!(reply.status, 401, "{method} {path} {key:?}");
            assert!(reply.header("www-authenticate").unwrap().starts_with("Bearer"));
            let error = reply.error();
            assert_eq!(
                (&error["code"], &error["type"]),
                (&json!("invalid_api_key"), &json!("authentication_error"))
            );
            assert!(!reply.text().contains("0123456789"), "a key is never repeated");
        }
        for key in [FIRST, SECOND] {
            let reply = with_key(&mut client, method, path, Some(key), body).await;
            assert_ne!(reply.status, 401, "{method} {path}");
        }
    }
    for path in ["/", "/health", "/live"] {
        assert_eq!(with_key(&mut client, "GET", path, None, "").await.status, 200, "{path}");
    }
    let reply = client.ask("GET", "/v1/models", &[("x-api-key", FIRST)], b"").await;
    assert_eq!(reply.status, 200);
    assert_eq!(worker.requests().len(), 2 * ROUTES.len(), "nobody else reached the worker");
    let metrics = with_key(&mut client, "GET", "/metrics", Some(FIRST), "").await.text();
    let refused = format!("dynamo_frontend_unauthorized_total {}\n", 4 * closed.len());
    assert!(metrics.contains(&refused), "{metrics}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anthropic_clients_get_their_own_shape() {
    let file = KeyFile::new(FIRST);
    let harness = file.harness().await;
    let reply = harness.post("/v1/messages", &json!({})).await;
    assert_eq!((reply.status, &reply.json()["type"]), (401, &json!("error")));
    assert_eq!(reply.error()["type"], "authentication_error");
}

/// Asks until the answer to `key` has this status.
async fn until(client: &mut Client, key: &str, status: u16) {
    let waited = tokio::time::timeout(crate::client::PATIENCE, async {
        while with_key(client, "GET", "/v1/models", Some(key), "").await.status != status {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    });
    assert!(waited.await.is_ok(), "never {status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_file_is_read_again_and_a_bad_one_changes_nothing() {
    let file = KeyFile::new(FIRST);
    let harness = file.harness().await;
    let mut client = Client::connect(harness.address).await;
    until(&mut client, FIRST, 200).await;
    std::fs::write(&file.0, SECOND).unwrap();
    until(&mut client, SECOND, 200).await;
    until(&mut client, FIRST, 401).await;
    // Bad ones, then a good one: while they lasted the old key was good.
    std::fs::write(&file.0, "short").unwrap();
    assert_eq!(with_key(&mut client, "GET", "/v1/models", Some(SECOND), "").await.status, 200);
    std::fs::remove_file(&file.0).unwrap();
    assert_eq!(with_key(&mut client, "GET", "/v1/models", Some(SECOND), "").await.status, 200);
    std::fs::write(&file.0, format!("{FIRST}\n{SECOND}\n")).unwrap();
    until(&mut client, FIRST, 200).await;
    assert_eq!(with_key(&mut client, "GET", "/v1/models", Some(SECOND), "").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_cannot_be_used_is_one_clear_line_at_the_start() {
    let empty = KeyFile::new("# nobody\n");
    for (path, part) in [(Path::new("/nonexistent/keys"), "cannot be read"), (&empty.0, "no key in it")] {
        let services = Services {
            plane: Arc::new(dynamo_runtime::plane::InProcess::default()),
            discovery: Arc::new(dynamo_runtime::discovery::Memory::new(Default::default())),
            events: Arc::new(dynamo_runtime::events::Local::new(Default::default())),
            peers: None,
            router: dynamo_router::Config::default(),
            registry: dynamo_runtime::metrics::Registry::new(),
            tracer: dynamo_runtime::trace::Tracer::off(),
        };
        let settings = Config { api_keys_file: Some(path.to_owned()), ..config() };
        let error = Frontend::start(settings, services).await.err().unwrap().to_string();
        assert!(error.starts_with("api_keys_file: ") && error.contains(part), "{error}");
        assert_eq!(error.lines().count(), 1);
    }
}
