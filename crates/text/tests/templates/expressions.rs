//! Small templates against what Jinja2 made of them (`tests/data/make_expressions.py`): what published templates write
//! in expressions, and what a generator drew.

use dynamo_text::{RenderInput, Template};
use dynamo_types::{ChatTemplate, SpecialTokens};
use serde_json::Value;

/// 2026-02-03 04:05:06 UTC, as in the script.
const NOW_UNIX_S: i64 = 1_770_091_506;

#[test]
fn r12_expressions_mean_what_they_mean_in_jinja2() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/expressions.json");
    let data: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let cases = data["cases"].as_array().unwrap();
    let messages: Vec<Value> = Vec::new();
    let mut wrong = Vec::new();
    for case in cases {
        let (source, expected) = (case[0].as_str().unwrap(), case[1].as_str().unwrap());
        let rendered = Template::compile(&ChatTemplate { source: source.into() }, &SpecialTokens::default())
            .and_then(|template| {
                template.render(&RenderInput {
                    messages: &messages,
                    tools: None,
                    add_generation_prompt: false,
                    continue_final_message: false,
                    kwargs: data["variables"].as_object().unwrap(),
                    now_unix_s: NOW_UNIX_S,
                })
            });
        match rendered {
            Ok(text) if text == expected => {}
            Ok(text) => wrong.push(format!("{source}\n  expected {expected:?}\n  found    {text:?}")),
            Err(error) => wrong.push(format!("{source}\n  expected {expected:?}\n  error    {error:?}")),
        }
    }
    assert!(cases.len() >= 1500);
    assert!(
        wrong.is_empty(),
        "seed {}: {} of {} differ:\n{}",
        data["seed"],
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
}
