//! Stop strings (R02, R03).
//!
//! An Aho-Corasick automaton over all stop strings of a request. Its state is the longest end of the text so far that
//! starts some stop string, which is exactly what has to be withheld, and exactly what has to be known to decide
//! whether an earlier match may still come.

/// No such node.
const NONE: u32 = u32::MAX;
const ROOT: u32 = 0;

/// One prefix of one or more stop strings.
#[derive(Clone, Debug)]
struct Node {
    byte: u8,
    /// Length of the prefix in bytes.
    depth: u32,
    first_child: u32,
    next_sibling: u32,
    /// The longest proper end of this prefix that is itself a prefix.
    fail: u32,
    /// The stop string that this prefix is, the first of equal ones.
    stop: u32,
    /// The first in the list of the longer stop strings that start with this prefix.
    first_longer: u32,
    /// The nearest node along `fail`, this one included, that is a stop string.
    output: u32,
}

/// A stop string found in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    /// Byte offset in the withheld text.
    start: usize,
    stop: u32,
}

/// Finds stop strings in a text that comes in pieces, in linear time.
///
/// Of all stop strings in the whole text the one with the smallest offset wins, then the first in the list (R03),
/// whatever the pieces: a match is told once no better one can come. Text is withheld exactly as long as it ends with
/// a proper prefix of a stop string (R02).
#[derive(Clone, Debug)]
pub struct StopMatcher {
    nodes: Vec<Node>,
    /// Children of the root by first byte.
    first: Box<[u32; 256]>,
    include_stop: bool,
    state: u32,
    /// Text not yet released; all of it has gone through the automaton.
    withheld: String,
    found: Option<Found>,
    matched: Option<usize>,
}

impl StopMatcher {
    /// Empty strings stop nothing. With `include_stop` the stop string itself belongs to the text.
    pub fn new(stops: &[String], include_stop: bool) -> Self {
        let mut matcher = Self {
            nodes: vec![Node::new(0, 0)],
            first: Box::new([ROOT; 256]),
            include_stop,
            state: ROOT,
            withheld: String::new(),
            found: None,
            matched: None,
        };
        for (stop, index) in stops.iter().zip(0u32..) {
            matcher.insert(stop.as_bytes(), index);
        }
        matcher.link();
        matcher
    }

    fn insert(&mut self, stop: &[u8], index: u32) {
        if stop.is_empty() {
            return;
        }
        let mut node = ROOT;
        for &byte in stop {
            // Stop strings come in list order, so the first to pass a node is the first of those that start with it.
            let longer = &mut self.nodes[node as usize].first_longer;
            *longer = (*longer).min(index);
            node = match self.child(node, byte) {
                Some(child) => child,
                None => {
                    let child = u32::try_from(self.nodes.len()).unwrap_or(NONE);
                    let depth = self.nodes[node as usize].depth + 1;
                    let mut fresh = Node::new(byte, depth);
                    fresh.next_sibling = self.nodes[node as usize].first_child;
                    self.nodes.push(fresh);
                    self.nodes[node as usize].first_child = child;
                    if node == ROOT {
                        self.first[byte as usize] = child;
                    }
                    child
                }
            };
        }
        let stop = &mut self.nodes[node as usize].stop;
        *stop = (*stop).min(index);
    }

    /// Sets `fail` and `output`, breadth first.
    fn link(&mut self) {
        let mut order = vec![ROOT];
        let mut next = 0;
        while let Some(&node) = order.get(next) {
            next += 1;
            let mut child = self.nodes[node as usize].first_child;
            while child != NONE {
                let byte = self.nodes[child as usize].byte;
                let fail = if node == ROOT { ROOT } else { self.step(self.nodes[node as usize].fail, byte) };
                let output = self.nodes[fail as usize].output;
                let entry = &mut self.nodes[child as usize];
                entry.fail = fail;
                entry.output = if entry.stop == NONE { output } else { child };
                order.push(child);
                child = self.nodes[child as usize].next_sibling;
            }
        }
    }

    fn child(&self, node: u32, byte: u8) -> Option<u32> {
        if node == ROOT {
            let child = self.first[byte as usize];
            return (child != ROOT).then_some(child);
        }
        let mut child = self.nodes[node as usize].first_child;
        while child != NONE {
            let entry = &self.nodes[child as usize];
            if entry.byte == byte {
                return Some(child);
            }
            child = entry.next_sibling;
        }
        None
    }

    fn step(&self, mut node: u32, byte: u8) -> u32 {
        loop {
            match self.child(node, byte) {
                Some(child) => return child,
                None if node == ROOT => return ROOT,
                None => node = self.nodes[node as usize].fail,
            }
        }
    }

    /// Appends the text that became certain to `out`. Gives the index of the stop string once one is met; from then
    /// on all further text is dropped.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<usize> {
        self.advance(text, out, true)
    }

    /// As [`StopMatcher::push`] for text in which no stop string may *end* yet (`min_tokens`).
    pub fn push_unmatched(&mut self, text: &str, out: &mut String) {
        self.advance(text, out, false);
    }

    fn advance(&mut self, text: &str, out: &mut String, may_match: bool) -> Option<usize> {
        if self.matched.is_some() {
            return self.matched;
        }
        if self.nodes.len() == 1 {
            out.push_str(text);
            return None;
        }
        let mut text = text;
        if self.state == ROOT && self.withheld.is_empty() {
            // Almost always no byte of a piece starts a stop string.
            match text.bytes().position(|byte| self.first[byte as usize] != ROOT) {
                None => {
                    out.push_str(text);
                    return None;
                }
                Some(at) => {
                    // Stop strings start with a whole character, so this is a boundary, unless the text is not.
                    let at = text.floor_char_boundary(at);
                    out.push_str(&text[..at]);
                    text = &text[at..];
                }
            }
        }
        let scanned = self.withheld.len();
        self.withheld.push_str(text);
        for position in scanned..self.withheld.len() {
            self.state = self.step(self.state, self.withheld.as_bytes()[position]);
            let end = position + 1;
            if may_match {
                self.note(end);
            }
            if let Some(found) = self.found
                && !self.better_may_come(found, end)
            {
                return self.settle(found, out);
            }
        }
        self.release(out);
        None
    }

    /// Keeps the best stop string that ends at `end`: the longest one started first.
    fn note(&mut self, end: usize) {
        let output = self.nodes[self.state as usize].output;
        if output == NONE {
            return;
        }
        let node = &self.nodes[output as usize];
        let candidate = Found { start: end - node.depth as usize, stop: node.stop };
        if self.found.is_none_or(|found| (candidate.start, candidate.stop) < (found.start, found.stop)) {
            self.found = Some(candidate);
        }
    }

    /// Can a stop string that begins before `found`, or with it and stands before it in the list, still become
    /// complete? The states along `fail` are all beginnings that are alive, earliest first; those that are whole stop
    /// strings and nothing more are at most as many as there are stop strings.
    fn better_may_come(&self, found: Found, end: usize) -> bool {
        let mut node = self.state;
        while node != ROOT {
            let entry = &self.nodes[node as usize];
            let start = end - entry.depth as usize;
            if start > found.start {
                return false;
            }
            if entry.first_longer != NONE && (start < found.start || entry.first_longer < found.stop) {
                return true;
            }
            node = entry.fail;
        }
        false
    }

    fn settle(&mut self, found: Found, out: &mut String) -> Option<usize> {
        let len = if self.include_stop { self.length(found.stop) } else { 0 };
        out.push_str(&self.withheld[..found.start + len]);
        self.withheld.clear();
        self.matched = Some(found.stop as usize);
        self.matched
    }

    /// Length in bytes of a stop string.
    fn length(&self, stop: u32) -> usize {
        self.nodes.iter().find(|node| node.stop == stop).map_or(0, |node| node.depth as usize)
    }

    /// Appends all withheld text that can no longer be part of a stop string.
    fn release(&mut self, out: &mut String) {
        let mut node = self.state;
        while node != ROOT && self.nodes[node as usize].first_longer == NONE {
            node = self.nodes[node as usize].fail;
        }
        let alive = self.withheld.len() - self.nodes[node as usize].depth as usize;
        let keep_from = self.found.map_or(alive, |found| alive.min(found.start));
        out.push_str(&self.withheld[..keep_from]);
        self.withheld.drain(..keep_from);
        if let Some(found) = &mut self.found {
            found.start -= keep_from;
        }
    }

    /// Ends the text: what was withheld is released, unless a stop string was met that waited for a better one.
    pub fn finish(&mut self, out: &mut String) -> Option<usize> {
        if let (None, Some(found)) = (self.matched, self.found) {
            return self.settle(found, out);
        }
        out.push_str(&self.withheld);
        self.withheld.clear();
        self.state = ROOT;
        self.matched
    }
}

impl Node {
    fn new(byte: u8, depth: u32) -> Self {
        Self {
            byte,
            depth,
            first_child: NONE,
            next_sibling: NONE,
            fail: ROOT,
            stop: NONE,
            first_longer: NONE,
            output: NONE,
        }
    }
}
