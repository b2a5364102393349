//! Calls that a model may make of itself, held to their tools' schemas from their marker on.

use crate::frame::{framed, list, number, takes};
use dynamo_types::{BoundCall, BoundCalls, Frame, Guide, Reasoning};
use serde_json::json;

/// A tool whose arguments are exact, and one that takes any object.
fn tools(head: &str, neck: &str, tail: &str) -> Vec<BoundCall> {
    let exact = json!({
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"enum": [1, 2]}},
        "required": ["city", "days"], "additionalProperties": false,
    });
    [("weather", exact), ("any", json!({"type": "object"}))]
        .map(|(name, schema)| BoundCall {
            head: format!("{head}{name}{neck}").into(),
            schema: schema.to_string().into(),
            tail: tail.into(),
        })
        .into()
}

fn hermes(opener: &str, close: &str) -> BoundCalls {
    BoundCalls {
        opener: opener.into(),
        others: Vec::new(),
        open: "".into(),
        calls: tools("{\"name\": \"", "\", \"arguments\": ", "}"),
        between: None,
        close: close.into(),
    }
}

fn prose(bound: BoundCalls) -> Frame {
    Frame { bound: Some(bound), ..Guide::Text.into_frame() }
}

const GOOD: &str = r#"{"name": "weather", "arguments": {"city": "Öslo</tool_call>", "days": 2}}"#;
const BAD: &str = r#"{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}"#;
const FREE: &str = r#"{"name": "any", "arguments": {"x": [1, {}]}}"#;
const UNKNOWN: &str = r#"{"name": "other", "arguments": {}}"#;

#[test]
fn text_is_free_and_arguments_are_not() {
    // A marker of text, one that is a token, and one whose end is a token.
    for (opener, close) in
        [("<tool_call>", "</tool_call>"), ("<|start|>", "<|end|>"), ("<tool_call>", "<|end|>")]
    {
        let guide = framed(prose(hermes(opener, close)));
        let call = |text: &str| format!("{opener}\n{text}\n{close}");
        for (text, taken) in [
            (String::new(), true),
            ("Just text, {\"name\": 1} and <tool_ca".into(), true),
            ("With <|message|> markers <|channel|> of others".into(), true),
            (call(GOOD), true),
            (call(FREE), true),
            (format!("Let me see.\n{}", call(GOOD)), true),
            (format!("a{}\n{} and {}!\n<", call(GOOD), call(FREE), call(GOOD)), true),
            (format!("a<|message|>b{}", call(GOOD)), true),
            (call(BAD), false),
            (call(UNKNOWN), false),
            (format!("a{}{}", call(GOOD), call(BAD)), false),
            (format!("a{opener}"), false),
            (format!("a{opener}b"), false),
            (format!("{opener}{GOOD}"), false),
            (format!("{opener}{FREE}{close}").replace("\"any\"", "\"an\""), false),
        ] {
            assert_eq!(takes(&guide, &text), taken, "{opener} {text}");
        }
    }
}

#[test]
fn lists_and_headed_calls_have_the_same_rule() {
    let listed = BoundCalls {
        opener: "<TOOLCALL>".into(),
        open: "[".into(),
        between: Some(", ".into()),
        close: "]</TOOLCALL>".into(),
        ..hermes("", "")
    };
    let guide = framed(prose(listed));
    assert!(takes(&guide, &format!("x<TOOLCALL>[{GOOD}, {FREE}]</TOOLCALL>")));
    assert!(takes(&guide, &format!("<TOOLCALL>[{GOOD}]</TOOLCALL> done")));
    assert!(!takes(&guide, &format!("<TOOLCALL>[{GOOD}, {BAD}]</TOOLCALL>")));
    assert!(!takes(&guide, "<TOOLCALL>[]</TOOLCALL>"));
    let headed = BoundCalls {
        opener: "<|start|>".into(),
        others: list(&["<|channel|>", "<call>"]),
        open: "".into(),
        calls: tools("<|channel|>", "<|message|>", "<|end|>"),
        between: Some("".into()),
        close: "</mull>".into(),
    };
    let guide = framed(prose(headed));
    let weather = "<|channel|>weather<|message|>{\"city\": \"x\", \"days\": 1}<|end|>";
    assert!(takes(&guide, &format!("So: <|start|>{weather}<|channel|>any<|message|>{{}}<|end|></mull>")));
    assert!(!takes(&guide, &format!("So: <|start|>{}</mull>", weather.replace('1', "4"))));
    // Nor may a call begin with a marker that leads around the form.
    assert!(!takes(&guide, weather) && !takes(&guide, "a<call>") && takes(&guide, "a<cal"));
}

#[test]
fn reasoning_stands_before_and_a_form_beside() {
    for closer in ["</think>", "</mull>"] {
        let reasoning = Reasoning {
            is_open: true,
            openers: list(&["<think>"]),
            closers: list(&[closer]),
            then: "".into(),
        };
        let frame = Frame { reasoning: Some(reasoning), ..prose(hermes("<tool_call>", "</tool_call>")) };
        let guide = framed(frame);
        let call = |text: &str| format!("<tool_call>{text}</tool_call>");
        assert!(
            takes(&guide, &format!("I could {} {closer}\n\nSure: {}", call(BAD), call(GOOD))),
            "{closer}"
        );
        assert!(takes(&guide, &format!("{closer}No.")), "{closer}");
        assert!(!takes(&guide, &format!("hm{closer}Sure: {}", call(BAD))), "{closer}");
        assert!(!takes(&guide, "hm"), "{closer}");
    }
    let guide = framed(Frame { bound: Some(hermes("<tool_call>", "</tool_call>")), ..number() });
    for (text, taken) in [
        ("7".to_owned(), true),
        (format!("<tool_call>{GOOD}</tool_call>"), true),
        (format!("<tool_call>\n{GOOD}\n</tool_call>\n<tool_call>{FREE}</tool_call>"), true),
        (format!("<tool_call>{BAD}</tool_call>"), false),
        (format!("7<tool_call>{GOOD}</tool_call>"), false),
        ("Hello".to_owned(), false),
    ] {
        assert_eq!(takes(&guide, &text), taken, "{text}");
    }
}

#[test]
fn a_schema_that_cannot_be_held_to_is_named() {
    let mut bound = hermes("<tool_call>", "</tool_call>");
    bound.calls[0].schema = "{\"not\": {}}".into();
    let fault = crate::frame::compiler().matcher(&framed(prose(bound))).unwrap_err();
    assert_eq!(fault.param(), Some("tools"));
}
