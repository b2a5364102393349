//! The one table of request fields: what each may hold, what it means and what it does (R08).
//!
//! Validation, [`markdown`] and the OpenAPI schemas are all made from [`TABLE`], so the documented limit is the
//! enforced one. Values follow `behaviour.md` 1.4.

use dynamo_types::Error;
use serde::{Deserialize, Serialize};
use std::fmt::{Display, Write};

mod anthropic;
mod openai;
mod responses;
mod tokens;

pub use anthropic::*;
pub use openai::*;
pub use responses::*;
pub use tokens::*;

/// Which bodies a field belongs to: a set of routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routes(u16);

impl Routes {
    pub const CHAT: Self = Self(1);
    pub const COMPLETIONS: Self = Self(1 << 1);
    pub const MESSAGES: Self = Self(1 << 2);
    pub const COUNT_TOKENS: Self = Self(1 << 3);
    pub const RESPONSES: Self = Self(1 << 4);
    pub const INPUT_TOKENS: Self = Self(1 << 5);
    pub const EMBEDDINGS: Self = Self(1 << 6);
    pub const TOKENIZE: Self = Self(1 << 7);
    pub const DETOKENIZE: Self = Self(1 << 8);
    /// All of them.
    pub const MODELS: Self = Self((1 << 9) - 1);
    pub const NONE: Self = Self(0);

    const NAMES: [&'static str; 9] = [
        "chat",
        "completions",
        "messages",
        "count_tokens",
        "responses",
        "input_tokens",
        "embeddings",
        "tokenize",
        "detokenize",
    ];

    /// The routes of either set.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Do the sets share a route?
    pub const fn covers(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Each route of the set by itself.
    pub fn each(self) -> impl Iterator<Item = Self> {
        (0..Self::NAMES.len()).map(|bit| Self(1 << bit)).filter(move |route| self.covers(*route))
    }

    /// The names of the routes, joined by commas.
    pub fn names(self) -> String {
        let named = Self::NAMES.iter().enumerate().filter(|(bit, _)| self.covers(Self(1 << bit)));
        named.map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
    }
}

/// What a rule's bounds are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// The number itself.
    Value,
    /// The number of entries of a list or map.
    Entries,
    /// The length of a text in bytes of UTF-8.
    Bytes,
}

/// What becomes of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Used,
    /// Accepted for the sake of clients that send it; named among the dropped fields.
    None,
    /// Its absence would change the answer, so it is refused with 501.
    Refused,
}

/// One field and its limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// In the client's spelling; nested fields with dots.
    pub field: &'static str,
    pub routes: Routes,
    /// JSON schema of the type, without the bounds.
    pub schema: &'static str,
    pub measure: Measure,
    pub min: Option<f64>,
    /// The minimum itself is not allowed.
    pub min_excluded: bool,
    pub max: Option<f64>,
    /// Value when absent, as JSON; empty when absence means absence.
    pub default: &'static str,
    pub effect: Effect,
    /// For fields without effect: values that ask for nothing (JSON without spaces).
    pub neutral: &'static [&'static str],
    pub text: &'static str,
}

const fn rule(field: &'static str, routes: Routes, schema: &'static str, text: &'static str) -> Rule {
    Rule {
        field,
        routes,
        schema,
        measure: Measure::Value,
        min: None,
        min_excluded: false,
        max: None,
        default: "",
        effect: Effect::Used,
        neutral: &[],
        text,
    }
}

impl Rule {
    const fn range(mut self, min: f64, max: f64) -> Self {
        self.min = Some(min);
        self.max = Some(max);
        self
    }

    const fn at_least(mut self, min: f64) -> Self {
        self.min = Some(min);
        self
    }

    const fn above(mut self, min: f64, max: f64) -> Self {
        self.min_excluded = true;
        self.range(min, max)
    }

    const fn measured(mut self, measure: Measure) -> Self {
        self.measure = measure;
        self
    }

    const fn or(mut self, default: &'static str) -> Self {
        self.default = default;
        self
    }

    const fn unused(mut self, neutral: &'static [&'static str]) -> Self {
        self.effect = Effect::None;
        self.neutral = neutral;
        self
    }

    const fn refused(mut self) -> Self {
        self.effect = Effect::Refused;
        self.neutral = &["false", "[]", "{}", "\"\"", "0"];
        self
    }

    /// The same rule with another maximum.
    pub fn with_max(mut self, max: u32) -> Self {
        self.max = Some(f64::from(max));
        self
    }

    /// The bounds in words: `between 0 and 2`, `at most 32 entries`. Empty when there are none.
    pub fn bounds(&self) -> String {
        let unit = match self.measure {
            Measure::Value => "",
            Measure::Entries => " entries",
            Measure::Bytes => " bytes",
        };
        match (self.min, self.max) {
            (Some(0.0), Some(max)) if self.measure != Measure::Value => format!("at most {max}{unit}"),
            (Some(min), Some(max)) if self.min_excluded => format!("above {min} and at most {max}{unit}"),
            (Some(min), Some(max)) => format!("between {min} and {max}{unit}"),
            (Some(min), None) if self.min_excluded => format!("above {min}{unit}"),
            (Some(min), None) => format!("at least {min}{unit}"),
            (None, Some(max)) => format!("at most {max}{unit}"),
            (None, None) => String::new(),
        }
    }

    /// # Errors
    /// 400 that names `path`, the limit and `given`, when `value` is outside the bounds.
    pub fn check(&self, path: impl Display, value: f64, given: impl Display) -> Result<(), Error> {
        let low = self.min.is_some_and(|min| value < min || (self.min_excluded && value <= min));
        let high = self.max.is_some_and(|max| value > max);
        if !(low || high || value.is_nan()) {
            return Ok(());
        }
        let code = match (self.measure, high) {
            (Measure::Value, true) => "value_above_maximum",
            (Measure::Value, false) => "value_below_minimum",
            (Measure::Entries, true) => "array_above_max_length",
            (Measure::Entries, false) => "array_below_min_length",
            (Measure::Bytes, true) => "string_above_max_length",
            (Measure::Bytes, false) => "string_below_min_length",
        };
        let verb = if self.measure == Measure::Value { "be" } else { "have" };
        let text = format!("`{path}` must {verb} {}, got {given}", self.bounds());
        Err(Error::invalid(text).with_param(path.to_string()).with_code(code))
    }

    /// [`Rule::check`] for a number of entries or bytes.
    ///
    /// # Errors
    /// As [`Rule::check`].
    pub fn check_len(&self, path: impl Display, len: usize) -> Result<(), Error> {
        self.check(path, len as f64, len)
    }
}

/// Limits an operator may set lower or higher than the table has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Entries of `stop`.
    pub stop: u32,
    /// `n`.
    pub n: u32,
    /// Prompts in one completions body, and `n` times that number.
    pub prompts: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { stop: MAX_STOP, n: MAX_N, prompts: MAX_PROMPTS }
    }
}

const PARTS: [&[Rule]; 4] = [openai::ROWS, anthropic::ROWS, responses::ROWS, tokens::ROWS];
const COUNT: usize = PARTS[0].len() + PARTS[1].len() + PARTS[2].len() + PARTS[3].len();
static ROWS: [Rule; COUNT] = {
    let mut rows = [MODEL; COUNT];
    let (mut at, mut part) = (0, 0);
    while part < PARTS.len() {
        let mut row = 0;
        while row < PARTS[part].len() {
            rows[at] = PARTS[part][row];
            at += 1;
            row += 1;
        }
        part += 1;
    }
    rows
};

/// Every request field there is a word to say about.
pub static TABLE: &[Rule] = &ROWS;

/// The rule of a top-level field of `route`, which is a single one.
pub fn find(route: Routes, field: &str) -> Option<&'static Rule> {
    TABLE.iter().find(|rule| rule.field == field && rule.routes.covers(route))
}

/// Is `field` one that does something on `route`?
pub(crate) fn is_used(route: Routes, field: &str) -> bool {
    find(route, field).is_some_and(|rule| rule.effect == Effect::Used)
}

/// The table of chat and text completions as Markdown, for the documentation.
pub fn markdown() -> String {
    markdown_of(Routes::CHAT.and(Routes::COMPLETIONS))
}

/// The part of the table that concerns `routes` as Markdown.
pub fn markdown_of(of: Routes) -> String {
    let mut page = String::from("| Field | Routes | Limit | Default | Meaning |\n|---|---|---|---|---|\n");
    let all = of.each().count();
    for rule in TABLE.iter().filter(|rule| rule.routes.covers(of)) {
        let shared = Routes(rule.routes.0 & of.0);
        let routes = match shared.each().count() {
            2 if all == 2 => "both".to_owned(),
            _ => shared.names(),
        };
        let effect = match rule.effect {
            Effect::Used => "",
            Effect::None => " (no effect; named as dropped)",
            Effect::Refused => " (501)",
        };
        let default = if rule.default.is_empty() { String::new() } else { format!("`{}`", rule.default) };
        // Writing to a String cannot fail.
        let _ = writeln!(
            page,
            "| `{}` | {routes} | {} | {default} | {}{effect} |",
            rule.field,
            rule.bounds(),
            rule.text.replace('|', "\\|")
        );
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r08_an_error_names_field_limit_and_value() {
        let error = STOP.with_max(4).check_len("stop", 5).unwrap_err();
        assert_eq!(error.message(), "`stop` must have at most 4 entries, got 5");
        assert_eq!(error.param(), Some("stop"));
        let error = REPETITION_PENALTY.check("repetition_penalty", 0.0, "0").unwrap_err();
        assert_eq!(error.message(), "`repetition_penalty` must be above 0 and at most 2, got 0");
    }

    #[test]
    fn bounds_are_inclusive_unless_said_otherwise() {
        for rule in TABLE.iter().filter(|rule| rule.measure == Measure::Value) {
            if let Some(max) = rule.max {
                assert!(rule.check(rule.field, max, max).is_ok(), "{}", rule.field);
                let over = max + max.abs().max(1.0) * 0.01;
                assert!(rule.check(rule.field, over, over).is_err(), "{}", rule.field);
            }
            if let Some(min) = rule.min {
                assert_eq!(rule.check(rule.field, min, min).is_ok(), !rule.min_excluded, "{}", rule.field);
                let under = min - min.abs().max(1.0) * 0.01;
                assert!(rule.check(rule.field, under, under).is_err(), "{}", rule.field);
            }
        }
        assert!(TEMPERATURE.check("temperature", f64::NAN, "NaN").is_err());
    }

    #[test]
    fn every_row_is_documented_once() {
        let page = markdown_of(Routes::MODELS);
        for (i, rule) in TABLE.iter().enumerate() {
            assert!(page.contains(&format!("| `{}` |", rule.field)));
            assert!(serde_json::from_str::<serde_json::Value>(rule.schema).is_ok(), "{}", rule.field);
            let twin = TABLE[..i].iter().find(|r| r.field == rule.field && r.routes.covers(rule.routes));
            assert_eq!(twin, None);
        }
    }
}
