//! `POST /v1/responses` and `POST /v1/responses/input_tokens`.

use super::input;
use crate::conversation::Conversation;
use crate::json::{self, Kind, Reader};
use crate::limits::{self, Routes};
use crate::openai::chat;
use crate::openai::common::{self, conflict, missing, unsupported};
use crate::openai::forced;
use crate::openai::message::Role;
use crate::openai::mind::Mind;
use crate::openai::response_format::flat_format;
use crate::openai::tools::{self, Choice, ToolChoice};
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
    tool_choice: Choice,
    /// As it is repeated.
    shown_choice: Value,
    parallel_tool_calls: bool,
    reasoning: Reasoning,
    /// The form of the text, as it is repeated.
    format: Map<String, Value>,
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
            tool_choice: Choice::default(),
            shown_choice: "auto".into(),
            parallel_tool_calls: true,
            reasoning: Reasoning::default(),
            format: Map::from_iter([("type".to_owned(), "text".into())]),
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
            "tool_choice" => (self.tool_choice, self.shown_choice) = read_choice(reader)?,
            "parallel_tool_calls" => self.parallel_tool_calls = reader.boolean()?,
            "text" => self.text(reader)?,
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
            _ => self.common.field(reader, key, self.route, options)?,
        }
        Ok(())
    }

    /// The form of the answer's text.
    fn text(&mut self, reader: &mut Reader<'_>) -> Result<(), Error> {
        reader.object("an object", |reader, key| match key {
            "format" => {
                let guide;
                (guide, self.format) = flat_format(reader)?;
                self.common.guides.set("text.format", guide);
                Ok(())
            }
            "verbosity" => reader.unknown_unless(|raw| raw == "\"medium\""),
            _ => reader.unknown(),
        })
    }

    fn finish(mut self) -> Result<Request, Error> {
        let spoken = self.conversation.ok_or_else(|| missing("input"))?;
        let shown_tools = self.tools.iter().map(flat).collect();
        let tool_choice = tools::choose(&mut self.tools, self.tool_choice)?;
        let mut conversation = Conversation::default();
        if let Some(instructions) = &self.instructions {
            conversation.say(Role::System, vec![instructions.clone()]);
        }
        conversation.messages.extend(spoken.messages);
        let effort = self.reasoning.effort.clone().map(|effort| ("reasoning.effort", effort));
        let budgets = self.common.thinking_budget().into_iter().collect();
        let hints = Mind { effort, thinking: None, budgets }.tell(&mut self.kwargs);
        let common = self.common.finish(None)?;
        let settings = Settings {
            instructions: self.instructions,
            max_output_tokens: common.max_tokens,
            max_tool_calls: None,
            metadata: self.metadata,
            parallel_tool_calls: self.parallel_tool_calls,
            reasoning: self.reasoning,
            temperature: common.temperature,
            text: json!({"format": self.format}),
            tool_choice: self.shown_choice,
            tools: shown_tools,
            top_p: common.top_p,
            truncation: "disabled",
            user: common.user.clone(),
        };
        let chat = chat::Request {
            common,
            messages: conversation.messages,
            forced: forced::guide(&self.tools, &tool_choice, self.parallel_tool_calls)?,
            tools: self.tools,
            tool_choice,
            parallel_tool_calls: self.parallel_tool_calls,
            add_generation_prompt: true,
            continue_final_message: false,
            chat_template_kwargs: self.kwargs,
            hints,
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
        tools::check_strict(&function, &format!("tools[{index}]"))?;
        all.push(json!({"type": "function", "function": function}));
        Ok(())
    })?;
    limits::RESPONSES_TOOLS.check_len("tools", count)?;
    Ok(all)
}

/// Reads `tool_choice`, whose named form is flat here, and tells how it is repeated.
fn read_choice(reader: &mut Reader<'_>) -> Result<(Choice, Value), Error> {
    if reader.peek()? != Kind::Object {
        let read = tools::read_choice(reader)?;
        let shown = match &read.choice {
            ToolChoice::None => "none",
            ToolChoice::Required => "required",
            ToolChoice::Auto | ToolChoice::Named(_) => "auto",
        };
        return Ok((read, shown.into()));
    }
    let choice = reader.value()?;
    let text = |place: &str| choice.pointer(place).and_then(Value::as_str);
    let name = text("/name").or_else(|| text("/function/name"));
    match (text("/type"), name) {
        (Some("function"), Some(name)) => {
            let shown = json!({"type": "function", "name": name});
            Ok((ToolChoice::Named(name.to_owned()).into(), shown))
        }
        (Some("function"), None) => Err(missing("tool_choice.name")),
        (Some("allowed_tools"), _) => Ok((tools::allowed(&choice)?, choice)),
        (Some(other), _) => {
            let problem = format!("of type `{}` is not implemented", json::echo(other));
            Err(unsupported("tool_choice", problem))
        }
        (None, _) => Err(missing("tool_choice.type")),
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
