//! Fields of Anthropic's messages and of counting their tokens.

use super::openai::{
    ANY, ARRAY, BOOLEAN, BUDGET, EFFORT, INTEGER, MAX_STOP, MAX_U32, NUMBER, OBJECT, STRING, STRINGS,
};
use super::{Measure, Routes, Rule, rule};

const MESSAGES: Routes = Routes::MESSAGES;
const BOTH: Routes = MESSAGES.and(Routes::COUNT_TOKENS);
/// Chat takes it in the same form.
const THINKERS: Routes = BOTH.and(Routes::CHAT);

pub const ANTHROPIC_MESSAGES: Rule = rule(
    "messages",
    BOTH,
    r##"{"type":"array","items":{"$ref":"#/components/schemas/AnthropicMessage"}}"##,
    "the conversation, oldest first; an answer continues a last message of the assistant",
)
.measured(Measure::Entries)
.at_least(1.0);
/// `max_tokens` where it is required.
pub const ANTHROPIC_MAX_TOKENS: Rule =
    rule("max_tokens", MESSAGES, INTEGER, "longest answer").range(1.0, MAX_U32);
pub const ANTHROPIC_TEMPERATURE: Rule =
    rule("temperature", MESSAGES, NUMBER, "0 is greedy").range(0.0, 1.0).or("1");
pub const STOP_SEQUENCES: Rule =
    rule("stop_sequences", MESSAGES, STRINGS, "texts that end the answer; none empty")
        .measured(Measure::Entries)
        .range(0.0, MAX_STOP as f64);
pub const ANTHROPIC_TOOLS: Rule = rule(
    "tools",
    BOTH,
    r##"{"type":"array","items":{"$ref":"#/components/schemas/AnthropicTool"}}"##,
    "given to the chat template; tools with a `type` of Anthropic's own are left out",
)
.measured(Measure::Entries)
.range(0.0, super::openai::MAX_TOOLS);
pub const THINKING_BUDGET: Rule =
    rule("thinking.budget_tokens", THINKERS, INTEGER, BUDGET).range(1.0, MAX_U32);
pub const USER_ID: Rule = rule("metadata.user_id", MESSAGES, STRING, "the caller's own name for its user")
    .measured(Measure::Bytes)
    .range(0.0, 512.0);

const FORMAT: &str =
    "`json_schema`: the text of the answer is JSON that `schema` accepts; 501 for models whose engine cannot";

pub(super) const ROWS: &[Rule] = &[
    ANTHROPIC_MESSAGES,
    ANTHROPIC_MAX_TOKENS,
    rule(
        "system",
        BOTH,
        r#"{"oneOf":[{"type":"string"},{"type":"array","items":{"type":"object"}}]}"#,
        "text before the conversation",
    ),
    ANTHROPIC_TEMPERATURE,
    STOP_SEQUENCES,
    ANTHROPIC_TOOLS,
    rule(
        "tool_choice",
        BOTH,
        r#"{"type":"object","properties":{"type":{"type":"string","enum":["auto","any","tool","none"]}}}"#,
        "`none` hides the tools from the template; `any` and `tool` hold the answer to calls (501 for models whose engine cannot)",
    ),
    rule("tool_choice.disable_parallel_tool_use", BOTH, BOOLEAN, "at most one call an answer").or("false"),
    rule(
        "thinking",
        THINKERS,
        OBJECT,
        "sets `enable_thinking` and `thinking` for the chat template; named as dropped if it is to think and the template knows \
         neither",
    ),
    rule(
        "thinking.type",
        THINKERS,
        r#"{"type":"string","enum":["enabled","adaptive","between_tools","disabled"]}"#,
        "should the model think first?",
    ),
    THINKING_BUDGET,
    rule("output_config", BOTH, OBJECT, "how to answer"),
    rule(
        "output_config.effort",
        BOTH,
        r#"{"type":"string","enum":["none","minimal","low","medium","high","xhigh","max"]}"#,
        EFFORT,
    ),
    rule("output_config.format", BOTH, OBJECT, FORMAT),
    rule("output_format", BOTH, OBJECT, "older name of `output_config.format`; not together with it"),
    rule("metadata", MESSAGES, OBJECT, "about the request"),
    USER_ID,
    rule("cache_control", BOTH, OBJECT, "every prefix is cached anyway"),
    rule("service_tier", MESSAGES, STRING, "there is one tier").unused(&["\"auto\"", "\"standard_only\""]),
    rule("context_management", BOTH, OBJECT, "the context is left as it was sent").unused(&["{}"]),
    rule("inference_geo", MESSAGES, STRING, "not used").unused(&[]),
    rule("speed", BOTH, STRING, "there is one speed").unused(&["\"standard\""]),
    rule("diagnostics", MESSAGES, OBJECT, "earlier answers are not stored").unused(&["{}"]),
    rule("container", MESSAGES, ANY, "not implemented").refused(),
    rule("mcp_servers", BOTH, ARRAY, "not implemented").refused(),
];
