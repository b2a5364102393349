//! Events applied per second and prefix lookups per second: 64 workers, chains of 128 blocks, half of each chain
//! shared by groups of workers.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
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

fn apply(criterion: &mut Criterion) {
    for (name, blocks) in [("100k", 100_000), ("1M", 1_000_000)] {
        let stores = history(blocks);
        let removals = removals(&stores);
        let mut group = criterion.benchmark_group(format!("apply/{name}"));
        group.sample_size(10).throughput(Throughput::Elements(stores.len() as u64 * CHAIN));
        group.bench_function("stored blocks", |bencher| {
            let fill = |mut index: Index| {
                for batch in &stores {
                    index.apply(black_box(batch));
                }
                index
            };
            bencher.iter_batched(Index::new, fill, BatchSize::LargeInput);
        });
        group.bench_function("removed blocks", |bencher| {
            let full = || {
                let mut index = Index::new();
                stores.iter().for_each(|batch| {
                    index.apply(batch);
                });
                index
            };
            let empty = |mut index: Index| {
                for batch in &removals {
                    index.apply(black_box(batch));
                }
                assert_eq!(index.node_count(), 0);
                index
            };
            bencher.iter_batched(full, empty, BatchSize::LargeInput);
        });
    }
}

fn matches(criterion: &mut Criterion) {
    for (name, blocks) in [("100k", 100_000), ("1M", 1_000_000)] {
        let stores = history(blocks);
        let mut index = Index::new();
        stores.iter().for_each(|batch| {
            index.apply(batch);
        });
        let queries: Vec<Vec<u64>> = (0..blocks / CHAIN).map(locals).collect();
        let sequences: Vec<Vec<u64>> = queries.iter().map(|locals| sequence_hashes(locals)).collect();
        let mut group = criterion.benchmark_group(format!("matches/{name}"));
        group.throughput(Throughput::Elements(1));
        let mut at = 0;
        group.bench_function("local hashes, allocating", |bencher| {
            bencher.iter(|| {
                at = (at + 7919) % queries.len();
                black_box(index.matches(&queries[at]))
            });
        });
        let mut lengths = Lengths::default();
        group.bench_function("sequence hashes, reused buffer", |bencher| {
            bencher.iter(|| {
                at = (at + 7919) % sequences.len();
                index.lookup(&sequences[at], &mut lengths);
            });
        });
        let pairs = (blocks / CHAIN * CHAIN) as f64;
        let bytes = index.memory_bytes() as f64 / pairs;
        report_memory(name, bytes, index.node_count());
    }
}

/// Memory is no timing, so it goes beside criterion's report.
fn report_memory(name: &str, bytes: f64, nodes: usize) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "memory/{name}: {bytes:.1} bytes per (block, worker), {nodes} nodes");
}

criterion_group!(benches, apply, matches);
criterion_main!(benches);
