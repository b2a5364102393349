//! From a call to token ids: template, tokenizer, context limit.

use crate::metrics::Metrics;
use crate::model::{Model, Text};
use crate::plan::{ChatPrompt, Plan, Prompt};
use crate::shared::Shared;
use dynamo_text::RenderInput;
use dynamo_text::parsers::{Start, reasoning_start};
use dynamo_types::hash::{Scope, local_hashes};
use dynamo_types::{Class, Error, Result};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Bodies above this are parsed, rendered and tokenised on a thread of their own: a few milliseconds of work is what
/// one request may cost the others on the event loop.
const INLINE_BYTES: usize = 8 * 1024;

/// Runs `work` on bodies of `bytes` where it disturbs nobody.
///
/// # Errors
/// What `work` returns; an internal error should the runtime be shutting down.
pub(crate) async fn offload<T: Send + 'static>(
    shared: &Shared,
    bytes: usize,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if bytes <= INLINE_BYTES {
        return work();
    }
    let permit = Arc::clone(&shared.offload)
        .acquire_owned()
        .await
        .map_err(|_| Error::unavailable("the server is shutting down"))?;
    let task = tokio::task::spawn_blocking(move || {
        let result = work();
        drop(permit);
        result
    });
    task.await.map_err(|error| Error::internal(format!("a worker thread failed: {error}")))?
}

/// A prompt as the engine gets it.
pub(crate) struct Tokens {
    pub(crate) ids: Arc<[u32]>,
    /// Local block hashes, for routers that look at them.
    pub(crate) hashes: Option<Arc<[u64]>>,
    /// Its text, where the answer repeats it.
    pub(crate) text: Option<String>,
    /// Answer tokens it leaves room for, and the request asks for.
    pub(crate) max_tokens: u32,
    /// How the answer to a conversation begins.
    pub(crate) start: Option<Start>,
}

/// Seconds spent, for the metrics.
#[derive(Default)]
pub(crate) struct Spent {
    pub(crate) template_s: Option<f64>,
    pub(crate) tokenize_s: Option<f64>,
    pub(crate) hashing_s: Option<f64>,
}

impl Spent {
    pub(crate) fn observe(&self, metrics: &Metrics) {
        self.template_s.into_iter().for_each(|seconds| metrics.template.observe(seconds));
        self.tokenize_s.into_iter().for_each(|seconds| metrics.tokenize.observe(seconds));
        self.hashing_s.into_iter().for_each(|seconds| metrics.hashing_ms.observe(seconds * 1000.0));
    }
}

/// Renders and tokenises all prompts of a plan, and checks them against the model. `fits`: an answer has to have room
/// behind each.
///
/// # Errors
/// 400 for what the template refuses (R11), for prompts above the context limit and for ids the model does not have
/// (R08), each with the field at fault.
pub(crate) fn tokens(
    model: &Model,
    text: &Text,
    plan: &Plan,
    prompts: Vec<Prompt>,
    fits: bool,
) -> Result<(Vec<Tokens>, Spent)> {
    check_ids(model, plan)?;
    check_guide(model, plan)?;
    let mut spent = Spent::default();
    let batched = prompts.len() > 1;
    let mut all = Vec::with_capacity(prompts.len());
    for (index, prompt) in prompts.into_iter().enumerate() {
        let tokens = one(model, text, plan, prompt, fits, &mut spent);
        all.push(tokens.map_err(|error| match (error.param(), batched) {
            (Some(_), _) => error,
            (None, true) => error.with_param(format!("{}[{index}]", plan.prompt_field)),
            (None, false) => error.with_param(plan.prompt_field),
        })?);
    }
    Ok((all, spent))
}

fn one(
    model: &Model,
    text: &Text,
    plan: &Plan,
    prompt: Prompt,
    fits: bool,
    spent: &mut Spent,
) -> Result<Tokens> {
    let mut start = None;
    let (ids, shown) = match prompt {
        Prompt::Tokens(ids) => {
            let vocab_size = model.card.vocab_size;
            if let Some(id) = ids.iter().find(|&&id| id >= vocab_size) {
                return Err(Error::invalid(format!(
                    "token id {id} is not in the vocabulary of the model, which has {vocab_size} entries"
                )));
            }
            let shown = plan.echo.then(|| text.tokenizer.decode(&ids, plan.skip_special_tokens));
            (ids, shown)
        }
        Prompt::Text(prompt) => {
            let ids = encode(model, text, &prompt, true, spent)?;
            (ids, plan.echo.then_some(prompt))
        }
        Prompt::Chat(chat) => {
            let rendered = render(model, text, &chat, spent)?;
            start = Some(begins(model, &chat, &rendered));
            (encode(model, text, &rendered, false, spent)?, None)
        }
    };
    let max_tokens = if fits { room(&model.card, ids.len(), plan.max_tokens)? } else { 0 };
    let hashes = (model.by_prefix && fits).then(|| hashes(model, plan, &ids, spent));
    Ok(Tokens { ids: ids.into(), hashes, text: shown, max_tokens, start })
}

/// Does the rendered prompt open reasoning, or close it? Text of the assistant that the answer continues is behind it.
fn begins(model: &Model, chat: &ChatPrompt, rendered: &str) -> Start {
    let Some(parser) = &model.card.reasoning_parser else { return Start::Default };
    match reasoning_start(parser, rendered) {
        Start::Default if chat.continue_final_message => Start::Content,
        start => start,
    }
}

fn hashes(model: &Model, plan: &Plan, ids: &[u32], spent: &mut Spent) -> Arc<[u64]> {
    let start = Instant::now();
    let scope = Scope { lora: plan.routing.lora.as_deref(), salt: plan.routing.salt.as_deref() };
    let hashes = local_hashes(ids, model.card.blocks.block_size as usize, &scope);
    *spent.hashing_s.get_or_insert(0.0) += start.elapsed().as_secs_f64();
    hashes.into()
}

pub(crate) fn render(model: &Model, text: &Text, chat: &ChatPrompt, spent: &mut Spent) -> Result<String> {
    let start = Instant::now();
    let now_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
    let rendered = model.template(text)?.render(&RenderInput {
        messages: &chat.messages,
        tools: chat.tools.as_ref(),
        add_generation_prompt: chat.add_generation_prompt,
        continue_final_message: chat.continue_final_message,
        kwargs: &chat.kwargs,
        now_unix_s,
    })?;
    *spent.template_s.get_or_insert(0.0) += start.elapsed().as_secs_f64();
    Ok(rendered)
}

/// `plain`: not rendered by a template, so the model's special tokens are put around it.
pub(crate) fn encode(
    model: &Model,
    text: &Text,
    prompt: &str,
    plain: bool,
    spent: &mut Spent,
) -> Result<Vec<u32>> {
    let start = Instant::now();
    let mut ids = text.tokenizer.encode(prompt, plain)?;
    let special = &model.card.special;
    if plain
        && special.add_bos
        && let Some(bos) = special.bos
        && ids.first() != Some(&bos)
    {
        ids.insert(0, bos);
    }
    *spent.tokenize_s.get_or_insert(0.0) += start.elapsed().as_secs_f64();
    Ok(ids)
}

/// Answer tokens a prompt of `prompt_len` leaves room for, at most `asked`.
fn room(card: &dynamo_types::ModelCard, prompt_len: usize, asked: Option<u32>) -> Result<u32> {
    if prompt_len == 0 {
        return Err(Error::invalid("the prompt has no tokens; at least 1 is needed"));
    }
    let left =
        u32::try_from(prompt_len).ok().and_then(|len| card.context_length.checked_sub(len)).unwrap_or(0);
    if left == 0 {
        return Err(Error::invalid(format!(
            "This model's maximum context length is {} tokens, prompt and answer together. The prompt has {prompt_len} \
             tokens, which leaves no room for an answer.",
            card.context_length
        ))
        .with_code("context_length_exceeded"));
    }
    Ok(asked.map_or(left, |asked| asked.min(left)))
}

/// 501 for a model whose engines cannot hold an answer to a grammar.
fn check_guide(model: &Model, plan: &Plan) -> Result<()> {
    match plan.guide.as_ref().filter(|_| !model.card.guided) {
        Some(guide) => Err(Error::client(
            Class::NotImplemented,
            format!(
                "`{}` asks for structured output, which the engine of model `{}` does not implement",
                guide.field(),
                model.name()
            ),
        )
        .with_param(guide.field())
        .with_code("unsupported_parameter")),
        None => Ok(()),
    }
}

/// Ids the engine would have to refuse.
fn check_ids(model: &Model, plan: &Plan) -> Result<()> {
    let vocab_size = model.card.vocab_size;
    let biased = plan.sampling.logit_bias.iter().map(|&(id, _)| ("logit_bias", id));
    let stops = plan.stopping.stop_token_ids.iter().map(|&id| ("stop_token_ids", id));
    match biased.chain(stops).find(|&(_, id)| id >= vocab_size) {
        Some((field, id)) => Err(Error::invalid(format!(
            "`{field}` names token id {id}; the vocabulary of the model has {vocab_size} entries"
        ))
        .with_param(field)),
        None => Ok(()),
    }
}
