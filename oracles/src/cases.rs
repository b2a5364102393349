//! What both sides read: the fixtures of `crates/text/tests/parsers`, and answers generated from them.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// How an answer begins, as the fixtures say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Default,
    Reasoning,
    Content,
}

#[derive(Clone, Debug)]
pub struct Case {
    /// `tool/hermes/one_call`; generated ones end in `~` and a number.
    pub title: String,
    pub reasoning: Option<String>,
    pub tool: Option<String>,
    pub start: Start,
    pub finish: String,
    pub text: String,
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/text/tests/parsers")
}

pub fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn entries(path: &Path) -> Vec<PathBuf> {
    let mut list: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    list.sort();
    list
}

/// Every fixture, under the first name of its family: the other names are the same row of our table.
pub fn fixtures() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in ["tool", "reasoning", "both"] {
        for folder in entries(&root().join(kind)) {
            let family = json(&folder.join("family.json"));
            let name = family["names"][0].as_str().unwrap().to_owned();
            for file in
                entries(&folder).into_iter().filter(|file| file.extension().is_some_and(|e| e == "txt"))
            {
                let expected = json(&file.with_extension("json"));
                cases.push(Case {
                    title: format!("{kind}/{name}/{}", file.file_stem().unwrap().display()),
                    reasoning: (kind != "tool").then(|| name.clone()),
                    tool: match kind {
                        "tool" => Some(name.clone()),
                        _ => expected["tool"].as_str().map(str::to_owned),
                    },
                    start: match expected["start"].as_str() {
                        Some("reasoning") => Start::Reasoning,
                        Some("content") => Start::Content,
                        _ => Start::Default,
                    },
                    finish: expected["finish"].as_str().unwrap().to_owned(),
                    text: fs::read_to_string(&file).unwrap(),
                });
            }
        }
    }
    cases
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Words that mean nothing in any of the formats.
const WORDS: [&str; 14] = [
    "Oslo",
    "São Paulo",
    "東京",
    "a b",
    "x, y",
    "it is so",
    "1st",
    "über",
    "😀",
    "end.",
    "Ω",
    "New York",
    "-5 degrees",
    "c/d",
];

/// `each` variants of every whole fixture: other strings and numbers as arguments.
pub fn generated(fixtures: &[Case], each: usize, seed: u64) -> Vec<Case> {
    let mut random = Random(seed);
    let mut cases = Vec::new();
    let whole = |case: &&Case| {
        ["one_call", "parallel", "one", "twice", "whole", "think_then_call"]
            .iter()
            .any(|name| case.title.ends_with(name))
    };
    for case in fixtures.iter().filter(whole) {
        for number in 0..each {
            let mut text = case.text.clone();
            for old in ["Oslo", "Zürich", "b c"] {
                text = text.replace(old, WORDS[random.below(WORDS.len())]);
            }
            for old in ["Let me check.", "Done."] {
                let word = WORDS[random.below(WORDS.len())];
                text = text.replace(old, &format!("{old} {word}"));
            }
            cases.push(Case { title: format!("{}~{number}", case.title), text, ..case.clone() });
        }
    }
    cases
}
