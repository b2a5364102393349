//! Fields of embeddings, `/tokenize` and `/detokenize`.

use super::openai::{BOOLEAN, INTEGER, MAX_U32, OBJECT, STRING, TOKENS};
use super::{Measure, Routes, Rule, rule};

const EMBEDDINGS: Routes = Routes::EMBEDDINGS;
const TOKENIZE: Routes = Routes::TOKENIZE;
const DETOKENIZE: Routes = Routes::DETOKENIZE;

pub const EMBEDDING_INPUT: Rule = rule(
    "input",
    EMBEDDINGS,
    super::openai::PROMPT,
    "text or token ids, or a list of either; one embedding each, in order",
)
.measured(Measure::Entries)
// OpenAI's own limit.
.range(1.0, 2048.0);
pub const DIMENSIONS: Rule =
    rule("dimensions", EMBEDDINGS, INTEGER, "only the size that the model has").range(1.0, MAX_U32);
pub const DETOKENIZE_TOKENS: Rule =
    rule("tokens", DETOKENIZE, TOKENS, "ids to be made text").measured(Measure::Entries).at_least(0.0);

pub(super) const ROWS: &[Rule] = &[
    EMBEDDING_INPUT,
    rule(
        "encoding_format",
        EMBEDDINGS,
        r#"{"type":"string","enum":["float","base64"]}"#,
        "numbers, or the bytes of little-endian 32-bit floats",
    )
    .or("\"float\""),
    DIMENSIONS,
    rule("add_special_tokens", EMBEDDINGS, BOOLEAN, "what the model wants around a text").or("true"),
    rule("truncate_prompt_tokens", EMBEDDINGS, INTEGER, "not implemented").refused(),
    rule("prompt", TOKENIZE, STRING, "a text; either this or `messages`"),
    rule(
        "messages",
        TOKENIZE,
        r##"{"type":"array","items":{"$ref":"#/components/schemas/Message"}}"##,
        "a conversation; either this or `prompt`",
    )
    .measured(Measure::Entries)
    .at_least(1.0),
    rule(
        "add_special_tokens",
        TOKENIZE,
        BOOLEAN,
        "what the model wants around a text; true for `prompt`, false for `messages`",
    ),
    rule("return_token_strs", TOKENIZE, BOOLEAN, "the text of each token too").or("false"),
    rule(
        "tools",
        TOKENIZE,
        r##"{"type":"array","items":{"$ref":"#/components/schemas/Tool"}}"##,
        "given to the chat template",
    )
    .measured(Measure::Entries)
    .range(0.0, super::openai::MAX_TOOLS),
    rule("add_generation_prompt", TOKENIZE, BOOLEAN, "end the prompt with the start of an answer").or("true"),
    rule("continue_final_message", TOKENIZE, BOOLEAN, "the prompt ends inside the last message").or("false"),
    rule("chat_template", TOKENIZE, STRING, "not implemented").refused(),
    rule("mm_processor_kwargs", TOKENIZE, OBJECT, "there is no media").unused(&["{}"]),
    DETOKENIZE_TOKENS,
];
