//! What the service only tells: workers, readiness, loads.

use super::Desk;
use super::answers::{Described, Loads, RankLoad, Record};
use crate::http::{self, Body};
use crate::model::{Model, State};
use crate::shared::Shared;
use dynamo_types::InstanceId;
use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde::Serialize;
use std::sync::Arc;

const SCHEDULABLE: &str = "schedulable";
pub(super) const TAKEN_OUT: &str = "it was taken out by hand";

fn answer(shared: &Shared, status: StatusCode, value: &impl Serialize) -> Response<Body> {
    match super::calls::encode(value) {
        Ok(bytes) => http::json(status, bytes),
        Err(error) => http::failure(&error, shared.config.overload_status, crate::api::busy::error_body),
    }
}

/// Every worker that is known, by model and id, with the reasons why some get nothing.
pub(super) fn records(shared: &Shared, desk: &Desk) -> Vec<Record> {
    let models = shared.catalog.all();
    let out = desk.roster.out();
    let served = models.iter().flat_map(|model| of_model(shared, model, &out));
    let refused = shared.catalog.refused().into_iter().map(|(id, refused)| Record {
        worker_id: id.0,
        model_name: refused.model,
        lifecycle: "unschedulable",
        described: None,
        not_schedulable_reasons: vec![refused.reason],
    });
    let incomplete = desk.roster.incomplete();
    let incomplete = incomplete.iter().map(|(id, named)| Record::named(*id, named, out.contains(id)));
    served.chain(refused).chain(incomplete).collect()
}

fn of_model(shared: &Shared, model: &Arc<Model>, out: &[InstanceId]) -> Vec<Record> {
    let suspended = model.router.suspended(shared.now_ms());
    let loads = model.router.loads();
    let ranks = |id: InstanceId| loads.iter().filter(|(source, _)| source.worker == id).count();
    let record = |worker: Arc<crate::model::Worker>| {
        let id = worker.instance.id;
        let (lifecycle, reason) = if worker.instance.draining {
            ("draining", Some("it is draining".to_owned()))
        } else if let Some(fault) = &worker.instance.fault {
            ("unschedulable", Some(format!("it is not ready: {fault}")))
        } else if out.contains(&id) {
            ("unschedulable", Some(TAKEN_OUT.to_owned()))
        } else if suspended.contains(&id) {
            ("unschedulable", Some("it failed and is suspended for a while".to_owned()))
        } else if let State::Broken(error) = model.state() {
            // Its prompts can still be placed by their tokens.
            (SCHEDULABLE, Some(format!("texts cannot be placed: {error}")))
        } else {
            (SCHEDULABLE, None)
        };
        Record {
            worker_id: id.0,
            model_name: Arc::clone(model.name()),
            lifecycle,
            described: Some(Described::new(&worker, ranks(id))),
            not_schedulable_reasons: reason.into_iter().collect(),
        }
    };
    model.workers().into_iter().map(record).collect()
}

/// `GET /workers`.
pub(super) fn workers(shared: &Shared, _: &str) -> Response<Body> {
    let records = shared.desk.as_ref().map(|desk| records(shared, desk)).unwrap_or_default();
    answer(shared, StatusCode::OK, &records)
}

#[derive(Serialize)]
struct Ready {
    ready: bool,
    schedulable_workers: usize,
    workers: Vec<Record>,
}

/// `GET /ready`: 200 while something can be selected, else 503.
pub(super) fn ready(shared: &Shared, _: &str) -> Response<Body> {
    let workers = shared.desk.as_ref().map(|desk| records(shared, desk)).unwrap_or_default();
    let schedulable_workers = workers.iter().filter(|worker| worker.lifecycle == SCHEDULABLE).count();
    let ready = schedulable_workers > 0 && shared.phase() == crate::shared::Phase::Serving;
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut response = answer(shared, status, &Ready { ready, schedulable_workers, workers });
    if !ready {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(1u16));
    }
    response
}

/// `GET /loads`: what is booked, by model.
pub(super) fn loads(shared: &Shared, _: &str) -> Response<Body> {
    let models = shared.catalog.all();
    let rows: Vec<Loads> = models
        .iter()
        .map(|model| Loads {
            model_name: Arc::clone(model.name()),
            loads: model.router.loads().into_iter().map(RankLoad::booked).collect(),
        })
        .collect();
    answer(shared, StatusCode::OK, &rows)
}
