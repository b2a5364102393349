//! A router with mock workers.

use dynamo_router::{Booking, Config, Mode, Query, Router};
use dynamo_types::{
    BlockContract, Instance, InstanceId, KvEvent, KvEventBatch, ModelCard, ModelRecord, SpecialTokens,
    StorageTier, StoredBlock, TokenizerSpec, Transport, WorkerRank, hash,
};
use std::sync::Arc;

pub(crate) fn record(worker: u64, block_size: u32) -> ModelRecord {
    let card = ModelCard {
        name: "m".into(),
        aliases: vec![],
        architecture: "mock".into(),
        context_length: 65_536,
        vocab_size: 1000,
        tokenizer: TokenizerSpec::Bytes { pieces: vec![] },
        chat_template: None,
        special: SpecialTokens::default(),
        blocks: BlockContract::xxh3(block_size),
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

/// Workers `1..=workers` with one rank each.
pub(crate) fn router_with(config: Config, workers: u64, block_size: u32, seed: u64) -> Router {
    let router = Router::new(config, seed);
    (1..=workers).for_each(|worker| router.upsert_worker(&record(worker, block_size), 1).unwrap());
    router
}

pub(crate) fn router(mode: Mode, workers: u64) -> Router {
    router_with(Config { mode, ..Config::default() }, workers, 16, 42)
}

/// Prompts that share nothing.
pub(crate) fn prompt(n: u32, tokens: usize) -> Vec<u32> {
    (0..tokens as u32).map(|at| n.wrapping_mul(1_000_003).wrapping_add(at)).collect()
}

pub(crate) fn select(router: &Router, tokens: &[u32]) -> (u64, Booking) {
    let selection = router.select(&Query { tokens, ..Query::default() }).unwrap();
    (selection.target.worker.0, selection.booking)
}

/// What a worker says after it computed a prompt.
pub(crate) fn stored(worker: u64, sequence: u64, tokens: &[u32], block_size: usize) -> KvEventBatch {
    let locals = hash::local_hashes(tokens, block_size, &hash::Scope::default());
    let blocks = hash::sequence_hashes(&locals)
        .into_iter()
        .zip(locals)
        .map(|(block_hash, tokens_hash)| StoredBlock { block_hash, tokens_hash })
        .collect();
    KvEventBatch {
        source: WorkerRank::new(InstanceId(worker), 0),
        epoch: 1,
        sequence,
        events: vec![KvEvent::Stored { parent: None, blocks, tier: StorageTier::Device }],
    }
}
