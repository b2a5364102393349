//! `grpc.health.v1.Health`: whether the server takes requests for text, once or as it changes.

use super::connection::Calls;
use super::flow::trailers;
use super::service::late;
use crate::generate;
use crate::shared::{Phase, Shared};
use bytes::{Bytes, BytesMut};
use dynamo_protocols::kserve::{Health, SERVICE, asked_service, frame};
use dynamo_types::{Error, Result};
use hyper::body::Frame;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tokio_util::sync::WaitForCancellationFutureOwned;

/// How often a stream looks whether models came or went. A drain it sees at once.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// `Unknown` for a service that is not spoken here. The server's own, whose name is empty, is that of its one service.
fn health(shared: &Shared, service: &str) -> Health {
    if !service.is_empty() && service != SERVICE.trim_matches('/') {
        return Health::Unknown;
    }
    let is_serving = shared.phase() == Phase::Serving && !shared.catalog.ready().is_empty();
    if is_serving { Health::Serving } else { Health::NotServing }
}

/// `Check`.
///
/// # Errors
/// 404 for a service that is not spoken here.
pub(super) fn check(shared: &Shared, message: &[u8], out: &mut BytesMut) -> Result<()> {
    match health(shared, asked_service(message)?) {
        Health::Unknown => Err(Error::not_found("no such service").with_code("service_not_found")),
        health => {
            health.write(out);
            Ok(())
        }
    }
}

/// `Watch`: what is, then every change of it, until the client leaves or the server does.
pub(super) struct Watching {
    calls: Arc<Calls>,
    service: String,
    told: Option<Health>,
    look: Pin<Box<Sleep>>,
    deadline: Option<Pin<Box<Sleep>>>,
    finish: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Watching {
    /// # Errors
    /// 400 for a message that is none.
    pub(super) fn new(calls: &Arc<Calls>, message: &[u8], deadline: Option<Instant>) -> Result<Self> {
        Ok(Self {
            service: asked_service(message)?.to_owned(),
            told: None,
            look: Box::pin(sleep(LOOK_INTERVAL)),
            deadline: deadline.map(|deadline| Box::pin(sleep_until(deadline))),
            finish: Box::pin(calls.finish.clone().cancelled_owned()),
            calls: Arc::clone(calls),
        })
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        let is_late = self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready());
        if is_late {
            return Poll::Ready(Some(Frame::trailers(trailers(Err(&late())))));
        }
        let is_over = self.finish.as_mut().poll(cx).is_ready();
        loop {
            let health = health(&self.calls.shared, &self.service);
            if self.told != Some(health) {
                self.told = Some(health);
                let mut out = BytesMut::new();
                frame::write(&mut out, |message| health.write(message));
                return Poll::Ready(Some(Frame::data(out.freeze())));
            }
            if is_over {
                return Poll::Ready(Some(Frame::trailers(trailers(Err(&generate::draining())))));
            }
            if self.look.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.look.as_mut().reset(Instant::now() + LOOK_INTERVAL);
        }
    }
}
