//! The split of answers into text, reasoning and tool calls, the same for every API of conversations (R13, R18).

use crate::identity::choice_seed;
use crate::plan::{Head, Splitting};
use dynamo_protocols::Piece;
use dynamo_text::TextDelta;
use dynamo_text::parsers::{Event, Events, Options, Splitter};
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Splits each choice of one answer.
pub(super) struct Split {
    /// Of the request.
    id: Arc<str>,
    splitting: Splitting,
    /// One per choice that has been written to.
    choices: Vec<Splitter>,
    events: Events,
}

/// Calls of different answers may meet in one conversation, so their ids are drawn from the request's, which is
/// unique.
fn call_seed(id: &str, choice: u32) -> u64 {
    let mut hasher = FxHasher::default();
    id.hash(&mut hasher);
    choice_seed(hasher.finish(), choice)
}

impl Split {
    pub(super) fn new(head: &Head) -> Self {
        let (id, splitting) = (Arc::clone(&head.id), head.splitting.clone());
        Self { id, splitting, choices: Vec::new(), events: Events::default() }
    }

    /// All text is for the user.
    pub(super) fn is_plain(&self) -> bool {
        self.splitting.is_plain()
    }

    /// Takes the text of `delta` and tells its pieces; sets the finish reason that clients are told (R15).
    pub(super) fn push(&mut self, choice: u32, delta: &mut TextDelta, mut told: impl FnMut(Piece<'_>)) {
        let text = std::mem::take(&mut delta.text);
        if self.is_plain() {
            if !text.is_empty() {
                told(Piece::Text(&text));
            }
            return;
        }
        while self.choices.len() <= choice as usize {
            self.choices.push(self.splitter(self.choices.len() as u32));
        }
        let Some(splitter) = self.choices.get_mut(choice as usize) else { return };
        splitter.push(&text, &mut self.events);
        if let Some(reason) = delta.finish {
            delta.finish = Some(splitter.finish(reason, &mut self.events));
        }
        for event in self.events.as_slice() {
            told(piece(event));
        }
        self.events.clear();
    }

    fn splitter(&self, choice: u32) -> Splitter {
        let Splitting { reasoning, tool, tools, forced, max_calls, start } = &self.splitting;
        let (call_seed, forced) = (call_seed(&self.id, choice), forced.clone());
        let options =
            Options { tools: Arc::clone(tools), forced, max_calls: *max_calls, call_seed, start: *start };
        // A model whose card names an unknown parser is not served, so there is nothing that could fail.
        Splitter::new(reasoning.as_deref(), tool.as_deref(), &options).unwrap_or_default()
    }
}

fn piece(event: &Event) -> Piece<'_> {
    match event {
        Event::Content(text) => Piece::Text(text),
        Event::Reasoning(text) => Piece::Reasoning(text),
        Event::ToolCallStart { id, name, .. } => Piece::ToolStart { id, name },
        Event::ToolArguments { fragment, .. } => Piece::ToolArguments(fragment),
        Event::ToolCallEnd { .. } => Piece::ToolEnd,
    }
}
