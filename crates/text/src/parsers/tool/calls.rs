//! The calls of one answer: indexes, ids and the order of their events.

use super::super::event::Sink;
use dynamo_types::draw;

/// Numbers calls, names them and tells about them.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    seed: u64,
    ids: Vec<String>,
    is_open: bool,
}

impl Calls {
    /// Ids are drawn from `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, ids: Vec::new(), is_open: false }
    }

    pub(crate) fn started(&self) -> usize {
        self.ids.len()
    }

    /// Whether a call was started and not ended.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Starts a call. The model's own `id` is kept if no earlier call of the answer has it.
    pub(crate) fn start(&mut self, name: &str, id: Option<&str>, out: &mut dyn Sink) {
        let index = self.ids.len();
        let id = match id.filter(|id| !id.is_empty() && !self.ids.iter().any(|earlier| earlier == id)) {
            Some(id) => id.to_owned(),
            None => self.draw_id(index as u64),
        };
        out.call_start(index, &id, name);
        self.ids.push(id);
        self.is_open = true;
    }

    pub(crate) fn arguments(&mut self, fragment: &str, out: &mut dyn Sink) {
        if self.is_open && !fragment.is_empty() {
            out.call_arguments(self.ids.len() - 1, fragment);
        }
    }

    pub(crate) fn end(&mut self, out: &mut dyn Sink) {
        if std::mem::take(&mut self.is_open) {
            out.call_end(self.ids.len() - 1);
        }
    }

    /// The open call is broken: it gets no end.
    pub(crate) fn give_up(&mut self) {
        self.is_open = false;
    }

    /// `call-` and a version 4 UUID.
    fn draw_id(&self, index: u64) -> String {
        let high = (draw::bits(self.seed, 2 * index) & !0xf000) | 0x4000;
        let low = (draw::bits(self.seed, 2 * index + 1) >> 2) | (1 << 63);
        format!(
            "call-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xffff,
            low >> 48,
            low & 0xffff_ffff_ffff
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsers::Events;

    #[test]
    fn ids_differ_and_look_like_uuids() {
        let mut calls = Calls::new(7);
        let mut events = Events::default();
        for id in [None, Some("functions.f:0"), Some("functions.f:0"), None] {
            calls.start("f", id, &mut events);
            calls.end(&mut events);
        }
        let unique: std::collections::BTreeSet<_> = calls.ids.iter().collect();
        assert_eq!(unique.len(), 4);
        assert_eq!(calls.ids[1], "functions.f:0");
        assert_eq!((calls.ids[0].len(), calls.ids[0].as_bytes()[19]), (41, b'4'));
    }
}
