//! Which models can be asked for, by name and alias.

use crate::model::{Model, State};
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
}

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
    pub(crate) fn insert(&self, model: Arc<Model>) {
        let mut named = write(&self.named);
        named.remove(model.name());
        for alias in &model.card.aliases {
            named.aliases.insert(Arc::from(alias.as_str()), Arc::clone(model.name()));
        }
        named.models.insert(Arc::clone(model.name()), model);
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
