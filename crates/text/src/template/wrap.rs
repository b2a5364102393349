//! Jinja2's `wordwrap`, which is Python's `textwrap` on each line.

use super::filters::{fault, split_kwargs};
use super::methods::MAX_WIDTH;
use super::text::text;
use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{Error, State, Value};

#[derive(Clone, Copy)]
struct Options {
    width: usize,
    breaks_words: bool,
    breaks_on_hyphens: bool,
}

pub(super) fn wordwrap(state: &mut State, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let args = args.into_values();
    let (args, kwargs) = split_kwargs(&args);
    let argument = |at: usize, name: &str| match args.get(at) {
        Some(value) => Ok(Some(value.clone())),
        None => kwargs.get::<Option<Value>>(name),
    };
    let value = argument(0, "s")?.map_or_else(|| Ok(String::new()), |value| text(&value))?;
    let width = argument(1, "width")?.map_or(Ok(79), i64::try_from)?;
    let is_true = |value: Option<Value>| value.is_none_or(|value| value.is_true());
    let breaks_words = is_true(argument(2, "break_long_words")?);
    let between = argument(3, "wrapstring")?.filter(|between| !between.is_none());
    let between = between.map_or_else(|| Ok("\n".to_owned()), |between| text(&between))?;
    let breaks_on_hyphens = is_true(argument(4, "break_on_hyphens")?);
    kwargs.assert_all_used()?;
    if !(1..=MAX_WIDTH).contains(&width) {
        return Err(fault(format!("wordwrap: a width of {width} is outside of 1 to {MAX_WIDTH}")));
    }
    let options = Options { width: usize::try_from(width).unwrap_or(1), breaks_words, breaks_on_hyphens };
    // A line may end behind every character.
    state.consume_fuel(1 + (value.len() as u64).saturating_mul(2 + between.len() as u64) / 64)?;
    let mut wrapped = Vec::new();
    for line in lines(&value) {
        wrapped.push(wrap(line, options).join(&between));
    }
    Ok(wrapped.join(&between))
}

/// `str.splitlines`.
fn lines(text: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(is_line_end).unwrap_or(rest.len());
        lines.push(&rest[..end]);
        let behind = &rest[end..];
        let len =
            if behind.starts_with("\r\n") { 2 } else { behind.chars().next().map_or(0, char::len_utf8) };
        rest = &behind[len..];
    }
    lines
}

fn is_line_end(char: char) -> bool {
    matches!(char, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn wrap(line: &str, options: Options) -> Vec<String> {
    let chars: Vec<char> = line.chars().collect();
    let mut chunks = chunks(&chars, options.breaks_on_hyphens);
    chunks.reverse();
    let mut lines: Vec<String> = Vec::new();
    while let Some(chunk) = chunks.last() {
        if !lines.is_empty() && is_blank(chunk) {
            chunks.pop();
        }
        let mut line: Vec<&[char]> = Vec::new();
        let mut len = 0;
        while let Some(chunk) = chunks.last().filter(|chunk| len + chunk.len() <= options.width) {
            len += chunk.len();
            line.push(chunk);
            chunks.pop();
        }
        if let Some(chunk) = chunks.last_mut().filter(|chunk| chunk.len() > options.width) {
            if options.breaks_words {
                let (head, tail) = chunk.split_at(cut(chunk, options.width - len, options.breaks_on_hyphens));
                line.push(head);
                *chunk = tail;
            } else if line.is_empty() {
                line.extend(chunks.pop());
            }
        }
        if line.last().is_some_and(|chunk| is_blank(chunk)) {
            line.pop();
        }
        if !line.is_empty() {
            lines.push(line.concat().into_iter().collect());
        }
    }
    lines
}

/// Where a word that is too long is cut: behind its last hyphen that fits, if letters come before it.
fn cut(word: &[char], room: usize, on_hyphens: bool) -> usize {
    let hyphen = word[..room.min(word.len())].iter().rposition(|&char| char == '-');
    match hyphen {
        Some(at) if on_hyphens && word[..at].iter().any(|&char| char != '-') => at + 1,
        _ => room,
    }
}

fn is_blank(chunk: &[char]) -> bool {
    chunk.iter().all(|char| char.is_whitespace())
}

fn is_space(char: char) -> bool {
    matches!(char, '\t' | '\n' | '\u{b}' | '\u{c}' | '\r' | ' ')
}

fn is_letter(char: Option<&char>) -> bool {
    char.is_some_and(|char| char.is_alphabetic() || *char == '_')
}

fn is_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

fn is_word_or_mark(char: char) -> bool {
    is_word(char) || matches!(char, '!' | '"' | '\'' | '&' | '.' | ',' | '?')
}

/// The pieces that a line may be cut between: white space, words, parts of words up to a hyphen, and dashes.
fn chunks(chars: &[char], on_hyphens: bool) -> Vec<&[char]> {
    let mut chunks = Vec::new();
    let mut start = 0;
    while start < chars.len() {
        let end = if is_space(chars[start]) {
            run(chars, start, is_space)
        } else if on_hyphens {
            dash(chars, start).unwrap_or_else(|| end_of_part(chars, start))
        } else {
            run(chars, start, |char| !is_space(char))
        };
        chunks.push(&chars[start..end]);
        start = end;
    }
    chunks
}

fn run(chars: &[char], start: usize, belongs: impl Fn(char) -> bool) -> usize {
    chars[start..].iter().position(|&char| !belongs(char)).map_or(chars.len(), |len| start + len)
}

/// The end of a dash of two or more hyphens between words, if one begins at `start`.
fn dash(chars: &[char], start: usize) -> Option<usize> {
    let before = start.checked_sub(1).map(|before| chars[before])?;
    let end = run(chars, start, |char| char == '-');
    let is_dash = end >= start + 2 && chars.get(end).is_some_and(|&char| is_word(char));
    (is_dash && is_word_or_mark(before)).then_some(end)
}

fn end_of_part(chars: &[char], start: usize) -> usize {
    for end in start + 1..chars.len() {
        if is_space(chars[end]) || (is_word_or_mark(chars[end - 1]) && dash(chars, end).is_some()) {
            return end;
        }
        // Behind a hyphen that joins two letters, or a letter and a hyphen, to two more.
        let hyphen = end;
        if chars[hyphen] != '-' {
            continue;
        }
        let at =
            |back: usize| hyphen.checked_sub(back).filter(|&at| at >= start).and_then(|at| chars.get(at));
        let joins = is_letter(at(1)) && (is_letter(at(2)) || (at(2) == Some(&'-') && is_letter(at(3))));
        let second = hyphen + 2 + usize::from(chars.get(hyphen + 2) == Some(&'-'));
        if joins && is_letter(chars.get(hyphen + 1)) && is_letter(chars.get(second)) {
            return hyphen + 1;
        }
    }
    chars.len()
}
