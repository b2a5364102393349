//! Selection as a service, for gateways that send requests to workers themselves (behaviour.md 2.11): choose, book, and
//! say how a request goes on. The same catalog, routers and books as a frontend's, behind other routes.
//!
//! It must never talk to a worker. What it holds for a caller is a booking with a deadline, in a table with a limit.

mod answers;
mod calls;
mod describe;
mod desk;
mod fleet;
mod input;
mod metrics;
mod prompt;
mod roster;
mod table;
mod views;

pub(crate) use describe::document;
pub use desk::Config;
pub(crate) use desk::Desk;
pub(crate) use metrics::Metrics;
pub(crate) use roster::BY_HAND;

use crate::api;
use crate::body::{Received, Upload};
use crate::http::{self, Body};
use crate::record::Identity;
use crate::routes::{Handler, Path, Route, get};
use crate::shared::Shared;
use crate::{generate, prepare};
use calls::Reply;
use dynamo_types::{Error, Result};
use hyper::body::Bytes;
use hyper::{Method, Request, Response};
use input::Input;
use std::sync::Arc;
use std::time::Duration;
use tracing::Instrument;

/// One call of the service.
pub(crate) struct Call {
    /// Label in metrics and logs.
    name: &'static str,
    /// It takes on something new, which a server that is about to stop refuses.
    begins: bool,
    /// `&str`: the variable part of the path.
    run: fn(&Shared, &Desk, &Input, &str) -> Result<Reply>,
}

const fn call(method: Method, template: &'static str, call: &'static Call) -> Route {
    Route { method, path: Path::Exact(template), template, handler: Handler::Selection(call) }
}

const fn of_reservation(
    method: Method,
    after: &'static str,
    template: &'static str,
    call: &'static Call,
) -> Route {
    let path = Path::Around("/reservations/", after);
    Route { method, path, template, handler: Handler::Selection(call) }
}

const fn of_worker(
    method: Method,
    after: &'static str,
    template: &'static str,
    call: &'static Call,
) -> Route {
    let path = Path::Around("/workers/", after);
    Route { method, path, template, handler: Handler::Selection(call) }
}

/// Those of its own, more specific ones first.
pub(crate) static ROUTES: &[Route] = &[
    call(Method::POST, "/select", &calls::SELECT),
    call(Method::POST, "/select_and_reserve", &calls::SELECT_AND_RESERVE),
    call(Method::POST, "/reservations", &calls::RESERVE),
    of_reservation(
        Method::POST,
        "/prefill_complete",
        "/reservations/{id}/prefill_complete",
        &calls::PREFILL_COMPLETE,
    ),
    of_reservation(Method::POST, "/output_block", "/reservations/{id}/output_block", &calls::OUTPUT_BLOCK),
    of_reservation(Method::DELETE, "", "/reservations/{id}", &calls::RELEASE),
    call(Method::POST, "/overlap_scores", &calls::OVERLAP_SCORES),
    call(Method::POST, "/potential_loads", &calls::POTENTIAL_LOADS),
    call(Method::POST, "/add", &calls::ADD),
    call(Method::POST, "/prefill_complete", &calls::PREFILL_COMPLETE_BY_BODY),
    call(Method::POST, "/free", &calls::FREE),
    call(Method::POST, "/query", &calls::QUERY),
    call(Method::POST, "/query_by_hash", &calls::QUERY_BY_HASH),
    get("/loads", views::loads),
    get("/workers", views::workers),
    call(Method::POST, "/workers", &fleet::ADD),
    of_worker(Method::GET, "/dump", "/workers/{id}/dump", &fleet::DUMP_ONE),
    of_worker(Method::PATCH, "", "/workers/{id}", &fleet::UPDATE),
    of_worker(Method::DELETE, "", "/workers/{id}", &fleet::REMOVE),
    call(Method::GET, "/dump", &fleet::DUMP),
    get("/ready", views::ready),
];

/// How often abandoned reservations are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Gives back what was abandoned, until it is dropped.
pub(crate) async fn sweep(shared: Arc<Shared>) {
    let Some(desk) = &shared.desk else { return };
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        desk.expire(shared.now_ms());
    }
}

/// Answers one call. `inner`: the variable part of its path, decoded.
pub(crate) async fn handle(
    shared: Arc<Shared>,
    call: &'static Call,
    inner: String,
    request: Request<Upload>,
    identity: Identity,
) -> Response<Body> {
    let _running = shared.requests.token();
    let mut span = identity.http_span();
    span.set("http.route", call.name);
    let begun = tokio::time::Instant::now();
    let outcome = run(&shared, call, inner, request).instrument(identity.log.clone()).await;
    let overload_status = shared.config.overload_status;
    let _logging = identity.log.enter();
    let response = match outcome {
        Ok((reply, ignored)) => {
            let mut response = http::json(reply.status, reply.body);
            http::set_ignored_fields(&mut response, &ignored);
            response
        }
        Err(error) => {
            span.fail(&error);
            http::failure(&error, overload_status, api::busy::error_body)
        }
    };
    let status = response.status().as_u16();
    tracing::debug!(route = call.name, status, "request");
    if let Some(desk) = &shared.desk {
        desk.metrics.count(call.name, status, begun.elapsed());
    }
    response
}

async fn run(
    shared: &Arc<Shared>,
    call: &'static Call,
    inner: String,
    request: Request<Upload>,
) -> Result<(Reply, Vec<String>)> {
    let (parts, mut body) = request.into_parts();
    if call.begins {
        body = generate::admitted(shared, &parts.headers, body).await?;
    }
    // Those that only name a reservation have no body, and no content type.
    let received = if body.is_absent() {
        Received { bytes: Bytes::new(), share: None }
    } else {
        shared.bodies.read(&parts.headers, body).await?
    };
    let context = Arc::clone(shared);
    prepare::offload(shared, received.bytes.len(), move || {
        // With its share of the memory budget, which is held until the answer is made.
        let received = received;
        let (input, ignored) = Input::parse(&received.bytes, context.options.unknown_fields)?;
        let desk = context.desk.as_ref().ok_or_else(|| Error::internal("no selection desk"))?;
        Ok(((call.run)(&context, desk, &input, &inner)?, ignored))
    })
    .await
}
