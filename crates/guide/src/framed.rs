//! The grammar of an answer with reasoning in front of it, or tool calls in its place.

use crate::bound;
use crate::grammar::{answer, literal};
use crate::vocabulary::{Piece, Special};
use dynamo_types::{Frame, Guide, Reasoning};
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use std::fmt::Write;

/// The answer's own grammar, as the one around it refers to it.
const ANSWER: &str = "answer";

/// Text of any length, line breaks included.
const TEXT: &str = "TEXT: /(?s:.+)/\n";

/// What models write between reasoning and answer, and parsers drop.
const GAP: &str = "GAP: /\\n{1,2}/\n";

/// # Errors
/// Why the answer's guide is none.
pub(crate) fn framed(frame: &Frame, special: &Special) -> Result<TopLevelGrammar, String> {
    let mut grammars = answer(&frame.answer, frame.is_lenient)?;
    if frame.reasoning.is_none() && frame.head.is_empty() && frame.calls.is_empty() && frame.bound.is_none() {
        return Ok(grammars);
    }
    if let Some(own) = grammars.grammars.first_mut() {
        own.name = Some(ANSWER.into());
    }
    let mut text = String::from(TEXT);
    let mut is_prose = false;
    if let Some(calls) = frame.bound.as_ref().filter(|calls| !calls.calls.is_empty()) {
        grammars.grammars.extend(bound::block(calls, special, &mut text)?);
        is_prose = frame.answer == Guide::Text && bound::prose(calls, special, &mut text);
    }
    if !is_prose {
        tail(frame, special, &mut text);
    }
    match &frame.reasoning {
        None => text += "start: tail\n",
        Some(reasoning) => reason(reasoning, special, &mut text),
    }
    if is_prose {
        // Nothing refers to it.
        grammars.grammars.remove(0);
    }
    let around = GrammarWithLexer { lark_grammar: Some(text), ..GrammarWithLexer::default() };
    grammars.grammars.insert(0, around);
    Ok(grammars)
}

/// What comes behind reasoning: the answer, or calls.
fn tail(frame: &Frame, special: &Special, text: &mut String) {
    let mut tail = format!("{} @{ANSWER}", marker(&frame.head, special));
    if let Some(calls) = frame.bound.as_ref().filter(|calls| !calls.calls.is_empty()) {
        // Writing to a String cannot fail.
        let _ = write!(tail, " | {}", bound::only(calls, special));
    }
    for call in &frame.calls {
        let _ = write!(tail, " | {} free", marker(call, special));
    }
    if !frame.calls.is_empty() {
        let tokens = ids(special.inner());
        *text += &if tokens.is_empty() {
            "free: TEXT?\n".to_owned()
        } else {
            format!("free: TEXT? ({tokens} TEXT?)*\n")
        };
    }
    let _ = writeln!(text, "tail: {tail}");
}

/// The rules of reasoning and the start rule.
fn reason(reasoning: &Reasoning, special: &Special, text: &mut String) {
    let then = if reasoning.then.is_empty() {
        *text += GAP;
        "GAP?".to_owned()
    } else {
        marker(&reasoning.then, special)
    };
    let is_plain = |closer: &str| special.pieces(closer).iter().all(|piece| matches!(piece, Piece::Text(_)));
    let (plain, tokens): (Vec<_>, Vec<_>) = reasoning.closers.iter().partition(|closer| is_plain(closer));
    let mut ways: Vec<String> =
        tokens.iter().map(|closer| format!("TEXT? {}", marker(closer, special))).collect();
    if !plain.is_empty() {
        // The first closer ends it.
        let mut pattern = String::new();
        for (index, closer) in plain.iter().enumerate() {
            pattern.push_str(if index > 0 { "|" } else { "" });
            literal(closer, &mut pattern);
        }
        let _ = writeln!(text, "closed[lazy]: /(?s:.*)({pattern})/");
        ways.push("closed".into());
    }
    let _ = writeln!(text, "thought: ({}) {then}", ways.join(" | "));
    if reasoning.is_open {
        *text += "start: thought tail\n";
    } else {
        let openers: Vec<_> = reasoning.openers.iter().map(|opener| marker(opener, special)).collect();
        let _ = writeln!(text, "start: (({}) thought)? tail", openers.join(" | "));
    }
}

/// A marker as a sequence of tokens and texts.
pub(crate) fn marker(marker: &str, special: &Special) -> String {
    let mut text = String::new();
    for piece in special.pieces(marker) {
        let _ = match piece {
            Piece::Token(id) => write!(text, "{} ", ids([id])),
            Piece::Text(piece) => {
                let mut pattern = String::new();
                literal(piece, &mut pattern);
                write!(text, "/{pattern}/ ")
            }
        };
    }
    text
}

/// One of these tokens.
pub(crate) fn ids(ids: impl IntoIterator<Item = u32>) -> String {
    let list: Vec<_> = ids.into_iter().map(|id| id.to_string()).collect();
    if list.is_empty() { String::new() } else { format!("<[{}]>", list.join(",")) }
}
