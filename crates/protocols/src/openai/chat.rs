//! `POST /v1/chat/completions`.

use super::answer::{AnswerExtensions, place};
use super::common::{Common, Draft, conflict, missing};
use super::forced;
use super::logprobs::ChatLogprobs;
use super::mind::Mind;
use super::tools::{self, Choice as ReadChoice, ToolChoice};
use super::usage::Usage;
use crate::anthropic::Thinking;
use crate::json::{self, Reader, echo};
use crate::limits::{self, Routes};
use crate::options::{Options, Parsed};
use dynamo_types::{Error, FinishReason, Guide, RoutingHints, Sampling};
use serde::Serialize;
use serde_json::{Map, Value};

pub use super::message::{Content, Message, Part, Role, ToolCall};
pub use super::mind::{Hint, Limit};

/// A validated request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub common: Common,
    /// Oldest first, never empty.
    pub messages: Vec<Message>,
    /// Those that may be called, as the client sent them.
    pub tools: Vec<Value>,
    pub tool_choice: ToolChoice,
    /// May the answer have several calls?
    pub parallel_tool_calls: bool,
    /// What an answer that has to be a call must look like; wins over what is asked of its text.
    pub forced: Option<Guide>,
    pub add_generation_prompt: bool,
    pub continue_final_message: bool,
    /// Variables for the template; `reasoning_effort` is among them when the client gave it.
    pub chat_template_kwargs: Map<String, Value>,
    /// Fields that have an effect only if the template knows certain variables.
    pub hints: Vec<Hint>,
}

#[derive(Default)]
struct ChatDraft {
    common: Draft,
    messages: Option<Vec<Message>>,
    tools: Vec<Value>,
    tool_choice: ReadChoice,
    parallel_tool_calls: Option<bool>,
    logprobs: bool,
    top_logprobs: Option<u32>,
    add_generation_prompt: Option<bool>,
    continue_final_message: bool,
    mind: Mind,
    kwargs: Map<String, Value>,
}

impl Request {
    /// # Errors
    /// 400 or 501 that name the field, the limit and what was found.
    pub fn parse(body: &[u8], options: &Options) -> Result<Parsed<Self>, Error> {
        let mut draft = ChatDraft::default();
        let dropped = json::document(body, |reader, key| draft.field(reader, key, options))?;
        Parsed::under(draft.finish()?, dropped, options.unknown_fields)
    }

    pub fn model(&self) -> &str {
        &self.common.model
    }

    /// See [`Common::sampling`].
    pub fn sampling(&self) -> Sampling {
        self.common.sampling()
    }

    /// See [`Common::routing`].
    pub fn routing(&self) -> RoutingHints {
        self.common.routing()
    }

    pub fn max_tokens(&self) -> Option<u32> {
        self.common.max_tokens
    }

    /// The tools the template may see.
    pub fn template_tools(&self) -> Option<&[Value]> {
        (!self.tools.is_empty() && self.tool_choice != ToolChoice::None).then_some(self.tools.as_slice())
    }
}

impl ChatDraft {
    fn field(&mut self, reader: &mut Reader<'_>, key: &str, options: &Options) -> Result<(), Error> {
        match key {
            "messages" => {
                let mut messages = Vec::new();
                reader.array("an array of messages", |reader, _| {
                    messages.push(Message::read(reader)?);
                    Ok(())
                })?;
                limits::MESSAGES.check_len("messages", messages.len())?;
                self.messages = Some(messages);
            }
            "tools" => self.tools = tools::read_tools(reader)?,
            "tool_choice" => self.tool_choice = tools::read_choice(reader)?,
            "parallel_tool_calls" => self.parallel_tool_calls = Some(reader.boolean()?),
            "logprobs" => self.logprobs = reader.boolean()?,
            "top_logprobs" => self.top_logprobs = Some(reader.whole(&limits::TOP_LOGPROBS)?),
            "add_generation_prompt" => self.add_generation_prompt = Some(reader.boolean()?),
            "continue_final_message" => self.continue_final_message = reader.boolean()?,
            "reasoning_effort" => self.mind.effort = Some(("reasoning_effort", reasoning_effort(reader)?)),
            "thinking" => self.mind.thinking = Some(Thinking::read(reader)?),
            "thinking_token_budget" => {
                let tokens = reader.whole(&limits::THINKING_TOKENS)?;
                self.mind.budgets.push(("thinking_token_budget", tokens));
            }
            "chat_template_kwargs" | "chat_template_args" => {
                read_kwargs(reader, &mut self.kwargs)?;
            }
            _ => self.common.field(reader, key, Routes::CHAT, options)?,
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Request, Error> {
        let messages = self.messages.ok_or_else(|| missing("messages"))?;
        let tool_choice = tools::choose(&mut self.tools, self.tool_choice)?;
        let parallel_tool_calls = self.parallel_tool_calls.unwrap_or(true);
        if self.top_logprobs.is_some_and(|top| top > 0) && !self.logprobs {
            return Err(conflict("top_logprobs", "is only allowed with `logprobs: true`"));
        }
        if self.continue_final_message && self.add_generation_prompt == Some(true) {
            return Err(conflict(
                "continue_final_message",
                "cannot be true together with `add_generation_prompt`",
            ));
        }
        self.mind.budgets.extend(self.common.thinking_budget());
        let hints = self.mind.tell(&mut self.kwargs);
        let logprobs = self.logprobs.then_some(self.top_logprobs.unwrap_or(0));
        Ok(Request {
            common: self.common.finish(logprobs)?,
            messages,
            forced: forced::guide(&self.tools, &tool_choice, parallel_tool_calls)?,
            tools: self.tools,
            tool_choice,
            parallel_tool_calls,
            add_generation_prompt: self.add_generation_prompt.unwrap_or(!self.continue_final_message),
            continue_final_message: self.continue_final_message,
            chat_template_kwargs: self.kwargs,
            hints,
        })
    }
}

/// Variables for the template; nulls are absent.
pub(crate) fn read_kwargs(reader: &mut Reader<'_>, kwargs: &mut Map<String, Value>) -> Result<(), Error> {
    reader.object("an object", |reader, key| {
        kwargs.insert(key.to_owned(), reader.value()?);
        Ok(())
    })
}

pub(crate) fn reasoning_effort(reader: &mut Reader<'_>) -> Result<String, Error> {
    let effort = reader.string()?;
    if matches!(&*effort, "none" | "minimal" | "low" | "medium" | "high" | "xhigh" | "max") {
        return Ok(effort.into_owned());
    }
    let known = "must be `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`";
    Err(reader.refuse(format_args!("{known}, got `{}`", echo(&effort))))
}

/// The unary answer: `chat.completion`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Response {
    pub id: String,
    pub object: &'static str,
    pub created: u64,
    pub model: String,
    pub choices: Vec<Choice>,
    pub usage: Usage,
    pub system_fingerprint: Option<String>,
    /// Of the only choice; several have one each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvext: Option<AnswerExtensions>,
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    pub index: u32,
    pub message: AssistantMessage,
    pub logprobs: Option<ChatLogprobs>,
    pub finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvext: Option<AnswerExtensions>,
}

/// What the model said.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AssistantMessage {
    pub role: &'static str,
    pub content: Option<String>,
    pub refusal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<AnswerCall>,
}

/// A call the model asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AnswerCall {
    pub id: String,
    pub r#type: &'static str,
    pub function: AnswerFunction,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AnswerFunction {
    pub name: String,
    /// JSON text; of a call that was cut off, its beginning.
    pub arguments: String,
}

impl AnswerCall {
    pub fn new(id: String, name: String, arguments: String) -> Self {
        Self { id, r#type: "function", function: AnswerFunction { name, arguments } }
    }
}

impl Response {
    pub fn new(id: &str, created_s: u64, model: &str, choices: Vec<Choice>, usage: Usage) -> Self {
        Self {
            id: id.to_owned(),
            object: "chat.completion",
            created: created_s,
            model: model.to_owned(),
            choices,
            usage,
            system_fingerprint: None,
            nvext: None,
        }
    }

    /// With what was asked for besides, one per choice: an answer of one choice has it at its root, as chunks do.
    #[must_use]
    pub fn with_nvext(mut self, each: Vec<Option<AnswerExtensions>>) -> Self {
        place(&mut self.nvext, self.choices.iter_mut().map(|choice| &mut choice.nvext), each);
        self
    }
}

impl Choice {
    pub fn new(
        index: u32,
        message: AssistantMessage,
        logprobs: Option<ChatLogprobs>,
        finish: Option<FinishReason>,
    ) -> Self {
        Self { index, message, logprobs, finish_reason: finish.map(super::finish_reason), nvext: None }
    }
}

impl AssistantMessage {
    /// Content is null where there are only calls.
    pub fn new(content: String, reasoning: String, tool_calls: Vec<AnswerCall>) -> Self {
        Self {
            role: "assistant",
            content: (!content.is_empty() || tool_calls.is_empty()).then_some(content),
            refusal: None,
            reasoning_content: (!reasoning.is_empty()).then_some(reasoning),
            tool_calls,
        }
    }
}
