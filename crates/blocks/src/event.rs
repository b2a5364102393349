//! What the manager tells the world, joined into as few events as the order allows.

use dynamo_types::{KvEvent, StorageTier, StoredBlock};

/// Events since the last drain, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Events {
    events: Vec<KvEvent>,
    /// Of the stored blocks, if somebody wants them.
    tokens: Vec<u32>,
    with_tokens: bool,
}

impl Events {
    pub(crate) fn keep_tokens(&mut self) {
        self.with_tokens = true;
    }

    pub(crate) fn stored(&mut self, parent: Option<u64>, block: StoredBlock, tokens: &[u32]) {
        if self.with_tokens {
            self.tokens.extend_from_slice(tokens);
        }
        if let Some(KvEvent::Stored { blocks, .. }) = self.events.last_mut()
            && blocks.last().map(|last| last.block_hash) == parent
            && parent.is_some()
        {
            blocks.push(block);
            return;
        }
        self.events.push(KvEvent::Stored { parent, blocks: vec![block], tier: StorageTier::Device });
    }

    pub(crate) fn removed(&mut self, hash: u64) {
        if let Some(KvEvent::Removed { hashes, .. }) = self.events.last_mut() {
            hashes.push(hash);
            return;
        }
        self.events.push(KvEvent::Removed { hashes: vec![hash], tier: StorageTier::Device });
    }

    /// Everything said and not drained yet is void with it.
    pub(crate) fn cleared(&mut self) {
        self.events.clear();
        self.tokens.clear();
        self.events.push(KvEvent::Cleared);
    }

    pub(crate) fn drain(&mut self) -> Vec<KvEvent> {
        std::mem::take(&mut self.events)
    }

    pub(crate) fn drain_tokens(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.tokens)
    }
}
