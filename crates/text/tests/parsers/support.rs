//! Fixtures and the running of parsers over them.

use dynamo_text::parsers::{Events, Forced, Message, Options, Splitter, Start, Tools};
use dynamo_types::FinishReason;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Which parsers read an answer, and how it ends.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) reasoning: Option<String>,
    pub(crate) tool: Option<String>,
    pub(crate) start: Start,
    pub(crate) finish: FinishReason,
    pub(crate) tools: Arc<Tools>,
    pub(crate) forced: Option<Forced>,
    pub(crate) max_calls: Option<usize>,
}

impl Setup {
    pub(crate) fn options(&self, call_seed: u64) -> Options {
        let (tools, forced) = (Arc::clone(&self.tools), self.forced.clone());
        Options { tools, forced, max_calls: self.max_calls, call_seed, start: self.start }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Folder and file, for messages.
    pub(crate) title: String,
    pub(crate) setup: Setup,
    pub(crate) text: String,
    pub(crate) expected: Value,
    /// What may not be left in the content or the reasoning.
    pub(crate) markers: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parsers")
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap())
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The tools that the fixtures call.
pub(crate) fn tools() -> Arc<Tools> {
    let tools = json(&root().join("tools.json"));
    Arc::new(Tools::new(tools.as_array().unwrap()))
}

pub(crate) fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let mut list: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    list.sort();
    list
}

/// All cases under every name of their family, in the kind's folder: `tool`, `reasoning`, `both` or `forced`. Names of the last
/// are what is forced: `list`, or a function.
pub(crate) fn cases(kind: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    for folder in folders(&root().join(kind)) {
        let family = json(&folder.join("family.json"));
        for file in folders(&folder).into_iter().filter(|file| file.extension().is_some_and(|e| e == "txt")) {
            let expected = json(&file.with_extension("json"));
            let text = fs::read_to_string(&file).unwrap();
            for name in strings(&family["names"]) {
                let title = format!("{kind}/{name}/{}", file.file_stem().unwrap().display());
                let markers = expected.get("markers").unwrap_or(&family["markers"]);
                let tool = expected["tool"].as_str().map(str::to_owned);
                let setup = Setup {
                    reasoning: match kind {
                        "tool" => None,
                        "forced" => expected["parser"].as_str().map(str::to_owned),
                        _ => Some(name.clone()),
                    },
                    forced: (kind == "forced").then(|| match name.as_str() {
                        "list" => Forced::List,
                        name => Forced::Named(name.into()),
                    }),
                    max_calls: expected["max_calls"].as_u64().map(|max| max as usize),
                    tool: if kind == "tool" { Some(name) } else { tool },
                    start: match expected["start"].as_str() {
                        Some("reasoning") => Start::Reasoning,
                        Some("content") => Start::Content,
                        _ => Start::Default,
                    },
                    finish: finish(&expected["finish"]),
                    tools: tools(),
                };
                let markers = strings(markers);
                cases.push(Case { title, setup, text: text.clone(), expected: expected.clone(), markers });
            }
        }
    }
    assert!(!cases.is_empty());
    cases
}

pub(crate) fn all_cases() -> Vec<Case> {
    ["tool", "reasoning", "both", "forced"].into_iter().flat_map(cases).collect()
}

pub(crate) fn finish(value: &Value) -> FinishReason {
    serde_json::from_value(value.clone()).unwrap()
}

/// Runs `pieces` through the parsers of `setup`.
pub(crate) fn parse<'a>(setup: &Setup, pieces: impl IntoIterator<Item = &'a str>) -> (Message, FinishReason) {
    let (reasoning, tool) = (setup.reasoning.as_deref(), setup.tool.as_deref());
    let mut splitter = Splitter::new(reasoning, tool, &setup.options(7)).unwrap();
    let mut message = Message::default();
    let mut events = Events::default();
    for piece in pieces {
        splitter.push(piece, &mut events);
        events.drain().for_each(|event| message.apply(&event));
    }
    let reason = splitter.finish(setup.finish, &mut events);
    events.drain().for_each(|event| message.apply(&event));
    assert_eq!(reason, message.finish_reason(setup.finish));
    (message, reason)
}

/// Byte offsets between characters, ends excluded.
pub(crate) fn boundaries(text: &str) -> Vec<usize> {
    text.char_indices().map(|(at, _)| at).skip(1).collect()
}

/// `text` cut at sorted offsets.
pub(crate) fn cut<'a>(text: &'a str, at: &[usize]) -> Vec<&'a str> {
    let ends = at.iter().copied().chain([text.len()]);
    let starts = [0].into_iter().chain(at.iter().copied());
    starts.zip(ends).map(|(from, to)| &text[from..to]).collect()
}
