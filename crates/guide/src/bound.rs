//! The grammar of answers in which calls in the model's own format are held to the schemas of their tools. What a model says
//! around them is free.

use crate::framed::{ids, marker};
use crate::grammar::{answer, literal};
use crate::vocabulary::{Piece, Special};
use dynamo_types::{BoundCalls, Guide};
use llguidance::api::GrammarWithLexer;
use std::fmt::Write;

/// What models write between a marker and what it announces.
const SPACE: &str = "SPACE: /[ \\t\\r\\n]{1,8}/\n";

/// How the marker of calls comes in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    /// As one token, which is in no text.
    Token(u32),
    /// As text, which may come in pieces.
    Text,
}

/// The rules of a `block`, what follows its marker, and the grammars of the arguments in it.
///
/// # Errors
/// Why a schema is none.
pub(crate) fn block(
    calls: &BoundCalls,
    special: &Special,
    text: &mut String,
) -> Result<Vec<GrammarWithLexer>, String> {
    let mut grammars = Vec::new();
    let mut ways = Vec::new();
    for (index, call) in calls.calls.iter().enumerate() {
        let schema = answer(&Guide::JsonSchema(call.schema.clone()), false)?;
        let Some(mut arguments) = schema.grammars.into_iter().next() else { continue };
        let name = format!("arguments_{index}");
        ways.push(format!("{}@{name} {}", marker(&call.head, special), marker(&call.tail, special)));
        arguments.name = Some(name);
        grammars.push(arguments);
    }
    text.push_str(SPACE);
    let (open, close) = (marker(&calls.open, special), marker(&calls.close, special));
    let more = match &calls.between {
        Some(between) => format!("({}call)*", marker(between, special)),
        None => String::new(),
    };
    // Writing to a String cannot fail.
    let _ = writeln!(text, "call: {}", ways.join(" | "));
    let _ = writeln!(text, "block: SPACE? {open}call {more} SPACE? {close}");
    Ok(grammars)
}

/// The rule `tail` of an answer that is free text and calls. False where the marker is neither a token nor text.
pub(crate) fn prose(calls: &BoundCalls, special: &Special, text: &mut String) -> bool {
    let Some(opening) = opening(&calls.opener, special) else { return false };
    let others = calls.others.iter().filter_map(|other| Some((other, self::opening(other, special)?)));
    let (mut banned, mut patterns) = (Vec::new(), Vec::new());
    for (name, opening) in others.chain([(&calls.opener, opening)]) {
        match opening {
            Opening::Token(id) => banned.push(id),
            Opening::Text => {
                let mut pattern = String::new();
                literal(name, &mut pattern);
                patterns.push(pattern);
            }
        }
    }
    text.push_str("PLAIN: /(?s:.+)/");
    if !patterns.is_empty() {
        let _ = write!(text, " & ~/(?s:.*)({})(?s:.*)/", patterns.join("|"));
    }
    text.push('\n');
    let tokens = ids(special.inner().filter(|id| !banned.contains(id)));
    let lead = if tokens.is_empty() { String::new() } else { format!("(PLAIN? {tokens})*") };
    match opening {
        Opening::Token(id) => {
            let _ = writeln!(text, "tail: ({lead} PLAIN? {} block)* {lead} PLAIN?", ids([id]));
        }
        Opening::Text => {
            let mut pattern = String::new();
            literal(&calls.opener, &mut pattern);
            let _ = writeln!(text, "opened[lazy]: /(?s:.*){pattern}/");
            let _ = writeln!(text, "tail: ({lead} opened block)* {lead} PLAIN?");
        }
    }
    true
}

/// The marker and its block, once and again, as an answer of nothing else.
pub(crate) fn only(calls: &BoundCalls, special: &Special) -> String {
    let opener = marker(&calls.opener, special);
    format!("{opener}block (SPACE? {opener}block)* SPACE?")
}

fn opening(marker: &str, special: &Special) -> Option<Opening> {
    match special.pieces(marker).as_slice() {
        [Piece::Token(id)] => Some(Opening::Token(*id)),
        [Piece::Text(_)] => Some(Opening::Text),
        _ => None,
    }
}
