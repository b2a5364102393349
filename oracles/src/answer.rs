//! An answer after parsing, in a form in which sides can be compared.

use serde_json::Value;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    pub content: String,
    pub reasoning: String,
    /// Name and arguments: a JSON value, or a string where the text is no JSON.
    pub calls: Vec<(String, Value)>,
}

impl Answer {
    pub fn call(&mut self, name: String, arguments: &str) {
        let value = serde_json::from_str(arguments).unwrap_or_else(|_| Value::String(arguments.to_owned()));
        self.calls.push((name, value));
    }

    /// The parts in which two answers differ. White space around content and reasoning is compared apart.
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let mut list = Vec::new();
        for (name, space, is, other) in [
            ("content", "content space", &self.content, &other.content),
            ("reasoning", "reasoning space", &self.reasoning, &other.reasoning),
        ] {
            if is.trim() != other.trim() {
                list.push(name);
            } else if is != other {
                list.push(space);
            }
        }
        if self.calls != other.calls {
            list.push("calls");
        }
        list
    }
}
