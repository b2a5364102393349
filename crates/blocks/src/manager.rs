//! The block manager.

use crate::event::Events;
use crate::list::{Links, List, NONE, Nodes};
use crate::registry::Registry;
use dynamo_types::{KvEvent, StoredBlock, hash};

/// One physical block of the pool: its index, below `total_blocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

impl BlockId {
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What became of a block whose last token was computed ([`BlockManager::complete`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// It can be found by others from now on, and was announced.
    Registered,
    /// The same content is held by this block already. The caller's reference was moved to it and the block passed
    /// in was given back: use this one from now on.
    Duplicate(BlockId),
    /// It stays the caller's own: its parent cannot be found by others (the cache was cleared), or another content
    /// has the same hash.
    Private,
}

/// A match of [`BlockManager::find_prefix`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    /// Blocks found.
    pub blocks: u32,
    /// Those of them that nobody uses: taking them lowers [`BlockManager::available`].
    pub inactive: u32,
}

/// Metadata of one block: 40 bytes.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// Sequence hash; valid while `registered`.
    hash: u64,
    /// Local hash of the tokens; valid while `registered`.
    local: u64,
    /// Block before this one in its chain, or [`NONE`]; valid while `registered`.
    parent: u32,
    references: u32,
    links: Links,
    registered: bool,
}

const EMPTY: Block =
    Block { hash: 0, local: 0, parent: NONE, references: 0, links: Links::UNLINKED, registered: false };

impl Nodes for Vec<Block> {
    fn links(&mut self, index: u32) -> &mut Links {
        &mut self[index as usize].links
    }
}

/// Reference counts, the registry of reusable blocks and their eviction order, for one pool of blocks.
///
/// A block is *free* (nobody uses it, holds nothing), *active* (referenced) or *inactive* (nobody uses it, but it is
/// registered and can be found again until its room is needed). All operations are O(1) per block and allocate
/// nothing but the events.
///
/// **Chains.** Blocks are registered along chains that start at the root, and a chain is released from its tail. A
/// duplicate is replaced by the block found first ([`Completed::Duplicate`]), so whoever holds a registered block
/// holds all blocks before it. From the two follows that a parent always becomes inactive after its children: taking
/// the oldest inactive block never orphans another one, `Removed` comes for children before parents, and the parent
/// of each `Stored` is known to whoever followed the events.
///
/// **Identity.** A block is found by its 64-bit sequence hash, and used only if its parent, its local hash and its tokens agree
/// too. The hashes are public and not made to withstand anybody: a client can construct prompts that collide. Tokens are
/// compared because a few bytes are compared sooner than hashed, and leave nothing to chance.
///
/// **Memory.** 40 bytes per block, 8 to 16 bytes of registry, 4 per token: at most 56 bytes of metadata per block and its tokens.
#[derive(Debug)]
pub struct BlockManager {
    block_size: u32,
    blocks: Vec<Block>,
    /// `[block][block_size]`; valid while `registered`.
    tokens: Vec<u32>,
    registry: Registry,
    free: List,
    inactive: List,
    events: Events,
}

impl BlockManager {
    /// `block_size` in tokens. A pool may be empty; it then never has a block.
    pub fn new(total_blocks: u32, block_size: u32) -> Self {
        let mut blocks = vec![EMPTY; total_blocks as usize];
        let mut free = List::new();
        (0..total_blocks).for_each(|index| free.push_back(&mut blocks, index));
        Self {
            block_size,
            blocks,
            // Zeroed memory comes from the system untouched: what is never registered takes none.
            tokens: vec![0; total_blocks as usize * block_size as usize],
            registry: Registry::new(total_blocks),
            free,
            inactive: List::new(),
            events: Events::default(),
        }
    }

    /// Tokens per block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    pub fn total(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Blocks that [`BlockManager::allocate`] can still give: free and inactive ones.
    pub fn available(&self) -> u32 {
        self.free.len() + self.inactive.len()
    }

    /// Blocks in use, shared ones once.
    pub fn active(&self) -> u32 {
        self.total() - self.available()
    }

    /// Blocks kept for reuse that nobody uses.
    pub fn inactive(&self) -> u32 {
        self.inactive.len()
    }

    /// Blocks that can be found by hash, in use or not.
    pub fn registered(&self) -> u32 {
        self.registry.len()
    }

    pub fn references(&self, block: BlockId) -> u32 {
        self.blocks[block.index()].references
    }

    /// Sequence hash of a registered block.
    pub fn sequence_hash(&self, block: BlockId) -> Option<u64> {
        let block = &self.blocks[block.index()];
        block.registered.then_some(block.hash)
    }

    /// Bytes of metadata, all of them allocated at the start.
    pub fn memory_bytes(&self) -> usize {
        self.blocks.len() * size_of::<Block>()
            + self.tokens.len() * size_of::<u32>()
            + self.registry.memory_bytes()
    }

    /// A block of one's own with one reference, or none if all are in use. Takes the room of the block that was unused
    /// for longest if no block is free.
    pub fn allocate(&mut self) -> Option<BlockId> {
        let index = match self.free.pop_front(&mut self.blocks) {
            Some(index) => index,
            None => {
                let index = self.inactive.pop_front(&mut self.blocks)?;
                self.forget(index);
                index
            }
        };
        self.blocks[index as usize] = Block { references: 1, ..EMPTY };
        Some(BlockId(index))
    }

    /// Takes a block out of the registry and says so.
    fn forget(&mut self, index: u32) {
        let hash = self.blocks[index as usize].hash;
        let blocks = &self.blocks;
        self.registry.remove(hash, |other| blocks[other as usize].hash);
        self.blocks[index as usize].registered = false;
        self.events.removed(hash);
    }

    fn place(&self, index: u32) -> std::ops::Range<usize> {
        let size = self.block_size as usize;
        index as usize * size..(index as usize + 1) * size
    }

    /// The registered block with these tokens, a whole block of them, after `parent` (none: at the root).
    pub fn find(&self, parent: Option<BlockId>, local_hash: u64, tokens: &[u32]) -> Option<BlockId> {
        let parent_hash = match parent {
            Some(parent) => Some(self.sequence_hash(parent)?),
            None => None,
        };
        let index = self.lookup(hash::sequence_hash(parent_hash, local_hash))?;
        self.is_same(index, parent, local_hash, tokens).then_some(BlockId(index))
    }

    fn lookup(&self, hash: u64) -> Option<u32> {
        self.registry.get(hash, |other| self.blocks[other as usize].hash)
    }

    fn is_same(&self, index: u32, parent: Option<BlockId>, local_hash: u64, tokens: &[u32]) -> bool {
        let found = &self.blocks[index as usize];
        found.local == local_hash
            && found.parent == parent.map_or(NONE, |block| block.0)
            && self.tokens[self.place(index)] == *tokens
    }

    /// Appends to `found` the longest chain of registered blocks with these local hashes, and these tokens from the root on.
    /// Takes no reference: do that with [`BlockManager::acquire`] before anything else is allocated.
    pub fn find_prefix(&self, local_hashes: &[u64], tokens: &[u32], found: &mut Vec<BlockId>) -> Prefix {
        let mut prefix = Prefix::default();
        let mut parent = None;
        let blocks = tokens.chunks_exact((self.block_size as usize).max(1));
        for (&local_hash, tokens) in local_hashes.iter().zip(blocks) {
            let Some(block) = self.find(parent, local_hash, tokens) else { break };
            prefix.blocks += 1;
            prefix.inactive += u32::from(self.references(block) == 0);
            found.push(block);
            parent = Some(block);
        }
        prefix
    }

    /// Adds a reference to each of these blocks, which are active, or inactive and just found.
    pub fn acquire(&mut self, blocks: &[BlockId]) {
        for &block in blocks {
            let references = self.blocks[block.index()].references;
            if references == 0 {
                debug_assert!(self.blocks[block.index()].registered, "acquired a free block");
                self.inactive.remove(&mut self.blocks, block.0);
            }
            self.blocks[block.index()].references = references + 1;
        }
    }

    /// Gives back one reference of each block of a chain (root first), the tail first. Registered blocks that nobody
    /// uses any more become inactive, others free.
    pub fn release(&mut self, chain: &[BlockId]) {
        for &block in chain.iter().rev() {
            let references = self.blocks[block.index()].references;
            debug_assert!(references > 0, "released a block that nobody holds");
            if references == 0 {
                continue;
            }
            self.blocks[block.index()].references = references - 1;
            if references > 1 {
                continue;
            }
            if self.blocks[block.index()].registered {
                self.inactive.push_back(&mut self.blocks, block.0);
            } else {
                // Last in, first out: its memory is still warm.
                self.free.push_front(&mut self.blocks, block.0);
            }
        }
    }

    /// All of `tokens`, a whole block of them, are computed: makes `block` findable under their local hash after `parent` (none:
    /// at the root), and announces it. The caller holds both. Of two blocks with the same content only the first is
    /// registered and announced; the second gives way to it.
    pub fn complete(
        &mut self,
        block: BlockId,
        parent: Option<BlockId>,
        local_hash: u64,
        tokens: &[u32],
    ) -> Completed {
        if self.blocks[block.index()].registered {
            return Completed::Registered;
        }
        let parent_hash = match parent.map(|parent| self.sequence_hash(parent)) {
            Some(None) => return Completed::Private,
            Some(hash) => hash,
            None => None,
        };
        let sequence_hash = hash::sequence_hash(parent_hash, local_hash);
        if let Some(index) = self.lookup(sequence_hash) {
            if !self.is_same(index, parent, local_hash, tokens) {
                return Completed::Private;
            }
            self.acquire(&[BlockId(index)]);
            self.release(&[block]);
            return Completed::Duplicate(BlockId(index));
        }
        let place = self.place(block.0);
        if tokens.len() != place.len() {
            debug_assert!(false, "completed with {} tokens", tokens.len());
            return Completed::Private;
        }
        self.tokens[place].copy_from_slice(tokens);
        let entry = &mut self.blocks[block.index()];
        entry.hash = sequence_hash;
        entry.local = local_hash;
        entry.parent = parent.map_or(NONE, |parent| parent.0);
        entry.registered = true;
        let blocks = &self.blocks;
        self.registry.insert(sequence_hash, block.0, |other| blocks[other as usize].hash);
        let stored = StoredBlock { block_hash: sequence_hash, tokens_hash: local_hash };
        self.events.stored(parent_hash, stored, tokens);
        Completed::Registered
    }

    /// Forgets all contents. Blocks in use stay with their users, but nobody else finds them any more. O(pool).
    pub fn clear(&mut self) {
        while let Some(index) = self.inactive.pop_front(&mut self.blocks) {
            self.free.push_back(&mut self.blocks, index);
        }
        self.blocks.iter_mut().for_each(|block| block.registered = false);
        self.registry.clear();
        self.events.cleared();
    }

    /// What changed since the last call, in order. Call it after each step: undrained events pile up.
    pub fn drain_events(&mut self) -> Vec<KvEvent> {
        self.events.drain()
    }

    /// Keeps the tokens of stored blocks for [`BlockManager::drain_tokens`] from now on.
    pub fn keep_tokens(&mut self) {
        self.events.keep_tokens();
    }

    /// Tokens of the blocks stored since the last call, one block after another. Call it with [`BlockManager::drain_events`].
    pub fn drain_tokens(&mut self) -> Vec<u32> {
        self.events.drain_tokens()
    }
}
