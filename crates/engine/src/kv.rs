//! The KV blocks of one engine: one piece of memory, f16.

use crate::model::Error;
use dynamo_blocks::BlockId;
use dynamo_types::KvLayout;

/// Positions that attention takes at a time.
const GROUP: usize = 16;

/// Bits of an f16 that are all set where it is infinite or not a number.
const EXPONENT: u16 = 0x7C00;

/// How many blocks, and of how many tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvOptions {
    /// Tokens per block, a multiple of 16.
    pub block_size: usize,
    pub total_blocks: usize,
}

/// Where things are inside a block, in elements. A block is contiguous:
/// `[layer] { keys [kv head][block_size / 16][head_dim][16], values [kv head][block_size][head_dim] }`.
/// Keys have sixteen positions side by side, so that one vector holds a dimension of sixteen keys.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) layers: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) block_size: usize,
}

impl Layout {
    /// Elements of the keys, or the values, of one layer in one block.
    fn half_layer(&self) -> usize {
        self.kv_heads * self.head_dim * self.block_size
    }

    /// Elements of one block.
    pub(crate) fn block(&self) -> usize {
        2 * self.half_layer() * self.layers
    }

    /// Where the keys of sixteen positions begin, from position `within` of the block on, a multiple of 16.
    #[inline(always)]
    pub(crate) fn key(&self, block: BlockId, layer: usize, kv_head: usize, within: usize) -> usize {
        block.0 as usize * self.block()
            + layer * 2 * self.half_layer()
            + (kv_head * self.block_size + within) * self.head_dim
    }

    /// Where the value of a position begins.
    #[inline(always)]
    pub(crate) fn value(&self, block: BlockId, layer: usize, kv_head: usize, within: usize) -> usize {
        self.key(block, layer, kv_head, within) + self.half_layer()
    }
}

/// All blocks. Memory is taken when a block is first written, not before.
#[derive(Debug)]
pub struct KvStore {
    layout: Layout,
    total_blocks: usize,
    elements: Vec<u16>,
}

impl KvStore {
    pub(crate) fn new(
        layers: usize,
        kv_heads: usize,
        head_dim: usize,
        options: KvOptions,
    ) -> Result<Self, Error> {
        let KvOptions { block_size, total_blocks } = options;
        if block_size == 0 || !block_size.is_multiple_of(GROUP) {
            let message = format!("block size: expected a multiple of {GROUP}, found {block_size}");
            return Err(Error::Options { message });
        }
        let layout = Layout { layers, kv_heads, head_dim, block_size };
        let length = block_size
            .checked_mul(2 * layers * kv_heads * head_dim)
            .and_then(|block| block.checked_mul(total_blocks))
            .filter(|length| *length <= isize::MAX as usize / 2 && u32::try_from(total_blocks).is_ok());
        let Some(length) = length else {
            let message =
                format!("KV blocks: {total_blocks} of {block_size} tokens are more than memory can have");
            return Err(Error::Options { message });
        };
        // Asked for first in a way that can be refused: a failed allocation of the zeroed kind ends the process.
        if Vec::<u16>::new().try_reserve_exact(length).is_err() {
            let message = format!(
                "KV blocks: {total_blocks} of {block_size} tokens need {} MB, more than this machine gives",
                length / 500_000
            );
            return Err(Error::Options { message });
        }
        // Zeroed memory comes from the system untouched: pages become resident on their first write.
        Ok(Self { layout, total_blocks, elements: vec![0; length] })
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn elements(&self) -> &[u16] {
        &self.elements
    }

    pub(crate) fn block_bytes(&self) -> usize {
        2 * self.layout.block()
    }

    pub(crate) fn check(&self, block: BlockId) -> Result<(), Error> {
        if (block.0 as usize) < self.total_blocks {
            return Ok(());
        }
        Err(Error::Block { block: block.0, total_blocks: self.total_blocks })
    }

    /// Writes the keys and values of one position of one layer: `[kv head][head_dim]` each, already in f16.
    pub(crate) fn write(
        &mut self,
        block: BlockId,
        layer: usize,
        within: usize,
        keys: &[u16],
        values: &[u16],
    ) {
        let head_dim = self.layout.head_dim;
        let lane = within % GROUP;
        let heads = keys.chunks_exact(head_dim).zip(values.chunks_exact(head_dim));
        for (kv_head, (keys, values)) in heads.enumerate() {
            let at = self.layout.key(block, layer, kv_head, within - lane);
            let columns = self.elements[at..at + head_dim * GROUP].as_chunks_mut::<GROUP>().0;
            for (column, key) in columns.iter_mut().zip(keys) {
                column[lane] = *key;
            }
            let at = self.layout.value(block, layer, kv_head, within);
            self.elements[at..at + head_dim].copy_from_slice(values);
        }
    }

    /// Little-endian f16.
    pub(crate) fn export(&self, block: BlockId, bytes: &mut [u8]) -> Result<(), Error> {
        self.check(block)?;
        self.check_bytes(bytes.len())?;
        let at = block.0 as usize * self.layout.block();
        for (bytes, element) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(&self.elements[at..]) {
            *bytes = element.to_le_bytes();
        }
        Ok(())
    }

    pub(crate) fn import(&mut self, block: BlockId, bytes: &[u8]) -> Result<(), Error> {
        self.check(block)?;
        self.check_bytes(bytes.len())?;
        let mut numbers = bytes.as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
        if let Some(element) = numbers.position(|number| number & EXPONENT == EXPONENT) {
            return Err(Error::BlockContent { element });
        }
        let at = block.0 as usize * self.layout.block();
        for (bytes, element) in bytes.as_chunks::<2>().0.iter().zip(&mut self.elements[at..]) {
            *element = u16::from_le_bytes(*bytes);
        }
        Ok(())
    }

    fn check_bytes(&self, found: usize) -> Result<(), Error> {
        let expected = self.block_bytes();
        if found == expected { Ok(()) } else { Err(Error::BlockBytes { expected, found }) }
    }

    /// For the model card.
    pub(crate) fn description(&self) -> KvLayout {
        KvLayout {
            layers: self.layout.layers as u32,
            kv_heads: self.layout.kv_heads as u32,
            head_dim: self.layout.head_dim as u32,
            dtype: "f16".into(),
            order: "layer,{key:kv_head,position/16,dimension,position%16;value:kv_head,position,dimension}"
                .into(),
            block_bytes: self.block_bytes() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_travel_as_bytes() {
        let options = KvOptions { block_size: 16, total_blocks: 3 };
        let mut store = KvStore::new(2, 1, 32, options).unwrap();
        let keys: Vec<u16> = (0..32).collect();
        let values: Vec<u16> = (100..132).collect();
        store.write(BlockId(1), 1, 5, &keys, &values);
        let mut bytes = vec![0; store.block_bytes()];
        store.export(BlockId(1), &mut bytes).unwrap();
        store.import(BlockId(2), &bytes).unwrap();
        let at = store.layout().key(BlockId(2), 1, 0, 0);
        assert_eq!(store.elements()[at + 3 * 16 + 5], 3);
        let at = store.layout().value(BlockId(2), 1, 0, 5);
        assert_eq!(store.elements()[at + 31], 131);
        assert_eq!(store.import(BlockId(3), &bytes), Err(Error::Block { block: 3, total_blocks: 3 }));
        assert!(matches!(store.import(BlockId(0), &bytes[1..]), Err(Error::BlockBytes { .. })));
    }

    #[test]
    fn what_is_not_finite_is_not_let_in() {
        let options = KvOptions { block_size: 16, total_blocks: 2 };
        let mut store = KvStore::new(1, 1, 32, options).unwrap();
        let good: Vec<u8> = (0..store.block_bytes() / 2)
            .flat_map(|i| half::f16::from_f32(i as f32 / 8.0 - 64.0).to_le_bytes())
            .collect();
        store.import(BlockId(0), &good).unwrap();
        for (number, element) in [
            (half::f16::NAN, 0),
            (half::f16::INFINITY, 7),
            (half::f16::NEG_INFINITY, 500),
            (-half::f16::NAN, store.block_bytes() / 2 - 1),
        ] {
            let mut bytes = good.clone();
            bytes[element * 2..element * 2 + 2].copy_from_slice(&number.to_le_bytes());
            assert_eq!(store.import(BlockId(0), &bytes), Err(Error::BlockContent { element }));
            let mut kept = vec![0; store.block_bytes()];
            store.export(BlockId(0), &mut kept).unwrap();
            assert_eq!(kept, good, "a refused block changed what was there");
        }
        for number in [half::f16::MAX, half::f16::MIN, half::f16::MIN_POSITIVE_SUBNORMAL, half::f16::NEG_ZERO]
        {
            let mut bytes = good.clone();
            bytes[..2].copy_from_slice(&number.to_le_bytes());
            store.import(BlockId(1), &bytes).unwrap();
        }
    }

    #[test]
    fn odd_block_sizes_are_refused() {
        for block_size in [0, 1, 8, 17, 40] {
            let options = KvOptions { block_size, total_blocks: 1 };
            let error = KvStore::new(1, 1, 32, options).map(|_| ()).unwrap_err();
            assert!(error.to_string().contains("multiple of 16"), "{error}");
        }
        let options = KvOptions { block_size: 16, total_blocks: usize::MAX / 2 };
        assert!(KvStore::new(30, 3, 64, options).is_err());
    }
}
