//! Laws over every fixture: cutting changes nothing, ends leak nothing, cost is linear and arguments flow.

use crate::support::{Case, Setup, all_cases, boundaries, cases, cut, parse, tools};
use dynamo_text::parsers::{Event, Events, Options, Splitter, Start, Tools, reasoning_start};
use dynamo_types::{FinishReason, draw};
use serde_json::Value;

/// Draws of this file start here; a failing case prints its number.
const SEED: u64 = 0x7061_7273;

/// Fixtures up to this size are cut in all pairs of places.
const ALL_PAIRS_BYTES: usize = 96;

const RANDOM_CUTS: u64 = 400;

fn check(case: &Case, whole: &impl std::fmt::Debug, at: &[usize]) {
    let parts = parse(&case.setup, cut(&case.text, at));
    assert_eq!(format!("{parts:?}"), format!("{whole:?}"), "{} cut at {at:?} of {:?}", case.title, case.text);
}

#[test]
fn r17_no_cut_changes_anything() {
    for (number, case) in (0u64..).zip(all_cases()) {
        let whole = parse(&case.setup, [case.text.as_str()]);
        let places = boundaries(&case.text);
        check(&case, &whole, &places);
        for &first in &places {
            check(&case, &whole, &[first]);
        }
        if case.text.len() <= ALL_PAIRS_BYTES {
            for (at, &first) in places.iter().enumerate() {
                for &second in &places[at + 1..] {
                    check(&case, &whole, &[first, second]);
                }
            }
        }
        for draw in 0..RANDOM_CUTS {
            let count = 1 + draw::index(SEED + number, draw * 16, 8) as u64;
            let mut at: Vec<_> = (1..=count)
                .filter_map(|cut| {
                    places.get(draw::index(SEED + number, draw * 16 + cut, places.len())).copied()
                })
                .collect();
            at.sort_unstable();
            check(&case, &whole, &at);
        }
    }
}

/// An answer cut off anywhere: any cutting of what is there gives the same; no marker is left; calls that were told
/// are beginnings of those of the whole answer.
#[test]
fn r15_no_end_leaks_markup() {
    for case in all_cases().into_iter().filter(|case| !case.title.ends_with("malformed")) {
        let whole = parse(&case.setup, [case.text.as_str()]).0;
        let is_broken = case.markers.iter().any(|marker| whole.content.contains(marker.as_str()));
        for end in boundaries(&case.text) {
            let mut short = case.clone();
            short.text.truncate(end);
            short.setup.finish = FinishReason::Length;
            let (message, reason) = parse(&short.setup, [short.text.as_str()]);
            assert_eq!(reason, FinishReason::Length);
            check(&short, &(&message, reason), &boundaries(&short.text));
            for marker in case.markers.iter().filter(|_| !is_broken) {
                let has = |text: &str| text.contains(marker.as_str());
                assert!(!has(&message.content), "{}: {marker} in {:?}", case.title, message.content);
            }
            for (call, want) in message.tool_calls.iter().zip(&whole.tool_calls) {
                assert_eq!((&call.id, &call.name), (&want.id, &want.name), "{}", case.title);
                assert!(want.arguments.starts_with(&call.arguments), "{} at {end}: {call:?}", case.title);
                assert_eq!(call.is_complete, call.is_complete && call.arguments == want.arguments);
            }
            // Markers that are sentences are text as long as they are not whole.
            let is_prose = case.title.contains("granite");
            // A lone `<` at the end is text.
            let reasoning = message.reasoning.trim_end_matches(['<', '[']).trim_end();
            assert!(
                whole.reasoning.starts_with(reasoning) || is_broken || is_prose,
                "{}: {reasoning:?}",
                case.title
            );
        }
    }
}

#[test]
fn r14_parallel_calls_have_their_own_ids_and_indexes() {
    for case in cases("tool").into_iter().filter(|case| case.title.ends_with("parallel")) {
        for pieces in [vec![case.text.as_str()], cut(&case.text, &boundaries(&case.text))] {
            let mut indexes = Vec::new();
            let mut ids = Vec::new();
            for event in events(&case.setup, &pieces) {
                if let Event::ToolCallStart { index, id, .. } = event {
                    indexes.push(index);
                    ids.push(id);
                }
            }
            assert_eq!(indexes, [0, 1, 2, 3], "{}", case.title);
            ids.sort();
            ids.dedup();
            assert_eq!(ids.len(), 4);
        }
    }
}

fn events(setup: &Setup, pieces: &[&str]) -> Vec<Event> {
    let (reasoning, tool) = (setup.reasoning.as_deref(), setup.tool.as_deref());
    let mut splitter = Splitter::new(reasoning, tool, &setup.options(1)).unwrap();
    let mut events = Events::default();
    for piece in pieces {
        splitter.push(piece, &mut events);
    }
    splitter.finish(setup.finish, &mut events);
    let list: Vec<_> = events.drain().collect();
    list
}

/// A call ends before the next starts, and arguments belong to the open call.
#[test]
fn r19_calls_do_not_overlap() {
    for case in all_cases() {
        let mut open = None;
        let mut next = 0;
        for event in events(&case.setup, &cut(&case.text, &boundaries(&case.text))) {
            match event {
                Event::ToolCallStart { index, .. } => {
                    assert_eq!(index, next, "{}", case.title);
                    next += 1;
                    open = Some(index);
                }
                Event::ToolArguments { index, fragment } => {
                    assert!(open == Some(index) && !fragment.is_empty(), "{}", case.title);
                }
                Event::ToolCallEnd { index } => assert_eq!(open.take(), Some(index), "{}", case.title),
                Event::Content(text) | Event::Reasoning(text) => assert!(!text.is_empty(), "{}", case.title),
            }
        }
    }
}

#[test]
fn r13_malformed_text_is_released_once() {
    let mut count = 0;
    for case in cases("tool").into_iter().filter(|case| case.title.ends_with("malformed")) {
        let message = parse(&case.setup, [case.text.as_str()]).0;
        assert_eq!(message.content, case.text, "{}", case.title);
        count += 1;
    }
    assert!(count > 20);
}

/// The `parallel` fixture of every family with one long argument in place of the text of its file.
fn long(case: &Case, bytes: usize) -> String {
    let line = "word é \u{1f600} 12, and on. ";
    case.text.replace("brace } ] tag", &line.repeat(bytes / line.len()))
}

/// 64 KiB arrive in 16-byte pieces: the first fragment comes before 1 % of the input, and pieces keep coming.
#[test]
fn r16_long_arguments_flow() {
    for case in cases("tool").into_iter().filter(|case| case.title.ends_with("parallel")) {
        let text = long(&case, 64 << 10);
        let from = text.find("quote ").unwrap();
        let text = format!("{}{}", &case.text[..0], text);
        let options = Options { tools: tools(), call_seed: 1, ..Options::default() };
        let mut splitter = Splitter::new(None, case.setup.tool.as_deref(), &options).unwrap();
        let mut events = Events::default();
        let (mut fed, mut told, mut silent, mut longest, mut first) = (0, 0, 0, 0, None);
        let places: Vec<_> = boundaries(&text).into_iter().step_by(16).collect();
        for piece in cut(&text, &places) {
            splitter.push(piece, &mut events);
            fed += piece.len();
            let mut fresh = 0;
            for event in events.drain() {
                if let Event::ToolArguments { index: 3, fragment } = event {
                    fresh += fragment.len();
                }
            }
            told += fresh;
            silent = if fresh > 0 { 0 } else { silent + piece.len() };
            if told > 0 {
                first.get_or_insert(fed);
                if fed < text.len() - 200 {
                    longest = longest.max(silent);
                }
            }
        }
        assert!(first.unwrap() < from + text.len() / 100, "{}: first fragment at {first:?}", case.title);
        assert!(longest <= 64, "{}: silent for {longest} bytes", case.title);
        assert!(told > 60 << 10, "{}", case.title);
    }
}

#[test]
fn the_prompt_tells_how_an_answer_begins() {
    for (name, prompt, want) in [
        ("qwen3", "<|im_start|>assistant\n<think>\n", Start::Reasoning),
        ("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", Start::Content),
        ("qwen3", "<|im_start|>assistant\n", Start::Default),
        ("gemma4", "<|turn>model\n<|channel>thought\n", Start::Reasoning),
        ("kimi_k3", "<|open|>think<|sep|>", Start::Reasoning),
        ("mistral", "[THINK]", Start::Reasoning),
        ("gpt_oss", "<|start|>assistant", Start::Default),
        ("nothing", "<think>", Start::Default),
    ] {
        assert_eq!(reasoning_start(name, prompt), want, "{name} {prompt:?}");
    }
}

#[test]
fn unknown_names_are_named() {
    let options = Options::default();
    let error = Splitter::new(None, Some("hermez"), &options).unwrap_err().to_string();
    assert!(error.contains("`hermez`") && error.contains("hermes"), "{error}");
    let error = Splitter::new(Some("qwen4"), None, &options).unwrap_err().to_string();
    assert!(error.contains("reasoning") && error.contains("qwen3"), "{error}");
    let _ = Tools::new(&[Value::Null]);
}

/// Without parsers text passes through untouched.
#[test]
fn no_parser_changes_nothing() {
    let setup = Setup {
        reasoning: None,
        tool: None,
        start: Start::Default,
        finish: FinishReason::Stop,
        tools: tools(),
        forced: None,
        max_calls: None,
    };
    let message = parse(&setup, ["<think>", " <tool_call>"]).0;
    assert_eq!((message.content.as_str(), message.reasoning.as_str()), ("<think> <tool_call>", ""));
}
