//! What the manager tells the world, joined into as few events as the order allows.

use dynamo_types::{KvEvent, StorageTier, StoredBlock};

/// Events since the last drain, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Events(Vec<KvEvent>);

impl Events {
    pub(crate) fn stored(&mut self, parent: Option<u64>, block: StoredBlock) {
        if let Some(KvEvent::Stored { blocks, .. }) = self.0.last_mut()
            && blocks.last().map(|last| last.block_hash) == parent
            && parent.is_some()
        {
            blocks.push(block);
            return;
        }
        self.0.push(KvEvent::Stored { parent, blocks: vec![block], tier: StorageTier::Device });
    }

    pub(crate) fn removed(&mut self, hash: u64) {
        if let Some(KvEvent::Removed { hashes, .. }) = self.0.last_mut() {
            hashes.push(hash);
            return;
        }
        self.0.push(KvEvent::Removed { hashes: vec![hash], tier: StorageTier::Device });
    }

    /// Everything said and not drained yet is void with it.
    pub(crate) fn cleared(&mut self) {
        self.0.clear();
        self.0.push(KvEvent::Cleared);
    }

    pub(crate) fn drain(&mut self) -> Vec<KvEvent> {
        std::mem::take(&mut self.0)
    }
}
