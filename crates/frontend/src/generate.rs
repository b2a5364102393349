//! A generation request from head to answer, for every API alike: read, translate, resolve, tokenise, dispatch, write.

use crate::dispatch::Job;
use crate::generation::Generation;
use crate::http::{self, Body};
use crate::identity::choice_seed;
use crate::metrics::RequestMetrics;
use crate::model::Model;
use crate::plan::{Answer, Api, Call, Head, Plan, Reply, Splitting};
use crate::prepare::{self, Tokens};
use crate::record::{Identity, Record};
use crate::shared::{Phase, Shared};
use crate::stream::{EventStream, whole};
use dynamo_text::{Decoder, DecoderOptions, Tokenizer};
use dynamo_types::{Class, Error, InstanceId, Request, RequestId, Result, Stopping};
use hyper::body::Incoming;
use hyper::{HeaderMap, Response, StatusCode};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds after which a client should ask again when this frontend is going away: by then another one answers at the
/// same address.
const DRAIN_RETRY_AFTER_S: u32 = 5;

/// Answers one request. Dropping the future - hyper does when the connection closes - cancels everything.
pub(crate) async fn handle(
    shared: Arc<Shared>,
    api: &'static Api,
    request: hyper::Request<Incoming>,
    identity: Identity,
) -> Response<Body> {
    let overload_status = shared.config.overload_status;
    let mut record =
        Record::new(&shared.metrics, identity, api.name, overload_status, shared.requests.token());
    let answered = match prepare(&shared, api, request, &mut record).await {
        Ok(prepared) => answer(&shared, prepared, record).await,
        Err(error) => {
            record.fail(&error);
            Err(error)
        }
    };
    answered.unwrap_or_else(|error| http::failure(&error, overload_status, api.error_shape))
}

/// 503 for requests that come during a drain.
fn draining() -> Error {
    Error::unavailable("the server is draining and takes no new requests")
        .with_retry_after_s(DRAIN_RETRY_AFTER_S)
}

/// A request that can be sent to workers.
struct Prepared {
    plan: Plan,
    dropped: Vec<String>,
    model: Arc<Model>,
    tokenizer: Arc<Tokenizer>,
    tokens: Vec<Tokens>,
    handles: Arc<RequestMetrics>,
}

/// Refuses work while draining (R29). What the client still sends is read for a moment only: it must not hold the drain.
///
/// # Errors
/// 503 with `Retry-After`.
pub(crate) async fn admitted(shared: &Shared, headers: &HeaderMap, body: Incoming) -> Result<Incoming> {
    const LAST_BYTES: Duration = Duration::from_secs(1);
    if shared.phase() == Phase::Serving {
        return Ok(body);
    }
    // Read or not, the answer is the same.
    let _ = tokio::time::timeout(LAST_BYTES, shared.bodies.skip(headers, body)).await;
    Err(draining())
}

async fn prepare(
    shared: &Arc<Shared>,
    api: &'static Api,
    request: hyper::Request<Incoming>,
    record: &mut Record,
) -> Result<(Prepared, Reply)> {
    let (parts, body) = request.into_parts();
    let body = admitted(shared, &parts.headers, body).await?;
    let received = shared.bodies.read(&parts.headers, body).await?;
    let size = received.bytes.len();
    let context = Arc::clone(shared);
    let translate = move || (api.translate)(&received.bytes, &context.options);
    let Call { mut plan, prompts, reply, dropped } = prepare::offload(shared, size, translate).await?;
    record.set_stream(plan.stream);
    let model = shared.catalog.find(&plan.model)?;
    let handles = record.identify(model.name(), plan.stream);
    overrule(&mut plan, &parts.headers)?;
    let text = Arc::clone(model.usable()?);
    check_pin(&model, &plan)?;
    let (served, tokenizer) = (Arc::clone(&model), Arc::clone(&text.tokenizer));
    let fits = matches!(reply, Reply::Answer(_));
    let tokenise = move || prepare::tokens(&served, &text, &plan, prompts, fits).map(|tokens| (plan, tokens));
    let (plan, (tokens, spent)) = prepare::offload(shared, size, tokenise).await?;
    spent.observe(&shared.metrics);
    let total: usize = tokens.iter().map(|tokens| tokens.ids.len()).sum();
    record.set_prompt_tokens(u32::try_from(total).unwrap_or(u32::MAX));
    if !dropped.is_empty() {
        let fields = dropped.join(", ");
        tracing::warn!(request_id = %record.id(), model = %model.name(), fields, "request fields without effect");
    }
    Ok((Prepared { plan, dropped, model, tokenizer, tokens, handles }, reply))
}

/// Dispatches and writes. From here on the generation keeps the record, and with it the outcome.
async fn answer(
    shared: &Arc<Shared>,
    (mut prepared, reply): (Prepared, Reply),
    mut record: Record,
) -> Result<Response<Body>> {
    let dropped = std::mem::take(&mut prepared.dropped);
    let mut response = match reply {
        Reply::Count(body) => {
            let body = body(record.usage.prompt_tokens)?;
            record.succeed();
            http::json(StatusCode::OK, body)
        }
        Reply::Answer(mut answer) => {
            let head = head(&record, &mut prepared);
            let generation = begin(shared, &prepared, !head.splitting.is_plain(), record);
            answer.begin(head);
            write(generation, answer, prepared.plan.stream).await?
        }
    };
    http::set_ignored_fields(&mut response, &dropped);
    Ok(response)
}

async fn write(generation: Generation, answer: Box<dyn Answer>, stream: bool) -> Result<Response<Body>> {
    if stream {
        EventStream::open(generation, answer).await.map(http::events)
    } else {
        whole(generation, answer).await.map(|body| http::json(StatusCode::OK, body))
    }
}

fn head(record: &Record, prepared: &mut Prepared) -> Head {
    Head {
        id: Arc::clone(&record.id().0),
        created_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs()),
        model: Arc::clone(prepared.model.name()),
        n: prepared.plan.n,
        echo: prepared.tokens.iter_mut().filter_map(|tokens| tokens.text.take()).collect(),
        splitting: splitting(prepared),
    }
}

/// The split that the model's card names, for answers to conversations.
fn splitting(prepared: &Prepared) -> Splitting {
    let Some(start) = prepared.tokens.first().and_then(|tokens| tokens.start) else {
        return Splitting::default();
    };
    let card = &prepared.model.card;
    let tools = prepared.plan.tools.clone();
    Splitting {
        reasoning: card.reasoning_parser.clone(),
        tool: card.tool_parser.clone().filter(|_| tools.is_some()),
        tools: tools.unwrap_or_default(),
        start,
    }
}

/// Makes a job for every choice of every prompt: index = prompt index times `n` plus choice.
/// `is_split`: a parser reads the text.
fn begin(shared: &Arc<Shared>, prepared: &Prepared, is_split: bool, record: Record) -> Generation {
    let Prepared { plan, model, tokenizer, handles, .. } = prepared;
    let seed = plan.seed.unwrap_or_else(|| shared.identities.seed());
    let mut jobs = Vec::with_capacity(prepared.tokens.len() * plan.n as usize);
    for tokens in &prepared.tokens {
        for _ in 0..plan.n {
            let index = jobs.len() as u32;
            let job = Job {
                shared: Arc::clone(shared),
                model: Arc::clone(model),
                handles: Arc::clone(handles),
                request: request(record.id(), model, plan, tokens, choice_seed(seed, index), index),
                hashes: tokens.hashes.clone(),
                expected_output_tokens: plan.expected_output_tokens,
            };
            jobs.push((job, Decoder::new(Arc::clone(tokenizer), decoding(model, plan, is_split))));
        }
    }
    Generation::new(Arc::clone(shared), Arc::clone(model), record, plan.n, jobs)
}

fn request(id: &RequestId, model: &Model, plan: &Plan, tokens: &Tokens, seed: u64, index: u32) -> Request {
    let mut sampling = plan.sampling.clone();
    sampling.seed = seed;
    Request {
        id: if index == 0 { id.clone() } else { RequestId::from(format!("{id}-{index}")) },
        model: Arc::clone(model.name()),
        tokens: Arc::clone(&tokens.ids),
        resumed: 0,
        sampling,
        stopping: Stopping {
            max_tokens: tokens.max_tokens,
            // What the context has no room for cannot be asked for.
            min_tokens: plan.stopping.min_tokens.min(tokens.max_tokens),
            ..plan.stopping.clone()
        },
        guide: plan.guide.clone(),
        output: plan.output.clone(),
        routing: plan.routing.clone(),
    }
}

fn decoding(model: &Model, plan: &Plan, is_split: bool) -> DecoderOptions {
    DecoderOptions {
        stop: plan.stop.clone(),
        stop_token_ids: plan.stopping.stop_token_ids.clone(),
        eos: if plan.stopping.ignore_eos { Vec::new() } else { model.card.special.eos.clone() },
        min_tokens: plan.stopping.min_tokens,
        skip_special_tokens: plan.skip_special_tokens,
        keep_markers: is_split,
        include_stop_str_in_output: plan.include_stop_str_in_output,
        logprobs: plan.output.logprobs.is_some(),
    }
}

/// What gateways say in headers wins over the body (behaviour.md 1.7).
fn overrule(plan: &mut Plan, headers: &HeaderMap) -> Result<()> {
    if let Some(worker) = number(headers, "x-dynamo-worker-instance-id")? {
        plan.routing.worker = Some(InstanceId(worker));
    }
    if let Some(rank) = number(headers, "x-dynamo-dp-rank")? {
        let rank = u32::try_from(rank).map_err(|_| bad_header("x-dynamo-dp-rank", "a 32-bit integer"))?;
        plan.routing.rank = Some(rank);
    }
    if let Some(tenant) = headers.get("x-tenant-id").and_then(|value| value.to_str().ok()) {
        plan.routing.salt = Some(tenant).filter(|tenant| !tenant.is_empty()).map(Arc::from);
    }
    if let Some(priority) = headers.get("x-dynamo-request-priority") {
        let parsed = priority.to_str().ok().and_then(|text| text.trim().parse().ok());
        plan.routing.priority =
            parsed.ok_or_else(|| bad_header("x-dynamo-request-priority", "a 32-bit integer"))?;
    }
    Ok(())
}

/// Decimal, or hexadecimal after `0x`.
fn number(headers: &HeaderMap, name: &'static str) -> Result<Option<u64>> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let text = value.to_str().unwrap_or("").trim();
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map(Some).map_err(|_| bad_header(name, "a decimal number, or a hexadecimal one after 0x"))
}

fn bad_header(name: &'static str, expected: &str) -> Error {
    Error::client(Class::Invalid, format!("header {name} must be {expected}")).with_param(name)
}

/// A pinned worker has to be one of the model's.
fn check_pin(model: &Model, plan: &Plan) -> Result<()> {
    match plan.routing.worker {
        Some(worker) if model.worker(worker).is_none() => Err(Error::invalid(format!(
            "the pinned worker {} (hexadecimal {worker}) does not serve the model `{}`",
            worker.0,
            model.name()
        ))
        .with_param("nvext.backend_instance_id")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn numbers_in_headers() {
        let read = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("x-dynamo-dp-rank", HeaderValue::from_static(text));
            number(&headers, "x-dynamo-dp-rank")
        };
        assert_eq!(read("12").unwrap(), Some(12));
        assert_eq!(read("0xff").unwrap(), Some(255));
        assert_eq!(read("ff").unwrap_err().param(), Some("x-dynamo-dp-rank"));
        assert_eq!(number(&HeaderMap::new(), "x-dynamo-dp-rank").unwrap(), None);
    }
}
