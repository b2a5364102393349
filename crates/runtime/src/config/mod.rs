//! Typed configuration in layers: defaults, then a TOML file, then the environment, then flags (DESIGN 5).
//!
//! A role's configuration is one struct; its serialised default is the list of keys that exist, in dotted form
//! (`frontend.port`). Every layer sets keys of that list and nothing else, one at a time, so a value that does not
//! fit is reported with its key, what was expected, what was found and where it came from.

mod error;
mod schema;
mod tree;

pub use dynamo_types::nearest::nearest;
pub use error::Error;
pub use schema::{Key, Schema};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::path::Path;

/// Where the layers come from.
pub struct Sources<'a> {
    /// Name and content of the file, if one is used.
    pub file: Option<(String, String)>,
    /// Looks up a variable. An empty one counts as not set.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// Names of all variables, to warn about `DYN_*` ones that mean nothing here.
    pub env_names: Vec<String>,
    /// Dotted keys and values, the last one wins.
    pub flags: Vec<(String, String)>,
}

impl Sources<'static> {
    /// The file at `path`, this process's environment, and these flags.
    pub fn process(path: Option<&Path>, flags: Vec<(String, String)>) -> Result<Self, Error> {
        let file = match path {
            None => None,
            Some(path) => {
                let name = path.display().to_string();
                let text = std::fs::read_to_string(path)
                    .map_err(|error| Error::Read { file: name.clone(), reason: error.to_string() })?;
                Some((name, text))
            }
        };
        let env_names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
        Ok(Self { file, env: &|name| std::env::var(name).ok(), env_names, flags })
    }
}

/// Where a value came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    #[default]
    Default,
    File(String),
    Env(String),
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(name) => write!(f, "file {name}"),
            Self::Env(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// One effective value.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub key: String,
    /// `Null`: not set.
    pub value: Value,
    pub origin: Origin,
}

/// A configuration, and how it came about.
#[derive(Clone, Debug)]
pub struct Loaded<T> {
    pub value: T,
    rows: Vec<Row>,
    /// What the user may have meant otherwise: variables that start with `DYN_` and mean nothing here.
    pub warnings: Vec<String>,
}

impl<T> Loaded<T> {
    /// Every key with its effective value and origin, in the order of the struct.
    pub fn effective(&self) -> &[Row] {
        &self.rows
    }

    /// The same as text for `--print-config`: a TOML file that would give this configuration, origins as comments.
    pub fn print(&self) -> String {
        let lines: Vec<(String, &Origin)> = self
            .rows
            .iter()
            .map(|row| match &row.value {
                Value::Null => (format!("# {} is not set", row.key), &row.origin),
                value => (format!("{} = {}", row.key, tree::toml_text(value)), &row.origin),
            })
            .collect();
        let width = lines.iter().map(|(line, _)| line.chars().count()).max().unwrap_or(0);
        lines.iter().fold(String::new(), |mut text, (line, origin)| {
            let _ = writeln!(text, "{line:width$}  # {origin}");
            text
        })
    }
}

/// Loads a configuration.
pub fn load<T>(sources: &Sources<'_>, schema: &Schema) -> Result<Loaded<T>, Error>
where
    T: Default + Serialize + DeserializeOwned,
{
    let mut loader = Loader::<T>::new(schema)?;
    if let Some((name, text)) = &sources.file {
        let origin = Origin::File(name.clone());
        for (key, value) in tree::parse_file(name, text, &loader.defaults)? {
            loader.set(&key, &[value], &origin)?;
        }
    }
    for key in loader.defaults.keys().cloned().collect::<Vec<_>>() {
        let found = schema.env_of(&key).into_iter().find_map(|(name, factor)| {
            (sources.env)(&name).filter(|text| !text.is_empty()).map(|text| (name, text, factor))
        });
        if let Some((name, text, factor)) = found {
            loader.set_text(&key, &text, factor, &Origin::Env(name))?;
        }
    }
    for (key, text) in &sources.flags {
        let flag = schema.flag_of(key).map_or_else(|| format!("--set {key}"), Into::into);
        loader.set_text(key, text, 1, &Origin::Flag(flag))?;
    }
    let warnings = schema.unknown_env(&loader.defaults, &sources.env_names);
    loader.finish(warnings)
}

/// The keys of a configuration with defaults, variables, flags and meaning, as a Markdown table.
pub fn reference<T>(schema: &Schema) -> Result<String, Error>
where
    T: Default + Serialize + DeserializeOwned,
{
    let loader = Loader::<T>::new(schema)?;
    let mut text = String::from("| Key | Default | Environment | Flag | Meaning |\n|---|---|---|---|---|\n");
    for (key, value) in &loader.defaults.0 {
        let default = match value {
            Value::Null => "not set".into(),
            value => format!("`{}`", tree::toml_text(value)),
        };
        let env: Vec<String> = schema.env_of(key).into_iter().map(|(name, _)| format!("`{name}`")).collect();
        let flag = schema.flag_of(key).map(|flag| format!("`{flag}`")).unwrap_or_default();
        let help = schema.help_of(key).replace('|', "\\|");
        let _ = writeln!(text, "| `{key}` | {default} | {} | {flag} | {help} |", env.join(", "));
    }
    Ok(text)
}

/// A valid configuration at every moment: each set replaces one key, and is taken back if the whole no longer fits.
struct Loader<T> {
    defaults: tree::Leaves,
    tree: Value,
    origins: BTreeMap<String, Origin>,
    value: T,
}

impl<T> Loader<T>
where
    T: Default + Serialize + DeserializeOwned,
{
    fn new(schema: &Schema) -> Result<Self, Error> {
        let value = T::default();
        let tree = serde_json::to_value(&value).map_err(|error| Error::Schema(error.to_string()))?;
        let defaults = tree::Leaves::of(&tree);
        schema.check(&defaults)?;
        Ok(Self { defaults, tree, origins: BTreeMap::new(), value })
    }

    fn set_text(&mut self, key: &str, text: &str, factor: u64, origin: &Origin) -> Result<(), Error> {
        let default = self.default_of(key, origin)?;
        let candidates = tree::candidates(&default, text, factor);
        self.set(key, &candidates, origin)
    }

    fn default_of(&self, key: &str, origin: &Origin) -> Result<Value, Error> {
        self.defaults.get(key).cloned().ok_or_else(|| Error::Unknown {
            key: key.into(),
            origin: origin.clone(),
            nearest: nearest(key, self.defaults.keys().map(String::as_str)).map(Into::into),
        })
    }

    /// Sets the first candidate that fits.
    fn set(&mut self, key: &str, candidates: &[Value], origin: &Origin) -> Result<(), Error> {
        self.default_of(key, origin)?;
        let before = tree::replace(&mut self.tree, key, Value::Null);
        let mut reason = String::new();
        for candidate in candidates {
            tree::replace(&mut self.tree, key, candidate.clone());
            match T::deserialize(&self.tree) {
                Ok(value) => {
                    self.value = value;
                    self.origins.insert(key.into(), origin.clone());
                    return Ok(());
                }
                Err(error) => reason = error.to_string(),
            }
        }
        tree::replace(&mut self.tree, key, before);
        let found = candidates.last().cloned().unwrap_or_default();
        Err(Error::value(key, origin, &found, &reason))
    }

    fn finish(self, warnings: Vec<String>) -> Result<Loaded<T>, Error> {
        // Serialised anew, so that what is shown is what is used.
        let tree = serde_json::to_value(&self.value).map_err(|error| Error::Schema(error.to_string()))?;
        let rows = self
            .defaults
            .keys()
            .map(|key| Row {
                key: key.clone(),
                value: tree::get(&tree, key).cloned().unwrap_or_default(),
                origin: self.origins.get(key).cloned().unwrap_or_default(),
            })
            .collect();
        Ok(Loaded { value: self.value, rows, warnings })
    }
}

#[cfg(test)]
mod tests;
