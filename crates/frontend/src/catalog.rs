//! Which models can be asked for, by name and alias.

use crate::model::{Model, State};
use dynamo_router::Thresholds;
use dynamo_runtime::sync::{read, write};
use dynamo_types::{Error, InstanceId, Result};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

/// A worker that may not serve, and why (R35).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) model: Arc<str>,
    pub(crate) reason: String,
}

/// The models known at this moment. Written by the watch task only.
#[derive(Default)]
pub(crate) struct Catalog {
    named: RwLock<Named>,
    refused: RwLock<BTreeMap<InstanceId, Refused>>,
    /// What models start with.
    thresholds: Thresholds,
    /// Limits set since, by served name: they outlive their model's workers.
    set_thresholds: RwLock<BTreeMap<Arc<str>, Thresholds>>,
}

/// Names with limits of their own that nobody serves at the moment: they are the client's. Those of models that are
/// served are bounded by their number.
const MAX_UNSERVED_THRESHOLDS: usize = 1024;

#[derive(Default)]
struct Named {
    models: BTreeMap<Arc<str>, Arc<Model>>,
    /// Alias to served name.
    aliases: FxHashMap<Arc<str>, Arc<str>>,
}

impl Named {
    fn remove(&mut self, name: &str) {
        self.models.remove(name);
        self.aliases.retain(|_, primary| &**primary != name);
    }
}

impl Catalog {
    pub(crate) fn new(thresholds: Thresholds) -> Self {
        Self { thresholds, ..Self::default() }
    }

    /// By served name or alias.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Model>> {
        let named = read(&self.named);
        let found = named
            .models
            .get(name)
            .or_else(|| named.aliases.get(name).and_then(|name| named.models.get(name)));
        found.cloned()
    }

    /// By served name or alias.
    ///
    /// # Errors
    /// 404 that names what was asked for.
    pub(crate) fn find(&self, name: &str) -> Result<Arc<Model>> {
        self.get(name).ok_or_else(|| {
            Error::not_found(format!("The model `{name}` does not exist"))
                .with_param("model")
                .with_code("model_not_found")
        })
    }

    /// Every known model, by name.
    pub(crate) fn all(&self) -> Vec<Arc<Model>> {
        read(&self.named).models.values().cloned().collect()
    }

    /// The models that can be used now, by name (R28).
    pub(crate) fn ready(&self) -> Vec<Arc<Model>> {
        self.all().into_iter().filter(|model| model.state() == State::Ready).collect()
    }

    pub(crate) fn refused(&self) -> BTreeMap<InstanceId, Refused> {
        read(&self.refused).clone()
    }

    /// Takes the place of a model of the same name.
    pub(crate) fn insert(&self, model: &Arc<Model>) {
        let mut named = write(&self.named);
        named.remove(model.name());
        for alias in &model.card.aliases {
            named.aliases.insert(Arc::from(alias.as_str()), Arc::clone(model.name()));
        }
        named.models.insert(Arc::clone(model.name()), Arc::clone(model));
        let is_alias = |alias: &&str| !named.models.contains_key(*alias);
        let aliases: Vec<&str> = model.card.aliases.iter().map(String::as_str).filter(is_alias).collect();
        drop(named);
        self.apply_thresholds(model, &aliases);
    }

    /// What was set for a model before it came, under whatever name, holds from now on under its own.
    fn apply_thresholds(&self, model: &Model, aliases: &[&str]) {
        let mut set = write(&self.set_thresholds);
        for alias in aliases {
            if let Some(thresholds) = set.remove(*alias) {
                set.entry(Arc::clone(model.name())).or_insert(thresholds);
            }
        }
        if let Some(thresholds) = set.get(model.name()) {
            model.router.set_thresholds(*thresholds);
        }
    }

    /// Every model that is known or has limits of its own, by name, with what holds for it.
    pub(crate) fn all_thresholds(&self) -> BTreeMap<Arc<str>, Thresholds> {
        let mut rows = read(&self.set_thresholds).clone();
        rows.extend(self.all().iter().map(|model| (Arc::clone(model.name()), model.router.thresholds())));
        rows
    }

    /// Sets what `newer` names, for a model by name or alias, served or not; answers with its served name and what holds.
    ///
    /// # Errors
    /// 400 when too many names that nobody serves have limits of their own.
    pub(crate) fn update_thresholds(&self, name: &str, newer: Thresholds) -> Result<(Arc<str>, Thresholds)> {
        // First, so that a model which takes another's place meanwhile finds what is set here.
        let mut set = write(&self.set_thresholds);
        let model = self.get(name);
        let name = model.as_ref().map_or_else(|| Arc::from(name), |model| Arc::clone(model.name()));
        let thresholds = set.get(&name).copied().unwrap_or(self.thresholds).updated(newer);
        if newer.is_empty() {
            return Ok((name, thresholds));
        }
        if model.is_none() && !set.contains_key(&name) {
            let named = read(&self.named);
            if set.keys().filter(|name| !named.models.contains_key(*name)).count() >= MAX_UNSERVED_THRESHOLDS
            {
                return Err(Error::invalid(format!(
                    "{MAX_UNSERVED_THRESHOLDS} models that are not served have limits already, the most there may be"
                )));
            }
        }
        set.insert(Arc::clone(&name), thresholds);
        // Under the lock, so that of two orders the later one holds.
        if let Some(model) = model {
            model.router.set_thresholds(thresholds);
        }
        Ok((name, thresholds))
    }

    pub(crate) fn remove(&self, name: &str) {
        write(&self.named).remove(name);
    }

    pub(crate) fn refuse(&self, worker: InstanceId, refused: Refused) {
        write(&self.refused).insert(worker, refused);
    }

    pub(crate) fn forgive(&self, worker: InstanceId) {
        write(&self.refused).remove(&worker);
    }
}
