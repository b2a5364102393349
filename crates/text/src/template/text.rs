//! Values as Python's `str` and `repr` write them.
//!
//! The engine's own writing differs for floats beyond sixteen digits or below a ten-thousandth, for characters that
//! cannot be seen, and for undefined values inside lists.

use super::json::float;
use super::weight::{MAX_DEPTH, MAX_SHOWN_BYTES};
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};
use regex_syntax::hir::{Class, ClassUnicodeRange, HirKind};
use std::fmt::Write;
use std::sync::LazyLock;

/// `str(value)`.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => {
            let mut out = String::new();
            write_repr(&mut out, value, 0)?;
            Ok(out)
        }
        _ => Ok(value.to_string()),
    }
}

/// `repr(value)`.
pub(super) fn repr(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_repr(&mut out, value, 0)?;
    Ok(out)
}

fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    let refused = |message: String| Err(Error::new(ErrorKind::InvalidOperation, message));
    if depth > MAX_DEPTH {
        return refused("a value is nested too deeply to be shown".to_owned());
    }
    if out.len() > MAX_SHOWN_BYTES {
        return refused(format!("a value takes more than the limit of {MAX_SHOWN_BYTES} bytes to show"));
    }
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::String => write_quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => {
            let number = f64::try_from(value.clone())?;
            let shown = float(number);
            out.push_str(&if number.is_finite() {
                shown
            } else {
                shown.to_lowercase().replace("infinity", "inf")
            });
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            for (index, item) in value.try_iter()?.enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &item, depth + 1)?;
            }
            if value.is_tuple() && value.len() == Some(1) {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &key, depth + 1)?;
                out.push_str(": ");
                write_repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

/// In single quotes, unless only those are in the text.
fn write_quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for char in text.chars() {
        match char {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if char == quote => {
                out.push('\\');
                out.push(char);
            }
            ' '..='~' => out.push(char),
            _ if is_printable(char) => out.push(char),
            _ => {
                let code = char as u32;
                let _ = match code {
                    0..=0xFF => write!(out, "\\x{code:02x}"),
                    0x100..=0xFFFF => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// Python's notion: neither a separator other than the space, nor a control, format, private or unassigned character.
fn is_printable(char: char) -> bool {
    static HIDDEN: LazyLock<Vec<ClassUnicodeRange>> = LazyLock::new(|| ranges(r"[\p{C}\p{Z}]"));
    !contains(&HIDDEN, char)
}

/// Is it a digit that counts in tens (`isdecimal`)?
pub(super) fn is_decimal(char: char) -> bool {
    static DECIMAL: LazyLock<Vec<ClassUnicodeRange>> = LazyLock::new(|| ranges(r"\p{Nd}"));
    contains(&DECIMAL, char)
}

fn contains(ranges: &[ClassUnicodeRange], char: char) -> bool {
    let at = ranges.partition_point(|range| range.end() < char);
    ranges.get(at).is_some_and(|range| range.start() <= char)
}

/// The characters of a class of a regular expression.
fn ranges(class: &str) -> Vec<ClassUnicodeRange> {
    match regex_syntax::parse(class).map(regex_syntax::hir::Hir::into_kind) {
        Ok(HirKind::Class(Class::Unicode(class))) => class.ranges().to_vec(),
        _ => Vec::new(),
    }
}
