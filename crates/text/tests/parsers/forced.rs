//! Forced calls of every reasoning family, written as a grammar makes the model write them.

use crate::support::{Setup, boundaries, cut, parse, tools};
use dynamo_text::parsers::{
    Bounds, Forced, Start, Surrounding, reasoning_bounds, reasoning_names, reasoning_surrounding,
};
use dynamo_types::FinishReason;

const ARGUMENTS: &str = "{\"city\": \"<think>\", \"days\": 3}";

fn setup(name: &str, start: Start) -> Setup {
    Setup {
        reasoning: Some(name.to_owned()),
        tool: Some("hermes".to_owned()),
        start,
        finish: FinishReason::Stop,
        tools: tools(),
        forced: Some(Forced::Named("get_weather".into())),
        max_calls: None,
    }
}

/// Reads `text` whole and in single characters.
fn check(name: &str, start: Start, text: &str, reasoning: &str) {
    for pieces in [vec![text], cut(text, &boundaries(text))] {
        let (message, reason) = parse(&setup(name, start), pieces);
        let title = format!("{name} {start:?} {text:?}: {message:?}");
        assert_eq!((message.content.as_str(), message.reasoning.as_str()), ("", reasoning), "{title}");
        assert_eq!(reason, FinishReason::ToolCalls, "{title}");
        let [call] = message.tool_calls.as_slice() else { panic!("{title}") };
        assert_eq!((call.name.as_str(), call.arguments.as_str()), ("get_weather", ARGUMENTS), "{title}");
    }
}

/// What the grammar lets a model write around an answer is what the parser of its family takes off.
#[test]
fn every_family_reads_what_its_surrounding_says() {
    for name in reasoning_names() {
        for start in [Start::Default, Start::Reasoning] {
            let Surrounding { reasoning, head } = reasoning_surrounding(name, start);
            let reasoning = reasoning.unwrap();
            assert!(start == Start::Default || reasoning.is_open, "{name}");
            for closer in &reasoning.closers {
                let rest = format!("hm, {{}} or [1]{closer}{}{head}{ARGUMENTS}", reasoning.then);
                match reasoning.is_open {
                    true => check(name, start, &rest, "hm, {} or [1]"),
                    false => {
                        for opener in &reasoning.openers {
                            check(name, start, &format!("{opener}{rest}"), "hm, {} or [1]");
                        }
                        check(name, start, &format!("{head}{ARGUMENTS}"), "");
                    }
                }
            }
        }
        assert_eq!(reasoning_surrounding(name, Start::Content), Surrounding::default());
        check(name, Start::Content, ARGUMENTS, "");
    }
    assert_eq!(reasoning_surrounding("nobody", Start::Default), Surrounding::default());
}

/// What ends a family's reasoning in the model's place, ends it for its parser, once and again; the second end leads to the answer.
#[test]
fn every_family_reads_what_ends_its_reasoning() {
    for name in reasoning_names() {
        for start in [Start::Default, Start::Reasoning] {
            let Bounds { is_open, openers, closers, ends } = reasoning_bounds(name, start).unwrap();
            assert!(start == Start::Default || is_open, "{name}");
            assert!(closers.iter().any(|closer| ends[0].starts_with(closer)), "{name}");
            let Surrounding { head, .. } = reasoning_surrounding(name, start);
            for opener in &openers {
                let first = if is_open { String::new() } else { (*opener).to_owned() };
                check(name, start, &format!("{first}hm{}{head}{ARGUMENTS}", ends[0]), "hm");
                // Channels have more than one message of reasoning; tags may begin once more.
                let again = opener.strip_prefix("<|start|>assistant").unwrap_or(opener);
                let text = format!("{first}hm{}{again}so{}{ARGUMENTS}", ends[0], ends[1]);
                check(name, start, &text, "hmso");
            }
        }
        let Bounds { is_open, .. } = reasoning_bounds(name, Start::Content).unwrap();
        assert!(!is_open, "{name}");
    }
    assert_eq!(reasoning_bounds("nobody", Start::Default), None);
}
