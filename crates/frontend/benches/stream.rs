//! What the frontend costs: whole streams and single requests over a loopback socket, client and engine included, all
//! on one thread, so that wall time is CPU time.
#![expect(clippy::unwrap_used, reason = "a bench fails by panicking")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use dynamo_frontend::{Config, Frontend, Services};
use dynamo_runtime::discovery::{Discovery, Memory, Registration};
use dynamo_runtime::events::Local;
use dynamo_runtime::plane::{Handler, InProcess, ServeGuard};
use dynamo_types::{
    BlockContract, Delta, DeltaSink, FinishReason, Instance, InstanceId, ModelCard, ModelRecord, Request,
    Result, SpecialTokens, TokenizerSpec, Transport,
};
use std::hint::black_box;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

/// Answers with `max_tokens` tokens, each in a poll of its own, as a paced engine would.
struct Engine;

impl Handler for Engine {
    fn handle(&self, request: Arc<Request>, mut sink: Box<dyn DeltaSink>) -> Result<()> {
        tokio::spawn(async move {
            for index in 0..request.stopping.max_tokens {
                sink.push(Delta { tokens: vec![256 + index % 4], ..Delta::default() });
                tokio::task::yield_now().await;
                if sink.is_cancelled() {
                    return;
                }
            }
            sink.push(Delta { finish: Some(FinishReason::Length), ..Delta::default() });
        });
        Ok(())
    }
}

struct Served {
    frontend: Frontend,
    _registration: Registration,
    _guard: ServeGuard,
    _discovery: Arc<Memory>,
}

async fn serve() -> Served {
    let plane = InProcess::default();
    let discovery = Arc::new(Memory::default());
    let guard = plane.serve(InstanceId(1), Arc::new(Engine));
    let pieces = [" the", " quick", " brown", " fox"].map(|piece| piece.as_bytes().to_vec()).to_vec();
    let card = ModelCard {
        name: "m".into(),
        aliases: vec![],
        architecture: "bench".into(),
        context_length: 1_000_000,
        vocab_size: 260,
        tokenizer: TokenizerSpec::Bytes { pieces },
        chat_template: None,
        special: SpecialTokens::default(),
        blocks: BlockContract::xxh3(16),
        layout: None,
        total_kv_blocks: 1024,
        max_num_seqs: 64,
        max_num_batched_tokens: 2048,
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
        id: InstanceId(1),
        transport: Transport::InProcess,
        draining: false,
        fault: None,
    };
    let registration = discovery.register(ModelRecord { instance, card: Arc::new(card) }).await.unwrap();
    let services = Services {
        plane: Arc::new(plane),
        discovery: discovery.clone(),
        events: Arc::new(Local::new(dynamo_runtime::events::Options::default())),
        peers: None,
        router: dynamo_router::Config::default(),
        registry: dynamo_runtime::metrics::Registry::new(),
        tracer: dynamo_runtime::trace::Tracer::off(),
    };
    let frontend = Frontend::start(Config { port: 0, ..Config::default() }, services).await.unwrap();
    while frontend.models().is_empty() {
        tokio::task::yield_now().await;
    }
    Served { frontend, _registration: registration, _guard: guard, _discovery: discovery }
}

fn request(prompt: &str, max_tokens: u32, stream: bool) -> Vec<u8> {
    let body = format!(r#"{{"model":"m","prompt":"{prompt}","max_tokens":{max_tokens},"stream":{stream}}}"#);
    let head = "POST /v1/completions HTTP/1.1\r\nhost: b\r\ncontent-type: application/json\r\n";
    format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

async fn ask(socket: &mut TcpStream, request: &[u8], end: &[u8], buffer: &mut Vec<u8>) {
    socket.write_all(request).await.unwrap();
    buffer.clear();
    while !buffer.ends_with(end) {
        assert!(socket.read_buf(buffer).await.unwrap() > 0, "closed");
    }
}

fn benches(criterion: &mut Criterion) {
    let runtime: Runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let served = runtime.block_on(serve());
    let address = served.frontend.local_addr();
    let mut socket = runtime.block_on(TcpStream::connect(address)).unwrap();
    socket.set_nodelay(true).unwrap();
    let mut buffer = Vec::with_capacity(1 << 20);

    let mut group = criterion.benchmark_group("stream");
    for tokens in [128u32, 1024] {
        let bytes = request("hello", tokens, true);
        group.throughput(Throughput::Elements(u64::from(tokens)));
        group.bench_function(BenchmarkId::from_parameter(tokens), |bencher| {
            bencher.iter(|| {
                runtime.block_on(ask(&mut socket, &bytes, b"0\r\n\r\n", &mut buffer));
                black_box(buffer.len())
            });
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group("request");
    for prompt in [16usize, 4096, 64 * 1024] {
        let bytes = request(&"x".repeat(prompt), 1, false);
        group.bench_function(BenchmarkId::from_parameter(prompt), |bencher| {
            bencher.iter(|| {
                runtime.block_on(ask(&mut socket, &bytes, b"null}", &mut buffer));
                black_box(buffer.len())
            });
        });
    }
    group.finish();
    runtime.block_on(async move {
        drop(socket);
        assert!(served.frontend.drain().await);
    });
}

criterion_group!(all, benches);
criterion_main!(all);
