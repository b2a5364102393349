//! Keeps the catalog true: discovery and the event plane in, models and routers out.
//!
//! One task owns all changes, so there is no order of arrival that could leave the catalog wrong. Building a tokenizer
//! happens elsewhere, so a slow or broken model delays no other (R25).

use crate::catalog::{Catalog, Refused};
use crate::metrics::Metrics;
use crate::model::{Model, Text};
use dynamo_router::{Applied, check_contract};
use dynamo_runtime::CancellationToken;
use dynamo_runtime::bookings::{Peers, Reader};
use dynamo_runtime::discovery::{self, Discovery, View as Records, Watch};
use dynamo_runtime::events::{self, EventPlane, Position, Subscription};
use dynamo_types::{Error, InstanceId, KvEvent, KvEventBatch, ModelCard, ModelRecord, WorkerRank};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Models without any worker that are kept, with their built tokenizers: one whose only worker restarts answers 503 and
/// not 404 meanwhile, and is back at once.
const IDLE_MODELS: usize = 16;
/// Pause before a watch that ended is started again.
const WATCH_AGAIN: Duration = Duration::from_secs(1);
/// Workers without a record whose events were passed over. Beyond it a late record means a cold index, and nothing else.
const UNCLAIMED_WORKERS: usize = 4096;
/// What others placed is taken in by as many requests, and not many more block hashes, at a time.
const PEER_REQUESTS: usize = 1024;
const PEER_HASHES: usize = 256 << 10;
/// Ranks per worker; records do not name more yet.
const RANKS: u32 = 1;

/// What the task needs.
pub(crate) struct Watcher {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) discovery: Arc<dyn Discovery>,
    pub(crate) events: Arc<dyn EventPlane>,
    pub(crate) peers: Option<Peers>,
    /// Workers that are not in discovery.
    pub(crate) roster: Option<Arc<Records>>,
    pub(crate) router: dynamo_router::Config,
    pub(crate) seed: u64,
}

impl Watcher {
    /// Runs until it is dropped. `listed` is cancelled once the first full list is in.
    pub(crate) async fn run(self, listed: CancellationToken) {
        let mut view = View {
            subscription: self.events.subscribe(),
            peers: self.peers.as_ref().map(|peers| peers.heard().reader(None, None)),
            roster: self.roster.as_ref().map(|records| records.watch(None)),
            context: self,
            by_hand: FxHashSet::default(),
            owners: FxHashMap::default(),
            positions: FxHashMap::default(),
            unclaimed: FxHashSet::default(),
            idle: VecDeque::new(),
            builds: JoinSet::new(),
        };
        let mut watch = view.context.discovery.watch().await;
        loop {
            tokio::select! {
                biased;
                change = watch.next() => match change {
                    Some(change) => {
                        view.change(change);
                        listed.cancel();
                    }
                    None => {
                        tracing::warn!("discovery ended its watch; the last known view stays");
                        tokio::time::sleep(WATCH_AGAIN).await;
                        watch = view.context.discovery.watch().await;
                    }
                },
                Some(built) = view.builds.join_next() => {
                    if let Ok((model, text)) = built {
                        view.built(&model, text);
                    }
                },
                event = view.subscription.next() => match event {
                    Some(event) => {
                        view.event(event);
                        // In turns, so that neither holds up the other.
                        view.hear_peers();
                    }
                    None => {
                        tokio::time::sleep(WATCH_AGAIN).await;
                        view.resubscribe();
                    }
                },
                () = changed(view.peers.as_ref()) => view.hear_peers(),
                Some(change) = next(view.roster.as_mut()) => view.change_by_hand(change),
            }
        }
    }
}

type Built = (Arc<Model>, Result<Arc<Text>, Error>);

struct View {
    context: Watcher,
    subscription: Subscription,
    peers: Option<Reader>,
    roster: Option<Watch>,
    /// Workers that are known from there.
    by_hand: FxHashSet<InstanceId>,
    /// Which model each accepted worker serves.
    owners: FxHashMap<InstanceId, Arc<Model>>,
    /// How far each source has been applied.
    positions: FxHashMap<WorkerRank, Position>,
    /// Workers whose events came before their record.
    unclaimed: FxHashSet<InstanceId>,
    /// Models without workers, oldest first.
    idle: VecDeque<Arc<str>>,
    builds: JoinSet<Built>,
}

impl View {
    fn change(&mut self, change: discovery::Event) {
        match change {
            discovery::Event::List(records) => {
                let named: FxHashSet<InstanceId> = records
                    .iter()
                    .map(|record| record.instance.id)
                    .chain(self.by_hand.iter().copied())
                    .collect();
                let gone: Vec<InstanceId> =
                    self.owners.keys().copied().filter(|id| !named.contains(id)).collect();
                gone.into_iter().for_each(|id| self.delete(id));
                for id in self.context.catalog.refused().into_keys().filter(|id| !named.contains(id)) {
                    self.context.catalog.forgive(id);
                }
                // Draining ones last: a model is described by a worker that stays, if there is one.
                let (leaving, staying): (Vec<_>, Vec<_>) =
                    records.iter().partition(|record| !record.instance.takes_new());
                staying.into_iter().chain(leaving).for_each(|record| self.put(record));
            }
            discovery::Event::Put(record) => self.put(&record),
            discovery::Event::Delete(id) if self.by_hand.contains(&id) => {}
            discovery::Event::Delete(id) => self.delete(id),
        }
        // Workers whose events were passed over get a snapshot now.
        if self.owners.keys().any(|id| self.unclaimed.contains(id)) {
            self.unclaimed.retain(|id| !self.owners.contains_key(id));
            self.resubscribe();
        }
    }

    /// The same of the workers that were named by hand. Those that register themselves have the last word.
    fn change_by_hand(&mut self, change: discovery::Event) {
        match change {
            discovery::Event::List(records) => {
                let named: FxHashSet<InstanceId> = records.iter().map(|record| record.instance.id).collect();
                let gone: Vec<InstanceId> = self.by_hand.difference(&named).copied().collect();
                gone.into_iter().for_each(|id| self.delete_by_hand(id));
                records.into_iter().for_each(|record| self.put_by_hand(&record));
            }
            discovery::Event::Put(record) => self.put_by_hand(&record),
            discovery::Event::Delete(id) => self.delete_by_hand(id),
        }
    }

    fn put_by_hand(&mut self, record: &ModelRecord) {
        let id = record.instance.id;
        if !self.owners.contains_key(&id) || self.by_hand.contains(&id) {
            self.by_hand.insert(id);
            self.put(record);
        }
    }

    fn delete_by_hand(&mut self, id: InstanceId) {
        if self.by_hand.remove(&id) {
            self.delete(id);
        }
    }

    /// Refuses the workers named by hand of a model that others describe otherwise. False: it has workers of its own.
    fn yield_to(&mut self, model: &Model, newcomer: InstanceId) -> bool {
        let workers = model.workers();
        let others = || workers.iter().filter(|worker| worker.instance.id != newcomer);
        if self.by_hand.contains(&newcomer)
            || !others().all(|worker| self.by_hand.contains(&worker.instance.id))
        {
            return others().next().is_none();
        }
        for worker in others() {
            let card = Arc::clone(&worker.card);
            let record = ModelRecord { instance: worker.instance.clone(), card };
            self.refuse(&record, &differs("description", model.name()));
        }
        true
    }

    fn put(&mut self, record: &ModelRecord) {
        let id = record.instance.id;
        if self.owners.get(&id).is_some_and(|owner| owner.name() != &record.card.name) {
            self.delete(id);
        }
        let model = match self.context.catalog.get(&record.card.name) {
            Some(model) if model.name() == &record.card.name => {
                match fits(&model, record) {
                    Ok(()) => model,
                    // Nobody else serves the old description any more, or nobody who knows.
                    Err(_) if self.yield_to(&model, id) => {
                        self.delete(id);
                        self.create(&record.card)
                    }
                    Err(error) => return self.refuse(record, &error),
                }
            }
            _ => self.create(&record.card),
        };
        let known = model.worker(id);
        let is_new = known.is_none();
        let draining = record.instance.draining;
        if !record.instance.takes_new() {
            // Before anybody can see it: what is shown as not ready is not chosen.
            model.router.set_draining(id, true);
        }
        model.put_worker(record);
        if let Err(error) = model.router.upsert_worker(record, RANKS) {
            model.remove_worker(id);
            self.keep_if_idle(&model);
            return self.refuse(record, &error);
        }
        model.router.set_draining(id, !record.instance.takes_new());
        model.announce();
        self.context.catalog.forgive(id);
        self.idle.retain(|name| name != model.name());
        if is_new {
            tracing::info!(worker = %id, model = %model.name(), "worker joined");
        } else if draining && known.as_ref().is_some_and(|known| !known.instance.draining) {
            tracing::info!(worker = %id, model = %model.name(), "worker drains");
        }
        let fault = record.instance.fault.as_deref();
        let was = known.as_ref().and_then(|known| known.instance.fault.as_deref());
        match fault {
            Some(fault) if was.is_none() => {
                tracing::warn!(worker = %id, model = %model.name(), %fault, "worker not ready");
            }
            None if was.is_some() => {
                tracing::info!(worker = %id, model = %model.name(), "worker ready again");
            }
            _ => {}
        }
        self.owners.insert(id, model);
        if let Some(peers) = self.peers.as_ref().filter(|_| is_new) {
            peers.repeat(id);
        }
    }

    fn delete(&mut self, id: InstanceId) {
        self.context.catalog.forgive(id);
        self.positions.retain(|source, _| source.worker != id);
        self.unclaimed.remove(&id);
        let Some(model) = self.owners.remove(&id) else { return };
        model.remove_worker(id);
        tracing::info!(worker = %id, model = %model.name(), "worker left");
        self.keep_if_idle(&model);
    }

    /// A model without workers stays for a while.
    fn keep_if_idle(&mut self, model: &Model) {
        if model.has_workers() || self.idle.contains(model.name()) {
            return;
        }
        if model.is_textless() {
            self.context.catalog.remove(model.name());
            return;
        }
        self.idle.push_back(Arc::clone(model.name()));
        if self.idle.len() > IDLE_MODELS
            && let Some(oldest) = self.idle.pop_front()
        {
            self.context.catalog.remove(&oldest);
        }
    }

    fn refuse(&mut self, record: &ModelRecord, error: &Error) {
        let id = record.instance.id;
        self.delete(id);
        tracing::error!(worker = %id, model = %record.card.name, %error, "worker refused");
        let refused = Refused { model: Arc::clone(&record.card.name), reason: error.message().to_owned() };
        self.context.catalog.refuse(id, refused);
    }

    /// A model that was not known, with its text parts on their way.
    fn create(&mut self, card: &Arc<ModelCard>) -> Arc<Model> {
        let placements = self.context.peers.as_ref().map(Peers::placements);
        let router = self.context.router.clone();
        let model = Arc::new(Model::new(Arc::clone(card), router, self.context.seed, placements));
        self.context.catalog.insert(&model);
        if model.is_textless() {
            let reason =
                "its workers were named by hand, without a tokenizer: prompts have to come as tokens";
            model.set_textless(Error::unavailable(reason));
            return model;
        }
        let twin = self.context.catalog.all().into_iter().find_map(|other| {
            let text = other.built_text()?;
            (other.card.tokenizer == card.tokenizer).then(|| Arc::clone(&text.tokenizer))
        });
        let building = Arc::clone(&model);
        self.builds.spawn_blocking(move || {
            let text = unharmed(|| Text::build(&building.card, twin)).map(Arc::new);
            (building, text)
        });
        model
    }

    fn built(&self, model: &Arc<Model>, text: Result<Arc<Text>, Error>) {
        let good = text.is_ok();
        model.set_text(text);
        if good {
            tracing::info!(model = %model.name(), "model can be asked for");
        }
    }

    fn event(&mut self, event: events::Event) {
        match event {
            events::Event::Load(source, load) => {
                if let Some(model) = self.owners.get(&source.worker) {
                    model.router.update_load(source, load);
                    if let Some(worker) = model.worker(source.worker) {
                        worker.seen(Instant::now());
                    }
                }
            }
            events::Event::Snapshot(batch) | events::Event::Kv(batch) => self.batch(&batch),
        }
    }

    fn batch(&mut self, batch: &KvEventBatch) {
        let Some(model) = self.owners.get(&batch.source.worker) else {
            if self.unclaimed.len() < UNCLAIMED_WORKERS {
                self.unclaimed.insert(batch.source.worker);
            }
            return;
        };
        let applied = model.router.apply_events(batch);
        if let Some(gap) = applied.gap {
            tracing::warn!(source = %batch.source, ?gap, "KV events are missing; asking for a snapshot");
            self.positions.remove(&batch.source);
            self.resubscribe();
            return;
        }
        let position = Position { epoch: batch.epoch, sequence: batch.sequence };
        self.positions.insert(batch.source, position);
        if let Some(worker) = model.worker(batch.source.worker) {
            worker.seen(Instant::now());
        }
        count(&self.context.metrics, batch, &applied);
    }

    /// Puts on the books what others placed. What is placed on workers that are not known is said again once they are.
    fn hear_peers(&self) {
        let Some(peers) = &self.peers else { return };
        let news = peers.take(PEER_HASHES, PEER_REQUESTS);
        let router = |target: WorkerRank| self.owners.get(&target.worker).map(|model| &model.router);
        for (number, placement) in &news.put {
            if let Some(router) = router(placement.target) {
                router.peer_placed(*number, placement);
            }
        }
        for change in &news.changed {
            if let Some(router) = router(change.target) {
                router.peer_changed(change.number, change.prefill_tokens, change.output_millis);
            }
        }
        for (number, target) in &news.ended {
            if let Some(router) = router(*target) {
                router.peer_ended(*number);
            }
        }
    }

    /// Goes on from what has been applied; sources without a position send a snapshot.
    fn resubscribe(&mut self) {
        let positions: Vec<_> =
            self.positions.iter().map(|(source, position)| (*source, *position)).collect();
        self.subscription = self.context.events.subscribe_from(&positions);
    }
}

/// What changed of the workers named by hand.
async fn next(roster: Option<&mut Watch>) -> Option<discovery::Event> {
    match roster {
        Some(roster) => roster.next().await,
        None => std::future::pending().await,
    }
}

/// Waits until others placed something.
async fn changed(peers: Option<&Reader>) {
    match peers {
        Some(peers) => peers.changed().await,
        None => std::future::pending().await,
    }
}

/// Runs a build in which a fault of a library may panic: what a card describes comes from outside, and a model that stays
/// "loading" for ever tells nobody why.
fn unharmed<T>(build: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    // Nothing of a build that broke off is used afterwards.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(build)).unwrap_or_else(|panic| {
        let words =
            panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(Error::internal(format!(
            "building the tokenizer broke off: {}",
            words.unwrap_or("no reason given")
        )))
    })
}

/// Blocks by outcome; the event type of a batch is that of its first event of a kind.
fn count(metrics: &Metrics, batch: &KvEventBatch, applied: &Applied) {
    let mut kinds = [0u64; 3];
    for event in &batch.events {
        match event {
            KvEvent::Stored { .. } => kinds[0] += 1,
            KvEvent::Removed { .. } => kinds[1] += 1,
            KvEvent::Cleared => kinds[2] += 1,
        }
    }
    let add = |status: &str, kind: &str, number: u64| {
        if number > 0 {
            metrics.kv_events.with_label_values(&[status, kind]).inc_by(number);
        }
    };
    if !applied.duplicate && !applied.unknown_source {
        add("ok", "stored", kinds[0]);
        add("ok", "removed", kinds[1]);
        add("ok", "cleared", kinds[2]);
    }
    add("parent_block_not_found", "stored", u64::from(applied.parent_missing));
    add("block_not_found", "removed", u64::from(applied.block_missing));
    add("invalid_block", "stored", u64::from(applied.over_limit));
}

/// May it serve next to the model's other workers?
fn fits(model: &Model, record: &ModelRecord) -> Result<(), Error> {
    compare(&model.card, &record.card)?;
    // The model's own card may be that of a worker without any.
    let others = model.workers();
    let others = others.iter().filter(|worker| worker.instance.id != record.instance.id);
    let sizes = others.filter_map(|worker| worker.card.embedding_size.zip(record.card.embedding_size));
    match sizes.into_iter().find(|(known, new)| known != new) {
        Some(_) => Err(differs("embedding_size", model.name())),
        None => Ok(()),
    }
}

/// May a worker with card `new` serve next to those with card `known`? Whatever changes the answer must be equal.
fn compare(known: &Arc<ModelCard>, new: &Arc<ModelCard>) -> Result<(), Error> {
    if Arc::ptr_eq(known, new) {
        return Ok(());
    }
    check_contract(known, new)?;
    let field = if known.tokenizer != new.tokenizer {
        "tokenizer"
    } else if known.chat_template != new.chat_template {
        "chat_template"
    } else if known.special != new.special {
        "special"
    } else if known.vocab_size != new.vocab_size {
        "vocab_size"
    } else if known.context_length != new.context_length {
        "context_length"
    } else if known.embedding_size.zip(new.embedding_size).is_some_and(|(known, new)| known != new) {
        "embedding_size"
    } else {
        return Ok(());
    };
    Err(differs(field, &known.name))
}

fn differs(field: &'static str, model: &str) -> Error {
    Error::invalid(format!(
        "worker refused: its {field} differs from that of the workers that serve the model `{model}`"
    ))
    .with_param(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_that_panics_is_a_refusal_with_its_reason() {
        let error = unharmed::<()>(|| panic!("index 7 of 3")).unwrap_err();
        assert_eq!(error.class(), dynamo_types::Class::Internal);
        assert!(
            error.detail().is_some_and(|detail| detail.ends_with("broke off: index 7 of 3")),
            "{error:?}"
        );
        assert!(unharmed::<()>(|| panic!("{}", "by words")).is_err());
        assert_eq!(unharmed(|| Ok(1)).unwrap(), 1);
    }
}
