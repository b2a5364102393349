//! Configuration as a tree of values: dotted keys, the file's keys, texts that become values.

use super::{Error, Origin, nearest};
use serde_json::{Map, Value};

/// The keys that exist, with their defaults, in the order of the struct. An empty table is a key of its own (a map
/// whose entries the user names).
pub(super) struct Leaves(pub(super) Vec<(String, Value)>);

impl Leaves {
    pub(super) fn of(tree: &Value) -> Self {
        let mut leaves = Self(Vec::new());
        leaves.collect(String::new(), tree);
        leaves
    }

    fn collect(&mut self, prefix: String, value: &Value) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                for (name, value) in map {
                    let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                    self.collect(key, value);
                }
            }
            value => self.0.push((prefix, value.clone())),
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &String> {
        self.0.iter().map(|(key, _)| key)
    }

    fn is_table(&self, key: &str) -> bool {
        self.keys().any(|known| known.strip_prefix(key).is_some_and(|rest| rest.starts_with('.')))
    }
}

/// The keys that a file sets.
pub(super) fn parse_file(name: &str, text: &str, leaves: &Leaves) -> Result<Vec<(String, Value)>, Error> {
    let parsed: Value = toml::from_str(text).map_err(|error| Error::Syntax {
        file: name.into(),
        line: error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1),
        reason: error.message().replace('\n', ", "),
    })?;
    let mut set = Vec::new();
    let origin = Origin::File(name.into());
    walk(String::new(), parsed, leaves, &origin, &mut set)?;
    Ok(set)
}

fn walk(
    prefix: String,
    value: Value,
    leaves: &Leaves,
    origin: &Origin,
    set: &mut Vec<(String, Value)>,
) -> Result<(), Error> {
    if !prefix.is_empty() && leaves.get(&prefix).is_some() {
        set.push((prefix, value));
        return Ok(());
    }
    if !prefix.is_empty() && !leaves.is_table(&prefix) {
        return Err(Error::Unknown {
            nearest: nearest(&prefix, leaves.keys().map(String::as_str)).map(Into::into),
            key: prefix,
            origin: origin.clone(),
        });
    }
    let Value::Object(map) = value else {
        return Err(Error::value(&prefix, origin, &value, "expected a table"));
    };
    for (name, value) in map {
        let key = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
        walk(key, value, leaves, origin, set)?;
    }
    Ok(())
}

pub(super) fn get<'a>(tree: &'a Value, key: &str) -> Option<&'a Value> {
    key.split('.').try_fold(tree, |node, name| node.get(name))
}

/// Puts `value` under a dotted key and gives back what was there.
pub(super) fn replace(tree: &mut Value, key: &str, value: Value) -> Value {
    let mut node = tree;
    for name in key.split('.') {
        if !node.is_object() {
            *node = Value::Object(Map::new());
        }
        let Value::Object(map) = node else { return Value::Null };
        node = map.entry(name).or_insert(Value::Null);
    }
    std::mem::replace(node, value)
}

/// What a text may mean, likeliest first. The last one is what an error shows.
pub(super) fn candidates(default: &Value, text: &str, factor: u64) -> Vec<Value> {
    let text = text.trim();
    let string = Value::from(text);
    let json =
        || serde_json::from_str::<Value>(text).ok().filter(|value| value.is_array() || value.is_object());
    let mut all = Vec::new();
    match default {
        Value::Bool(_) => all.extend(boolean(text)),
        Value::Number(_) => all.extend(number(text, factor)),
        Value::String(_) => {}
        Value::Array(_) => {
            let parts = || text.split(',').map(str::trim).filter(|part| !part.is_empty());
            all.extend(json());
            all.push(parts().map(Value::from).collect());
            all.extend(parts().map(|part| number(part, factor)).collect::<Option<Value>>());
        }
        Value::Object(_) => all.extend(json()),
        Value::Null => {
            all.extend(number(text, factor));
            all.extend(boolean(text));
            all.extend(json());
        }
    }
    // A number that is out of range is shown as it was found, not as a text.
    let known_kind =
        matches!(default, Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_));
    if all.is_empty() || !known_kind {
        all.push(string);
    }
    all
}

fn boolean(text: &str) -> Option<Value> {
    match &*text.to_ascii_lowercase() {
        "true" | "1" | "yes" | "on" => Some(true.into()),
        "false" | "0" | "no" | "off" => Some(false.into()),
        _ => None,
    }
}

fn number(text: &str, factor: u64) -> Option<Value> {
    if let Ok(value) = text.parse::<u64>() {
        return value.checked_mul(factor).map(Value::from);
    }
    if factor == 1
        && let Ok(value) = text.parse::<i64>()
    {
        return Some(value.into());
    }
    let value = text.parse::<f64>().ok()? * factor as f64;
    serde_json::Number::from_f64(value).map(Value::Number)
}

/// A value as TOML writes it.
pub(super) fn toml_text(value: &Value) -> String {
    match value {
        Value::Object(map) if map.is_empty() => "{}".into(),
        Value::Object(map) => {
            let entries: Vec<String> = map
                .iter()
                .map(|(name, value)| format!("{} = {}", Value::from(&**name), toml_text(value)))
                .collect();
            format!("{{ {} }}", entries.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(toml_text).collect::<Vec<_>>().join(", ")),
        scalar => scalar.to_string(),
    }
}
