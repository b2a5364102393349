//! Doubly linked lists threaded through the block table: every operation is O(1) and allocates nothing.

/// No block.
pub(crate) const NONE: u32 = u32::MAX;

/// The two links of one node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    previous: u32,
    next: u32,
}

impl Links {
    pub(crate) const UNLINKED: Self = Self { previous: NONE, next: NONE };
}

/// Something whose elements carry [`Links`].
pub(crate) trait Nodes {
    fn links(&mut self, index: u32) -> &mut Links;
}

/// Oldest at the front, newest at the back.
#[derive(Debug)]
pub(crate) struct List {
    front: u32,
    back: u32,
    len: u32,
}

impl List {
    pub(crate) const fn new() -> Self {
        Self { front: NONE, back: NONE, len: 0 }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn front(&self) -> Option<u32> {
        (self.front != NONE).then_some(self.front)
    }

    pub(crate) fn push_back(&mut self, nodes: &mut impl Nodes, index: u32) {
        *nodes.links(index) = Links { previous: self.back, next: NONE };
        if self.back == NONE {
            self.front = index;
        } else {
            nodes.links(self.back).next = index;
        }
        self.back = index;
        self.len += 1;
    }

    pub(crate) fn push_front(&mut self, nodes: &mut impl Nodes, index: u32) {
        *nodes.links(index) = Links { previous: NONE, next: self.front };
        if self.front == NONE {
            self.back = index;
        } else {
            nodes.links(self.front).previous = index;
        }
        self.front = index;
        self.len += 1;
    }

    /// `index` must be in this list.
    pub(crate) fn remove(&mut self, nodes: &mut impl Nodes, index: u32) {
        let Links { previous, next } = std::mem::replace(nodes.links(index), Links::UNLINKED);
        if previous == NONE {
            self.front = next;
        } else {
            nodes.links(previous).next = next;
        }
        if next == NONE {
            self.back = previous;
        } else {
            nodes.links(next).previous = previous;
        }
        self.len -= 1;
    }

    pub(crate) fn pop_front(&mut self, nodes: &mut impl Nodes) -> Option<u32> {
        let index = self.front()?;
        self.remove(nodes, index);
        Some(index)
    }
}
