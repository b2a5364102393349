//! The one table of request fields: what each may hold, what it means and what it does (R08).
//!
//! Validation, [`markdown`] and the OpenAPI schemas are all made from [`TABLE`], so the documented limit is the
//! enforced one. Values follow `behaviour.md` 1.4.

use dynamo_types::Error;
use serde::{Deserialize, Serialize};
use std::fmt::{Display, Write};

/// Which bodies a field belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routes {
    Chat,
    Completions,
    Both,
}

impl Routes {
    /// Does a field for `self` belong to the bodies of `route`?
    pub fn covers(self, route: Self) -> bool {
        self == Self::Both || route == Self::Both || self == route
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

/// The documented limit of the reference system.
const MAX_STOP: u32 = 32;
/// Each choice is an engine request of its own; the reference system stops at the same number.
const MAX_N: u32 = 128;
/// Evaluation harnesses send up to about a thousand prompts in one body; each is an engine request of its own.
const MAX_PROMPTS: u32 = 1024;
/// Beyond this a biased vocabulary is a model of its own, and the row costs more than the sampling.
const MAX_BIASES: f64 = 1024.0;
/// Compared with every sampled token.
const MAX_STOP_IDS: f64 = 256.0;
/// Text withheld while it may still become a stop string.
const MAX_STOP_BYTES: f64 = 4096.0;
/// Rendered into the prompt on every turn.
const MAX_TOOLS: f64 = 1024.0;
const MAX_U32: f64 = u32::MAX as f64;

const NUMBER: &str = r#"{"type":"number"}"#;
const INTEGER: &str = r#"{"type":"integer"}"#;
const BOOLEAN: &str = r#"{"type":"boolean"}"#;
const STRING: &str = r#"{"type":"string"}"#;
const OBJECT: &str = r#"{"type":"object"}"#;
const ARRAY: &str = r#"{"type":"array"}"#;
const STRINGS: &str = r#"{"type":"array","items":{"type":"string"}}"#;
const TOKENS: &str = r#"{"type":"array","items":{"type":"integer","minimum":0}}"#;
const ANY: &str = "{}";
const PROMPT: &str = r#"{"oneOf":[{"type":"string"},{"type":"array","items":{"type":"string"}},{"type":"array","items":{"type":"integer"}},{"type":"array","items":{"type":"array","items":{"type":"integer"}}}]}"#;
const STOPS: &str = r#"{"oneOf":[{"type":"string"},{"type":"array","items":{"oneOf":[{"type":"string"},{"type":"integer"}]}}]}"#;

use Routes::{Both, Chat, Completions};

pub const MODEL: Rule =
    rule("model", Both, STRING, "name or alias of a served model").measured(Measure::Bytes).range(1.0, 512.0);
pub const MESSAGES: Rule = rule(
    "messages",
    Chat,
    r##"{"type":"array","items":{"$ref":"#/components/schemas/Message"}}"##,
    "the conversation, oldest first",
)
.measured(Measure::Entries)
.at_least(1.0);
pub const PROMPT_LIST: Rule = rule(
    "prompt",
    Completions,
    PROMPT,
    "text or token ids, or a list of either; choice index is prompt index times `n` plus choice",
)
.measured(Measure::Entries)
.range(1.0, MAX_PROMPTS as f64);
pub const TEMPERATURE: Rule = rule("temperature", Both, NUMBER, "0 is greedy").range(0.0, 2.0).or("1");
pub const TOP_P: Rule = rule("top_p", Both, NUMBER, "keeps the smallest set of tokens with this probability")
    .range(0.0, 1.0)
    .or("1");
pub const TOP_K: Rule = rule("top_k", Both, INTEGER, "keeps the likeliest tokens; -1 or 0 keeps all")
    .range(-1.0, MAX_U32)
    .or("-1");
pub const MIN_P: Rule =
    rule("min_p", Both, NUMBER, "drops tokens below this share of the likeliest").range(0.0, 1.0).or("0");
pub const FREQUENCY_PENALTY: Rule =
    rule("frequency_penalty", Both, NUMBER, "subtracted per occurrence in the answer")
        .range(-2.0, 2.0)
        .or("0");
pub const PRESENCE_PENALTY: Rule =
    rule("presence_penalty", Both, NUMBER, "subtracted once if present in the answer")
        .range(-2.0, 2.0)
        .or("0");
pub const REPETITION_PENALTY: Rule =
    rule("repetition_penalty", Both, NUMBER, "divides the logits of tokens already seen")
        .above(0.0, 2.0)
        .or("1");
pub const N: Rule = rule("n", Both, INTEGER, "choices per prompt; above 1 needs a temperature above 0")
    .range(1.0, MAX_N as f64)
    .or("1");
pub const BEST_OF: Rule =
    rule("best_of", Completions, INTEGER, "at least `n`; a value other than `n` is not implemented (501)")
        .range(1.0, MAX_N as f64);
pub const MAX_TOKENS: Rule =
    rule("max_tokens", Both, INTEGER, "longest answer; the context limit when absent").range(1.0, MAX_U32);
pub const MAX_COMPLETION_TOKENS: Rule =
    rule("max_completion_tokens", Both, INTEGER, "newer name of `max_tokens`; wins over it")
        .range(1.0, MAX_U32);
pub const MIN_TOKENS: Rule =
    rule("min_tokens", Both, INTEGER, "no end before this many tokens; at most `max_tokens`")
        .range(0.0, MAX_U32)
        .or("0");
pub const STOP: Rule =
    rule("stop", Both, STOPS, "texts that end the answer; integers among them are token ids; none empty")
        .measured(Measure::Entries)
        .range(0.0, MAX_STOP as f64);
pub const STOP_TEXT: Rule =
    rule("stop[]", Both, STRING, "one stop text").measured(Measure::Bytes).range(1.0, MAX_STOP_BYTES);
pub const STOP_TOKEN_IDS: Rule = rule("stop_token_ids", Both, TOKENS, "token ids that end the answer")
    .measured(Measure::Entries)
    .range(0.0, MAX_STOP_IDS);
pub const TOP_LOGPROBS: Rule =
    rule("top_logprobs", Chat, INTEGER, "alternatives per token; needs `logprobs: true`")
        .range(0.0, 20.0)
        .or("0");
pub const CHAT_LOGPROBS: Rule =
    rule("logprobs", Chat, BOOLEAN, "log-probability of each answer token").or("false");
pub const LOGPROBS: Rule =
    rule("logprobs", Completions, INTEGER, "log-probability of each token, with this many alternatives")
        .range(0.0, 5.0);
pub const LOGIT_BIAS: Rule = rule(
    "logit_bias",
    Both,
    r#"{"type":"object","additionalProperties":{"type":"number"}}"#,
    "token id (as a string) to bias",
)
.measured(Measure::Entries)
.range(0.0, MAX_BIASES);
pub const LOGIT_BIAS_VALUE: Rule =
    rule("logit_bias.*", Both, NUMBER, "added to the logit of the token").range(-100.0, 100.0);
pub const USER: Rule = rule("user", Both, STRING, "the caller's own name for its user; non-empty")
    .measured(Measure::Bytes)
    .range(1.0, 512.0);
pub const CACHE_SALT: Rule = rule("cache_salt", Both, STRING, "isolates prefix caches; empty is absent")
    .measured(Measure::Bytes)
    .range(0.0, 512.0);
pub const PRIORITY: Rule =
    rule("priority", Both, INTEGER, "higher goes first").range(i32::MIN as f64, i32::MAX as f64).or("0");
pub const SEED: Rule =
    rule("seed", Both, INTEGER, "64 bits, may be negative: same seed, same request, same answer");
pub const TOOLS: Rule = rule(
    "tools",
    Chat,
    r##"{"type":"array","items":{"$ref":"#/components/schemas/Tool"}}"##,
    "given to the chat template",
)
.measured(Measure::Entries)
.range(0.0, MAX_TOOLS);
pub const TOKEN_ID: Rule = rule("prompt[]", Completions, INTEGER, "a token id").range(0.0, MAX_U32);
pub const RANK: Rule =
    rule("nvext.dp_rank", Both, INTEGER, "data-parallel rank of that worker").range(0.0, MAX_U32);
pub const WORKER: Rule =
    rule("nvext.backend_instance_id", Both, INTEGER, "worker to use; 64 bits").at_least(0.0);
pub const OSL: Rule =
    rule("nvext.agent_hints.osl", Both, INTEGER, "expected answer length, for routing").range(0.0, MAX_U32);
pub const ANNOTATIONS: Rule = rule("nvext.annotations", Both, STRINGS, "extra SSE events to send")
    .measured(Measure::Entries)
    .range(0.0, 16.0);

/// Every request field there is a word to say about.
pub const TABLE: &[Rule] = &[
    MODEL,
    MESSAGES,
    PROMPT_LIST,
    TOKEN_ID,
    rule("stream", Both, BOOLEAN, "answer as server-sent events").or("false"),
    rule("stream_options", Both, OBJECT, "only with `stream: true`"),
    rule("stream_options.include_usage", Both, BOOLEAN, "one last chunk with the token counts").or("false"),
    rule("stream_options.continuous_usage_stats", Both, BOOLEAN, "token counts on every chunk").or("false"),
    MAX_TOKENS,
    MAX_COMPLETION_TOKENS,
    MIN_TOKENS,
    N,
    BEST_OF,
    TEMPERATURE,
    TOP_P,
    TOP_K,
    MIN_P,
    FREQUENCY_PENALTY,
    PRESENCE_PENALTY,
    REPETITION_PENALTY,
    SEED,
    LOGIT_BIAS,
    LOGIT_BIAS_VALUE,
    STOP,
    STOP_TEXT,
    STOP_TOKEN_IDS,
    rule("include_stop_str_in_output", Both, BOOLEAN, "leave the stop text in the answer").or("false"),
    rule("ignore_eos", Both, BOOLEAN, "go on at the model's end tokens").or("false"),
    rule("skip_special_tokens", Both, BOOLEAN, "leave special tokens out of the text").or("true"),
    CHAT_LOGPROBS,
    TOP_LOGPROBS,
    LOGPROBS,
    rule("echo", Completions, BOOLEAN, "the prompt in front of the answer").or("false"),
    TOOLS,
    rule(
        "tool_choice",
        Chat,
        r#"{"oneOf":[{"type":"string","enum":["none","auto","required"]},{"type":"object"}]}"#,
        "`none` hides the tools from the template; `required` and a named tool are not implemented (501)",
    )
    .or("\"auto\""),
    rule("parallel_tool_calls", Chat, BOOLEAN, "`false` has no effect yet and is named as dropped")
        .or("true"),
    rule(
        "response_format",
        Both,
        r#"{"type":"object","properties":{"type":{"type":"string","enum":["text","json_object","json_schema"]}}}"#,
        "only `text`; the others are not implemented (501)",
    ),
    rule(
        "reasoning_effort",
        Chat,
        r#"{"type":"string","enum":["none","minimal","low","medium","high","xhigh","max"]}"#,
        "given to the chat template",
    ),
    rule(
        "add_generation_prompt",
        Chat,
        BOOLEAN,
        "end the prompt with the start of an answer; not together with `continue_final_message`",
    )
    .or("true"),
    rule("continue_final_message", Chat, BOOLEAN, "the answer continues the last message").or("false"),
    rule("chat_template_kwargs", Chat, OBJECT, "variables for the chat template"),
    rule("chat_template_args", Chat, OBJECT, "other name of `chat_template_kwargs`"),
    USER,
    CACHE_SALT,
    PRIORITY,
    rule("nvext", Both, OBJECT, "extensions; unknown fields inside are treated like unknown fields"),
    WORKER,
    RANK,
    rule("nvext.cache_salt", Both, STRING, "wins over `cache_salt`")
        .measured(Measure::Bytes)
        .range(0.0, 512.0),
    rule("nvext.greed_sampling", Both, BOOLEAN, "temperature 0, whatever else is said").or("false"),
    rule("nvext.ignore_eos", Both, BOOLEAN, "same as `ignore_eos`").or("false"),
    ANNOTATIONS,
    rule("nvext.agent_hints", Both, OBJECT, "what an agent knows ahead: `priority`, `osl`"),
    rule("nvext.agent_hints.priority", Both, INTEGER, "wins over `priority`")
        .range(i32::MIN as f64, i32::MAX as f64),
    OSL,
    rule("metadata", Both, OBJECT, "not stored").unused(&["{}"]),
    rule("store", Both, BOOLEAN, "nothing is stored").unused(&["false"]),
    rule("service_tier", Both, STRING, "there is one tier").unused(&["\"auto\"", "\"default\""]),
    rule("prompt_cache_key", Both, STRING, "prefixes are found by content; see `cache_salt`").unused(&[]),
    rule("prompt_cache_retention", Both, STRING, "prefixes stay as long as memory allows").unused(&[]),
    rule("safety_identifier", Both, STRING, "not used").unused(&[]),
    rule("verbosity", Both, STRING, "not used").unused(&["\"medium\""]),
    rule("prediction", Chat, OBJECT, "a speed hint; not used").unused(&[]),
    rule("web_search_options", Chat, OBJECT, "not used").unused(&["{}"]),
    rule("modalities", Chat, STRINGS, "only text is made").unused(&["[\"text\"]", "[]"]),
    rule("audio", Chat, OBJECT, "not implemented").refused(),
    rule("functions", Chat, ARRAY, "not implemented; use `tools`").refused(),
    rule("function_call", Chat, ANY, "not implemented; use `tool_choice`").refused(),
    rule("suffix", Completions, STRING, "not implemented").refused(),
    rule("guided_json", Both, ANY, "not implemented").refused(),
    rule("guided_regex", Both, STRING, "not implemented").refused(),
    rule("guided_grammar", Both, STRING, "not implemented").refused(),
    rule("guided_choice", Both, STRINGS, "not implemented").refused(),
    rule("structured_outputs", Both, OBJECT, "not implemented").refused(),
    rule("use_beam_search", Both, BOOLEAN, "not implemented").refused(),
    rule("bad_words", Both, STRINGS, "not implemented").refused(),
    rule("truncate_prompt_tokens", Both, INTEGER, "not implemented").refused(),
    rule("prompt_embeds", Completions, ANY, "not implemented").refused(),
];

/// The rule of a top-level field of `route` (`Chat` or `Completions`).
pub fn find(route: Routes, field: &str) -> Option<&'static Rule> {
    TABLE.iter().find(|rule| rule.field == field && rule.routes.covers(route))
}

/// The table as Markdown, for the documentation.
pub fn markdown() -> String {
    let mut page = String::from("| Field | Routes | Limit | Default | Meaning |\n|---|---|---|---|---|\n");
    for rule in TABLE {
        let routes = match rule.routes {
            Chat => "chat",
            Completions => "completions",
            Both => "both",
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
        let page = markdown();
        for (i, rule) in TABLE.iter().enumerate() {
            assert!(page.contains(&format!("| `{}` |", rule.field)));
            assert!(serde_json::from_str::<serde_json::Value>(rule.schema).is_ok(), "{}", rule.field);
            let twin = TABLE[..i].iter().find(|r| r.field == rule.field && r.routes.covers(rule.routes));
            assert_eq!(twin, None);
        }
    }
}
