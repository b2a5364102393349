//! What a grammar has to leave room for around the answer to a conversation, and what of a request a template cannot use.

use crate::plan::Plan;
use dynamo_protocols::openai::chat::Hint;
use dynamo_text::parsers::{Start, reasoning_surrounding, tool_openers};
use dynamo_types::{Frame, Guide, ModelCard};

/// The guide of an answer that begins with `start`; `None` for answers to plain text.
pub(crate) fn guide(card: &ModelCard, plan: &Plan, start: Option<Start>) -> Option<Guide> {
    let guide = plan.guide.clone()?;
    let Some(start) = start else { return Some(guide) };
    let surrounding = card.reasoning_parser.as_deref().map(|name| reasoning_surrounding(name, start));
    let surrounding = surrounding.unwrap_or_default();
    // Where the model may call, the form of its text is asked for only if it writes one.
    let calls = match &card.tool_parser {
        Some(name) if plan.tools.is_some() && plan.forced.is_none() => tool_openers(name),
        _ => Vec::new(),
    };
    if surrounding.reasoning.is_none() && surrounding.head.is_empty() && calls.is_empty() {
        return Some(guide);
    }
    Some(Guide::Framed(Box::new(Frame {
        reasoning: surrounding.reasoning,
        head: surrounding.head.into(),
        calls: calls.into_iter().map(Into::into).collect(),
        ..guide.into_frame()
    })))
}

/// Fields that the template has no variable for.
pub(crate) fn ignored(card: &ModelCard, hints: &[Hint]) -> Vec<&'static str> {
    let source = card.chat_template.as_ref().map_or("", |template| &*template.source);
    let is_unknown = |hint: &&Hint| !hint.variables.iter().any(|name| source.contains(name));
    hints.iter().filter(is_unknown).map(|hint| hint.field).collect()
}
