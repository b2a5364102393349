//! Answers with reasoning in front of them and calls in their place.

use super::{EOS, SIZE, bytes};
use dynamo_guide::{Compiler, Limits, Vocabulary};
use dynamo_types::{Frame, Guide, Reasoning};
use serde_json::json;
use std::sync::Arc;

/// Markers that are tokens; they spell no text.
const SPECIAL: [&str; 5] = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "</mull>"];

pub(crate) fn compiler() -> Compiler {
    let names = (SIZE..).zip(SPECIAL.map(str::to_owned));
    let size = SIZE + SPECIAL.len() as u32;
    let vocabulary =
        Vocabulary::new(size, &[EOS], |id| if id < SIZE { bytes(id) } else { Vec::new() }).unwrap();
    Compiler::new(&vocabulary.with_special(names), Limits::default()).unwrap()
}

/// Byte tokens, and special ones where the text has their names.
fn tokens(text: &str) -> Vec<u32> {
    let (mut tokens, mut rest) = (Vec::new(), text.as_bytes());
    while let Some(&byte) = rest.first() {
        match SPECIAL.iter().position(|name| rest.starts_with(name.as_bytes())) {
            Some(which) => {
                tokens.push(SIZE + which as u32);
                rest = &rest[SPECIAL[which].len()..];
            }
            None => {
                tokens.push(byte.into());
                rest = &rest[1..];
            }
        }
    }
    tokens
}

/// May the answer be this one, and may it end after it?
pub(crate) fn takes(guide: &Guide, text: &str) -> bool {
    let mut matcher = compiler().matcher(guide).unwrap();
    for token in tokens(text) {
        if matcher.is_finished() || !matcher.mask().unwrap().allows(token) {
            return false;
        }
        matcher.accept(token).unwrap();
    }
    matcher.is_finished() || matcher.mask().unwrap().allows(EOS)
}

pub(crate) fn list(texts: &[&str]) -> Vec<Arc<str>> {
    texts.iter().map(|&text| text.into()).collect()
}

pub(crate) fn number() -> Frame {
    Guide::JsonSchema(r#"{"type":"integer"}"#.into()).into_frame()
}

pub(crate) fn framed(frame: Frame) -> Guide {
    Guide::Framed(Box::new(frame))
}

fn thinks(is_open: bool, closers: &[&str]) -> Guide {
    let openers = list(&["<think>"]);
    let reasoning = Reasoning { is_open, openers, closers: list(closers), then: "".into() };
    framed(Frame { reasoning: Some(reasoning), ..number() })
}

#[test]
fn reasoning_is_free_up_to_its_end_and_the_answer_is_not() {
    for closer in ["</think>", "</mull>"] {
        let open = thinks(true, &[closer]);
        let shut = thinks(false, &[closer]);
        for (text, after_open, after_shut) in [
            (format!("let me see: <{closer}12"), true, false),
            (format!("line\nline {{\"a\": [\"{closer}\n\n12"), true, false),
            (format!("{closer}12"), true, false),
            (format!("a{closer}x"), false, false),
            (format!("a{closer}\n\n\n12"), false, false),
            (format!("a{closer}1{closer}2"), false, false),
            ("only thoughts".into(), false, false),
            (format!("<think>東京{closer}12"), true, true),
            ("12".into(), false, true),
            (" x".into(), false, false),
        ] {
            assert_eq!(takes(&open, &text), after_open, "open {text:?}");
            assert_eq!(takes(&shut, &text), after_shut, "shut {text:?}");
        }
    }
    // Either of two ends, of which one is a token.
    for text in ["a</think>1", "a</mull>1"] {
        assert!(takes(&thinks(true, &["</think>", "</mull>"]), text), "{text}");
    }
}

#[test]
fn answers_in_channels_have_their_markers() {
    let reasoning = Reasoning {
        is_open: false,
        openers: list(&["<|channel|>analysis<|message|>"]),
        closers: list(&["<|end|>"]),
        then: "<|start|>assistant".into(),
    };
    let head = "<|channel|>final<|message|>".into();
    let guide = framed(Frame { reasoning: Some(reasoning), head, ..number() });
    for (text, taken) in [
        ("<|channel|>final<|message|>7", true),
        ("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>7", true),
        ("<|channel|>analysis<|message|>hm<|end|><|channel|>final<|message|>7", false),
        ("<|channel|>analysis<|message|>hm", false),
        ("<|channel|>final<|message|>seven", false),
        ("7", false),
    ] {
        assert_eq!(takes(&guide, text), taken, "{text}");
    }
}

#[test]
fn calls_in_the_models_own_format_are_free() {
    let guide = framed(Frame { calls: list(&["<tool_call>", "<|start|>call"]), ..number() });
    for (text, taken) in [
        ("7", true),
        ("<tool_call>\n{\"name\": ...\n</tool_call>", true),
        ("<tool_call>", true),
        ("<|start|>call f<|message|>{}<|end|>x", true),
        ("7<tool_call>", false),
        ("Sure: <tool_call>", false),
        ("<|message|>", false),
    ] {
        assert_eq!(takes(&guide, text), taken, "{text}");
    }
    let guide = thinks(true, &["</think>"]);
    let Guide::Framed(frame) = guide else { return };
    let guide = framed(Frame { calls: list(&["<tool_call>"]), ..*frame });
    assert!(takes(&guide, "hm</think>\n\n<tool_call>f") && takes(&guide, "hm</think>7"));
    assert!(!takes(&guide, "hm</think>f"));
}

#[test]
fn every_kind_of_answer_can_be_framed() {
    let head: Arc<str> = "<|message|>".into();
    for (answer, text) in [
        (Guide::JsonObject, "{}"),
        (Guide::Regex("a+/b".into()), "aa/b"),
        (Guide::Choice(vec!["yes/no".into()]), "yes/no"),
        (Guide::Lark("start: \"x\" y\ny: /[0-9]/".into()), "x7"),
    ] {
        let guide = framed(Frame { head: Arc::clone(&head), ..answer.into_frame() });
        assert!(takes(&guide, &format!("<|message|>{text}")), "{guide:?}");
        assert!(!takes(&guide, text) && !takes(&guide, "<|message|>?"), "{guide:?}");
    }
}

#[test]
fn errors_name_the_field_that_asked() {
    let guide = Guide::JsonSchema(json!({"not": {}}).to_string().into());
    let fault = compiler().matcher(&guide.clone().asked_in("text.format")).unwrap_err();
    assert_eq!(fault.param(), Some("text.format"));
    assert!(fault.message().contains("`text.format`") && fault.message().contains("not"), "{fault}");
    // Where exactness was not asked for, what is not known is left out.
    let frame = guide.asked_in("tools").into_frame();
    assert!(takes(&framed(Frame { is_lenient: true, ..frame }), "[1]"));
}
