//! Tool-call formats by name.

mod bound;
mod calls;
mod driver;
mod elements;
mod forced;
mod form;
mod gemma;
mod headed;
mod json;
mod literal;
mod markup;
mod python;
mod table;

pub use bound::{CallForm, call_form};

use super::reasoning::{ChannelForm, Channels};
use super::{Chain, Forced, Options, Parser, Start};
use driver::ToolParser;
use form::Grammar;
use std::sync::Arc;
use table::TABLE;

/// How a family writes calls.
pub(crate) enum Format {
    Plain(&'static Grammar),
    /// Inside messages with headers, which are taken off first.
    Channels(&'static ChannelForm, &'static Grammar),
}

pub(crate) fn parser(name: &str, options: &Options) -> Option<Box<dyn Parser>> {
    let (_, format) = TABLE.iter().find(|(names, _)| names.contains(&name))?;
    Some(match format {
        Format::Plain(grammar) => Box::new(ToolParser::new(grammar, options)),
        Format::Channels(form, grammar) => Box::new(Chain::new(
            Box::new(Channels::new(form, Start::Default)),
            Box::new(ToolParser::new(grammar, options)),
        )),
    })
}

/// The parser of calls that the answer has to be.
pub(crate) fn forced(forced: &Forced, options: &Options) -> Box<dyn Parser> {
    match forced {
        Forced::List => Box::new(ToolParser::new(&forced::LIST, options)),
        Forced::Named(name) => Box::new(forced::Arguments::new(Arc::clone(name), options.call_seed)),
    }
}

/// The markers that calls of the family `name` begin with, where no other message of the family does.
pub fn openers(name: &str) -> Vec<&'static str> {
    match TABLE.iter().find(|(names, _)| names.contains(&name)) {
        Some((_, Format::Plain(grammar))) => grammar.openers.iter().map(|opener| opener.marker).collect(),
        Some((_, Format::Channels(..))) | None => Vec::new(),
    }
}

/// Names of all tool-call parsers.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|(names, _)| names.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::super::scan::work;
    use super::super::{Event, Events};
    use super::*;
    use dynamo_types::FinishReason;

    /// Bytes looked at for one long argument in pieces.
    fn work(name: &str, text: &str, piece: usize) -> usize {
        let Some(mut parser) = parser(name, &Options::default()) else { return 0 };
        let mut events = Events::default();
        work::take();
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.ceil_char_boundary(piece));
            parser.push(piece, &mut events);
            rest = after;
        }
        parser.finish(FinishReason::Stop, &mut events);
        assert!(matches!(events.as_slice().last(), Some(Event::ToolCallEnd { index: 0 })), "{name}");
        work::take()
    }

    #[test]
    fn r16_work_is_linear() {
        let formats = [
            ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"text\": \"", "\"}}</tool_call>"),
            ("hermes", "<tool_call>{\"arguments\": {\"text\": \"", "\"}, \"name\": \"f\"}</tool_call>"),
            (
                "hermes",
                "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"text\\\": \\\"",
                "\\\"}\"}</tool_call>",
            ),
            ("qwen3_coder", "<tool_call><function=f><parameter=text>", "</parameter></function></tool_call>"),
            (
                "qwen3_coder",
                "<tool_call><function=f><parameter=text>[\"",
                "\"]</parameter></function></tool_call>",
            ),
            ("glm47", "<tool_call>f<arg_key>text</arg_key><arg_value>", "</arg_value></tool_call>"),
            (
                "minimax_m3",
                "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<text>",
                "]<]minimax[>[</text>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>",
            ),
            ("pythonic", "[f(text=\"", "\")]"),
            ("gemma4", "<|tool_call>call:f{text:<|\"|>", "<|\"|>}<tool_call|>"),
            (
                "kimi_k2",
                "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"text\": \"",
                "\"}<|tool_call_end|>",
            ),
            ("harmony", "<|channel|>commentary to=functions.f<|message|>{\"text\": \"", "\"}<|call|>"),
            (
                "muse",
                " to=f<|message|><atem:function_calls><atem:invoke name=\"f\"><atem:parameter name=\"text\">",
                "</atem:parameter></atem:invoke></atem:function_calls>",
            ),
        ];
        for (name, open, close) in formats {
            for filling in ["some words, 12 of é; ", "<<<< ]<]< ", "                    ", "[[1, {}], "] {
                for piece in [1, 16, 4096] {
                    let text =
                        |kib: usize| format!("{open}{}{close}", filling.repeat((kib << 10) / filling.len()));
                    let (short, long) = (work(name, &text(8), piece), work(name, &text(64), piece));
                    assert!(
                        long < 9 * short,
                        "{name} {filling:?}: {short} bytes of work at 8 KiB, {long} at 64 KiB"
                    );
                    assert!(long < 24 * (64 << 10), "{name} {filling:?} by {piece}: {long}");
                }
            }
        }
    }

    #[test]
    fn no_marker_begins_another_and_no_name_is_taken_twice() {
        for (names, format) in TABLE {
            let (Format::Plain(grammar) | Format::Channels(_, grammar)) = format;
            let openers = grammar.openers.iter().map(|opener| opener.marker);
            let markers: Vec<_> = openers
                .chain(grammar.closers.iter().copied())
                .chain(grammar.framing.iter().copied())
                .collect();
            for (at, marker) in markers.iter().enumerate() {
                let others = markers.iter().enumerate().filter(|(other, _)| *other != at);
                assert!(
                    others.into_iter().all(|(_, other)| !other.starts_with(marker)),
                    "{names:?}: {marker}"
                );
            }
        }
        for mut names in [names().collect::<Vec<_>>(), super::super::reasoning_names().collect()] {
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all);
        }
    }
}
