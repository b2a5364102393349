//! One request's entry in the books: metrics and the one log line, written when it is over, however it ends.

use crate::metrics::{Answer, Metrics, RequestMetrics, UNKNOWN_MODEL, request_type};
use dynamo_protocols::echo;
use dynamo_runtime::trace::{ActiveSpan, Kind, Tracer};
use dynamo_types::{Class, Error, RequestId, Side, SpanId, TraceContext, WorkerRank};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Who asks, under which id and in which trace.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// Ours: in response ids, logs and on the request plane.
    pub(crate) id: RequestId,
    /// The client's `x-request-id`, echoed and logged.
    pub(crate) client: Option<Arc<str>>,
    /// Of the request's own span, under which everything is done for it.
    pub(crate) trace: TraceContext,
    /// What is logged for the request stands in it.
    pub(crate) log: tracing::Span,
    /// The caller's span.
    parent: Option<SpanId>,
    tracer: Tracer,
}

impl Identity {
    /// `incoming`: the caller's span.
    pub(crate) fn new(
        id: RequestId,
        client: Option<Arc<str>>,
        tracer: Tracer,
        incoming: Option<&TraceContext>,
    ) -> Self {
        let trace = tracer.begin(incoming);
        let parent = incoming.map(|incoming| incoming.span_id);
        // Of the highest level, so that it is there for whatever line gets through the filter.
        let log = tracing::error_span!(
            "http-request",
            request_id = %id,
            trace_id = %trace.trace_id,
            span_id = %trace.span_id,
            parent_id = parent.map(tracing::field::display),
            trace_flags = trace.flags(),
            x_request_id = client.as_deref(),
        );
        Self { id, client, trace, log, parent, tracer }
    }

    /// Starts the request's own span.
    pub(crate) fn http_span(&self) -> ActiveSpan {
        let mut span = self.tracer.span("http-request", Kind::Server, &self.trace, self.parent);
        if span.is_recorded() {
            span.set("request_id", &*self.id.0);
            if let Some(client) = &self.client {
                span.set("x_request_id", &**client);
            }
        }
        span
    }
}

/// What has been counted for a request so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// The client's own prompts, each once however many choices it has.
    pub(crate) prompt_tokens: u32,
    /// Everything sampled, all choices.
    pub(crate) completion_tokens: u32,
    /// Prompt tokens found in a cache, each prompt once. None until a worker has said so.
    pub(crate) cached_tokens: Option<u32>,
}

/// Bytes of a request's body that are logged, where that is wanted.
const PAYLOAD_MAX_BYTES: usize = 64 * 1024;

/// Dropped without an outcome, it counts as a client that left: every early return, everywhere, is covered.
pub(crate) struct Record {
    metrics: Arc<Metrics>,
    identity: Identity,
    span: ActiveSpan,
    /// What the client sent, where that is wanted in the log.
    payload: Option<String>,
    route: &'static str,
    /// The class of service that the client named.
    policy_class: Option<Arc<str>>,
    overload_status: u16,
    stream: bool,
    started: Instant,
    handles: Option<Arc<RequestMetrics>>,
    pub(crate) usage: Usage,
    first_token: Option<Instant>,
    /// The latest gap between tokens, in seconds.
    last_gap_s: Option<f64>,
    pub(crate) worker: Option<WorkerRank>,
    outcome: Option<Result<(), Error>>,
    /// The drain waits for it.
    _token: TaskTrackerToken,
}

impl Record {
    pub(crate) fn new(
        metrics: &Arc<Metrics>,
        identity: Identity,
        route: &'static str,
        overload_status: u16,
        token: TaskTrackerToken,
    ) -> Self {
        Self {
            metrics: Arc::clone(metrics),
            span: identity.http_span(),
            identity,
            payload: None,
            route,
            policy_class: None,
            overload_status,
            stream: false,
            started: Instant::now(),
            handles: None,
            usage: Usage::default(),
            first_token: None,
            last_gap_s: None,
            worker: None,
            outcome: None,
            _token: token,
        }
    }

    /// When the request was received.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    pub(crate) fn id(&self) -> &RequestId {
        &self.identity.id
    }

    /// What workers get, so that what they do stands below the request.
    pub(crate) fn trace(&self) -> &TraceContext {
        &self.identity.trace
    }

    /// What is logged for the request stands in it.
    pub(crate) fn log_span(&self) -> &tracing::Span {
        &self.identity.log
    }

    /// Starts a span below the request's.
    pub(crate) fn child(&self, name: &'static str) -> ActiveSpan {
        self.identity.tracer.child(name, Kind::Internal, Some(&self.identity.trace))
    }

    /// Keeps what the client sent for the log, if it is `wanted` there.
    pub(crate) fn keep_payload(&mut self, wanted: bool, body: &[u8]) {
        if wanted {
            let most = body.get(..PAYLOAD_MAX_BYTES).unwrap_or(body);
            self.payload = Some(String::from_utf8_lossy(most).into_owned());
        }
    }

    /// The class of service that the client named.
    pub(crate) fn set_policy_class(&mut self, class: Option<Arc<str>>) {
        self.policy_class = class;
    }

    /// The request could be read: is the answer to be streamed?
    pub(crate) fn set_stream(&mut self, stream: bool) {
        self.stream = stream;
    }

    /// The model exists: from here on the request counts as one of its own.
    pub(crate) fn identify(&mut self, model: &Arc<str>, stream: bool) -> Arc<RequestMetrics> {
        let handles = self.metrics.handles(model, self.route, stream);
        handles.started.inc();
        handles.active.inc();
        handles.in_flight.inc();
        handles.queued.inc();
        handles.open.fetch_add(1, Ordering::Relaxed);
        self.handles = Some(Arc::clone(&handles));
        handles
    }

    /// The prompt's length is known.
    pub(crate) fn set_prompt_tokens(&mut self, tokens: u32) {
        self.usage.prompt_tokens = tokens;
        if let Some(handles) = &self.handles {
            handles.input_tokens.observe(f64::from(tokens));
        }
    }

    /// `count` tokens of one choice came at `now`; that choice's previous ones at `previous`.
    pub(crate) fn tokens(&mut self, count: u32, previous: Option<Instant>, now: Instant) {
        self.usage.completion_tokens = self.usage.completion_tokens.saturating_add(count);
        let Some(handles) = &self.handles else { return };
        handles.output_tokens.inc_by(u64::from(count));
        if self.first_token.is_none() {
            self.first_token = Some(now);
            handles.queued.dec();
            self.span.event("first_token");
            handles.time_to_first_token.observe(seconds(now - self.started));
        }
        if let Some(previous) = previous {
            let gap_s = seconds(now - previous) / f64::from(count.max(1));
            handles.inter_token_latency.observe(gap_s);
            self.last_gap_s = Some(gap_s);
        }
    }

    pub(crate) fn succeed(&mut self) {
        self.outcome.get_or_insert(Ok(()));
    }

    /// The first outcome counts.
    pub(crate) fn fail(&mut self, error: &Error) {
        self.outcome.get_or_insert_with(|| Err(error.clone()));
    }

    fn count(&self, outcome: &Result<(), Error>, duration: Duration) {
        let Some(handles) = &self.handles else {
            if let Err(error) = outcome {
                self.count_failure(UNKNOWN_MODEL, self.route, error);
            }
            return;
        };
        handles.active.dec();
        handles.in_flight.dec();
        match self.first_token {
            None => handles.queued.dec(),
            Some(first) => self.show_last(first),
        }
        handles.open.fetch_sub(1, Ordering::Relaxed);
        handles.duration.observe(seconds(duration));
        match outcome {
            Ok(()) => {
                handles.succeeded.inc();
                handles.embedding.iter().for_each(|latency| latency.observe(seconds(duration)));
                // Requests that only count tokens reach no worker, and no cache.
                if let Some(cached) = self.usage.cached_tokens {
                    handles.routing.reused.inc_by(u64::from(cached));
                    handles.answered_prompt_tokens.inc_by(u64::from(self.usage.prompt_tokens));
                }
                handles.output_sequence.observe(f64::from(self.usage.completion_tokens));
                handles.cached_tokens.observe(f64::from(self.usage.cached_tokens.unwrap_or(0)));
            }
            Err(error) => {
                self.count_failure(&handles.model, handles.endpoint, error);
                match error.class() {
                    Class::Cancelled => handles.cancellations.inc(),
                    Class::Overloaded => handles.rejections.inc(),
                    _ => {}
                }
            }
        }
    }

    fn show_last(&self, first_token: Instant) {
        if let Some(worker) = self.worker {
            let answer = Answer {
                time_to_first_token_s: seconds(first_token - self.started),
                input_tokens: self.usage.prompt_tokens,
                inter_token_latency_s: self.last_gap_s,
            };
            self.metrics.last.set(worker, answer);
        }
    }

    fn count_failure(&self, model: &str, endpoint: &str, error: &Error) {
        let labels = [model, endpoint, request_type(self.stream), "error", error.metric_label()];
        self.metrics.requests.with_label_values(&labels).inc();
    }

    fn status(&self, outcome: &Result<(), Error>) -> u16 {
        outcome.as_ref().map_or_else(|error| error.http_status(self.overload_status), |()| 200)
    }

    fn model(&self) -> &str {
        self.handles.as_ref().map_or(UNKNOWN_MODEL, |handles| &*handles.model)
    }

    /// Completes the request's span, which ends when it is dropped.
    fn complete_span(&mut self, outcome: &Result<(), Error>) {
        if !self.span.is_recorded() {
            return;
        }
        let (status, model) = (self.status(outcome), self.model().to_owned());
        self.span.set("http.route", self.route);
        self.span.set("http.response.status_code", u32::from(status));
        self.span.set("gen_ai.request.model", model);
        self.span.set("gen_ai.usage.input_tokens", self.usage.prompt_tokens);
        self.span.set("gen_ai.usage.output_tokens", self.usage.completion_tokens);
        self.span.set("stream", self.stream);
        if let Some(class) = &self.policy_class {
            self.span.set("policy_class", &**class);
        }
        if let Err(error) = outcome {
            self.span.fail(error);
        }
    }

    fn log(&self, outcome: &Result<(), Error>, duration: Duration) {
        let error = outcome.as_ref().err();
        let _logging = self.identity.log.enter();
        tracing::info!(
            model = self.model(),
            route = self.route,
            status = self.status(outcome),
            stream = self.stream,
            tokens_in = self.usage.prompt_tokens,
            tokens_out = self.usage.completion_tokens,
            cached = self.usage.cached_tokens,
            ttft_ms = self.first_token.map(|first| milliseconds(first - self.started)),
            duration_ms = milliseconds(duration),
            worker = self.worker.map(tracing::field::display),
            policy_class = self.policy_class.as_deref(),
            error_type = error.map(Error::metric_label),
            error = error.map(describe),
            payload = self.payload.as_deref(),
            "request"
        );
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let outcome = self.outcome.take().unwrap_or_else(|| {
            self.metrics.disconnected_clients.inc();
            Err(Error::cancelled())
        });
        let duration = self.started.elapsed();
        self.count(&outcome, duration);
        self.complete_span(&outcome);
        self.log(&outcome, duration);
    }
}

/// What a client got wrong may quote what it sent, and prompts are not for the log: its mistakes go by their code and
/// field, faults of ours by their text.
fn describe(error: &Error) -> String {
    match (error.side(), error.code(), error.param()) {
        (Side::Client, code, param) => {
            // Fields have names of the client's, too.
            let param = param.map_or_else(|| "no field".to_owned(), echo);
            format!("{} ({param})", code.unwrap_or(error.metric_label()))
        }
        _ => error.to_string(),
    }
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

/// With microseconds, as a log reader wants it.
fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1_000_000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use dynamo_runtime::metrics::Registry;
    use tokio_util::task::TaskTracker;

    fn record(metrics: &Arc<Metrics>, tracker: &TaskTracker) -> Record {
        let identity = Identity::new("id".into(), None, Tracer::off(), None);
        let mut record = Record::new(metrics, identity, "chat", 529, tracker.token());
        record.identify(&Arc::from("m"), false);
        record
    }

    #[test]
    fn what_clients_sent_stays_out_of_the_log() {
        let error =
            Error::invalid("`stop` must not be \"my secret\"").with_param("stop").with_code("invalid_value");
        assert_eq!(describe(&error), "invalid_value (stop)");
        let named = describe(&Error::invalid("x").with_param(format!("a\n{}", "b".repeat(1000))));
        assert!(named.len() < 100 && !named.contains('\n'), "{named}");
        assert_eq!(describe(&Error::engine("out of memory")), "out of memory");
    }

    #[test]
    fn every_ending_is_counted_once() {
        let metrics = Arc::new(Metrics::new(Registry::new()).unwrap());
        let tracker = TaskTracker::new();
        let count = |status: &str, error: &str| {
            metrics.requests.with_label_values(&["m", "chat", "unary", status, error]).get()
        };
        record(&metrics, &tracker).succeed();
        let mut failed = record(&metrics, &tracker);
        failed.fail(&Error::timeout("slow"));
        failed.succeed();
        drop(failed);
        drop(record(&metrics, &tracker));
        assert_eq!(count("success", ""), 1);
        assert_eq!(count("error", "response_timeout"), 1);
        assert_eq!(count("error", "cancelled"), 1);
        let handles = metrics.handles(&Arc::from("m"), "chat", false);
        assert_eq!((handles.started.get(), handles.active.get(), handles.cancellations.get()), (3, 0, 1));
        assert_eq!(metrics.disconnected_clients.get(), 1);
        assert!(tracker.is_empty());
    }
}
