//! A process's own small server: is it alive, is it ready, what does it count (behaviour.md 3.7). For roles that have no
//! HTTP of their own, and for scrapers that are not to reach the port of the clients.

use crate::metrics::{CONTENT_TYPE, Registry};
use crate::sync::lock;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE as CONTENT_TYPE_HEADER, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};

/// Connections at once; further ones wait to be accepted. A scraper or two, the probes of an orchestrator, a person.
const MAX_CONNECTIONS: usize = 64;

/// A connection that says nothing for this long is closed, so that idle ones do not keep others out.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause after a failed accept, which is the machine's trouble and would come again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where and under which names it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub host: String,
    /// 0: a free one.
    pub port: u16,
    pub health_path: String,
    pub live_path: String,
}

impl Default for Options {
    fn default() -> Self {
        Self { host: "0.0.0.0".into(), port: 0, health_path: "/health".into(), live_path: "/live".into() }
    }
}

/// The port cannot be listened on.
#[derive(Debug)]
pub struct Error {
    wanted: String,
    reason: std::io::Error,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "system server: cannot listen on {}: {}", self.wanted, self.reason)
    }
}

impl std::error::Error for Error {}

/// What the endpoints of a process say of themselves. Clones are the same.
#[derive(Clone, Debug)]
pub struct Health(Arc<State>);

#[derive(Debug)]
struct State {
    born: Instant,
    /// What is said before any endpoint has spoken.
    starts_ready: bool,
    /// One entry per endpoint of the process.
    endpoints: Mutex<BTreeMap<String, Says>>,
}

/// Whether an endpoint does what it promises.
enum Says {
    Told(bool),
    Asked(Box<dyn Fn() -> bool + Send + Sync>),
}

impl Says {
    fn is_ready(&self) -> bool {
        match self {
            Self::Told(ready) => *ready,
            Self::Asked(ask) => ask(),
        }
    }
}

impl fmt::Debug for Says {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_ready() { "ready" } else { "not ready" })
    }
}

impl Health {
    /// `starts_ready`: the process counts as ready before any endpoint has spoken.
    pub fn new(starts_ready: bool) -> Self {
        Self(Arc::new(State { born: Instant::now(), starts_ready, endpoints: Mutex::default() }))
    }

    /// Does the endpoint do what it promises?
    pub fn set(&self, endpoint: &str, is_ready: bool) {
        lock(&self.0.endpoints).insert(endpoint.to_owned(), Says::Told(is_ready));
    }

    /// It is asked whenever somebody wants to know; it must answer at once.
    pub fn ask(&self, endpoint: &str, is_ready: impl Fn() -> bool + Send + Sync + 'static) {
        lock(&self.0.endpoints).insert(endpoint.to_owned(), Says::Asked(Box::new(is_ready)));
    }

    /// Do all of them?
    pub fn is_ready(&self) -> bool {
        let endpoints = lock(&self.0.endpoints);
        if endpoints.is_empty() { self.0.starts_ready } else { endpoints.values().all(Says::is_ready) }
    }

    fn body(&self) -> Value {
        let word = |ready: bool| if ready { "ready" } else { "notready" };
        let uptime = self.0.born.elapsed();
        let endpoints: BTreeMap<_, _> = lock(&self.0.endpoints)
            .iter()
            .map(|(name, says)| (name.clone(), word(says.is_ready())))
            .collect();
        json!({
            "status": word(self.is_ready()),
            "uptime": {"secs": uptime.as_secs(), "nanos": uptime.subsec_nanos()},
            "endpoints": endpoints,
        })
    }
}

/// A running server. Dropping it ends it.
pub struct System {
    address: SocketAddr,
    accepting: AbortHandle,
}

struct Site {
    options: Options,
    registry: Registry,
    health: Health,
}

impl System {
    /// # Errors
    /// The address is taken, or none of this host's.
    pub async fn start(options: Options, registry: Registry, health: Health) -> Result<Self, Error> {
        let wanted = format!("{}:{}", options.host, options.port);
        let listening = async {
            let listener = TcpListener::bind((options.host.as_str(), options.port)).await?;
            Ok((listener.local_addr()?, listener))
        };
        let (address, listener) = listening.await.map_err(|reason| Error { wanted, reason })?;
        let site = Arc::new(Site { options, registry, health });
        let accepting = tokio::spawn(accept(listener, site)).abort_handle();
        Ok(Self { address, accepting })
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for System {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, site: Arc<Site>) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    // Dropped with this task, and the connections with it.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        // It is never closed.
        let Ok(slot) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((socket, _)) => {
                let site = Arc::clone(&site);
                connections.spawn(async move {
                    let _slot = slot;
                    let answer = service_fn(move |request| {
                        let answer = site.answer(&request);
                        std::future::ready(Ok::<_, Infallible>(answer))
                    });
                    let mut http = http1::Builder::new();
                    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
                    if let Err(error) = http.serve_connection(TokioIo::new(socket), answer).await {
                        tracing::debug!(%error, "a connection of the system server ended");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the system server could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl Site {
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        let known = [&*self.options.health_path, &*self.options.live_path, "/metrics"].contains(&path);
        if !known {
            let message = format!("{} {path} is not served here", request.method());
            return body(StatusCode::NOT_FOUND, &json!({"error": "Not Found", "message": message}));
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let message = format!("{path} is asked for with GET, found {}", request.method());
            let value = json!({"error": "Method Not Allowed", "message": message});
            let mut refusal = body(StatusCode::METHOD_NOT_ALLOWED, &value);
            refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refusal;
        }
        if path == self.options.health_path {
            return self.health();
        }
        if path == self.options.live_path {
            return body(StatusCode::OK, &json!({"status": "live", "message": "Service is live"}));
        }
        match self.registry.text() {
            Ok(text) => typed(StatusCode::OK, CONTENT_TYPE, text),
            Err(error) => body(
                StatusCode::INTERNAL_SERVER_ERROR,
                &json!({"error": "Internal Server Error", "message": error.to_string()}),
            ),
        }
    }

    fn health(&self) -> Response<Full<Bytes>> {
        let ready = self.health.is_ready();
        let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let mut response = body(status, &self.health.body());
        if !ready {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(1u16));
        }
        response
    }
}

fn body(status: StatusCode, value: &Value) -> Response<Full<Bytes>> {
    typed(status, "application/json", value.to_string())
}

fn typed(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE_HEADER, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    async fn system(options: Options, health: &Health) -> System {
        let registry = Registry::new();
        registry.counter("dynamo_test_total", "A test.").unwrap().inc();
        System::start(Options { host: "127.0.0.1".into(), ..options }, registry, health.clone())
            .await
            .unwrap()
    }

    /// Status and body of one request.
    async fn ask(system: &System, method: &str, path: &str) -> (u16, String) {
        let mut socket = TcpStream::connect(system.local_addr()).await.unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        socket.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    #[tokio::test]
    async fn r28_ready_is_what_every_endpoint_says_and_live_is_live() {
        let health = Health::new(false);
        let system = system(Options::default(), &health).await;
        assert_eq!(ask(&system, "GET", "/health").await.0, 503, "nobody has said that anything is ready");
        health.set("generate", true);
        let (status, body) = ask(&system, "GET", "/health").await;
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (status, &body["status"], &body["endpoints"]["generate"]),
            (200, &json!("ready"), &json!("ready"))
        );
        assert!(body["uptime"]["secs"].is_u64() && body["uptime"]["nanos"].is_u64());
        health.ask("other", || false);
        let (status, body) = ask(&system, "GET", "/health").await;
        assert_eq!(status, 503);
        assert!(body.contains("notready"), "{body}");
        assert_eq!(ask(&system, "GET", "/live").await.0, 200);
    }

    #[tokio::test]
    async fn metrics_are_shown_and_the_rest_is_refused_in_json() {
        let health = Health::new(true);
        let paths = Options { health_path: "/healthz".into(), ..Options::default() };
        let system = system(paths, &health).await;
        let (status, text) = ask(&system, "GET", "/metrics").await;
        assert_eq!(status, 200);
        assert!(text.contains("dynamo_test_total 1"), "{text}");
        assert_eq!(ask(&system, "GET", "/healthz").await.0, 200);
        for (method, path, expected) in
            [("GET", "/health", 404), ("GET", "/", 404), ("POST", "/metrics", 405)]
        {
            let (status, body) = ask(&system, method, path).await;
            let body: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(status, expected, "{method} {path}");
            assert!(body["error"].is_string() && body["message"].as_str().unwrap().contains(path));
        }
        let address = system.local_addr();
        drop(system);
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_named() {
        let first = system(Options::default(), &Health::new(true)).await;
        let options =
            Options { host: "127.0.0.1".into(), port: first.local_addr().port(), ..Options::default() };
        let refused = System::start(options, Registry::new(), Health::new(true)).await.err().unwrap();
        assert!(
            refused
                .to_string()
                .starts_with(&format!("system server: cannot listen on {}", first.local_addr()))
        );
    }
}
