//! Fields of OpenAI's chat and text completions.

use super::{Measure, Routes, Rule, rule};

/// The documented limit of the reference system.
pub(super) const MAX_STOP: u32 = 32;
/// Each choice is an engine request of its own; the reference system stops at the same number.
pub(super) const MAX_N: u32 = 128;
/// Evaluation harnesses send up to about a thousand prompts in one body; each is an engine request of its own.
pub(super) const MAX_PROMPTS: u32 = 1024;
/// Beyond this a biased vocabulary is a model of its own, and the row costs more than the sampling.
const MAX_BIASES: f64 = 1024.0;
/// Compared with every sampled token.
const MAX_STOP_IDS: f64 = 256.0;
/// Of the text of a grammar, or of a schema. Compiling takes time in proportion.
const MAX_GRAMMAR_BYTES: f64 = 131_072.0;
/// Text withheld while it may still become a stop string.
pub(super) const MAX_STOP_BYTES: f64 = 4096.0;
/// Rendered into the prompt on every turn.
pub(super) const MAX_TOOLS: f64 = 1024.0;
pub(super) const MAX_U32: f64 = u32::MAX as f64;

pub(super) const NUMBER: &str = r#"{"type":"number"}"#;
pub(super) const INTEGER: &str = r#"{"type":"integer"}"#;
pub(super) const BOOLEAN: &str = r#"{"type":"boolean"}"#;
pub(super) const STRING: &str = r#"{"type":"string"}"#;
pub(super) const OBJECT: &str = r#"{"type":"object"}"#;
pub(super) const ARRAY: &str = r#"{"type":"array"}"#;
pub(super) const STRINGS: &str = r#"{"type":"array","items":{"type":"string"}}"#;
pub(super) const TOKENS: &str = r#"{"type":"array","items":{"type":"integer","minimum":0}}"#;
pub(super) const ANY: &str = "{}";
pub(super) const PROMPT: &str = r#"{"oneOf":[{"type":"string"},{"type":"array","items":{"type":"string"}},{"type":"array","items":{"type":"integer"}},{"type":"array","items":{"type":"array","items":{"type":"integer"}}}]}"#;
const STOPS: &str = r#"{"oneOf":[{"type":"string"},{"type":"array","items":{"oneOf":[{"type":"string"},{"type":"integer"}]}}]}"#;

const CHAT: Routes = Routes::CHAT;
const COMPLETIONS: Routes = Routes::COMPLETIONS;
const BOTH: Routes = CHAT.and(COMPLETIONS);
/// What `tool_choice` does.
pub(super) const CHOICES: &str = "`none` hides the tools from the template; `required` and a named function hold the answer to calls (501 for models \
    whose engine cannot); `allowed_tools` offers only some of the tools";
pub(super) const EFFORT: &str = "given to the chat template as `reasoning_effort`; `none` also sets `enable_thinking` and `thinking` to false. Where the \
    template knows none of them, it limits thinking (see Thinking), or is named as dropped if the engine cannot";
/// What becomes of a limit on thinking.
pub(super) const BUDGET: &str = "most tokens of thinking, which the engine then ends; named as dropped for models whose reasoning is of no known \
    family, and engines that cannot";
pub(super) const PARALLEL: &str = "`false`: at most one call an answer";
/// Every API that generates.
const GENERATION: Routes = BOTH.and(Routes::MESSAGES).and(Routes::RESPONSES);
/// Every API with a conversation, those that only count its tokens included.
const CONVERSATION: Routes = CHAT
    .and(Routes::MESSAGES)
    .and(Routes::COUNT_TOKENS)
    .and(Routes::RESPONSES)
    .and(Routes::INPUT_TOKENS)
    .and(Routes::TOKENIZE);

pub const THINKING_TOKENS: Rule = rule("thinking_token_budget", CHAT, INTEGER, BUDGET).range(0.0, MAX_U32);
pub const MAX_THINKING_TOKENS: Rule =
    rule("nvext.max_thinking_tokens", CHAT.and(Routes::MESSAGES).and(Routes::RESPONSES), INTEGER, BUDGET)
        .range(0.0, MAX_U32);
pub const MODEL: Rule = rule("model", Routes::MODELS, STRING, "name or alias of a served model")
    .measured(Measure::Bytes)
    .range(1.0, 512.0);
pub const MESSAGES: Rule = rule(
    "messages",
    CHAT,
    r##"{"type":"array","items":{"$ref":"#/components/schemas/Message"}}"##,
    "the conversation, oldest first",
)
.measured(Measure::Entries)
.at_least(1.0);
pub const PROMPT_LIST: Rule = rule(
    "prompt",
    COMPLETIONS,
    PROMPT,
    "text or token ids, or a list of either; choice index is prompt index times `n` plus choice",
)
.measured(Measure::Entries)
.range(1.0, MAX_PROMPTS as f64);
pub const TEMPERATURE: Rule =
    rule("temperature", BOTH.and(Routes::RESPONSES), NUMBER, "0 is greedy").range(0.0, 2.0).or("1");
pub const TOP_P: Rule =
    rule("top_p", GENERATION, NUMBER, "keeps the smallest set of tokens with this probability")
        .range(0.0, 1.0)
        .or("1");
pub const TOP_K: Rule = rule("top_k", GENERATION, INTEGER, "keeps the likeliest tokens; -1 or 0 keeps all")
    .range(-1.0, MAX_U32)
    .or("-1");
pub const MIN_P: Rule = rule("min_p", GENERATION, NUMBER, "drops tokens below this share of the likeliest")
    .range(0.0, 1.0)
    .or("0");
pub const FREQUENCY_PENALTY: Rule =
    rule("frequency_penalty", BOTH, NUMBER, "subtracted per occurrence in the answer")
        .range(-2.0, 2.0)
        .or("0");
pub const PRESENCE_PENALTY: Rule =
    rule("presence_penalty", BOTH, NUMBER, "subtracted once if present in the answer")
        .range(-2.0, 2.0)
        .or("0");
pub const REPETITION_PENALTY: Rule =
    rule("repetition_penalty", GENERATION, NUMBER, "divides the logits of tokens already seen")
        .above(0.0, 2.0)
        .or("1");
pub const N: Rule = rule("n", BOTH, INTEGER, "choices per prompt; above 1 needs a temperature above 0")
    .range(1.0, MAX_N as f64)
    .or("1");
pub const BEST_OF: Rule = rule(
    "best_of",
    COMPLETIONS,
    INTEGER,
    "candidates per prompt, of which the `n` with the highest mean log-probability per token are answered, best first; at least \
     `n`; above `n` not with `stream`; all candidates count as completion tokens",
)
.range(1.0, MAX_N as f64);
pub const MAX_TOKENS: Rule =
    rule("max_tokens", BOTH, INTEGER, "longest answer; the context limit when absent").range(1.0, MAX_U32);
pub const MAX_COMPLETION_TOKENS: Rule =
    rule("max_completion_tokens", BOTH, INTEGER, "newer name of `max_tokens`; wins over it")
        .range(1.0, MAX_U32);
pub const MIN_TOKENS: Rule =
    rule("min_tokens", GENERATION, INTEGER, "no end before this many tokens; at most `max_tokens`")
        .range(0.0, MAX_U32)
        .or("0");
pub const STOP: Rule =
    rule("stop", BOTH, STOPS, "texts that end the answer; integers among them are token ids; none empty")
        .measured(Measure::Entries)
        .range(0.0, MAX_STOP as f64);
pub const STOP_TEXT: Rule =
    rule("stop[]", BOTH, STRING, "one stop text").measured(Measure::Bytes).range(1.0, MAX_STOP_BYTES);
pub const STOP_TOKEN_IDS: Rule = rule("stop_token_ids", GENERATION, TOKENS, "token ids that end the answer")
    .measured(Measure::Entries)
    .range(0.0, MAX_STOP_IDS);
pub const TOP_LOGPROBS: Rule =
    rule("top_logprobs", CHAT, INTEGER, "alternatives per token; needs `logprobs: true`")
        .range(0.0, 20.0)
        .or("0");
pub const CHAT_LOGPROBS: Rule =
    rule("logprobs", CHAT, BOOLEAN, "log-probability of each answer token").or("false");
pub const LOGPROBS: Rule =
    rule("logprobs", COMPLETIONS, INTEGER, "log-probability of each token, with this many alternatives")
        .range(0.0, 5.0);
pub const LOGIT_BIAS: Rule = rule(
    "logit_bias",
    BOTH,
    r#"{"type":"object","additionalProperties":{"type":"number"}}"#,
    "token id (as a string) to bias",
)
.measured(Measure::Entries)
.range(0.0, MAX_BIASES);
pub const LOGIT_BIAS_VALUE: Rule =
    rule("logit_bias.*", BOTH, NUMBER, "added to the logit of the token").range(-100.0, 100.0);
pub const USER: Rule = rule(
    "user",
    BOTH.and(Routes::RESPONSES).and(Routes::EMBEDDINGS),
    STRING,
    "the caller's own name for its user; non-empty",
)
.measured(Measure::Bytes)
.range(1.0, 512.0);
pub const CACHE_SALT: Rule =
    rule("cache_salt", GENERATION, STRING, "isolates prefix caches; empty is absent")
        .measured(Measure::Bytes)
        .range(0.0, 512.0);
pub const GUIDED_JSON: Rule =
    rule("guided_json", BOTH, ANY, "the answer is JSON that this schema (an object, or its text) accepts")
        .measured(Measure::Bytes)
        .range(1.0, MAX_GRAMMAR_BYTES);
pub const GUIDED_REGEX: Rule =
    rule("guided_regex", BOTH, STRING, "the answer matches this regular expression as a whole")
        .measured(Measure::Bytes)
        .range(1.0, MAX_GRAMMAR_BYTES);
pub const GUIDED_GRAMMAR: Rule = rule(
    "guided_grammar",
    BOTH,
    STRING,
    "the answer is of this grammar in Lark's notation; its rule is `start`",
)
.measured(Measure::Bytes)
.range(1.0, MAX_GRAMMAR_BYTES);
pub const GUIDED_CHOICE: Rule = rule("guided_choice", BOTH, STRINGS, "the answer is one of these")
    .measured(Measure::Entries)
    .range(1.0, 1024.0);
pub const GUIDED_CHOICE_TEXT: Rule =
    rule("guided_choice[]", BOTH, STRING, "one of the answers").measured(Measure::Bytes).range(1.0, 4096.0);
pub const PRIORITY: Rule = rule("priority", GENERATION, INTEGER, "higher goes first")
    .range(i32::MIN as f64, i32::MAX as f64)
    .or("0");
pub const SEED: Rule =
    rule("seed", GENERATION, INTEGER, "64 bits, may be negative: same seed, same request, same answer");
pub const TOOLS: Rule = rule(
    "tools",
    CHAT,
    r##"{"type":"array","items":{"$ref":"#/components/schemas/Tool"}}"##,
    "given to the chat template",
)
.measured(Measure::Entries)
.range(0.0, MAX_TOOLS);
pub const TOKEN_ID: Rule = rule("prompt[]", COMPLETIONS, INTEGER, "a token id").range(0.0, MAX_U32);
pub const RANK: Rule = rule(
    "nvext.dp_rank",
    GENERATION,
    INTEGER,
    "data-parallel rank: of the worker named, or of any; 400 if there is none",
)
.range(0.0, MAX_U32);
pub const WORKER: Rule = rule(
    "nvext.backend_instance_id",
    GENERATION,
    INTEGER,
    "worker to use; 64 bits; 400 if it does not serve the model",
)
.at_least(0.0);
pub const OSL: Rule =
    rule("nvext.agent_hints.osl", GENERATION, INTEGER, "expected answer length, for routing")
        .range(0.0, MAX_U32);
pub const STRICT_PRIORITY: Rule = rule(
    "nvext.agent_hints.strict_priority",
    GENERATION,
    INTEGER,
    "tier: a higher one goes first whatever `priority` says",
)
.range(0.0, MAX_U32)
.or("0");
pub const ANNOTATIONS: Rule = rule(
    "nvext.annotations",
    BOTH,
    STRINGS,
    "events of their own in a stream: `request_id`, `formatted_prompt`, `token_ids`, `llm_metrics`; other names are named as \
     dropped, `query_instance_id` is 501",
)
.measured(Measure::Entries)
.range(0.0, 16.0);
pub const EXTRA_FIELDS: Rule = rule(
    "nvext.extra_fields",
    BOTH,
    STRINGS,
    "parts of the answer's own `nvext`: `worker_id`, `timing`, `stop_reason`, `completion_token_ids`, `prompt_token_ids`, \
     `prompt_logprobs`; other names are named as dropped",
)
.measured(Measure::Entries)
.range(0.0, 16.0);
const OTHERS: Routes = Routes::MESSAGES.and(Routes::RESPONSES);

/// Fields of chat and text completions, and those that the other APIs share with them.
pub(super) const ROWS: &[Rule] = &[
    MODEL,
    MESSAGES,
    PROMPT_LIST,
    TOKEN_ID,
    rule("stream", GENERATION, BOOLEAN, "answer as server-sent events").or("false"),
    rule("stream_options", BOTH, OBJECT, "only with `stream: true`"),
    rule("stream_options.include_usage", BOTH, BOOLEAN, "one last chunk with the token counts").or("false"),
    rule("stream_options.continuous_usage_stats", BOTH, BOOLEAN, "token counts on every chunk").or("false"),
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
    rule("include_stop_str_in_output", GENERATION, BOOLEAN, "leave the stop text in the answer").or("false"),
    rule("ignore_eos", GENERATION, BOOLEAN, "go on at the model's end tokens").or("false"),
    rule("skip_special_tokens", GENERATION, BOOLEAN, "leave special tokens out of the text").or("true"),
    CHAT_LOGPROBS,
    TOP_LOGPROBS,
    LOGPROBS,
    rule("echo", COMPLETIONS, BOOLEAN, "the prompt in front of the answer").or("false"),
    TOOLS,
    rule(
        "tool_choice",
        CHAT,
        r#"{"oneOf":[{"type":"string","enum":["none","auto","required"]},{"type":"object"}]}"#,
        CHOICES,
    )
    .or("\"auto\""),
    rule("parallel_tool_calls", CHAT, BOOLEAN, PARALLEL).or("true"),
    rule(
        "response_format",
        BOTH,
        r#"{"type":"object","properties":{"type":{"type":"string","enum":["text","json_object","json_schema"]},"json_schema":{"type":"object"}}}"#,
        "`json_object`: the answer is a JSON object; `json_schema`: it is JSON that `json_schema.schema` accepts. Of this and \
         `guided_*` one may be given; 501 for models whose engine cannot",
    ),
    rule(
        "reasoning_effort",
        CHAT,
        r#"{"type":"string","enum":["none","minimal","low","medium","high","xhigh","max"]}"#,
        EFFORT,
    ),
    THINKING_TOKENS,
    rule(
        "add_generation_prompt",
        CHAT,
        BOOLEAN,
        "end the prompt with the start of an answer; not together with `continue_final_message`",
    )
    .or("true"),
    rule("continue_final_message", CHAT, BOOLEAN, "the answer continues the last message").or("false"),
    rule("chat_template_kwargs", CONVERSATION, OBJECT, "variables for the chat template"),
    rule("chat_template_args", CHAT, OBJECT, "other name of `chat_template_kwargs`"),
    USER,
    CACHE_SALT,
    PRIORITY,
    rule(
        "return_tokens_as_token_ids",
        BOTH,
        BOOLEAN,
        "tokens of log-probabilities are spelled `token_id:<id>`, so that no two look alike",
    )
    .or("false"),
    rule(
        "nvext",
        GENERATION,
        OBJECT,
        "extensions; strict: a field that is not in this table is a 400 that names the nearest",
    ),
    WORKER,
    rule("nvext.decode_worker_id", GENERATION, INTEGER, "other name of `nvext.backend_instance_id`; both must agree")
        .at_least(0.0),
    rule(
        "nvext.prefill_worker_id",
        GENERATION,
        INTEGER,
        "worker for the prefill; a worker here does both, so it pins that, and must agree with the other pins",
    )
    .at_least(0.0),
    RANK,
    rule("nvext.prefill_dp_rank", GENERATION, INTEGER, "rank for the prefill; as `nvext.prefill_worker_id`")
        .range(0.0, MAX_U32),
    rule("nvext.cache_salt", GENERATION, STRING, "wins over `cache_salt`")
        .measured(Measure::Bytes)
        .range(0.0, 512.0),
    rule("nvext.greed_sampling", GENERATION, BOOLEAN, "temperature 0, whatever else is said").or("false"),
    rule("nvext.ignore_eos", GENERATION, BOOLEAN, "same as `ignore_eos`").or("false"),
    rule(
        "nvext.use_raw_prompt",
        GENERATION,
        BOOLEAN,
        "no chat template: the texts of the messages, one behind the other, are the prompt",
    )
    .or("false"),
    rule("nvext.token_data", GENERATION, TOKENS, "the prompt as token ids, in place of the one in the body; not with several prompts"),
    EXTRA_FIELDS,
    rule("nvext.extra_fields", OTHERS, STRINGS, "only for chat and completions").unused(&["[]"]),
    ANNOTATIONS,
    rule("nvext.annotations", OTHERS, STRINGS, "only for chat and completions").unused(&["[]"]),
    rule(
        "nvext.agent_hints",
        GENERATION,
        OBJECT,
        "what an agent knows ahead: `priority`, `strict_priority`, `osl`",
    ),
    rule("nvext.agent_hints.priority", GENERATION, INTEGER, "wins over `priority`")
        .range(i32::MIN as f64, i32::MAX as f64),
    STRICT_PRIORITY,
    OSL,
    rule("nvext.agent_hints.speculative_prefill", GENERATION, BOOLEAN, "the next turn is not computed ahead")
        .unused(&["false"]),
    MAX_THINKING_TOKENS,
    rule("nvext.max_thinking_tokens", COMPLETIONS, INTEGER, "a text is not split into reasoning and answer").unused(&[]),
    rule("nvext.request_timestamp_ms", GENERATION, NUMBER, "the time of arrival is taken").unused(&[]),
    rule("nvext.routing_constraints", GENERATION, OBJECT, "taints; workers have none"),
    rule("nvext.routing_constraints.required_taints", GENERATION, STRINGS, "not implemented").refused(),
    rule("nvext.routing_constraints.preferred_taints", GENERATION, OBJECT, "not used").unused(&["{}"]),
    rule("nvext.router", GENERATION, OBJECT, "targets for a router above this one"),
    rule("nvext.router.ttft_target", GENERATION, NUMBER, "not used").unused(&[]),
    rule("nvext.router.itl_target", GENERATION, NUMBER, "not used").unused(&[]),
    rule("nvext.metadata_upload", GENERATION, OBJECT, "not implemented").refused(),
    rule("metadata", BOTH, OBJECT, "not stored").unused(&["{}"]),
    rule("store", BOTH, BOOLEAN, "nothing is stored").unused(&["false"]),
    rule("service_tier", BOTH, STRING, "there is one tier").unused(&["\"auto\"", "\"default\""]),
    rule("prompt_cache_key", BOTH, STRING, "prefixes are found by content; see `cache_salt`").unused(&[]),
    rule("prompt_cache_retention", BOTH, STRING, "prefixes stay as long as memory allows").unused(&[]),
    rule("safety_identifier", BOTH, STRING, "not used").unused(&[]),
    rule("verbosity", BOTH, STRING, "not used").unused(&["\"medium\""]),
    rule("prediction", CHAT, OBJECT, "a speed hint; not used").unused(&[]),
    rule("web_search_options", CHAT, OBJECT, "not used").unused(&["{}"]),
    rule("modalities", CHAT, STRINGS, "only text is made").unused(&["[\"text\"]", "[]"]),
    rule("audio", CHAT, OBJECT, "not implemented").refused(),
    rule("functions", CHAT, ARRAY, "not implemented; use `tools`").refused(),
    rule("function_call", CHAT, ANY, "not implemented; use `tool_choice`").refused(),
    rule("suffix", COMPLETIONS, STRING, "not implemented: text is only made behind a prompt").refused(),
    GUIDED_JSON,
    GUIDED_REGEX,
    GUIDED_GRAMMAR,
    GUIDED_CHOICE,
    GUIDED_CHOICE_TEXT,
    rule(
        "structured_outputs",
        BOTH,
        OBJECT,
        "the same under one roof: `json`, `json_object`, `regex`, `grammar` or `choice`",
    ),
    rule("use_beam_search", BOTH, BOOLEAN, "not implemented").refused(),
    rule("allowed_token_ids", BOTH, TOKENS, "not implemented").refused(),
    rule("logits_processors", BOTH, ARRAY, "not implemented").refused(),
    rule("length_penalty", BOTH, NUMBER, "only for beam search").unused(&["1", "1.0"]),
    rule("bad_words", BOTH, STRINGS, "not implemented").refused(),
    rule("truncate_prompt_tokens", BOTH, INTEGER, "not implemented").refused(),
    rule("prompt_embeds", COMPLETIONS, ANY, "not implemented").refused(),
];
