//! How long an answer may think, and the account that an engine keeps of one that does.

use crate::request::Request;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Tokens that may follow the last allowed one, so that a character or the model's own marker is not cut.
pub const GRACE_TOKENS: u32 = 4;

/// Bytes of the longest character.
const CHARACTER_BYTES: usize = 4;

/// A limit on the reasoning of an answer. Engines whose card does not say `limits_thinking` take no notice of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThinkingLimit {
    /// Tokens of reasoning in the whole answer, markers not counted.
    pub tokens: u32,
    /// The prompt ends inside reasoning, so the answer begins with it.
    #[serde(default)]
    pub is_open: bool,
    /// Each of these texts begins it.
    pub openers: Vec<Arc<str>>,
    /// Each of these texts ends it.
    pub closers: Vec<Arc<str>>,
    /// What begins a tool call. What comes behind one is no reasoning: markers in arguments are the arguments' own.
    #[serde(default)]
    pub calls: Vec<Arc<str>>,
    /// The token ids that end it where the model does not: the first time, the second, and so on; the last of them ever after.
    pub ends: Vec<Vec<u32>>,
}

impl ThinkingLimit {
    /// Can it be held? Without markers nobody could.
    fn is_whole(&self) -> bool {
        !self.ends.is_empty() && self.ends.iter().all(|end| !end.is_empty())
    }
}

/// What each token of a vocabulary spells, in one piece of memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Spelling {
    bytes: Vec<u8>,
    /// Where each token's bytes end.
    ends: Vec<usize>,
}

impl Spelling {
    /// `spell` appends the bytes of an id below `size`.
    pub fn new(size: u32, mut spell: impl FnMut(u32, &mut Vec<u8>)) -> Self {
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(size as usize));
        for token in 0..size {
            spell(token, &mut bytes);
            ends.push(bytes.len());
        }
        bytes.shrink_to_fit();
        Self { bytes, ends }
    }

    /// Nothing for an id outside of the vocabulary.
    pub fn of(&self, token: u32) -> &[u8] {
        let token = token as usize;
        let start = token.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let end = self.ends.get(token).copied().unwrap_or(start);
        self.bytes.get(start..end).unwrap_or_default()
    }
}

impl fmt::Debug for Spelling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spelling").field("size", &self.ends.len()).finish_non_exhaustive()
    }
}

/// The account of one answer. A function of the request and the tokens so far, so that an answer that moves is continued as it
/// would have been.
///
/// Markers are looked for in the bytes, as the readers of the text do, whatever tokens the model makes them of. The cost of a
/// token is that of its bytes.
#[derive(Clone, Debug)]
pub struct ThinkingMeter {
    request: Arc<Request>,
    spelling: Arc<Spelling>,
    /// The last bytes of the answer: as many as the longest marker has at least.
    tail: Vec<u8>,
    keep: usize,
    spent: u32,
    is_inside: bool,
    /// A call has begun.
    is_over: bool,
    /// Tokens of the end that is being put in.
    put: usize,
    /// Ends that were put in.
    times: usize,
}

impl ThinkingMeter {
    /// None for a request without a limit, or with one that nobody can hold.
    pub fn new(request: &Arc<Request>, spelling: &Arc<Spelling>) -> Option<Self> {
        let limit = request.thinking.as_ref().filter(|limit| limit.is_whole())?;
        let markers = limit.openers.iter().chain(&limit.closers).chain(&limit.calls);
        let mut meter = Self {
            keep: markers.map(|marker| marker.len()).fold(CHARACTER_BYTES, usize::max),
            spelling: Arc::clone(spelling),
            tail: Vec::new(),
            spent: 0,
            is_inside: limit.is_open,
            is_over: false,
            put: 0,
            times: 0,
            request: Arc::clone(request),
        };
        request.tokens.iter().skip(request.prompt_len()).for_each(|&token| meter.take(token));
        Some(meter)
    }

    /// The token that has to come next, because the reasoning is used up. Who cannot put it in asks again after the next.
    pub fn due(&self) -> Option<u32> {
        let limit = self.request.thinking.as_ref()?;
        let end = limit.ends.get(self.times).or(limit.ends.last())?;
        if self.put > 0 {
            return end.get(self.put).copied();
        }
        let is_used_up = self.is_inside && self.spent >= limit.tokens;
        let waits = self.spent < limit.tokens.saturating_add(GRACE_TOKENS) && self.is_unfinished(limit);
        end.first().copied().filter(|_| is_used_up && !waits)
    }

    /// The token is the next of the answer.
    pub fn take(&mut self, token: u32) {
        let is_put = self.due() == Some(token);
        let was_inside = self.is_inside;
        let request = Arc::clone(&self.request);
        let Some(limit) = &request.thinking else { return };
        let spelling = Arc::clone(&self.spelling);
        spelling.of(token).iter().for_each(|&byte| self.read(byte, limit));
        if !is_put {
            self.put = 0;
            self.spent += u32::from(was_inside && self.is_inside);
            return;
        }
        self.put += 1;
        let end = limit.ends.get(self.times).or(limit.ends.last());
        if end.is_none_or(|end| self.put >= end.len()) {
            self.put = 0;
            self.times += 1;
            // Whatever it spells: it is not put in again and again.
            self.is_inside = false;
        }
    }

    fn read(&mut self, byte: u8, limit: &ThinkingLimit) {
        if self.tail.len() >= 2 * self.keep {
            self.tail.drain(..self.keep);
        }
        self.tail.push(byte);
        let ends_with = |markers: &[Arc<str>]| {
            markers.iter().any(|marker| !marker.is_empty() && self.tail.ends_with(marker.as_bytes()))
        };
        if self.is_inside {
            self.is_inside = !ends_with(&limit.closers);
        }
        if !self.is_inside && !self.is_over {
            self.is_over = ends_with(&limit.calls);
            self.is_inside = !self.is_over && ends_with(&limit.openers);
        }
    }

    /// Does the answer stop in the middle of a character, or of what may become the model's own marker?
    fn is_unfinished(&self, limit: &ThinkingLimit) -> bool {
        let begun = |marker: &Arc<str>| {
            (1..marker.len()).any(|len| self.tail.ends_with(marker.as_bytes().get(..len).unwrap_or_default()))
        };
        is_cut(&self.tail) || limit.closers.iter().any(begun)
    }
}

/// Does a character begin at the end of these bytes that is not whole?
fn is_cut(bytes: &[u8]) -> bool {
    let from = bytes.len().saturating_sub(CHARACTER_BYTES - 1);
    let end = bytes.get(from..).unwrap_or_default();
    // The first byte of a character is none of those that continue one.
    let Some(begin) = end.iter().rposition(|&byte| byte & 0xC0 != 0x80) else { return false };
    let character = end.get(begin..).unwrap_or_default();
    std::str::from_utf8(character).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}

#[cfg(test)]
mod tests;
