//! Events applied per second and prefix lookups per second: 64 workers, chains of 128 blocks, half of each chain
//! shared by groups of workers.

use dynamo_kv_index::{Index, Lengths};
use dynamo_types::hash::sequence_hashes;
use dynamo_types::{InstanceId, KvEvent, KvEventBatch, StorageTier, StoredBlock, WorkerRank, draw};
use std::hint::black_box;

const WORKERS: u64 = 64;
const CHAIN: u64 = 128;
/// Chains come in families that share their first half.
const FAMILY: u64 = 8;

fn locals(chain: u64) -> Vec<u64> {
    let half = CHAIN / 2;
    (0..CHAIN).map(|at| draw::bits(if at < half { chain / FAMILY } else { chain + (1 << 40) }, at)).collect()
}

/// One batch per chain; chain `n` goes to worker `n % 64`.
fn history(blocks: u64) -> Vec<KvEventBatch> {
    (0..blocks / CHAIN)
        .map(|chain| {
            let locals = locals(chain);
            let blocks = sequence_hashes(&locals).into_iter().zip(locals);
            let blocks =
                blocks.map(|(block_hash, tokens_hash)| StoredBlock { block_hash, tokens_hash }).collect();
            KvEventBatch {
                source: WorkerRank::new(InstanceId(chain % WORKERS), 0),
                epoch: 1,
                sequence: chain / WORKERS,
                events: vec![KvEvent::Stored { parent: None, blocks, tier: StorageTier::Device }],
            }
        })
        .collect()
}

fn removals(stores: &[KvEventBatch]) -> Vec<KvEventBatch> {
    let removal = |batch: &KvEventBatch| {
        let events = batch.events.iter().filter_map(|event| match event {
            KvEvent::Stored { blocks, tier, .. } => Some(KvEvent::Removed {
                hashes: blocks.iter().rev().map(|b| b.block_hash).collect(),
                tier: *tier,
            }),
            _ => None,
        });
        KvEventBatch { events: events.collect(), ..*batch }
    };
    // Every worker's second half of the numbering starts where its first ended.
    let mut next = [0u64; WORKERS as usize];
    stores.iter().for_each(|batch| next[batch.source.worker.0 as usize] = batch.sequence + 1);
    let mut removals: Vec<_> = stores.iter().map(removal).collect();
    for batch in &mut removals {
        let next = &mut next[batch.source.worker.0 as usize];
        batch.sequence = *next;
        *next += 1;
    }
    removals
}


fn cpu_ns() -> u64 {
    std::thread::yield_now();
    let t = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    t.split(' ').next().unwrap().parse().unwrap()
}

fn main() {
    for blocks in [100_000u64, 1_000_000] {
        let stores = history(blocks);
        let removals = removals(&stores);
        let n = stores.len() as u64 * CHAIN;
        let reps = 3_000_000 / blocks;
        let (mut s, mut r) = (0, 0);
        for _ in 0..reps {
            let mut index = Index::new();
            let t = cpu_ns();
            for b in &stores { index.apply(b); }
            s += cpu_ns() - t;
            let t = cpu_ns();
            for b in &removals { index.apply(b); }
            r += cpu_ns() - t;
        }
        println!("{blocks}: store {} ns/block, remove {} ns/block", s / reps / n, r / reps / n);
        let mut index = Index::new();
        for b in &stores { index.apply(b); }
        let queries: Vec<Vec<u64>> = (0..blocks / CHAIN).map(locals).collect();
        let sequences: Vec<Vec<u64>> = queries.iter().map(|locals| sequence_hashes(locals)).collect();
        let mut at = 0;
        let t = cpu_ns();
        for _ in 0..100_000 { at = (at + 7919) % queries.len(); black_box(index.matches(&queries[at])); }
        println!("  matches {} ns", (cpu_ns() - t) / 100_000);
        let mut lengths = Lengths::default();
        let t = cpu_ns();
        for _ in 0..100_000 { at = (at + 7919) % queries.len(); index.lookup(&sequences[at], &mut lengths); }
        println!("  lookup {} ns", (cpu_ns() - t) / 100_000);
    }
}
