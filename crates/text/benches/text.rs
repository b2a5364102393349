//! What text costs: per token on the way out, per prompt on the way in. Needs the default model (`make model`).

#![expect(clippy::expect_used, reason = "a bench without its model has nothing to measure")]

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use dynamo_text::{Decoder, DecoderOptions, Detokenizer, RenderInput, StopMatcher, Template, Tokenizer};
use dynamo_types::{ChatTemplate, Delta, SpecialTokens, TokenizerSpec};
use serde_json::{Map, Value, json};
use std::hint::black_box;
use std::sync::Arc;

const PROSE: &str = "The quick brown fox jumps over the lazy dog; it doesn't look back. In 2026, about 1,250 visitors \
came to the museum each day, and most of them stayed for less than an hour. \"Why,\" asked the director, \"do they \
leave so early?\" Nobody knew. Naïve café owners nearby — 한국어 메뉴 and emoji 😀 on the door — were pleased.\n\n\
fn sum(values: &[u64]) -> u64 {\n    values.iter().filter(|value| **value > 10).sum()\n}\n\n";

const TOKENS: usize = 4096;

fn tokenizer_json() -> Arc<str> {
    dynamo_model_files::open(&dynamo_model_files::testing::model_path())
        .expect("no model: run `make model`")
        .tokenizer_json()
}

fn on_the_way_out(criterion: &mut Criterion, tokenizer: &Arc<Tokenizer>, tokens: &[u32]) {
    let mut group = criterion.benchmark_group("out");
    group.throughput(Throughput::Elements(tokens.len() as u64));
    group.bench_function("detokenize", |bencher| {
        let mut text = String::new();
        bencher.iter(|| {
            let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer), true);
            text.clear();
            tokens.iter().for_each(|&token| detokenizer.push(token, &mut text));
            detokenizer.finish(&mut text);
            black_box(&text);
        });
    });
    for (name, stop) in [
        ("decode, one delta per token", vec![]),
        ("decode, one delta per token, 4 stop strings", vec!["\n\nUser:", "</answer>", "###", "STOP"]),
    ] {
        let stop: Vec<String> = stop.into_iter().map(str::to_owned).collect();
        group.bench_function(name, |bencher| {
            bencher.iter_batched(
                || {
                    tokens
                        .iter()
                        .map(|&token| Delta { tokens: vec![token], ..Delta::default() })
                        .collect::<Vec<_>>()
                },
                |deltas| {
                    let options = DecoderOptions { stop: stop.clone(), ..DecoderOptions::default() };
                    let mut decoder = Decoder::new(Arc::clone(tokenizer), options);
                    for delta in deltas {
                        black_box(decoder.push(delta));
                    }
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn stop_matcher(criterion: &mut Criterion, text: &str) {
    let mut group = criterion.benchmark_group("stop");
    group.throughput(Throughput::Bytes(text.len() as u64));
    for (name, count) in [("4 strings", 4), ("32 strings", 32)] {
        let stops: Vec<String> =
            (0..count).map(|index| format!("{}stop{index}", char::from(b'A' + index))).collect();
        let pieces: Vec<&str> = text.split_inclusive(' ').collect();
        group.bench_function(name, |bencher| {
            let mut out = String::new();
            bencher.iter(|| {
                let mut matcher = StopMatcher::new(&stops, false);
                out.clear();
                for piece in &pieces {
                    black_box(matcher.push(piece, &mut out));
                }
            });
        });
    }
    group.finish();
}

fn on_the_way_in(criterion: &mut Criterion, json: &Arc<str>, tokenizer: &Tokenizer, text: &str) {
    let mut group = criterion.benchmark_group("in");
    let mut number = 0u64;
    group.bench_function("encode 4096 tokens", |bencher| {
        let another = || {
            number += 1;
            format!("{number:08}{text}")
        };
        bencher.iter_batched_ref(
            another,
            |text| black_box(tokenizer.encode(text, false)),
            BatchSize::SmallInput,
        );
    });
    group.bench_function("encode 4096 tokens that came before", |bencher| {
        bencher.iter(|| black_box(tokenizer.encode(black_box(text), false)));
    });
    let theirs: tokenizers::Tokenizer = json.parse().expect("a tokenizer");
    group.bench_function("encode 4096 tokens, tokenizers crate", |bencher| {
        bencher.iter(|| black_box(theirs.encode_fast(black_box(text), false).map(|encoding| encoding.len())));
    });
    group.sample_size(10);
    group.bench_function("load the tokenizer", |bencher| {
        let spec = TokenizerSpec::HuggingFace { json: Arc::clone(json) };
        bencher.iter(|| black_box(Tokenizer::from_spec(&spec)));
    });
    group.bench_function("load the tokenizer, tokenizers crate", |bencher| {
        bencher.iter(|| black_box(json.parse::<tokenizers::Tokenizer>().is_ok()));
    });
    group.finish();
}

fn template(criterion: &mut Criterion) {
    let source = include_str!("../tests/data/templates/llama3.jinja");
    let template = Template::compile(&ChatTemplate { source: source.into() }, &SpecialTokens::default())
        .expect("a template that compiles");
    let messages: Vec<Value> = (0..20)
        .map(|index| json!({"role": if index % 2 == 0 { "user" } else { "assistant" }, "content": &PROSE[..200]}))
        .collect();
    criterion.bench_function("render a chat of 20 messages", |bencher| {
        bencher.iter(|| {
            black_box(template.render(&RenderInput {
                messages: &messages,
                tools: None,
                add_generation_prompt: true,
                continue_final_message: false,
                kwargs: &Map::new(),
                now_unix_s: 0,
            }))
        });
    });
}

fn all(criterion: &mut Criterion) {
    let json = tokenizer_json();
    let tokenizer = Arc::new(
        Tokenizer::from_spec(&TokenizerSpec::HuggingFace { json: Arc::clone(&json) }).expect("a tokenizer"),
    );
    let mut tokens = tokenizer.encode(&PROSE.repeat(TOKENS / 64), false).expect("tokens");
    tokens.truncate(TOKENS);
    let text = tokenizer.decode(&tokens, false);
    on_the_way_out(criterion, &tokenizer, &tokens);
    stop_matcher(criterion, &text);
    on_the_way_in(criterion, &json, &tokenizer, &text);
    template(criterion);
}

criterion_group!(benches, all);
criterion_main!(benches);
