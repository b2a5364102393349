//! Tools and the choice among them, turned into the form that chat templates know.

use crate::json::{Kind, Reader, echo};
use crate::limits;
use crate::openai::common::conflict;
use crate::openai::tools::{Choice, ToolChoice};
use dynamo_types::Error;
use serde_json::{Map, Value, json};

type Result<T, E = Error> = std::result::Result<T, E>;

/// Reads `tools`: an array of `{"name", "description", "input_schema"}`. Tools of a type of Anthropic's own are noted
/// as dropped: a model may always answer without them.
pub(super) fn read_tools(reader: &mut Reader<'_>) -> Result<Vec<Value>> {
    let mut tools = Vec::new();
    let count = reader.array("an array of tools", |reader, index| {
        if reader.peek()? != Kind::Object {
            return Err(reader.wrong_type("a tool object"));
        }
        let mut tool = reader.value()?;
        if !matches!(tool.get("type"), None | Some(Value::Null)) && tool["type"] != "custom" {
            if !tool["type"].is_string() {
                return Err(conflict(&format!("tools[{index}].type"), "must be a string"));
            }
            reader.ineffective();
            return Ok(());
        }
        let place = |field: &str| format!("tools[{index}].{field}");
        if tool.get("name").and_then(Value::as_str).is_none_or(str::is_empty) {
            return Err(conflict(&place("name"), "must be a non-empty string"));
        }
        let mut function = Map::new();
        for (from, to) in [("name", "name"), ("description", "description"), ("strict", "strict")] {
            match tool.get_mut(from).map(Value::take) {
                None | Some(Value::Null) => {}
                Some(value) => _ = function.insert(to.into(), value),
            }
        }
        match tool.get_mut("input_schema").map(Value::take) {
            Some(schema @ Value::Object(_)) => _ = function.insert("parameters".into(), schema),
            None | Some(Value::Null) => return Err(crate::openai::common::missing(&place("input_schema"))),
            Some(_) => return Err(conflict(&place("input_schema"), "must be an object")),
        }
        tools.push(json!({"type": "function", "function": function}));
        Ok(())
    })?;
    limits::ANTHROPIC_TOOLS.check_len("tools", count)?;
    Ok(tools)
}

/// Reads `tool_choice`, and whether there may be several calls.
pub(super) fn read_choice(reader: &mut Reader<'_>) -> Result<(Choice, bool)> {
    let (mut kind, mut name, mut is_single) = (None, None, false);
    reader.object("an object", |reader, key| {
        match key {
            "type" => kind = Some(reader.string()?.into_owned()),
            "name" => name = Some(reader.string()?.into_owned()),
            "disable_parallel_tool_use" => is_single = reader.boolean()?,
            _ => reader.unknown()?,
        }
        Ok(())
    })?;
    let choice = match (kind.as_deref(), name) {
        (Some("auto"), _) => ToolChoice::Auto,
        (Some("none"), _) => ToolChoice::None,
        (Some("any"), _) => ToolChoice::Required,
        (Some("tool"), Some(name)) => ToolChoice::Named(name),
        (Some("tool"), None) => return Err(crate::openai::common::missing("tool_choice.name")),
        (Some(other), _) => {
            let problem = format_args!("must be `auto`, `any`, `tool` or `none`, got `{}`", echo(other));
            return Err(conflict("tool_choice.type", problem));
        }
        (None, _) => return Err(crate::openai::common::missing("tool_choice.type")),
    };
    Ok((choice.into(), !is_single))
}
