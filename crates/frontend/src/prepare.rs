//! From a call to token ids: template, tokenizer, context limit.

use crate::frame;
use crate::metrics::Metrics;
use crate::model::{Model, Offer, Text};
use crate::plan::{ChatPrompt, Plan, Prompt, Rendered};
use crate::shared::Shared;
use crate::thinking::{Settled, settle};
use dynamo_protocols::openai::embeddings;
use dynamo_text::parsers::{Start, reasoning_start};
use dynamo_text::{PromptText, RenderInput};
use dynamo_types::hash::{Scope, local_hashes};
use dynamo_types::{Class, Error, Guide, Result, Task, ThinkingLimit};
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Bodies above this are parsed, rendered and tokenised on a thread of their own: a few milliseconds of work, in the worst
/// case, is what one request may cost the others on the event loop. Usual text of this size takes a fraction of one, for
/// which two trips to another thread would be too dear.
const INLINE_BYTES: usize = 32 * 1024;

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
    let log = tracing::Span::current();
    let task = tokio::task::spawn_blocking(move || {
        let result = log.in_scope(work);
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
    /// Its text, where the answer shows it.
    pub(crate) text: Option<String>,
    /// Where that came from.
    pub(crate) source: PromptText,
    /// Answer tokens it leaves room for, and the request asks for.
    pub(crate) max_tokens: u32,
    /// How the answer to a conversation begins.
    pub(crate) start: Option<Start>,
    /// What holds the answer to a form.
    pub(crate) guide: Option<Guide>,
    /// How long it may think.
    pub(crate) thinking: Option<ThinkingLimit>,
    /// Request fields that nobody has a use for.
    pub(crate) ignored: Vec<&'static str>,
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
        self.tokenize_s.into_iter().for_each(|seconds| {
            metrics.tokenize.observe(seconds);
            metrics.tokenize_ms.observe(seconds * 1000.0);
        });
        self.hashing_s.into_iter().for_each(|seconds| metrics.routing.hashing_ms.observe(seconds * 1000.0));
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
    if fits {
        check_guide(model, plan)?;
    }
    let mut spent = Spent::default();
    let batched = prompts.len() > 1;
    let mut all = Vec::with_capacity(prompts.len());
    for (index, prompt) in prompts.into_iter().enumerate() {
        let tokens = one(model, text, plan, prompt, fits, &mut spent);
        all.push(tokens.map_err(|error| match (error.param(), batched) {
            // Templates know a conversation as `messages`; its client may not.
            (Some(param), _) if param.starts_with("messages") && plan.prompt_field == "input" => {
                error.with_param(plan.prompt_field)
            }
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
    let mut is_rendered = false;
    let mut source = PromptText::Given { added: 0 };
    let encoded = |prompt: &str, plain: bool, spent: &mut Spent| {
        if fits {
            check_size(model, text, plan.task, prompt)?;
        }
        encode(model, text, prompt, plain, spent)
    };
    let (ids, shown) = match prompt {
        Prompt::Tokens(ids) => {
            check_prompt(model, &ids)?;
            source = PromptText::Decoded;
            let shown = plan.shows_prompt.then(|| text.tokenizer.decode(&ids, plan.skip_special_tokens));
            (ids, shown)
        }
        Prompt::Text(prompt) => {
            let ids = encoded(&prompt, plan.add_special_tokens, spent)?;
            if plan.shows_prompt && plan.output.prompt_logprobs.is_some() {
                source = PromptText::Given { added: added(text, &prompt, &ids)? };
            }
            (ids, plan.shows_prompt.then_some(prompt))
        }
        Prompt::Chat(chat) => {
            let rendered = render(model, text, &chat, spent)?;
            start = Some(begins(model, chat.continue_final_message, &rendered));
            is_rendered = true;
            (encoded(&rendered, false, spent)?, plan.shows_prompt.then_some(rendered))
        }
        Prompt::Rendered(rendered) => {
            let (ids, rendered) = match rendered {
                Rendered::Text(prompt) => (encoded(&prompt, true, spent)?, prompt),
                Rendered::Tokens(ids) => {
                    check_prompt(model, &ids)?;
                    let shown = text.tokenizer.decode(&ids, false);
                    (ids, shown)
                }
            };
            start = Some(begins(model, false, &rendered));
            (ids, plan.shows_prompt.then_some(rendered))
        }
    };
    let max_tokens = match plan.task {
        Task::Generate if fits => room(&model.card, ids.len(), plan.max_tokens)?,
        Task::Generate => 0,
        Task::Embed => check_context(&model.card, ids.len()).map(|()| 0)?,
    };
    let hashes = (model.by_prefix && fits).then(|| match plan.task {
        Task::Generate => hashes(model, plan, &ids, spent),
        // Every position has to be computed, whatever is cached of the prompt.
        Task::Embed => Arc::default(),
    });
    let guide = frame::guide(&model.card, plan, start);
    let settled = start.map(|start| settle(&model.card, &text.tokenizer, plan, start, is_rendered));
    let Settled { limit: thinking, ignored } = settled.unwrap_or_default();
    Ok(Tokens { ids: ids.into(), hashes, text: shown, source, max_tokens, start, guide, thinking, ignored })
}

/// Tokens that stand in front of those of the text itself.
fn added(text: &Text, prompt: &str, ids: &[u32]) -> Result<usize> {
    let bare = text.tokenizer.encode(prompt, false)?;
    let most = ids.len().saturating_sub(bare.len());
    Ok((0..=most).find(|&added| ids.get(added..).is_some_and(|rest| rest.starts_with(&bare))).unwrap_or(0))
}

/// Ids of a prompt that the engine would have to refuse.
fn check_prompt(model: &Model, ids: &[u32]) -> Result<()> {
    let vocab_size = model.card.vocab_size;
    match ids.iter().find(|&&id| id >= vocab_size) {
        Some(id) => Err(Error::invalid(format!(
            "token id {id} is not in the vocabulary of the model, which has {vocab_size} entries"
        ))),
        None => Ok(()),
    }
}

/// Does the rendered prompt open reasoning, or close it? Text of the assistant that the answer continues is behind it.
fn begins(model: &Model, continue_final_message: bool, rendered: &str) -> Start {
    let Some(parser) = &model.card.reasoning_parser else { return Start::Default };
    match reasoning_start(parser, rendered) {
        Start::Default if continue_final_message => Start::Content,
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
        return Err(too_long(card, Task::Generate, prompt_len));
    }
    Ok(asked.map_or(left, |asked| asked.min(left)))
}

/// `found`: tokens.
fn too_long(card: &dynamo_types::ModelCard, task: Task, found: impl Display) -> Error {
    let context = card.context_length;
    let text = match task {
        Task::Generate => format!(
            "This model's maximum context length is {context} tokens, prompt and answer together. The prompt has {found} \
             tokens, which leaves no room for an answer."
        ),
        Task::Embed => {
            format!("This model's maximum context length is {context} tokens. The input has {found} tokens.")
        }
    };
    Error::invalid(text).with_code("context_length_exceeded")
}

/// A text that cannot fit, whatever its tokens are, is refused before they are looked for.
fn check_size(model: &Model, text: &Text, task: Task, prompt: &str) -> Result<()> {
    let context = model.card.context_length as usize;
    if prompt.len() <= context {
        return Ok(());
    }
    let least = text.tokenizer.least_tokens(prompt);
    if least <= context {
        return Ok(());
    }
    Err(too_long(&model.card, task, format_args!("at least {least}")))
}

/// An embedding needs no room for an answer.
fn check_context(card: &dynamo_types::ModelCard, prompt_len: usize) -> Result<()> {
    if prompt_len == 0 {
        return Err(Error::invalid("the input has no tokens; at least 1 is needed"));
    }
    if prompt_len > card.context_length as usize {
        return Err(too_long(card, Task::Embed, prompt_len));
    }
    Ok(())
}

/// Is there a worker that does what is asked for, with vectors of the length that is?
///
/// # Errors
/// 501 where none does, 503 while all who do are leaving, 400 for another length.
pub(crate) fn check_task(model: &Model, plan: &Plan) -> Result<()> {
    let pinned = plan.routing.worker;
    // Usual, and quick.
    if plan.task == Task::Generate && pinned.is_none() && model.card.offers(Task::Generate) {
        return Ok(());
    }
    let card = match model.offering(plan.task, pinned) {
        Offer::Now(card) => card,
        Offer::Later => return Err(model.deserted()),
        Offer::Never => {
            let what = match plan.task {
                Task::Generate => "generates text",
                Task::Embed => "makes embeddings",
            };
            let text = match pinned {
                Some(worker) => format!("The pinned worker {} is none that {what}", worker.0),
                None => format!("The model `{}` does not have a worker that {what}", model.name()),
            };
            return Err(Error::client(Class::NotImplemented, text)
                .with_param(if pinned.is_some() { "nvext.backend_instance_id" } else { "model" })
                .with_code("unsupported_task"));
        }
    };
    match card.embedding_size {
        Some(size) if plan.task == Task::Embed => embeddings::check_dimensions(plan.dimensions, size),
        _ => Ok(()),
    }
}

/// 501 for a model whose engines cannot hold an answer to a grammar.
fn check_guide(model: &Model, plan: &Plan) -> Result<()> {
    let Some(guide) = plan.guide.as_ref().filter(|_| !model.card.guided) else { return Ok(()) };
    let field = if plan.forced.is_some() { "tool_choice" } else { guide.field() };
    let text = format!(
        "`{field}` asks for structured output, which the engine of model `{}` does not implement",
        model.name()
    );
    Err(Error::client(Class::NotImplemented, text).with_param(field).with_code("unsupported_parameter"))
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
