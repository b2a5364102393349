//! What is said about keys beyond their type: meaning, variables, flags.

use super::tree::Leaves;
use super::{Error, nearest};

/// One key's description.
#[derive(Clone, Debug, Default)]
pub struct Key {
    key: &'static str,
    help: &'static str,
    flag: Option<&'static str>,
    /// Known names besides the derived one, with the factor that turns their unit into the key's.
    env: Vec<(&'static str, u64)>,
}

impl Key {
    pub fn new(key: &'static str, help: &'static str) -> Self {
        Self { key, help, ..Self::default() }
    }

    /// The flag that sets it, as the user types it.
    #[must_use]
    pub fn flag(mut self, flag: &'static str) -> Self {
        self.flag = Some(flag);
        self
    }

    /// A variable that sets it besides the derived one.
    #[must_use]
    pub fn env(self, name: &'static str) -> Self {
        self.scaled_env(name, 1)
    }

    /// A variable in another unit: its value times `factor` is the key's.
    #[must_use]
    pub fn scaled_env(mut self, name: &'static str, factor: u64) -> Self {
        self.env.push((name, factor));
        self
    }
}

/// The described keys of a configuration. Keys that are not described exist all the same.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    keys: Vec<Key>,
    /// Variables that are read elsewhere; a trailing `*` stands for any ending.
    other_env: Vec<&'static str>,
}

impl Schema {
    pub fn new(keys: impl IntoIterator<Item = Key>) -> Self {
        Self { keys: keys.into_iter().collect(), other_env: Vec::new() }
    }

    /// `DYN_*` variables that are read elsewhere and so are known; a trailing `*` stands for any ending.
    #[must_use]
    pub fn other_env(mut self, names: &[&'static str]) -> Self {
        self.other_env.extend_from_slice(names);
        self
    }

    fn find(&self, key: &str) -> Option<&Key> {
        self.keys.iter().find(|known| known.key == key)
    }

    pub(super) fn help_of(&self, key: &str) -> &'static str {
        self.find(key).map_or("", |known| known.help)
    }

    pub(super) fn flag_of(&self, key: &str) -> Option<&'static str> {
        self.find(key).and_then(|known| known.flag)
    }

    /// Variables of a key, in the order in which they win: `DYN_` and the key in capitals, then the others known.
    pub(super) fn env_of(&self, key: &str) -> Vec<(String, u64)> {
        let mut names = vec![(derived_env(key), 1)];
        for (name, factor) in self.find(key).map(|known| &*known.env).unwrap_or_default() {
            if names.iter().all(|(known, _)| known != name) {
                names.push(((*name).into(), *factor));
            }
        }
        names
    }

    pub(super) fn check(&self, leaves: &Leaves) -> Result<(), Error> {
        match self.keys.iter().find(|key| leaves.get(key.key).is_none()) {
            Some(key) => Err(Error::Schema(format!("described key {:?} does not exist", key.key))),
            None => Ok(()),
        }
    }

    /// A warning for each `DYN_*` variable that means nothing here.
    pub(super) fn unknown_env(&self, leaves: &Leaves, names: &[String]) -> Vec<String> {
        let known: Vec<String> =
            leaves.keys().flat_map(|key| self.env_of(key)).map(|(name, _)| name).collect();
        let elsewhere = |name: &str| {
            self.other_env.iter().any(|other| match other.strip_suffix('*') {
                Some(prefix) => name.starts_with(prefix),
                None => name == *other,
            })
        };
        let mut unknown: Vec<&String> = names
            .iter()
            .filter(|name| name.starts_with("DYN_") && !known.contains(name) && !elsewhere(name))
            .collect();
        unknown.sort_unstable();
        unknown
            .into_iter()
            .map(|name| match nearest(name, known.iter().map(String::as_str)) {
                Some(near) => {
                    format!("{name} is set and means nothing here; the nearest known name is {near}")
                }
                None => format!("{name} is set and means nothing here"),
            })
            .collect()
    }
}

fn derived_env(key: &str) -> String {
    format!("DYN_{}", key.replace(['.', '-'], "_").to_uppercase())
}
