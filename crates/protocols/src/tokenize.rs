//! `POST /tokenize` and `POST /detokenize`, in vLLM's shapes.

use crate::json::{self, Reader};
use crate::limits::{self, Routes};
use crate::openai::common::{self, conflict, missing};
use crate::openai::message::Message;
use crate::openai::{chat, tools};
use crate::options::{Options, Parsed};
use dynamo_types::Error;
use serde::Serialize;
use serde_json::{Map, Value};

/// What is to be made tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    Text(String),
    /// A conversation, rendered by the model's template.
    Chat {
        messages: Vec<Message>,
        tools: Vec<Value>,
        add_generation_prompt: bool,
        continue_final_message: bool,
        chat_template_kwargs: Map<String, Value>,
    },
}

/// A validated request to tokenise.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// None: the only model there is.
    pub model: Option<String>,
    pub source: Source,
    /// Put around the text what the model wants around it.
    pub add_special_tokens: bool,
    pub return_token_strs: bool,
}

#[derive(Default)]
struct Draft {
    model: Option<String>,
    prompt: Option<String>,
    messages: Option<Vec<Message>>,
    tools: Vec<Value>,
    add_special_tokens: Option<bool>,
    return_token_strs: bool,
    add_generation_prompt: Option<bool>,
    continue_final_message: bool,
    kwargs: Map<String, Value>,
}

impl Request {
    /// # Errors
    /// 400 or 501 that name the field, the limit and what was found.
    pub fn parse(body: &[u8], options: &Options) -> Result<Parsed<Self>, Error> {
        let mut draft = Draft::default();
        let dropped = json::document(body, |reader, key| draft.field(reader, key))?;
        Parsed::under(draft.finish()?, dropped, options.unknown_fields)
    }
}

impl Draft {
    fn field(&mut self, reader: &mut Reader<'_>, key: &str) -> Result<(), Error> {
        match key {
            "model" => self.model = Some(reader.text(&limits::MODEL)?),
            "prompt" => self.prompt = Some(reader.string()?.into_owned()),
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
            "add_special_tokens" => self.add_special_tokens = Some(reader.boolean()?),
            "return_token_strs" => self.return_token_strs = reader.boolean()?,
            "add_generation_prompt" => self.add_generation_prompt = Some(reader.boolean()?),
            "continue_final_message" => self.continue_final_message = reader.boolean()?,
            "chat_template_kwargs" => chat::read_kwargs(reader, &mut self.kwargs)?,
            _ => common::other(reader, key, Routes::TOKENIZE)?,
        }
        Ok(())
    }

    fn finish(self) -> Result<Request, Error> {
        let is_chat = self.messages.is_some();
        let source = match (self.prompt, self.messages) {
            (Some(_), Some(_)) => return Err(conflict("prompt", "is not allowed together with `messages`")),
            (None, None) => return Err(missing("prompt")),
            (Some(text), None) => Source::Text(text),
            (None, Some(messages)) => {
                if self.continue_final_message && self.add_generation_prompt == Some(true) {
                    let problem = "cannot be true together with `add_generation_prompt`";
                    return Err(conflict("continue_final_message", problem));
                }
                Source::Chat {
                    messages,
                    tools: self.tools,
                    add_generation_prompt: self.add_generation_prompt.unwrap_or(!self.continue_final_message),
                    continue_final_message: self.continue_final_message,
                    chat_template_kwargs: self.kwargs,
                }
            }
        };
        Ok(Request {
            model: self.model,
            source,
            // Templates write the special tokens themselves.
            add_special_tokens: self.add_special_tokens.unwrap_or(!is_chat),
            return_token_strs: self.return_token_strs,
        })
    }
}

/// The answer of `/tokenize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Response {
    pub count: u32,
    /// Prompt plus answer, in tokens.
    pub max_model_len: u32,
    pub tokens: Vec<u32>,
    /// The text of each token, if asked for.
    pub token_strs: Option<Vec<String>>,
}

impl Response {
    pub fn new(tokens: Vec<u32>, token_strs: Option<Vec<String>>, max_model_len: u32) -> Self {
        let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        Self { count, max_model_len, tokens, token_strs }
    }
}

/// A validated request to turn tokens back into text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetokenizeRequest {
    /// None: the only model there is.
    pub model: Option<String>,
    pub tokens: Vec<u32>,
}

impl DetokenizeRequest {
    /// # Errors
    /// 400 that names the field, the limit and what was found.
    pub fn parse(body: &[u8], options: &Options) -> Result<Parsed<Self>, Error> {
        let mut model = None;
        let mut tokens = None;
        let dropped = json::document(body, |reader, key| {
            match key {
                "model" => model = Some(reader.text(&limits::MODEL)?),
                "tokens" => tokens = Some(reader.token_ids(&limits::TOKEN_ID)?),
                _ => common::other(reader, key, Routes::DETOKENIZE)?,
            }
            Ok(())
        })?;
        let tokens = tokens.ok_or_else(|| missing("tokens"))?;
        Parsed::under(Self { model, tokens }, dropped, options.unknown_fields)
    }
}

/// The answer of `/detokenize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DetokenizeResponse {
    pub prompt: String,
}
