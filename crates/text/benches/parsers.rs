//! What parsing costs a byte: one call with a long argument in 16-byte pieces, at 8 KiB and at 64 KiB (R16), and plain
//! text through both kinds of parsers.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use dynamo_text::parsers::{Events, Options, Splitter};
use dynamo_types::FinishReason;
use std::hint::black_box;

const PIECE_BYTES: usize = 16;

/// Parsers, and what stands around the long string.
const FAMILIES: [(&str, &str, &str); 6] = [
    ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"text\": \"", "\"}}</tool_call>"),
    ("qwen3_coder", "<tool_call><function=f><parameter=text>", "</parameter></function></tool_call>"),
    ("glm47", "<tool_call>f<arg_key>text</arg_key><arg_value>", "</arg_value></tool_call>"),
    ("pythonic", "[f(text=\"", "\")]"),
    ("gemma4", "<|tool_call>call:f{text:<|\"|>", "<|\"|>}<tool_call|>"),
    ("harmony", "<|channel|>commentary to=functions.f<|message|>{\"text\": \"", "\"}<|call|>"),
];

fn run(reasoning: Option<&str>, tool: &str, text: &str) {
    let Ok(mut splitter) = Splitter::new(reasoning, Some(tool), &Options::default()) else { return };
    let mut events = Events::default();
    let mut rest = text;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
        splitter.push(piece, &mut events);
        black_box(&events);
        events.clear();
        rest = after;
    }
    splitter.finish(FinishReason::Stop, &mut events);
    black_box(&events);
}

fn parsers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parsers");
    for (name, open, close) in FAMILIES {
        for kib in [8, 64] {
            let text = format!("{open}{}{close}", "some words, 12 of é; ".repeat(kib * 1024 / 22));
            group.throughput(Throughput::Bytes(text.len() as u64));
            group.bench_function(format!("{name}/{kib}KiB"), |bencher| {
                bencher.iter(|| run(None, name, &text));
            });
        }
    }
    let text = "Plain text, 1 < 2, with [some] marks. ".repeat(1000);
    group.throughput(Throughput::Bytes(text.len() as u64));
    group.bench_function("text", |bencher| bencher.iter(|| run(Some("qwen3"), "hermes", &text)));
    group.finish();
}

criterion_group!(benches, parsers);
criterion_main!(benches);
