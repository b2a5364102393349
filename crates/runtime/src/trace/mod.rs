//! Traces: spans with the W3C context of their request, given to an OTLP collector if one is configured.
//!
//! Every request gets a context, so that log lines of all processes can be found by its trace id. Spans are kept only when
//! they are exported and sampled; otherwise recording one costs a branch. Nothing here waits: a span goes into a bounded
//! queue or is counted as dropped.

mod export;
mod options;
mod otlp;
mod sampler;

pub use export::{Error, Exporter};
pub use options::{Options, Protocol};
pub use sampler::{Sampler, SamplerKind};

use crate::metrics::IntCounter;
use dynamo_types::{Error as Fault, SpanId, TraceContext, TraceId, draw};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;

/// Makes contexts and spans. Clones are the same tracer.
#[derive(Clone)]
pub struct Tracer {
    ids: Arc<Ids>,
    export: Option<Arc<Export>>,
}

struct Export {
    queue: mpsc::Sender<Span>,
    sampler: Sampler,
    dropped: IntCounter,
}

/// The operating system's randomness is asked once; the rest is counting.
struct Ids {
    high: u64,
    low: u64,
    count: AtomicU64,
}

impl Ids {
    fn draw(&self, key: u64) -> u64 {
        draw::bits(key, self.count.fetch_add(1, Ordering::Relaxed))
    }

    fn trace(&self) -> TraceId {
        let id = u128::from(self.draw(self.high)) << 64 | u128::from(self.draw(self.low));
        TraceId(id.max(1))
    }

    fn span(&self) -> SpanId {
        SpanId(self.draw(self.high ^ self.low.rotate_left(1)).max(1))
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer").field("exports", &self.export.is_some()).finish_non_exhaustive()
    }
}

impl Default for Tracer {
    fn default() -> Self {
        Self::off()
    }
}

impl Tracer {
    /// Exports nothing.
    pub fn off() -> Self {
        Self::new(None)
    }

    fn new(export: Option<Export>) -> Self {
        // The standard library seeds each hasher from the operating system.
        let ids = Ids {
            high: RandomState::new().hash_one(0),
            low: RandomState::new().hash_one(1),
            count: AtomicU64::new(0),
        };
        Self { ids: Arc::new(ids), export: export.map(Arc::new) }
    }

    /// The context of a request's first span in this process: below `incoming`, or the root of a new trace. A process that
    /// does not export leaves the decision about recording as it came.
    pub fn begin(&self, incoming: Option<&TraceContext>) -> TraceContext {
        let span = self.ids.span();
        match (&self.export, incoming) {
            (None, Some(incoming)) => incoming.child(span),
            (None, None) => TraceContext::new(self.ids.trace(), span, false),
            (Some(export), Some(incoming)) => {
                let is_sampled = export.sampler.decides(incoming.trace_id, Some(incoming.is_sampled()));
                incoming.child(span).sampled(is_sampled)
            }
            (Some(export), None) => {
                let trace = self.ids.trace();
                TraceContext::new(trace, span, export.sampler.decides(trace, None))
            }
        }
    }

    /// Starts the span that `context` was made for by [`Tracer::begin`].
    pub fn span(
        &self,
        name: &'static str,
        kind: Kind,
        context: &TraceContext,
        parent: Option<SpanId>,
    ) -> ActiveSpan {
        if self.export.is_none() || !context.is_sampled() {
            return ActiveSpan::default();
        }
        let span = Span {
            context: context.clone(),
            parent,
            name,
            kind,
            start: SystemTime::now(),
            duration: Duration::ZERO,
            attributes: Vec::new(),
            events: Vec::new(),
            error: None,
        };
        ActiveSpan(Some(Box::new(Active { tracer: self.clone(), span, started: Instant::now() })))
    }

    /// Starts a span below `parent`.
    pub fn child(&self, name: &'static str, kind: Kind, parent: Option<&TraceContext>) -> ActiveSpan {
        match parent {
            Some(parent) if self.export.is_some() && parent.is_sampled() => {
                self.span(name, kind, &parent.child(self.ids.span()), Some(parent.span_id))
            }
            _ => ActiveSpan::default(),
        }
    }

    fn record(&self, span: Span) {
        if let Some(export) = &self.export
            && export.queue.try_send(span).is_err()
        {
            export.dropped.inc();
        }
    }
}

/// Whose side of a call a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Internal,
    Server,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(String),
    Number(i64),
    Flag(bool),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

/// A span that is over.
#[derive(Clone, Debug)]
struct Span {
    context: TraceContext,
    parent: Option<SpanId>,
    name: &'static str,
    kind: Kind,
    start: SystemTime,
    duration: Duration,
    attributes: Vec<(&'static str, Value)>,
    /// Time after the start.
    events: Vec<(&'static str, Duration)>,
    /// The class of the fault that ended it.
    error: Option<String>,
}

impl Span {
    /// Unix nanoseconds at `after` its start.
    fn time_ns(&self, after: Duration) -> u64 {
        let start = self.start.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from((start + after).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A span in progress; it ends when this is dropped. Without a collector, or in a trace that is not recorded, it is
/// nothing and costs nothing.
#[derive(Default)]
pub struct ActiveSpan(Option<Box<Active>>);

struct Active {
    tracer: Tracer,
    span: Span,
    started: Instant,
}

impl ActiveSpan {
    /// Is anything kept of it? What would be dear to compute can be left out otherwise.
    pub fn is_recorded(&self) -> bool {
        self.0.is_some()
    }

    /// For spans below it.
    pub fn context(&self) -> Option<&TraceContext> {
        self.0.as_ref().map(|active| &active.span.context)
    }

    pub fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        if let Some(active) = &mut self.0 {
            active.span.attributes.push((name, value.into()));
        }
    }

    /// Something happened now.
    pub fn event(&mut self, name: &'static str) {
        if let Some(active) = &mut self.0 {
            active.span.events.push((name, active.started.elapsed()));
        }
    }

    /// It ends with this fault. The text stays out: it may quote what the client sent.
    pub fn fail(&mut self, fault: &Fault) {
        if let Some(active) = &mut self.0 {
            active.span.error = Some(fault.metric_label().to_owned());
        }
    }
}

impl fmt::Debug for ActiveSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ActiveSpan").field(&self.0.as_ref().map(|active| active.span.name)).finish()
    }
}

impl Drop for ActiveSpan {
    fn drop(&mut self) {
        if let Some(active) = self.0.take() {
            let Active { tracer, mut span, started } = *active;
            span.duration = started.elapsed();
            tracer.record(span);
        }
    }
}

#[cfg(test)]
mod tests;
