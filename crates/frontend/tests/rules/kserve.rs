//! KServe's gRPC service: the same answers, limits, goodbyes and drain as over HTTP.

use crate::client::PATIENCE;
use crate::grpc::{Grpc, Infer, Said, folded, framed, response, streamed};
use crate::harness::{Behaviour, Ending, Harness, all_pieces, ask, card, config, eventually, read};
use bytes::Bytes;
use dynamo_frontend::Config;
use dynamo_protocols::kserve::SERVICE;
use dynamo_protocols::kserve::wire::Fields;
use dynamo_types::FinishReason::{Length, Stop};
use dynamo_types::{Error, draw};
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::time::timeout;

fn with_grpc() -> Config {
    Config { grpc_port: Some(0), ..config() }
}

async fn harness() -> (Harness, SocketAddr) {
    harness_of(with_grpc()).await
}

async fn harness_of(config: Config) -> (Harness, SocketAddr) {
    let harness = Harness::with(config, dynamo_router::Config::default()).await;
    let address = harness.frontend.grpc_addr().unwrap();
    (harness, address)
}

/// Cut anywhere, into pieces of up to `most` bytes.
fn cut(bytes: &[u8], seed: u64, most: usize) -> Vec<Bytes> {
    let mut pieces = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let length = 1 + draw::index(seed, pieces.len() as u64, most.min(rest.len()));
        let (piece, left) = rest.split_at(length);
        pieces.push(Bytes::copy_from_slice(piece));
        rest = left;
    }
    pieces
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unary_is_the_fold_of_the_stream_however_both_are_cut() {
    let (harness, address) = harness().await;
    let pieces: [&[u8]; 6] = [b"caf", b"\xc3", b"\xa9 <", b"", b"sto", b"p> and on"];
    let _worker = harness.script(&pieces, Ending::Finish(Length)).await;
    let mut grpc = Grpc::connect(address).await;
    for seed in 0..200 {
        let raw = seed % 2 == 0;
        let texts = if seed % 3 == 0 { vec![("stop", "<stop>")] } else { vec![] };
        let fields = if seed % 3 == 0 { json!({"stop": "<stop>"}) } else { json!({}) };
        let infer = Infer { id: "7", raw, texts, ..Infer::default() };
        let most = [1, 3, 1000][seed as usize % 3];
        let unary = grpc.call("ModelInfer", &[], cut(&framed(&infer.message()), seed, most)).await;
        assert_eq!((unary.code, unary.messages.len()), (0, 1), "{unary:?}");
        let unary = response(&unary.messages[0]);
        for streaming in [None, Some(false), Some(true)] {
            let infer = Infer { streaming, ..infer.clone() };
            let stream = grpc.call("ModelStreamInfer", &[], cut(&framed(&infer.message()), seed, most)).await;
            assert_eq!(stream.code, 0, "{stream:?}");
            if streaming != Some(true) {
                assert_eq!(stream.messages.len(), 1);
            }
            let stream = folded(&stream.messages, "7");
            assert_eq!(Said { is_final: None, ..stream }, unary, "seed {seed}");
        }
        let http = harness.post("/v1/completions", &ask("/v1/completions", false, "hello", fields)).await;
        assert_eq!((unary.text, Some(unary.finish)), read(&http, 0));
    }
    harness.balanced().await;
    let labels = ["endpoint=\"kserve\"", "status=\"success\""];
    assert_eq!(harness.metric("dynamo_frontend_requests_total", &labels).await, 800.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_reach_the_engine() {
    let (harness, address) = harness().await;
    let worker = harness.script(&[b"a"], Ending::Finish(Stop)).await;
    let infer = Infer {
        numbers: vec![("max_tokens", 5), ("seed", 11), ("top_k", 3)],
        texts: vec![("temperature", "0.5")],
        ..Infer::default()
    };
    let headers = [("x-request-id", "mine")];
    let mut grpc = Grpc::connect(address).await;
    let ended = grpc.call("ModelInfer", &headers, vec![framed(&infer.message())]).await;
    assert_eq!(ended.code, 0);
    let request = &worker.requests()[0];
    assert_eq!((request.stopping.max_tokens, request.sampling.seed, request.sampling.top_k), (5, 11, 3));
    assert_eq!(request.sampling.temperature, 0.5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_have_their_status() {
    let (harness, address) = harness_of(Config { body_limit_bytes: 10_000, ..with_grpc() }).await;
    let _worker = harness.script(&[b"a"], Ending::Finish(Stop)).await;
    // By the first letter of the prompt.
    let failing: Behaviour = Arc::new(|request| match request.tokens.first() {
        Some(111) => Err(Error::overloaded("full")),
        Some(101) => all_pieces(1, Ending::Fail(Error::engine("broken")))(request),
        _ => Err(Error::invalid("no")),
    });
    let _failing = harness.worker(2, card("failing", &[b"a"]), failing).await;
    let good = Infer::default();
    let infer = |infer: Infer<'_>| framed(&infer.message());
    let long = "x".repeat(10_001);
    let mut grpc = Grpc::connect(address).await;
    type Headers<'a> = &'a [(&'a str, &'a str)];
    let cases: Vec<(&str, Headers<'_>, Bytes, u32, &str)> = vec![
        ("ModelInfer", &[], Bytes::new(), 3, "exactly one whole message"),
        ("ModelInfer", &[], Bytes::from_static(b"\0\0\0\0\x05ab"), 3, "exactly one whole message"),
        ("ModelInfer", &[], Bytes::from_static(b"\x01\0\0\0\0"), 12, "compressed"),
        ("ModelInfer", &[], Bytes::from_static(b"\x09\0\0\0\0"), 3, "first byte"),
        ("ModelInfer", &[], framed(b"\xff\xff\xff"), 3, "not well-formed"),
        ("ModelInfer", &[], infer(Infer { prompt: &long, ..good.clone() }), 8, "10000"),
        ("ModelInfer", &[("grpc-encoding", "gzip")], infer(good.clone()), 12, "gzip"),
        ("ModelInfer", &[("grpc-timeout", "1x")], infer(good.clone()), 3, "grpc-timeout"),
        ("ModelInfer", &[], infer(Infer { model: "nobody", ..good.clone() }), 5, "nobody"),
        ("ModelInfer", &[], infer(Infer { streaming: Some(true), ..good.clone() }), 3, "ModelStreamInfer"),
        (
            "ModelInfer",
            &[],
            infer(Infer { numbers: vec![("max_tokens", 0)], ..good.clone() }),
            3,
            "max_tokens",
        ),
        ("ModelInfer", &[], infer(Infer { numbers: vec![("n", 2)], ..good.clone() }), 3, "`n`"),
        ("ModelInfer", &[], infer(Infer { model: "failing", prompt: "o", ..good.clone() }), 8, "full"),
        ("ModelInfer", &[], infer(Infer { model: "failing", prompt: "e", ..good.clone() }), 13, "broken"),
        ("ModelMetadata", &[], framed(b"\x0a\x06nobody"), 5, "nobody"),
        ("ModelMetadata", &[], framed(b"\x0a\x01m\x12\x012"), 5, "version"),
        ("ModelConfig", &[], framed(b"\x0a\x06nobody"), 5, "nobody"),
        ("RepositoryIndex", &[], framed(b""), 12, "Method not found"),
        ("ModelStreamInfer", &[], Bytes::from_static(b"\0\0\0\0\x05ab"), 3, "middle of a message"),
        ("ModelStreamInfer", &[], Bytes::from_static(b"\0\xff\0\0\0"), 8, "10000"),
        ("ModelStreamInfer", &[], Bytes::from_static(b"\x01\0\0\0\0"), 12, "compressed"),
    ];
    for (method, headers, body, code, part) in cases {
        let ended = grpc.call(method, headers, vec![body]).await;
        assert_eq!((ended.code, ended.messages.len()), (code, 0), "{method} {part}: {ended:?}");
        assert!(ended.message.contains(part), "{part}: {ended:?}");
    }
    for (headers, status) in [
        (&[("content-type", "application/json")][..], 415),
        (&[("content-type", "application/grpc+json")], 415),
    ] {
        let (send, response) = grpc.request(&format!("{SERVICE}ServerLive"), headers, vec![]).await;
        drop(send);
        assert_eq!(response.await.unwrap().status(), status);
    }
    // The connection has survived all of it.
    assert_eq!(grpc.call("ModelInfer", &[], vec![infer(good)]).await.code, 0);
    harness.balanced().await;
}

/// What is wrong with one request of a stream is told in its response; the others go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_in_a_stream_ends_one_request_only() {
    let (harness, address) = harness().await;
    let _worker = harness.script(&[b"a", b"b"], Ending::Finish(Stop)).await;
    let broken = all_pieces(2, Ending::Fail(Error::engine("broken")));
    let _broken = harness.worker(2, card("broken", &[b"a", b"b"]), broken).await;
    let mut grpc = Grpc::connect(address).await;
    let requests = [
        Infer { id: "good", streaming: Some(true), ..Infer::default() },
        Infer { id: "odd", numbers: vec![("top_p", 7)], ..Infer::default() },
        Infer { id: "gone", model: "nobody", ..Infer::default() },
        Infer { id: "broken", model: "broken", streaming: Some(true), ..Infer::default() },
        Infer { id: "unstreamed", model: "broken", ..Infer::default() },
    ];
    let mut all: Vec<u8> = requests.iter().flat_map(|request| framed(&request.message())).collect();
    all.extend_from_slice(&framed(b"\x1a\x03bad\xff\xff"));
    for seed in 0..20 {
        let ended = grpc.call("ModelStreamInfer", &[], cut(&all, seed, 40)).await;
        assert_eq!(ended.code, 0, "{ended:?}");
        let answer = |id| folded(&ended.messages, id);
        assert_eq!((answer("good").text.as_str(), answer("good").finish.as_str()), ("ab", "stop"));
        for (id, part) in [
            ("odd", "top_p"),
            ("gone", "nobody"),
            ("broken", "broken"),
            ("unstreamed", "broken"),
            ("bad", "not well-formed"),
        ] {
            assert!(answer(id).error.contains(part), "{id}: {ended:?}");
        }
    }
    // More than are answered at once.
    let many: Vec<u8> = (0..300)
        .flat_map(|id| {
            framed(&Infer { id: &id.to_string(), streaming: Some(id % 2 == 0), ..Infer::default() }.message())
        })
        .collect();
    let ended = grpc.call("ModelStreamInfer", &[], cut(&many, 1, 5000)).await;
    assert!((0..300).all(|id| folded(&ended.messages, &id.to_string()).text == "ab"));
    harness.balanced().await;
}

/// R21, R22: a call that its client resets, or whose connection goes, is cancelled at every stage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r22_goodbyes_reach_the_engine() {
    let (harness, address) = harness().await;
    let worker = harness.script(&[b"begun"], Ending::Hang).await;
    let silent: Behaviour = Arc::new(|_| Ok((vec![], Ending::Hang)));
    let mute = harness.worker(2, card("mute", &[]), silent).await;
    let mut kept = Grpc::connect(address).await;
    let mut left = 0;
    for close in [false, true] {
        for (model, engine) in [("m", &worker), ("mute", &mute)] {
            for (method, streaming) in
                [("ModelInfer", false), ("ModelStreamInfer", false), ("ModelStreamInfer", true)]
            {
                let mut other = Grpc::connect(address).await;
                let grpc = if close { &mut other } else { &mut kept };
                let infer = Infer { model, streaming: Some(streaming), ..Infer::default() };
                let message = framed(&infer.message());
                if method == "ModelInfer" {
                    let (send, response) =
                        grpc.request(&format!("{SERVICE}{method}"), &[], vec![message]).await;
                    drop(send);
                    let waiting = tokio::spawn(response);
                    eventually("the engine has it", || engine.open() == 1).await;
                    if close { drop(other) } else { waiting.abort() }
                } else {
                    let mut call = grpc.open(method, &[], vec![message]).await;
                    eventually("the engine has it", || engine.open() == 1).await;
                    if streaming && model == "m" {
                        assert_eq!(streamed(&call.next().await.unwrap()).text, "begun");
                    }
                    if close {
                        drop(other);
                    }
                    drop(call);
                }
                eventually("the engine is told", || engine.open() == 0).await;
                harness.balanced().await;
                left += 1;
            }
        }
    }
    assert_eq!(worker.cancelled() + mute.cancelled(), left);
    let labels = ["endpoint=\"kserve\"", "error_type=\"cancelled\""];
    assert_eq!(harness.metric("dynamo_frontend_requests_total", &labels).await, left as f64);
    // What was reset has not hurt the connection.
    assert_eq!(
        kept.call("ServerLive", &[], vec![framed(b"")]).await.messages,
        [Bytes::from_static(b"\x08\x01")]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadlines_of_clients_hold() {
    let (harness, address) = harness().await;
    let worker = harness.script(&[b"begun"], Ending::Hang).await;
    let mut grpc = Grpc::connect(address).await;
    for (method, streaming) in [("ModelInfer", false), ("ModelStreamInfer", true)] {
        let infer = Infer { streaming: Some(streaming), ..Infer::default() };
        let ended = grpc.call(method, &[("grpc-timeout", "100m")], vec![framed(&infer.message())]).await;
        assert_eq!(ended.code, 4, "{ended:?}");
        eventually("the engine is told", || worker.open() == 0).await;
    }
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_there_is_told() {
    let (harness, address) = harness().await;
    let mut grpc = Grpc::connect(address).await;
    let yes = [Bytes::from_static(b"\x08\x01")];
    let no = [Bytes::new()];
    assert_eq!(grpc.call("ServerReady", &[], vec![framed(b"")]).await.messages, no, "no model yet");
    let _worker = harness.script(&[b"a"], Ending::Finish(Stop)).await;
    assert_eq!(grpc.call("ServerReady", &[], vec![framed(b"")]).await.messages, yes);
    for (name, answer) in [
        (&b"\x0a\x01m"[..], &yes),
        (b"\x0a\x01n", &no),
        (b"\x0a\x01m\x12\x012", &no),
        (b"\x0a\x01m\x12\x011", &yes),
    ] {
        assert_eq!(&grpc.call("ModelReady", &[], vec![framed(name)]).await.messages, answer);
    }
    let names = |message: &[u8], field: u32| -> Vec<String> {
        let fields = Fields::of(message).map(Result::unwrap).filter(|(number, _)| *number == field);
        let name = |tensor: &[u8]| Fields::of(tensor).next().unwrap().unwrap().1.text().unwrap().to_owned();
        fields.map(|(_, value)| name(value.bytes().unwrap())).collect()
    };
    let metadata = grpc.call("ModelMetadata", &[], vec![framed(b"\x0a\x01m")]).await.messages.remove(0);
    assert_eq!(names(&metadata, 4), ["text_input", "streaming"]);
    assert_eq!(names(&metadata, 5), ["text_output", "finish_reason"]);
    let config = grpc.call("ModelConfig", &[], vec![framed(b"\x0a\x01m")]).await.messages.remove(0);
    let config = Fields::of(&config).next().unwrap().unwrap().1.bytes().unwrap().to_vec();
    assert_eq!((names(&config, 5), names(&config, 6)), (names(&metadata, 4), names(&metadata, 5)));
    assert_eq!(grpc.call("ServerMetadata", &[], vec![framed(b"")]).await.code, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_hold_for_grpc_too() {
    let path = std::env::temp_dir().join(format!("dynamo-grpc-keys-{}", std::process::id()));
    std::fs::write(&path, "sk-0123456789abcdef\n").unwrap();
    let (harness, address) = harness_of(Config { api_keys_file: Some(path.clone()), ..with_grpc() }).await;
    std::fs::remove_file(&path).unwrap();
    let _worker = harness.script(&[b"a"], Ending::Finish(Stop)).await;
    let mut grpc = Grpc::connect(address).await;
    let message = framed(&Infer::default().message());
    for method in
        ["ModelInfer", "ModelStreamInfer", "ModelReady", "ModelMetadata", "ModelConfig", "ServerMetadata"]
    {
        for headers in [&[][..], &[("authorization", "Bearer sk-0123456789abcdee")]] {
            assert_eq!(grpc.call(method, headers, vec![message.clone()]).await.code, 16, "{method}");
        }
        let with = [("authorization", "Bearer sk-0123456789abcdef")];
        assert_ne!(grpc.call(method, &with, vec![message.clone()]).await.code, 16, "{method}");
    }
    for method in ["ServerLive", "ServerReady"] {
        assert_eq!(grpc.call(method, &[], vec![framed(b"")]).await.code, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_finishes_what_runs_and_refuses_what_comes() {
    let (harness, address) = harness().await;
    let pieces = vec![&b"word "[..]; 2000];
    let worker = harness.script(&pieces, Ending::Finish(Stop)).await;
    let mut grpc = Grpc::connect(address).await;
    let infer = framed(&Infer { streaming: Some(true), id: "1", ..Infer::default() }.message());
    let running = grpc.open("ModelStreamInfer", &[], vec![infer.clone()]).await;
    // Says nothing, and would for ever.
    let idle = grpc.open("ModelStreamInfer", &[], vec![]).await;
    eventually("the engine has it", || worker.requests().len() == 1).await;
    harness.frontend.begin_drain();
    running.say(&Infer { id: "2", ..Infer::default() }.message());
    let refused = grpc.call("ModelInfer", &[], vec![infer]).await;
    assert_eq!(refused.code, 14, "{refused:?}");
    let Harness { frontend, .. } = harness;
    let read = tokio::spawn(async move { (running.end().await, idle.rest().await) });
    assert!(timeout(PATIENCE, frontend.drain()).await.unwrap());
    let (running, idle) = read.await.unwrap();
    assert_eq!(folded(&running.messages, "1").text, "word ".repeat(2000));
    assert!(folded(&running.messages, "2").error.contains("draining"));
    // It is over once all is said, whether or not the server has heard by then that its client has nothing more to ask.
    assert!(matches!(running.code, 0 | 14), "{running:?}");
    assert_eq!(idle.code, 14);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_that_takes_too_long_ends_calls_with_words() {
    let (harness, address) = harness_of(Config { drain_deadline_ms: 50, ..with_grpc() }).await;
    let worker = harness.script(&[b"begun"], Ending::Hang).await;
    let mut grpc = Grpc::connect(address).await;
    let infer = Infer { streaming: Some(true), ..Infer::default() };
    let mut stream = grpc.open("ModelStreamInfer", &[], vec![framed(&infer.message())]).await;
    assert_eq!(streamed(&stream.next().await.unwrap()).text, "begun");
    let infer = framed(&Infer::default().message());
    // The client is given back: dropping it would cut the other call off.
    let unary = tokio::spawn(async move { (grpc.call("ModelInfer", &[], vec![infer]).await, grpc) });
    eventually("both run", || worker.open() == 2).await;
    let read = tokio::spawn(stream.end());
    assert!(!harness.frontend.drain().await);
    let stream = read.await.unwrap();
    assert!(streamed(stream.messages.last().unwrap()).error.contains("shutting down"), "{stream:?}");
    assert_eq!(unary.await.unwrap().0.code, 14);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r22_a_call_that_is_not_read_is_given_up_and_others_go_on() {
    let (harness, address) = harness_of(Config { write_timeout_ms: 1000, ..with_grpc() }).await;
    let piece = vec![b'x'; 1 << 20];
    let _worker = harness.script(&vec![piece.as_slice(); 16], Ending::Finish(Stop)).await;
    let _small = harness.worker(2, card("small", &[b"a"]), all_pieces(1, Ending::Finish(Stop))).await;
    let mut grpc = Grpc::connect(address).await;
    for (method, streaming) in [("ModelInfer", false), ("ModelStreamInfer", true)] {
        let infer = Infer { streaming: Some(streaming), ..Infer::default() };
        let (send, unread) =
            grpc.request(&format!("{SERVICE}{method}"), &[], vec![framed(&infer.message())]).await;
        drop(send);
        let unread = timeout(PATIENCE, unread).await.unwrap().unwrap();
        eventually("it is given up", || harness.frontend.ledger().requests == 0).await;
        let small = Infer { model: "small", ..Infer::default() };
        assert_eq!(grpc.call("ModelInfer", &[], vec![framed(&small.message())]).await.code, 0);
        drop(unread);
    }
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_and_slow_clients_are_closed() {
    let limits = Config { header_timeout_ms: 1000, body_timeout_ms: 1000, ..with_grpc() };
    let (harness, address) = harness_of(limits).await;
    let worker = harness.script(&[b"a"], Ending::Finish(Stop)).await;
    let mut grpc = Grpc::connect(address).await;
    // Half a message, and nothing more.
    for method in ["ModelInfer", "ModelStreamInfer"] {
        let (send, response) =
            grpc.request(&format!("{SERVICE}{method}"), &[], vec![Bytes::from_static(b"\0\0")]).await;
        let response = timeout(PATIENCE, response).await.unwrap().unwrap();
        let ended = crate::grpc::ended(response).await;
        assert_eq!(ended.code, 3, "{ended:?}");
        assert!(ended.message.contains("too slowly"), "{ended:?}");
        drop(send);
    }
    assert!(worker.requests().is_empty());
    grpc.closed().await;
    // Never says anything.
    let silent = tokio::net::TcpStream::connect(address).await.unwrap();
    eventually("it is closed", || harness.frontend.ledger().connections == 0).await;
    drop(silent);
}
