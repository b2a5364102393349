//! `ModelStreamInfer`: any number of requests on one call, answered side by side. What is wrong with one request is told
//! in a response; only what is wrong with the call ends it.

use super::connection::Calls;
use super::flow::trailers;
use super::service::late;
use crate::api::kserve;
use crate::body::{Pace, Received, Share};
use crate::generate::{self, Written};
use crate::record::Record;
use crate::routes::identify;
use crate::shared::Phase;
use crate::stream::EventStream;
use bytes::{Bytes, BytesMut};
use dynamo_protocols::kserve::frame::{self, Frames};
use dynamo_protocols::kserve::{request_id, write_error};
use dynamo_runtime::BoxFuture;
use dynamo_types::{Error, Result};
use hyper::HeaderMap;
use hyper::body::{Body as _, Frame, Incoming};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Requests of one call that are answered at once; further ones are not read yet, which holds their client back.
const RUNNING_MAX: usize = 32;

pub(super) struct InferStream {
    calls: Arc<Calls>,
    headers: HeaderMap,
    /// None: nothing more is read.
    incoming: Option<Incoming>,
    frames: Frames,
    /// Of the message that has begun: how fast it comes, and its share of the memory budget.
    pace: Option<(Pace, Pin<Box<Sleep>>)>,
    share: Share,
    running: Vec<Running>,
    /// A drain waits until the last of what was said has been taken.
    said: Vec<TaskTrackerToken>,
    deadline: Option<Pin<Box<Sleep>>>,
    finish: Pin<Box<WaitForCancellationFutureOwned>>,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    /// What ends the call.
    fault: Option<Error>,
}

struct Running {
    id: String,
    work: Work,
    token: TaskTrackerToken,
}

enum Work {
    Preparing(BoxFuture<'static, Result<Written>>),
    Answering(Box<EventStream>),
    Done,
}

impl Running {
    /// Writes what there is. Is it over?
    fn poll(&mut self, cx: &mut Context<'_>, out: &mut BytesMut) -> bool {
        loop {
            match &mut self.work {
                Work::Done => return true,
                Work::Preparing(work) => match work.as_mut().poll(cx) {
                    Poll::Pending => return false,
                    Poll::Ready(Ok(Written::Events(stream))) => self.work = Work::Answering(stream),
                    Poll::Ready(Ok(Written::Whole(message))) => {
                        out.extend_from_slice(&message);
                        self.work = Work::Done;
                    }
                    Poll::Ready(Err(error)) => {
                        frame::write(out, |message| write_error(&self.id, error.message(), message));
                        self.work = Work::Done;
                    }
                },
                Work::Answering(stream) => match stream.poll_bytes(cx) {
                    Poll::Pending => return false,
                    Poll::Ready(Some(bytes)) => {
                        out.extend_from_slice(&bytes);
                        // One piece of each at a time: after bytes, the call is polled again.
                        if !stream.is_finished() {
                            return false;
                        }
                        self.work = Work::Done;
                    }
                    Poll::Ready(None) => self.work = Work::Done,
                },
            }
        }
    }
}

impl InferStream {
    pub(super) fn new(
        calls: &Arc<Calls>,
        headers: HeaderMap,
        incoming: Incoming,
        deadline: Option<Instant>,
    ) -> Self {
        Self {
            frames: Frames::new(calls.shared.config.body_limit_bytes),
            headers,
            incoming: Some(incoming),
            pace: None,
            share: None,
            running: Vec::new(),
            said: Vec::new(),
            deadline: deadline.map(|deadline| Box::pin(sleep_until(deadline))),
            finish: Box::pin(calls.finish.clone().cancelled_owned()),
            stop: Box::pin(calls.stop.clone().cancelled_owned()),
            fault: None,
            calls: Arc::clone(calls),
        }
    }

    /// The next bytes, or the trailers after all of them.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        self.said.clear();
        // Only its waking matters: those that run then see the server's phase.
        let _ = self.stop.as_mut().poll(cx);
        if self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready()) {
            self.end(late());
            self.running.clear();
        }
        let mut out = BytesMut::new();
        loop {
            if let Err(error) = self.poll_requests(cx) {
                self.end(error);
            }
            let before = self.running.len();
            let said = &mut self.said;
            self.running.retain_mut(|running| {
                let is_over = running.poll(cx, &mut out);
                if is_over {
                    said.push(running.token.clone());
                }
                !is_over
            });
            if !out.is_empty() {
                return Poll::Ready(Some(Frame::data(out.freeze())));
            }
            // Otherwise there is room for requests that wait.
            if self.running.len() == before {
                break;
            }
        }
        if !self.running.is_empty() {
            return Poll::Pending;
        }
        if self.incoming.is_some() {
            if self.finish.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.end(generate::draining());
        }
        Poll::Ready(Some(Frame::trailers(trailers(self.fault.as_ref().map_or(Ok(()), Err)))))
    }

    /// Nothing more is read; the call ends when what runs is over.
    fn end(&mut self, error: Error) {
        self.incoming = None;
        self.pace = None;
        self.share = None;
        self.fault.get_or_insert(error);
    }

    /// Starts the requests that have come, as many as there is room for.
    fn poll_requests(&mut self, cx: &mut Context<'_>) -> Result<()> {
        while self.incoming.is_some() && self.running.len() < RUNNING_MAX {
            if let Some(message) = self.frames.next_message()? {
                self.pace = None;
                self.start(message);
                continue;
            }
            if let Some(length) = self.frames.awaited()
                && self.share.is_none()
            {
                self.share = self.calls.shared.bodies.reserve(length)?;
            }
            let Some(incoming) = &mut self.incoming else { return Ok(()) };
            match Pin::new(incoming).poll_frame(cx) {
                Poll::Pending => return self.poll_pace(cx),
                Poll::Ready(Some(Ok(piece))) => {
                    if let Ok(bytes) = piece.into_data() {
                        self.frames.push(&bytes);
                        if let Some((pace, timer)) = &mut self.pace {
                            pace.came(bytes.len());
                            timer.as_mut().reset(pace.deadline());
                        }
                    }
                }
                Poll::Ready(None) if self.frames.is_empty() => self.incoming = None,
                Poll::Ready(None) => {
                    return Err(Error::invalid("the call ended in the middle of a message")
                        .with_code("malformed_frame"));
                }
                Poll::Ready(Some(Err(error))) => {
                    return Err(Error::invalid("the call broke off").with_detail(error.to_string()));
                }
            }
        }
        Ok(())
    }

    /// A message that has begun has to come on.
    fn poll_pace(&mut self, cx: &mut Context<'_>) -> Result<()> {
        if self.frames.is_empty() {
            self.pace = None;
            return Ok(());
        }
        let bodies = &self.calls.shared.bodies;
        let (pace, timer) = self.pace.get_or_insert_with(|| {
            let pace = bodies.pace();
            let timer = Box::pin(sleep_until(pace.deadline()));
            (pace, timer)
        });
        match timer.as_mut().poll(cx) {
            Poll::Pending => Ok(()),
            Poll::Ready(()) => Err(pace.missed()),
        }
    }

    fn start(&mut self, message: Bytes) {
        let calls = Arc::clone(&self.calls);
        let shared = &calls.shared;
        let identity = identify(shared, &self.headers);
        // Engines know a request by its id: the client's own is the first one's.
        let headers = self.headers.clone();
        self.headers.remove("x-dynamo-request-id");
        let (name, overload) = (kserve::STREAM_INFER.name, shared.config.overload_status);
        let record = Record::new(&shared.metrics, identity, name, overload, shared.requests.token());
        let token = shared.answers.token();
        let id = request_id(&message).to_owned();
        let received = Received { bytes: message, share: self.share.take() };
        let work = async move {
            let shared = &calls.shared;
            let receive = async {
                match shared.phase() {
                    Phase::Serving => Ok(received),
                    Phase::Draining | Phase::Stopping => Err(generate::draining()),
                }
            };
            let written = generate::run(shared, &kserve::STREAM_INFER, &headers, receive, record).await?;
            Ok(written.0)
        };
        self.running.push(Running { id, work: Work::Preparing(Box::pin(work)), token });
    }
}
