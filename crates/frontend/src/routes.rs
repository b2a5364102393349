//! The one table of routes. What exists, which methods it takes, 404 and 405, and the check against the OpenAPI document
//! all come from it.

use crate::api;
use crate::body::Upload;
use crate::compute::{self, Compute};
use crate::generate;
use crate::http::{self, Body, ErrorShape};
use crate::identity::{is_presentable, is_uuid};
use crate::keys;
use crate::page;
use crate::plan::Api;
use crate::record::Identity;
use crate::selection;
use crate::service;
use crate::shared::{Phase, Shared};
use crate::status;
use crate::trace;
use dynamo_protocols::{anthropic, error_body};
use dynamo_types::{Class, Error, RequestId};
use hyper::header::{CONNECTION, HOST, HeaderValue, TRANSFER_ENCODING, WWW_AUTHENTICATE};
use hyper::{HeaderMap, Method, Request, Response, Version};
use std::borrow::Cow;
use std::sync::Arc;

/// How a path is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    Exact(&'static str),
    /// Anything between the two, slashes included: model names have them.
    Around(&'static str, &'static str),
}

/// What answers.
#[derive(Clone, Copy)]
pub(crate) enum Handler {
    Generate(&'static Api),
    Compute(&'static Compute),
    /// 501 with what is missing: no worker of this release does it.
    Absent(&'static str),
    /// Limits of load, by [`api::busy`].
    Busy,
    /// Choosing for others, by [`selection`].
    Selection(&'static selection::Call),
    /// At once, from what is known.
    Read(fn(&Shared, &str) -> Response<Body>),
}

pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: Path,
    /// As documented and logged.
    pub(crate) template: &'static str,
    pub(crate) handler: Handler,
}

pub(crate) const fn get(template: &'static str, handler: fn(&Shared, &str) -> Response<Body>) -> Route {
    Route { method: Method::GET, path: Path::Exact(template), template, handler: Handler::Read(handler) }
}

const fn post(template: &'static str, api: &'static Api) -> Route {
    Route { method: Method::POST, path: Path::Exact(template), template, handler: Handler::Generate(api) }
}

const fn compute(template: &'static str, api: &'static Compute) -> Route {
    Route { method: Method::POST, path: Path::Exact(template), template, handler: Handler::Compute(api) }
}

const fn absent(method: Method, template: &'static str, missing: &'static str) -> Route {
    Route { method, path: Path::Exact(template), template, handler: Handler::Absent(missing) }
}

/// Those of every role that speaks HTTP.
static COMMON: &[Route] = &[
    compute("/tokenize", &api::tokenize::TOKENIZE),
    compute("/detokenize", &api::tokenize::DETOKENIZE),
    get(api::busy::PATH, api::busy::list),
    Route {
        method: Method::POST,
        path: Path::Exact(api::busy::PATH),
        template: api::busy::PATH,
        handler: Handler::Busy,
    },
    get("/health", service::health),
    get("/live", service::live),
    get("/metrics", service::metrics),
    get("/openapi.json", service::openapi),
    get("/status.json", status::status),
];

/// Those of a frontend, more specific ones first.
static ROUTES: &[Route] = &[
    post("/v1/chat/completions", &api::chat::API),
    post("/v1/completions", &api::completions::API),
    post("/v1/embeddings", &api::embeddings::API),
    post("/v1/messages", &api::messages::API),
    post("/v1/messages/count_tokens", &api::messages::COUNT),
    post("/v1/responses", &api::responses::API),
    post("/v1/responses/input_tokens", &api::responses::COUNT),
    get("/v1/models", service::models),
    Route {
        method: Method::GET,
        path: Path::Around("/v1/models/", "/ready"),
        template: "/v1/models/{id}/ready",
        handler: Handler::Read(service::model_ready),
    },
    Route {
        method: Method::GET,
        path: Path::Around("/v1/models/", ""),
        template: "/v1/models/{id}",
        handler: Handler::Read(service::model),
    },
    get("/", page::page),
    absent(Method::POST, "/v1/images/generations", "a worker that makes images"),
    absent(Method::POST, "/v1/images/edits", "a worker that makes images"),
    absent(Method::POST, "/v1/videos", "a worker that makes videos"),
    absent(Method::POST, "/v1/videos/stream", "a worker that makes videos"),
    absent(Method::POST, "/v1/audio/speech", "a worker that speaks"),
    absent(Method::GET, "/v1/realtime", "a worker for realtime sessions"),
    absent(Method::POST, "/v1/classify", "a worker that classifies"),
    absent(Method::POST, "/v1/pooling", "a worker that pools"),
    absent(Method::POST, "/v1/rerank", "a worker that ranks"),
];

/// The routes of a role and those of all.
pub(crate) fn with_common(own: &'static [Route]) -> impl Iterator<Item = &'static Route> {
    own.iter().chain(COMMON)
}

/// Method and path of every route of a frontend over HTTP, as documented.
pub fn routes() -> impl Iterator<Item = (&'static str, &'static str)> {
    with_common(ROUTES).map(|route| (route.method.as_str(), route.template))
}

/// Served without a key: probes have none, and the page holds nothing and asks for one.
const OPEN: &[&str] = &["/", "/health", "/live"];

impl Path {
    /// The variable part, still encoded; empty for fixed paths.
    fn matches(self, path: &str) -> Option<&str> {
        match self {
            Self::Exact(exact) => (path == exact).then_some(""),
            Self::Around(before, after) => {
                path.strip_prefix(before)?.strip_suffix(after).filter(|inner| !inner.is_empty())
            }
        }
    }
}

/// HEAD is GET without a body, which hyper leaves out.
fn answers(route: &Route, method: &Method) -> bool {
    route.method == *method || (route.method == Method::GET && *method == Method::HEAD)
}

enum Found<'a> {
    Route(&'static Route, &'a str),
    /// The path exists; these are its methods.
    OtherMethods(String),
    Nothing,
}

fn find<'a>(own: &'static [Route], method: &Method, path: &'a str) -> Found<'a> {
    let mut allowed: Vec<&str> = Vec::new();
    for route in with_common(own) {
        let Some(inner) = route.path.matches(path) else { continue };
        if answers(route, method) {
            return Found::Route(route, inner);
        }
        allowed.push(route.method.as_str());
        if route.method == Method::GET {
            allowed.push(Method::HEAD.as_str());
        }
    }
    if allowed.is_empty() {
        return Found::Nothing;
    }
    allowed.sort_unstable();
    allowed.dedup();
    Found::OtherMethods(allowed.join(", "))
}

/// Answers any request.
pub(crate) async fn answer(shared: Arc<Shared>, request: Request<Upload>) -> Response<Body> {
    // A drain waits for the answer until its last byte is written. Taken here, so that there is no moment in between.
    let running = shared.answers.token();
    let identity = identify(&shared, request.headers());
    let echo = HeaderValue::from_str(identity.client.as_deref().unwrap_or(&identity.id.0)).ok();
    // A proxy in front may have read a body without a length differently: nothing that follows it is believed.
    let unframed = request.headers().contains_key(TRANSFER_ENCODING);
    let host = check_host(&request);
    let ends = unframed || host.is_err();
    let mut response = match host {
        Ok(()) => route(&shared, request, identity).await,
        Err(error) => http::failure(&error, shared.config.overload_status, shape(request.uri().path())),
    };
    if let Some(echo) = echo {
        response.headers_mut().insert(http::REQUEST_ID, echo);
    }
    if ends || shared.phase() != Phase::Serving {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response.body_mut().hold(running);
    response
}

/// A server and a proxy in front of it have to see the same host: HTTP/1.1 has exactly one (RFC 9112, 3.2).
fn check_host<B>(request: &Request<B>) -> Result<(), Error> {
    let found = request.headers().get_all(HOST).iter().count();
    let is_due = request.version() == Version::HTTP_11;
    match found {
        0 if is_due => Err(Error::invalid("the `host` header is missing").with_param("host")),
        0 | 1 => Ok(()),
        _ => Err(Error::invalid(format!("one `host` header is expected, found {found}")).with_param("host")),
    }
}

async fn route(shared: &Arc<Shared>, request: Request<Upload>, identity: Identity) -> Response<Body> {
    if let Some(keys) = &shared.keys
        && !OPEN.contains(&request.uri().path())
        && let Err(error) = keys.check(request.headers())
    {
        shared.metrics.unauthorized.inc();
        let mut response = refuse(shared, request, &error).await;
        response.headers_mut().insert(WWW_AUTHENTICATE, keys::CHALLENGE);
        return response;
    }
    let path = request.uri().path();
    let own = if shared.desk.is_some() { selection::ROUTES } else { ROUTES };
    let found =
        if api::busy::is_hidden(shared, path) { Found::Nothing } else { find(own, request.method(), path) };
    match found {
        Found::Route(route, inner) => match route.handler {
            Handler::Generate(api) => generate::handle(Arc::clone(shared), api, request, identity).await,
            Handler::Compute(api) => compute::handle(Arc::clone(shared), api, request, identity).await,
            Handler::Busy => api::busy::set(shared, request).await,
            Handler::Selection(call) => {
                let inner = decoded(inner).into_owned();
                selection::handle(Arc::clone(shared), call, inner, request, identity).await
            }
            Handler::Absent(missing) => {
                let text =
                    format!("{} is not implemented: it needs {missing}, and there is none", route.template);
                let error = Error::client(Class::NotImplemented, text);
                refuse(shared, request, &error).await
            }
            Handler::Read(read) => {
                identity.log.in_scope(|| tracing::debug!(route = route.template, "request"));
                read(shared, &decoded(inner))
            }
        },
        Found::OtherMethods(allowed) => {
            let (method, path) = (request.method(), request.uri().path());
            let error = Error::client(
                Class::MethodNotAllowed,
                format!("{method} is not allowed for {path}; allowed: {allowed}"),
            );
            let mut response = refuse(shared, request, &error).await;
            http::set_allow(&mut response, &allowed);
            response
        }
        Found::Nothing => {
            let text = format!("Route not found: {} {}", request.method(), request.uri().path());
            let error = Error::not_found(text).with_code("route_not_found");
            refuse(shared, request, &error).await
        }
    }
}

async fn refuse(shared: &Shared, request: Request<Upload>, error: &Error) -> Response<Body> {
    let (parts, body) = request.into_parts();
    shared.bodies.skip(&parts.headers, body).await;
    http::failure(error, shared.config.overload_status, shape(parts.uri.path()))
}

/// Clients of Anthropic's routes expect its errors there, whatever is wrong.
fn shape(path: &str) -> ErrorShape {
    if path == api::busy::PATH {
        return api::busy::error_body;
    }
    let is_anthropic =
        path.strip_prefix("/v1/messages").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if is_anthropic { anthropic::error_body } else { error_body }
}

/// `x-dynamo-request-id` becomes the request's own id if it is a UUID; `x-request-id` is echoed whatever it is
/// (behaviour.md 1.6).
pub(crate) fn identify(shared: &Shared, headers: &HeaderMap) -> Identity {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let own = text("x-dynamo-request-id").filter(|id| is_uuid(id)).map(str::to_ascii_lowercase);
    Identity::new(
        RequestId::from(own.unwrap_or_else(|| shared.identities.uuid())),
        text("x-request-id").filter(|id| is_presentable(id)).map(Arc::from),
        shared.tracer.clone(),
        trace::incoming(headers).as_ref(),
    )
}

/// Percent-decoded; what is not valid stays as it is.
fn decoded(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while let Some(&byte) = bytes.get(index) {
        let escaped = (byte == b'%')
            .then(|| text.get(index + 1..index + 3))
            .flatten()
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        plain.push(escaped.unwrap_or(byte));
        index += if escaped.is_some() { 3 } else { 1 };
    }
    Cow::Owned(String::from_utf8_lossy(&plain).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template<'a>(method: &Method, path: &'a str) -> Option<(&'static str, &'a str)> {
        match find(ROUTES, method, path) {
            Found::Route(route, inner) => Some((route.template, inner)),
            Found::OtherMethods(_) | Found::Nothing => None,
        }
    }

    #[test]
    fn paths_are_recognised() {
        assert_eq!(template(&Method::GET, "/v1/models"), Some(("/v1/models", "")));
        assert_eq!(template(&Method::HEAD, "/health"), Some(("/health", "")));
        assert_eq!(template(&Method::GET, "/v1/models/org/m"), Some(("/v1/models/{id}", "org/m")));
        assert_eq!(
            template(&Method::GET, "/v1/models/org/m/ready"),
            Some(("/v1/models/{id}/ready", "org/m"))
        );
        assert_eq!(template(&Method::GET, "/v1/models/ready"), Some(("/v1/models/{id}", "ready")));
        for (method, path) in
            [(Method::GET, "/v1/models/"), (Method::GET, "/v1"), (Method::GET, "/v1/completions/")]
        {
            assert_eq!(template(&method, path), None, "{path}");
        }
    }

    #[test]
    fn other_methods_are_named() {
        let Found::OtherMethods(allowed) = find(ROUTES, &Method::DELETE, "/v1/models/m") else {
            panic!("found")
        };
        assert_eq!(allowed, "GET, HEAD");
        let Found::OtherMethods(allowed) = find(ROUTES, &Method::GET, "/v1/completions") else {
            panic!("found")
        };
        assert_eq!(allowed, "POST");
    }

    #[test]
    fn names_are_decoded() {
        for (encoded, plain) in
            [("a%2Fb", "a/b"), ("%E2%82%AC", "€"), ("100%", "100%"), ("%zz%4", "%zz%4"), ("%+1", "%+1")]
        {
            assert_eq!(decoded(encoded), plain);
        }
    }

    #[test]
    fn the_openapi_document_is_complete() {
        complete(&service::document(true), ROUTES);
        complete(&selection::document(service::document(true)), selection::ROUTES);
    }

    /// The document and the table name the same routes.
    fn complete(document: &serde_json::Value, own: &'static [Route]) {
        let mut documented: Vec<(String, String)> = Vec::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            let methods = methods.as_object().unwrap().keys().filter(|key| *key != "parameters");
            documented.extend(methods.map(|method| (method.to_uppercase(), path.clone())));
        }
        documented.sort();
        let mut served: Vec<(String, String)> = with_common(own)
            .filter(|route| !matches!(route.handler, Handler::Absent(_)))
            .map(|route| (route.method.to_string(), route.template.to_owned()))
            .collect();
        served.sort();
        assert_eq!(documented, served);
    }
}
