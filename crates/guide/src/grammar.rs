//! From a guide to the grammar that is compiled.

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
pub(crate) fn grammar(guide: &Guide) -> Result<TopLevelGrammar, String> {
    match guide {
        Guide::JsonSchema(text) => {
            let schema = serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?;
            json_schema(schema)
        }
        Guide::JsonObject => json_schema(json!({"type": "object"})),
        Guide::Regex(pattern) => {
            check_nesting(pattern)?;
            Ok(TopLevelGrammar::from_regex(pattern))
        }
        Guide::Choice(texts) => choice(texts),
        Guide::Lark(text) => {
            check_nesting(text)?;
            Ok(TopLevelGrammar::from_lark(text.to_string()))
        }
    }
}

fn json_schema(schema: Value) -> Result<TopLevelGrammar, String> {
    let mut schema = match schema {
        Value::Object(schema) => schema,
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err("nothing satisfies the schema `false`".into()),
        _ => return Err("a schema is an object".into()),
    };
    // How the compiler reads the schema; not the client's to say, because it can give up exactness.
    schema.insert("x-guidance".into(), json!({ "whitespace_pattern": WHITESPACE }));
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
        for character in text.chars() {
            // Writing to a String cannot fail.
            let _ = match character.is_ascii_alphanumeric() || !character.is_ascii() {
                true => write!(pattern, "{character}"),
                false => write!(pattern, "\\x{{{:x}}}", u32::from(character)),
            };
        }
    }
    Ok(TopLevelGrammar::from_regex(&pattern))
}

fn check_nesting(text: &str) -> Result<(), String> {
    let (mut depth, mut deepest) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    match deepest > MAX_NESTING {
        true => Err(format!("brackets are nested {deepest} deep, at most {MAX_NESTING} are allowed")),
        false => Ok(()),
    }
}
