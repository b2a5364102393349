//! What a source holds, rebuilt from what it published: the content of a snapshot.

use dynamo_types::{KvEvent, StorageTier, StoredBlock};
use rustc_hash::{FxHashMap, FxHashSet};

/// The blocks of one source, by tier and the engine's own name.
#[derive(Clone, Debug, Default)]
pub struct Mirror {
    blocks: FxHashMap<(StorageTier, u64), Held>,
    /// Counts stores, so that a snapshot lists blocks in the order in which they came.
    stores: u64,
    limit: usize,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    parent: Option<u64>,
    tokens_hash: u64,
    order: u64,
}

impl Mirror {
    /// Blocks beyond `limit` are not remembered: a late subscriber then misses hits, and nothing else.
    pub fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Applies one change. A block that is announced twice counts once (DESIGN 3.8).
    pub fn apply(&mut self, event: &KvEvent) {
        match event {
            KvEvent::Stored { parent, blocks, tier } => {
                let mut parent = *parent;
                for block in blocks {
                    self.store(*tier, parent, block);
                    parent = Some(block.block_hash);
                }
            }
            KvEvent::Removed { hashes, tier } => {
                hashes.iter().for_each(|&hash| {
                    self.blocks.remove(&(*tier, hash));
                });
            }
            KvEvent::Cleared => self.blocks.clear(),
        }
    }

    fn store(&mut self, tier: StorageTier, parent: Option<u64>, block: &StoredBlock) {
        let key = (tier, block.block_hash);
        if self.blocks.len() >= self.limit && !self.blocks.contains_key(&key) {
            return;
        }
        self.stores += 1;
        let order = self.stores;
        let held = Held { parent, tokens_hash: block.tokens_hash, order };
        self.blocks
            .entry(key)
            .and_modify(|known| *known = Held { order: known.order, ..held })
            .or_insert(held);
    }

    /// `Cleared`, then everything held, each block after its parent where that is held too. Blocks that follow one
    /// another share an event.
    pub fn snapshot(&self) -> Vec<KvEvent> {
        let mut keys: Vec<_> = self.blocks.iter().map(|(key, held)| (key.0, held.order, key.1)).collect();
        keys.sort_unstable();
        let mut written = FxHashSet::default();
        let mut path = Vec::new();
        let mut events = vec![KvEvent::Cleared];
        for (tier, _, hash) in keys {
            // Up to the first ancestor that is written already; a parent that was evicted and stored again is younger
            // than its children.
            let mut next = Some(hash);
            while let Some(hash) = next.take() {
                if let Some(held) = self.blocks.get(&(tier, hash))
                    && written.insert((tier, hash))
                {
                    path.push((hash, *held));
                    next = held.parent;
                }
            }
            while let Some((hash, held)) = path.pop() {
                append(&mut events, tier, &held, hash);
            }
        }
        events
    }
}

/// Continues the last event if the block follows its last one, else begins another.
fn append(events: &mut Vec<KvEvent>, tier: StorageTier, held: &Held, hash: u64) {
    let block = StoredBlock { block_hash: hash, tokens_hash: held.tokens_hash };
    if let Some(KvEvent::Stored { blocks, tier: last_tier, .. }) = events.last_mut()
        && *last_tier == tier
        && blocks.last().map(|last| last.block_hash) == held.parent
    {
        blocks.push(block);
        return;
    }
    events.push(KvEvent::Stored { parent: held.parent, blocks: vec![block], tier });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stored(parent: Option<u64>, hashes: &[u64]) -> KvEvent {
        KvEvent::Stored {
            parent,
            blocks: hashes
                .iter()
                .map(|&hash| StoredBlock { block_hash: hash, tokens_hash: hash * 10 })
                .collect(),
            tier: StorageTier::Device,
        }
    }

    fn removed(hashes: &[u64]) -> KvEvent {
        KvEvent::Removed { hashes: hashes.to_vec(), tier: StorageTier::Device }
    }

    #[test]
    fn chains_share_an_event_and_a_restored_parent_comes_first() {
        let mut mirror = Mirror::new(100);
        [stored(None, &[1, 2, 3]), stored(Some(2), &[4]), removed(&[1]), stored(None, &[1])]
            .iter()
            .for_each(|event| mirror.apply(event));
        let expected = vec![KvEvent::Cleared, stored(None, &[1, 2, 3]), stored(Some(2), &[4])];
        assert_eq!(mirror.snapshot(), expected);
        mirror.apply(&KvEvent::Cleared);
        assert_eq!(mirror.snapshot(), [KvEvent::Cleared]);
    }

    #[test]
    fn the_limit_holds_and_a_cycle_ends() {
        let mut mirror = Mirror::new(2);
        mirror.apply(&stored(Some(2), &[1, 2, 3]));
        assert_eq!(mirror.len(), 2);
        assert_eq!(mirror.snapshot().len(), 2);
    }

    proptest! {
        /// Applying a snapshot gives what applying the history gave.
        #[test]
        fn a_snapshot_stands_for_the_history(
            steps in prop::collection::vec((0u64..12, prop::option::of(0u64..12), any::<bool>()), 0..60)
        ) {
            let mut mirror = Mirror::new(1000);
            for (hash, parent, remove) in steps {
                let event = if remove { removed(&[hash]) } else { stored(parent, &[hash, hash + 20]) };
                mirror.apply(&event);
            }
            let mut copy = Mirror::new(1000);
            mirror.snapshot().iter().for_each(|event| copy.apply(event));
            let plain = |mirror: &Mirror| {
                let mut all: Vec<_> = mirror.blocks.iter()
                    .map(|(key, held)| (*key, held.parent, held.tokens_hash)).collect();
                all.sort_unstable();
                all
            };
            prop_assert_eq!(plain(&mirror), plain(&copy));
        }
    }
}
