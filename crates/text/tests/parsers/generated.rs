//! Generated answers: calls with random arguments come back as they were written, and no text at all breaks a law.

use crate::support::{Case, Setup, all_cases, boundaries, cut, parse};
use dynamo_text::parsers::{Start, Tools};
use dynamo_types::FinishReason;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::sync::{Arc, LazyLock};

/// Names of functions in generated answers.
const NAMES: [&str; 3] = ["get_weather", "write-file", "a.b"];

type Call = (usize, Map<String, Value>);

/// One family: its name, how one call is written, what stands around all of them, and what strings may not contain.
struct Family {
    name: &'static str,
    call: fn(usize, &str, &Map<String, Value>) -> String,
    around: (&'static str, &'static str, &'static str),
    forbidden: &'static [&'static str],
}

/// Plain text for strings, JSON for the rest.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn arguments(map: &Map<String, Value>) -> String {
    serde_json::to_string(map).unwrap()
}

fn each(map: &Map<String, Value>, write: impl Fn(&str, &Value) -> String) -> String {
    map.iter().map(|(key, value)| write(key, value)).collect()
}

fn named(name: &str, key: &str, map: &Map<String, Value>) -> String {
    format!("{{\"name\": \"{name}\", \"{key}\": {}}}", arguments(map))
}

fn invoke(prefix: &str, name: &str, map: &Map<String, Value>, mark: impl Fn(&Value) -> String) -> String {
    let inner = each(map, |key, value| {
        format!("<{prefix}parameter name=\"{key}\"{}>{}</{prefix}parameter>\n", mark(value), text(value))
    });
    format!("<{prefix}invoke name=\"{name}\">\n{inner}</{prefix}invoke>")
}

fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Array(items) => format!("[{}]", items.iter().map(python).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            format!(
                "{{{}}}",
                map.iter().map(|(k, v)| format!("'{k}': {}", python(v))).collect::<Vec<_>>().join(", ")
            )
        }
        other => other.to_string(),
    }
}

fn gemma(value: &Value) -> String {
    match value {
        Value::String(text) => format!("<|\"|>{text}<|\"|>"),
        Value::Array(items) => format!("[{}]", items.iter().map(gemma).collect::<Vec<_>>().join(",")),
        Value::Object(map) => {
            format!(
                "{{{}}}",
                map.iter().map(|(k, v)| format!("{k}:{}", gemma(v))).collect::<Vec<_>>().join(",")
            )
        }
        other => other.to_string(),
    }
}

const NAMESPACE: &str = "]<]minimax[>[";

fn elements(value: &Value) -> String {
    let element =
        |tag: &str, value: &Value| format!("{NAMESPACE}<{tag}>{}{NAMESPACE}</{tag}>", elements(value));
    match value {
        Value::Array(items) => items.iter().map(|item| element("item", item)).collect(),
        Value::Object(map) => each(map, element),
        other => text(other),
    }
}

fn kimi_k3(index: usize, name: &str, map: &Map<String, Value>) -> String {
    let inner = each(map, |key, value| {
        let kind = if value.is_string() { "string" } else { "number" };
        format!(
            "<|open|>argument key=\"{key}\" type=\"{kind}\"<|sep|>{}<|close|>argument<|sep|>",
            text(value)
        )
    });
    format!("<|open|>call tool=\"{name}\" index=\"{index}\"<|sep|>{inner}<|close|>call<|sep|>")
}

fn qwen3_coder(_: usize, name: &str, map: &Map<String, Value>) -> String {
    let inner = each(map, |key, value| format!("<parameter={key}>\n{}\n</parameter>\n", text(value)));
    format!("<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>")
}

fn glm(_: usize, name: &str, map: &Map<String, Value>) -> String {
    let pair = |key: &str, value: &Value| {
        format!("<arg_key>{key}</arg_key>\n<arg_value>{}</arg_value>\n", text(value))
    };
    format!("<tool_call>{name}\n{}</tool_call>", each(map, pair))
}

fn pythonic(_: usize, name: &str, map: &Map<String, Value>) -> String {
    let list: Vec<_> = map.iter().map(|(key, value)| format!("{key}={}", python(value))).collect();
    format!("{}({})", name.replace('-', "_"), list.join(", "))
}

static FAMILIES: &[Family] = &[
    Family {
        name: "hermes",
        call: |_, name, map| format!("<tool_call>\n{}\n</tool_call>", named(name, "arguments", map)),
        around: ("", "\n", ""),
        forbidden: &[],
    },
    Family {
        name: "hermes",
        call: |_, name, map| {
            format!("<tool_call>{}</tool_call>", json!({"arguments": arguments(map), "name": name}))
        },
        around: ("", "", ""),
        forbidden: &[],
    },
    Family {
        name: "nemotron_deci",
        call: |_, name, map| named(name, "arguments", map),
        around: ("<TOOLCALL>[", ", ", "]</TOOLCALL>"),
        forbidden: &[],
    },
    Family {
        name: "mistral",
        call: |_, name, map| named(name, "arguments", map),
        around: ("[TOOL_CALLS][", ", ", "]"),
        forbidden: &[],
    },
    Family {
        name: "mistral",
        call: |_, name, map| format!("[TOOL_CALLS]{name}[ARGS]{}", arguments(map)),
        around: ("", "", ""),
        forbidden: &[],
    },
    Family {
        name: "llama3_json",
        call: |_, name, map| named(name, "parameters", map),
        around: ("", "; ", ""),
        forbidden: &[],
    },
    Family {
        name: "phi4",
        call: |_, name, map| named(name, "arguments", map),
        around: ("functools[", ",", "]"),
        forbidden: &[],
    },
    Family { name: "pythonic", call: pythonic, around: ("[", ", ", "]"), forbidden: &[] },
    Family { name: "qwen3_coder", call: qwen3_coder, around: ("", "\n", ""), forbidden: &["</parameter>"] },
    Family { name: "glm45", call: glm, around: ("", "\n", ""), forbidden: &["</arg_value>"] },
    Family {
        name: "deepseek_v4",
        call: |_, name, map| {
            invoke("｜DSML｜", name, map, |value| format!(" string=\"{}\"", value.is_string()))
        },
        around: ("<｜DSML｜tool_calls>\n", "\n", "\n</｜DSML｜tool_calls>"),
        forbidden: &["</｜DSML｜parameter>"],
    },
    Family {
        name: "minimax_m2",
        call: |_, name, map| invoke("", name, map, |_| String::new()),
        around: ("<minimax:tool_call>", "\n", "</minimax:tool_call>"),
        forbidden: &["</parameter>"],
    },
    Family {
        name: "muse",
        call: |_, name, map| invoke("atem:", name, map, |_| String::new()),
        around: ("<atem:function_calls>", "\n", "</atem:function_calls>"),
        forbidden: &["</atem:parameter>", "<|"],
    },
    Family {
        name: "minimax_m3",
        call: |_, name, map| {
            let inner = elements(&Value::Object(map.clone()));
            format!("{NAMESPACE}<invoke name=\"{name}\">{inner}{NAMESPACE}</invoke>")
        },
        around: ("]<]minimax[>[<tool_call>\n", "\n", "]<]minimax[>[</tool_call>"),
        forbidden: &["]<"],
    },
    Family {
        name: "kimi_k3",
        call: kimi_k3,
        around: ("<|open|>tools<|sep|>", "", "<|close|>tools<|sep|>"),
        forbidden: &["<|"],
    },
    Family {
        name: "kimi_k2",
        call: |index, name, map| {
            let arguments = arguments(map);
            format!(
                "<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
            )
        },
        around: ("<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
        forbidden: &[],
    },
    Family {
        name: "deepseek_v3",
        call: |_, name, map| {
            let arguments = arguments(map);
            format!(
                "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
            )
        },
        around: ("<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>"),
        forbidden: &[],
    },
    Family {
        name: "gemma4",
        call: |_, name, map| {
            format!("<|tool_call>call:{name}{}<tool_call|>", gemma(&Value::Object(map.clone())))
        },
        around: ("", "", ""),
        forbidden: &["<|"],
    },
    Family {
        name: "harmony",
        call: |_, name, map| {
            let arguments = arguments(map);
            format!(
                "<|start|>assistant<|channel|>commentary to=functions.{name}<|message|>{arguments}<|call|>"
            )
        },
        around: ("", "", ""),
        forbidden: &["<|"],
    },
    Family {
        name: "inkling",
        call: |_, name, map| {
            let call = named(name, "args", map);
            format!("<|message_model|>{name}<|content_invoke_tool_json|>{call}<|end_message|>")
        },
        around: ("", "", ""),
        forbidden: &["<|"],
    },
];

fn string() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z0-9 ]{0,12}",
        "(\\PC|[\\n\\t\"'\\\\{}<>|\\[\\]=&;:,.]){0,20}",
        Just("<think>a</think> </tool_call> </function>".to_owned()),
        Just("42".to_owned()),
        Just("{\"name\": \"f\", \"arguments\": {}}".to_owned()),
    ]
}

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        string().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        (-1000i32..1000).prop_map(|value| json!(f64::from(value) / 8.0)),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
    ]
}

fn map(value: impl Strategy<Value = Value>, most: usize) -> impl Strategy<Value = Map<String, Value>> {
    proptest::collection::btree_map("[a-z_]{1,8}", value, 0..most).prop_map(|map| map.into_iter().collect())
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => leaf(),
        1 => proptest::collection::vec(string().prop_map(Value::from), 0..4).prop_map(Value::from),
        1 => proptest::collection::vec(any::<i16>().prop_map(Value::from), 0..4).prop_map(Value::from),
        1 => map(leaf(), 4).prop_map(Value::from),
    ]
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    proptest::collection::vec((0..NAMES.len(), map(value(), 5)), 1..4)
}

fn schema(value: &Value) -> Value {
    match value {
        Value::Null => json!({"type": "null"}),
        Value::Bool(_) => json!({"type": "boolean"}),
        Value::Number(_) => json!({"type": "number"}),
        Value::String(_) => json!({"type": "string"}),
        Value::Array(items) => {
            json!({"type": "array", "items": items.first().map(schema).unwrap_or_default()})
        }
        Value::Object(map) => {
            let properties: Map<_, _> = map.iter().map(|(key, value)| (key.clone(), schema(value))).collect();
            json!({"type": "object", "properties": properties})
        }
    }
}

/// Offsets for cutting `text`, from numbers between 0 and 1.
fn places(text: &str, cuts: &[f64]) -> Vec<usize> {
    let all = boundaries(text);
    let mut at: Vec<_> =
        cuts.iter().filter_map(|cut| all.get((cut * all.len() as f64) as usize).copied()).collect();
    at.sort_unstable();
    at
}

fn has_any(value: &Value, words: &[&str]) -> bool {
    match value {
        // A value may not end inside what ends it, either.
        Value::String(text) => {
            words.iter().any(|word| text.contains(word) || text.ends_with(['<', ']', '|']))
        }
        Value::Array(items) => items.iter().any(|item| has_any(item, words)),
        Value::Object(map) => map.values().any(|value| has_any(value, words)),
        _ => false,
    }
}

/// Pieces that make many readings possible, for the soup.
const FRAGMENTS: [&str; 28] = [
    "<tool_call>",
    "</tool_call>",
    "<tool_call>{",
    "{\"name\": \"get_time\"",
    ", \"arguments\": {",
    "\"arguments\": \"",
    "\"x\": \"",
    "\"text\": ",
    "}}",
    "\\\"",
    "\\u00",
    "<function=f>",
    "<parameter=text>",
    "</parameter>",
    "<arg_key>text</arg_key><arg_value>",
    "[get_time(",
    "text='",
    "text=[",
    ")]",
    "[TOOL_CALLS]",
    "functools[",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<think>",
    "</think>",
    "]<]minimax[>[<",
    "<|python_tag|>",
];

static FIXTURES: LazyLock<Vec<Case>> = LazyLock::new(all_cases);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6000))]

    /// What a model writes is what a client gets, however it is cut.
    #[test]
    fn r13_generated_calls_come_back(
        family in 0..FAMILIES.len(),
        calls in calls(),
        before in "([A-Za-z é][A-Za-z ,.é]{0,10}[A-Za-z.])?",
        cuts in proptest::collection::vec(0.0..1.0f64, 0..12),
    ) {
        let family = &FAMILIES[family];
        let is_bare = matches!(family.name, "llama3_json" | "pythonic");
        let before = if is_bare { "" } else { before.trim_ascii() };
        // One schema for each name: the last call of a name decides, so names are not used twice.
        let mut seen = Vec::new();
        let calls: Vec<_> = calls
            .into_iter()
            .filter(|(name, map)| {
                let is_new = !seen.contains(name);
                seen.push(*name);
                is_new && !map.values().any(|value| has_any(value, family.forbidden))
            })
            .collect();
        prop_assume!(!calls.is_empty());
        let name = |index: usize| match family.name {
            "pythonic" => NAMES[index].replace('-', "_"),
            _ => NAMES[index].to_owned(),
        };
        let tools: Vec<_> = calls
            .iter()
            .map(|(index, map)| json!({"name": name(*index), "parameters": schema(&Value::Object(map.clone()))}))
            .collect();
        let written: Vec<_> =
            calls.iter().enumerate().map(|(at, (index, map))| (family.call)(at, NAMES[*index], map)).collect();
        let (open, join, close) = family.around;
        let text = format!("{before}\n{open}{}{close}", written.join(join));
        let setup = Setup {
            reasoning: None,
            tool: Some(family.name.to_owned()),
            start: Start::Default,
            finish: FinishReason::Stop,
            tools: Arc::new(Tools::new(&tools)),
            forced: None,
            max_calls: None,
        };
        let whole = parse(&setup, [text.as_str()]);
        prop_assert_eq!(&parse(&setup, cut(&text, &places(&text, &cuts))), &whole);
        prop_assert_eq!(whole.1, FinishReason::ToolCalls);
        prop_assert_eq!(whole.0.content, before);
        prop_assert_eq!(whole.0.tool_calls.len(), calls.len());
        for (call, (index, map)) in whole.0.tool_calls.iter().zip(&calls) {
            prop_assert!(call.is_complete);
            prop_assert_eq!(&call.name, &name(*index));
            let read: Value = serde_json::from_str(&call.arguments).unwrap();
            prop_assert_eq!(&read, &Value::Object(map.clone()), "{}", text);
        }
    }

    /// Pieces of real answers in any order, and junk: nothing panics, no cut changes anything, complete calls are
    /// valid, and text is told at most once.
    #[test]
    fn r17_soup_is_read_the_same_in_any_pieces(
        case in 0usize..10_000,
        pieces in proptest::collection::vec(
            (0.0..1.0f64, 0usize..60, "[\\[\\]{}()<>|\"'\\\\=,:; \\na1té]{0,4}", 0..2 * FRAGMENTS.len()),
            1..8,
        ),
        cuts in proptest::collection::vec(0.0..1.0f64, 0..8),
        is_cut_off: bool,
    ) {
        let case = &FIXTURES[case % FIXTURES.len()];
        let chars: Vec<char> = case.text.chars().collect();
        let mut text = String::new();
        for (from, len, junk, fragment) in &pieces {
            let from = (from * chars.len() as f64) as usize;
            text.extend(chars.iter().skip(from).take(*len));
            text.push_str(junk);
            text.push_str(FRAGMENTS.get(*fragment).copied().unwrap_or_default());
        }
        let mut setup = case.setup.clone();
        setup.finish = if is_cut_off { FinishReason::Length } else { FinishReason::Stop };
        let whole = parse(&setup, [text.as_str()]);
        prop_assert_eq!(&parse(&setup, cut(&text, &places(&text, &cuts))), &whole, "{}: {:?}", case.title, text);
        prop_assert_eq!(&parse(&setup, cut(&text, &boundaries(&text))), &whole, "{}: {:?}", case.title, text);
        for call in whole.0.tool_calls.iter().filter(|call| call.is_complete) {
            let read = serde_json::from_str::<Value>(&call.arguments);
            prop_assert!(read.is_ok_and(|read| read.is_object()), "{}: {}", case.title, call.arguments);
        }
        let opener = if case.title.contains("append") { "<think>".len() } else { 0 };
        prop_assert!(whole.0.content.len() + whole.0.reasoning.len() <= text.len() + opener);
    }
}
