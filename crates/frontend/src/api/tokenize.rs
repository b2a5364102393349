//! `POST /tokenize` and `POST /detokenize`.

use crate::compute::{Compute, Computed, model};
use crate::plan::ChatPrompt;
use crate::prepare::{self, Spent};
use crate::shared::Shared;
use dynamo_protocols::error_body;
use dynamo_protocols::tokenize::{DetokenizeRequest, DetokenizeResponse, Request, Response, Source};
use dynamo_types::{Error, Result};
use serde::Serialize;
use serde_json::Value;

pub(crate) static TOKENIZE: Compute = Compute { name: "tokenize", run: tokenize, error_shape: error_body };
pub(crate) static DETOKENIZE: Compute =
    Compute { name: "detokenize", run: detokenize, error_shape: error_body };

fn tokenize(shared: &Shared, body: &[u8]) -> Result<Computed> {
    let parsed = Request::parse(body, &shared.options)?;
    let request = parsed.request;
    let model = model(shared, request.model.as_deref())?;
    let text = model.usable()?;
    let mut spent = Spent::default();
    let (field, prompt) = match request.source {
        Source::Text(prompt) => ("prompt", Ok(prompt)),
        Source::Chat {
            messages,
            tools,
            add_generation_prompt,
            continue_final_message,
            chat_template_kwargs: kwargs,
        } => {
            let tools = Some(tools).filter(|tools| !tools.is_empty()).map(Value::Array);
            let chat = ChatPrompt { messages, tools, add_generation_prompt, continue_final_message, kwargs };
            ("messages", prepare::render(&model, text, &chat, &mut spent))
        }
    };
    let tokens = prompt
        .and_then(|prompt| prepare::encode(&model, text, &prompt, request.add_special_tokens, &mut spent));
    let tokens = tokens.map_err(|error| match error.param() {
        Some(_) => error,
        None => error.with_param(field),
    })?;
    spent.observe(&shared.metrics);
    let texts = request
        .return_token_strs
        .then(|| tokens.iter().map(|&token| text.tokenizer.token_text(token)).collect());
    let body = json(&Response::new(tokens, texts, model.card.context_length))?;
    Ok(Computed { model, body, dropped: parsed.dropped })
}

fn detokenize(shared: &Shared, body: &[u8]) -> Result<Computed> {
    let parsed = DetokenizeRequest::parse(body, &shared.options)?;
    let request = parsed.request;
    let model = model(shared, request.model.as_deref())?;
    let text = model.usable()?;
    let vocab_size = model.card.vocab_size;
    if let Some(id) = request.tokens.iter().find(|&&id| id >= vocab_size) {
        return Err(Error::invalid(format!(
            "token id {id} is not in the vocabulary of the model, which has {vocab_size} entries"
        ))
        .with_param("tokens"));
    }
    let body = json(&DetokenizeResponse { prompt: text.tokenizer.decode(&request.tokens, false) })?;
    Ok(Computed { model, body, dropped: parsed.dropped })
}

fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::internal(error.to_string()))
}
