//! Parsers of tool calls and reasoning, under any cutting of any text.

use crate::input::{Input, text_pieces};
use dynamo_text::parsers::{
    Event, Events, Message, Options, Splitter, Start, Tools, reasoning_names, tool_names,
};
use dynamo_types::FinishReason;
use serde_json::{Value, json};
use std::sync::{Arc, LazyLock};

static TOOL_NAMES: LazyLock<Vec<&'static str>> = LazyLock::new(|| tool_names().collect());
static REASONING_NAMES: LazyLock<Vec<&'static str>> = LazyLock::new(|| reasoning_names().collect());

/// The tools of the fixtures, whose texts seed the corpus.
static TOOLS: LazyLock<Arc<Tools>> = LazyLock::new(|| {
    let tools = include_str!("../../text/tests/parsers/tools.json");
    let tools: Value = serde_json::from_str(tools).unwrap_or_else(|_| json!([]));
    assert!(tools.as_array().is_some_and(|tools| tools.len() > 2));
    Arc::new(Tools::new(tools.as_array().map_or(&[][..], Vec::as_slice)))
});

/// A family whose clients expect this in front of what its models leave out.
const ADDED: (&str, &str) = ("minimax_append_think", "<think>");

/// A text is repeated up to this size: what costs more per byte the more there is, shows as a time-out.
const MAX_REPEATED_BYTES: usize = 1 << 18;

struct Setup {
    tool: Option<&'static str>,
    reasoning: Option<&'static str>,
    start: Start,
    finish: FinishReason,
}

impl Setup {
    fn run<'a>(&self, pieces: impl IntoIterator<Item = &'a str>) -> (Vec<Event>, FinishReason) {
        let options =
            Options { tools: Arc::clone(&TOOLS), call_seed: 7, start: self.start, ..Options::default() };
        let splitter = Splitter::new(self.reasoning, self.tool, &options);
        assert!(splitter.is_ok(), "listed names are known: {splitter:?}");
        let (mut list, mut events) = (Vec::new(), Events::default());
        let Ok(mut splitter) = splitter else { return (list, self.finish) };
        for piece in pieces {
            splitter.push(piece, &mut events);
            list.extend(events.drain());
        }
        let finish = splitter.finish(self.finish, &mut events);
        list.extend(events.drain());
        (list, finish)
    }

    fn check(&self, text: &str, seed: u8) {
        let (events, finish) = self.run([text]);
        orderly(&events);
        let whole: Message = events.into_iter().collect();
        let added = if self.reasoning == Some(ADDED.0) { ADDED.1 } else { "" };
        sound(&whole, text, added);
        assert_eq!(finish, whole.finish_reason(self.finish));
        for pieces in [text_pieces(text, seed), text_pieces(text, seed ^ 0x5a), characters(text)] {
            let (events, reason) = self.run(pieces.iter().copied());
            orderly(&events);
            let parts: Message = events.into_iter().collect();
            assert_eq!((&parts, reason), (&whole, finish), "{self:?} cut as {pieces:?}");
        }
    }
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {:?} {:?} {:?}", self.reasoning, self.tool, self.start, self.finish)
    }
}

fn characters(text: &str) -> Vec<&str> {
    let mut pieces: Vec<&str> = text.split("").collect();
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

/// R14, R19: indexes count up, calls do not overlap, arguments belong to the open call, nothing is empty.
fn orderly(events: &[Event]) {
    let (mut open, mut next) = (None, 0);
    for event in events {
        match event {
            Event::ToolCallStart { index, id, name } => {
                assert!(*index == next && !id.is_empty() && !name.is_empty(), "{events:?}");
                next += 1;
                open = Some(*index);
            }
            Event::ToolArguments { index, fragment } => {
                assert!(open == Some(*index) && !fragment.is_empty(), "{events:?}");
            }
            Event::ToolCallEnd { index } => assert_eq!(open.take(), Some(*index), "{events:?}"),
            Event::Content(text) | Event::Reasoning(text) => assert!(!text.is_empty(), "{events:?}"),
        }
    }
}

/// Complete calls have JSON for arguments and ids of their own; text is the model's, in its order, nothing but `added`
/// in front of it.
fn sound(message: &Message, text: &str, added: &str) {
    let mut ids: Vec<&str> = message.tool_calls.iter().map(|call| call.id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), message.tool_calls.len(), "{message:?}");
    for call in message.tool_calls.iter().filter(|call| call.is_complete) {
        let arguments = serde_json::from_str::<Value>(&call.arguments);
        assert!(arguments.is_ok(), "{call:?}");
    }
    let content = message.content.strip_prefix(added).unwrap_or(&message.content);
    for part in [content, &message.reasoning] {
        assert!(is_within(part, text), "{part:?} is not out of {text:?}");
    }
    assert!(content.len() + message.reasoning.len() <= text.len(), "{message:?} says more than {text:?}");
}

/// Are the characters of `part` some of `text`'s, in order?
fn is_within(part: &str, text: &str) -> bool {
    let mut rest = text.chars();
    part.chars().all(|wanted| rest.any(|found| found == wanted))
}

fn setup(
    input: &mut Input<'_>,
    tool: Option<&'static str>,
    reasoning: Option<&'static str>,
) -> (Setup, u8, u8) {
    let start = input.pick(&[Start::Default, Start::Reasoning, Start::Content]);
    let finish = input.pick(&[FinishReason::Stop, FinishReason::Length]);
    let (seed, times) = (input.byte(), input.byte());
    (Setup { tool, reasoning, start, finish }, seed, times)
}

fn run(mut input: Input<'_>, tool: Option<&'static str>, reasoning: Option<&'static str>) {
    let (setup, seed, times) = setup(&mut input, tool, reasoning);
    let text = input.text();
    setup.check(&text, seed);
    // A model that repeats itself is the common way to a long answer. Dear, so not for every input.
    let times = usize::from(times.saturating_sub(0xf0)) * 512;
    if times > 0 && !text.is_empty() {
        let long = text.repeat(times.min(MAX_REPEATED_BYTES / text.len().max(1)));
        let (whole, _) = setup.run([long.as_str()]);
        let (parts, _) = setup.run(text_pieces(&long, seed));
        assert_eq!(Message::from_iter(whole), Message::from_iter(parts), "{setup:?}");
    }
}

/// Bytes: family, start, finish, cutting, repetition. The rest: the model's text.
pub(crate) fn tool(data: &[u8]) {
    let mut input = Input::new(data);
    let name = input.pick(&TOOL_NAMES);
    run(input, Some(name), None);
}

/// As [`tool`].
pub(crate) fn reasoning(data: &[u8]) {
    let mut input = Input::new(data);
    let name = input.pick(&REASONING_NAMES);
    run(input, None, Some(name));
}

/// As [`tool`], with the families of both in front.
pub(crate) fn chain(data: &[u8]) {
    let mut input = Input::new(data);
    let (reasoning, tool) = (input.pick(&REASONING_NAMES), input.pick(&TOOL_NAMES));
    run(input, Some(tool), Some(reasoning));
}
