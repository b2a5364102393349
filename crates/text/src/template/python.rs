//! What templates take from Python: JSON as `json.dumps` writes it, `strftime`, and methods of strings.

use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use std::fmt::Write;

/// Deepest nesting `tojson` follows; deeper is a mistake or an attack.
const MAX_JSON_DEPTH: usize = 100;

/// The source as the engine reads it: line ends as Jinja2 reads them, and the hub's `{% generation %}` blocks, which
/// mark the assistant's words for training, as plain blocks.
pub(super) fn source(template: &str) -> String {
    let mut source = template.replace("\r\n", "\n").replace('\r', "\n");
    for (from, to) in [("endgeneration", "endwith"), ("generation", "with")] {
        source = rename_tag(&source, from, to);
    }
    source
}

/// Renames the tags that consist of nothing but the word `from`.
fn rename_tag(source: &str, from: &str, to: &str) -> String {
    let mut renamed = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let tag = start + 2;
        renamed.push_str(&rest[..tag]);
        rest = &rest[tag..];
        let Some(end) = rest.find("%}") else { break };
        let is_control = |char: char| char.is_whitespace() || matches!(char, '-' | '+');
        if rest[..end].trim_matches(is_control) == from {
            renamed.push_str(&rest[..end].replacen(from, to, 1));
            rest = &rest[end..];
        }
    }
    renamed.push_str(rest);
    renamed
}

/// Python's methods: those of the engine's own collection, and some it lacks.
pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args);
    };
    match name {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" => {
            let (separator,): (&str,) = from_args(args)?;
            let (head, found, tail) =
                text.split_once(separator).map_or((text, "", ""), |(a, b)| (a, separator, b));
            Ok(Value::from(Tuple::from([head, found, tail].map(Value::from))))
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let (head, found, tail) =
                text.rsplit_once(separator).map_or(("", "", text), |(a, b)| (a, separator, b));
            Ok(Value::from(Tuple::from([head, found, tail].map(Value::from))))
        }
        "rsplit" => {
            let (separator, limit): (&str, Option<i64>) = from_args(args)?;
            let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX - 1);
            let mut parts: Vec<&str> = text.rsplitn(limit + 1, separator).collect();
            parts.reverse();
            Ok(parts.into_iter().map(Value::from).collect())
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

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
    pub(super) fn from_kwargs(kwargs: &Kwargs) -> Result<Self, Error> {
        let indent: Option<Value> = kwargs.get("indent")?;
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
            ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
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
                keys.sort();
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
fn float(value: f64) -> String {
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

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const DAY_S: i64 = 86_400;

/// Python's `strftime` for UTC in the C locale. Unknown directives stay as they are.
pub(super) fn strftime(format: &str, unix_s: i64) -> String {
    let days = unix_s.div_euclid(DAY_S);
    let second = unix_s.rem_euclid(DAY_S);
    let (year, month, day) = civil(days);
    let weekday = usize::try_from((days + 3).rem_euclid(7)).unwrap_or(0);
    let month_name = MONTHS.get(usize::try_from(month - 1).unwrap_or(0)).copied().unwrap_or_default();
    let hour = second / 3600;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(char) = chars.next() {
        if char != '%' {
            out.push(char);
            continue;
        }
        let mut directive = chars.next();
        let unpadded = directive == Some('-');
        if unpadded {
            directive = chars.next();
        }
        let mut number = |value: i64, width: usize| {
            let width = if unpadded { 0 } else { width };
            let _ = write!(out, "{value:0width$}");
        };
        match directive {
            Some('Y') => number(year, 4),
            Some('y') => number(year.rem_euclid(100), 2),
            Some('m') => number(month, 2),
            Some('d') => number(day, 2),
            Some('H') => number(hour, 2),
            Some('I') => number((hour + 11) % 12 + 1, 2),
            Some('M') => number(second / 60 % 60, 2),
            Some('S') => number(second % 60, 2),
            Some('j') => number(days - civil_days(year) + 1, 3),
            Some('e') => out.push_str(&format!("{day:2}")),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(WEEKDAYS[weekday]),
            Some('a') => out.push_str(&WEEKDAYS[weekday][..3]),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('F') => out.push_str(&strftime("%Y-%m-%d", unix_s)),
            Some('T') => out.push_str(&strftime("%H:%M:%S", unix_s)),
            Some('D') => out.push_str(&strftime("%m/%d/%y", unix_s)),
            Some('s') => number(unix_s, 1),
            Some('%') => out.push('%'),
            Some(other) => {
                out.push('%');
                out.push(other);
            }
            None => out.push('%'),
        }
    }
    out
}

/// Year, month (1-12) and day (1-31) of a day counted from 1970-01-01, in the proleptic Gregorian calendar: 400-year
/// eras of 146,097 days, years that begin in March so that the leap day comes last.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The day on which a year begins, counted from 1970-01-01.
fn civil_days(year: i64) -> i64 {
    let before = year - 1;
    before * 365 + before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400) - 719_162
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

    #[test]
    fn dates_are_right_across_leap_years() {
        for (unix_s, text) in [
            (0, "Thursday 01 January 1970 00:00:00 AM 001"),
            (951_782_400, "Tuesday 29 February 2000 00:00:00 AM 060"),
            (1_735_689_599, "Tuesday 31 December 2024 23:59:59 PM 366"),
            (4_107_542_400, "Monday 01 March 2100 00:00:00 AM 060"),
            (-1, "Wednesday 31 December 1969 23:59:59 PM 365"),
        ] {
            assert_eq!(strftime("%A %d %B %Y %H:%M:%S %p %j", unix_s), text);
        }
        assert_eq!(
            strftime("%d %b %Y, %-d.%-m.%y %I:%M %a %e %% %q %", 1_722_470_400),
            "01 Aug 2024, 1.8.24 12:00 Thu  1 % %q %"
        );
    }

    #[test]
    fn generation_tags_become_plain_blocks() {
        assert_eq!(
            source("{%- generation -%}a{{ generation }}{% endgeneration +%}\r\n{% if generation %}"),
            "{%- with -%}a{{ generation }}{% endwith +%}\n{% if generation %}"
        );
    }
}
