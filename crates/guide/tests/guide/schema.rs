//! Just enough of JSON schema to judge what was written against the schemas of these tests. Says no to keywords that it
//! does not know.

use llguidance::derivre::Regex;
use serde_json::Value;

/// Does `value` satisfy `schema`? `root` holds the definitions.
///
/// # Errors
/// What does not hold.
pub(crate) fn validate(value: &Value, schema: &Value, root: &Value) -> Result<(), String> {
    let keywords = match schema {
        Value::Bool(true) => return Ok(()),
        Value::Object(keywords) => keywords,
        _ => return Err(format!("{value}: nothing is allowed here")),
    };
    for (keyword, limit) in keywords {
        if !holds(keyword, limit, value, schema, root)? {
            return Err(format!("{value} violates {keyword}: {limit}"));
        }
    }
    Ok(())
}

fn holds(keyword: &str, limit: &Value, value: &Value, schema: &Value, root: &Value) -> Result<bool, String> {
    let number = value.as_f64();
    let bound = limit.as_f64().unwrap_or(f64::NAN);
    let length = value.as_str().map(|text| text.chars().count() as f64);
    let items = value.as_array();
    let count = items.map(|items| items.len() as f64);
    Ok(match keyword {
        "$defs" => true,
        "$ref" => {
            let place = limit.as_str().and_then(|reference| reference.strip_prefix('#')).unwrap_or("?");
            let target = root.pointer(place).ok_or_else(|| format!("no {place}"))?;
            validate(value, target, root).map(|()| true)?
        }
        "type" => match limit {
            Value::Array(kinds) => kinds.iter().any(|kind| is_a(value, kind)),
            kind => is_a(value, kind),
        },
        "enum" => limit.as_array().is_some_and(|values| values.contains(value)),
        "const" => limit == value,
        "minimum" => number.is_none_or(|number| number >= bound),
        "maximum" => number.is_none_or(|number| number <= bound),
        "exclusiveMinimum" => number.is_none_or(|number| number > bound),
        "exclusiveMaximum" => number.is_none_or(|number| number < bound),
        "multipleOf" => number.is_none_or(|number| number % bound == 0.0),
        "minLength" => length.is_none_or(|length| length >= bound),
        "maxLength" => length.is_none_or(|length| length <= bound),
        "minItems" => count.is_none_or(|count| count >= bound),
        "maxItems" => count.is_none_or(|count| count <= bound),
        "pattern" => match (value.as_str(), limit.as_str()) {
            (Some(text), Some(pattern)) => {
                let pattern = pattern.trim_start_matches('^').trim_end_matches('$');
                Regex::new(pattern).map_err(|error| error.to_string())?.is_match(text)
            }
            _ => true,
        },
        "anyOf" => limit
            .as_array()
            .is_some_and(|options| options.iter().any(|option| validate(value, option, root).is_ok())),
        "required" => value.as_object().is_none_or(|object| {
            limit
                .as_array()
                .into_iter()
                .flatten()
                .all(|name| object.contains_key(name.as_str().unwrap_or("")))
        }),
        "properties" => {
            for (name, part) in limit.as_object().into_iter().flatten() {
                value.get(name).map_or(Ok(()), |value| validate(value, part, root))?;
            }
            true
        }
        "additionalProperties" => {
            let known = |name: &str| schema["properties"].get(name).is_some();
            for (name, value) in value.as_object().into_iter().flatten().filter(|(name, _)| !known(name)) {
                validate(value, limit, root).map_err(|error| format!("{name}: {error}"))?;
            }
            true
        }
        "prefixItems" => {
            let parts = limit.as_array().into_iter().flatten();
            for (value, part) in items.into_iter().flatten().zip(parts) {
                validate(value, part, root)?;
            }
            true
        }
        "items" => {
            let before = schema["prefixItems"].as_array().map_or(0, Vec::len);
            for value in items.into_iter().flatten().skip(before) {
                validate(value, limit, root)?;
            }
            true
        }
        other => return Err(format!("this validator knows no {other}")),
    })
}

fn is_a(value: &Value, kind: &Value) -> bool {
    match kind.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("number") => value.is_number(),
        Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => false,
    }
}
