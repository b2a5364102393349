//! `POST /v1/messages` and `POST /v1/messages/count_tokens`.

use super::{content, tools};
use crate::conversation::Conversation;
use crate::json::{self, Reader, echo};
use crate::limits::{self, Routes};
use crate::openai::chat;
use crate::openai::common::{self, missing};
use crate::openai::forced;
use crate::openai::message::Role;
use crate::openai::mind::Mind;
use crate::openai::response_format::flat_format;
use crate::openai::tools::{Choice, choose};
use crate::options::{Options, Parsed};
use dynamo_types::Error;
use serde_json::{Map, Value};

/// A validated request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The conversation and the settings in the form that all chat APIs share. A last message of the assistant is one
    /// to be continued.
    pub chat: chat::Request,
    pub thinking: Option<Thinking>,
}

/// Should the model think before it answers?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    /// `budget_tokens` is the most that may be spent on it.
    Enabled {
        budget_tokens: Option<u32>,
    },
    /// The model decides, at the beginning or between calls.
    Adaptive,
    Disabled,
}

struct Draft {
    route: Routes,
    common: common::Draft,
    system: Vec<String>,
    conversation: Option<Conversation>,
    tools: Vec<Value>,
    tool_choice: Choice,
    parallel_tool_calls: bool,
    mind: Mind,
    kwargs: Map<String, Value>,
}

impl Request {
    /// # Errors
    /// 400 or 501 that name the field, the limit and what was found.
    pub fn parse(body: &[u8], options: &Options) -> Result<Parsed<Self>, Error> {
        Self::read(body, options, Routes::MESSAGES)
    }

    /// Reads the body of a request to count the tokens of a prompt, which needs no `max_tokens`.
    ///
    /// # Errors
    /// As [`Request::parse`].
    pub fn parse_count(body: &[u8], options: &Options) -> Result<Parsed<Self>, Error> {
        Self::read(body, options, Routes::COUNT_TOKENS)
    }

    fn read(body: &[u8], options: &Options, route: Routes) -> Result<Parsed<Self>, Error> {
        let mut draft = Draft {
            route,
            common: common::Draft::default(),
            system: Vec::new(),
            conversation: None,
            tools: Vec::new(),
            tool_choice: Choice::default(),
            parallel_tool_calls: true,
            mind: Mind::default(),
            kwargs: Map::new(),
        };
        let dropped = json::document(body, |reader, key| draft.field(reader, key, options))?;
        Parsed::under(draft.finish()?, dropped, options.unknown_fields)
    }
}

impl Draft {
    fn field(&mut self, reader: &mut Reader<'_>, key: &str, options: &Options) -> Result<(), Error> {
        // Fields of the answer mean nothing where tokens are only counted.
        if !limits::is_used(self.route, key) {
            return common::other(reader, key, self.route);
        }
        match key {
            "system" => self.system = content::read_system(reader)?,
            "messages" => {
                let mut conversation = Conversation::default();
                let count = content::read_messages(reader, &mut conversation)?;
                limits::ANTHROPIC_MESSAGES.check_len("messages", count)?;
                self.conversation = Some(conversation);
            }
            "max_tokens" => self.common.max_tokens = Some(reader.whole(&limits::ANTHROPIC_MAX_TOKENS)?),
            "temperature" => self.common.temperature = Some(reader.number(&limits::ANTHROPIC_TEMPERATURE)?),
            "stop_sequences" => self.common.read_stop(reader, &options.limits)?,
            "tools" => self.tools = tools::read_tools(reader)?,
            "tool_choice" => (self.tool_choice, self.parallel_tool_calls) = tools::read_choice(reader)?,
            "thinking" => self.mind.thinking = Some(Thinking::read(reader)?),
            "output_config" => self.output_config(reader)?,
            "output_format" => self.output_format(reader, "output_format")?,
            "metadata" => reader.object("an object", |reader, key| {
                match key {
                    "user_id" => self.common.user = Some(reader.text(&limits::USER_ID)?),
                    _ => reader.unknown()?,
                }
                Ok(())
            })?,
            "cache_control" => cache_control(reader)?,
            "chat_template_kwargs" => chat::read_kwargs(reader, &mut self.kwargs)?,
            _ => self.common.field(reader, key, self.route, options)?,
        }
        Ok(())
    }

    fn output_config(&mut self, reader: &mut Reader<'_>) -> Result<(), Error> {
        reader.object("an object", |reader, key| {
            match key {
                "effort" => {
                    self.mind.effort = Some(("output_config.effort", chat::reasoning_effort(reader)?));
                }
                "format" => self.output_format(reader, "output_config.format")?,
                _ => reader.unknown()?,
            }
            Ok(())
        })
    }

    /// The form of the answer's text.
    fn output_format(&mut self, reader: &mut Reader<'_>, field: &'static str) -> Result<(), Error> {
        let (guide, _) = flat_format(reader)?;
        self.common.guides.set(field, guide);
        Ok(())
    }

    fn finish(mut self) -> Result<Request, Error> {
        let spoken = self.conversation.ok_or_else(|| missing("messages"))?;
        if self.route == Routes::MESSAGES && self.common.max_tokens.is_none() {
            return Err(missing("max_tokens"));
        }
        let tool_choice = choose(&mut self.tools, self.tool_choice)?;
        let mut conversation = Conversation::default();
        if !self.system.is_empty() {
            conversation.say(Role::System, self.system);
        }
        conversation.messages.extend(spoken.messages);
        let continues = conversation.is_prefilled();
        let thinking = self.mind.thinking;
        self.mind.budgets.extend(self.common.thinking_budget());
        let hints = self.mind.tell(&mut self.kwargs);
        let chat = chat::Request {
            common: self.common.finish(None)?,
            messages: conversation.messages,
            forced: forced::guide(&self.tools, &tool_choice, self.parallel_tool_calls)?,
            tools: self.tools,
            tool_choice,
            parallel_tool_calls: self.parallel_tool_calls,
            add_generation_prompt: !continues,
            continue_final_message: continues,
            chat_template_kwargs: self.kwargs,
            hints,
        };
        Ok(Request { chat, thinking })
    }
}

/// Read only to refuse what is none.
fn cache_control(reader: &mut Reader<'_>) -> Result<(), Error> {
    reader.object("an object", |reader, _| reader.raw().map(|_| ()))
}

impl Thinking {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Error> {
        let mut kind = None;
        let mut budget_tokens = None;
        reader.object("an object", |reader, key| {
            match key {
                "type" => {
                    let text = reader.string()?;
                    if !matches!(&*text, "enabled" | "adaptive" | "between_tools" | "disabled") {
                        let known = "must be `enabled`, `adaptive`, `between_tools` or `disabled`";
                        let problem = format!("{known}, got `{}`", echo(&text));
                        return Err(reader.refuse(problem));
                    }
                    kind = Some(text.into_owned());
                }
                "budget_tokens" => budget_tokens = Some(reader.whole(&limits::THINKING_BUDGET)?),
                _ => reader.unknown()?,
            }
            Ok(())
        })?;
        match kind.as_deref() {
            Some("enabled") => Ok(Self::Enabled { budget_tokens }),
            Some("adaptive" | "between_tools") => Ok(Self::Adaptive),
            Some(_) => Ok(Self::Disabled),
            None => Err(missing("thinking.type")),
        }
    }
}
