//! Random histories of sequences that come, grow, share and go, held against a naive account of the same.

use dynamo_blocks::{BlockId, BlockManager, Completed};
use dynamo_types::{KvEvent, hash};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const BLOCK_SIZE: usize = 4;

/// Content number `local`. Two numbers of the same class, modulo 3, collide: see [`local_hash`].
fn tokens(local: u64) -> [u32; BLOCK_SIZE] {
    [local as u32; BLOCK_SIZE]
}

/// As if somebody had found contents with the same hash.
fn local_hash(local: u64) -> u64 {
    local % 3
}

/// What a block holds: the local hashes from the root up to and including it.
type Content = Vec<u64>;

#[derive(Debug, Default)]
struct Holder {
    content: Content,
    chain: Vec<BlockId>,
}

#[derive(Clone, Debug)]
enum Step {
    /// A new sequence with these local hashes: takes what it finds, computes the rest.
    Start(Vec<u64>),
    /// Sequence (by position) computes one block more.
    Grow(usize, u64),
    /// Sequence allocates a block and is stopped before it is complete.
    Abandon(usize),
    Finish(usize),
    Clear,
}

/// Collisions are rare enough for long chains.
fn local() -> impl Strategy<Value = u64> {
    prop_oneof![9 => 0u64..3, 1 => 3u64..6]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop::collection::vec(local(), 1..6).prop_map(Step::Start),
        4 => (0usize..6, local()).prop_map(|(holder, local)| Step::Grow(holder, local)),
        1 => (0usize..6).prop_map(Step::Abandon),
        4 => (0usize..6).prop_map(Step::Finish),
        1 => Just(Step::Clear),
    ]
}

struct World {
    manager: BlockManager,
    holders: Vec<Holder>,
    /// What each block really holds.
    store: BTreeMap<BlockId, Content>,
    /// The naive eviction order, oldest first.
    inactive: Vec<BlockId>,
    /// Event stream replayed: hash to parent.
    announced: BTreeMap<u64, Option<u64>>,
}

impl World {
    fn new(total: u32) -> Self {
        Self {
            manager: BlockManager::new(total, BLOCK_SIZE as u32),
            holders: Vec::new(),
            store: BTreeMap::new(),
            inactive: Vec::new(),
            announced: BTreeMap::new(),
        }
    }

    fn naive_references(&self, block: BlockId) -> usize {
        self.holders.iter().flat_map(|holder| &holder.chain).filter(|&&other| other == block).count()
    }

    fn allocate(&mut self) -> Option<BlockId> {
        let before = self.manager.available();
        let must_evict = self.manager.available() == self.manager.inactive();
        let block = self.manager.allocate();
        assert_eq!(block.is_some(), before > 0, "a block is given exactly when one is available");
        let block = block?;
        assert_eq!(self.naive_references(block), 0, "a block in use was given away");
        if must_evict {
            assert_eq!(block, self.inactive.remove(0), "not the oldest was evicted");
        }
        self.store.remove(&block);
        Some(block)
    }

    /// Computes one more block for a holder. False if there is no room.
    fn grow(&mut self, holder: usize, local: u64) -> bool {
        let Some(block) = self.allocate() else { return false };
        let mut content = self.holders[holder].content.clone();
        content.push(local);
        self.store.insert(block, content.clone());
        let parent = self.holders[holder].chain.last().copied();
        let mut kept = block;
        if let Completed::Duplicate(first) =
            self.manager.complete(block, parent, local_hash(local), &tokens(local))
        {
            assert_eq!(self.store[&first], content, "replaced by a block with another content");
            self.inactive.retain(|&other| other != first);
            kept = first;
        }
        self.holders[holder].content = content;
        self.holders[holder].chain.push(kept);
        true
    }

    fn finish(&mut self, holder: usize) {
        let gone = self.holders.swap_remove(holder);
        self.manager.release(&gone.chain);
        for &block in gone.chain.iter().rev() {
            if self.naive_references(block) == 0 && self.manager.sequence_hash(block).is_some() {
                self.inactive.push(block);
            }
        }
    }

    fn start(&mut self, content: &[u64]) {
        let mut found = Vec::new();
        let hashes: Vec<u64> = content.iter().map(|&local| local_hash(local)).collect();
        let prompt: Vec<u32> = content.iter().flat_map(|&local| tokens(local)).collect();
        let prefix = self.manager.find_prefix(&hashes, &prompt, &mut found);
        assert_eq!(prefix.blocks as usize, found.len());
        let unused = found.iter().filter(|&&block| self.naive_references(block) == 0).count();
        assert_eq!(prefix.inactive as usize, unused);
        for (depth, block) in found.iter().enumerate() {
            assert_eq!(self.store[block], content[..=depth], "a match with another content");
        }
        self.manager.acquire(&found);
        self.inactive.retain(|block| !found.contains(block));
        self.holders.push(Holder { content: content[..found.len()].to_vec(), chain: found.clone() });
        let holder = self.holders.len() - 1;
        for &local in &content[found.len()..] {
            if !self.grow(holder, local) {
                break;
            }
        }
    }

    fn apply(&mut self, step: Step) {
        let position = |holder: usize, len: usize| (len > 0).then(|| holder % len);
        match step {
            Step::Start(content) => self.start(&content),
            Step::Grow(holder, local) => {
                if let Some(holder) = position(holder, self.holders.len()) {
                    self.grow(holder, local);
                }
            }
            Step::Abandon(holder) => {
                if let Some(holder) = position(holder, self.holders.len()) {
                    if let Some(block) = self.allocate() {
                        self.holders[holder].chain.push(block);
                    }
                    self.finish(holder);
                }
            }
            Step::Finish(holder) => {
                if let Some(holder) = position(holder, self.holders.len()) {
                    self.finish(holder);
                }
            }
            Step::Clear => {
                self.manager.clear();
                self.inactive.clear();
            }
        }
    }

    fn replay(&mut self) {
        for event in self.manager.drain_events() {
            match event {
                KvEvent::Stored { mut parent, blocks, .. } => {
                    for block in blocks {
                        assert!(
                            parent.is_none_or(|hash| self.announced.contains_key(&hash)),
                            "parent unknown"
                        );
                        assert_eq!(block.block_hash, hash::sequence_hash(parent, block.tokens_hash));
                        assert!(self.announced.insert(block.block_hash, parent).is_none(), "announced twice");
                        parent = Some(block.block_hash);
                    }
                }
                KvEvent::Removed { hashes, .. } => {
                    for hash in hashes {
                        assert!(self.announced.remove(&hash).is_some(), "removed what was not there");
                        assert!(
                            !self.announced.values().any(|&parent| parent == Some(hash)),
                            "an orphan is left"
                        );
                    }
                }
                KvEvent::Cleared => self.announced.clear(),
            }
        }
    }

    fn check(&mut self) {
        self.replay();
        let all = (0..self.manager.total()).map(BlockId);
        let registered: BTreeSet<u64> =
            all.clone().filter_map(|block| self.manager.sequence_hash(block)).collect();
        assert!(registered.iter().eq(self.announced.keys()), "events and registry differ");
        assert_eq!(self.manager.registered() as usize, registered.len());
        let mut active = 0;
        for block in all {
            assert_eq!(self.manager.references(block) as usize, self.naive_references(block), "{block:?}");
            active += u32::from(self.manager.references(block) > 0);
        }
        assert_eq!(self.manager.active(), active);
        assert_eq!(self.manager.inactive() as usize, self.inactive.len());
    }
}

proptest! {
    #[test]
    fn the_manager_agrees_with_a_naive_account(
        total in 0u32..14,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(total);
        for step in steps {
            world.apply(step);
            world.check();
        }
        while !world.holders.is_empty() {
            world.finish(0);
        }
        world.check();
        prop_assert_eq!(world.manager.active(), 0);
    }
}

#[test]
fn a_duplicate_gives_way_and_is_not_announced() {
    let mut manager = BlockManager::new(4, 4);
    let (first, second) = (manager.allocate().unwrap(), manager.allocate().unwrap());
    assert_eq!(manager.complete(first, None, 7, &[1; 4]), Completed::Registered);
    assert_eq!(manager.complete(second, None, 7, &[1; 4]), Completed::Duplicate(first));
    assert_eq!((manager.references(first), manager.references(second)), (2, 0));
    assert_eq!(manager.drain_events().len(), 1);
    assert_eq!(manager.available(), 3);
}

#[test]
fn a_chain_is_one_event() {
    let mut manager = BlockManager::new(4, 4);
    let mut parent = None;
    for local in 0..3 {
        let block = manager.allocate().unwrap();
        manager.complete(block, parent, local, &tokens(local));
        parent = Some(block);
    }
    let events = manager.drain_events();
    assert!(
        matches!(&events[..], [KvEvent::Stored { parent: None, blocks, .. }] if blocks.len() == 3),
        "{events:?}"
    );
}

#[test]
fn metadata_is_at_most_56_bytes_per_block_and_its_tokens() {
    for total in [1000, 1024, 65_536, 100_000] {
        assert!(BlockManager::new(total, 16).memory_bytes() <= (56 + 16 * 4) * total as usize);
    }
}

#[test]
fn a_constructed_collision_shares_nothing() {
    let mut manager = BlockManager::new(8, 4);
    let mine = manager.allocate().unwrap();
    assert_eq!(manager.complete(mine, None, 7, &[1, 2, 3, 4]), Completed::Registered);
    let mut found = Vec::new();
    assert_eq!(
        manager.find_prefix(&[7], &[1, 2, 3, 5], &mut found).blocks,
        0,
        "another's prompt with the same hash"
    );
    let other = manager.allocate().unwrap();
    assert_eq!(manager.complete(other, None, 7, &[1, 2, 3, 5]), Completed::Private);
    // What follows it cannot be found either: its parent is nobody's to find.
    let next = manager.allocate().unwrap();
    assert_eq!(manager.complete(next, Some(other), 8, &[9; 4]), Completed::Private);
    assert_eq!(manager.find_prefix(&[7, 8], &[1, 2, 3, 4, 9, 9, 9, 9], &mut found).blocks, 1);
    assert_eq!(found, [mine]);
}
