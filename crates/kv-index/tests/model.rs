//! Random histories against a model that keeps everything in plain lists.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use dynamo_kv_index::{Applied, Index, Overlap};
use dynamo_types::{InstanceId, KvEvent, KvEventBatch, StorageTier, StoredBlock, WorkerRank};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// One block of one rank as the engine names it.
#[derive(Clone, Debug)]
struct Block {
    parent: Option<u64>,
    local: u64,
    counts: [u32; 4],
    /// Local hashes from the root to here, once known.
    path: Option<Vec<u64>>,
}

#[derive(Clone, Debug, Default)]
struct ModelRank {
    epoch: Option<u64>,
    past: Option<u64>,
    next: u64,
    blocks: BTreeMap<u64, Block>,
}

impl ModelRank {
    /// What a perfect publisher-subscriber pair would make of the batch; false if it was not applied.
    fn apply(&mut self, batch: &KvEventBatch) -> bool {
        if self.past == Some(batch.epoch) {
            return false;
        }
        if self.epoch.is_some_and(|epoch| epoch != batch.epoch) {
            *self = Self { past: self.epoch, ..Self::default() };
        }
        self.epoch = Some(batch.epoch);
        if batch.epoch == 0 && batch.sequence == 0 {
            self.blocks.clear();
            self.next = 0;
        }
        let snapshot = matches!(batch.events.first(), Some(KvEvent::Cleared));
        if batch.sequence < self.next || (batch.sequence > self.next && !snapshot) {
            return false;
        }
        self.next = batch.sequence + 1;
        batch.events.iter().for_each(|event| self.event(event));
        true
    }

    fn event(&mut self, event: &KvEvent) {
        match event {
            KvEvent::Cleared => self.blocks.clear(),
            KvEvent::Removed { hashes, tier } => {
                for hash in hashes {
                    if let Some(block) = self.blocks.get_mut(hash) {
                        block.counts[*tier as usize] = block.counts[*tier as usize].saturating_sub(1);
                    }
                    self.settle();
                }
            }
            KvEvent::Stored { parent, blocks, tier } => {
                let mut above = match parent {
                    None => Some(vec![]),
                    Some(parent) => self.blocks.get(parent).and_then(|block| block.path.clone()),
                };
                let mut parent = *parent;
                for stored in blocks {
                    let known = self.blocks.get(&stored.block_hash).cloned();
                    let path = match &above {
                        Some(above) => Some([above.as_slice(), &[stored.tokens_hash]].concat()),
                        None => known.as_ref().and_then(|known| known.path.clone()),
                    };
                    let same = known.as_ref().is_some_and(|known| match &path {
                        Some(path) => known.path.as_ref() == Some(path),
                        None => known.parent == parent && known.local == stored.tokens_hash,
                    });
                    let mut block = match known {
                        Some(known) if same => known,
                        _ => Block { parent, local: stored.tokens_hash, counts: [0; 4], path: path.clone() },
                    };
                    block.counts[*tier as usize] += 1;
                    self.blocks.insert(stored.block_hash, block);
                    self.settle();
                    above = path;
                    parent = Some(stored.block_hash);
                }
            }
        }
    }

    /// Gives waiting blocks their path, and drops those nobody holds and nobody waits for.
    fn settle(&mut self) {
        loop {
            let adopted = self.blocks.iter().find_map(|(hash, block)| {
                let above = self.blocks.get(&block.parent?)?.path.as_ref()?;
                block.path.is_none().then(|| (*hash, [above.as_slice(), &[block.local]].concat()))
            });
            let Some((hash, path)) = adopted else { break };
            self.blocks.get_mut(&hash).unwrap().path = Some(path);
        }
        loop {
            let idle = self.blocks.iter().find_map(|(hash, block)| {
                let waited_for =
                    self.blocks.values().any(|other| other.parent == Some(*hash) && other.path.is_none());
                (block.counts == [0; 4] && !(block.path.is_none() && waited_for)).then_some(*hash)
            });
            let Some(hash) = idle else { break };
            self.blocks.remove(&hash);
        }
    }

    fn overlap(&self, query: &[u64]) -> Overlap {
        let len = |tiers: &[StorageTier]| {
            let held = |end: usize| {
                self.blocks.values().any(|block| {
                    block.path.as_deref() == Some(&query[..end])
                        && tiers.iter().any(|tier| block.counts[*tier as usize] > 0)
                })
            };
            (1..=query.len()).take_while(|end| held(*end)).count() as u32
        };
        use StorageTier::{Device, Disk, HostPinned};
        Overlap {
            device: len(&[Device]),
            host: len(&[Device, HostPinned]),
            disk: len(&[Device, HostPinned, Disk]),
        }
    }
}

fn tier() -> impl Strategy<Value = StorageTier> {
    prop_oneof![
        6 => Just(StorageTier::Device),
        2 => Just(StorageTier::HostPinned),
        2 => Just(StorageTier::Disk),
        1 => Just(StorageTier::External),
    ]
}

/// Few names and few contents, so that chains meet, part, repeat and clash. `aliases`: the same content under several
/// names and one name for several contents, as engines with opaque hashes may do.
fn event(aliases: bool) -> impl Strategy<Value = KvEvent> {
    let block = (0u64..10, 0u64..3).prop_map(move |(hash, local)| StoredBlock {
        block_hash: hash + 100,
        tokens_hash: if aliases { local } else { hash % 4 },
    });
    prop_oneof![
        12 => (prop::option::weighted(0.7, 100u64..110), prop::collection::vec(block, 1..4), tier())
            .prop_map(|(parent, blocks, tier)| KvEvent::Stored { parent, blocks, tier }),
        6 => (prop::collection::vec(100u64..110, 1..3), tier())
            .prop_map(|(hashes, tier)| KvEvent::Removed { hashes, tier }),
        1 => Just(KvEvent::Cleared),
    ]
}

/// How a batch gets its number: mostly the next one, sometimes again, ahead, from the start, or in a new epoch.
fn history() -> impl Strategy<Value = Vec<(u32, u8, Vec<KvEvent>)>> {
    any::<bool>().prop_flat_map(|aliases| {
        let step = prop_oneof![20 => Just(0u8), 1 => 1u8..6];
        prop::collection::vec((0u32..3, step, prop::collection::vec(event(aliases), 1..3)), 1..40)
    })
}

fn queries() -> impl Strategy<Value = Vec<Vec<u64>>> {
    prop::collection::vec(prop::collection::vec(0u64..4, 1..5), 12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn index_equals_the_model(history in history(), queries in queries(), epochs in any::<bool>()) {
        let mut index = Index::new();
        let mut model = BTreeMap::<WorkerRank, ModelRank>::new();
        let mut clocks = [(u64::from(epochs), 0u64); 3];
        for (rank, step, events) in history {
            let (epoch, next) = &mut clocks[rank as usize];
            let sequence = match step {
                0 => *next,
                1 => next.saturating_sub(1),
                2 => *next + 2,
                3 => 0,
                4 => { *epoch += u64::from(epochs); 0 }
                _ => next.saturating_sub(3),
            };
            let source = WorkerRank::new(InstanceId(u64::from(rank / 2)), rank % 2);
            let batch = KvEventBatch { source, epoch: *epoch, sequence, events };
            let applied = index.apply(&batch);
            let taken = model.entry(source).or_default().apply(&batch);
            prop_assert_eq!(!applied.duplicate && applied.gap.is_none(), taken, "{:?}", applied);
            if taken {
                *next = sequence + 1;
            }
            for query in &queries {
                let matches = index.matches(query);
                for (source, rank) in &model {
                    prop_assert_eq!(matches.of(*source), rank.overlap(query), "{} {:?}", source, query);
                }
            }
        }
        let held: std::collections::BTreeSet<_> = model.values()
            .flat_map(|rank| rank.blocks.values())
            .filter(|block| block.counts[..3].iter().any(|count| *count > 0))
            .filter_map(|block| block.path.clone())
            .collect();
        prop_assert_eq!(index.node_count(), held.len());
        index.remove_worker(InstanceId(0));
        let left = model.get(&WorkerRank::new(InstanceId(1), 0)).cloned().unwrap_or_default();
        for query in &queries {
            prop_assert_eq!(index.matches(query).ranks.len(), usize::from(left.overlap(query).disk > 0));
        }
        index.remove_worker(InstanceId(1));
        prop_assert_eq!(index.node_count(), 0);
        prop_assert_eq!(index.memory_bytes(), Index::new().memory_bytes());
    }
}

#[test]
fn counters_say_what_became_of_each_block() {
    let mut index = Index::new();
    let source = WorkerRank::new(InstanceId(1), 0);
    let block = |hash| StoredBlock { block_hash: hash, tokens_hash: hash };
    let mut sequence = 0;
    let mut apply = |event| {
        let applied = index.apply(&KvEventBatch { source, epoch: 1, sequence, events: vec![event] });
        sequence += 1;
        applied
    };
    let device = StorageTier::Device;
    let stored = |parent, blocks: &[u64]| KvEvent::Stored {
        parent,
        blocks: blocks.iter().map(|hash| block(*hash)).collect(),
        tier: device,
    };
    assert_eq!(apply(stored(None, &[1, 2])), Applied { ok: 2, ..Applied::default() });
    assert_eq!(apply(stored(Some(9), &[10, 11])), Applied { parent_missing: 2, ..Applied::default() });
    let removed = apply(KvEvent::Removed { hashes: vec![2, 3, 11], tier: device });
    assert_eq!(removed, Applied { ok: 2, block_missing: 1, ..Applied::default() });
}
