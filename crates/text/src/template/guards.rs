//! Rewrites a tag so that values which may be large go through [`super::weight`] on their way into variables,
//! comparisons and texts. Constants need none of it, and most operands are compared with one.

use super::source::{Kind, Token, tokens};
use super::weight::{COMPARED, HELD, ITEM, KEPT, SHOWN};
use std::cmp::Reverse;

/// Longest tag. Within one expression nothing is checked, so that what one can build is bounded by this.
pub(super) const MAX_TOKENS: usize = 4096;

/// Longest index, written in digits, up to which a text is walked through for nothing.
const MAX_NEAR_DIGITS: usize = 3;

const COMPARISONS: [&str; 6] = ["==", "!=", "<", ">", "<=", ">="];
/// Words around an operand.
const WORDS: [&str; 9] = ["and", "or", "not", "if", "elif", "else", "set", "in", "recursive"];
const ENDS: [&str; 4] = [",", ":", "=", "|"];

/// The tag with its guards, or what is wrong with it.
pub(super) fn guarded(tag: &str) -> Result<String, String> {
    let Some((tokens, end)) = tokens(tag) else { return Ok(tag.to_owned()) };
    if tokens.len() > MAX_TOKENS {
        return Err(format!("a tag of {} words and signs is above the limit of {MAX_TOKENS}", tokens.len()));
    }
    let mut guards = Guards { tag, partners: partners(&tokens), tokens: &tokens, inserted: Vec::new() };
    let behind = if tag.starts_with("{%") { guards.statement() } else { Vec::new() };
    for at in 0..tokens.len() {
        guards.operator(at);
        guards.bracket(at);
        guards.dotted_index(at);
        guards.call(at);
    }
    let mut out = guards.written(end);
    let close = tokens.last().map_or("", |last| tag[last.at.end..end].trim());
    for name in behind {
        out.push_str(&format!("{{% set {name} = {KEPT}(({name})) {close}"));
    }
    out.push_str(&tag[end..]);
    Ok(out)
}

/// For each bracket the other one; for all else itself.
fn partners(tokens: &[Token]) -> Vec<usize> {
    let mut partners: Vec<usize> = (0..tokens.len()).collect();
    let mut open = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match token.kind {
            Kind::Open => open.push(at),
            Kind::Close => {
                if let Some(before) = open.pop() {
                    partners[at] = before;
                    partners[before] = at;
                }
            }
            _ => {}
        }
    }
    partners
}

/// A piece of text and where it goes. An opening knows where its closing is: of several at one place, the one that
/// closes last comes first.
struct Inserted {
    at: usize,
    closes_at: Option<usize>,
    text: String,
}

struct Guards<'a> {
    tag: &'a str,
    tokens: &'a [Token],
    partners: Vec<usize>,
    inserted: Vec<Inserted>,
}

impl Guards<'_> {
    fn text(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |token| &self.tag[token.at.clone()])
    }

    fn is(&self, at: usize, text: &str) -> bool {
        self.tokens.get(at).is_some_and(|token| token.is(self.tag, text))
    }

    /// Is the token a word of the language rather than an attribute of that name?
    fn is_word(&self, at: usize, word: &str) -> bool {
        self.tokens.get(at).is_some_and(|token| token.kind == Kind::Operand)
            && self.text(at) == word
            && !at.checked_sub(1).is_some_and(|before| self.is(before, "."))
    }

    fn is_constant(&self, from: usize, to: usize) -> bool {
        let text = self.text(from);
        to == from + 1
            && (text.starts_with(['\'', '"'])
                || text.starts_with(|first: char| first.is_ascii_digit())
                || matches!(text, "true" | "false" | "none" | "True" | "False" | "None"))
    }

    /// A list of nothing but constants.
    fn is_constant_list(&self, from: usize, to: usize) -> bool {
        to > from + 1
            && self.tokens[from].kind == Kind::Open
            && self.partners[from] + 1 == to
            && (from + 1..to - 1).all(|at| self.is(at, ",") || self.is_constant(at, at + 1))
    }

    fn wrap(&mut self, from: usize, to: usize, function: &str, twice: bool) {
        if from >= to || self.is_constant(from, to) {
            return;
        }
        self.insert(from, to, function, twice);
    }

    fn insert(&mut self, from: usize, to: usize, function: &str, twice: bool) {
        let (start, end) = (self.tokens[from].at.start, self.tokens[to - 1].at.end);
        let (open, close) = if twice { ("((", "))") } else { ("(", ")") };
        self.inserted.push(Inserted { at: start, closes_at: Some(end), text: format!("{function}{open}") });
        self.inserted.push(Inserted { at: end, closes_at: None, text: close.to_owned() });
    }

    /// The tag's text up to `end`, with what was inserted. At one place the closing comes before the opening.
    fn written(&mut self, end: usize) -> String {
        self.inserted.sort_by_key(|piece| (piece.at, piece.closes_at.is_some(), Reverse(piece.closes_at)));
        let mut out = String::with_capacity(self.tag.len() + self.inserted.len() * 16);
        let mut done = 0;
        for Inserted { at, text, .. } in &self.inserted {
            out.push_str(&self.tag[done..*at]);
            out.push_str(text);
            done = *at;
        }
        out.push_str(&self.tag[done..end]);
        out
    }

    /// Does the token end an operand of an operator? `loosest` tells comparisons, which bind less tightly than sums.
    fn ends(&self, at: usize, loosest: bool) -> bool {
        let text = self.text(at);
        match self.tokens[at].kind {
            Kind::Operator => {
                COMPARISONS.contains(&text)
                    || (ENDS.contains(&text) && text != "|")
                    || (!loosest && (text == "~" || (matches!(text, "+" | "-") && !self.is_sign(at))))
            }
            Kind::Operand => {
                let before = at.checked_sub(1);
                WORDS.contains(&text)
                    && self.is_word(at, text)
                    && !before.is_some_and(|before| self.is_word(before, "is"))
                    && !(text == "in" && before.is_some_and(|before| self.is_test(before)))
            }
            _ => false,
        }
    }

    /// `is not`, before the name of a test.
    fn is_test(&self, at: usize) -> bool {
        self.is_word(at, "not") && at.checked_sub(1).is_some_and(|before| self.is_word(before, "is"))
    }

    fn is_sign(&self, at: usize) -> bool {
        at.checked_sub(1).is_none_or(|before| match self.tokens[before].kind {
            Kind::Open | Kind::Operator => true,
            Kind::Close => false,
            Kind::Operand => WORDS.contains(&self.text(before)) && self.is_word(before, self.text(before)),
        })
    }

    fn left(&self, at: usize, loosest: bool) -> usize {
        let mut from = at;
        while let Some(before) = from.checked_sub(1) {
            match self.tokens[before].kind {
                Kind::Open => break,
                Kind::Close => from = self.partners[before].min(before),
                _ if self.ends(before, loosest) => break,
                _ => from = before,
            }
        }
        if from == 1 && self.tag.starts_with("{%") && self.is_name(0) { from } else { from.max(self.first()) }
    }

    /// The first token of an expression: in a statement the name of it comes before.
    fn first(&self) -> usize {
        usize::from(self.tag.starts_with("{%"))
    }

    fn is_name(&self, at: usize) -> bool {
        self.tokens.get(at).is_some_and(|token| token.kind == Kind::Operand)
    }

    fn right(&self, at: usize, loosest: bool) -> usize {
        let mut to = at + 1;
        while let Some(token) = self.tokens.get(to) {
            match token.kind {
                Kind::Close => break,
                Kind::Open => to = self.partners[to].max(to) + 1,
                _ if self.ends(to, loosest) && !(to == at + 1 && self.is_word(to, "not")) => break,
                _ => to += 1,
            }
        }
        to
    }

    fn operator(&mut self, at: usize) {
        if self.is(at, "~") {
            let (from, to) = (self.left(at, false), self.right(at, false));
            self.wrap(from, at, SHOWN, false);
            self.wrap(at + 1, to, SHOWN, false);
            return;
        }
        let is_in = self.is_word(at, "in")
            && self.ends(at, true)
            && !(self.is_word(0, "for") && self.tag.starts_with("{%") && self.for_in() == Some(at));
        if !is_in && !COMPARISONS.iter().any(|sign| self.is(at, sign)) {
            return;
        }
        let not = is_in && at.checked_sub(1).is_some_and(|before| self.is_word(before, "not"));
        let before = at - usize::from(not);
        let (from, to) = (self.left(before, true), self.right(at, true));
        let left_is_constant = self.is_constant(from, before);
        let right_is_constant =
            if is_in { self.is_constant_list(at + 1, to) } else { self.is_constant(at + 1, to) };
        if !left_is_constant && !right_is_constant {
            // The engine writes what it looks for in a text.
            let is_text = is_in && self.text(at + 1).starts_with(['\'', '"']);
            self.wrap(from, before, if is_text { SHOWN } else { COMPARED }, false);
            self.wrap(at + 1, to, COMPARED, false);
        }
    }

    /// Keys: inside a subscript, and before the colons of a dictionary.
    fn bracket(&mut self, at: usize) {
        let close = self.partners[at];
        if self.tokens[at].kind != Kind::Open || close <= at {
            return;
        }
        let follows_value = at.checked_sub(1).is_some_and(|before| match self.tokens[before].kind {
            Kind::Close => true,
            Kind::Operand => !WORDS.contains(&self.text(before)) || !self.is_word(before, self.text(before)),
            _ => false,
        });
        let colons = self.at_depth(at, close, ":");
        if self.is(at, "[") && follows_value && before_statement(self, at) {
            if colons.is_empty() {
                self.wrap(at + 1, close, COMPARED, false);
            }
            if !(colons.is_empty() && self.is_near(at + 1, close)) {
                self.subject(at);
            }
        }
        if self.is(at, "{") {
            for colon in colons {
                let from = self.at_depth(at, colon, ",").last().map_or(at + 1, |comma| comma + 1);
                self.wrap(from, colon, COMPARED, false);
            }
        }
    }

    /// A constant key or index that is found without walking through a text.
    fn is_near(&self, from: usize, to: usize) -> bool {
        self.is_constant(from, to) && !self.is_far(from)
    }

    fn is_far(&self, at: usize) -> bool {
        let text = self.text(at);
        text.starts_with(|first: char| first.is_ascii_digit()) && text.len() > MAX_NEAR_DIGITS
    }

    /// `value.1234`.
    fn dotted_index(&mut self, at: usize) {
        if self.is(at, ".") && self.is_far(at + 1) {
            self.subject(at);
        }
    }

    /// The value that the subscript at `at` looks into.
    fn subject(&mut self, at: usize) {
        let mut from = at;
        while let Some(before) = from.checked_sub(1).filter(|before| *before >= self.first()) {
            match self.tokens[before].kind {
                Kind::Close => {
                    from = self.partners[before].min(before);
                    let is_postfix = self.is(from, "(") || self.is(from, "[");
                    if !(is_postfix && from.checked_sub(1).is_some_and(|name| self.ends_value(name))) {
                        break;
                    }
                }
                Kind::Operand if from == at || self.tokens[from].kind != Kind::Operand => {
                    from = before;
                    match from.checked_sub(1) {
                        Some(dot) if self.is(dot, ".") => from = dot,
                        // Texts side by side are one.
                        Some(text) if self.is_text(from) && self.is_text(text) => {}
                        _ => break,
                    }
                }
                Kind::Operand if self.is_text(from) && self.is_text(before) => from = before,
                _ => break,
            }
        }
        if from < at && self.tokens[from].kind != Kind::Operator && !self.is_name_of_test(from) {
            self.insert(from, at, ITEM, false);
        }
    }

    fn is_text(&self, at: usize) -> bool {
        self.text(at).starts_with(['\'', '"'])
    }

    fn ends_value(&self, at: usize) -> bool {
        at >= self.first()
            && match self.tokens[at].kind {
                Kind::Close => true,
                Kind::Operand => {
                    let is_word = WORDS.contains(&self.text(at)) && self.is_word(at, self.text(at));
                    !is_word && !self.is_name_of_test(at)
                }
                _ => false,
            }
    }

    /// What follows `is` or `is not`.
    fn is_name_of_test(&self, at: usize) -> bool {
        at.checked_sub(1).is_some_and(|before| self.is_word(before, "is") || self.is_test(before))
    }

    /// Where a sign stands between two tokens, not counting what is in brackets.
    fn at_depth(&self, open: usize, close: usize, sign: &str) -> Vec<usize> {
        let mut found = Vec::new();
        let mut at = open + 1;
        while at < close {
            if self.tokens[at].kind == Kind::Open {
                at = self.partners[at].max(at);
            } else if self.is(at, sign) {
                found.push(at);
            }
            at += 1;
        }
        found
    }

    /// Arguments that live on: of a loop that calls itself, and of `loop.changed`.
    fn call(&mut self, at: usize) {
        let close = self.partners[at];
        let Some(name) = at.checked_sub(1).filter(|_| self.is(at, "(") && close > at) else { return };
        let changed = self.text(name) == "changed" && name > 0 && self.is(name - 1, ".");
        if !changed && !self.is_word(name, "loop") {
            return;
        }
        let mut from = at + 1;
        for comma in self.at_depth(at, close, ",").into_iter().chain([close]) {
            self.wrap(from, comma, if changed { HELD } else { KEPT }, false);
            from = comma + 1;
        }
    }

    fn for_in(&self) -> Option<usize> {
        (1..self.tokens.len()).find(|&at| self.is_word(at, "in"))
    }

    /// The guards of a statement, and the names that it binds to arguments of a call.
    fn statement(&mut self) -> Vec<String> {
        let len = self.tokens.len();
        match self.text(0) {
            "set" => {
                if let Some(&equals) = self.at_depth(0, len, "=").first() {
                    let is_attribute = (1..equals).any(|at| self.is(at, "."));
                    self.wrap(equals + 1, len, if is_attribute { HELD } else { KEPT }, true);
                }
                Vec::new()
            }
            "with" => {
                let commas = self.at_depth(0, len, ",");
                for equals in self.at_depth(0, len, "=") {
                    let to = commas.iter().copied().find(|&comma| comma > equals).unwrap_or(len);
                    self.wrap(equals + 1, to, KEPT, true);
                }
                Vec::new()
            }
            "for" => {
                if let Some(at) = self.for_in() {
                    let mut to = at + 1;
                    while to < len && !self.is_word(to, "if") && !self.is_word(to, "recursive") {
                        to = if self.tokens[to].kind == Kind::Open {
                            self.partners[to].max(to) + 1
                        } else {
                            to + 1
                        };
                    }
                    // A name or an attribute leads to what is in order already, but for the length of a text.
                    let is_path =
                        (at + 1..to).all(|at| self.tokens[at].kind == Kind::Operand || self.is(at, "."));
                    self.wrap(at + 1, to, if is_path { ITEM } else { COMPARED }, true);
                }
                Vec::new()
            }
            "macro" => self.parameters(2),
            "call" if self.is(1, "(") => self.parameters(1),
            _ => Vec::new(),
        }
    }

    fn parameters(&self, open: usize) -> Vec<String> {
        if !self.is(open, "(") {
            return Vec::new();
        }
        let commas = self.at_depth(open, self.partners[open], ",");
        let starts = [open].into_iter().chain(commas).map(|before| before + 1);
        starts.filter(|&at| self.is_name(at)).map(|at| self.text(at).to_owned()).collect()
    }
}

/// Is the bracket behind a value, and not behind the name of a statement?
fn before_statement(guards: &Guards<'_>, at: usize) -> bool {
    at > guards.first()
}
