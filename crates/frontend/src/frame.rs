//! What a grammar has to leave room for around the answer to a conversation.

use crate::plan::Plan;
use dynamo_text::parsers::{Start, call_form, reasoning_surrounding, tool_openers};
use dynamo_types::{BoundCall, BoundCalls, Frame, Guide, ModelCard};
use serde_json::Value;

/// The guide of an answer that begins with `start`; `None` for answers to plain text.
pub(crate) fn guide(card: &ModelCard, plan: &Plan, start: Option<Start>) -> Option<Guide> {
    let Some(start) = start else { return plan.guide.clone() };
    let parser = card.tool_parser.as_deref().filter(|_| plan.tools.is_some() && plan.forced.is_none());
    let bound = parser.filter(|_| card.guided).and_then(|name| bound(name, plan));
    let guide = match &bound {
        Some(_) => plan.guide.clone().unwrap_or(Guide::Text),
        None => plan.guide.clone()?,
    };
    let surrounding = card.reasoning_parser.as_deref().map(|name| reasoning_surrounding(name, start));
    let surrounding = surrounding.unwrap_or_default();
    // Where the model may call, the form of its text is asked for only if it writes one.
    let calls = parser.filter(|_| bound.is_none()).map(tool_openers).unwrap_or_default();
    if surrounding.reasoning.is_none() && surrounding.head.is_empty() && calls.is_empty() && bound.is_none() {
        return Some(guide);
    }
    Some(Guide::Framed(Box::new(Frame {
        reasoning: surrounding.reasoning,
        head: surrounding.head.into(),
        calls: calls.into_iter().map(Into::into).collect(),
        bound,
        ..guide.into_frame()
    })))
}

/// The calls that the model may make of itself, where some have to be exact. None too where its family writes arguments in
/// another form than JSON.
fn bound(parser: &str, plan: &Plan) -> Option<BoundCalls> {
    if plan.strict_calls.is_empty() {
        return None;
    }
    let form = call_form(parser)?;
    let is_json = form.head.ends_with('"');
    let calls = plan.strict_calls.iter().map(|(name, schema)| {
        let quoted = Value::from(name.as_str()).to_string();
        let name = if is_json { &quoted[1..quoted.len() - 1] } else { name };
        BoundCall {
            head: [form.head, name, form.neck].concat().into(),
            schema: schema.as_str().into(),
            tail: form.tail.into(),
        }
    });
    let others = tool_openers(parser).into_iter().filter(|opener| *opener != form.opener);
    Some(BoundCalls {
        opener: form.opener.into(),
        others: others.map(Into::into).collect(),
        open: form.open.into(),
        calls: calls.collect(),
        between: form.between.map(Into::into),
        close: form.close.into(),
    })
}
