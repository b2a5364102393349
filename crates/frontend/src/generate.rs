//! A generation request from head to answer, for every API alike: read, translate, resolve, tokenise, dispatch, write.

use crate::best::Pick;
use crate::body::{Received, Upload};
use crate::dispatch::Job;
use crate::generation::Generation;
use crate::hints;
use crate::http::{self, Body};
use crate::identity::choice_seed;
use crate::metrics::RequestMetrics;
use crate::model::Model;
use crate::plan::{Answer, Api, Call, Head, Plan, Reply, Splitting};
use crate::prepare::{self, Tokens};
use crate::record::{Identity, Record};
use crate::shared::{Phase, Shared};
use crate::stream::{EventStream, whole};
use bytes::Bytes;
use dynamo_text::{Decoder, DecoderOptions, Tokenizer};
use dynamo_types::{Error, Request, RequestId, Result, Stopping};
use hyper::{HeaderMap, Response, StatusCode};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tracing::Instrument;

/// Seconds after which a client should ask again when this frontend is going away: by then another one answers at the
/// same address.
const DRAIN_RETRY_AFTER_S: u32 = 5;

/// Answers one request. Dropping the future - hyper does when the connection closes - cancels everything.
pub(crate) async fn handle(
    shared: Arc<Shared>,
    api: &'static Api,
    request: hyper::Request<Upload>,
    identity: Identity,
) -> Response<Body> {
    let overload_status = shared.config.overload_status;
    let record = Record::new(&shared.metrics, identity, api.name, overload_status, shared.requests.token());
    let (parts, body) = request.into_parts();
    let receive = async {
        let body = admitted(&shared, &parts.headers, body).await?;
        shared.bodies.read(&parts.headers, body).await
    };
    match run(&shared, api, &parts.headers, receive, record).await {
        Ok((written, dropped)) => {
            let mut response = match written {
                Written::Whole(body) => http::json(StatusCode::OK, body),
                Written::Events(stream) => http::events(stream),
            };
            http::set_ignored_fields(&mut response, &dropped);
            response
        }
        Err(error) => http::failure(&error, overload_status, api.error_shape),
    }
}

/// An answer in an API's own words.
pub(crate) enum Written {
    Whole(Bytes),
    Events(Box<EventStream>),
}

/// From what was received to the answer, and the fields that had no effect. The record has the outcome then.
///
/// # Errors
/// What is wrong with the request, or what went wrong before the first words of the answer.
pub(crate) async fn run(
    shared: &Arc<Shared>,
    api: &'static Api,
    headers: &HeaderMap,
    receive: impl Future<Output = Result<Received>>,
    mut record: Record,
) -> Result<(Written, Vec<String>)> {
    let log = record.log_span().clone();
    let prepared = async {
        let received = receive.await?;
        prepare(shared, api, headers, received, &mut record).await
    };
    match prepared.instrument(log).await {
        Ok(prepared) => answer(shared, prepared, record).await,
        Err(error) => {
            record.fail(&error);
            Err(error)
        }
    }
}

/// 503 for requests that come during a drain.
pub(crate) fn draining() -> Error {
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

/// Refuses work while draining (R29). What the client still sends is read for a moment only.
///
/// # Errors
/// 503 with `Retry-After`.
pub(crate) async fn admitted(shared: &Shared, headers: &HeaderMap, body: Upload) -> Result<Upload> {
    if shared.phase() == Phase::Serving {
        return Ok(body);
    }
    shared.bodies.skip(headers, body).await;
    Err(draining())
}

async fn prepare(
    shared: &Arc<Shared>,
    api: &'static Api,
    headers: &HeaderMap,
    received: Received,
    record: &mut Record,
) -> Result<(Prepared, Reply)> {
    record.keep_payload(shared.config.log_prompts, &received.bytes);
    let _preprocess = record.child("preprocess");
    let _staged = shared.metrics.stages.preprocess.enter();
    let size = received.bytes.len();
    let context = Arc::clone(shared);
    // The share of the memory budget is held until the prompts are tokens.
    let Received { bytes, share } = received;
    let translate = move || (api.translate)(&bytes, &context.options).map(|call| (call, share));
    let (call, share) = prepare::offload(shared, size, translate).await?;
    let Call { mut plan, prompts, reply, mut dropped } = call;
    record.set_stream(plan.stream);
    let model = shared.catalog.find(&plan.model)?;
    let handles = record.identify(model.name(), plan.stream);
    if shared.config.disable_nvext {
        hints::salt(&mut plan, headers)?;
    } else {
        hints::overrule(&mut plan, headers)?;
        record.set_policy_class(hints::policy_class(headers)?);
    }
    let text = Arc::clone(model.usable()?);
    hints::settle_pins(&model, &mut plan)?;
    prepare::check_task(&model, &plan)?;
    let (served, tokenizer) = (Arc::clone(&model), Arc::clone(&text.tokenizer));
    let fits = matches!(reply, Reply::Answer(_));
    let tokenise =
        move || prepare::tokens(&served, &text, &plan, prompts, fits).map(|tokens| (plan, tokens, share));
    let (plan, (tokens, spent), share) = prepare::offload(shared, size, tokenise).await?;
    spent.observe(&shared.metrics);
    drop(share);
    let total: usize = tokens.iter().map(|tokens| tokens.ids.len()).sum();
    record.set_prompt_tokens(u32::try_from(total).unwrap_or(u32::MAX));
    dropped.extend(tokens.iter().flat_map(|tokens| &tokens.ignored).map(|field| (*field).to_owned()));
    if !dropped.is_empty() {
        let fields = dropped.join(", ");
        tracing::warn!(model = %model.name(), fields, "request fields without effect");
    }
    Ok((Prepared { plan, dropped, model, tokenizer, tokens, handles }, reply))
}

/// Dispatches and writes. From here on the generation keeps the record, and with it the outcome.
async fn answer(
    shared: &Arc<Shared>,
    (mut prepared, reply): (Prepared, Reply),
    mut record: Record,
) -> Result<(Written, Vec<String>)> {
    let dropped = std::mem::take(&mut prepared.dropped);
    let written = match reply {
        Reply::Count(body) => {
            let body = body(record.usage.prompt_tokens)?;
            record.succeed();
            Written::Whole(body)
        }
        Reply::Answer(mut answer) => {
            let head = head(&record, &mut prepared);
            let generation = begin(shared, &prepared, !head.splitting.is_plain(), record);
            answer.begin(head);
            write(generation, answer, &prepared.plan).await?
        }
    };
    Ok((written, dropped))
}

async fn write(generation: Generation, answer: Box<dyn Answer>, plan: &Plan) -> Result<Written> {
    if plan.stream {
        EventStream::open(generation, answer).await.map(|stream| Written::Events(Box::new(stream)))
    } else {
        let pick = Pick { keep: plan.n, of: plan.best_of };
        whole(generation, answer, pick).await.map(Written::Whole)
    }
}

fn head(record: &Record, prepared: &mut Prepared) -> Head {
    Head {
        id: Arc::clone(&record.id().0),
        created_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs()),
        model: Arc::clone(prepared.model.name()),
        n: prepared.plan.n,
        texts: prepared.tokens.iter_mut().filter_map(|tokens| tokens.text.take()).collect(),
        prompts: prepared.tokens.iter().map(|tokens| Arc::clone(&tokens.ids)).collect(),
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
        forced: prepared.plan.forced.clone(),
        max_calls: prepared.plan.max_calls,
        start,
    }
}

/// Makes a job for every candidate of every prompt: index = prompt index times `best_of` plus candidate.
/// `is_split`: a parser reads the text.
fn begin(shared: &Arc<Shared>, prepared: &Prepared, is_split: bool, record: Record) -> Generation {
    let Prepared { plan, model, tokenizer, handles, .. } = prepared;
    let seed = plan.seed.unwrap_or_else(|| shared.identities.seed());
    let mut jobs = Vec::with_capacity(prepared.tokens.len() * plan.best_of as usize);
    for tokens in &prepared.tokens {
        for _ in 0..plan.best_of {
            let index = jobs.len() as u32;
            let job = Job {
                shared: Arc::clone(shared),
                model: Arc::clone(model),
                handles: Arc::clone(handles),
                request: request(&record, model, plan, tokens, choice_seed(seed, index), index),
                hashes: tokens.hashes.clone(),
                expected_output_tokens: plan.expected_output_tokens,
            };
            jobs.push((job, Decoder::new(Arc::clone(tokenizer), decoding(model, plan, tokens, is_split))));
        }
    }
    Generation::new(Arc::clone(shared), record, plan.best_of, plan.tells_facts, jobs)
}

fn request(record: &Record, model: &Model, plan: &Plan, tokens: &Tokens, seed: u64, index: u32) -> Request {
    let id = record.id();
    let mut sampling = plan.sampling.clone();
    sampling.seed = seed;
    Request {
        id: if index == 0 { id.clone() } else { RequestId::from(format!("{id}-{index}")) },
        model: Arc::clone(model.name()),
        tokens: Arc::clone(&tokens.ids),
        resumed: 0,
        task: plan.task,
        sampling,
        stopping: Stopping {
            max_tokens: tokens.max_tokens,
            // What the context has no room for cannot be asked for.
            min_tokens: plan.stopping.min_tokens.min(tokens.max_tokens),
            ..plan.stopping.clone()
        },
        guide: tokens.guide.clone(),
        thinking: tokens.thinking.clone(),
        output: plan.output.clone(),
        routing: plan.routing.clone(),
        trace: Some(record.trace().clone()),
    }
}

fn decoding(model: &Model, plan: &Plan, tokens: &Tokens, is_split: bool) -> DecoderOptions {
    DecoderOptions {
        stop: plan.stop.clone(),
        stop_token_ids: plan.stopping.stop_token_ids.clone(),
        eos: if plan.stopping.ignore_eos { Vec::new() } else { model.card.special.eos.clone() },
        min_tokens: plan.stopping.min_tokens,
        skip_special_tokens: plan.skip_special_tokens,
        keep_markers: is_split,
        include_stop_str_in_output: plan.include_stop_str_in_output,
        logprobs: plan.output.logprobs.is_some(),
        prompt: tokens.source,
    }
}
