//! Requests that need a model's text parts and no engine: read, compute, answer.

use crate::body::Upload;
use crate::http::{self, Body, ErrorShape};
use crate::metrics::UNKNOWN_MODEL;
use crate::model::Model;
use crate::prepare;
use crate::record::Identity;
use crate::shared::Shared;
use dynamo_types::{Error, Result};
use hyper::{Request, Response, StatusCode};
use std::sync::Arc;
use tracing::Instrument;

/// One such API.
pub(crate) struct Compute {
    /// Label in metrics and logs.
    pub(crate) name: &'static str,
    pub(crate) run: fn(&Shared, &[u8]) -> Result<Computed>,
    pub(crate) error_shape: ErrorShape,
}

/// An answer.
pub(crate) struct Computed {
    pub(crate) model: Arc<Model>,
    pub(crate) body: Vec<u8>,
    /// Request fields without effect (R10).
    pub(crate) dropped: Vec<String>,
}

/// Answers one request. Large ones are worked on where they delay nobody.
pub(crate) async fn handle(
    shared: Arc<Shared>,
    api: &'static Compute,
    request: Request<Upload>,
    identity: Identity,
) -> Response<Body> {
    let _running = shared.requests.token();
    let mut span = identity.http_span();
    span.set("http.route", api.name);
    let outcome = run(&shared, api, request).instrument(identity.log.clone()).await;
    count(&shared, api, &outcome);
    let overload_status = shared.config.overload_status;
    let _logging = identity.log.enter();
    match outcome {
        Ok(computed) => {
            span.set("gen_ai.request.model", &**computed.model.name());
            tracing::debug!(model = %computed.model.name(), route = api.name, "request");
            let mut response = http::json(StatusCode::OK, computed.body);
            http::set_ignored_fields(&mut response, &computed.dropped);
            response
        }
        Err(error) => {
            let status = error.http_status(overload_status);
            span.fail(&error);
            tracing::debug!(route = api.name, status, error_type = error.metric_label(), "request");
            http::failure(&error, overload_status, api.error_shape)
        }
    }
}

async fn run(shared: &Arc<Shared>, api: &'static Compute, request: Request<Upload>) -> Result<Computed> {
    let (parts, body) = request.into_parts();
    let body = crate::generate::admitted(shared, &parts.headers, body).await?;
    let received = shared.bodies.read(&parts.headers, body).await?;
    let (size, context) = (received.bytes.len(), Arc::clone(shared));
    prepare::offload(shared, size, move || (api.run)(&context, &received.bytes)).await
}

fn count(shared: &Shared, api: &Compute, outcome: &Result<Computed>) {
    let labels = match outcome {
        Ok(computed) => [&**computed.model.name(), api.name, "unary", "success", ""],
        Err(error) => [UNKNOWN_MODEL, api.name, "unary", "error", error.metric_label()],
    };
    shared.metrics.requests.with_label_values(&labels).inc();
}

/// The model that is asked for; without a name, the only one there is.
///
/// # Errors
/// 404 for a name nobody serves, 400 for no name where it is needed, 503 when nothing is served.
pub(crate) fn model(shared: &Shared, name: Option<&str>) -> Result<Arc<Model>> {
    if let Some(name) = name {
        return shared.catalog.find(name);
    }
    only(shared.catalog.ready())
}

/// The model that is meant if none is named.
///
/// # Errors
/// There is none, or several.
pub(crate) fn only(mut models: Vec<Arc<Model>>) -> Result<Arc<Model>> {
    match (models.pop(), models.len()) {
        (None, _) => Err(Error::unavailable("no model is served at the moment")),
        (Some(model), 0) => Ok(model),
        (Some(_), others) => {
            Err(Error::invalid(format!("`model` is needed: {} models are served", others + 1))
                .with_param("model"))
        }
    }
}
