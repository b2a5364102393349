//! A call from its head to its answer.

use super::connection::Calls;
use super::flow::{self, Flow, Pulse};
use super::health::{self, Watching};
use super::infer_stream::InferStream;
use super::metadata::{self, OPEN, READS};
use crate::api::kserve;
use crate::body::{Received, Upload};
use crate::generate::{self, Written};
use crate::http::REQUEST_ID;
use crate::record::Record;
use crate::routes::identify;
use crate::shared::Phase;
use bytes::Bytes;
use dynamo_protocols::kserve::{HEALTH_SERVICE, SERVICE, frame, timeout};
use dynamo_types::{Class, Error, Result};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::task_tracker::TaskTrackerToken;

/// What a call without a length of its own may send: names of a model and its version.
const NAMES_MAX_BYTES: usize = 64 * 1024;

/// What answers.
enum Handler {
    Read(metadata::Read),
    WatchHealth,
    Infer,
    StreamInfer,
}

fn find(path: &str) -> Result<(&str, Handler)> {
    let unknown = || {
        let path: String = path.chars().take(200).collect();
        Error::client(Class::NotImplemented, format!("Method not found: {path}")).with_code("route_not_found")
    };
    if let Some(method) = path.strip_prefix(HEALTH_SERVICE) {
        return match method {
            "Check" => Ok((method, Handler::Read(health::check))),
            "Watch" => Ok((method, Handler::WatchHealth)),
            _ => Err(unknown()),
        };
    }
    let method = path.strip_prefix(SERVICE).ok_or_else(unknown)?;
    let handler = match method {
        "ModelInfer" => Handler::Infer,
        "ModelStreamInfer" => Handler::StreamInfer,
        _ => READS
            .iter()
            .find(|(name, _)| *name == method)
            .map(|(_, read)| Handler::Read(*read))
            .ok_or_else(unknown)?,
    };
    Ok((method, handler))
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let suffix = kind.strip_prefix("application/grpc");
    suffix.is_some_and(|suffix| suffix.is_empty() || suffix == "+proto" || suffix.starts_with(';'))
}

/// What is asked for, if it may be, and until when.
fn check(calls: &Calls, request: &Request<Incoming>) -> Result<(Handler, Option<Instant>)> {
    let headers = request.headers();
    if let Some(encoding) = headers.get("grpc-encoding").filter(|encoding| *encoding != "identity") {
        let encoding: String = String::from_utf8_lossy(encoding.as_bytes()).chars().take(100).collect();
        let text = format!("compression `{encoding}` is not supported; send messages as they are");
        return Err(Error::client(Class::NotImplemented, text).with_code("unsupported_compression"));
    }
    let (method, handler) = find(request.uri().path())?;
    if let Some(keys) = &calls.shared.keys
        && !OPEN.contains(&method)
        && let Err(error) = keys.check(headers)
    {
        calls.shared.metrics.unauthorized.inc();
        return Err(error);
    }
    let limit = headers.get("grpc-timeout").map(|value| timeout(value.as_bytes())).transpose()?;
    // A limit beyond what the clock can count is none.
    Ok((handler, limit.and_then(|limit| Instant::now().checked_add(limit))))
}

/// Answers any call. Dropping the future - hyper does when the client resets the call - cancels everything.
pub(super) async fn answer(
    calls: Arc<Calls>,
    request: Request<Incoming>,
    open: TaskTrackerToken,
    pulse: Arc<Pulse>,
) -> Response<Flow> {
    if request.method() != Method::POST {
        return flow::not_grpc(StatusCode::METHOD_NOT_ALLOWED, open, pulse);
    }
    if !is_grpc(request.headers()) {
        return flow::not_grpc(StatusCode::UNSUPPORTED_MEDIA_TYPE, open, pulse);
    }
    let running = calls.shared.answers.token();
    let identity = identify(&calls.shared, request.headers());
    let echo = HeaderValue::from_str(identity.client.as_deref().unwrap_or(&identity.id.0)).ok();
    let mut response = match check(&calls, &request) {
        Err(error) => flow::failure(&error, open, pulse),
        Ok((Handler::StreamInfer, deadline)) => {
            let (parts, body) = request.into_parts();
            flow::stream(InferStream::new(&calls, parts.headers, body, deadline), open, pulse)
        }
        Ok((Handler::WatchHealth, deadline)) => {
            let (parts, body) = request.into_parts();
            let asked = Box::pin(question(&calls, &parts.headers, body));
            match within(deadline, nudged(&calls, asked)).await {
                Ok(message) => match Watching::new(&calls, &message, deadline) {
                    Ok(watching) => flow::watch(watching, open, pulse),
                    Err(error) => flow::failure(&error, open, pulse),
                },
                Err(error) => flow::failure(&error, open, pulse),
            }
        }
        Ok((handler, deadline)) => {
            let (parts, body) = request.into_parts();
            let record = match handler {
                Handler::Infer => {
                    let shared = &calls.shared;
                    let (name, overload) = (kserve::INFER.name, shared.config.overload_status);
                    Some(Record::new(&shared.metrics, identity, name, overload, shared.requests.token()))
                }
                Handler::Read(_) | Handler::WatchHealth | Handler::StreamInfer => None,
            };
            let work = Box::pin(unary(Arc::clone(&calls), handler, parts.headers, body, record));
            let mut response = match within(deadline, nudged(&calls, work)).await {
                Ok(message) => flow::whole(message, open, pulse),
                Err(error) => flow::failure(&error, open, pulse),
            };
            response.body_mut().hold(running);
            response
        }
    };
    if let Some(echo) = echo {
        response.headers_mut().insert(REQUEST_ID, echo);
    }
    response
}

/// The only message of a call that asks for little.
async fn question(calls: &Calls, headers: &HeaderMap, body: Incoming) -> Result<Bytes> {
    // A call that is not read to its end is reset, which its connection outlives.
    let received = calls.shared.bodies.read_any(headers, Upload::new(body, Arc::default())).await?;
    frame::only(&received.bytes, NAMES_MAX_BYTES)
}

async fn within<T>(deadline: Option<Instant>, work: impl Future<Output = Result<T>>) -> Result<T> {
    match deadline {
        None => work.await,
        Some(deadline) => timeout_at(deadline, work).await.unwrap_or_else(|_| Err(late())),
    }
}

/// The client's own limit has passed.
pub(super) fn late() -> Error {
    Error::timeout("the deadline of the call has passed")
}

/// Lets `work` look again when the server stops: each call has a task of its own, which nothing else would wake.
async fn nudged<F: Future + Unpin>(calls: &Calls, mut work: F) -> F::Output {
    let mut stop = pin!(calls.stop.cancelled());
    poll_fn(|cx| {
        // Only its waking matters.
        let _ = stop.as_mut().poll(cx);
        std::pin::Pin::new(&mut work).poll(cx)
    })
    .await
}

/// One message in, one out.
async fn unary(
    calls: Arc<Calls>,
    handler: Handler,
    headers: HeaderMap,
    body: Incoming,
    record: Option<Record>,
) -> Result<Bytes> {
    let shared = &calls.shared;
    match (handler, record) {
        (Handler::Read(read), _) => metadata::read(shared, read, &question(&calls, &headers, body).await?),
        (_, Some(record)) => {
            let receive = async {
                if shared.phase() != Phase::Serving {
                    return Err(generate::draining());
                }
                let body = Upload::new(body, Arc::default());
                let Received { bytes, share } = shared.bodies.read_any(&headers, body).await?;
                Ok(Received { bytes: frame::only(&bytes, shared.config.body_limit_bytes)?, share })
            };
            match generate::run(shared, &kserve::INFER, &headers, receive, record).await? {
                (Written::Whole(message), _) => Ok(message),
                (Written::Events(_), _) => Err(Error::internal("a unary call was answered by a stream")),
            }
        }
        (Handler::Infer | Handler::WatchHealth | Handler::StreamInfer, None) => {
            Err(Error::internal("a call without a record"))
        }
    }
}
