//! What one rank of an engine holds, so that its events become ours: blocks counted, tokens hashed.

use super::wire::{EngineEvent, Extra, Stored};
use dynamo_types::hash::{Scope, local_hash, local_hash_with_media};
use dynamo_types::{KvEvent, StorageTier, StoredBlock};
use rustc_hash::{FxHashMap, FxHashSet};

/// Blocks that are counted; those beyond are passed on uncounted. As many as the event plane keeps for snapshots.
const MAX_BLOCKS: usize = 4 << 20;

/// Groups of layers whose blocks are left out. Models have a handful.
const MAX_GROUPS: usize = 64;

/// The blocks of one rank.
///
/// Engines say twice that they stored a block (a prompt that comes again has its last block computed again), and then twice
/// that they removed it; so it is gone when it was removed as often as it was stored.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// How often each block is there, by tier and the engine's name for it.
    held: FxHashMap<(StorageTier, u64), u32>,
    /// Seeds of blocks whose hash comes of a salt or an adapter: those that follow them have the same.
    seeds: FxHashMap<u64, u64>,
    /// Groups whose blocks no prefix can be built on.
    left_out: FxHashSet<u64>,
}

impl Ledger {
    /// Appends what the event means. False: it does not fit the engine's block size, and is left out.
    pub(super) fn apply(&mut self, event: &EngineEvent, block_size: u32, out: &mut Vec<KvEvent>) -> bool {
        match event {
            EngineEvent::Stored(stored) if !stored.is_prefix => {
                if let Some(group) = stored.group
                    && self.left_out.len() < MAX_GROUPS
                {
                    self.left_out.insert(group);
                }
            }
            EngineEvent::Stored(stored) => return self.store(stored, block_size, out),
            EngineEvent::Removed { group, .. }
                if group.is_some_and(|group| self.left_out.contains(&group)) => {}
            EngineEvent::Removed { hashes, tier, .. } => self.remove(hashes, *tier, out),
            EngineEvent::Cleared => {
                *self = Self::default();
                out.push(KvEvent::Cleared);
            }
        }
        true
    }

    fn store(&mut self, stored: &Stored, block_size: u32, out: &mut Vec<KvEvent>) -> bool {
        let size = block_size as usize;
        let fits = stored.block_size == u64::from(block_size)
            && size > 0
            && stored.tokens.len() == stored.hashes.len().saturating_mul(size);
        if !fits {
            return false;
        }
        let seed = self.seed(stored);
        let is_plain = seed == Scope::default().seed();
        let mut parent = stored.parent;
        let mut chain: Option<(Option<u64>, Vec<StoredBlock>)> = None;
        for (index, (&block_hash, tokens)) in stored.hashes.iter().zip(stored.tokens.chunks(size)).enumerate()
        {
            let key = (stored.tier, block_hash);
            let is_new = match self.held.get_mut(&key) {
                Some(count) => {
                    *count = count.saturating_add(1);
                    false
                }
                None => {
                    if self.held.len() < MAX_BLOCKS {
                        self.held.insert(key, 1);
                        if !is_plain {
                            self.seeds.insert(block_hash, seed);
                        }
                    }
                    true
                }
            };
            if is_new {
                let tokens_hash = match stored.extra.get(index) {
                    Some(Extra::Other(media)) => local_hash_with_media(tokens, &[*media], seed),
                    _ => local_hash(tokens, seed),
                };
                let (_, blocks) = chain.get_or_insert_with(|| (parent, Vec::new()));
                blocks.push(StoredBlock { block_hash, tokens_hash });
            } else {
                Self::end(&mut chain, stored.tier, out);
            }
            parent = Some(block_hash);
        }
        Self::end(&mut chain, stored.tier, out);
        true
    }

    fn end(chain: &mut Option<(Option<u64>, Vec<StoredBlock>)>, tier: StorageTier, out: &mut Vec<KvEvent>) {
        if let Some((parent, blocks)) = chain.take() {
            out.push(KvEvent::Stored { parent, blocks, tier });
        }
    }

    /// The seed of a chain: by what it says of itself, else as the block before it.
    fn seed(&self, stored: &Stored) -> u64 {
        let first = match (stored.parent, stored.extra.first()) {
            (None, Some(Extra::Text(salt))) => Some(salt.as_str()),
            _ => None,
        };
        let scope = Scope { lora: stored.lora.as_deref(), salt: stored.salt.as_deref().or(first) };
        let inherited = stored.parent.and_then(|parent| self.seeds.get(&parent)).copied();
        match (scope, inherited) {
            (Scope { salt: None, .. }, Some(seed)) => seed,
            (scope, _) => scope.seed(),
        }
    }

    fn remove(&mut self, hashes: &[u64], tier: StorageTier, out: &mut Vec<KvEvent>) {
        let mut gone = Vec::with_capacity(hashes.len());
        for &hash in hashes {
            match self.held.get_mut(&(tier, hash)) {
                Some(count) if *count > 1 => *count -= 1,
                // What was stored before we listened may be held by others who did.
                _ => {
                    self.held.remove(&(tier, hash));
                    self.seeds.remove(&hash);
                    gone.push(hash);
                }
            }
        }
        if !gone.is_empty() {
            out.push(KvEvent::Removed { hashes: gone, tier });
        }
    }
}
