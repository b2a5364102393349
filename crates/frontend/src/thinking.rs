//! What becomes of a request's wishes about thinking: the template hears of them, the engine sees to them, or they are named as
//! without effect.

use crate::plan::Plan;
use dynamo_protocols::openai::chat::{Hint, Limit};
use dynamo_text::Tokenizer;
use dynamo_text::parsers::{Bounds, Start, reasoning_bounds, tool_openers};
use dynamo_types::{ModelCard, ThinkingLimit};
use std::sync::Arc;

/// What calls begin with that have no marker.
const BRACKETS: &[&str] = &["{", "["];

/// What was found out for one prompt.
#[derive(Default)]
pub(crate) struct Settled {
    pub(crate) limit: Option<ThinkingLimit>,
    /// Request fields without effect.
    pub(crate) ignored: Vec<&'static str>,
}

/// For an answer that begins with `start`. `is_rendered`: the model's template made the prompt.
pub(crate) fn settle(
    card: &ModelCard,
    tokenizer: &Tokenizer,
    plan: &Plan,
    start: Start,
    is_rendered: bool,
) -> Settled {
    if plan.hints.is_empty() {
        return Settled::default();
    }
    let source = card.chat_template.as_ref().filter(|_| is_rendered).map_or("", |template| &*template.source);
    let (tokens, _) = fewest(&plan.hints, source, true);
    let limit = tokens.and_then(|tokens| limit(card, tokenizer, plan, start, tokens));
    let (_, ignored) = fewest(&plan.hints, source, limit.is_some());
    // Whoever rendered the prompt saw to what its template is told.
    let ignored = if is_rendered { ignored } else { Vec::new() };
    Settled { limit, ignored }
}

/// The least that is asked for, and the fields nobody takes notice of. `can_limit`: the engine takes notice of limits.
fn fewest(hints: &[Hint], source: &str, can_limit: bool) -> (Option<u32>, Vec<&'static str>) {
    let (mut fewest, mut ignored) = (None::<u32>, Vec::new());
    for hint in hints {
        let is_known = hint.variables.iter().any(|name| source.contains(name));
        let tokens = match hint.limit {
            Limit::Always(tokens) => Some(tokens),
            Limit::Instead(tokens) if !is_known => Some(tokens),
            Limit::Instead(_) | Limit::None => None,
        };
        fewest = fewest.into_iter().chain(tokens).min();
        // A model that is not known to think does without.
        if !is_known && tokens != Some(0) && (tokens.is_none() || !can_limit) {
            ignored.push(hint.field);
        }
    }
    (fewest, ignored)
}

/// None: nobody could hold it.
fn limit(
    card: &ModelCard,
    tokenizer: &Tokenizer,
    plan: &Plan,
    start: Start,
    tokens: u32,
) -> Option<ThinkingLimit> {
    let name = card.reasoning_parser.as_deref().filter(|_| card.limits_thinking)?;
    let Bounds { is_open, openers, closers, ends } = reasoning_bounds(name, start)?;
    let ends = ends.iter().map(|end| spelled(card, tokenizer, end)).collect::<Option<_>>()?;
    let texts = |markers: Vec<&str>| markers.into_iter().map(Arc::from).collect();
    Some(ThinkingLimit {
        tokens,
        is_open,
        openers: texts(openers),
        closers: texts(closers),
        calls: texts(calls(card, plan)),
        ends,
    })
}

/// What begins a call in this answer.
fn calls(card: &ModelCard, plan: &Plan) -> Vec<&'static str> {
    let parser = card.tool_parser.as_deref().filter(|_| plan.tools.is_some());
    match (parser.map(tool_openers), &plan.forced) {
        (Some(markers), None) if !markers.is_empty() => markers,
        (None, None) => Vec::new(),
        _ => BRACKETS.to_vec(),
    }
}

/// A marker as tokens of the model.
fn spelled(card: &ModelCard, tokenizer: &Tokenizer, marker: &str) -> Option<Vec<u32>> {
    let tokens = match tokenizer.token_id(marker) {
        Some(token) => vec![token],
        None => tokenizer.encode(marker, false).ok()?,
    };
    (!tokens.is_empty() && tokens.iter().all(|&token| token < card.vocab_size)).then_some(tokens)
}
