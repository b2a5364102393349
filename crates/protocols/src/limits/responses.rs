//! Fields of OpenAI's responses and of counting their tokens.

use super::openai::{ANY, BOOLEAN, CHOICES, EFFORT, INTEGER, MAX_U32, OBJECT, PARALLEL, STRING, STRINGS};
use super::{Measure, Routes, Rule, rule};

const RESPONSES: Routes = Routes::RESPONSES;
const BOTH: Routes = RESPONSES.and(Routes::INPUT_TOKENS);

pub const INPUT_ITEMS: Rule = rule(
    "input",
    BOTH,
    r#"{"oneOf":[{"type":"string"},{"type":"array","items":{"type":"object"}}]}"#,
    "text of the user, or the items of the conversation so far, reasoning included",
)
.measured(Measure::Entries)
.at_least(1.0);
pub const MAX_OUTPUT_TOKENS: Rule =
    rule("max_output_tokens", RESPONSES, INTEGER, "longest answer; the context limit when absent")
        .range(1.0, MAX_U32);
pub const RESPONSES_TOP_LOGPROBS: Rule =
    rule("top_logprobs", RESPONSES, INTEGER, "not implemented (501) above 0").range(0.0, 20.0).or("0");
pub const RESPONSES_TOOLS: Rule = rule(
    "tools",
    BOTH,
    r##"{"type":"array","items":{"$ref":"#/components/schemas/ResponseTool"}}"##,
    "functions are given to the chat template; tools of other types are left out",
)
.measured(Measure::Entries)
.range(0.0, super::openai::MAX_TOOLS);
pub const METADATA: Rule = rule("metadata", RESPONSES, OBJECT, "repeated in the answer, not stored")
    .measured(Measure::Entries)
    .range(0.0, 64.0);

pub(super) const ROWS: &[Rule] = &[
    INPUT_ITEMS,
    rule("instructions", BOTH, STRING, "a system message before the input"),
    MAX_OUTPUT_TOKENS,
    RESPONSES_TOP_LOGPROBS,
    RESPONSES_TOOLS,
    rule(
        "tool_choice",
        BOTH,
        r#"{"oneOf":[{"type":"string","enum":["none","auto","required"]},{"type":"object"}]}"#,
        CHOICES,
    )
    .or("\"auto\""),
    rule("parallel_tool_calls", BOTH, BOOLEAN, PARALLEL).or("true"),
    rule("text", BOTH, OBJECT, "form of the answer"),
    rule(
        "text.format",
        BOTH,
        r#"{"type":"object","properties":{"type":{"type":"string","enum":["text","json_object","json_schema"]}}}"#,
        "`json_object`: the text of the answer is a JSON object; `json_schema`: it is JSON that `schema` accepts; 501 for models \
         whose engine cannot",
    ),
    rule("reasoning", BOTH, OBJECT, "how much to reason"),
    rule(
        "reasoning.effort",
        BOTH,
        r#"{"type":"string","enum":["none","minimal","low","medium","high","xhigh","max"]}"#,
        EFFORT,
    ),
    METADATA,
    rule("include", RESPONSES, STRINGS, "`reasoning.encrypted_content` asks for nothing: reasoning is shown"),
    rule("stream_options", RESPONSES, OBJECT, "`include_obfuscation` has no effect"),
    rule("truncation", BOTH, STRING, "`auto` is not done: too long an input is refused")
        .unused(&["\"disabled\""]),
    rule("store", RESPONSES, BOOLEAN, "nothing is stored").unused(&["true", "false"]),
    rule("service_tier", RESPONSES, STRING, "there is one tier").unused(&["\"auto\"", "\"default\""]),
    rule("max_tool_calls", RESPONSES, INTEGER, "there are no built-in tools").unused(&[]),
    rule("prompt_cache_key", RESPONSES, STRING, "prefixes are found by content; see `cache_salt`")
        .unused(&[]),
    rule("prompt_cache_retention", RESPONSES, STRING, "prefixes stay as long as memory allows").unused(&[]),
    rule("safety_identifier", RESPONSES, STRING, "not used").unused(&[]),
    rule("context_management", RESPONSES, ANY, "the context is left as it was sent").unused(&["[]", "{}"]),
    rule(
        "previous_response_id",
        BOTH,
        STRING,
        "not implemented: nothing is stored, send the items themselves",
    )
    .refused(),
    rule("conversation", BOTH, ANY, "not implemented: nothing is stored, send the items themselves")
        .refused(),
    rule("prompt", RESPONSES, OBJECT, "not implemented: nothing is stored").refused(),
    rule("background", RESPONSES, BOOLEAN, "not implemented: nothing is stored").refused(),
];
