//! What a worker says about one request: spans for the collector, log lines that carry the request's trace.

use dynamo_runtime::trace::{ActiveSpan, Kind, Tracer};
use dynamo_types::{Class, Delta, Error, Instance, Request};
use std::time::Duration;

/// One request at one worker, from taking it to letting go of it.
pub(crate) struct Traced {
    // Dropped in this order: a span ends after those below it.
    engine: ActiveSpan,
    worker: ActiveSpan,
    /// What is logged stands in it.
    log: tracing::Span,
    tokens: u32,
}

impl Traced {
    pub(crate) fn new(tracer: &Tracer, instance: &Instance, request: &Request) -> Self {
        let mut worker = tracer.child("worker", Kind::Server, request.trace.as_ref());
        if worker.is_recorded() {
            worker.set("request_id", &*request.id.0);
            worker.set("instance_id", instance.id.to_string());
            worker.set("component", instance.component.as_str());
            worker.set("namespace", instance.namespace.as_str());
        }
        let mut engine = tracer.child("engine", Kind::Internal, worker.context());
        engine.set("gen_ai.usage.input_tokens", u64::try_from(request.tokens.len()).unwrap_or(u64::MAX));
        // Of the highest level, so that it is there for whatever line gets through the filter.
        let log = tracing::error_span!(
            "worker",
            request_id = %request.id,
            trace_id = request.trace.as_ref().map(|trace| tracing::field::display(trace.trace_id)),
            parent_id = request.trace.as_ref().map(|trace| tracing::field::display(trace.span_id)),
            namespace = instance.namespace,
            component = instance.component,
            endpoint = instance.endpoint,
            instance_id = %instance.id,
        );
        Self { engine, worker, log, tokens: 0 }
    }

    /// Lines that are logged in it carry the request's ids.
    pub(crate) fn log(&self) -> &tracing::Span {
        &self.log
    }

    pub(crate) fn delta(&mut self, delta: &Delta) {
        if self.tokens == 0 && !delta.tokens.is_empty() {
            self.engine.event("first_token");
        }
        self.tokens = self.tokens.saturating_add(u32::try_from(delta.tokens.len()).unwrap_or(u32::MAX));
        if delta.finish.is_some() {
            self.end_engine();
        }
    }

    /// The answer is complete, though the engine may hold on to its sink for a while.
    fn end_engine(&mut self) {
        self.engine.set("gen_ai.usage.output_tokens", self.tokens);
        drop(std::mem::take(&mut self.engine));
    }

    /// The request ends with this fault.
    pub(crate) fn fail(&mut self, error: &Error) {
        self.engine.fail(error);
        self.worker.fail(error);
        if error.class() != Class::Cancelled && error.counts_against_worker() {
            self.log.in_scope(|| tracing::warn!(%error, error_type = error.metric_label(), "request failed"));
        }
    }

    /// The engine lets go of it.
    pub(crate) fn end(&mut self, duration: Duration) {
        self.end_engine();
        let duration_ms = duration.as_secs_f64() * 1000.0;
        self.log.in_scope(|| tracing::debug!(tokens_out = self.tokens, duration_ms, "request"));
    }
}
