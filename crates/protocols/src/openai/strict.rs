//! What a schema of a tool with `strict: true` may be (behaviour.md 1.9), so that every model can be held to it.

use crate::json::{MAX_PATH, echo, shorten};
use dynamo_types::Error;
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::fmt::{self, Display};

type Result<T, E = Error> = std::result::Result<T, E>;
type Object = Map<String, Value>;

/// Over the whole schema.
const MAX_PROPERTIES: usize = 5000;
const MAX_ENUM_VALUES: usize = 1000;
/// Of the names of properties and definitions and of the values of `enum` and `const`.
const MAX_CHARACTERS: usize = 120_000;
/// An `enum` of more values than this has a limit on its own texts.
const LONG_ENUM_VALUES: usize = 250;
const MAX_LONG_ENUM_CHARACTERS: usize = 15_000;

const REFUSED: [&str; 8] =
    ["allOf", "not", "dependentRequired", "dependentSchemas", "dependencies", "if", "then", "else"];

/// Keywords whose value is an object of schemas under names of the client's.
pub(super) const NAMED: [&str; 4] = ["properties", "$defs", "definitions", "patternProperties"];
/// Keywords whose value is a schema, or a list of schemas.
pub(super) const NESTED: [&str; 12] = [
    "items",
    "prefixItems",
    "anyOf",
    "oneOf",
    "allOf",
    "additionalProperties",
    "contains",
    "not",
    "propertyNames",
    "if",
    "then",
    "else",
];

/// # Errors
/// 400 that names the place below `path` and what is wrong there.
pub(crate) fn check(schema: &Object, path: &str) -> Result<()> {
    let root = Place { above: None, step: Step::Root(path) };
    if schema.get("type").and_then(Value::as_str) != Some("object") {
        return Err(root.refuse("must have the type `object`"));
    }
    if schema.contains_key("anyOf") {
        return Err(root.refuse("may not have `anyOf` at the root"));
    }
    // Before anything is looked into: what is above the limits costs no more than to be counted.
    let mut counts = Counts::default();
    counts.add(schema);
    for (count, max, what) in [
        (counts.properties, MAX_PROPERTIES, "properties"),
        (counts.enum_values, MAX_ENUM_VALUES, "values of `enum`"),
        (counts.characters, MAX_CHARACTERS, "characters of names and values"),
    ] {
        if count > max {
            return Err(root.refuse(format_args!("has {count} {what} in all, at most {max} are allowed")));
        }
    }
    Walk { root: schema }.schema(schema, &root)
}

/// Where a walk is. A path in words is made only for an error.
#[derive(Clone, Copy)]
struct Place<'a> {
    above: Option<&'a Place<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root(&'a str),
    Keyword(&'a str),
    Name(&'a str),
    Index(usize),
}

impl<'a> Place<'a> {
    fn below(&'a self, step: Step<'a>) -> Place<'a> {
        Place { above: Some(self), step }
    }

    fn refuse(&self, problem: impl Display) -> Error {
        let path = shorten(&self.to_string(), MAX_PATH);
        Error::invalid(format!("`{path}` of a tool with `strict: true` {problem}"))
            .with_param(path)
            .with_code("invalid_function_parameters")
    }
}

impl Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(above) = self.above {
            above.fmt(f)?;
        }
        match self.step {
            Step::Root(path) => f.write_str(path),
            Step::Keyword(word) => write!(f, ".{word}"),
            Step::Name(name) => write!(f, ".{}", echo(name)),
            Step::Index(index) => write!(f, "[{index}]"),
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    properties: usize,
    enum_values: usize,
    characters: usize,
}

impl Counts {
    fn add(&mut self, schema: &Object) {
        self.characters += schema.get("const").map_or(0, characters);
        if let Some(Value::Array(values)) = schema.get("enum") {
            self.enum_values += values.len();
            self.characters += values.iter().map(characters).sum::<usize>();
        }
        for word in NAMED {
            let Some(Value::Object(members)) = schema.get(word) else { continue };
            self.properties += if word == "properties" { members.len() } else { 0 };
            self.characters += members.keys().map(|name| name.chars().count()).sum::<usize>();
            members.values().filter_map(Value::as_object).for_each(|member| self.add(member));
        }
        for word in NESTED {
            match schema.get(word) {
                Some(Value::Array(list)) => {
                    list.iter().filter_map(Value::as_object).for_each(|member| self.add(member));
                }
                Some(Value::Object(member)) => self.add(member),
                _ => {}
            }
        }
    }
}

fn characters(value: &Value) -> usize {
    value.as_str().map_or(0, |text| text.chars().count())
}

struct Walk<'a> {
    root: &'a Object,
}

impl Walk<'_> {
    fn schema(&self, schema: &Object, place: &Place<'_>) -> Result<()> {
        if let Some(word) = REFUSED.iter().find(|word| schema.contains_key(**word)) {
            return Err(place.refuse(format_args!("may not have `{word}`")));
        }
        if let Some(reference) = schema.get("$ref") {
            self.reference(reference, place)?;
        }
        values(schema, place)?;
        object(schema, place)?;
        for word in NAMED {
            let Some(Value::Object(members)) = schema.get(word) else { continue };
            let place = place.below(Step::Keyword(word));
            for (name, member) in members {
                self.below(member, &place.below(Step::Name(name)))?;
            }
        }
        for word in NESTED {
            let place = place.below(Step::Keyword(word));
            match schema.get(word) {
                Some(Value::Array(list)) => {
                    for (index, member) in list.iter().enumerate() {
                        self.below(member, &place.below(Step::Index(index)))?;
                    }
                }
                Some(Value::Object(member)) => self.schema(member, &place)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn below(&self, member: &Value, place: &Place<'_>) -> Result<()> {
        match member {
            Value::Object(member) => self.schema(member, place),
            _ => Err(place.refuse("must be an object")),
        }
    }

    fn reference(&self, reference: &Value, place: &Place<'_>) -> Result<()> {
        let Some(pointer) = reference.as_str().and_then(|reference| reference.strip_prefix('#')) else {
            return Err(place.refuse("may only have a `$ref` to a place in itself, which begins with `#`"));
        };
        let mut at: Option<&Value> = None;
        for step in pointer.split('/').skip(1) {
            let name = step.replace("~1", "/").replace("~0", "~");
            at = match at {
                None => self.root.get(&name),
                Some(Value::Object(object)) => object.get(&name),
                Some(Value::Array(list)) => name.parse::<usize>().ok().and_then(|index| list.get(index)),
                Some(_) => None,
            };
            if at.is_none() {
                let problem = format_args!("refers to `#{}`, which is not there", echo(pointer));
                return Err(place.refuse(problem));
            }
        }
        Ok(())
    }
}

fn values(schema: &Object, place: &Place<'_>) -> Result<()> {
    let Some(Value::Array(values)) = schema.get("enum") else { return Ok(()) };
    if values.len() <= LONG_ENUM_VALUES {
        return Ok(());
    }
    let characters: usize = values.iter().map(characters).sum();
    if characters > MAX_LONG_ENUM_CHARACTERS {
        return Err(place.refuse(format_args!(
            "has an `enum` of {} values with {characters} characters; above {LONG_ENUM_VALUES} values at most \
             {MAX_LONG_ENUM_CHARACTERS} are allowed",
            values.len()
        )));
    }
    Ok(())
}

/// Objects name all their properties, and require them.
fn object(schema: &Object, place: &Place<'_>) -> Result<()> {
    let is_object = match schema.get("type") {
        Some(Value::String(kind)) => kind == "object",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
        _ => schema.contains_key("properties"),
    };
    if !is_object {
        return Ok(());
    }
    if schema.get("additionalProperties") != Some(&Value::Bool(false)) {
        return Err(place.refuse("must have `additionalProperties: false`"));
    }
    let required: &[Value] = schema.get("required").and_then(Value::as_array).map_or(&[], Vec::as_slice);
    let properties = schema.get("properties").and_then(Value::as_object);
    let names: HashSet<&str> = required.iter().filter_map(Value::as_str).collect();
    if let Some(name) = properties.into_iter().flat_map(Map::keys).find(|name| !names.contains(name.as_str()))
    {
        let name = echo(name);
        return Err(
            place.refuse(format_args!("must have all its properties in `required`; `{name}` is missing"))
        );
    }
    let has =
        |name: &Value| name.as_str().is_some_and(|name| properties.is_some_and(|all| all.contains_key(name)));
    match required.iter().find(|name| !has(name)) {
        Some(name) => {
            let name = echo(&name.to_string());
            Err(place.refuse(format_args!("has {name} in `required`, which is none of its properties")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(schema: &Value) -> Error {
        check(schema.as_object().unwrap(), "tools[0].function.parameters").unwrap_err()
    }

    fn object_of(properties: &Value, required: &[String]) -> Value {
        json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
    }

    /// With anything but a constant number of steps per property this takes minutes, not milliseconds: 10^11 comparisons.
    #[test]
    fn wide_schemas_cost_no_more_than_their_length() {
        let names: Vec<String> = (0..400_000).map(|index| format!("p{index}")).collect();
        let properties: Value =
            names.iter().map(|name| (name.clone(), json!({}))).collect::<Map<_, _>>().into();
        let error = refused(&object_of(&properties, &names));
        assert!(error.message().contains("has 400000 properties in all, at most 5000"), "{error}");
        // Only the list is long.
        let mut required = names;
        required.push("q".into());
        required.remove(0);
        let few: Value =
            required.iter().take(4000).map(|name| (name.clone(), json!({}))).collect::<Map<_, _>>().into();
        let error = refused(&object_of(&few, &required));
        assert!(error.message().contains("none of its properties"), "{error}");
    }

    /// What clients call things is neither repeated at length nor copied for every property.
    #[test]
    fn long_names_are_cut_in_errors() {
        let long = "x\n".repeat(20_000);
        let inner = object_of(&json!({ "a": { "type": "string" } }), &[]);
        let mut deep = object_of(&json!({ "b": inner }), &["b".into()]);
        for _ in 0..20 {
            let name = "n".repeat(1000);
            deep = object_of(&json!({ name.clone(): deep }), &[name]);
        }
        for schema in [
            deep,
            object_of(&json!({ long.clone(): {} }), &[]),
            object_of(&json!({}), std::slice::from_ref(&long)),
            object_of(&json!({ long.clone(): { "allOf": [] } }), std::slice::from_ref(&long)),
            json!({ "type": "object", "additionalProperties": false, "$ref": format!("#/{long}") }),
        ] {
            let error = refused(&schema);
            assert!(error.message().len() < 500, "{}", error.message().len());
            assert!(error.param().is_some_and(|param| param.len() <= MAX_PATH + 3 && !param.contains('\n')));
        }
    }
}
