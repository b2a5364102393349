//! The calls about workers: naming them by hand, taking them out, and what is known of their caches.

use super::answers::{Cache, Described, Dump, Record};
use super::calls::{Reply, encode};
use super::input::Input;
use super::{Call, Desk};
use crate::shared::Shared;
use dynamo_runtime::events::Event;
use dynamo_types::{Class, Error, InstanceId, KvEvent, KvEventBatch, Result};
use hyper::StatusCode;
use std::sync::Arc;

pub(super) static ADD: Call = Call { name: "workers", begins: false, run: add };
pub(super) static UPDATE: Call = Call { name: "workers", begins: false, run: update };
pub(super) static REMOVE: Call = Call { name: "workers", begins: false, run: remove };
pub(super) static DUMP: Call =
    Call { name: "dump", begins: false, run: |shared, desk, _, _| dump(shared, desk, None) };
pub(super) static DUMP_ONE: Call =
    Call { name: "dump", begins: false, run: |shared, desk, _, id| dump(shared, desk, Some(worker(id)?)) };

/// Blocks of one dump, some 60 bytes each: the largest answer that is made at once.
const MAX_DUMP_BLOCKS: usize = 1 << 20;

/// A worker's number in a path: decimal, as in bodies.
fn worker(id: &str) -> Result<InstanceId> {
    id.parse().map(InstanceId).map_err(|_| {
        Error::not_found(format!(
            "a worker is named by a decimal number, found {:?}",
            dynamo_protocols::echo(id)
        ))
    })
}

fn add(shared: &Shared, desk: &Desk, input: &Input, _: &str) -> Result<Reply> {
    let id = input.worker_id.ok_or_else(|| Error::invalid("worker_id is needed"))?;
    let named = desk.roster.add(id, input, &shared.catalog)?;
    Ok(Reply { status: StatusCode::CREATED, body: encode(&Record::named(id, &named, false))? })
}

fn update(shared: &Shared, desk: &Desk, input: &Input, id: &str) -> Result<Reply> {
    let id = worker(id)?;
    let named = desk.roster.update(id, input, &shared.catalog)?;
    let is_out = desk.roster.out().contains(&id);
    let record = match named {
        Some(named) => Record::named(id, &named, is_out),
        None => {
            let all = super::views::records(shared, desk);
            let known = all.into_iter().find(|record| record.worker_id == id.0);
            known.ok_or_else(|| Error::not_found(format!("worker {} left", id.0)))?
        }
    };
    Ok(Reply { status: StatusCode::OK, body: encode(&record)? })
}

fn remove(shared: &Shared, desk: &Desk, _: &Input, id: &str) -> Result<Reply> {
    let id = worker(id)?;
    desk.roster.remove(id, &shared.catalog)?;
    Ok(Reply { status: StatusCode::OK, body: encode(&serde_json::json!({ "worker_id": id.0 }))? })
}

/// What the workers cache, as the events that say so: whoever applies them to an empty index knows what this router
/// knows.
fn dump(shared: &Shared, desk: &Desk, of: Option<InstanceId>) -> Result<Reply> {
    let mut subscription = desk.events.subscribe();
    let mut workers = Vec::new();
    let mut blocks = 0;
    while let Some(event) = subscription.try_next() {
        let (Event::Snapshot(batch) | Event::Kv(batch)) = event else { continue };
        if of.is_some_and(|of| of != batch.source.worker) {
            continue;
        }
        blocks += count(&batch);
        if blocks > MAX_DUMP_BLOCKS {
            let reason =
                format!("a dump has at most {MAX_DUMP_BLOCKS} blocks; /workers/{{id}}/dump is of one worker");
            return Err(Error::client(Class::TooLarge, reason));
        }
        let model =
            shared.catalog.all().into_iter().find(|model| model.worker(batch.source.worker).is_some());
        if let Some(model) = model {
            workers.push(Cache::new(Arc::clone(model.name()), model.card.blocks.block_size, batch));
        }
    }
    if let Some(id) = of
        && workers.is_empty()
        && !shared.catalog.all().iter().any(|model| model.worker(id).is_some())
    {
        return Err(Error::not_found(format!("no worker {} (hexadecimal {id}) is known", id.0)));
    }
    Ok(Reply { status: StatusCode::OK, body: encode(&Dump { workers })? })
}

fn count(batch: &KvEventBatch) -> usize {
    let stored = batch.events.iter().map(|event| match event {
        KvEvent::Stored { blocks, .. } => blocks.len(),
        KvEvent::Removed { .. } | KvEvent::Cleared => 0,
    });
    stored.sum()
}

impl Record {
    pub(super) fn named(id: InstanceId, named: &super::roster::Named, is_out: bool) -> Self {
        let mut reasons = named.missing();
        let lifecycle = match (reasons.is_empty(), is_out) {
            (false, _) => "incomplete",
            (true, true) => "unschedulable",
            (true, false) => "schedulable",
        };
        if is_out {
            reasons.push(super::views::TAKEN_OUT.to_owned());
        }
        Self {
            worker_id: id.0,
            model_name: named.model_name.as_deref().unwrap_or_default().into(),
            lifecycle,
            described: Some(Described::named(named)),
            not_schedulable_reasons: reasons,
        }
    }
}
