//! What a streamed token and a request body cost, next to the obvious way of doing it.

use bytes::{BufMut, BytesMut};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use dynamo_protocols::openai::{Usage, chat, completions};
use dynamo_protocols::pieces::Stream;
use dynamo_protocols::{ChunkWriter, Extras, Finish, Options, Piece, anthropic, responses};
use dynamo_types::FinishReason;
use serde::Serialize;
use std::hint::black_box;

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'a str,
    created: u64,
    model: &'a str,
    choices: [Choice<'a>; 1],
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    delta: Delta<'a>,
    logprobs: Option<()>,
    finish_reason: Option<&'a str>,
}

#[derive(Serialize)]
struct Delta<'a> {
    content: &'a str,
}

const ID: &str = "chatcmpl-7f1b1c2e-55aa-4b0e-9c39-0f3a1b2c3d4e";
const MODEL: &str = "smollm2-135m-instruct";
/// Events per buffer, so that the buffer's own growth does not count.
const BATCH: usize = 64;

fn frames(criterion: &mut Criterion) {
    let long = "The quick brown fox jumps over the lazy dog, and 17 others watch. ".repeat(16);
    let texts = [
        ("token", " capital"),
        ("newline", ":\n\n"),
        ("hangul", "안녕"),
        ("line", "The quick brown fox jumps over the lazy dog"),
        ("1kib", &long),
    ];
    for (name, text) in texts {
        let mut group = criterion.benchmark_group(format!("frame/{name}"));
        group.throughput(Throughput::Elements(BATCH as u64));
        let writer = ChunkWriter::chat(ID, 1_700_000_000, MODEL);
        let mut out = BytesMut::with_capacity(1 << 20);
        group.bench_function("writer", |bencher| {
            bencher.iter(|| {
                out.clear();
                for _ in 0..BATCH {
                    writer.content(&mut out, 0, black_box(text), Extras::default());
                }
                black_box(out.len())
            });
        });
        let mut out = Vec::with_capacity(1 << 20);
        group.bench_function("serde_json", |bencher| {
            bencher.iter(|| {
                out.clear();
                for _ in 0..BATCH {
                    let delta = Delta { content: black_box(text) };
                    let choice = Choice { index: 0, delta, logprobs: None, finish_reason: None };
                    let chunk = Chunk {
                        id: ID,
                        object: "chat.completion.chunk",
                        created: 1_700_000_000,
                        model: MODEL,
                        choices: [choice],
                    };
                    out.put_slice(b"data: ");
                    // A Vec takes everything.
                    let _ = serde_json::to_writer(&mut out, &chunk);
                    out.put_slice(b"\n\n");
                }
                black_box(out.len())
            });
        });
        group.finish();
    }
}

/// Whole answers of [`BATCH`] pieces, beginning and end included.
fn answers(criterion: &mut Criterion) {
    let request = responses::Request::parse(br#"{"model":"m","input":"a"}"#, &Options::default());
    let Ok(settings) = request.map(|parsed| parsed.request.settings) else { return };
    let (finish, usage) = (Finish::new(FinishReason::Length), Usage::new(9, BATCH as u32, 0));
    let mut group = criterion.benchmark_group("answer/64_tokens");
    group.throughput(Throughput::Elements(BATCH as u64));
    let mut out = BytesMut::with_capacity(1 << 20);
    group.bench_function("anthropic", |bencher| {
        bencher.iter(|| {
            out.clear();
            let mut writer = anthropic::EventWriter::new("msg_1", MODEL);
            writer.start(&mut out, usage);
            for _ in 0..BATCH {
                writer.push(&mut out, Piece::Text(black_box(" capital")));
            }
            writer.finish(&mut out, &finish, usage);
            black_box(out.len())
        });
    });
    group.bench_function("responses", |bencher| {
        bencher.iter(|| {
            out.clear();
            let mut writer = responses::EventWriter::new("resp_1", 17, MODEL, settings.clone());
            for _ in 0..BATCH {
                writer.push(&mut out, Piece::Text(black_box(" capital")));
            }
            writer.finish(&mut out, &finish, usage);
            black_box(out.len())
        });
    });
    group.finish();
}

fn requests(criterion: &mut Criterion) {
    let text = "Tell me about \"rivers\",\nplease. ".repeat(512);
    let messages = serde_json::json!([
        { "role": "system", "content": "You are a helpful assistant." },
        { "role": "user", "content": text },
    ]);
    let body = serde_json::json!({ "model": MODEL, "messages": messages, "stream": true, "max_tokens": 64, "temperature": 0.7 });
    let chat_body = body.to_string();
    let tokens: Vec<u32> = (0..4096).map(|i| i * 12 % 49_152).collect();
    let token_body = serde_json::json!({ "model": MODEL, "prompt": tokens, "max_tokens": 64 }).to_string();
    let options = Options::default();

    let mut group = criterion.benchmark_group("request/chat_16kib");
    group.throughput(Throughput::Bytes(chat_body.len() as u64));
    group.bench_function("parse", |b| {
        b.iter(|| chat::Request::parse(black_box(chat_body.as_bytes()), &options));
    });
    group.bench_function("serde_value", |b| {
        b.iter(|| serde_json::from_slice::<serde_json::Value>(black_box(chat_body.as_bytes())));
    });
    group.finish();
    let mut group = criterion.benchmark_group("request/4096_token_ids");
    group.throughput(Throughput::Bytes(token_body.len() as u64));
    group.bench_function("parse", |b| {
        b.iter(|| completions::Request::parse(black_box(token_body.as_bytes()), &options));
    });
    group.bench_function("serde_value", |b| {
        b.iter(|| serde_json::from_slice::<serde_json::Value>(black_box(token_body.as_bytes())));
    });
    group.finish();
}

criterion_group!(benches, frames, answers, requests);
criterion_main!(benches);
