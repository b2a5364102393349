//! The calls: choose, book, go on, end; and what the index and the books know of a prompt.

use super::answers::{
    Chosen, Found, Freed, Loads, RankLoad, Reserved, Score, Scores, Summary, Told, overlap,
};
use super::desk::{Remembered, Reservation, unknown};
use super::input::Input;
use super::prompt::Prompt;
use super::{Call, Desk};
use crate::compute;
use crate::metrics::{self, Stopwatch};
use crate::model::{Model, Worker};
use crate::shared::Shared;
use dynamo_router::{Laps, Query, Selection};
use dynamo_types::{Error, InstanceId, Result, Task, WorkerRank};
use hyper::StatusCode;
use serde::Serialize;
use std::sync::Arc;

/// The answer to a call.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) body: Vec<u8>,
}

pub(super) static SELECT: Call = Call { name: "select", begins: true, run: select };
pub(super) static SELECT_AND_RESERVE: Call =
    Call { name: "select_and_reserve", begins: true, run: select_and_reserve };
pub(super) static RESERVE: Call = Call { name: "reservations", begins: true, run: reserve };
pub(super) static ADD: Call = Call { name: "add", begins: true, run: add };
pub(super) static PREFILL_COMPLETE: Call = Call {
    name: "prefill_complete",
    begins: false,
    run: |shared, desk, _, id| prefill_complete(shared, desk, id),
};
pub(super) static PREFILL_COMPLETE_BY_BODY: Call = Call {
    name: "prefill_complete",
    begins: false,
    run: |shared, desk, input, _| prefill_complete(shared, desk, named(input)?),
};
pub(super) static OUTPUT_BLOCK: Call = Call { name: "output_block", begins: false, run: output_block };
pub(super) static RELEASE: Call = Call { name: "release", begins: false, run: release };
pub(super) static FREE: Call = Call { name: "free", begins: false, run: free };
pub(super) static OVERLAP_SCORES: Call = Call { name: "overlap_scores", begins: false, run: overlap_scores };
pub(super) static POTENTIAL_LOADS: Call =
    Call { name: "potential_loads", begins: false, run: potential_loads };
pub(super) static QUERY: Call =
    Call { name: "query", begins: false, run: |shared, _, input, _| query(shared, input) };
pub(super) static QUERY_BY_HASH: Call = Call { name: "query_by_hash", begins: false, run: query_by_hash };

pub(super) fn encode(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::internal(error.to_string()))
}

fn reply(status: StatusCode, value: &impl Serialize) -> Result<Reply> {
    Ok(Reply { status, body: encode(value)? })
}

fn ok(value: &impl Serialize) -> Result<Reply> {
    reply(StatusCode::OK, value)
}

/// The model that is named, or the one that has workers: tokens are placed before its text parts are built.
fn model_of(shared: &Shared, name: Option<&str>) -> Result<Arc<Model>> {
    match name {
        Some(name) => shared.catalog.find(name),
        None => compute::only(shared.catalog.all().into_iter().filter(|model| model.has_workers()).collect()),
    }
}

/// The reservation that a body is about.
fn named(input: &Input) -> Result<&str> {
    input.selection_id.as_deref().ok_or_else(|| Error::invalid("selection_id (or request_id) is needed"))
}

/// Who may be chosen.
#[derive(Default)]
struct Wanted {
    pinned: Option<(InstanceId, Option<u32>)>,
    rank: Option<u32>,
    excluded: Vec<InstanceId>,
    /// It goes there in any case, and is only to be counted.
    decided: bool,
}

impl Wanted {
    /// # Errors
    /// 404 for a pinned worker that nobody knows.
    fn by(model: &Model, input: &Input) -> Result<Self> {
        let mut excluded = Vec::new();
        if let Some(allowed) = &input.allowed_worker_ids {
            let others = model.workers().into_iter().map(|worker| worker.instance.id);
            excluded.extend(others.filter(|id| !allowed.contains(id)));
        }
        let pinned = input.pinned_worker.map(|pin| (pin.worker_id, pin.dp_rank));
        if let Some((id, _)) = pinned {
            worker(model, id)?;
        }
        Ok(Self { pinned, rank: input.dp_rank.filter(|_| pinned.is_none()), excluded, decided: false })
    }

    /// This very rank, or any of the worker.
    fn exactly(worker: InstanceId, rank: Option<u32>) -> Self {
        Self { pinned: Some((worker, rank)), decided: true, ..Self::default() }
    }
}

fn worker(model: &Model, id: InstanceId) -> Result<Arc<Worker>> {
    model.worker(id).ok_or_else(|| {
        Error::not_found(format!("no worker {} (hexadecimal {id}) serves the model `{}`", id.0, model.name()))
    })
}

fn chosen_worker(model: &Model, id: InstanceId) -> Result<Arc<Worker>> {
    model.worker(id).ok_or_else(|| Error::unavailable("the chosen worker left").with_retry_after_s(1))
}

/// Chooses and books. The selection has its terms with it.
fn choose(
    shared: &Shared,
    model: &Model,
    prompt: &Prompt,
    wanted: &Wanted,
    expected_output_tokens: Option<u32>,
) -> Result<Selection> {
    let mut excluded = model.unable(Task::Generate);
    excluded.extend_from_slice(&wanted.excluded);
    if let Some(desk) = shared.desk.as_ref().filter(|_| !wanted.decided) {
        excluded.extend(desk.roster.out());
    }
    let watch = Stopwatch::start();
    let selection = model.router.select(&Query {
        sequence_hashes: Some(&prompt.sequences),
        length: Some(prompt.length),
        expected_output_tokens,
        pinned: wanted.pinned,
        rank: wanted.rank,
        excluded: &excluded,
        begun: wanted.decided,
        now_ms: shared.now_ms(),
        explain: true,
        laps: Laps::new(&|lap| watch.lap(lap)),
        ..Query::default()
    });
    let routing = &shared.metrics.routing;
    watch.stop(routing);
    if !wanted.decided {
        let counted = metrics::Prompt {
            tokens: u64::from(prompt.length),
            blocks: Some(prompt.sequences.len()),
            block_size: prompt.block_size,
        };
        routing.count(&routing.of(model.name()), counted, &selection);
    }
    selection
}

/// A selection as its caller sees it.
fn shown<'a>(
    model: &'a Model,
    prompt: &Prompt,
    selection: &Selection,
    selection_id: Option<&'a str>,
) -> Result<Chosen<'a>> {
    let WorkerRank { worker: id, rank } = selection.target;
    let rows = selection.explain.as_deref().unwrap_or_default();
    let terms = rows.iter().find(|row| row.target == selection.target);
    let terms = terms.ok_or_else(|| Error::internal("a selection without its terms"))?;
    let mut summary = Summary::default();
    summary.add(rank, overlap(terms), prompt);
    Ok(Chosen {
        selection_id,
        model_name: model.name(),
        worker_id: id.0,
        dp_rank: rank,
        endpoint: chosen_worker(model, id)?.instance.transport.to_string(),
        block_size: prompt.block_size,
        isl_tokens: prompt.length,
        overlap: summary,
        effective_prefill_tokens: selection.booking.prefill_tokens(),
        potential_decode_blocks: terms.potential_decode_blocks,
        candidates: selection.candidates,
        expires_in_ms: None,
    })
}

/// `POST /select`: where a prompt would go. Nothing stays booked; with a `selection_id` it can be, by the next call.
fn select(shared: &Shared, desk: &Desk, input: &Input, _: &str) -> Result<Reply> {
    let model = model_of(shared, input.model_name.as_deref())?;
    let prompt = Prompt::of(shared, &model, input)?;
    let id = input.selection_id.as_deref();
    if let Some(id) = id {
        desk.admit(id)?;
    }
    let wanted = Wanted::by(&model, input)?;
    let selection = choose(shared, &model, &prompt, &wanted, input.expected_output_tokens)?;
    let answer = ok(&shown(&model, &prompt, &selection, id)?)?;
    if let Some(id) = id {
        let remembered = Remembered {
            model: Arc::clone(model.name()),
            target: selection.target,
            prompt,
            expected_output_tokens: input.expected_output_tokens,
        };
        desk.remember(id.into(), remembered, shared.now_ms());
    }
    Ok(answer)
}

/// `POST /select_and_reserve`: both at once, so that no two callers choose by the same load.
fn select_and_reserve(shared: &Shared, desk: &Desk, input: &Input, _: &str) -> Result<Reply> {
    let model = model_of(shared, input.model_name.as_deref())?;
    let prompt = Prompt::of(shared, &model, input)?;
    let id: Arc<str> = match &input.selection_id {
        Some(id) => id.as_str().into(),
        None => shared.identities.uuid().into(),
    };
    desk.admit(&id)?;
    let wanted = Wanted::by(&model, input)?;
    let selection = choose(shared, &model, &prompt, &wanted, input.expected_output_tokens)?;
    let mut chosen = shown(&model, &prompt, &selection, Some(&id))?;
    chosen.expires_in_ms = Some(desk.config.expiry_ms);
    let answer = ok(&chosen)?;
    let reservation = Reservation { model: Arc::clone(model.name()), booking: selection.booking };
    desk.hold(&id, reservation, shared.now_ms())?;
    desk.forget(&id);
    Ok(answer)
}

/// `POST /reservations`: books what was selected under this id before, or on the worker that is named.
fn reserve(shared: &Shared, desk: &Desk, input: &Input, _: &str) -> Result<Reply> {
    let id = named(input)?;
    desk.admit(id)?;
    let Some(worker) = input.worker_id else {
        let Remembered { model, target, prompt, expected_output_tokens } = desk.recall(id)?;
        let model = shared.catalog.find(&model)?;
        let wanted = Wanted::exactly(target.worker, Some(target.rank));
        return book(shared, desk, id, &model, &prompt, &wanted, expected_output_tokens);
    };
    let model = model_of(shared, input.model_name.as_deref())?;
    let prompt = Prompt::of(shared, &model, input)?;
    let wanted = Wanted::exactly(worker, input.dp_rank);
    book(shared, desk, id, &model, &prompt, &wanted, input.expected_output_tokens)
}

/// `POST /add`: as the slot tracker knows it. Its caller has chosen.
fn add(shared: &Shared, desk: &Desk, input: &Input, inner: &str) -> Result<Reply> {
    if input.worker_id.is_none() {
        return Err(Error::invalid("worker_id is needed"));
    }
    reserve(shared, desk, input, inner)
}

fn book(
    shared: &Shared,
    desk: &Desk,
    id: &str,
    model: &Arc<Model>,
    prompt: &Prompt,
    wanted: &Wanted,
    expected_output_tokens: Option<u32>,
) -> Result<Reply> {
    if let Some((pinned, _)) = wanted.pinned {
        worker(model, pinned)?;
    }
    let selection = choose(shared, model, prompt, wanted, expected_output_tokens)?;
    let WorkerRank { worker: target, rank } = selection.target;
    let answer = reply(
        StatusCode::CREATED,
        &Reserved {
            selection_id: id,
            model_name: model.name(),
            worker_id: target.0,
            dp_rank: rank,
            endpoint: chosen_worker(model, target)?.instance.transport.to_string(),
            expires_in_ms: desk.config.expiry_ms,
        },
    )?;
    let reservation = Reservation { model: Arc::clone(model.name()), booking: selection.booking };
    desk.hold(&id.into(), reservation, shared.now_ms())?;
    desk.forget(id);
    Ok(answer)
}

fn told(id: &str, target: WorkerRank) -> Result<Reply> {
    ok(&Told { selection_id: id, worker_id: target.worker.0, dp_rank: target.rank })
}

/// The first token is there: its prompt weighs no more.
fn prefill_complete(shared: &Shared, desk: &Desk, id: &str) -> Result<Reply> {
    let target = desk.with(id, shared.now_ms(), |reservation| {
        reservation.booking.first_token();
        reservation.booking.target()
    })?;
    told(id, target)
}

/// The answer fills one more block.
fn output_block(shared: &Shared, desk: &Desk, input: &Input, id: &str) -> Result<Reply> {
    let weight = input.decay_fraction.unwrap_or(1.0);
    let target = desk.with(id, shared.now_ms(), |reservation| {
        reservation.booking.output_block(weight);
        reservation.booking.target()
    })?;
    told(id, target)
}

/// `DELETE /reservations/{id}`.
fn release(_: &Shared, desk: &Desk, _: &Input, id: &str) -> Result<Reply> {
    let gone = desk.release(id).ok_or_else(|| unknown(id))?;
    told(id, gone.booking.target())
}

/// `POST /free`: as the slot tracker knows it; what is gone is no fault.
fn free(_: &Shared, desk: &Desk, input: &Input, _: &str) -> Result<Reply> {
    let id = named(input)?;
    ok(&Freed { request_id: id, freed: desk.release(id).is_some() })
}

fn by_hashes(prompt: &Prompt) -> Query<'_> {
    Query { sequence_hashes: Some(&prompt.sequences), length: Some(prompt.length), ..Query::default() }
}

/// `POST /overlap_scores`: what each rank has of a prompt, in blocks.
fn overlap_scores(shared: &Shared, _: &Desk, input: &Input, _: &str) -> Result<Reply> {
    let model = model_of(shared, input.model_name.as_deref())?;
    let prompt = Prompt::of(shared, &model, input)?;
    let ranks = model.router.overlaps(&by_hashes(&prompt));
    ok(&Scores {
        model_name: Arc::clone(model.name()),
        block_size: prompt.block_size,
        num_blocks: prompt.sequences.len(),
        workers: ranks
            .into_iter()
            .map(|(source, overlap)| Score::new(source, overlap, &model.router))
            .collect(),
    })
}

/// `POST /potential_loads`: what each rank that could be chosen would carry with this prompt.
fn potential_loads(shared: &Shared, desk: &Desk, input: &Input, _: &str) -> Result<Reply> {
    let model = model_of(shared, input.model_name.as_deref())?;
    let prompt = Prompt::of(shared, &model, input)?;
    let out = desk.roster.out();
    let query = Query { now_ms: shared.now_ms(), excluded: &out, ..by_hashes(&prompt) };
    let loads = model.router.potential_loads(&query)?;
    ok(&Loads {
        model_name: Arc::clone(model.name()),
        loads: loads.iter().map(RankLoad::potential).collect(),
    })
}

/// `POST /query`: as the indexer knows it, in tokens.
fn query(shared: &Shared, input: &Input) -> Result<Reply> {
    let model = model_of(shared, input.model_name.as_deref())?;
    let prompt = Prompt::of(shared, &model, input)?;
    let ranks = model.router.overlaps(&by_hashes(&prompt));
    ok(&Found::new(ranks, &prompt))
}

/// `POST /query_by_hash`.
fn query_by_hash(shared: &Shared, _: &Desk, input: &Input, _: &str) -> Result<Reply> {
    if input.block_hashes.is_none() && input.sequence_hashes.is_none() {
        return Err(Error::invalid("block_hashes or sequence_hashes is needed"));
    }
    query(shared, input)
}
