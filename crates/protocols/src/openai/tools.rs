//! Tools and the choice among them. Definitions go to the chat template as they came.

use super::common::{conflict, missing};
use super::strict;
use crate::json::{Kind, Reader, echo};
use crate::limits;
use dynamo_types::Error;
use serde_json::{Map, Value};
use std::collections::HashSet;

type Result<T, E = Error> = std::result::Result<T, E>;

/// `tool_choice`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The template does not see the tools.
    None,
    #[default]
    Auto,
    /// One call or more, whatever they are.
    Required,
    /// One call of the function of this name.
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
        check_strict(function, &place(".function"))?;
        if let Value::Object(tool) = &mut tool {
            tool.retain(|_, value| !value.is_null());
        }
        tools.push(tool);
        limits::TOOLS.check_len("tools", tools.len())
    })?;
    Ok(tools)
}

/// Checks what a function with `strict: true` promises. `place` is where the function is.
pub(crate) fn check_strict(function: &Map<String, Value>, place: &str) -> Result<()> {
    match function.get("strict") {
        None | Some(Value::Bool(false)) => Ok(()),
        Some(Value::Bool(true)) => match function.get("parameters") {
            Some(Value::Object(schema)) => strict::check(schema, &format!("{place}.parameters")),
            _ => Ok(()),
        },
        Some(_) => Err(conflict(&format!("{place}.strict"), "must be a boolean")),
    }
}

/// What is read of a choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) choice: ToolChoice,
    /// The functions that may be called, if these are not all.
    pub(crate) allowed: Option<Vec<String>>,
}

impl From<ToolChoice> for Choice {
    fn from(choice: ToolChoice) -> Self {
        Self { choice, allowed: None }
    }
}

/// Reads `tool_choice`.
pub(crate) fn read_choice(reader: &mut Reader<'_>) -> Result<Choice> {
    match reader.peek()? {
        Kind::String => match &*reader.string()? {
            "none" => Ok(ToolChoice::None.into()),
            "auto" => Ok(ToolChoice::Auto.into()),
            "required" => Ok(ToolChoice::Required.into()),
            other => {
                let problem =
                    format!("must be `none`, `auto`, `required` or a named function, got `{}`", echo(other));
                Err(conflict("tool_choice", problem))
            }
        },
        Kind::Object => {
            let choice = reader.value()?;
            if choice.get("type").and_then(Value::as_str) == Some("allowed_tools") {
                return allowed(choice.get("allowed_tools").unwrap_or(&choice));
            }
            match choice.pointer("/function/name").and_then(Value::as_str) {
                Some(name) => Ok(ToolChoice::Named(name.to_owned()).into()),
                None => Err(conflict("tool_choice.function.name", "must be a string")),
            }
        }
        _ => Err(reader.wrong_type("a string or an object")),
    }
}

/// A choice among some of the tools: `{"mode": "auto" | "required", "tools": [...]}`.
pub(crate) fn allowed(choice: &Value) -> Result<Choice> {
    let mode = match choice.get("mode").and_then(Value::as_str) {
        Some("auto") => ToolChoice::Auto,
        Some("required") => ToolChoice::Required,
        _ => return Err(conflict("tool_choice.mode", "must be `auto` or `required`")),
    };
    let Some(Value::Array(tools)) = choice.get("tools") else { return Err(missing("tool_choice.tools")) };
    limits::TOOLS.check_len("tool_choice.tools", tools.len())?;
    let name = |tool: &Value| {
        let name = tool.pointer("/function/name").or_else(|| tool.get("name"));
        name.and_then(Value::as_str).map(str::to_owned)
    };
    let Some(names) = tools.iter().map(name).collect::<Option<Vec<_>>>().filter(|names| !names.is_empty())
    else {
        return Err(conflict("tool_choice.tools", "must name at least one function, and nothing else"));
    };
    Ok(Choice { choice: mode, allowed: Some(names) })
}

/// Checks that a choice can be met by `tools`, and takes out those that may not be called.
pub(crate) fn choose(tools: &mut Vec<Value>, choice: Choice) -> Result<ToolChoice> {
    let names: HashSet<&str> = tools.iter().filter_map(function_name).collect();
    let named = match &choice.choice {
        ToolChoice::Named(name) => Some(name),
        _ => None,
    };
    let mut wanted = named.into_iter().chain(choice.allowed.iter().flatten());
    if let Some(name) = wanted.find(|name| !names.contains(name.as_str())) {
        let problem = format!("names the function `{}`, which is not in `tools`", echo(name));
        return Err(conflict("tool_choice", problem));
    }
    if choice.choice == ToolChoice::Required && tools.is_empty() {
        return Err(conflict("tool_choice", "is `required`, but `tools` is empty"));
    }
    if let Some(allowed) = choice.allowed {
        let allowed: HashSet<&str> = allowed.iter().map(String::as_str).collect();
        tools.retain(|tool| function_name(tool).is_some_and(|name| allowed.contains(name)));
    }
    Ok(choice.choice)
}

fn function_name(tool: &Value) -> Option<&str> {
    tool.pointer("/function/name").and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn functions(count: usize) -> Vec<Value> {
        (0..count)
            .map(|index| json!({"type": "function", "function": {"name": format!("f{index}")}}))
            .collect()
    }

    #[test]
    fn as_many_functions_may_be_allowed_as_there_may_be() {
        let mut tools = functions(1024);
        let choice = allowed(&json!({"mode": "auto", "tools": functions(1024)})).unwrap();
        choose(&mut tools, choice).unwrap();
        assert_eq!(tools.len(), 1024);
        let error = allowed(&json!({"mode": "auto", "tools": functions(1025)})).unwrap_err();
        assert_eq!(error.param(), Some("tool_choice.tools"));
        assert!(error.message().contains("1024") && error.message().contains("1025"), "{error}");
    }
}
