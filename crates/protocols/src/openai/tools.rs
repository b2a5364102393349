//! Tools and the choice among them. Definitions go to the chat template as they came.

use super::common::{conflict, unsupported};
use crate::json::{Kind, Reader, echo};
use crate::limits;
use dynamo_types::Error;
use serde_json::Value;

type Result<T, E = Error> = std::result::Result<T, E>;

/// `tool_choice`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The template does not see the tools.
    None,
    #[default]
    Auto,
    Required,
    /// The function of this name.
    Named(String),
}

/// Reads `tools`: an array of `{"type": "function", "function": {"name", ...}}`. Nulls outside the parameter schemas
/// are taken out, so that templates do not print them.
pub(crate) fn read_tools(reader: &mut Reader<'_>) -> Result<Vec<Value>> {
    let mut tools = Vec::new();
    reader.array("an array of tools", |reader, index| {
        if reader.peek()? != Kind::Object {
            return Err(reader.wrong_type("a tool object"));
        }
        let mut tool = reader.value()?;
        let place = |field: &str| format!("tools[{index}]{field}");
        match tool.get("type").and_then(Value::as_str) {
            Some("function") => {}
            Some(other) => {
                let problem = format!("must be `function`, got `{}`", echo(other));
                return Err(conflict(&place(".type"), problem));
            }
            None => return Err(conflict(&place(".type"), "must be `function`")),
        }
        let Some(Value::Object(function)) = tool.get_mut("function") else {
            return Err(conflict(&place(".function"), "must be an object"));
        };
        function.retain(|_, value| !value.is_null());
        if function.get("name").and_then(Value::as_str).is_none_or(str::is_empty) {
            return Err(conflict(&place(".function.name"), "must be a non-empty string"));
        }
        if !function.get("parameters").is_none_or(Value::is_object) {
            return Err(conflict(&place(".function.parameters"), "must be an object"));
        }
        if let Value::Object(tool) = &mut tool {
            tool.retain(|_, value| !value.is_null());
        }
        tools.push(tool);
        limits::TOOLS.check_len("tools", tools.len())
    })?;
    Ok(tools)
}

/// Reads `tool_choice`.
pub(crate) fn read_choice(reader: &mut Reader<'_>) -> Result<ToolChoice> {
    match reader.peek()? {
        Kind::String => match &*reader.string()? {
            "none" => Ok(ToolChoice::None),
            "auto" => Ok(ToolChoice::Auto),
            "required" => Ok(ToolChoice::Required),
            other => {
                let problem =
                    format!("must be `none`, `auto`, `required` or a named function, got `{}`", echo(other));
                Err(conflict("tool_choice", problem))
            }
        },
        Kind::Object => {
            let choice = reader.value()?;
            if choice.get("type").and_then(Value::as_str) == Some("allowed_tools") {
                return Err(unsupported("tool_choice", "of type `allowed_tools` is not implemented"));
            }
            match choice.pointer("/function/name").and_then(Value::as_str) {
                Some(name) => Ok(ToolChoice::Named(name.to_owned())),
                None => Err(conflict("tool_choice.function.name", "must be a string")),
            }
        }
        _ => Err(reader.wrong_type("a string or an object")),
    }
}

/// Checks that `choice` can be met by `tools`, and that it is one that is built.
pub(crate) fn check(tools: &[Value], choice: &ToolChoice) -> Result<()> {
    match choice {
        ToolChoice::None | ToolChoice::Auto => return Ok(()),
        ToolChoice::Required if tools.is_empty() => {
            return Err(conflict("tool_choice", "is `required`, but `tools` is empty"));
        }
        ToolChoice::Required => {}
        ToolChoice::Named(name) => {
            let is_it = |tool: &Value| tool.pointer("/function/name").and_then(Value::as_str) == Some(name);
            if !tools.iter().any(is_it) {
                let problem = format!("names the function `{}`, which is not in `tools`", echo(name));
                return Err(conflict("tool_choice", problem));
            }
        }
    }
    Err(unsupported("tool_choice", "is only implemented for `none` and `auto`"))
}
