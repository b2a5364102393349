//! JSON as Python's `json.dumps` writes it.

use super::weight::MAX_SHOWN_BYTES;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use std::fmt::Write;

/// Deepest nesting `tojson` follows; deeper is a mistake or an attack.
const MAX_JSON_DEPTH: usize = 100;

/// The arguments of Python's `json.dumps` that templates use.
#[derive(Debug)]
pub(super) struct JsonStyle {
    ensure_ascii: bool,
    sort_keys: bool,
    /// What one level of nesting is indented by; none: everything on one line.
    indent: Option<String>,
    between_items: String,
    after_key: String,
}

impl JsonStyle {
    /// The first two may also come by their place, in the hub's order.
    pub(super) fn from_kwargs(
        kwargs: &Kwargs,
        ensure_ascii: Option<Value>,
        indent: Option<Value>,
    ) -> Result<Self, Error> {
        let ensure_ascii = ensure_ascii.or(kwargs.get("ensure_ascii")?).is_some_and(|value| value.is_true());
        let indent = indent.or(kwargs.get("indent")?);
        let indent = match indent {
            Some(value) if !value.is_none() => Some(match value.as_str() {
                Some(text) => text.to_owned(),
                None => " ".repeat(usize::try_from(i64::try_from(value)?).unwrap_or(0).min(MAX_JSON_DEPTH)),
            }),
            _ => None,
        };
        let separators: Option<Value> = kwargs.get("separators")?;
        let (between_items, after_key) = match separators.filter(|separators| !separators.is_none()) {
            Some(pair) => {
                let part = |at: usize| pair.get_item_by_index(at).map(|part| part.to_string());
                (part(0)?, part(1)?)
            }
            None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
            None => (", ".to_owned(), ": ".to_owned()),
        };
        Ok(Self {
            ensure_ascii,
            sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
            indent,
            between_items,
            after_key,
        })
    }
}

/// `json.dumps(value)`, byte for byte.
pub(super) fn to_json(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut out = String::new();
    write_json(&mut out, value, style, 0)?;
    Ok(out)
}

fn write_json(out: &mut String, value: &Value, style: &JsonStyle, depth: usize) -> Result<(), Error> {
    if depth > MAX_JSON_DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson: nested too deeply"));
    }
    // A value that holds itself twice, and so on, is small in memory and without end on paper.
    if out.len() > MAX_SHOWN_BYTES {
        let message = format!("tojson: longer than the limit of {MAX_SHOWN_BYTES} bytes");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
        ValueKind::Number => out.push_str(&float(f64::try_from(value.clone())?)),
        ValueKind::String => write_string(out, value.as_str().unwrap_or_default(), style.ensure_ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_group(out, style, depth, ('[', ']'), &items, |out, item| {
                write_json(out, item, style, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
            }
            write_group(out, style, depth, ('{', '}'), &keys, |out, key| {
                match key.kind() {
                    ValueKind::String => {
                        write_string(out, key.as_str().unwrap_or_default(), style.ensure_ascii);
                    }
                    _ => {
                        out.push('"');
                        write_json(out, key, style, depth + 1)?;
                        out.push('"');
                    }
                }
                out.push_str(&style.after_key);
                write_json(out, &value.get_item(key)?, style, depth + 1)
            })?;
        }
        kind => {
            return Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: {kind} is not JSON")));
        }
    }
    Ok(())
}

fn write_group(
    out: &mut String,
    style: &JsonStyle,
    depth: usize,
    (open, close): (char, char),
    items: &[Value],
    mut write: impl FnMut(&mut String, &Value) -> Result<(), Error>,
) -> Result<(), Error> {
    let line = |out: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    out.push(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(&style.between_items);
        }
        line(out, depth + 1);
        write(out, item)?;
    }
    if !items.is_empty() {
        line(out, depth);
    }
    out.push(close);
    Ok(())
}

fn write_string(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            control if control < ' ' => escape(out, control),
            wide if ensure_ascii && !wide.is_ascii() => escape(out, wide),
            plain => out.push(plain),
        }
    }
    out.push('"');
}

fn escape(out: &mut String, char: char) {
    for unit in char.encode_utf16(&mut [0; 2]) {
        let _ = write!(out, "\\u{unit:04x}");
    }
}

/// A float as Python's `repr` shows it: shortest digits, an exponent below 1e-4 and from 1e16 on.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = value.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_look_like_pythons() {
        for (value, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e300, "1.25e+300"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(float(value), text);
        }
    }
}
