//! Methods of Python's strings, lists and dictionaries: those of the engine's own collection, and those it lacks or
//! knows with fewer arguments.

use super::format::{format_map, str_format};
use super::text::{is_decimal, repr, text};
use super::weight::{texts, weigh};
use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

/// Widest padding: beyond it a template is up to no good.
pub(super) const MAX_WIDTH: i64 = 65_536;

pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    // The work is in the length of the text, the items compared, and the arguments.
    state.consume_fuel(value.as_str().map_or(0, |text| text.len() as u64 / 64))?;
    if matches!((value.kind(), name), (ValueKind::Seq | ValueKind::Iterable, "index" | "count")) {
        weigh(state, value, 1)?;
    }
    for arg in args {
        weigh(state, arg, 1)?;
    }
    let written: Vec<Value>;
    let args = match (value.kind(), name) {
        (ValueKind::String, "join") => {
            let items =
                args.first().map(Value::try_iter).transpose()?.into_iter().flatten().collect::<Vec<_>>();
            state.consume_fuel((items.len() * (1 + text(value)?.len())) as u64 / 64)?;
            written = vec![Value::from(texts(state, &items)?)];
            &written
        }
        _ => args,
    };
    let found = match value.kind() {
        ValueKind::String if name == "format" => {
            Some(Value::from(str_format(state, value.as_str().unwrap_or_default(), args)?))
        }
        ValueKind::String if name == "format_map" => {
            let (map,): (&Value,) = from_args(args)?;
            Some(Value::from(format_map(state, value.as_str().unwrap_or_default(), map)?))
        }
        ValueKind::String => string(value.as_str().unwrap_or_default(), name, args)?,
        ValueKind::Seq | ValueKind::Iterable => list(value, name, args)?,
        ValueKind::Map if name == "copy" => Some(value.clone()),
        _ => None,
    };
    match found {
        Some(found) => {
            // What it made, in the engine's measure.
            state.consume_fuel(found.as_str().map_or(1, |text| 1 + text.len() as u64 / 64))?;
            Ok(found)
        }
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn fault(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

fn list(value: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "index" => {
            let (wanted,): (Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|item| item == wanted);
            Value::from(at.ok_or_else(|| fault("the value is not in the list"))?)
        }
        "copy" => value.clone(),
        _ => return Ok(None),
    }))
}

fn string(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    if let Some(found) = places(text, name, args)? {
        return Ok(Some(found));
    }
    if let Some(found) = kinds(text, name) {
        return Ok(Some(Value::from(found)));
    }
    Ok(Some(match name {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let parts = match name {
                "partition" => text.split_once(separator).map_or([text, "", ""], |(a, b)| [a, separator, b]),
                _ => text.rsplit_once(separator).map_or(["", "", text], |(a, b)| [a, separator, b]),
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "split" | "rsplit" => split(text, name == "rsplit", args)?,
        "swapcase" => Value::from(text.chars().map(swapped).collect::<String>()),
        "casefold" => Value::from(text.to_lowercase().replace('ß', "ss").replace('ς', "σ")),
        "center" | "ljust" | "rjust" => {
            let (width, fill): (i64, Option<&str>) = from_args(args)?;
            Value::from(padded(text, name, width, fill.unwrap_or(" "))?)
        }
        "zfill" => {
            let (width,): (i64,) = from_args(args)?;
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['-', '+'])));
            Value::from(format!("{sign}{}", padded(digits, "rjust", width - sign.len() as i64, "0")?))
        }
        "expandtabs" => {
            let (size,): (Option<i64>,) = from_args(args)?;
            Value::from(expanded(text, size.unwrap_or(8))?)
        }
        _ => return Ok(None),
    }))
}

/// Upper case for lower case and the other way round.
fn swapped(char: char) -> String {
    if char.is_lowercase() { char.to_uppercase().collect() } else { char.to_lowercase().collect() }
}

/// Questions about the characters of a whole string.
fn kinds(text: &str, name: &str) -> Option<bool> {
    let all = |test: fn(char) -> bool| !text.is_empty() && text.chars().all(test);
    Some(match name {
        "isdecimal" => all(is_decimal),
        "isdigit" => {
            all(|char| is_decimal(char) || matches!(char, '²' | '³' | '¹' | '⁰' | '⁴'..='⁹' | '₀'..='₉'))
        }
        "isnumeric" => all(char::is_numeric),
        "isidentifier" => {
            let word = |char: char| char.is_alphanumeric() || char == '_';
            text.chars().all(word) && text.starts_with(|first: char| first.is_alphabetic() || first == '_')
        }
        "isprintable" => {
            repr(&Value::from(text)).is_ok_and(|shown| !shown.contains('\\') || text.contains('\\'))
        }
        "istitle" => {
            let mut cased = false;
            let mut after_cased = false;
            for char in text.chars() {
                let (upper, lower) = (char.is_uppercase(), char.is_lowercase());
                if (upper && after_cased) || (lower && !after_cased) {
                    return Some(false);
                }
                after_cased = upper || lower;
                cased |= after_cased;
            }
            cased
        }
        _ => return None,
    })
}

/// Methods that look for a text between two places, which count characters.
fn places(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    if !matches!(name, "find" | "rfind" | "index" | "rindex" | "startswith" | "endswith" | "count") {
        return Ok(None);
    }
    let (wanted, start, end): (Value, Option<i64>, Option<i64>) = from_args(args)?;
    let place = |place: Option<i64>, default: usize| match place {
        None => default,
        Some(place) => {
            let count = if place < 0 { text.chars().count() as i64 } else { 0 };
            let place = usize::try_from(place + count).unwrap_or(0);
            text.char_indices().nth(place).map_or(text.len(), |(at, _)| at)
        }
    };
    let (start, end) = (place(start, 0), place(end, text.len()));
    let part = text.get(start..end).unwrap_or_default();
    if matches!(name, "startswith" | "endswith") {
        let is = |wanted: &Value| {
            let wanted =
                wanted.as_str().ok_or_else(|| fault(format!("{name} wants a string or a tuple of them")))?;
            Ok::<bool, Error>(if name == "startswith" {
                part.starts_with(wanted)
            } else {
                part.ends_with(wanted)
            })
        };
        if wanted.kind() == ValueKind::String {
            return Ok(Some(Value::from(is(&wanted)?)));
        }
        for one in wanted.try_iter()? {
            if is(&one)? {
                return Ok(Some(Value::from(true)));
            }
        }
        return Ok(Some(Value::from(false)));
    }
    let wanted = wanted.as_str().ok_or_else(|| fault(format!("{name} wants a string")))?;
    if name == "count" {
        let count = if wanted.is_empty() { part.chars().count() + 1 } else { part.matches(wanted).count() };
        return Ok(Some(Value::from(count)));
    }
    let found = if name.starts_with('r') { part.rfind(wanted) } else { part.find(wanted) };
    match found {
        Some(at) => Ok(Some(Value::from(text[..start + at].chars().count()))),
        None if name.ends_with("find") => Ok(Some(Value::from(-1))),
        None => Err(fault("substring not found")),
    }
}

fn split(text: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = match separator {
        Some(separator) => Some(separator),
        None => kwargs.get::<Option<Value>>("sep")?,
    };
    let limit = match limit {
        Some(limit) => Some(limit),
        None => kwargs.get::<Option<i64>>("maxsplit")?,
    };
    kwargs.assert_all_used()?;
    let parts = limit
        .and_then(|limit| usize::try_from(limit).ok())
        .map_or(usize::MAX, |limit| limit.saturating_add(1));
    let separator = separator.filter(|separator| !separator.is_none());
    let separator = match &separator {
        None => None,
        Some(separator) => match separator.as_str() {
            Some(separator) if !separator.is_empty() => Some(separator),
            _ => return Err(fault("split wants a separator of at least one character")),
        },
    };
    let list: Vec<&str> = match (separator, from_right) {
        (Some(separator), false) => text.splitn(parts, separator).collect(),
        (Some(separator), true) => {
            text.rsplitn(parts, separator).collect::<Vec<_>>().into_iter().rev().collect()
        }
        (None, false) => words(text, parts),
        (None, true) => words_from_right(text, parts),
    };
    Ok(list.into_iter().map(Value::from).collect())
}

/// At most `parts` words; the last one is all that is left.
fn words(text: &str, parts: usize) -> Vec<&str> {
    let mut list = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        match rest.find(char::is_whitespace) {
            Some(end) if list.len() + 1 < parts => {
                list.push(&rest[..end]);
                rest = rest[end..].trim_start();
            }
            _ => {
                // Python leaves what follows the last split as it is, but for white space at the very end.
                list.push(if list.len() + 1 < parts { rest.trim_end() } else { rest });
                break;
            }
        }
    }
    list
}

fn words_from_right(text: &str, parts: usize) -> Vec<&str> {
    let mut list = Vec::new();
    let mut rest = text.trim_end();
    while !rest.is_empty() {
        match rest.rfind(char::is_whitespace) {
            Some(at) if list.len() + 1 < parts => {
                let word = &rest[at..];
                list.push(word.trim_start());
                rest = rest[..at].trim_end();
            }
            _ => {
                list.push(if list.len() + 1 < parts { rest.trim_start() } else { rest });
                break;
            }
        }
    }
    list.reverse();
    list
}

/// Python's rule for the odd one out: in `center` the left side gets it when the width is odd.
pub(super) fn padded(text: &str, side: &str, width: i64, fill: &str) -> Result<String, Error> {
    if width > MAX_WIDTH {
        return Err(fault(format!("a width of {width} is above the limit of {MAX_WIDTH}")));
    }
    let mut chars = fill.chars();
    let (Some(fill), None) = (chars.next(), chars.next()) else {
        return Err(fault("padding wants one character"));
    };
    let missing = usize::try_from(width - text.chars().count() as i64).unwrap_or(0);
    let left = match side {
        "ljust" => 0,
        "rjust" => missing,
        _ => missing / 2 + (missing & width as usize & 1),
    };
    let fill = |count: usize| std::iter::repeat_n(fill, count);
    Ok(fill(left).chain(text.chars()).chain(fill(missing - left)).collect())
}

fn expanded(text: &str, size: i64) -> Result<String, Error> {
    if size > MAX_WIDTH || text.matches('\t').count() as i64 * size.max(0) > super::MAX_RENDERED_BYTES as i64
    {
        return Err(fault(format!("tabs of {size} are above the limit of {MAX_WIDTH}")));
    }
    let mut out = String::new();
    let mut column = 0;
    for char in text.chars() {
        match char {
            '\t' => {
                let width = if size > 0 { size - column % size } else { 0 };
                (0..width).for_each(|_| out.push(' '));
                column += width;
            }
            '\n' | '\r' => {
                out.push(char);
                column = 0;
            }
            _ => {
                out.push(char);
                column += 1;
            }
        }
    }
    Ok(out)
}
