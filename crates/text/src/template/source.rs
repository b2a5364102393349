//! A template's source as the engine reads it: what Jinja2 takes and the engine's grammar lacks is rewritten here, tag
//! by tag and without moving a line.
//!
//! - Line ends are read as Jinja2 reads them.
//! - The hub's `{% generation %}` blocks, which mark the assistant's words for training, become plain blocks.
//! - `a % b` formats if `a` is a string; the engine's operator only divides. It becomes a call of [`PERCENT`].
//! - A sign `+` before a value means nothing.

use std::ops::Range;

/// The function that stands for the operator `%`.
pub(super) const PERCENT: &str = "__percent";

/// Operators `%` that are rewritten in one tag. Each costs a pass over its tag; published templates have one or two.
const MAX_PERCENTS: usize = 64;

/// # Errors
/// Says in one line which limit a tag is above.
pub(super) fn source(template: &str) -> Result<String, String> {
    let mut macros = super::macros::Macros::default();
    each_tag(template, |tag| {
        macros.check(tag)?;
        super::guards::guarded(tag)
    })
}

fn each_tag(
    template: &str,
    mut guarded: impl FnMut(&str) -> Result<String, String>,
) -> Result<String, String> {
    let template = template.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(template.len());
    let mut rest = template.as_str();
    while let Some(start) = rest.find('{') {
        let (text, tag) = rest.split_at(start);
        out.push_str(text);
        let end = match tag.as_bytes().get(1) {
            Some(b'#') => tag[2..].find("#}").map(|end| 2 + end + 2),
            Some(b'%') if word(tag) == Some("raw") => end_of_raw(tag),
            Some(b'{' | b'%') => match tokens(tag) {
                Some((tokens, end)) => {
                    out.push_str(&guarded(&rewritten(&tag[..end], tokens))?);
                    rest = &tag[end..];
                    continue;
                }
                None => None,
            },
            _ => Some(1),
        };
        // A tag without an end is the engine's to complain about.
        let end = end.unwrap_or(tag.len());
        out.push_str(&tag[..end]);
        rest = &tag[end..];
    }
    out.push_str(rest);
    Ok(out)
}

/// What a `{% ... %}` tag consists of, if that is one word.
fn word(tag: &str) -> Option<&str> {
    let inner = tag.get(2..)?;
    // Behind the opening: in `{%}` the sign of it is not the closing's, too.
    let inner = inner.get(..inner.find("%}")?)?;
    Some(inner.trim_matches(|char: char| char.is_whitespace() || matches!(char, '-' | '+')))
}

fn end_of_raw(tag: &str) -> Option<usize> {
    let mut at = 2;
    loop {
        at += tag[at..].find("{%")?;
        if word(&tag[at..]) == Some("endraw") {
            return Some(at + 2 + tag[at + 2..].find("%}")? + 2);
        }
        at += 2;
    }
}

/// The tag as it goes to the engine.
fn rewritten(tag: &str, mut tokens: Vec<Token>) -> String {
    for (from, to) in [("generation", "with"), ("endgeneration", "endwith")] {
        if tag.starts_with("{%") && word(tag) == Some(from) {
            return tag.replacen(from, to, 1);
        }
    }
    let mut tag = tag.to_owned();
    for at in 0..tokens.len() {
        if tokens[at].is(&tag, "+") && is_sign(&tag, &tokens, at) {
            tag.replace_range(tokens[at].at.clone(), " ");
        }
    }
    for _ in 0..MAX_PERCENTS {
        let Some(at) = tokens.iter().position(|token| token.is(&tag, "%")) else { break };
        let (Some(left), Some(right)) = (left_of(&tag, &tokens, at), right_of(&tag, &tokens, at)) else {
            break;
        };
        let operator = tokens[at].at.clone();
        tag = [
            &tag[..left],
            PERCENT,
            "(",
            &tag[left..operator.start],
            ",",
            &tag[operator.end..right],
            ")",
            &tag[right..],
        ]
        .concat();
        match self::tokens(&tag) {
            Some((again, _)) => tokens = again,
            None => break,
        }
    }
    tag
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A string, a number, a name.
    Operand,
    Open,
    Close,
    Operator,
}

#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) at: Range<usize>,
}

impl Token {
    pub(super) fn is(&self, tag: &str, text: &str) -> bool {
        self.kind != Kind::Operand && &tag[self.at.clone()] == text
    }
}

/// Words that end an operand of `%` on either side.
const WORDS: [&str; 15] = [
    "and",
    "or",
    "not",
    "in",
    "if",
    "elif",
    "else",
    "for",
    "set",
    "with",
    "call",
    "filter",
    "print",
    "do",
    "recursive",
];
/// Operators that do: all that bind less tightly, except those that bind as tightly to the right.
const LOOSE: [&str; 13] = ["+", "-", "~", "==", "!=", "<", ">", "<=", ">=", ",", ":", "=", "%"];
const TIGHT: [&str; 3] = ["*", "/", "//"];

/// The tokens of a tag, and where it ends. None if it does not, or has what no expression has.
pub(super) fn tokens(tag: &str) -> Option<(Vec<Token>, usize)> {
    let closer = if tag.starts_with("{{") { "}}" } else { "%}" };
    let bytes = tag.as_bytes();
    let mut at = 2 + usize::from(matches!(bytes.get(2), Some(b'-' | b'+')));
    let mut depth = 0usize;
    let mut tokens = Vec::new();
    while at < bytes.len() {
        let rest = &tag[at..];
        let (kind, len) = match bytes[at] {
            byte if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            _ if depth == 0 && rest.starts_with(closer) => return Some((tokens, at + 2)),
            b'-' | b'+' if depth == 0 && rest[1..].starts_with(closer) => return Some((tokens, at + 3)),
            quote @ (b'\'' | b'"') => (Kind::Operand, string_len(rest, quote)?),
            b'(' | b'[' | b'{' => {
                depth += 1;
                (Kind::Open, 1)
            }
            b')' | b']' | b'}' => {
                depth = depth.checked_sub(1)?;
                (Kind::Close, 1)
            }
            b'=' | b'!' | b'<' | b'>' if bytes.get(at + 1) == Some(&b'=') => (Kind::Operator, 2),
            b'*' | b'/' if bytes.get(at + 1) == Some(&bytes[at]) => (Kind::Operator, 2),
            byte if byte.is_ascii_punctuation() && byte != b'_' => (Kind::Operator, 1),
            _ => (Kind::Operand, name_len(rest)),
        };
        tokens.push(Token { kind, at: at..at + len });
        at += len;
    }
    None
}

fn string_len(rest: &str, quote: u8) -> Option<usize> {
    let mut escaped = false;
    for (at, &byte) in rest.as_bytes().iter().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            _ if byte == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Length of a name or number: up to white space or punctuation, a point between digits included.
fn name_len(rest: &str) -> usize {
    let mut is_number = true;
    for (at, char) in rest.char_indices() {
        let part_of_number = is_number
            && char == '.'
            && at > 0
            && rest[at + 1..].starts_with(|next: char| next.is_ascii_digit());
        if char.is_whitespace() || (char.is_ascii_punctuation() && char != '_' && !part_of_number) {
            return if at == 0 { char.len_utf8() } else { at };
        }
        is_number &= char.is_ascii_digit() || part_of_number;
    }
    rest.len()
}

/// Is the operator at `at` a sign, that is without a left operand?
fn is_sign(tag: &str, tokens: &[Token], at: usize) -> bool {
    match at.checked_sub(1).map(|before| &tokens[before]) {
        None => true,
        Some(before) => match before.kind {
            Kind::Open | Kind::Operator => true,
            Kind::Close => false,
            Kind::Operand => WORDS.contains(&&tag[before.at.clone()]),
        },
    }
}

/// Does the token at `at` end the operand before or behind it?
fn ends_operand(tag: &str, tokens: &[Token], at: usize, operators: &[&str]) -> bool {
    let text = &tag[tokens[at].at.clone()];
    match tokens[at].kind {
        Kind::Operator => {
            operators.contains(&text) && !(matches!(text, "-" | "+") && is_sign(tag, tokens, at))
        }
        // An attribute may be called as it likes, and `is not` is one word.
        Kind::Operand => {
            let before = at.checked_sub(1).map(|before| &tag[tokens[before].at.clone()]);
            WORDS.contains(&text) && before != Some(".") && !(text == "not" && before == Some("is"))
        }
        Kind::Open | Kind::Close => false,
    }
}

/// Where the left operand of the `%` at `at` begins: everything that binds as tightly belongs to it.
fn left_of(tag: &str, tokens: &[Token], at: usize) -> Option<usize> {
    let mut depth = 0usize;
    let mut begin = None;
    for before in (0..at).rev() {
        match tokens[before].kind {
            Kind::Close => depth += 1,
            Kind::Open if depth == 0 => break,
            Kind::Open => depth -= 1,
            _ if depth == 0 && ends_operand(tag, tokens, before, &LOOSE) => break,
            _ => {}
        }
        begin = Some(tokens[before].at.start);
    }
    begin
}

/// Where the right operand of the `%` at `at` ends.
fn right_of(tag: &str, tokens: &[Token], at: usize) -> Option<usize> {
    let mut depth = 0usize;
    let mut end = None;
    for (behind, token) in tokens.iter().enumerate().skip(at + 1) {
        match token.kind {
            Kind::Open => depth += 1,
            Kind::Close if depth == 0 => break,
            Kind::Close => depth -= 1,
            _ if depth == 0
                && (ends_operand(tag, tokens, behind, &LOOSE)
                    || ends_operand(tag, tokens, behind, &TIGHT)) =>
            {
                break;
            }
            _ => {}
        }
        end = Some(token.at.end);
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(template: &str) -> String {
        each_tag(template, |tag| Ok(tag.to_owned())).unwrap_or_default()
    }

    #[test]
    fn generation_tags_become_plain_blocks() {
        assert_eq!(
            source("{%- generation -%}a{{ generation }}{% endgeneration +%}\r\n{% if generation %}"),
            "{%- with -%}a{{ generation }}{% endwith +%}\n{% if generation %}"
        );
    }

    #[test]
    fn percent_becomes_a_call_with_its_operands() {
        for (from, to) in [
            ("{{ a % b }}", "{{ __percent(a , b) }}"),
            ("{%- if i % 2 == 0 -%}", "{%- if __percent(i , 2) == 0 -%}"),
            (
                "{{ 1 + 2 * x.y['%'] % (a, b) | upper ~ c }}",
                "{{ 1 + __percent(2 * x.y['%'] , (a, b) | upper) ~ c }}",
            ),
            ("{{ -7 % -4 - 1 }}", "{{ __percent(-7 , -4) - 1 }}"),
            ("{{ a % b % c }}", "{{ __percent(__percent(a , b) , c) }}"),
            ("{{ f(a % b, '%}') }}{# 1 % 2 #}", "{{ f(__percent(a , b), '%}') }}{# 1 % 2 #}"),
            ("{% set x = '%s' % {'a': {}} %}", "{% set x = __percent('%s' , {'a': {}}) %}"),
            (
                "{% raw %}{{ a % b }}{% endraw %}{{ +n - +1 }}",
                "{% raw %}{{ a % b }}{% endraw %}{{  n -  1 }}",
            ),
            ("{% for x in y if not x % 2 and z %}", "{% for x in y if not __percent(x , 2) and z %}"),
            ("100 % {{ a", "100 % {{ a"),
            ("{ % } {{ 1.5 % m.in }}", "{ % } {{ __percent(1.5 , m.in) }}"),
        ] {
            assert_eq!(source(from), to);
        }
    }
}
