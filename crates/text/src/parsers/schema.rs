//! What the tools of a request say about their arguments.

use rustc_hash::FxHashMap;
use serde_json::Value;

/// References followed before a schema is given up as unknown; cycles end here.
const MAX_REFERENCES: usize = 16;

/// How an argument that is written as plain text becomes JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A string, whatever it looks like.
    Text,
    /// A string, or `null` for exactly that word.
    TextOrNull,
    /// JSON by its schema; a string if it is none.
    Json,
    /// No schema, or one that allows strings and more: JSON if it is a number, a word, a list or an object.
    Any,
}

/// The tools of a request, by name.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    parameters: FxHashMap<String, Value>,
}

impl Tools {
    /// From OpenAI's `tools`: `{"type": "function", "function": {"name", "parameters"}}`, or bare function objects.
    /// What is neither is left out.
    pub fn new(tools: &[Value]) -> Self {
        let mut parameters = FxHashMap::default();
        for tool in tools {
            let function = tool.get("function").unwrap_or(tool);
            if let Some(name) = function.get("name").and_then(Value::as_str) {
                let schema = function.get("parameters").or_else(|| function.get("input_schema"));
                parameters.insert(name.to_owned(), schema.cloned().unwrap_or_default());
            }
        }
        Self { parameters }
    }

    /// Whether a call to `name` is possible. Without any tools every name is.
    pub fn allows(&self, name: &str) -> bool {
        self.parameters.is_empty() || self.parameters.contains_key(name)
    }

    /// The schema at `path` (property names; `None` for items of a list) below the parameters of `tool`.
    pub(crate) fn schema<'a>(&'a self, tool: &str, path: &[Option<String>]) -> Schema<'a> {
        let root = self.parameters.get(tool);
        let mut schema = Schema { root, at: root };
        for step in path {
            schema = match step {
                Some(name) => schema.property(name),
                None => schema.items(),
            };
        }
        schema
    }
}

/// A place in a JSON schema, possibly an unknown one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schema<'a> {
    root: Option<&'a Value>,
    at: Option<&'a Value>,
}

/// The types that a schema allows.
#[derive(Clone, Copy, Debug, Default)]
struct Types {
    string: bool,
    null: bool,
    other: bool,
}

impl<'a> Schema<'a> {
    fn below(self, at: Option<&'a Value>) -> Self {
        Self { root: self.root, at }
    }

    /// Follows local references.
    fn resolved(self) -> Option<&'a Value> {
        let mut at = self.at?;
        for _ in 0..MAX_REFERENCES {
            let Some(reference) = at.get("$ref").and_then(Value::as_str) else { return Some(at) };
            at = self.root?.pointer(reference.strip_prefix('#')?)?;
        }
        None
    }

    fn property(self, name: &str) -> Self {
        self.find(&|schema| {
            let properties = schema.get("properties").and_then(|properties| properties.get(name));
            properties.or_else(|| schema.get("additionalProperties").filter(|more| more.is_object()))
        })
    }

    fn items(self) -> Self {
        self.find(&|schema| schema.get("items").filter(|items| items.is_object()))
    }

    /// The first hit of `look` here or in an alternative.
    fn find(self, look: &dyn Fn(&'a Value) -> Option<&'a Value>) -> Self {
        let Some(schema) = self.resolved() else { return self.below(None) };
        let found = look(schema).or_else(|| {
            alternatives(schema).find_map(|option| self.below(Some(option)).resolved().and_then(look))
        });
        self.below(found)
    }

    /// Whether this is a list rather than an object, where the schema tells.
    pub(crate) fn is_list(self) -> Option<bool> {
        match self.resolved()?.get("type")?.as_str()? {
            "array" => Some(true),
            "object" => Some(false),
            _ => None,
        }
    }

    /// Whether nothing is known about the type.
    pub(crate) fn is_silent(self) -> bool {
        let types = self.types();
        !types.string && !types.null && !types.other
    }

    fn types(self) -> Types {
        let mut types = Types::default();
        self.collect(&mut types, 0);
        types
    }

    pub(crate) fn kind(self) -> Kind {
        match self.types() {
            Types { string: true, other: false, null: false } => Kind::Text,
            Types { string: true, other: false, null: true } => Kind::TextOrNull,
            Types { string: false, other: true, .. } | Types { null: true, .. } => Kind::Json,
            Types { .. } => Kind::Any,
        }
    }

    fn collect(self, types: &mut Types, depth: usize) {
        let Some(schema) = self.resolved().filter(|_| depth < MAX_REFERENCES) else { return };
        let mut add = |name: &str| match name {
            "string" => types.string = true,
            "null" => types.null = true,
            _ => types.other = true,
        };
        match schema.get("type") {
            Some(Value::String(name)) => add(name),
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).for_each(add),
            _ => {
                let listed = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
                for value in listed.chain(schema.get("const")) {
                    add(match value {
                        Value::String(_) => "string",
                        Value::Null => "null",
                        _ => "other",
                    });
                }
                for option in alternatives(schema) {
                    self.below(Some(option)).collect(types, depth + 1);
                }
            }
        }
    }
}

fn alternatives(schema: &Value) -> impl Iterator<Item = &Value> {
    ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|key| schema.get(key)?.as_array()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn kinds_follow_the_schema() {
        let tools = Tools::new(&[json!({"type": "function", "function": {"name": "f", "parameters": {
        "$defs": {"city": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}},
        "properties": {
            "text": {"type": "string"}, "maybe": {"type": ["string", "null"]}, "count": {"type": "integer"},
            "either": {"anyOf": [{"type": "string"}, {"type": "number"}]}, "unit": {"enum": ["c", "f"]},
            "there": {"$ref": "#/$defs/city"}, "loop": {"$ref": "#/$defs/loop"},
            "list": {"type": "array", "items": {"properties": {"id": {"type": "string"}}}},
            "optional": {"anyOf": [{"type": "object"}, {"type": "null"}]},
        }}}})]);
        let kind = |path: &[Option<&str>]| {
            let path: Vec<_> = path.iter().map(|step| step.map(str::to_owned)).collect();
            tools.schema("f", &path).kind()
        };
        assert_eq!(kind(&[Some("text")]), Kind::Text);
        assert_eq!(kind(&[Some("maybe")]), Kind::TextOrNull);
        assert_eq!(kind(&[Some("count")]), Kind::Json);
        assert_eq!(kind(&[Some("either")]), Kind::Any);
        assert_eq!(kind(&[Some("unit")]), Kind::Text);
        assert_eq!(kind(&[Some("there")]), Kind::Text);
        assert_eq!(kind(&[Some("loop")]), Kind::Any);
        assert_eq!(kind(&[Some("list"), None, Some("id")]), Kind::Text);
        assert_eq!(kind(&[Some("optional")]), Kind::Json);
        assert_eq!(kind(&[Some("unknown")]), Kind::Any);
        assert!(tools.schema("f", &[Some("unknown".into())]).is_silent());
        assert!(tools.schema("f", &[Some("loop".into())]).is_silent());
        assert!(!tools.schema("f", &[Some("either".into())]).is_silent());
        assert!(tools.allows("f") && !tools.allows("g") && Tools::default().allows("g"));
    }
}
