//! What an answer has to look like that must be a tool call: JSON, whatever the model's own format of calls is.

use super::common::conflict;
use super::response_format::check_schema;
use super::strict::{NAMED, NESTED};
use super::tools::ToolChoice;
use dynamo_types::{Error, Frame, Guide};
use serde_json::{Map, Value, json};

/// The field that errors of the grammar name.
const FIELD: &str = "tools";

/// Where the schema of tool number so-and-so stands in the schema of all.
const DEFINITIONS: &str = "#/$defs/tool_";

/// None where the answer may be text.
///
/// # Errors
/// 400 for a tool whose arguments are no object, and for schemas that are too long together.
pub(crate) fn guide(tools: &[Value], choice: &ToolChoice, parallel: bool) -> Result<Option<Guide>, Error> {
    let (schema, is_lenient) = match choice {
        ToolChoice::None | ToolChoice::Auto => return Ok(None),
        ToolChoice::Required => (list(tools, parallel)?, !tools.iter().any(is_strict)),
        ToolChoice::Named(name) => {
            let Some(index) = tools.iter().position(|tool| self::name(tool) == name) else { return Ok(None) };
            let Some(tool) = tools.get(index) else { return Ok(None) };
            (Value::Object(arguments(tool, index)?), !is_strict(tool))
        }
    };
    let schema = schema.to_string();
    check_schema("tools", schema.len())?;
    let answer = Guide::JsonSchema(schema.into()).into_frame();
    Ok(Some(Guide::Framed(Box::new(Frame { field: FIELD.into(), is_lenient, ..answer }))))
}

/// Name and schema of the arguments of each tool, where a tool is strict and a call may be made. A tool that is not strict
/// takes any object. Empty where nothing has to be held to.
pub fn strict_calls(tools: &[Value], choice: &ToolChoice) -> Vec<(String, String)> {
    if *choice != ToolChoice::Auto || !tools.iter().any(is_strict) {
        return Vec::new();
    }
    let schema = |(index, tool): (usize, &Value)| match arguments(tool, index) {
        Ok(schema) if is_strict(tool) => Value::Object(schema).to_string(),
        _ => json!({ "type": "object" }).to_string(),
    };
    tools.iter().enumerate().map(|tool| (name(tool.1).to_owned(), schema(tool))).collect()
}

/// The schema of `[{"name": ..., "parameters": {...}}, ...]`.
fn list(tools: &[Value], parallel: bool) -> Result<Value, Error> {
    let (mut definitions, mut calls) = (Map::new(), Vec::new());
    for (index, tool) in tools.iter().enumerate() {
        let place = format!("{DEFINITIONS}{index}");
        let mut schema = Value::Object(arguments(tool, index)?);
        move_references(&mut schema, &place);
        definitions.insert(format!("tool_{index}"), schema);
        calls.push(json!({
            "type": "object",
            "properties": { "name": { "const": name(tool) }, "parameters": { "$ref": place } },
            "required": ["name", "parameters"],
            "additionalProperties": false,
        }));
    }
    let mut schema =
        json!({ "type": "array", "items": { "anyOf": calls }, "minItems": 1, "$defs": definitions });
    if !parallel {
        schema["maxItems"] = 1.into();
    }
    Ok(schema)
}

/// The schema of a tool's arguments, which are an object.
fn arguments(tool: &Value, index: usize) -> Result<Map<String, Value>, Error> {
    let mut schema = match tool.pointer("/function/parameters") {
        Some(Value::Object(schema)) => schema.clone(),
        // A function without parameters takes none.
        _ => Map::from_iter([
            ("properties".to_owned(), json!({})),
            ("additionalProperties".to_owned(), false.into()),
        ]),
    };
    let is_object = match schema.get("type") {
        None => true,
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
        Some(kind) => kind == "object",
    };
    if !is_object {
        let place = format!("tools[{index}].function.parameters.type");
        return Err(conflict(&place, "must be `object` for a tool that has to be called"));
    }
    schema.insert("type".into(), "object".into());
    // References are resolved against the schema itself, not against where it may have been published.
    schema.remove("$id");
    Ok(schema)
}

fn name(tool: &Value) -> &str {
    tool.pointer("/function/name").and_then(Value::as_str).unwrap_or_default()
}

fn is_strict(tool: &Value) -> bool {
    tool.pointer("/function/strict") == Some(&Value::Bool(true))
}

/// Has local references of `schema` point below `place`, where it is moved to.
fn move_references(schema: &mut Value, place: &str) {
    let Value::Object(schema) = schema else { return };
    if let Some(Value::String(reference)) = schema.get_mut("$ref")
        && let Some(pointer) = reference.strip_prefix('#')
        // What else stands behind `#` is the name of an anchor, which moves by itself.
        && (pointer.is_empty() || pointer.starts_with('/'))
    {
        *reference = format!("{place}{pointer}");
    }
    for word in NAMED {
        if let Some(Value::Object(members)) = schema.get_mut(word) {
            members.values_mut().for_each(|member| move_references(member, place));
        }
    }
    for word in NESTED {
        match schema.get_mut(word) {
            Some(Value::Array(list)) => list.iter_mut().for_each(|member| move_references(member, place)),
            Some(member) => move_references(member, place),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_move_with_their_schema_and_nothing_else_does() {
        let mut schema = json!({
            "properties": { "$ref": { "$ref": "#/$defs/a" }, "b": { "anyOf": [{ "$ref": "#" }], "enum": [{ "$ref": "#/x" }] } },
            "$defs": { "a": { "items": { "$ref": "#/$defs/a" } }, "far": { "$ref": "other.json#/a" }, "node": { "$anchor": "node", "items": { "$ref": "#node" } } },
            "default": { "$ref": "#/y" },
        });
        move_references(&mut schema, "#/p");
        let expected = json!({
            "properties": { "$ref": { "$ref": "#/p/$defs/a" }, "b": { "anyOf": [{ "$ref": "#/p" }], "enum": [{ "$ref": "#/x" }] } },
            "$defs": { "a": { "items": { "$ref": "#/p/$defs/a" } }, "far": { "$ref": "other.json#/a" }, "node": { "$anchor": "node", "items": { "$ref": "#node" } } },
            "default": { "$ref": "#/y" },
        });
        assert_eq!(schema, expected);
    }
}
