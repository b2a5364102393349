//! Sequences by id, in reusable slots.

use crate::sequence::Sequence;

/// Names a submitted request until it is over. Ids are not reused: a stale one finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId {
    slot: u32,
    generation: u32,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    sequence: Option<Box<Sequence>>,
}

/// Its size is bounded by whoever inserts.
#[derive(Debug, Default)]
pub(crate) struct Slab {
    slots: Vec<Slot>,
    vacant: Vec<u32>,
}

impl Slab {
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    pub(crate) fn insert(&mut self, make: impl FnOnce(SequenceId) -> Sequence) -> SequenceId {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        let entry = &mut self.slots[slot as usize];
        let id = SequenceId { slot, generation: entry.generation };
        entry.sequence = Some(Box::new(make(id)));
        id
    }

    pub(crate) fn get(&self, id: SequenceId) -> Option<&Sequence> {
        let slot = self.slots.get(id.slot as usize)?;
        slot.sequence.as_deref().filter(|_| slot.generation == id.generation)
    }

    pub(crate) fn get_mut(&mut self, id: SequenceId) -> Option<&mut Sequence> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        slot.sequence.as_deref_mut().filter(|_| slot.generation == id.generation)
    }

    pub(crate) fn remove(&mut self, id: SequenceId) -> Option<Box<Sequence>> {
        let slot = self.slots.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation)?;
        let sequence = slot.sequence.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.vacant.push(id.slot);
        Some(sequence)
    }
}
