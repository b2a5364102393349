//! `POST /v1/responses` and `POST /v1/responses/input_tokens`.

use super::input;
use crate::conversation::Conversation;
use crate::json::{self, Kind, Reader};
use crate::limits::{self, Routes};
use crate::openai::chat;
use crate::openai::common::{self, conflict, missing, unsupported};
use crate::openai::message::Role;
use crate::openai::tools::{self, ToolChoice};
use crate::options::{Options, Parsed};
use dynamo_types::Error;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A validated request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The conversation and the settings in the form that all chat APIs share.
    pub chat: chat::Request,
    /// What every answer repeats of the request.
    pub settings: Arc<Settings>,
}

/// Fields of the request that are repeated in the answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    pub instructions: Option<String>,
    pub max_output_tokens: Option<u32>,
    pub max_tool_calls: Option<u32>,
    pub metadata: Map<String, Value>,
    pub parallel_tool_calls: bool,
    pub reasoning: Reasoning,
    pub temperature: f32,
    pub text: Value,
    pub tool_choice: Value,
    /// Functions, flat, as this API has them.
    pub tools: Vec<Value>,
    pub top_p: f32,
    pub truncation: &'static str,
    pub user: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reasoning {
    pub effort: Option<String>,
    pub summary: Option<String>,
}

struct Draft {
    route: Routes,
    common: common::Draft,
    instructions: Option<String>,
    conversation: Option<Conversation>,
    tools: Vec<Value>,
    tool_choice: ToolChoice,
    parallel_tool_calls: bool,
    reasoning: Reasoning,
    metadata: Map<String, Value>,
    kwargs: Map<String, Value>,
}

impl Request {
    /// # Errors
    /// 400 or 501 that name the field, the limit and what was found.
    pub fn parse(body: &[u8], options: &Options) -> Result<Parsed<Self>, Error> {
        Self::read(body, options, Routes::RESPONSES)
    }

    /// Reads the body of a request to count the tokens of an input.
    ///
    /// # Errors
    /// As [`Request::parse`].
    pub fn parse_input_tokens(body: &[u8], options: &Options) -> Result<Parsed<Self>, Error> {
        Self::read(body, options, Routes::INPUT_TOKENS)
    }

    fn read(body: &[u8], options: &Options, route: Routes) -> Result<Parsed<Self>, Error> {
        let mut draft = Draft {
            route,
            common: common::Draft::default(),
            instructions: None,
            conversation: None,
            tools: Vec::new(),
            tool_choice: ToolChoice::Auto,
            parallel_tool_calls: true,
            reasoning: Reasoning::default(),
            metadata: Map::new(),
            kwargs: Map::new(),
        };
        let dropped = json::document(body, |reader, key| draft.field(reader, key, options))?;
        Parsed::under(draft.finish()?, dropped, options.unknown_fields)
    }
}

impl Draft {
    fn field(&mut self, reader: &mut Reader<'_>, key: &str, options: &Options) -> Result<(), Error> {
        if !limits::is_used(self.route, key) {
            return common::other(reader, key, self.route);
        }
        match key {
            "input" => {
                let mut conversation = Conversation::default();
                let count = input::read(reader, &mut conversation)?;
                limits::INPUT_ITEMS.check_len("input", count)?;
                self.conversation = Some(conversation);
            }
            "instructions" => self.instructions = Some(reader.string()?.into_owned()),
            "max_output_tokens" => {
                self.common.max_tokens = Some(reader.whole(&limits::MAX_OUTPUT_TOKENS)?);
            }
            "top_logprobs" => {
                if reader.whole::<u32>(&limits::RESPONSES_TOP_LOGPROBS)? > 0 {
                    return Err(unsupported("top_logprobs", "is not implemented for responses"));
                }
            }
            "tools" => self.tools = read_tools(reader)?,
            "tool_choice" => self.tool_choice = read_choice(reader)?,
            "parallel_tool_calls" => {
                self.parallel_tool_calls = reader.boolean()?;
                if !self.parallel_tool_calls {
                    reader.ineffective();
                }
            }
            "text" => read_text(reader)?,
            "reasoning" => self.reasoning = Reasoning::read(reader)?,
            "metadata" => {
                let metadata = &mut self.metadata;
                metadata.clear();
                reader.object("an object", |reader, key| {
                    metadata.insert(key.to_owned(), reader.value()?);
                    limits::METADATA.check_len("metadata", metadata.len())
                })?;
            }
            "include" => read_include(reader)?,
            "stream_options" => reader.object("an object", |reader, key| match key {
                "include_obfuscation" => reader.unknown_unless(|raw| raw == "false"),
                _ => reader.unknown(),
            })?,
            "chat_template_kwargs" => chat::read_kwargs(reader, &mut self.kwargs)?,
            _ => self.common.field(reader, key, self.route, &options.limits)?,
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Request, Error> {
        let spoken = self.conversation.ok_or_else(|| missing("input"))?;
        tools::check(&self.tools, &self.tool_choice)?;
        let mut conversation = Conversation::default();
        if let Some(instructions) = &self.instructions {
            conversation.say(Role::System, vec![instructions.clone()]);
        }
        conversation.messages.extend(spoken.messages);
        if let Some(effort) = &self.reasoning.effort {
            self.kwargs.entry("reasoning_effort").or_insert_with(|| effort.as_str().into());
        }
        let common = self.common.finish(None)?;
        let settings = Settings {
            instructions: self.instructions,
            max_output_tokens: common.max_tokens,
            max_tool_calls: None,
            metadata: self.metadata,
            parallel_tool_calls: self.parallel_tool_calls,
            reasoning: self.reasoning,
            temperature: common.temperature,
            text: json!({"format": {"type": "text"}}),
            tool_choice: shown_choice(&self.tool_choice),
            tools: self.tools.iter().map(flat).collect(),
            top_p: common.top_p,
            truncation: "disabled",
            user: common.user.clone(),
        };
        let chat = chat::Request {
            common,
            messages: conversation.messages,
            tools: self.tools,
            tool_choice: self.tool_choice,
            add_generation_prompt: true,
            continue_final_message: false,
            chat_template_kwargs: self.kwargs,
        };
        Ok(Request { chat, settings: Arc::new(settings) })
    }
}

/// A function as this API has it: without a level of its own, and with all its fields.
fn flat(tool: &Value) -> Value {
    let field = |name: &str| tool["function"].get(name).cloned().unwrap_or_default();
    json!({
        "type": "function", "name": field("name"), "description": field("description"),
        "parameters": field("parameters"), "strict": field("strict"),
    })
}

fn shown_choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::None => "none".into(),
        ToolChoice::Auto => "auto".into(),
        ToolChoice::Required => "required".into(),
        ToolChoice::Named(name) => json!({"type": "function", "name": name}),
    }
}

/// Reads `tools`: functions, flat or, as some clients send them, as in chat completions. Tools that this server would
/// have to run itself are noted as dropped: a model may always answer without them.
fn read_tools(reader: &mut Reader<'_>) -> Result<Vec<Value>, Error> {
    let mut all = Vec::new();
    let count = reader.array("an array of tools", |reader, index| {
        if reader.peek()? != Kind::Object {
            return Err(reader.wrong_type("a tool object"));
        }
        let mut tool = reader.value()?;
        let place = |field: &str| format!("tools[{index}].{field}");
        match tool.get("type").and_then(Value::as_str) {
            Some("function") => {}
            Some(_) => {
                reader.ineffective();
                return Ok(());
            }
            None => return Err(conflict(&place("type"), "must be a string")),
        }
        if tool.get("function").is_some_and(Value::is_object) {
            tool = tool["function"].take();
        }
        let mut function = Map::new();
        for name in ["name", "description", "parameters", "strict"] {
            match tool.get_mut(name).map(Value::take) {
                None | Some(Value::Null) => {}
                Some(value) => _ = function.insert(name.into(), value),
            }
        }
        if function.get("name").and_then(Value::as_str).is_none_or(str::is_empty) {
            return Err(conflict(&place("name"), "must be a non-empty string"));
        }
        if !function.get("parameters").is_none_or(Value::is_object) {
            return Err(conflict(&place("parameters"), "must be an object"));
        }
        all.push(json!({"type": "function", "function": function}));
        Ok(())
    })?;
    limits::RESPONSES_TOOLS.check_len("tools", count)?;
    Ok(all)
}

/// Reads `tool_choice`, whose named form is flat here.
fn read_choice(reader: &mut Reader<'_>) -> Result<ToolChoice, Error> {
    if reader.peek()? != Kind::Object {
        return tools::read_choice(reader);
    }
    let choice = reader.value()?;
    let text = |place: &str| choice.pointer(place).and_then(Value::as_str);
    let name = text("/name").or_else(|| text("/function/name"));
    match (text("/type"), name) {
        (Some("function"), Some(name)) => Ok(ToolChoice::Named(name.to_owned())),
        (Some("function"), None) => Err(missing("tool_choice.name")),
        (Some(other), _) => {
            let problem = format!("of type `{}` is not implemented", json::echo(other));
            Err(unsupported("tool_choice", problem))
        }
        (None, _) => Err(missing("tool_choice.type")),
    }
}

fn read_text(reader: &mut Reader<'_>) -> Result<(), Error> {
    reader.object("an object", |reader, key| match key {
        "format" => read_format(reader),
        "verbosity" => reader.unknown_unless(|raw| raw == "\"medium\""),
        _ => reader.unknown(),
    })
}

/// Checked, and refused unless it asks for plain text.
fn read_format(reader: &mut Reader<'_>) -> Result<(), Error> {
    let mut kind = None;
    let mut has_schema = false;
    reader.object("an object", |reader, key| {
        match key {
            "type" => kind = Some(reader.string()?.into_owned()),
            "schema" if reader.peek()? == Kind::Object => {
                reader.raw()?;
                has_schema = true;
            }
            "schema" => return Err(reader.wrong_type("an object")),
            "name" | "description" | "strict" => _ = reader.raw()?,
            _ => reader.unknown()?,
        }
        Ok(())
    })?;
    match kind.as_deref() {
        Some("text") => Ok(()),
        Some("json_schema") if !has_schema => Err(missing("text.format.schema")),
        Some("json_object" | "json_schema") => {
            Err(unsupported("text.format", "is only implemented for type `text`"))
        }
        Some(other) => {
            let problem =
                format!("must be `text`, `json_object` or `json_schema`, got `{}`", json::echo(other));
            Err(conflict("text.format.type", problem))
        }
        None => Err(missing("text.format.type")),
    }
}

/// What answers may contain on top.
fn read_include(reader: &mut Reader<'_>) -> Result<(), Error> {
    reader.array("an array of strings", |reader, _| match &*reader.string()? {
        // For clients that send reasoning back: here it is sent in the clear.
        "reasoning.encrypted_content" => Ok(()),
        "message.output_text.logprobs" => {
            Err(unsupported(&reader.path(), "is not implemented for responses"))
        }
        _ => {
            reader.ineffective();
            Ok(())
        }
    })?;
    Ok(())
}

impl Reasoning {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Error> {
        let mut reasoning = Self::default();
        reader.object("an object", |reader, key| {
            match key {
                "effort" => reasoning.effort = Some(chat::reasoning_effort(reader)?),
                // Nobody sums up here: reasoning is shown as it is.
                "summary" | "generate_summary" => {
                    if reader.peek()? != Kind::String {
                        return Err(reader.wrong_type("a string"));
                    }
                    reader.unknown_unless(|raw| raw == "\"auto\"")?;
                }
                "context" => reader.unknown_unless(|raw| raw == "\"auto\"")?,
                "mode" => reader.unknown_unless(|raw| raw == "\"standard\"")?,
                _ => reader.unknown()?,
            }
            Ok(())
        })?;
        Ok(reasoning)
    }
}
