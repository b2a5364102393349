//! Block identity (behaviour.md 2.5; golden vectors of its section 13.1).
//!
//! A block is `block_size` tokens. Its *local* hash is XXH3-64 over the little-endian token ids; the chained
//! *sequence* hash of block `i` covers everything up to and including it. Adapters and tenants change the seed, media
//! digests are appended, so equal hashes mean equal KV.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Seed of the public contract, version 1.
pub const SEED: u64 = 1337;

/// What besides the tokens decides the content of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope<'a> {
    /// LoRA adapter name, if one is used.
    pub lora: Option<&'a str>,
    /// Tenant salt. Empty means none (R36).
    pub salt: Option<&'a str>,
}

impl Scope<'_> {
    /// The seed of every local hash in this scope.
    ///
    /// The adapter fold is the reference's. The fold of its cache namespace is not public, so ours is our own and gives
    /// other values than the two that behaviour.md 13.1 records for it.
    pub fn seed(&self) -> u64 {
        let mut seed = SEED;
        if let Some(lora) = self.lora.filter(|name| !name.is_empty()) {
            seed = seed.wrapping_add(xxh3_64(lora.as_bytes()));
        }
        if let Some(salt) = self.salt.filter(|salt| !salt.is_empty()) {
            seed = xxh3_64_with_seed(salt.as_bytes(), seed);
        }
        seed
    }
}

/// Local hash of one block's tokens under a seed from [`Scope::seed`].
pub fn local_hash(tokens: &[u32], seed: u64) -> u64 {
    local_hash_with_media(tokens, &[], seed)
}

/// Local hash of a block in which media appear; `media` are their digests, in any order.
pub fn local_hash_with_media(tokens: &[u32], media: &[u64], seed: u64) -> u64 {
    const STACK_BYTES: usize = 1024;
    let len = tokens.len() * 4 + media.len() * 8;
    let mut media = media.to_vec();
    media.sort_unstable();
    let parts = tokens.iter().map(|token| token.to_le_bytes());
    if len <= STACK_BYTES {
        let mut buffer = [0u8; STACK_BYTES];
        for (slot, bytes) in buffer.chunks_exact_mut(4).zip(parts) {
            slot.copy_from_slice(&bytes);
        }
        for (slot, digest) in buffer[tokens.len() * 4..].chunks_exact_mut(8).zip(&media) {
            slot.copy_from_slice(&digest.to_le_bytes());
        }
        return xxh3_64_with_seed(&buffer[..len], seed);
    }
    let mut buffer = Vec::with_capacity(len);
    parts.for_each(|bytes| buffer.extend_from_slice(&bytes));
    media.iter().for_each(|digest| buffer.extend_from_slice(&digest.to_le_bytes()));
    xxh3_64_with_seed(&buffer, seed)
}

/// Sequence hash of a block from its parent's sequence hash (none for the first) and its own local hash.
pub fn sequence_hash(parent: Option<u64>, local: u64) -> u64 {
    let Some(parent) = parent else { return local };
    let mut bytes = [0u8; 16];
    bytes[..8].copy_from_slice(&parent.to_le_bytes());
    bytes[8..].copy_from_slice(&local.to_le_bytes());
    xxh3_64_with_seed(&bytes, SEED)
}

/// Local hashes of all complete blocks of a prompt; an incomplete last block has none.
pub fn local_hashes(tokens: &[u32], block_size: usize, scope: &Scope<'_>) -> Vec<u64> {
    let seed = scope.seed();
    tokens.chunks_exact(block_size.max(1)).map(|block| local_hash(block, seed)).collect()
}

/// Sequence hashes of a chain of local hashes that starts at the root.
pub fn sequence_hashes(locals: &[u64]) -> Vec<u64> {
    let mut parent = None;
    locals
        .iter()
        .map(|&local| {
            let hash = sequence_hash(parent, local);
            parent = Some(hash);
            hash
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locals(tokens: impl Iterator<Item = u32>, block_size: usize, scope: Scope<'_>) -> Vec<u64> {
        local_hashes(&tokens.collect::<Vec<_>>(), block_size, &scope)
    }

    #[test]
    fn r35_golden_vectors() {
        let plain = Scope::default();
        let ones = [1u32, 2, 3, 4].repeat(4);
        assert_eq!(locals(ones.iter().copied(), 16, plain), [16001302621955708941]);
        assert_eq!(locals(0..32, 16, plain), [15310707395893867146, 15292316782987903195]);
        assert_eq!(locals(0..20, 16, plain), [15310707395893867146]);
        let lora = Scope { lora: Some("my-lora"), salt: None };
        assert_eq!(locals(ones.iter().copied(), 16, lora), [8679030707294947097]);
        assert_eq!(local_hash_with_media(&ones, &[0xDEADBEEF], SEED), 694587863012533644);
        assert_eq!(local_hash_with_media(&ones, &[5, 3], SEED), 639146274756341515);
        assert_eq!(local_hash_with_media(&ones, &[3, 5], SEED), 639146274756341515);
        assert_eq!(local_hash_with_media(&ones, &[0xDEADBEEF], lora.seed()), 10829297088092817713);
        let chain = locals(1..9, 4, plain);
        assert_eq!(chain, [14643705804678351452, 16777012769546811212]);
        let sequence: Vec<i64> = sequence_hashes(&chain).iter().map(|hash| hash.cast_signed()).collect();
        assert_eq!(sequence, [-3803038269031200164, 4945711292740353085]);
        assert_eq!(locals([2, 2, 2, 2].into_iter(), 4, plain), [11189908752501997813]);
    }

    #[test]
    fn r36_salt_changes_every_block_and_empty_is_none() {
        let plain = locals(0..64, 16, Scope::default());
        let salted = locals(0..64, 16, Scope { lora: None, salt: Some("tenantA") });
        assert!(plain.iter().zip(&salted).all(|(a, b)| a != b));
        assert_eq!(plain, locals(0..64, 16, Scope { lora: Some(""), salt: Some("") }));
    }

    #[test]
    fn long_blocks_hash_like_short_ones() {
        let tokens: Vec<u32> = (0..512).collect();
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        assert_eq!(local_hash(&tokens, SEED), xxh3_64_with_seed(&bytes, SEED));
    }
}
