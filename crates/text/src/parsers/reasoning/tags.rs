//! Reasoning between an opening and a closing marker.

use super::super::event::Sink;
use super::super::scan::{Buffer, Hit, Markers, TrailingSpace, is_text_at_end};
use super::super::{Parser, Start};
use dynamo_types::FinishReason;

/// A style of reasoning.
#[derive(Debug)]
pub(crate) struct TagForm {
    pub(crate) openers: &'static [&'static str],
    pub(crate) closers: &'static [&'static str],
    /// Whether answers begin as reasoning, the opener being part of the prompt.
    pub(crate) begins_inside: bool,
    /// Markers of tool calls, which end reasoning without a closer.
    pub(crate) interrupts: &'static [&'static str],
    /// Protocol markers that are nobody's text.
    pub(crate) framing: &'static [&'static str],
    /// What is dropped at the edges of reasoning and before the content after it.
    pub(crate) edges: &'static [char],
    /// A label of the reasoning that follows the opener.
    pub(crate) label: &'static str,
    /// Markers in front of the content.
    pub(crate) content: &'static str,
}

/// What a marker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Open,
    Close,
    Interrupt,
    Drop,
}

#[derive(Clone, Debug)]
pub(crate) struct Tags {
    form: &'static TagForm,
    markers: Markers,
    actions: Vec<Action>,
    input: Buffer,
    is_inside: bool,
    /// At the front of a piece whose leading edge is dropped.
    at_edge: bool,
    /// The label may follow.
    at_label: bool,
    /// Trailing edge of reasoning.
    space: TrailingSpace,
}

impl Tags {
    pub(crate) fn new(form: &'static TagForm, start: Start) -> Self {
        let groups = [
            (form.openers, Action::Open),
            (form.closers, Action::Close),
            (form.interrupts, Action::Interrupt),
            (form.framing, Action::Drop),
        ];
        let list: Vec<_> =
            groups.iter().flat_map(|(list, action)| list.iter().map(|&m| (m, *action))).collect();
        let is_inside = match start {
            Start::Default => form.begins_inside,
            Start::Reasoning => true,
            Start::Content => false,
        };
        Self {
            form,
            markers: Markers::new(list.iter().map(|(marker, _)| *marker)),
            actions: list.iter().map(|(_, action)| *action).collect(),
            input: Buffer::default(),
            is_inside,
            at_edge: is_inside || start == Start::Content,
            at_label: is_inside,
            space: TrailingSpace::default(),
        }
    }

    fn step(&mut self, out: &mut dyn Sink) -> bool {
        if self.input.rest().is_empty() || (self.at_label && self.waits_for_label()) {
            return false;
        }
        let rest = self.input.rest();
        match self.markers.find(rest) {
            Hit::None => self.take(rest.len(), out),
            Hit::Partial { at: 0 } => return false,
            Hit::Marker { at: 0, which } => self.marker(which, out),
            Hit::Partial { at } | Hit::Marker { at, .. } => self.take(at, out),
        }
        true
    }

    /// Drops the label; whether it has to wait for the rest of it.
    fn waits_for_label(&mut self) -> bool {
        let rest = self.input.rest();
        if rest.len() < self.form.label.len() && self.form.label.starts_with(rest) {
            return true;
        }
        if rest.starts_with(self.form.label) {
            self.input.consume(self.form.label.len());
        }
        self.at_label = false;
        false
    }

    fn take(&mut self, len: usize, out: &mut dyn Sink) {
        let text = self.input.rest().get(..len).unwrap_or_default().to_owned();
        self.input.consume(len);
        self.emit(&text, out);
    }

    fn emit(&mut self, text: &str, out: &mut dyn Sink) {
        let mut text = text;
        if self.at_edge {
            text = text.trim_start_matches(self.form.edges);
            self.at_edge = text.is_empty();
        }
        if !self.is_inside {
            return out.content(text);
        }
        self.space.push(text, self.form.edges, &mut |text| out.reasoning(text));
    }

    fn marker(&mut self, which: usize, out: &mut dyn Sink) {
        let marker = self.markers.get(which);
        self.input.consume(marker.len());
        // What stands in the arguments of a call is theirs.
        if !self.is_inside && out.is_inside_call() {
            return out.content(marker);
        }
        match self.actions.get(which) {
            Some(Action::Open) => {
                self.is_inside = true;
                self.at_edge = true;
                self.at_label = !self.form.label.is_empty();
            }
            Some(Action::Close) => self.close(true),
            Some(Action::Interrupt) => {
                if self.is_inside {
                    self.close(false);
                }
                out.content(marker);
            }
            Some(Action::Drop) | None => {}
        }
    }

    fn close(&mut self, at_edge: bool) {
        self.is_inside = false;
        self.at_edge = at_edge;
        self.space.clear();
    }
}

impl Parser for Tags {
    fn push(&mut self, text: &str, out: &mut dyn Sink) {
        self.input.push(text);
        while self.step(out) {}
    }

    fn finish(&mut self, reason: FinishReason, out: &mut dyn Sink) {
        let rest = self.input.rest().to_owned();
        self.input.consume(rest.len());
        let is_cut_label =
            self.at_label && reason == FinishReason::Length && self.form.label.starts_with(&rest);
        if !is_cut_label && is_text_at_end(&rest, reason) {
            self.emit(&rest, out);
        }
        self.space.clear();
    }
}

/// Passes everything as content, behind an opener that the prompt holds (`minimax_append_think`).
#[derive(Clone, Debug)]
pub(crate) struct AppendOpener {
    opener: &'static str,
    is_done: bool,
}

impl AppendOpener {
    pub(crate) fn new(opener: &'static str) -> Self {
        Self { opener, is_done: false }
    }
}

impl Parser for AppendOpener {
    fn push(&mut self, text: &str, out: &mut dyn Sink) {
        if !text.is_empty() && !std::mem::replace(&mut self.is_done, true) {
            out.content(self.opener);
        }
        out.content(text);
    }

    fn finish(&mut self, _reason: FinishReason, _out: &mut dyn Sink) {}
}
