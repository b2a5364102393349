//! R32, R33 and R34 over random publishers and random losses on the way.

use dynamo_kv_index::{Gap, Index};
use dynamo_types::{InstanceId, KvEvent, KvEventBatch, StorageTier, StoredBlock, WorkerRank, draw};
use std::collections::{BTreeMap, BTreeSet};

const CASES: u64 = 500;

/// The random choices of one case.
struct Draws {
    seed: u64,
    at: u64,
}

impl Draws {
    fn new(rule: u64, case: u64) -> Self {
        Self { seed: draw::bits(rule, case), at: 0 }
    }

    fn below(&mut self, len: u64) -> u64 {
        self.at += 1;
        draw::index(self.seed, self.at, len as usize) as u64
    }
}

fn stored(parent: Option<u64>, hash: u64) -> KvEvent {
    let blocks = vec![StoredBlock { block_hash: hash, tokens_hash: hash }];
    KvEvent::Stored { parent, blocks, tier: StorageTier::Device }
}

fn removed(hash: u64) -> KvEvent {
    KvEvent::Removed { hashes: vec![hash], tier: StorageTier::Device }
}

/// Chains of blocks: those of chain `c` are `100 c + 1`, `100 c + 2`, ...
fn block(chain: u64, depth: u64) -> u64 {
    100 * (chain + 1) + depth
}

/// One life of a publisher: it stores chains from their beginning and removes from their end, as engines do.
struct Life {
    source: WorkerRank,
    epoch: u64,
    batches: Vec<KvEventBatch>,
    /// Lengths of its chains now.
    chains: Vec<u64>,
}

impl Life {
    fn new(source: WorkerRank, epoch: u64) -> Self {
        Self { source, epoch, batches: Vec::new(), chains: vec![0; 4] }
    }

    fn step(&mut self, draws: &mut Draws) {
        let chain = draws.below(4);
        let length = &mut self.chains[chain as usize];
        let event = if draws.below(3) == 0 && *length > 0 {
            *length -= 1;
            removed(block(chain, *length + 1))
        } else {
            *length += 1;
            stored((*length > 1).then(|| block(chain, *length - 1)), block(chain, *length))
        };
        self.push(vec![event]);
    }

    fn push(&mut self, events: Vec<KvEvent>) {
        let sequence = self.batches.len() as u64;
        self.batches.push(KvEventBatch { source: self.source, epoch: self.epoch, sequence, events });
    }

    /// All it holds, under the number of its last batch.
    fn snapshot(&self) -> KvEventBatch {
        let mut events = vec![KvEvent::Cleared];
        for (chain, length) in (0..).zip(&self.chains) {
            events.extend(
                (1..=*length)
                    .map(|depth| stored((depth > 1).then(|| block(chain, depth - 1)), block(chain, depth))),
            );
        }
        let sequence = self.batches.len() as u64 - 1;
        KvEventBatch { source: self.source, epoch: self.epoch, sequence, events }
    }

    /// Does the index know of this rank exactly what it holds?
    fn is_in(&self, index: &Index, case: u64) {
        for (chain, length) in (0..).zip(&self.chains) {
            let query: Vec<u64> = (1..=length + 2).map(|depth| block(chain, depth)).collect();
            let found = u64::from(index.matches(&query).of(self.source).device);
            assert_eq!(found, *length, "case {case}: chain {chain} of {}", self.source);
        }
    }
}

const RANK: WorkerRank = WorkerRank::new(InstanceId(1), 0);

/// Batches are lost, come twice and come late; each gap is recovered once, by replay or by a snapshot, and then the index
/// is as if nothing had happened.
#[test]
fn r32_whatever_is_lost_on_the_way_is_recovered_once() {
    for case in 0..CASES {
        let mut draws = Draws::new(32, case);
        let mut life = Life::new(RANK, 1 + draws.below(3));
        let mut index = Index::new();
        let (mut known, mut recoveries, mut expected_recoveries) = (None::<u64>, 0, 0);
        let mut earlier = Vec::new();
        for _ in 0..60 {
            life.step(&mut draws);
            let live = life.batches[life.batches.len() - 1].clone();
            if draws.below(4) == 0 {
                continue;
            }
            let next = known.map_or(0, |known| known + 1);
            expected_recoveries += u64::from(live.sequence > next);
            let applied = index.apply(&live);
            match applied.gap {
                None => assert_eq!(live.sequence, next, "case {case}"),
                Some(Gap { expected, found }) => {
                    recoveries += 1;
                    assert_eq!((expected, found), (next, live.sequence), "case {case}");
                    if draws.below(2) == 0 {
                        for missed in expected..=found {
                            assert_eq!(index.apply(&life.batches[missed as usize]).gap, None, "case {case}");
                        }
                    } else {
                        assert_eq!(index.apply(&life.snapshot()).gap, None, "case {case}");
                    }
                }
            }
            known = Some(live.sequence);
            life.is_in(&index, case);
            // Whatever comes again changes nothing.
            earlier.push(live);
            let again = &earlier[draws.below(earlier.len() as u64) as usize];
            assert!(index.apply(again).duplicate, "case {case}");
            life.is_in(&index, case);
        }
        assert_eq!(recoveries, expected_recoveries, "case {case}: one recovery per gap");
    }
}

/// A publisher begins anew as often as it likes, and words of its former lives arrive as late as they like.
#[test]
fn r33_only_the_latest_life_of_a_publisher_counts() {
    for case in 0..CASES {
        let mut draws = Draws::new(33, case);
        let other = WorkerRank::new(InstanceId(2), 0);
        let mut bystander = Life::new(other, 7);
        let mut index = Index::new();
        (0..10).for_each(|_| bystander.step(&mut draws));
        bystander.batches.iter().for_each(|batch| assert_eq!(index.apply(batch).gap, None));
        let mut former: Vec<KvEventBatch> = Vec::new();
        let mut epoch = draws.below(5);
        for life_number in 0..5 {
            let mut life = Life::new(RANK, epoch);
            for _ in 0..1 + draws.below(15) {
                life.step(&mut draws);
                let batch = &life.batches[life.batches.len() - 1];
                let applied = index.apply(batch);
                assert_eq!(applied.restarted, life_number > 0 && batch.sequence == 0, "case {case}");
                if let Some(late) = former.get(draws.below(former.len() as u64 + 1) as usize) {
                    let applied = index.apply(late);
                    assert!(applied.duplicate && applied.ok == 0, "case {case}: a former life speaks");
                }
                life.is_in(&index, case);
            }
            bystander.is_in(&index, case);
            former.extend(life.batches);
            epoch += 1 + draws.below(3);
        }
    }
}

/// Nodes follow what is live on anybody, whatever comes and goes, and nothing is left when everybody has gone.
#[test]
fn r34_nodes_follow_live_blocks_and_end_with_them() {
    for case in 0..CASES {
        let mut draws = Draws::new(34, case);
        let mut index = Index::new();
        let ranks: Vec<WorkerRank> =
            (0..3).map(|rank| WorkerRank::new(InstanceId(rank / 2), (rank % 2) as u32)).collect();
        let mut lives: BTreeMap<WorkerRank, Life> =
            ranks.iter().map(|rank| (*rank, Life::new(*rank, 1))).collect();
        for step in 0..150 {
            let rank = ranks[draws.below(3) as usize];
            let life = lives.get_mut(&rank).unwrap();
            if draws.below(40) == 0 {
                life.chains.fill(0);
                life.push(vec![KvEvent::Cleared]);
            } else {
                life.step(&mut draws);
            }
            index.apply(&life.batches[life.batches.len() - 1]);
            let live: BTreeSet<u64> = lives
                .values()
                .flat_map(|life| {
                    (0..)
                        .zip(&life.chains)
                        .flat_map(|(chain, length)| (1..=*length).map(move |depth| block(chain, depth)))
                })
                .collect();
            assert!(
                index.node_count() <= 2 * live.len(),
                "case {case} step {step}: {} nodes for {} blocks",
                index.node_count(),
                live.len()
            );
        }
        // They leave block by block, or all at once.
        for (rank, mut life) in lives {
            if draws.below(2) == 0 {
                index.remove_worker(rank.worker);
                continue;
            }
            for chain in 0..4 {
                while life.chains[chain] > 0 {
                    let last = block(chain as u64, life.chains[chain]);
                    life.chains[chain] -= 1;
                    life.push(vec![removed(last)]);
                    index.apply(&life.batches[life.batches.len() - 1]);
                }
            }
        }
        ranks.iter().for_each(|rank| assert!(index.node_count() == 0, "case {case}: {rank} left nodes"));
    }
}
