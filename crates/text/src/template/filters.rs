//! Filters, tests and functions where Jinja2's differ from the engine's.

use super::json::{JsonStyle, to_json};
use super::methods::{MAX_WIDTH, padded};
use super::source::PERCENT;
use super::text::{repr, text};
use super::weight::{SHOWN_BYTES_PER_FUEL, held, texts};
use super::wrap::wordwrap;
use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};

pub(super) fn register(environment: &mut Environment<'_>) {
    environment.set_formatter(show);
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &Value| text(value));
    environment.add_filter("pprint", |value: &Value| repr(value));
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    environment.add_filter("indent", indent);
    environment.add_filter("attr", attr);
    environment.add_filter("center", |text: &str, width: Option<i64>| {
        padded(text, "center", width.unwrap_or(80), " ")
    });
    environment.add_filter("truncate", truncate);
    environment.add_filter("join", join);
    environment.add_filter("replace", replace);
    environment.add_filter("format", |state: &mut State, pattern: &Value, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        let (args, kwargs) = split_kwargs(&args);
        let args = match args {
            [] => kwargs.into(),
            args => Value::from(Tuple::from(args.to_vec())),
        };
        percent(state, &Value::from(text(pattern)?), &args)
    });
    environment.add_filter("wordwrap", wordwrap);
    environment.add_filter("filesizeformat", filesizeformat);
    environment.add_filter("xmlattr", xmlattr);
    environment.add_filter("wordcount", |value: &Value| Ok::<_, Error>(words(&text(value)?)));
    environment.add_filter("escape", escape);
    environment.add_filter("e", escape);
    environment.add_filter("forceescape", escape);
    environment.add_filter("urlencode", urlencode);
    environment.add_test("sequence", is_sequence);
    environment
        .add_test("iterable", |value: &Value| is_sequence(value) || value.kind() == ValueKind::Iterable);
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    environment.add_function(PERCENT, percent);
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
    environment.add_function("cycler", |state: &mut State, items: Rest<Value>| {
        for item in items.iter() {
            held(state, item)?;
        }
        minijinja_contrib::globals::cycler(items.to_vec())
    });
    // It prints all there is.
    environment.remove_global("debug");
}

pub(super) fn fault(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// `{{ value }}`.
fn show(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => {
            let text = text(value)?;
            state.consume_fuel(text.len() as u64 / SHOWN_BYTES_PER_FUEL)?;
            out.write_str(&text).map_err(Error::from)
        }
        _ => minijinja::escape_formatter(out, state, value),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn tojson(
    state: &mut State,
    value: &Value,
    ensure_ascii: Option<Value>,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let style = JsonStyle::from_kwargs(&kwargs, ensure_ascii, indent)?;
    kwargs.assert_all_used()?;
    let json = to_json(value, &style)?;
    state.consume_fuel(json.len() as u64 / SHOWN_BYTES_PER_FUEL)?;
    Ok(Value::from(json))
}

/// Items as texts, with another between them.
fn join(state: &mut State, value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let args = args.into_values();
    let (args, kwargs) = split_kwargs(&args);
    let between = args.first().cloned().or(kwargs.get("d")?);
    let between = between.map_or_else(|| Ok(String::new()), |between| text(&between))?;
    let attribute = args.get(1).cloned().or(kwargs.get("attribute")?);
    kwargs.assert_all_used()?;
    let mut out = String::new();
    if value.is_undefined() {
        return Ok(out);
    }
    for (index, item) in value.try_iter()?.enumerate() {
        let item = match &attribute {
            None => item,
            Some(path) => path
                .as_str()
                .unwrap_or_default()
                .split('.')
                .try_fold(item, |item, name| item.get_attr(name))?,
        };
        let item = texts(state, &[item])?.pop().unwrap_or_default();
        let item = item.as_str().map_or_else(|| text(&item), |item| Ok(item.to_owned()))?;
        state.consume_fuel(1 + (item.len() + between.len()) as u64 / 64)?;
        if index > 0 {
            out.push_str(&between);
        }
        out.push_str(&item);
    }
    Ok(out)
}

fn replace(state: &mut State, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let args = args.into_values();
    let (args, kwargs) = split_kwargs(&args);
    let count = args.get(3).cloned().or(kwargs.get("count")?).filter(|count| !count.is_none());
    let count = count.map_or(Ok(usize::MAX), usize::try_from)?;
    let part = |at: usize, name: &str| match args.get(at) {
        Some(value) => text(value),
        None => text(&kwargs.get::<Value>(name)?),
    };
    let (value, from, to) = (part(0, "s")?, part(1, "old")?, part(2, "new")?);
    kwargs.assert_all_used()?;
    let found = if from.is_empty() { value.len() + 1 } else { value.matches(from.as_str()).count() };
    let len = value.len().saturating_add(found.min(count).saturating_mul(to.len()));
    state.consume_fuel(1 + (from.len() + len) as u64 / 64)?;
    Ok(value.replacen(from.as_str(), &to, count))
}

/// `a % b`: Python's formatting if `a` is a string, the remainder with the sign of `b` otherwise.
fn percent(state: &mut State, left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(pattern) = left.as_str() {
        let args: Vec<Value> =
            if right.is_tuple() { right.try_iter()?.collect() } else { vec![right.clone()] };
        format_is_bounded(pattern, &args)?;
        let (pattern, args) = as_engine_formats(pattern, args)?;
        let text = format(FormatStyle::Printf, &pattern, &args)?;
        state.consume_fuel(1 + text.len() as u64 / 64)?;
        return Ok(Value::from(text));
    }
    let by_zero = || fault("a remainder by zero");
    let whole = |value: &Value| -> Option<i128> {
        let is_whole = value.kind() == ValueKind::Bool || value.is_integer();
        i128::try_from(value.clone()).ok().filter(|_| is_whole)
    };
    match (whole(left), whole(right)) {
        (Some(left), Some(right)) => {
            let rest = left.checked_rem(right).ok_or_else(by_zero)?;
            Ok(Value::from(if rest != 0 && (rest < 0) != (right < 0) { rest + right } else { rest }))
        }
        _ => {
            let (left, right) = (f64::try_from(left.clone())?, f64::try_from(right.clone())?);
            if right == 0.0 {
                return Err(by_zero());
            }
            let rest = left % right;
            Ok(Value::from(if rest != 0.0 && (rest < 0.0) != (right < 0.0) { rest + right } else { rest }))
        }
    }
}

/// Conversions that the engine's formatting lacks, applied to the arguments: `%r`, and whole numbers out of floats.
fn as_engine_formats(pattern: &str, mut args: Vec<Value>) -> Result<(String, Vec<Value>), Error> {
    let mut out = String::with_capacity(pattern.len());
    let mut rest = pattern;
    let mut next = 0;
    while let Some(at) = rest.find('%') {
        let spec = &rest[at + 1..];
        let named = spec.starts_with('(');
        let head = if named { spec.find(')').map_or(0, |end| end + 1) } else { 0 };
        let flags = |char: char| {
            char.is_ascii_digit() || matches!(char, '-' | '+' | ' ' | '#' | '.' | '*' | 'l' | 'h')
        };
        let len = head + spec[head..].find(|char| !flags(char)).unwrap_or(spec.len() - head);
        let kind = spec[len..].chars().next().unwrap_or('%');
        next += spec[head..len].matches('*').count();
        out.push_str(&rest[..at + 1 + len]);
        if let Some(arg) = args.get_mut(next).filter(|_| !named) {
            match kind {
                'r' | 'a' => *arg = Value::from(repr(arg)?),
                // Within the bound on what is shown, which the engine's own writing lacks.
                's' if matches!(arg.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) => {
                    *arg = Value::from(text(arg)?);
                }
                'd' | 'i' | 'u' if !arg.is_integer() && arg.kind() == ValueKind::Number => {
                    *arg = whole(f64::try_from(arg.clone())?).unwrap_or_else(|| arg.clone());
                }
                _ => {}
            }
        }
        next += usize::from(kind != '%');
        out.push(if matches!(kind, 'r' | 'a') && !named { 's' } else { kind });
        rest = spec.get(len + kind.len_utf8()..).unwrap_or_default();
    }
    out.push_str(rest);
    Ok((out, args))
}

/// Refuses widths and precisions that would ask for memory without end.
fn format_is_bounded(pattern: &str, args: &[Value]) -> Result<(), Error> {
    let is_wide = |digits: &str| digits.parse::<i64>().map_or(!digits.is_empty(), |width| width > MAX_WIDTH);
    let from_args = pattern.contains('*')
        && args.iter().any(|value| i64::try_from(value.clone()).is_ok_and(|width| width.abs() > MAX_WIDTH));
    let mut parts = pattern.split(['%', '{']);
    parts.next();
    let mut numbers = parts.flat_map(|part| {
        let end = part.find(['}', ' ']).unwrap_or(part.len());
        part[..end].split(|char: char| !char.is_ascii_digit())
    });
    if from_args || numbers.any(is_wide) {
        return Err(fault(format!("a format with a width above the limit of {MAX_WIDTH}")));
    }
    Ok(())
}

#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn int(value: &Value, default: Option<Value>, base: Option<u32>, kwargs: Kwargs) -> Result<Value, Error> {
    let default = default.or(kwargs.get("default")?).unwrap_or(Value::from(0));
    let base = base.or(kwargs.get("base")?).unwrap_or(10);
    kwargs.assert_all_used()?;
    Ok(match value.kind() {
        ValueKind::Bool => Value::from(i64::from(value.is_true())),
        ValueKind::Number if value.is_integer() => value.clone(),
        ValueKind::Number => whole(f64::try_from(value.clone())?).unwrap_or(default),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default().trim();
            let (sign, digits) = match text.strip_prefix('-') {
                Some(digits) => (-1, digits),
                None => (1, text.strip_prefix('+').unwrap_or(text)),
            };
            let lower = digits.to_ascii_lowercase();
            let prefix = match base {
                2 => "0b",
                8 => "0o",
                16 => "0x",
                _ => "",
            };
            let digits = lower.strip_prefix(prefix).unwrap_or(&lower).replace('_', "");
            let parsed = if (2..=36).contains(&base) && !digits.starts_with(['-', '+']) {
                i128::from_str_radix(&digits, base).ok()
            } else {
                None
            };
            match parsed {
                Some(number) => Value::from(sign * number),
                None => text.parse().ok().and_then(whole).unwrap_or(default),
            }
        }
        _ => default,
    })
}

/// The whole part of a number, if it has one.
fn whole(number: f64) -> Option<Value> {
    number.is_finite().then(|| Value::from(number.trunc() as i128))
}

#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn float(value: &Value, default: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let default = default.or(kwargs.get("default")?).unwrap_or(Value::from(0.0));
    kwargs.assert_all_used()?;
    Ok(match value.kind() {
        ValueKind::Bool => Value::from(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => Value::from(f64::try_from(value.clone())?),
        ValueKind::String => {
            value.as_str().unwrap_or_default().trim().parse::<f64>().map_or(default, Value::from)
        }
        _ => default,
    })
}

#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn default(
    value: &Value,
    other: Option<Value>,
    if_false: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let other = other.or(kwargs.get("default_value")?).unwrap_or_else(|| Value::from(""));
    let if_false = if_false.or(kwargs.get("boolean")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    Ok(if value.is_undefined() || (if_false && !value.is_true()) { other } else { value.clone() })
}

/// Blank lines and the first one stay where they are, unless asked for.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn indent(
    value: &Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let width = width.or(kwargs.get("width")?);
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = blank.or(kwargs.get("blank")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let indention = match &width {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => padded("", "ljust", i64::try_from(width.clone())?, " ")?,
        },
    };
    let text = text(value)?;
    if (text.matches('\n').count() + 1).saturating_mul(indention.len()) > super::MAX_RENDERED_BYTES {
        return Err(fault("an indented text that is too long"));
    }
    let mut out = String::with_capacity(text.len());
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            out.push('\n');
        }
        if (index > 0 || first) && (blank || !line.is_empty() || (index == 0 && first)) {
            out.push_str(&indention);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// Attributes only: entries of a dictionary are none.
fn attr(value: &Value, name: &str) -> Value {
    if value.kind() == ValueKind::Map { Value::UNDEFINED } else { value.get_attr(name).unwrap_or_default() }
}

/// The positional arguments, and the named ones.
pub(super) fn split_kwargs(args: &[Value]) -> (&[Value], Kwargs) {
    if let Some((last, rest)) = args.split_last()
        && last.is_kwargs()
        && let Ok(kwargs) = Kwargs::try_from(last.clone())
    {
        return (rest, kwargs);
    }
    (args, Kwargs::from_iter(std::iter::empty::<(&str, Value)>()))
}

/// Jinja2's cut: at a word unless told otherwise, and not at all within the leeway.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn truncate(text: &str, args: Rest<Value>) -> Result<String, Error> {
    let (args, kwargs) = split_kwargs(&args);
    let mut args = args.iter().cloned();
    let mut argument = |name: &str| match args.next() {
        Some(value) => Ok(Some(value)),
        None => kwargs.get::<Option<Value>>(name),
    };
    let length = argument("length")?.map_or(Ok(255), usize::try_from)?;
    let in_words = argument("killwords")?.is_some_and(|value| value.is_true());
    let end = argument("end")?.map_or_else(|| "...".to_owned(), |value| value.to_string());
    let leeway = argument("leeway")?.map_or(Ok(5), usize::try_from)?;
    kwargs.assert_all_used()?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text.to_owned());
    }
    let kept = length.checked_sub(end.chars().count());
    let kept =
        kept.ok_or_else(|| fault(format!("truncate: a length of {length} leaves no room for '{end}'")))?;
    let head: String = text.chars().take(kept).collect();
    let head = if in_words { &head } else { head.rsplit_once(' ').map_or(head.as_str(), |(words, _)| words) };
    Ok(format!("{head}{end}"))
}

/// Runs of letters, digits and underscores.
fn words(text: &str) -> usize {
    let is_word = |char: char| char.is_alphanumeric() || char == '_';
    text.split(|char| !is_word(char)).filter(|word| !word.is_empty()).count()
}

fn escape(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    for char in text(value)?.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            _ => out.push(char),
        }
    }
    Ok(out)
}

#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn filesizeformat(value: &Value, binary: Option<bool>, kwargs: Kwargs) -> Result<String, Error> {
    let binary = binary.or(kwargs.get("binary")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let (base, infix) = if binary { (1024_f64, "i") } else { (1000_f64, "") };
    let bytes = match value.as_str() {
        Some(text) => text.trim().parse().map_err(|_| fault("filesizeformat wants a number"))?,
        None => f64::try_from(value.clone())?,
    };
    if bytes.to_bits() == 1_f64.to_bits() {
        return Ok("1 Byte".to_owned());
    }
    if bytes < base {
        return Ok(format!("{bytes:.0} Bytes", bytes = bytes.trunc()));
    }
    const PREFIXES: [char; 8] = ['k', 'M', 'G', 'T', 'P', 'E', 'Z', 'Y'];
    let mut unit = base * base;
    let mut prefixes = PREFIXES.iter();
    let mut prefix = prefixes.next();
    while bytes >= unit
        && let Some(next) = prefixes.next()
    {
        prefix = Some(next);
        unit *= base;
    }
    let prefix = prefix.map(|prefix| if binary { prefix.to_ascii_uppercase() } else { *prefix });
    Ok(format!("{:.1} {}{infix}B", base * bytes / unit, prefix.unwrap_or_default()))
}

/// A dictionary as the attributes of an element, without those that are none or undefined.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn xmlattr(state: &mut State, value: &Value, space: Option<bool>, kwargs: Kwargs) -> Result<String, Error> {
    let space = space.or(kwargs.get("autospace")?).unwrap_or(true);
    kwargs.assert_all_used()?;
    if value.kind() != ValueKind::Map {
        return Err(fault("xmlattr wants a dictionary"));
    }
    let mut out = String::new();
    for key in value.try_iter()? {
        let entry = value.get_item(&key)?;
        if entry.is_none() || entry.is_undefined() {
            continue;
        }
        let name = text(&key)?;
        if name.contains(|char: char| char.is_whitespace() || matches!(char, '/' | '>' | '=')) {
            return Err(fault(format!(
                "xmlattr: a character that no attribute has in its name: {}",
                repr(&key)?
            )));
        }
        let entry = escape(&entry)?;
        state.consume_fuel(1 + entry.len() as u64 / SHOWN_BYTES_PER_FUEL)?;
        if space || !out.is_empty() {
            out.push(' ');
        }
        out.push_str(&format!("{}=\"{entry}\"", escape(&key)?));
    }
    Ok(out)
}

/// A text for the path of an address, or a dictionary as a query.
fn urlencode(value: &Value) -> Result<String, Error> {
    if value.kind() != ValueKind::Map {
        return Ok(quoted(&text(value)?, "/", "%20"));
    }
    let mut pairs = Vec::new();
    for key in value.try_iter()? {
        let pair = [text(&key)?, text(&value.get_item(&key)?)?];
        pairs.push(pair.map(|part| quoted(&part, "", "+")).join("="));
    }
    Ok(pairs.join("&"))
}

fn quoted(text: &str, safe: &str, space: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b' ' => out.push_str(space),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => out.push(char::from(byte)),
            _ if safe.as_bytes().contains(&byte) => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// What has a length and items: also strings and dictionaries, as in Python.
fn is_sequence(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Undefined | ValueKind::String | ValueKind::Bytes | ValueKind::Seq | ValueKind::Map => true,
        ValueKind::Iterable => value.len().is_some(),
        _ => false,
    }
}
