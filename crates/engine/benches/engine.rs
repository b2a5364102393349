//! Tokens per second of CPU time on one thread, with the default model (`DYNAMO_MODEL`, or where `make model` puts it).
//!
//! CPU time and not wall time, so that a busy machine changes little; the median of several rounds. `bench/llama_cpp.py`
//! does the same work with llama.cpp.
#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    unsafe_code,
    reason = "a bench prints its result, fails by panicking, and reads the CPU clock"
)]

use dynamo_blocks::BlockId;
use dynamo_engine::model::{Logits, Model, Segment};
use dynamo_engine::{Isa, KvOptions, Llama, Weights};
use std::sync::Arc;
use std::time::Instant;

const ROUNDS: usize = 5;
const DECODE_STEPS: usize = 32;
/// Tokens behind each decoding sequence.
const CONTEXT: usize = 128;
const BLOCK_SIZE: usize = 16;

/// CPU time of this process, in seconds.
fn cpu_s() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local that outlives the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0, "the CPU clock can be read");
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn token(i: usize) -> u32 {
    (1000 + i * 7919 % 40_000) as u32
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn blocks(sequence: usize) -> Vec<BlockId> {
    (0..64).map(|i| BlockId((sequence * 64 + i) as u32)).collect()
}

fn prefill(model: &mut Llama, count: usize) -> f64 {
    let tokens: Vec<u32> = (0..count).map(token).collect();
    let (blocks, mut logits) = (blocks(0), Vec::new());
    let start = cpu_s();
    let segment = Segment { tokens: &tokens, start: 0, blocks: &blocks, logits: Logits::Last };
    model.forward(&[segment], &mut logits).expect("a forward pass");
    count as f64 / (cpu_s() - start)
}

fn decode(model: &mut Llama, sequences: usize) -> f64 {
    let tables: Vec<Vec<BlockId>> = (0..sequences).map(blocks).collect();
    let mut logits = Vec::new();
    for (sequence, table) in tables.iter().enumerate() {
        let tokens: Vec<u32> = (0..CONTEXT).map(|i| token(i + sequence)).collect();
        let segment = Segment { tokens: &tokens, start: 0, blocks: table, logits: Logits::Last };
        model.forward(&[segment], &mut logits).expect("a forward pass");
    }
    let start = cpu_s();
    for step in 0..DECODE_STEPS {
        let position = CONTEXT + step;
        let tokens: Vec<u32> = (0..sequences).map(|sequence| token(position + sequence)).collect();
        let segments: Vec<Segment<'_>> = tables
            .iter()
            .zip(tokens.chunks(1))
            .map(|(blocks, tokens)| Segment { tokens, start: position, blocks, logits: Logits::Last })
            .collect();
        model.forward(&segments, &mut logits).expect("a forward pass");
    }
    (sequences * DECODE_STEPS) as f64 / (cpu_s() - start)
}

fn main() {
    let (start, cpu) = (Instant::now(), cpu_s());
    let files = dynamo_model_files::open(&dynamo_model_files::testing::model_path())
        .expect("the default model: run `make model`");
    let opened = cpu_s() - cpu;
    let weights = Weights::load(&files, &mut |_, _| {}).expect("weights");
    println!(
        "load: {:.2} s wall, {:.2} s CPU (header and tokenizer {opened:.2}), {} MB packed",
        start.elapsed().as_secs_f64(),
        cpu_s() - cpu,
        weights.bytes() / 1_000_000
    );
    for isa in Isa::available().into_iter().rev() {
        let rounds = if isa == Isa::detect() { ROUNDS } else { 1 };
        if isa == Isa::portable() && std::env::var_os("BENCH_PORTABLE").is_none() {
            continue;
        }
        println!("{}, one thread, tokens per CPU second:", isa.name());
        let options = KvOptions { block_size: BLOCK_SIZE, total_blocks: 8 * 64 };
        let mut model = Llama::with_isa(Arc::clone(&weights), options, 1, isa).expect("a model");
        for count in [512, 1008] {
            let speeds = (0..rounds).map(|_| prefill(&mut model, count)).collect();
            println!("  prefill {count}: {:.0}", median(speeds));
        }
        for sequences in [1, 4, 8] {
            let speeds = (0..rounds).map(|_| decode(&mut model, sequences)).collect();
            println!("  decode, batch {sequences}: {:.0}", median(speeds));
        }
    }
}
