//! The table of explained differences.

use crate::cases::{json, root};
use serde_json::Value;

struct Rule {
    oracle: String,
    mode: String,
    /// Titles, each with at most one `*` per part between slashes, which stands for any text.
    cases: Vec<String>,
    parts: Vec<String>,
    right: String,
    why: String,
    uses: usize,
}

pub struct Rules {
    rules: Vec<Rule>,
    unexplained: usize,
}

fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Array(list) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        other => vec![other.as_str().unwrap_or_default().to_owned()],
    }
}

fn matches(pattern: &str, text: &str) -> bool {
    let (patterns, texts): (Vec<_>, Vec<_>) = (pattern.split('/').collect(), text.split('/').collect());
    patterns.len() == texts.len()
        && patterns.iter().zip(texts).all(|(pattern, text)| match pattern.split_once('*') {
            None => *pattern == text,
            Some((head, tail)) => {
                text.len() >= head.len() + tail.len() && text.starts_with(head) && text.ends_with(tail)
            }
        })
}

impl Rules {
    pub fn read() -> Self {
        let table = json(&root().join("oracles.json"));
        let text = |row: &Value, name: &str| {
            row[name].as_str().unwrap_or_else(|| panic!("{row}: no {name}")).to_owned()
        };
        let rules = table.as_array().unwrap().iter().map(|row| Rule {
            oracle: text(row, "oracle"),
            mode: row["mode"].as_str().unwrap_or("*").to_owned(),
            cases: texts(&row["cases"]),
            parts: texts(&row["parts"]),
            right: text(row, "right"),
            why: text(row, "why"),
            uses: 0,
        });
        Self { rules: rules.collect(), unexplained: 0 }
    }

    /// A variant is explained as its fixture is.
    pub fn explain(&mut self, oracle: &str, mode: &str, title: &str, part: &str) -> bool {
        let title = title.split('~').next().unwrap_or(title);
        let rule = self.rules.iter_mut().find(|rule| {
            (rule.oracle == oracle || rule.oracle == "*")
                && (rule.mode == mode || rule.mode == "*")
                && rule.parts.iter().any(|known| known == part)
                && rule.cases.iter().any(|pattern| matches(pattern, title))
        });
        match rule {
            Some(rule) => {
                rule.uses += 1;
                true
            }
            None => {
                self.unexplained += 1;
                false
            }
        }
    }

    /// Prints the rows with their uses; false if anything is unexplained or a row explains nothing.
    pub fn summary(&self) -> bool {
        let mut idle = 0;
        for rule in &self.rules {
            println!(
                "{:4}  {} {} {} {}: {} is right: {}",
                rule.uses,
                rule.oracle,
                rule.mode,
                rule.cases.join(" "),
                rule.parts.join("+"),
                rule.right,
                rule.why
            );
            idle += usize::from(rule.uses == 0);
        }
        println!("{} differences without a row, {idle} rows without a difference", self.unexplained);
        self.unexplained == 0 && idle == 0
    }
}
