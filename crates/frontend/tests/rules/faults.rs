//! R06, R07, R30, R31: what happens when workers fail.

use crate::harness::{Behaviour, Ending, Harness, ROUTES, all_pieces, ask, card, config, read};
use dynamo_frontend::Config;
use dynamo_types::FinishReason::Stop;
use dynamo_types::{Delta, Error, InstanceId};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Faults by their text. A worker that never began is tried elsewhere, so there is one worker here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r06_streams_always_end() {
    let endings = [
        Ending::Reset,
        Ending::Fail(Error::engine("the engine broke")),
        Ending::Fail(Error::timeout("slow")),
    ];
    for ending in endings {
        let harness = Harness::new().await;
        let _worker = harness.script(&[b"Hel", b"lo"], ending).await;
        let mut failed = 0.0;
        for (route, stream) in ROUTES {
            let reply = harness.post(route, &ask(route, stream, "x", json!({}))).await;
            failed += 1.0;
            if stream {
                assert_eq!(reply.status, 200);
                let events = reply.events();
                let error: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
                assert!(error["error"]["message"].is_string(), "{}", reply.text());
                assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
                assert!(events.iter().all(|event| !event.contains("finish_reason\":\"")), "{}", reply.text());
            } else {
                assert!(reply.status >= 500, "{}", reply.status);
                assert!(reply.error()["message"].is_string());
            }
            harness.balanced().await;
            assert_eq!(harness.metric("dynamo_frontend_requests_total", &["status=\"error\""]).await, failed);
            assert_eq!(harness.metric("dynamo_frontend_requests_total", &["status=\"success\""]).await, 0.0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r06_a_worker_that_falls_silent_ends_the_stream() {
    let harness =
        Harness::with(Config { silence_timeout_ms: 50, ..config() }, dynamo_router::Config::default()).await;
    let worker = harness.script(&[b"Hel"], Ending::Hang).await;
    for (route, stream) in ROUTES {
        let reply = harness.post(route, &ask(route, stream, "x", json!({}))).await;
        if stream {
            let events = reply.events();
            assert!(events[events.len() - 2].contains("no sign of life"), "{}", reply.text());
        } else {
            assert_eq!(reply.status, 504, "{}", reply.text());
        }
    }
    harness.balanced().await;
    crate::harness::eventually("the engine is told", || worker.open() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r07_error_text_cannot_break_framing() {
    for text in ["line1\n\ndata: fake\r\nline3", "a\rb\0c\u{2028}d", "\"}\n\n", "data: [DONE]\n\n"] {
        let harness = Harness::new().await;
        let _worker = harness.script(&[b"x"], Ending::Fail(Error::engine(text))).await;
        for (route, stream) in ROUTES {
            let reply = harness.post(route, &ask(route, stream, "x", json!({}))).await;
            let error = if stream {
                let events = reply.events();
                assert_eq!(events.iter().filter(|event| event.contains("\"error\"")).count(), 1);
                assert_eq!(events.iter().filter(|event| *event == "[DONE]").count(), 1);
                assert!(events.iter().all(|event| event != "fake"));
                let frames = reply.text();
                assert!(
                    frames.split("\n\n").all(|frame| frame.is_empty() || frame.starts_with("data: ")),
                    "{frames:?}"
                );
                serde_json::from_str::<Value>(&events[events.len() - 2]).unwrap()["error"].clone()
            } else {
                reply.error()
            };
            assert_eq!(error["message"], text);
        }
    }
}

/// Before any output a fault keeps its HTTP status, streamed or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_faults_keep_their_status() {
    for (error, status, again) in [
        (Error::invalid("no"), 400, Some("false")),
        (Error::engine("broken"), 500, None),
        (Error::overloaded("full"), 529, Some("true")),
        (Error::unavailable("none"), 503, Some("true")),
        (Error::timeout("late"), 504, Some("true")),
    ] {
        let harness = Harness::new().await;
        let refusal = error.clone();
        let refuse: Behaviour = Arc::new(move |_| Err(refusal.clone()));
        let worker = harness.worker(1, card("m", &[]), refuse).await;
        let first: Behaviour = Arc::new({
            let error = error.clone();
            move |_| Ok((vec![], Ending::Fail(error.clone())))
        });
        let other = harness.worker(2, card("late", &[]), first).await;
        for (route, stream) in ROUTES {
            for model in ["m", "late"] {
                let reply = harness.post(route, &ask(route, stream, "x", json!({"model": model}))).await;
                assert_eq!(reply.status, status, "{route} {model}: {}", reply.text());
                assert_eq!(reply.error()["message"], error.message());
                assert_eq!(reply.header("retry-after").is_some(), status == 503 || status == 529);
                assert_eq!(reply.header("x-should-retry"), again, "{status}");
            }
        }
        harness.balanced().await;
        drop((worker, other));
    }
}

/// One worker that fails in some way before any output, one that works: nobody notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r30_failed_dispatch_tries_elsewhere() {
    let failures: [(&str, Behaviour); 4] = [
        ("refuses", Arc::new(|_| Err(Error::overloaded("full")))),
        ("resets", Arc::new(|_| Ok((vec![], Ending::Reset)))),
        ("fails", Arc::new(|_| Ok((vec![], Ending::Fail(Error::timeout("late")))))),
        ("hangs", Arc::new(|_| Ok((vec![], Ending::Hang)))),
    ];
    for (how, failure) in failures {
        let settings = Config { silence_timeout_ms: 40, ..config() };
        let router = dynamo_router::Config { mode: dynamo_router::Mode::RoundRobin, ..Default::default() };
        let harness = Harness::with(settings, router).await;
        let bad = harness.worker(1, card("m", &[b"ok"]), failure).await;
        let good = harness.worker(2, card("m", &[b"ok"]), all_pieces(1, Ending::Finish(Stop))).await;
        for round in 0..10 {
            for (route, stream) in ROUTES {
                let reply = harness.post(route, &ask(route, stream, "x", json!({}))).await;
                assert_eq!(read(&reply, 0).0, "ok", "{how}, round {round}");
            }
        }
        assert_eq!(good.requests().len(), 40, "{how}");
        assert!(!bad.requests().is_empty(), "{how}: the bad worker was never tried");
        if how == "hangs" {
            assert!(bad.requests().len() <= 10, "{how}: {} requests waited for it", bad.requests().len());
        }
        assert_eq!(
            harness.metric("dynamo_frontend_model_migration_total", &[]).await,
            bad.requests().len() as f64
        );
        harness.balanced().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r30_attempts_are_bounded_and_pins_stay() {
    let harness = Harness::new().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let failing: Behaviour = Arc::new(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Err(Error::overloaded("full"))
    });
    let mut workers = Vec::new();
    for id in 1..=6 {
        workers.push(harness.worker(id, card("m", &[]), failing.clone()).await);
    }
    let reply = harness.post(ROUTES[0].0, &ask(ROUTES[0].0, false, "x", json!({}))).await;
    assert_eq!((reply.status, calls.swap(0, Ordering::Relaxed)), (529, 4));
    let pinned = ask(ROUTES[0].0, false, "x", json!({"nvext": {"backend_instance_id": 4}}));
    assert_eq!(harness.post(ROUTES[0].0, &pinned).await.status, 529);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert!(workers[3].requests().iter().any(|request| request.routing.worker == Some(InstanceId(4))));
    let nobody = ask(ROUTES[0].0, false, "x", json!({"nvext": {"backend_instance_id": 99}}));
    let reply = harness.post(ROUTES[0].0, &nobody).await;
    assert_eq!((reply.status, &reply.error()["param"]), (400, &json!("nvext.backend_instance_id")));
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r31_client_mistakes_never_open_the_breaker() {
    let harness = Harness::new().await;
    let behaviour: Behaviour = Arc::new(|request| match request.tokens[..] {
        [98] => Err(Error::invalid("the engine does not like it")),
        _ => Ok((vec![Delta { tokens: vec![256], ..Delta::default() }], Ending::Finish(Stop))),
    });
    let worker = harness.worker(1, card("m", &[b"ok"]), behaviour).await;
    for _ in 0..50 {
        let reply = harness.post("/v1/completions", &ask("/v1/completions", false, "b", json!({}))).await;
        assert_eq!(reply.status, 400);
    }
    let reply = harness.post("/v1/completions", &ask("/v1/completions", false, "good", json!({}))).await;
    assert_eq!(read(&reply, 0).0, "ok");
    assert_eq!(worker.requests().len(), 51);
    harness.balanced().await;
}

/// With another worker to go to, one that keeps failing after its first token stops being asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r31_server_faults_open_the_breaker() {
    let router = dynamo_router::Config { mode: dynamo_router::Mode::RoundRobin, ..Default::default() };
    let failures = router.breaker_failures as usize;
    let harness = Harness::with(config(), router).await;
    let bad =
        harness.worker(1, card("m", &[b"ok"]), all_pieces(1, Ending::Fail(Error::engine("broken")))).await;
    let _good = harness.worker(2, card("m", &[b"ok"]), all_pieces(1, Ending::Finish(Stop))).await;
    for _ in 0..40 {
        harness.post(ROUTES[3].0, &ask(ROUTES[3].0, true, "x", json!({}))).await;
    }
    assert_eq!(bad.requests().len(), failures);
    let health = harness.get("/health").await.json();
    let suspended: Vec<_> =
        health["instances"].as_array().unwrap().iter().map(|it| it["suspended"].as_bool()).collect();
    assert_eq!(suspended, [Some(true), Some(false)], "{health}");
    harness.balanced().await;
}
