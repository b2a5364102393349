//! `str.format`: the fields of a pattern, and what is between a field and the engine's formatting of one value.

use super::filters::{fault, split_kwargs};
use super::methods::MAX_WIDTH;
use super::text::{repr, text};
use super::weight::SHOWN_BYTES_PER_FUEL;
use minijinja::formatting::{FormatStyle, format};
use minijinja::value::ValueKind;
use minijinja::{Error, State, Value};

/// What a pattern is filled with.
pub(super) struct Fields<'a> {
    state: &'a State<'a, 'a>,
    list: &'a [Value],
    named: Value,
    /// Fields without a name so far; none once a number was written.
    unnamed: Option<usize>,
}

/// `pattern.format(*args)`.
pub(super) fn str_format(state: &State, pattern: &str, args: &[Value]) -> Result<String, Error> {
    let (list, kwargs) = split_kwargs(args);
    Fields { state, list, named: kwargs.into(), unnamed: Some(0) }.fill(pattern, 0)
}

/// `pattern.format_map(map)`.
pub(super) fn format_map(state: &State, pattern: &str, map: &Value) -> Result<String, Error> {
    Fields { state, list: &[], named: map.clone(), unnamed: Some(0) }.fill(pattern, 0)
}

impl Fields<'_> {
    fn fill(&mut self, pattern: &str, depth: usize) -> Result<String, Error> {
        let mut out = String::new();
        let mut rest = pattern;
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(behind) = rest.strip_prefix(brace).filter(|_| depth == 0) {
                out.push_str(brace);
                rest = behind;
                continue;
            }
            let end = if brace == "{" { end_of_field(rest) } else { None };
            let end = end.ok_or_else(|| fault("a format string with a lone brace"))?;
            if depth > 1 {
                return Err(fault("a format string with fields nested too deeply"));
            }
            out.push_str(&self.field(&rest[..end], depth)?);
            rest = &rest[end + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }

    fn field(&mut self, field: &str, depth: usize) -> Result<String, Error> {
        let head_len = end_of_head(field);
        let (head, spec) = field.split_at(head_len);
        let spec = spec.strip_prefix(':').unwrap_or_default();
        let (path, conversion) = match head.rsplit_once('!') {
            Some((path, conversion)) if !conversion.contains(']') => (path, conversion),
            _ => (head, ""),
        };
        let value = self.value(path)?;
        let value = match conversion {
            "" => value,
            "r" => Value::from(repr(&value)?),
            "s" => Value::from(text(&value)?),
            "a" => Value::from(ascii(&repr(&value)?)),
            other => return Err(fault(format!("the format string has an unknown conversion '!{other}'"))),
        };
        let spec = if spec.contains('{') { self.fill(spec, depth + 1)? } else { spec.to_owned() };
        let shown = formatted(&value, &spec)?;
        self.state.consume_fuel(1 + shown.len() as u64 / SHOWN_BYTES_PER_FUEL)?;
        Ok(shown)
    }

    /// What a path such as `0[role]` leads to.
    fn value(&mut self, path: &str) -> Result<Value, Error> {
        let len = path.find(['.', '[']).unwrap_or(path.len());
        let (name, mut steps) = path.split_at(len);
        let mut value = self.argument(name)?;
        while !steps.is_empty() {
            let Some((key, rest)) = steps.strip_prefix('[').and_then(|steps| steps.split_once(']')) else {
                return Err(fault(format!("attributes in a format string are not supported: '{path}'")));
            };
            let key = key.parse::<i64>().map_or_else(|_| Value::from(key), Value::from);
            if let Some(text) = value.as_str() {
                self.state.consume_fuel(text.len() as u64 / 64)?;
            }
            value = value.get_item(&key)?;
            if value.is_undefined() {
                return Err(fault(format!("nothing is at '{path}', which the format string wants")));
            }
            steps = rest;
        }
        Ok(value)
    }

    fn argument(&mut self, name: &str) -> Result<Value, Error> {
        let mixed = || fault("a format string with fields of both kinds, numbered and not");
        let found = if name.is_empty() {
            let next = self.unnamed.ok_or_else(mixed)?;
            self.unnamed = Some(next + 1);
            self.list.get(next).cloned()
        } else if let Ok(at) = name.parse::<usize>() {
            if self.unnamed.is_some_and(|next| next > 0) {
                return Err(mixed());
            }
            self.unnamed = None;
            self.list.get(at).cloned()
        } else {
            self.named.get_item(&Value::from(name)).ok().filter(|value| !value.is_undefined())
        };
        found.ok_or_else(|| fault(format!("the format string wants an argument '{name}'")))
    }
}

/// Where a field ends, those inside of it left out.
fn end_of_field(rest: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in rest.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => return Some(at),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Where the specification begins: at a colon that is not part of a key.
fn end_of_head(field: &str) -> usize {
    let mut in_key = false;
    for (at, byte) in field.bytes().enumerate() {
        match byte {
            b'[' => in_key = true,
            b']' => in_key = false,
            b':' if !in_key => return at,
            _ => {}
        }
    }
    field.len()
}

fn ascii(shown: &str) -> String {
    let escaped = |char: char| match char as u32 {
        0..=0x7F => char.to_string(),
        code @ 0x80..=0xFF => format!("\\x{code:02x}"),
        code @ 0x100..=0xFFFF => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    };
    shown.chars().map(escaped).collect()
}

/// `format(value, spec)`.
fn formatted(value: &Value, spec: &str) -> Result<String, Error> {
    if spec.is_empty() {
        return text(value);
    }
    let is_wide = |digits: &str| digits.parse::<i64>().map_or(!digits.is_empty(), |width| width > MAX_WIDTH);
    if spec.split(|char: char| !char.is_ascii_digit()).any(is_wide) {
        return Err(fault(format!("a format with a width above the limit of {MAX_WIDTH}")));
    }
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::None) {
        return Err(fault(format!("a {} takes no format '{spec}'", value.kind())));
    }
    let (spec, kind) = match spec.chars().last() {
        Some(kind @ ('%' | 'n')) => (&spec[..spec.len() - 1], Some(kind)),
        _ => (spec, None),
    };
    let pad = Pad::of(spec);
    if kind != Some('%') && pad.align != Some('=') {
        return engine(value, &format!("{spec}{}", if kind.is_some() { plain(value) } else { "" }));
    }
    let shown = match kind {
        Some('%') => {
            let percent = Value::from(f64::try_from(value.clone())? * 100.0);
            format!("{}%", engine(&percent, &format!("{}f", pad.rest))?)
        }
        Some(_) => engine(value, &format!("{}{}", pad.rest, plain(value)))?,
        None => engine(value, pad.rest)?,
    };
    Ok(pad.padded(&shown))
}

/// The kind that `n` is without a locale.
fn plain(value: &Value) -> &'static str {
    if value.is_integer() { "d" } else { "g" }
}

fn engine(value: &Value, spec: &str) -> Result<String, Error> {
    format(FormatStyle::StrFormat, &format!("{{:{spec}}}"), std::slice::from_ref(value))
}

/// The part of a specification that says how wide the result is.
struct Pad<'a> {
    fill: char,
    align: Option<char>,
    width: usize,
    sign: Option<char>,
    /// What is left: precision, grouping, kind.
    rest: &'a str,
}

impl<'a> Pad<'a> {
    /// The sign stays in `rest`, in front of a width of none.
    fn of(spec: &'a str) -> Self {
        let is_align = |char: &char| matches!(char, '<' | '>' | '^' | '=');
        let mut chars = spec.chars();
        let (first, second) = (chars.next(), chars.next());
        let (fill, align, rest) = match (first, second.filter(is_align)) {
            (Some(fill), Some(align)) => (fill, Some(align), chars.as_str()),
            _ => match first.filter(is_align) {
                Some(align) => (' ', Some(align), &spec[1..]),
                None => (' ', None, spec),
            },
        };
        let sign = rest.chars().next().filter(|sign| matches!(sign, '+' | '-' | ' '));
        let digits = &rest[sign.map_or(0, char::len_utf8)..];
        let end = digits.find(|char: char| !char.is_ascii_digit()).unwrap_or(digits.len());
        let is_zero = digits.starts_with('0') && align.is_none();
        Self {
            fill: if is_zero { '0' } else { fill },
            align: if is_zero { Some('=') } else { align },
            width: digits[..end].parse().unwrap_or(0),
            sign,
            rest: &digits[end..],
        }
    }

    fn padded(&self, shown: &str) -> String {
        let signed = match self.sign {
            Some(sign @ ('+' | ' ')) if !shown.starts_with('-') => format!("{sign}{shown}"),
            _ => shown.to_owned(),
        };
        let missing = self.width.saturating_sub(signed.chars().count());
        let fill = |count: usize| self.fill.to_string().repeat(count);
        match self.align.unwrap_or('>') {
            '<' => signed + &fill(missing),
            '^' => fill(missing / 2) + &signed + &fill(missing - missing / 2),
            '=' => {
                let (sign, digits) = signed.split_at(usize::from(signed.starts_with(['-', '+', ' '])));
                format!("{sign}{}{digits}", fill(missing))
            }
            _ => fill(missing) + &signed,
        }
    }
}
