//! The task that carries spans to the collector: OTLP over HTTP, in batches, with a few tries.

use super::options::{Options, Protocol};
use super::{Export, Span, Tracer, otlp};
use crate::metrics::{self, IntCounter, Registry};
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use std::fmt;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

const EXPORTED_TOTAL: &str = "dynamo_trace_spans_exported_total";
const DROPPED_TOTAL: &str = "dynamo_trace_spans_dropped_total";
const REASON: &str = "reason";

/// Attempts per batch. While they last, new spans wait in the queue, and are dropped once it is full.
const ATTEMPTS: u32 = 3;
/// Pause before the second attempt; it doubles.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// A collector that fails is complained of at most this often.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// Why traces cannot be exported.
#[derive(Debug)]
pub enum Error {
    /// A setting cannot work.
    Option(String),
    /// The collector's address is none that this exporter can speak to.
    Endpoint {
        found: String,
        reason: &'static str,
    },
    Metrics(metrics::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option(reason) => write!(f, "trace.{reason}"),
            Self::Endpoint { found, reason } => {
                write!(
                    f,
                    "trace.endpoint or trace.traces_endpoint: expected http://host:port, found {found:?} ({reason})"
                )
            }
            Self::Metrics(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

/// Carries the spans of its tracer. Dropping it stops at once and loses what waits.
pub struct Exporter {
    task: Option<JoinHandle<()>>,
    finish: CancellationToken,
}

impl Tracer {
    /// A tracer with its exporter; both do nothing unless `options` say so. Must be called inside a runtime.
    ///
    /// # Errors
    /// A setting that cannot work, or a metric name that is taken.
    pub fn start(options: &Options, registry: &Registry) -> Result<(Self, Exporter), Error> {
        let finish = CancellationToken::new();
        if !options.export {
            return Ok((Self::off(), Exporter { task: None, finish }));
        }
        options.validate().map_err(Error::Option)?;
        let collector = Collector::new(options)?;
        let exported =
            registry.counter(EXPORTED_TOTAL, "Spans that the collector took.").map_err(Error::Metrics)?;
        let dropped = registry
            .counters(
                DROPPED_TOTAL,
                "Spans lost: `queue_full` because more came than the collector takes, `export_failed` because it did not answer.",
                &[REASON],
            )
            .map_err(Error::Metrics)?;
        let (queue, spans) = mpsc::channel(options.queue_spans);
        let carrier = Carrier {
            spans,
            collector,
            exported,
            failed: dropped.with_label_values(&["export_failed"]),
            batch: options.batch_spans,
            delay: Duration::from_millis(options.delay_ms),
            complained: None,
        };
        let task = tokio::spawn(carrier.run(finish.clone()));
        let dropped = dropped.with_label_values(&["queue_full"]);
        let tracer = Self::new(Some(Export { queue, sampler: options.sampler(), dropped }));
        Ok((tracer, Exporter { task: Some(task), finish }))
    }
}

impl Exporter {
    /// Sends what waits, and stops; what is left after `deadline` is lost.
    pub async fn finish(mut self, deadline: Duration) {
        self.finish.cancel();
        if let Some(task) = &mut self.task
            && timeout(deadline, task).await.is_err()
        {
            tracing::warn!("the last spans were not exported: the collector did not take them in time");
        }
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

struct Carrier {
    spans: mpsc::Receiver<Span>,
    collector: Collector,
    exported: IntCounter,
    failed: IntCounter,
    batch: usize,
    delay: Duration,
    complained: Option<Instant>,
}

impl Carrier {
    async fn run(mut self, finish: CancellationToken) {
        let mut batch = Vec::with_capacity(self.batch);
        loop {
            tokio::select! {
                biased;
                () = finish.cancelled() => break,
                count = self.spans.recv_many(&mut batch, self.batch) => if count == 0 { return },
            }
            let due = Instant::now() + self.delay;
            while batch.len() < self.batch {
                let room = self.batch - batch.len();
                let more = tokio::select! {
                    biased;
                    () = finish.cancelled() => break,
                    more = timeout_at(due, self.spans.recv_many(&mut batch, room)) => more,
                };
                if !matches!(more, Ok(1..)) {
                    break;
                }
            }
            self.send(&mut batch).await;
        }
        // Nothing more is taken; what waits goes out.
        self.spans.close();
        loop {
            while batch.len() < self.batch
                && let Ok(span) = self.spans.try_recv()
            {
                batch.push(span);
            }
            if batch.is_empty() {
                return;
            }
            self.send(&mut batch).await;
        }
    }

    /// Sends a batch and empties it, whatever became of it.
    async fn send(&mut self, batch: &mut Vec<Span>) {
        let body = Bytes::from(self.collector.encode(batch));
        let mut pause = RETRY_PAUSE;
        for attempt in 1..=ATTEMPTS {
            match self.collector.post(body.clone()).await {
                Ok(()) => {
                    self.exported.inc_by(batch.len() as u64);
                    break;
                }
                Err(failure) if attempt == ATTEMPTS || !failure.may_pass => {
                    self.failed.inc_by(batch.len() as u64);
                    self.complain(&failure.reason);
                    break;
                }
                Err(_) => sleep(pause).await,
            }
            pause *= 2;
        }
        batch.clear();
    }

    fn complain(&mut self, reason: &str) {
        let now = Instant::now();
        if self.complained.is_none_or(|last| now - last >= COMPLAIN_EVERY) {
            self.complained = Some(now);
            tracing::warn!(reason, "spans are lost: the collector does not take them");
        }
    }
}

/// Where spans go, and how.
struct Collector {
    host: String,
    port: u16,
    authority: HeaderValue,
    path: String,
    protocol: Protocol,
    service: String,
    timeout: Duration,
}

/// Why a batch was not taken.
struct Failure {
    reason: String,
    /// Another attempt may succeed.
    may_pass: bool,
}

impl Failure {
    fn passing(reason: impl fmt::Display) -> Self {
        Self { reason: reason.to_string(), may_pass: true }
    }
}

impl Collector {
    fn new(options: &Options) -> Result<Self, Error> {
        let found = options.address();
        let refuse = |reason| Error::Endpoint { found: found.clone(), reason };
        let uri: Uri = found.parse().map_err(|_| refuse("not an address"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(refuse("TLS needs a collector next to this process that speaks it")),
            _ => return Err(refuse("not an address that begins with http://")),
        }
        let authority = uri.authority().ok_or_else(|| refuse("no host"))?;
        let host = authority.host();
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authority: HeaderValue::from_str(authority.as_str()).map_err(|_| refuse("not a host"))?,
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
            protocol: options.protocol,
            service: options.service_name.clone(),
            timeout: Duration::from_millis(options.timeout_ms),
        })
    }

    fn encode(&self, spans: &[Span]) -> Vec<u8> {
        match self.protocol {
            Protocol::HttpProtobuf | Protocol::Grpc => otlp::protobuf(&self.service, spans),
            Protocol::HttpJson => otlp::json(&self.service, spans),
        }
    }

    async fn post(&self, body: Bytes) -> Result<(), Failure> {
        let exchange = timeout(self.timeout, self.exchange(body));
        exchange.await.map_err(|_| Failure::passing("no answer in time"))?
    }

    /// A connection of its own for each batch: there is one every few seconds.
    async fn exchange(&self, body: Bytes) -> Result<(), Failure> {
        let content_type = match self.protocol {
            Protocol::HttpProtobuf | Protocol::Grpc => "application/x-protobuf",
            Protocol::HttpJson => "application/json",
        };
        let request = Request::post(&self.path)
            .header(HOST, &self.authority)
            .header(CONTENT_TYPE, content_type)
            .body(Full::new(body))
            .map_err(|error| Failure { reason: error.to_string(), may_pass: false })?;
        let socket = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(Failure::passing)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.map_err(Failure::passing)?;
        let answer = sender.send_request(request);
        tokio::pin!(connection, answer);
        let response = tokio::select! {
            biased;
            response = &mut answer => response,
            // The connection can end with the very read that brought the answer.
            _ = connection => answer.await,
        };
        let status = response.map_err(Failure::passing)?.status();
        if status.is_success() {
            return Ok(());
        }
        // The answers that OTLP lets a client try again after.
        let may_pass = matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        );
        Err(Failure { reason: format!("the collector answered {status}"), may_pass })
    }
}
