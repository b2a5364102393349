//! The rules of users.md for the index, the reference's recorded behaviour, and the limits.

use dynamo_kv_index::{Gap, Index, Limits, Overlap};
use dynamo_types::hash::{Scope, local_hashes};
use dynamo_types::{InstanceId, KvEvent, KvEventBatch, StorageTier, StoredBlock, WorkerRank};

const W1: WorkerRank = WorkerRank::new(InstanceId(1), 0);

fn batch(source: WorkerRank, epoch: u64, sequence: u64, events: Vec<KvEvent>) -> KvEventBatch {
    KvEventBatch { source, epoch, sequence, events }
}

/// A chain of blocks whose engine hashes equal their local hashes.
fn stored(parent: Option<u64>, hashes: &[u64]) -> KvEvent {
    let blocks = hashes.iter().map(|hash| StoredBlock { block_hash: *hash, tokens_hash: *hash }).collect();
    KvEvent::Stored { parent, blocks, tier: StorageTier::Device }
}

fn removed(hashes: &[u64]) -> KvEvent {
    KvEvent::Removed { hashes: hashes.to_vec(), tier: StorageTier::Device }
}

fn device(index: &Index, source: WorkerRank, query: &[u64]) -> u32 {
    index.matches(query).of(source).device
}

/// Behaviour of the reference's indexer, recorded at block size 4 with instance 7 (behaviour.md 13.5).
struct Golden {
    index: Index,
    sequence: u64,
}

impl Golden {
    fn new() -> Self {
        Self { index: Index::new(), sequence: 0 }
    }

    fn stored(
        &mut self,
        hashes: &[u64],
        parent: Option<u64>,
        tokens: std::ops::Range<u32>,
        tier: StorageTier,
    ) {
        self.stored_in(0, hashes, parent, tokens, tier, Scope::default());
    }

    fn stored_in(
        &mut self,
        rank: u32,
        hashes: &[u64],
        parent: Option<u64>,
        tokens: std::ops::Range<u32>,
        tier: StorageTier,
        scope: Scope<'_>,
    ) {
        let locals = local_hashes(&tokens.collect::<Vec<_>>(), 4, &scope);
        let blocks = hashes.iter().zip(locals);
        let blocks =
            blocks.map(|(hash, local)| StoredBlock { block_hash: *hash, tokens_hash: local }).collect();
        self.event(rank, KvEvent::Stored { parent, blocks, tier });
    }

    fn event(&mut self, rank: u32, event: KvEvent) {
        let source = WorkerRank::new(InstanceId(7), rank);
        let applied = self.index.apply_past_gap(&batch(source, 0, self.sequence, vec![event]));
        assert!(!applied.duplicate);
        self.sequence += 1;
    }

    /// (gpu, cpu, disk) in tokens, as the reference's query answers.
    fn query(&self, rank: u32, tokens: impl IntoIterator<Item = u32>, scope: Scope<'_>) -> (u32, u32, u32) {
        let locals = local_hashes(&tokens.into_iter().collect::<Vec<_>>(), 4, &scope);
        let Overlap { device, host, disk } =
            self.index.matches(&locals).of(WorkerRank::new(InstanceId(7), rank));
        (device * 4, host * 4, disk * 4)
    }
}

#[test]
fn golden_indexer_behaviour() {
    use StorageTier::{Device, Disk, HostPinned};
    let plain = Scope::default();
    let mut golden = Golden::new();
    golden.stored(&[101, 102], None, 1..9, Device);
    assert_eq!(golden.query(0, 1..13, plain), (8, 8, 8));
    golden.stored(&[103], Some(102), 9..13, Device);
    assert_eq!(golden.query(0, 1..13, plain), (12, 12, 12));
    assert_eq!(golden.query(0, 1..7, plain), (4, 4, 4));
    assert_eq!(golden.query(0, [1, 2, 3, 4, 9, 9, 9, 9], plain), (4, 4, 4));
    golden.stored(&[900], Some(999), 20..24, Device);
    assert_eq!(golden.query(0, 20..24, plain), (0, 0, 0));
    golden.stored(&[201], None, 30..34, HostPinned);
    assert_eq!(golden.query(0, 30..34, plain), (0, 4, 4));
    golden.stored(&[301], None, 40..44, Disk);
    assert_eq!(golden.query(0, 40..44, plain), (0, 0, 4));
    let lora = Scope { lora: Some("lo"), salt: None };
    golden.stored_in(0, &[401], None, 50..54, Device, lora);
    assert_eq!(golden.query(0, 50..54, plain), (0, 0, 0));
    assert_eq!(golden.query(0, 50..54, lora), (4, 4, 4));
    golden.event(0, removed(&[102]));
    assert_eq!(golden.query(0, 1..13, plain), (4, 4, 4));
    golden.event(0, removed(&[101]));
    assert_eq!(golden.query(0, 1..13, plain), (0, 0, 0));
}

#[test]
fn golden_sequences_and_ranks() {
    let plain = Scope::default();
    let mut golden = Golden::new();
    golden.event(0, KvEvent::Cleared);
    golden.sequence = 50;
    golden.stored(&[1], None, 0..4, StorageTier::Device);
    assert_eq!(golden.query(0, 0..4, plain).0, 4, "a gap that nobody can fill is accepted");
    let late = golden.index.apply(&batch(WorkerRank::new(InstanceId(7), 0), 0, 2, vec![KvEvent::Cleared]));
    assert!(late.duplicate);
    assert_eq!(golden.query(0, 0..4, plain).0, 4);
    golden.stored_in(3, &[1], None, 0..4, StorageTier::Device, plain);
    assert_eq!(golden.query(3, 0..4, plain).0, 4);
    golden.event(0, KvEvent::Cleared);
    assert_eq!((golden.query(0, 0..4, plain).0, golden.query(3, 0..4, plain).0), (0, 4));
}

#[test]
fn a_hole_hides_what_is_behind_it_until_it_is_closed() {
    let mut index = Index::new();
    index.apply(&batch(W1, 1, 0, vec![stored(None, &[1, 2, 3, 4])]));
    index.apply(&batch(W1, 1, 1, vec![removed(&[2])]));
    assert_eq!(device(&index, W1, &[1, 2, 3, 4]), 1);
    index.apply(&batch(W1, 1, 2, vec![stored(Some(1), &[2])]));
    assert_eq!(device(&index, W1, &[1, 2, 3, 4]), 4);
}

#[test]
fn blocks_announced_twice_are_removed_twice() {
    let mut index = Index::new();
    index.apply(&batch(W1, 1, 0, vec![stored(None, &[1, 2]), stored(Some(1), &[2])]));
    index.apply(&batch(W1, 1, 1, vec![removed(&[2])]));
    assert_eq!(device(&index, W1, &[1, 2]), 2);
    index.apply(&batch(W1, 1, 2, vec![removed(&[2])]));
    assert_eq!(device(&index, W1, &[1, 2]), 1);
}

#[test]
fn r32_gaps_and_late_starts_are_recovered_once_each() {
    let source: Vec<KvEventBatch> = (0..10u64)
        .map(|sequence| {
            let event = match sequence {
                7 => removed(&[1]),
                _ => stored(sequence.checked_sub(1).map(|parent| parent % 8), &[sequence % 8]),
            };
            batch(W1, 1, sequence, vec![event])
        })
        .collect();
    let mut index = Index::new();
    let mut recoveries = 0;
    for live in [5, 6, 9] {
        if let Some(Gap { expected, found }) = index.apply(&source[live]).gap {
            recoveries += 1;
            for missed in expected..=found {
                assert_eq!(index.apply(&source[missed as usize]).gap, None);
            }
        }
    }
    assert_eq!(recoveries, 2);
    let mut whole = Index::new();
    source.iter().for_each(|batch| assert_eq!(whole.apply(batch).gap, None));
    for query in [&[0, 1, 2, 3, 4, 5, 6][..], &[0], &[1, 2], &[0, 1]] {
        assert_eq!(index.matches(query), whole.matches(query));
    }
    assert_eq!(index.node_count(), whole.node_count());
}

#[test]
fn r32_a_snapshot_stands_for_all_before_it() {
    let mut index = Index::new();
    index.apply(&batch(W1, 1, 0, vec![stored(None, &[1])]));
    assert_eq!(
        index.apply(&batch(W1, 1, 4, vec![stored(None, &[4])])).gap,
        Some(Gap { expected: 1, found: 4 })
    );
    assert_eq!(device(&index, W1, &[4]), 0, "a batch behind a gap is not applied");
    let snapshot = index.apply(&batch(W1, 1, 6, vec![KvEvent::Cleared, stored(None, &[5, 6])]));
    assert_eq!((snapshot.gap, snapshot.ok), (None, 2));
    assert!(index.apply(&batch(W1, 1, 5, vec![stored(None, &[9])])).duplicate);
    assert_eq!(index.apply(&batch(W1, 1, 7, vec![stored(Some(6), &[7])])).ok, 1);
    assert_eq!((device(&index, W1, &[1]), device(&index, W1, &[5, 6, 7])), (0, 3));
}

#[test]
fn r33_publisher_restart_voids_what_it_said() {
    // A publisher without epochs, whose numbering starts again; and one whose epoch says so.
    for (old_epoch, new_epoch) in [(0, 0), (3, 4), (9, 2)] {
        let mut index = Index::new();
        for sequence in 0..=50 {
            index.apply(&batch(W1, old_epoch, sequence, vec![stored(None, &[sequence])]));
        }
        let again = index.apply(&batch(W1, old_epoch, 50, vec![stored(None, &[777])]));
        assert!(again.duplicate && device(&index, W1, &[777]) == 0);
        let restart = index.apply(&batch(W1, new_epoch, 0, vec![stored(None, &[99])]));
        assert!(restart.restarted);
        assert_eq!((index.node_count(), device(&index, W1, &[99])), (1, 1));
        if old_epoch != new_epoch {
            assert!(index.apply(&batch(W1, old_epoch, 51, vec![stored(None, &[5])])).duplicate);
            assert_eq!(index.node_count(), 1);
        }
    }
}

#[test]
fn r33_a_new_life_seen_late_is_void_and_a_gap() {
    let mut index = Index::new();
    index.apply(&batch(W1, 1, 0, vec![stored(None, &[1])]));
    let late = index.apply(&batch(W1, 2, 3, vec![stored(None, &[2])]));
    assert_eq!((late.restarted, late.gap), (true, Some(Gap { expected: 0, found: 3 })));
    assert_eq!(index.node_count(), 0);
}

#[test]
fn r34_memory_follows_live_blocks() {
    const STORES: u64 = 1_000_000;
    const LIVE: u64 = 1000;
    let mut index = Index::new();
    let prefix = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut peak_bytes = 0;
    for n in 0..STORES {
        let mut events = vec![stored(None, &[prefix(n)])];
        if let Some(old) = n.checked_sub(LIVE) {
            events.push(removed(&[prefix(old)]));
        }
        let source = WorkerRank::new(InstanceId(1), 0);
        index.apply(&batch(source, 1, n, events));
        assert!(index.node_count() as u64 <= LIVE.min(n + 1));
        if n % 1000 == 0 {
            peak_bytes = peak_bytes.max(index.memory_bytes());
        }
    }
    assert!(peak_bytes < 200 * LIVE as usize + 20_000, "{peak_bytes} bytes for {LIVE} blocks");
    index.remove_worker(InstanceId(1));
    assert_eq!((index.node_count(), index.memory_bytes()), (0, Index::new().memory_bytes()));
}

#[test]
fn r34_at_most_100_bytes_per_block_and_worker() {
    // Distinct chains, chains shared by four workers, and chains shared by all 64.
    for sharers in [1u64, 4, 64] {
        let chains = 64 * 128 / sharers.min(16);
        let mut index = Index::new();
        let mut sequences = [0; 64];
        for chain in 0..chains {
            let hashes: Vec<u64> =
                (0..32).map(|block| (chain * 32 + block + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93)).collect();
            for sharer in 0..sharers {
                let worker = (chain + sharer * (64 / sharers)) % 64;
                let source = WorkerRank::new(InstanceId(worker), 0);
                let sequence = &mut sequences[worker as usize];
                index.apply(&batch(source, 1, *sequence, vec![stored(None, &hashes)]));
                *sequence += 1;
            }
        }
        let pairs = chains * 32 * sharers;
        let bytes = index.memory_bytes() as f64 / pairs as f64;
        assert!(bytes <= 100.0, "{bytes} bytes per (block, worker) with {sharers} sharers");
    }
}

#[test]
fn what_publishers_can_make_us_hold_is_bounded() {
    let limits = Limits { ranks: 2, blocks_per_rank: 20, orphans_per_rank: 5 };
    let mut index = Index::with_limits(limits);
    let many: Vec<u64> = (1..=25).collect();
    let applied = index.apply(&batch(W1, 1, 0, vec![stored(None, &many)]));
    assert_eq!((applied.ok, applied.over_limit, index.node_count()), (20, 5, 20));
    assert_eq!(device(&index, W1, &many), 20);

    let w2 = WorkerRank::new(InstanceId(2), 0);
    let orphans: Vec<KvEvent> = (0..8).map(|n| stored(Some(1000 + n), &[2000 + n])).collect();
    assert_eq!(index.apply(&batch(w2, 1, 0, orphans)).parent_missing, 8);
    let parents: Vec<KvEvent> = (0..8).map(|n| stored(None, &[1000 + n])).collect();
    index.apply(&batch(w2, 1, 1, parents));
    let found: Vec<u32> = (0..8).map(|n| device(&index, w2, &[1000 + n, 2000 + n])).collect();
    assert_eq!(found, [1, 1, 1, 2, 2, 2, 2, 2], "the oldest three were forgotten");

    let third = index.apply(&batch(WorkerRank::new(InstanceId(3), 0), 1, 0, vec![stored(None, &[1])]));
    assert!(third.unknown_source);
    index.remove_worker(InstanceId(1));
    assert!(
        !index
            .apply(&batch(WorkerRank::new(InstanceId(3), 0), 1, 0, vec![stored(None, &[1])]))
            .unknown_source
    );
}

#[test]
fn more_ranks_than_one_word_of_a_bitset() {
    let mut index = Index::new();
    let source = |n: u64| WorkerRank::new(InstanceId(n / 4), (n % 4) as u32);
    for n in 0..300u64 {
        let len = n % 5 + 1;
        index.apply(&batch(source(n), 1, 0, vec![stored(None, &(1..=len).collect::<Vec<_>>())]));
    }
    let matches = index.matches(&[1, 2, 3, 4, 5, 6]);
    assert_eq!(matches.ranks.len(), 300);
    (0..300).for_each(|n| assert_eq!(u64::from(matches.of(source(n)).device), n % 5 + 1));
}
