//! From a guide to the grammar that is compiled.

use crate::framed::framed;
use crate::vocabulary::Special;
use dynamo_types::Guide;
use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// Between two JSON tokens: nothing, a space, or a new line with its indentation. Without a bound, a model that likes white
/// space would write nothing else until it runs out of tokens.
const WHITESPACE: &str = r" |\r?\n[ \t]{0,32}";

/// Brackets inside brackets. The compiler recurses.
const MAX_NESTING: usize = 200;

/// # Errors
/// Why the guide is none, for the client.
pub(crate) fn grammar(guide: &Guide, special: &Special) -> Result<TopLevelGrammar, String> {
    match guide {
        Guide::Framed(frame) => framed(frame, special),
        guide => answer(guide, false),
    }
}

/// The grammar of an answer by itself. `is_lenient`: what of a schema is not known is left out.
pub(crate) fn answer(guide: &Guide, is_lenient: bool) -> Result<TopLevelGrammar, String> {
    match guide {
        Guide::JsonSchema(text) => {
            let schema = serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?;
            json_schema(schema, is_lenient)
        }
        Guide::JsonObject => json_schema(json!({"type": "object"}), is_lenient),
        Guide::Regex(pattern) => {
            check_nesting(pattern, Notation::Regex)?;
            Ok(TopLevelGrammar::from_regex(pattern))
        }
        Guide::Choice(texts) => choice(texts),
        Guide::Lark(text) => {
            check_nesting(text, Notation::Lark)?;
            Ok(TopLevelGrammar::from_lark(text.to_string()))
        }
        Guide::Text => Ok(TopLevelGrammar::from_regex("(?s:.*)")),
        Guide::Framed(_) => Err("a frame holds no other frame".into()),
    }
}

fn json_schema(schema: Value, is_lenient: bool) -> Result<TopLevelGrammar, String> {
    let mut schema = match schema {
        Value::Object(schema) => schema,
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err("nothing satisfies the schema `false`".into()),
        _ => return Err("a schema is an object".into()),
    };
    // How the compiler reads the schema; not the client's to say, because it can give up exactness.
    schema.insert("x-guidance".into(), json!({ "whitespace_pattern": WHITESPACE, "lenient": is_lenient }));
    Ok(TopLevelGrammar::from_json_schema(Value::Object(schema)))
}

fn choice(texts: &[String]) -> Result<TopLevelGrammar, String> {
    if texts.is_empty() {
        return Err("there is nothing to choose from".into());
    }
    let mut pattern = String::new();
    for (index, text) in texts.iter().enumerate() {
        if index > 0 {
            pattern.push('|');
        }
        literal(text, &mut pattern);
    }
    Ok(TopLevelGrammar::from_regex(&pattern))
}

/// Appends a pattern of exactly this text.
pub(crate) fn literal(text: &str, pattern: &mut String) {
    for character in text.chars() {
        // Writing to a String cannot fail.
        let _ = match character.is_ascii_alphanumeric() || !character.is_ascii() {
            true => write!(pattern, "{character}"),
            false => write!(pattern, "\\x{{{:x}}}", u32::from(character)),
        };
    }
}

fn check_nesting(text: &str, notation: Notation) -> Result<(), String> {
    let deepest = nesting(text, notation);
    match deepest > MAX_NESTING {
        true => Err(format!("brackets are nested {deepest} deep, at most {MAX_NESTING} are allowed")),
        false => Ok(()),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Notation {
    Regex,
    Lark,
}

/// How deep brackets are nested; those that stand for themselves do not count. In Lark those inside the classes of regular
/// expressions do: rather refuse too much than misread where a class begins, for nobody counts after us. (Regular expressions
/// are counted again by their own parser.)
fn nesting(text: &str, notation: Notation) -> usize {
    let (mut depth, mut deepest, mut classes) = (0usize, 0, 0usize);
    let mut bytes = text.bytes().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => {
                bytes.next();
            }
            b'[' => {
                depth += 1;
                if notation == Notation::Regex {
                    classes += 1;
                    // At the start of a class a closing bracket is one of its characters.
                    bytes.next_if_eq(&b'^');
                    bytes.next_if_eq(&b']');
                }
            }
            b']' => {
                depth = depth.saturating_sub(1);
                classes = classes.saturating_sub(1);
            }
            b'(' | b'{' if classes == 0 => depth += 1,
            b')' | b'}' if classes == 0 => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_that_stand_for_themselves_are_not_nested() {
        let many = |piece: &str| piece.repeat(MAX_NESTING + 50);
        for (text, notation, depth) in [
            (many(r"\("), Notation::Regex, 0),
            (many(r"\{\["), Notation::Regex, 0),
            (many("[(]"), Notation::Regex, 1),
            (many("[](]"), Notation::Regex, 1),
            (many("[^](]"), Notation::Regex, 1),
            (many(r"[\](]"), Notation::Regex, 1),
            (many("(a)"), Notation::Regex, 1),
            (many(r"(\\)"), Notation::Regex, 1),
            (format!("start: {}", many(r"/\(/ ")), Notation::Lark, 0),
            (format!("start: {}", many(r#"("a\"(" | "b")"#)), Notation::Lark, MAX_NESTING + 51),
        ] {
            assert_eq!(nesting(&text, notation), depth, "{text:.20}");
        }
        for notation in [Notation::Regex, Notation::Lark] {
            assert!(check_nesting(&many("("), notation).is_err());
            assert!(check_nesting(&many(r"\\("), notation).is_err());
            assert!(check_nesting(&many("["), notation).is_err());
        }
    }
}
