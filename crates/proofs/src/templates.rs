//! Chat templates: hostile messages under good templates, and hostile templates.

use crate::input::Input;
use dynamo_text::{RenderInput, Template};
use dynamo_types::{ChatTemplate, Class, Error, SpecialTokens};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        [$(include_str!(concat!("../../text/tests/data/templates/", $name, ".jinja"))),*]
    };
}

/// The styles that the tests of `text` compare with Python's Jinja2.
static SOURCES: [&str; 14] = sources![
    "chatml",
    "command_r",
    "deepseek",
    "gemma",
    "granite",
    "harmony",
    "llama2",
    "llama3",
    "mistral",
    "phi",
    "qwen25",
    "qwen3",
    "refuses",
    "vision",
];

fn special() -> SpecialTokens {
    SpecialTokens { bos_text: Some("<s>".into()), eos_text: Some("</s>".into()), ..SpecialTokens::default() }
}

fn compile(source: &str) -> Result<Template, Error> {
    Template::compile(&ChatTemplate { source: source.into() }, &special())
}

static TEMPLATES: LazyLock<Vec<Template>> = LazyLock::new(|| {
    let list: Vec<Template> = SOURCES.iter().filter_map(|source| compile(source).ok()).collect();
    assert_eq!(list.len(), SOURCES.len(), "all of them compile");
    list
});

/// Nobody is to blame but the messages (R11).
fn check(template: &Template, input: &RenderInput<'_>) {
    let rendered = template.render(input);
    assert_eq!(rendered, template.render(input), "rendering depends on nothing else");
    if let Err(error) = rendered {
        assert_eq!(error.class(), Class::Invalid, "{error:?}");
    }
}

/// First byte: the template. Second: flags. The rest: a JSON array of messages, or an object with `messages`, `tools`
/// and `kwargs`.
pub(crate) fn messages(data: &[u8]) {
    let mut input = Input::new(data);
    let template = usize::from(input.byte()) % TEMPLATES.len();
    let flags = input.byte();
    let Ok(value) = serde_json::from_slice::<Value>(input.rest()) else { return };
    let list = value.as_array().or_else(|| value.get("messages")?.as_array());
    let kwargs = value.get("kwargs").and_then(Value::as_object).cloned().unwrap_or_default();
    let input = RenderInput {
        messages: list.map_or(&[][..], Vec::as_slice),
        tools: value.get("tools").filter(|tools| tools.is_array()),
        add_generation_prompt: flags & 1 == 1,
        continue_final_message: flags & 2 == 2,
        kwargs: &kwargs,
        now_unix_s: 1_700_000_000,
    };
    check(&TEMPLATES[template], &input);
}

/// The whole input is the template. A broken one is an error and nothing more (R12).
pub(crate) fn source(data: &[u8]) {
    let source = Input::new(data).text();
    let template = match compile(&source) {
        Ok(template) => template,
        Err(error) => {
            assert_eq!(error.class(), Class::Internal, "{error:?}");
            return;
        }
    };
    let messages = [
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "content": [{"type": "text", "text": "é 😀 <|x|>"}]}),
        json!({"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1, 2.5, null]}"}}]}),
        json!({"role": "tool", "tool_call_id": "call_1", "content": "done"}),
    ];
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let kwargs = Map::from_iter([("n".to_owned(), json!(3)), ("flag".to_owned(), json!(true))]);
    for (tools, continue_final_message) in [(None, false), (Some(&tools), true)] {
        let input = RenderInput {
            messages: &messages,
            tools,
            add_generation_prompt: true,
            continue_final_message,
            kwargs: &kwargs,
            now_unix_s: 0,
        };
        check(&template, &input);
    }
}
