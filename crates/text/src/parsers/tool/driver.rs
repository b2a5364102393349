//! One parser for all tool-call formats: text with blocks in it. The form of a block is a [`Body`].

use super::super::event::Sink;
use super::super::scan::{Buffer, Hit, Markers, SPACE, TrailingSpace, clip, is_text_at_end, leading_space};
use super::super::schema::Tools;
use super::super::{Options, Parser};
use super::calls::Calls;
use super::form::{Body, Context, Grammar, Step};
use dynamo_types::FinishReason;
use std::sync::Arc;

/// Text of a block that may still turn out to be no call is held up to this size (1 MiB); above, it is text.
const MAX_HELD_BYTES: usize = 1 << 20;

#[derive(Clone, Debug)]
enum Mode {
    Text,
    Block(Body),
    /// A call broke after it was told; its rest is dropped up to a closing marker.
    Skip,
}

/// Parses text with tool calls of one [`Grammar`].
#[derive(Clone, Debug)]
pub(crate) struct ToolParser {
    grammar: &'static Grammar,
    tools: Arc<Tools>,
    /// Opening markers, then closing ones, then other framing.
    markers: Markers,
    closers: Markers,
    input: Buffer,
    mode: Mode,
    calls: Calls,
    /// Whitespace that is dropped if a call follows.
    space: TrailingSpace,
    /// Text of the block since its start or since its last call, as long as it may have to be released.
    raw: String,
    /// Whether the block was opened by a marker, or has to be a call.
    is_marked: bool,
    /// No text yet since the start or the last call, so a bare call may begin.
    at_start: bool,
    /// The last block was released as text, so its closing marker is text, too.
    keeps_closer: bool,
}

impl ToolParser {
    pub(crate) fn new(grammar: &'static Grammar, options: &Options) -> Self {
        let openers = grammar.openers.iter().map(|opener| opener.marker);
        let framing = grammar.closers.iter().chain(grammar.framing).copied();
        Self {
            grammar,
            tools: Arc::clone(&options.tools),
            markers: Markers::new(openers.chain(framing)),
            closers: Markers::new(grammar.closers.iter().copied()),
            input: Buffer::default(),
            mode: Mode::Text,
            calls: Calls::new(options.call_seed),
            space: TrailingSpace::default(),
            raw: String::new(),
            is_marked: false,
            at_start: true,
            keeps_closer: false,
        }
    }

    /// One step; false when more text is needed.
    fn step(&mut self, out: &mut dyn Sink) -> bool {
        match self.mode {
            Mode::Text => self.text_step(out),
            Mode::Block(_) => self.block_step(out),
            Mode::Skip => self.skip_step(),
        }
    }

    fn text_step(&mut self, out: &mut dyn Sink) -> bool {
        let rest = self.input.rest();
        if rest.is_empty() {
            return false;
        }
        if self.at_start
            && let Some(bare) = &self.grammar.bare
        {
            let blank = leading_space(rest);
            if blank > 0 {
                let text = rest.get(..blank).unwrap_or_default().to_owned();
                self.input.consume(blank);
                self.emit(&text, out);
                return true;
            }
            if rest.starts_with(bare.first) {
                self.open(Body::new(bare.form), bare.is_announced);
                return true;
            }
        }
        match self.markers.find(rest) {
            Hit::None => self.take_text(rest.len(), out),
            Hit::Partial { at: 0 } => return false,
            Hit::Partial { at } => self.take_text(at, out),
            Hit::Marker { at: 0, which } => self.marker(which, out),
            Hit::Marker { at, .. } => self.take_text(at, out),
        }
        true
    }

    fn take_text(&mut self, len: usize, out: &mut dyn Sink) {
        let text = self.input.rest().get(..len).unwrap_or_default().to_owned();
        self.input.consume(len);
        self.emit(&text, out);
    }

    /// Content, of which whitespace at the end is held.
    fn emit(&mut self, text: &str, out: &mut dyn Sink) {
        self.at_start &= text.trim_ascii().is_empty();
        self.space.push(text, SPACE, &mut |text| out.content(text));
    }

    fn marker(&mut self, which: usize, out: &mut dyn Sink) {
        let marker = self.markers.get(which);
        self.input.consume(marker.len());
        if let Some(opener) = self.grammar.openers.get(which) {
            self.open(Body::new(opener.form), true);
            self.raw.push_str(marker);
        } else if self.keeps_closer && self.grammar.closers.contains(&marker) {
            self.emit(marker, out);
        }
    }

    fn open(&mut self, body: Body, is_marked: bool) {
        self.raw.clear();
        self.is_marked = is_marked;
        self.keeps_closer = false;
        self.mode = Mode::Block(body);
    }

    fn block_step(&mut self, out: &mut dyn Sink) -> bool {
        let Mode::Block(body) = &mut self.mode else { return false };
        let was_open = self.calls.is_open();
        let mut rest = self.input.rest();
        if !was_open {
            // Exactly so much is held, however the text is cut.
            rest = clip(rest, (MAX_HELD_BYTES + 1).saturating_sub(self.raw.len()));
        }
        let earlier = self.calls.started();
        let mut context = Context {
            calls: &mut self.calls,
            tools: &self.tools,
            is_marked: self.is_marked,
            space: &mut self.space,
            out,
        };
        let step = body.step(rest, &mut context);
        let taken = match step {
            Step::Take(len) | Step::Close(len) | Step::Broken(len) => len.min(rest.len()),
            Step::More => 0,
        };
        if was_open || self.calls.started() > earlier {
            self.raw.clear();
        } else {
            self.raw.push_str(rest.get(..taken).unwrap_or_default());
        }
        let is_clipped = rest.len() < self.input.rest().len();
        self.input.consume(taken);
        match step {
            Step::More if is_clipped => self.release(out),
            Step::More => return false,
            Step::Take(_) if self.raw.len() > MAX_HELD_BYTES => self.release(out),
            Step::Take(_) => {}
            Step::Close(_) => self.close(out),
            Step::Broken(_) if self.calls.is_open() => {
                self.calls.give_up();
                self.mode = Mode::Skip;
            }
            Step::Broken(_) => self.release(out),
        }
        true
    }

    fn close(&mut self, out: &mut dyn Sink) {
        self.calls.end(out);
        self.raw.clear();
        self.mode = Mode::Text;
        self.at_start = true;
    }

    /// The block was no call: its text is content, once.
    fn release(&mut self, out: &mut dyn Sink) {
        let raw = std::mem::take(&mut self.raw);
        self.mode = Mode::Text;
        self.keeps_closer = self.is_marked;
        self.at_start = false;
        self.emit(&raw, out);
    }

    fn skip_step(&mut self) -> bool {
        match self.closers.find(self.input.rest()) {
            Hit::None => self.input.consume(self.input.rest().len()),
            Hit::Partial { at } => self.input.consume(at),
            Hit::Marker { at, which } => {
                self.input.consume(at + self.closers.get(which).len());
                self.mode = Mode::Text;
                return true;
            }
        }
        false
    }
}

impl Parser for ToolParser {
    fn push(&mut self, text: &str, out: &mut dyn Sink) {
        self.input.push(text);
        while self.step(out) {}
    }

    fn finish(&mut self, reason: FinishReason, out: &mut dyn Sink) {
        let rest = self.input.rest().to_owned();
        self.input.consume(rest.len());
        match &mut self.mode {
            Mode::Text if is_text_at_end(&rest, reason) => self.emit(&rest, out),
            Mode::Text | Mode::Skip => {}
            Mode::Block(body) => {
                // A call that was cut off before it was told is dropped; what no marker announced is text.
                let is_text = !self.is_marked && !body.has_name() && self.calls.started() == 0;
                self.calls.give_up();
                if is_text {
                    self.raw.push_str(&rest);
                    self.release(out);
                }
            }
        }
        if self.calls.started() == 0 || !self.at_start {
            self.space.release(&mut |text| out.content(text));
        }
        self.space.clear();
    }

    fn is_inside(&self) -> bool {
        !matches!(self.mode, Mode::Text)
    }
}
