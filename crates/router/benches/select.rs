//! One selection and the return of its booking: a prompt of 4096 tokens (256 blocks, hashes given), of which every
//! candidate has some part cached and active.

use criterion::{Criterion, criterion_group, criterion_main};
use dynamo_router::{Config, Mode, Query, Router};
use dynamo_types::hash::{Scope, local_hashes, sequence_hashes};
use dynamo_types::{
    BlockContract, Instance, InstanceId, KvEvent, KvEventBatch, ModelCard, ModelRecord, SpecialTokens,
    StorageTier, StoredBlock, TokenizerSpec, Transport, WorkerRank,
};
use std::hint::black_box;
use std::sync::Arc;

const BLOCK_SIZE: u32 = 16;

fn record(worker: u64) -> ModelRecord {
    let card = ModelCard {
        name: "m".into(),
        aliases: vec![],
        architecture: "mock".into(),
        context_length: 65_536,
        vocab_size: 1000,
        tokenizer: TokenizerSpec::Bytes { pieces: vec![] },
        chat_template: None,
        special: SpecialTokens::default(),
        blocks: BlockContract::xxh3(BLOCK_SIZE),
        layout: None,
        total_kv_blocks: 10_000,
        max_num_seqs: 64,
        max_num_batched_tokens: 8192,
        kv_events: true,
        guided: false,
        limits_thinking: false,
        tool_parser: None,
        reasoning_parser: None,
        tasks: vec![dynamo_types::Task::Generate],
        embedding_size: None,
        created_s: 0,
    };
    let instance = Instance {
        namespace: "dynamo".into(),
        component: "backend".into(),
        endpoint: "generate".into(),
        id: InstanceId(worker),
        transport: Transport::InProcess,
        draining: false,
        fault: None,
    };
    ModelRecord { instance, card: Arc::new(card) }
}

fn select(criterion: &mut Criterion) {
    let tokens: Vec<u32> = (0..4096).collect();
    let locals = local_hashes(&tokens, BLOCK_SIZE as usize, &Scope::default());
    let named = sequence_hashes(&locals);
    let other: Vec<u32> = (10_000..14_096).collect();
    let other_locals = local_hashes(&other, BLOCK_SIZE as usize, &Scope::default());
    let mut group = criterion.benchmark_group("select/4096 tokens");
    for mode in [Mode::Kv, Mode::LeastLoaded, Mode::RoundRobin] {
        for workers in [2u64, 64, 1000] {
            let router = Router::new(Config { mode, ..Config::default() }, 1);
            let mut running = Vec::new();
            for worker in 0..workers {
                assert!(router.upsert_worker(&record(worker), 1).is_ok());
                let cached = (worker as usize * 37) % named.len();
                let blocks = named.iter().zip(&locals).take(cached);
                let blocks = blocks
                    .map(|(&block_hash, &tokens_hash)| StoredBlock { block_hash, tokens_hash })
                    .collect();
                let source = WorkerRank::new(InstanceId(worker), 0);
                let events = vec![KvEvent::Stored { parent: None, blocks, tier: StorageTier::Device }];
                router.apply_events(&KvEventBatch { source, epoch: 1, sequence: 0, events });
                let active = (worker as usize * 91) % named.len();
                let pinned = Query {
                    tokens: &tokens[..active * BLOCK_SIZE as usize],
                    local_hashes: Some(&locals[..active]),
                    pinned: Some((InstanceId(worker), None)),
                    ..Query::default()
                };
                running.extend(router.select(&pinned));
            }
            for (name, tokens, locals) in [("shared", &tokens, &locals), ("miss", &other, &other_locals)] {
                let query = Query { tokens, local_hashes: Some(locals), ..Query::default() };
                group.bench_function(format!("{mode}/{workers} workers/{name}"), |bencher| {
                    bencher.iter(|| black_box(router.select(&query)).is_ok());
                });
            }
        }
    }
}

criterion_group!(benches, select);
criterion_main!(benches);
