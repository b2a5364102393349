//! Workers that somebody named by hand, and those that somebody took out.
//!
//! A worker of ours registers itself; this is for those that cannot, because they are none of ours. They are joined to the
//! fleet of this router alone: a frontend would call them, and they do not speak its language. What they cache is not
//! known, so their load decides.

use super::input::Input;
use crate::catalog::Catalog;
use dynamo_runtime::discovery::View;
use dynamo_runtime::sync::lock;
use dynamo_types::{
    BlockContract, Class, Error, Instance, InstanceId, ModelCard, ModelRecord, Result, SpecialTokens, Task,
    TokenizerSpec, Transport,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// Workers by hand, and workers taken out; a fleet has fewer.
const MAX_WORKERS: usize = 4096;
/// Changes that may wait for the one who watches, before he gets a list instead.
const MAX_CHANGES: usize = 1024;
/// Architecture of a model of which only the name and the blocks are known.
pub(crate) const BY_HAND: &str = "named by hand";

/// What was said of a worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Named {
    pub(super) model_name: Option<String>,
    pub(super) endpoint: Option<String>,
    pub(super) block_size: Option<u32>,
    pub(super) max_num_batched_tokens: Option<u32>,
    pub(super) total_kv_blocks: Option<u32>,
}

impl Named {
    /// What `input` says is said anew; the rest stays.
    fn updated(mut self, input: &Input) -> Result<Self> {
        for (field, found, only) in [
            ("data_parallel_start_rank", input.data_parallel_start_rank, 0),
            ("data_parallel_size", input.data_parallel_size, 1),
        ] {
            if let Some(found) = found.filter(|found| *found != only) {
                let rest = "name each rank as a worker of its own";
                return Err(Error::invalid(format!("{field} must be {only}, found {found}; {rest}")));
            }
        }
        if input.block_size == Some(0) {
            return Err(Error::invalid("block_size must be above 0, found 0"));
        }
        let set = |known: &mut Option<String>, new: &Option<String>| {
            if new.is_some() {
                known.clone_from(new);
            }
        };
        set(&mut self.model_name, &input.model_name);
        set(&mut self.endpoint, &input.endpoint);
        self.block_size = input.block_size.or(self.block_size);
        self.max_num_batched_tokens = input.max_num_batched_tokens.or(self.max_num_batched_tokens);
        self.total_kv_blocks = input.total_kv_blocks.or(self.total_kv_blocks);
        Ok(self)
    }

    /// What is missing before it can be chosen.
    pub(super) fn missing(&self) -> Vec<String> {
        let needed = [
            ("model_name", self.model_name.is_none()),
            ("endpoint", self.endpoint.is_none()),
            ("block_size", self.block_size.is_none()),
        ];
        let missing = needed.into_iter().filter(|(_, missing)| *missing);
        missing.map(|(field, _)| format!("{field} is not known")).collect()
    }

    /// Its record, once everything that is needed is known. `known`: the card of the model's other workers.
    fn record(&self, id: InstanceId, known: Option<&ModelCard>) -> Result<Option<ModelRecord>> {
        let (Some(model), Some(endpoint), Some(block_size)) =
            (&self.model_name, &self.endpoint, self.block_size)
        else {
            return Ok(None);
        };
        let mut card = known.cloned().unwrap_or_else(|| unknown_model(model, block_size));
        if card.blocks.block_size != block_size {
            return Err(Error::invalid(format!(
                "block_size must be that of the other workers of `{model}`, {}, found {block_size}",
                card.blocks.block_size
            )));
        }
        card.max_num_batched_tokens = self.max_num_batched_tokens.unwrap_or(card.max_num_batched_tokens);
        card.total_kv_blocks = self.total_kv_blocks.unwrap_or(card.total_kv_blocks);
        let instance = Instance {
            namespace: "dynamo".into(),
            component: "external".into(),
            endpoint: "generate".into(),
            id,
            transport: Transport::Tcp(endpoint.clone()),
            draining: false,
            fault: None,
        };
        Ok(Some(ModelRecord { instance, card: Arc::new(card) }))
    }
}

fn unknown_model(name: &str, block_size: u32) -> ModelCard {
    ModelCard {
        name: name.into(),
        aliases: Vec::new(),
        architecture: BY_HAND.into(),
        context_length: u32::MAX,
        vocab_size: u32::MAX,
        tokenizer: TokenizerSpec::Bytes { pieces: Vec::new() },
        chat_template: None,
        special: SpecialTokens::default(),
        blocks: BlockContract::xxh3(block_size),
        layout: None,
        total_kv_blocks: 0,
        max_num_seqs: 0,
        max_num_batched_tokens: 0,
        kv_events: false,
        guided: false,
        limits_thinking: false,
        tool_parser: None,
        reasoning_parser: None,
        tasks: vec![Task::Generate],
        embedding_size: None,
        created_s: 0,
    }
}

/// All of them.
pub(crate) struct Roster {
    named: Mutex<BTreeMap<InstanceId, Named>>,
    out: Mutex<BTreeSet<InstanceId>>,
    /// Those that can be chosen, for the watch of the fleet.
    view: Arc<View>,
}

impl Default for Roster {
    fn default() -> Self {
        Self { named: Mutex::default(), out: Mutex::default(), view: View::new(MAX_CHANGES) }
    }
}

impl Roster {
    pub(crate) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view)
    }

    /// # Errors
    /// 409 for a worker that is known, 400 for what cannot be, 529 if there are too many.
    pub(super) fn add(&self, id: InstanceId, input: &Input, catalog: &Catalog) -> Result<Named> {
        let mut named = lock(&self.named);
        if named.contains_key(&id) || is_registered(catalog, id) {
            return Err(Error::client(Class::Conflict, format!("worker {} is known already", id.0)));
        }
        if named.len() >= MAX_WORKERS {
            return Err(Error::overloaded(format!(
                "{MAX_WORKERS} workers are named by hand, which is the limit"
            )));
        }
        self.put(&mut named, id, Named::default().updated(input)?, catalog)
    }

    /// # Errors
    /// 404 for a worker that nobody knows, 409 for one that describes itself, 400 for what cannot be.
    pub(super) fn update(&self, id: InstanceId, input: &Input, catalog: &Catalog) -> Result<Option<Named>> {
        let mut named = lock(&self.named);
        let registered = is_registered(catalog, id);
        let known = named.get(&id).cloned();
        if known.is_none() && !registered {
            return Err(unknown(id));
        }
        let describes = *input != Input { schedulable: input.schedulable, ..Input::default() };
        let updated = match known {
            Some(known) => Some(self.put(&mut named, id, known.updated(input)?, catalog)?),
            None if describes => return Err(registers_itself(id)),
            None => None,
        };
        drop(named);
        if let Some(schedulable) = input.schedulable {
            self.set_schedulable(id, schedulable)?;
        }
        Ok(updated)
    }

    fn put(
        &self,
        named: &mut BTreeMap<InstanceId, Named>,
        id: InstanceId,
        worker: Named,
        catalog: &Catalog,
    ) -> Result<Named> {
        let model = worker.model_name.as_ref().and_then(|name| catalog.get(name));
        // By itself, a worker named by hand binds nobody.
        let known = model.filter(|model| model.workers().iter().any(|it| it.instance.id != id));
        match worker.record(id, known.as_ref().map(|model| &*model.card))? {
            Some(record) => self.view.put(record),
            None => self.view.delete(id),
        }
        named.insert(id, worker.clone());
        Ok(worker)
    }

    fn set_schedulable(&self, id: InstanceId, schedulable: bool) -> Result<()> {
        let mut out = lock(&self.out);
        if schedulable {
            out.remove(&id);
        } else if out.len() >= MAX_WORKERS && !out.contains(&id) {
            return Err(Error::overloaded(format!(
                "{MAX_WORKERS} workers are taken out, which is the limit"
            )));
        } else {
            out.insert(id);
        }
        Ok(())
    }

    /// # Errors
    /// 404 for a worker that nobody knows, 409 for one that registers itself.
    pub(super) fn remove(&self, id: InstanceId, catalog: &Catalog) -> Result<()> {
        let mut named = lock(&self.named);
        if named.remove(&id).is_none() {
            return Err(if is_registered(catalog, id) { registers_itself(id) } else { unknown(id) });
        }
        self.view.delete(id);
        lock(&self.out).remove(&id);
        Ok(())
    }

    /// Workers that are to get nothing.
    pub(super) fn out(&self) -> Vec<InstanceId> {
        lock(&self.out).iter().copied().collect()
    }

    /// Those of which too little is known.
    pub(super) fn incomplete(&self) -> Vec<(InstanceId, Named)> {
        let named = lock(&self.named);
        let incomplete = named.iter().filter(|(_, worker)| !worker.missing().is_empty());
        incomplete.map(|(id, worker)| (*id, worker.clone())).collect()
    }
}

fn is_registered(catalog: &Catalog, id: InstanceId) -> bool {
    catalog.all().iter().any(|model| model.worker(id).is_some()) || catalog.refused().contains_key(&id)
}

fn unknown(id: InstanceId) -> Error {
    Error::not_found(format!("no worker {} (hexadecimal {id}) is known", id.0))
}

fn registers_itself(id: InstanceId) -> Error {
    let reason = format!(
        "worker {} registers and describes itself; {{\"schedulable\": false}} keeps requests away from it",
        id.0
    );
    Error::client(Class::Conflict, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(model: Option<&str>, endpoint: Option<&str>, block_size: Option<u32>) -> Input {
        Input {
            model_name: model.map(str::to_owned),
            endpoint: endpoint.map(str::to_owned),
            block_size,
            ..Input::default()
        }
    }

    #[test]
    fn a_worker_is_listed_once_all_that_is_needed_is_known_and_until_it_is_not() {
        let (roster, catalog) = (Roster::default(), Catalog::default());
        let id = InstanceId(7);
        let missing = |named: &Named| named.missing().len();
        assert_eq!(missing(&roster.add(id, &input(Some("m"), None, None), &catalog).unwrap()), 2);
        assert!(roster.view.list().is_empty());
        assert_eq!(roster.incomplete().len(), 1);
        let named = roster.update(id, &input(None, Some("http://a:1"), Some(16)), &catalog).unwrap();
        assert_eq!(missing(&named.unwrap()), 0);
        let record = roster.view.list().remove(0);
        assert_eq!((&*record.card.name, record.card.blocks.block_size), ("m", 16));
        assert_eq!(record.instance.transport.to_string(), "http://a:1");
        assert_eq!(roster.add(id, &input(None, None, None), &catalog).unwrap_err().class(), Class::Conflict);
        roster.remove(id, &catalog).unwrap();
        assert!(roster.view.list().is_empty() && roster.incomplete().is_empty());
        assert_eq!(roster.remove(id, &catalog).unwrap_err().class(), Class::NotFound);
        assert_eq!(roster.update(id, &Input::default(), &catalog).unwrap_err().class(), Class::NotFound);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name_and_changes_nothing() {
        let (roster, catalog) = (Roster::default(), Catalog::default());
        let ranks = Input { data_parallel_size: Some(2), ..Input::default() };
        for (body, field) in [(ranks, "data_parallel_size"), (input(None, None, Some(0)), "block_size")] {
            let error = roster.add(InstanceId(1), &body, &catalog).unwrap_err();
            assert!(error.message().starts_with(field), "{error}");
        }
        assert!(roster.incomplete().is_empty());
    }

    #[test]
    fn taking_out_is_undone_and_ends_with_the_worker() {
        let (roster, catalog) = (Roster::default(), Catalog::default());
        roster.add(InstanceId(1), &input(Some("m"), Some("a"), Some(4)), &catalog).unwrap();
        let set = |schedulable| Input { schedulable: Some(schedulable), ..Input::default() };
        roster.update(InstanceId(1), &set(false), &catalog).unwrap();
        assert_eq!(roster.out(), [InstanceId(1)]);
        roster.update(InstanceId(1), &set(true), &catalog).unwrap();
        assert!(roster.out().is_empty());
        roster.update(InstanceId(1), &set(false), &catalog).unwrap();
        roster.remove(InstanceId(1), &catalog).unwrap();
        assert!(roster.out().is_empty());
    }
}
