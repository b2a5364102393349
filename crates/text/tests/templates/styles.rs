//! Templates against what Jinja2 itself renders (`tests/data/make_templates.py`), and the rules around them.

use dynamo_text::{RenderInput, Template};
use dynamo_types::{ChatTemplate, Class, Error, SpecialTokens};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
/// 2026-02-03 04:05:06 UTC, as in the script.
const NOW_UNIX_S: i64 = 1_770_091_506;

static NO_KWARGS: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);

fn compile(source: &str) -> Result<Template, Error> {
    let special = SpecialTokens {
        bos_text: Some("<s>".into()),
        eos_text: Some("</s>".into()),
        ..SpecialTokens::default()
    };
    Template::compile(&ChatTemplate { source: source.into() }, &special)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(format!("{DATA}/{name}")).unwrap()
}

fn input(messages: &[Value]) -> RenderInput<'_> {
    RenderInput {
        messages,
        tools: None,
        add_generation_prompt: false,
        continue_final_message: false,
        kwargs: &NO_KWARGS,
        now_unix_s: NOW_UNIX_S,
    }
}

pub(crate) fn render(source: &str, messages: &Value) -> Result<String, Error> {
    compile(source)?.render(&input(messages.as_array().unwrap()))
}

#[test]
fn r12_every_style_renders_as_jinja2_does() {
    let cases: Map<String, Value> = serde_json::from_str(&read("conversations.json")).unwrap();
    let expected: Map<String, Value> = serde_json::from_str(&read("rendered.json")).unwrap();
    let mut compared = 0;
    let mut wrong = Vec::new();
    for (name, outcomes) in &expected {
        let template = compile(&read(&format!("templates/{name}.jinja"))).unwrap();
        for (case, outcome) in outcomes.as_object().unwrap() {
            let given = &cases[case];
            let result = template.render(&RenderInput {
                messages: given["messages"].as_array().unwrap(),
                tools: given.get("tools"),
                add_generation_prompt: given["add_generation_prompt"].as_bool().unwrap(),
                continue_final_message: given.get("continue_final_message").is_some(),
                kwargs: given.get("kwargs").and_then(Value::as_object).unwrap_or(&NO_KWARGS),
                now_unix_s: NOW_UNIX_S,
            });
            let found = match &result {
                Ok(text) => json!({ "text": text }),
                Err(error) if outcome.get("refused").is_some() => json!({ "refused": error.message() }),
                Err(error) if outcome.get("error").is_some() => {
                    json!({ "error": error.class() == Class::Invalid })
                }
                Err(error) => json!({ "unexpected": error.message() }),
            };
            compared += 1;
            if found != *outcome {
                wrong.push(format!("{name} / {case}\n  expected {outcome}\n  found    {found}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {compared} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared >= 500 && expected.len() >= 30, "{compared}");
}

#[test]
fn r11_refusals_are_the_clients_error_in_the_templates_own_words() {
    let source = read("templates/refuses.jinja");
    let error = render(&source, &json!([{"role": "assistant", "content": "hi"}])).unwrap_err();
    assert_eq!(error.class(), Class::Invalid);
    assert_eq!(error.message(), "No user turn found: 1 message(s)");
    assert_eq!(error.param(), Some("messages"));
    // Also out of a macro that is called inside a filter block.
    let nested = "{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{% filter upper %}{{ m() }}{% endfilter %}";
    assert_eq!(render(nested, &json!([])).unwrap_err().message(), "deep");
}

#[test]
fn r11_messages_that_do_not_fit_are_the_clients_error() {
    let error = render("{{ messages[0].a.b.c }}", &json!([{"role": "user"}])).unwrap_err();
    assert_eq!(error.class(), Class::Invalid);
    assert!(error.message().contains("(line 1)"), "{}", error.message());
    assert!(!error.message().contains('\n'), "{}", error.message());
    assert_eq!(render("x", &json!(["text"])).unwrap_err().param(), Some("messages[0]"));
}

#[test]
fn r12_dotted_indexes_and_newlines_survive() {
    let source = "{{ messages[0].content.0.type }}\n\n<tool>\n";
    let list = json!([{"role": "user", "content": [{"type": "text", "text": "hi"}]}]);
    assert_eq!(render(source, &list).unwrap(), "text\n\n<tool>");
    // The hub's rule: one newline at the very end of a template belongs to the file.
    assert_eq!(render(&(source.to_owned() + "\n"), &list).unwrap(), "text\n\n<tool>\n");
}

#[test]
fn r12_a_broken_template_is_an_error_and_nothing_more() {
    for source in ["{% for %}", "{{ 'open }}", "{% if x %}", "{% unknown_tag %}", "{{ x | nofilter("] {
        let error = compile(source).unwrap_err();
        assert_eq!(error.class(), Class::Internal);
        assert!(error.detail().unwrap().starts_with("chat template: "), "{error:?}");
        assert!(error.detail().unwrap().contains("(line 1)"), "{error:?}");
    }
}

/// An opening and a closing may share a sign. Found by laws over mutated templates.
#[test]
fn r12_tags_without_a_middle_are_errors_or_text() {
    for source in [
        "{%}",
        "{%}%- if x %}",
        "{%",
        "{#}",
        "{#}x#}",
        "{{}",
        "{{}}",
        "{%%}",
        "{% raw %}{%}",
        "{%raw%}{%endraw%}{%}%}",
    ] {
        if let Err(error) = compile(source) {
            assert_eq!(error.class(), Class::Internal, "{source}: {error:?}");
        }
    }
}

#[test]
fn content_lists_become_text_for_templates_that_read_text() {
    let chatml = compile(&read("templates/chatml.jinja")).unwrap();
    let list = [
        json!({"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
    ];
    assert_eq!(chatml.render(&input(&list)).unwrap(), "<|im_start|>system\na\nb<|im_end|>\n");
    let image = [
        json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]}),
    ];
    let error = chatml.render(&input(&image)).unwrap_err();
    assert_eq!(error.param(), Some("messages[0].content[1]"));
    assert!(error.message().contains("image_url"), "{}", error.message());
    // Templates that read parts only get parts, also from clients that send strings.
    let parts = "{% for part in messages[0].content %}<{{ part.text }}>{% endfor %}";
    assert_eq!(render(parts, &json!([{"role": "user", "content": "hi"}])).unwrap(), "<hi>");
    // Templates that read both get what the client sent.
    let vision = compile(&read("templates/vision.jinja")).unwrap();
    assert!(vision.render(&input(&image)).unwrap().contains("a<|vision_start|>"));
}

#[test]
fn tool_arguments_come_as_the_template_reads_them() {
    let messages = |arguments: Value| {
        json!([{"role": "user", "content": "?"}, {"role": "assistant", "content": null, "tool_calls": [
            {"id": "123456789", "type": "function", "function": {"name": "f", "arguments": arguments}}]}])
    };
    let qwen = read("templates/qwen25.jinja");
    let text = render(&qwen, &messages(json!("{\"a\":1}"))).unwrap();
    assert!(text.contains(r#""arguments": {"a": 1}"#), "{text}");
    // Text that is no JSON object stays text.
    let text = render(&qwen, &messages(json!("{\"a\":"))).unwrap();
    assert!(text.contains(r#""arguments": "{\"a\":""#), "{text}");
    let concatenating = "{% for m in messages if m.tool_calls %}{{ 'call ' + m.tool_calls[0].function.arguments }}{% endfor %}";
    assert_eq!(render(concatenating, &messages(json!("{\"a\":1}"))).unwrap(), "call {\"a\":1}");
}

#[test]
fn a_final_message_can_be_continued() {
    let chatml = compile(&read("templates/chatml.jinja")).unwrap();
    let continued = |template: &Template, content: &str| {
        let messages =
            [json!({"role": "system", "content": "s"}), json!({"role": "assistant", "content": content})];
        template.render(&RenderInput {
            continue_final_message: true,
            add_generation_prompt: true,
            ..input(&messages)
        })
    };
    let head = "<|im_start|>system\ns<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(continued(&chatml, "Once upon").unwrap(), format!("{head}Once upon"));
    assert_eq!(continued(&chatml, "Once upon ").unwrap(), format!("{head}Once upon "));
    let trimming = compile("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}").unwrap();
    assert_eq!(continued(&trimming, "Once upon ").unwrap(), "[s][Once upon");
    let hiding = compile("{{ messages[0].content }}").unwrap();
    assert_eq!(continued(&hiding, "Once").unwrap_err().param(), Some("continue_final_message"));
}

#[test]
fn options_are_variables_but_cannot_replace_the_messages() {
    let template =
        compile("{{ bos_token }}{{ a }}{{ messages[0].content }}{{ strftime_now('%Y') }}").unwrap();
    let messages = [json!({"role": "user", "content": "m"})];
    let kwargs = json!({"a": 1, "bos_token": "<B>", "messages": []});
    let input = RenderInput { kwargs: kwargs.as_object().unwrap(), ..input(&messages) };
    assert_eq!(template.render(&input).unwrap(), "<B>1m2026");
}

#[test]
fn templates_are_shared_between_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    shared(&compile("x").unwrap());
}
