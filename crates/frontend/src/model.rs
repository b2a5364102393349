//! A served model: how its text is made and read, who runs it, and whether it can be used now.

use crate::selection::BY_HAND;
use dynamo_router::Router;
use dynamo_runtime::sync::{read, write};
use dynamo_text::parsers::{self, Splitter};
use dynamo_text::{Template, Tokenizer};
use dynamo_types::{Error, Instance, InstanceId, ModelCard, ModelRecord, Placements, Result, Task};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

/// Shortest wait suggested to a client that found a model without workers.
const RETRY_AFTER_S: u32 = 1;

/// What is built from a card, off the event loop. Shared by models whose cards agree on it.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// The card's template, if there is one; an error disables chat for this model and nothing else (R12).
    template: Option<Result<Template>>,
}

impl Text {
    /// Compiles what the card describes. Slow (a tokenizer of 50,000 entries takes tens of milliseconds and more).
    ///
    /// # Errors
    /// The tokenizer is broken, or a parser is not known here: nothing can be served then.
    pub(crate) fn build(card: &ModelCard, shared: Option<Arc<Tokenizer>>) -> Result<Self> {
        let (reasoning, tool) = (card.reasoning_parser.as_deref(), card.tool_parser.as_deref());
        if let Err(error) = Splitter::new(reasoning, tool, &parsers::Options::default()) {
            return Err(Error::internal(error.to_string()));
        }
        let tokenizer = match shared {
            Some(tokenizer) => tokenizer,
            None => Arc::new(Tokenizer::from_spec(&card.tokenizer)?),
        };
        let template = card.chat_template.as_ref().map(|template| Template::compile(template, &card.special));
        if let Some(Err(error)) = &template {
            tracing::error!(model = %card.name, %error, "the chat template is broken; chat is disabled for this model");
        }
        Ok(Self { tokenizer, template })
    }
}

/// A worker of a model.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) instance: Instance,
    /// What it registered. It may do other tasks than the model's other workers.
    pub(crate) card: Arc<ModelCard>,
    born: Instant,
    /// Milliseconds after `born` at which it last gave a sign of life.
    seen_ms: AtomicU64,
}

impl Worker {
    fn new(instance: Instance, card: Arc<ModelCard>) -> Self {
        Self { instance, card, born: Instant::now(), seen_ms: AtomicU64::new(0) }
    }

    /// It did something, for whomever.
    pub(crate) fn seen(&self, now: Instant) {
        self.seen_ms.store((now - self.born).as_millis() as u64, Ordering::Relaxed);
    }

    /// May it be given something new to do?
    pub(crate) fn takes(&self, task: Task) -> bool {
        self.instance.takes_new() && self.card.offers(task)
    }

    /// How long ago that was.
    pub(crate) fn quiet_for(&self, now: Instant) -> Duration {
        (now - self.born).saturating_sub(Duration::from_millis(self.seen_ms.load(Ordering::Relaxed)))
    }
}

/// May a model be used now?
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    /// Listed and routable (R28).
    Ready,
    /// Its text parts are being built.
    Loading,
    /// Its text parts cannot be built.
    Broken(Error),
    /// Nobody serves it at the moment, or all who do are draining or ill.
    NoWorkers,
}

/// Is a task done for a model?
#[derive(Debug)]
pub(crate) enum Offer {
    /// By a worker with this card.
    Now(Arc<ModelCard>),
    /// All who do it are leaving.
    Later,
    Never,
}

/// A model of the fleet, from its first worker on.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) card: Arc<ModelCard>,
    pub(crate) router: Router,
    /// The router looks at prefixes, so prompts have to be hashed.
    pub(crate) by_prefix: bool,
    text: OnceLock<Result<Arc<Text>>>,
    workers: RwLock<FxHashMap<InstanceId, Arc<Worker>>>,
    joined: Notify,
}

impl Model {
    /// `placements` is told what the router books.
    pub(crate) fn new(
        card: Arc<ModelCard>,
        config: dynamo_router::Config,
        seed: u64,
        placements: Option<Arc<dyn Placements>>,
    ) -> Self {
        let by_prefix = config.mode == dynamo_router::Mode::Kv;
        Self {
            card,
            router: Router::with_peers(config, seed, placements),
            by_prefix,
            text: OnceLock::new(),
            workers: RwLock::default(),
            joined: Notify::new(),
        }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.card.name
    }

    /// Called once, when the text parts are built or have failed.
    pub(crate) fn set_text(&self, text: Result<Arc<Text>>) {
        if let Err(error) = &text {
            tracing::error!(model = %self.name(), %error, "the model cannot be served: what its card describes cannot be built");
        }
        // A second call would mean that two builds ran for one model; the first result stands.
        let _ = self.text.set(text);
    }

    /// Nothing is known of its texts, for all its workers were named by hand.
    pub(crate) fn is_textless(&self) -> bool {
        &*self.card.architecture == BY_HAND
    }

    /// Called instead of [`Model::set_text`] for a model that has none.
    pub(crate) fn set_textless(&self, reason: Error) {
        let _ = self.text.set(Err(reason));
    }

    pub(crate) fn built_text(&self) -> Option<&Arc<Text>> {
        self.text.get().and_then(|text| text.as_ref().ok())
    }

    /// A new worker, or a new state of one. Known to us before the router may choose it.
    pub(crate) fn put_worker(&self, record: &ModelRecord) {
        let mut workers = write(&self.workers);
        let same = |worker: &Arc<Worker>| worker.instance == record.instance && worker.card == record.card;
        if !workers.get(&record.instance.id).is_some_and(same) {
            let worker = Worker::new(record.instance.clone(), Arc::clone(&record.card));
            workers.insert(record.instance.id, Arc::new(worker));
        }
    }

    /// The router may choose a worker that it could not choose before.
    pub(crate) fn announce(&self) {
        self.joined.notify_waiters();
    }

    /// Completes with the next [`Model::announce`] after this call.
    pub(crate) fn joined(&self) -> Notified<'_> {
        self.joined.notified()
    }

    /// Who does this: the worker that is pinned, or any.
    pub(crate) fn offering(&self, task: Task, pinned: Option<InstanceId>) -> Offer {
        let workers = read(&self.workers);
        let asked = |worker: &&Arc<Worker>| pinned.is_none_or(|id| id == worker.instance.id);
        let mut offer = Offer::Never;
        for worker in workers.values().filter(asked).filter(|worker| worker.card.offers(task)) {
            if pinned.is_some() || worker.instance.takes_new() {
                return Offer::Now(Arc::clone(&worker.card));
            }
            offer = Offer::Later;
        }
        offer
    }

    /// Workers that must not be asked for this.
    pub(crate) fn unable(&self, task: Task) -> Vec<InstanceId> {
        let workers = read(&self.workers);
        let unable = workers.values().filter(|worker| !worker.card.offers(task));
        unable.map(|worker| worker.instance.id).collect()
    }

    pub(crate) fn remove_worker(&self, id: InstanceId) {
        self.router.remove_worker(id);
        write(&self.workers).remove(&id);
    }

    pub(crate) fn worker(&self, id: InstanceId) -> Option<Arc<Worker>> {
        read(&self.workers).get(&id).cloned()
    }

    /// All workers, by id.
    pub(crate) fn workers(&self) -> Vec<Arc<Worker>> {
        let mut workers: Vec<_> = read(&self.workers).values().cloned().collect();
        workers.sort_unstable_by_key(|worker| worker.instance.id);
        workers
    }

    pub(crate) fn has_workers(&self) -> bool {
        !read(&self.workers).is_empty()
    }

    pub(crate) fn state(&self) -> State {
        match self.text.get() {
            None => State::Loading,
            Some(Err(error)) => State::Broken(error.clone()),
            Some(Ok(_)) if read(&self.workers).values().any(|worker| worker.instance.takes_new()) => {
                State::Ready
            }
            Some(Ok(_)) => State::NoWorkers,
        }
    }

    /// The text parts, if the model can be used now.
    ///
    /// # Errors
    /// 503 with the reason otherwise.
    pub(crate) fn usable(&self) -> Result<&Arc<Text>> {
        let reason = match (self.state(), self.built_text()) {
            (State::Ready, Some(text)) => return Ok(text),
            (State::Loading, _) => "is being loaded".to_owned(),
            (State::Broken(error), _) => format!("cannot be served: {error}"),
            _ => return Err(self.deserted()),
        };
        Err(self.not_ready(&reason))
    }

    /// 503: nobody who could takes requests now.
    pub(crate) fn deserted(&self) -> Error {
        self.not_ready("has no worker that could take a request")
    }

    fn not_ready(&self, reason: &str) -> Error {
        Error::unavailable(format!("The model `{}` {reason}; try again shortly", self.name()))
            .with_retry_after_s(RETRY_AFTER_S)
            .with_code("model_not_ready")
    }

    /// The chat template.
    ///
    /// # Errors
    /// 400 for a model without one, 500 with the template's own fault for a broken one (R12).
    pub(crate) fn template<'a>(&self, text: &'a Text) -> Result<&'a Template> {
        match &text.template {
            Some(Ok(template)) => Ok(template),
            Some(Err(error)) => Err(Error::engine(format!(
                "chat is disabled for the model `{}`: its chat template is broken: {error}",
                self.name()
            ))
            .with_code("chat_template_broken")),
            None => Err(Error::invalid(format!(
                "The model `{}` has no chat template; use /v1/completions",
                self.name()
            ))
            .with_param("model")
            .with_code("no_chat_template")),
        }
    }
}
