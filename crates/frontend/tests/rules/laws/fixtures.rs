//! The answers of model families that the parsers' own tests are made of.

use super::stage::{model, template};
use dynamo_types::FinishReason::{self, Length, Stop};
use dynamo_types::ModelCard;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// An answer and what it says.
#[derive(Clone, Debug)]
pub(crate) struct Fixture {
    /// Served under this name: its reasoning and tool parsers.
    pub(crate) model: String,
    pub(crate) title: String,
    pub(crate) text: String,
    pub(crate) finish: FinishReason,
    /// `content`, `reasoning`, `tool_calls`, `finish_reason`.
    pub(crate) expected: Value,
    /// What may not be left in content or reasoning.
    pub(crate) markers: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/parsers")
}

fn json_of(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn entries(path: &Path) -> Vec<PathBuf> {
    let mut list: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    list.sort();
    list
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// All whose answers begin as their family does by itself.
pub(crate) fn fixtures() -> Vec<Fixture> {
    let mut list = Vec::new();
    for kind in ["tool", "reasoning", "both"] {
        for folder in entries(&root().join(kind)) {
            let family = json_of(&folder.join("family.json"));
            for file in
                entries(&folder).into_iter().filter(|file| file.extension().is_some_and(|e| e == "txt"))
            {
                let expected = json_of(&file.with_extension("json"));
                if expected["start"].is_string() {
                    continue;
                }
                let finish = if expected["finish"] == "length" { Length } else { Stop };
                let markers = strings(expected.get("markers").unwrap_or(&family["markers"]));
                for name in strings(&family["names"]) {
                    let tool = expected["tool"].as_str().unwrap_or("");
                    let model = match kind {
                        "tool" => format!("+{name}"),
                        _ => format!("{name}+{tool}"),
                    };
                    list.push(Fixture {
                        title: format!("{kind}/{name}/{}", file.file_stem().unwrap().display()),
                        model,
                        text: fs::read_to_string(&file).unwrap(),
                        finish,
                        expected: expected.clone(),
                        markers: markers.clone(),
                    });
                }
            }
        }
    }
    assert!(list.len() > 300, "{}", list.len());
    list
}

/// One model for each pair of parsers.
pub(crate) fn models(fixtures: &[Fixture]) -> Vec<ModelCard> {
    let names: BTreeMap<&str, ()> = fixtures.iter().map(|fixture| (fixture.model.as_str(), ())).collect();
    let cards = names.keys().map(|name| {
        let mut card = model(name);
        let (reasoning, tool) = name.split_once('+').unwrap();
        card.reasoning_parser = (!reasoning.is_empty()).then(|| reasoning.to_owned());
        card.tool_parser = (!tool.is_empty()).then(|| tool.to_owned());
        // Opens no reasoning: the fixtures begin where the answer does.
        card.chat_template = template("{% for m in messages %}{{ m.content }}{% endfor %}");
        card
    });
    cards.collect()
}

/// The tools that the fixtures call, as `route` takes them.
pub(crate) fn tools(route: &str) -> Value {
    let tools = json_of(&root().join("tools.json"));
    let each = tools.as_array().unwrap().iter().map(|tool| {
        let function = &tool["function"];
        match route {
            "/v1/messages" => json!({"name": function["name"], "input_schema": function["parameters"]}),
            "/v1/responses" => {
                json!({"type": "function", "name": function["name"], "parameters": function["parameters"]})
            }
            _ => tool.clone(),
        }
    });
    each.collect()
}
