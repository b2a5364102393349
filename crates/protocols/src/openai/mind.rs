//! What a request says about thinking: to the chat template, and to the engine where that has to see to it.

use crate::anthropic::Thinking;
use serde_json::{Map, Value};

/// A field that is told to the template, under names that it may not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    pub field: &'static str,
    /// It is enough that the template knows one of these variables.
    pub variables: &'static [&'static str],
    pub limit: Limit,
}

/// What a hint means for an engine that can end thinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Nothing.
    None,
    /// At most so many tokens, where the template knows nothing of the wish.
    Instead(u32),
    /// At most so many tokens.
    Always(u32),
}

/// The names under which the templates of the hub know whether to think.
const SWITCHES: &[&str] = &["enable_thinking", "thinking"];

/// The name under which they know how long.
const BUDGET: &str = "thinking_budget";

/// How many tokens of thinking an effort stands for, where a template does not know what to make of it: from 1024 on the
/// budgets that Gemini's OpenAI-compatible API documents. None: as many as the model likes.
const EFFORTS: &[(&str, u32)] = &[("minimal", 512), ("low", 1024), ("medium", 8192), ("high", 24_576)];

/// What a request says about thinking, and where it does.
#[derive(Debug, Default)]
pub(crate) struct Mind {
    pub(crate) effort: Option<(&'static str, String)>,
    pub(crate) thinking: Option<Thinking>,
    /// Most tokens, and the field that says so.
    pub(crate) budgets: Vec<(&'static str, u32)>,
}

impl Mind {
    /// Tells the template, in what was not told to it by name.
    pub(crate) fn tell(self, kwargs: &mut Map<String, Value>) -> Vec<Hint> {
        let mut hints = Vec::new();
        let mut thinks = None;
        match self.thinking {
            Some(Thinking::Enabled { budget_tokens }) => {
                thinks = Some(true);
                hints.push(Hint { field: "thinking", variables: SWITCHES, limit: Limit::None });
                hints.extend(budget_tokens.map(|tokens| budget("thinking.budget_tokens", tokens)));
            }
            Some(Thinking::Disabled) => {
                thinks = Some(false);
                hints.push(Hint { field: "thinking", variables: SWITCHES, limit: Limit::Instead(0) });
            }
            Some(Thinking::Adaptive) | None => {}
        }
        if let Some((field, effort)) = self.effort {
            if effort != "none" {
                let tokens = EFFORTS.iter().find(|(name, _)| *name == effort);
                let limit = tokens.map_or(Limit::None, |&(_, tokens)| Limit::Instead(tokens));
                hints.push(Hint { field, variables: &["reasoning_effort"], limit });
            } else if thinks.is_none() {
                thinks = Some(false);
                let variables = &["enable_thinking", "thinking", "reasoning_effort"];
                hints.push(Hint { field, variables, limit: Limit::Instead(0) });
            }
            kwargs.entry("reasoning_effort").or_insert_with(|| effort.into());
        }
        if let Some(thinks) = thinks {
            for name in SWITCHES {
                kwargs.entry(*name).or_insert_with(|| thinks.into());
            }
        }
        hints.extend(self.budgets.into_iter().map(|(field, tokens)| budget(field, tokens)));
        // A negative one says that there is none.
        if let Some(tokens) = kwargs.get(BUDGET).and_then(Value::as_u64) {
            let limit = Limit::Always(u32::try_from(tokens).unwrap_or(u32::MAX));
            hints.push(Hint { field: "chat_template_kwargs.thinking_budget", variables: &[BUDGET], limit });
        }
        hints
    }
}

/// The engine's to keep, whatever the template knows.
fn budget(field: &'static str, tokens: u32) -> Hint {
    Hint { field, variables: &[], limit: Limit::Always(tokens) }
}
