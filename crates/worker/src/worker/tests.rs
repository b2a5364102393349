use super::*;
use crate::clock::ManualClock;
use crate::embedded::{self, EngineOptions, KvMemory};
use crate::mock::{self, Mock, Timing};
use crate::scripted::{Book, Script, Scripted, Step};
use dynamo_runtime::discovery::{Event, Memory, Watch};
use dynamo_runtime::events::{self, Local, Mirror};
use dynamo_runtime::metrics::Registry;
use dynamo_runtime::plane::{DeltaStream, RequestPlane};
use dynamo_types::{Class, Delta, FinishReason, Load, Stopping, draw};

type Built = Result<Arc<dyn Engine>, dynamo_types::Error>;

pub(super) struct Fleet {
    pub(super) services: Services,
    pub(super) memory: Arc<Memory>,
    local: Arc<Local>,
    pub(super) registry: Registry,
    pub(super) clock: ManualClock,
    /// Series that are nobody's in particular.
    common_series: usize,
}

pub(super) fn fleet() -> Fleet {
    let registry = Registry::new();
    let options = discovery::Options { relist: None, ..discovery::Options::default() };
    let memory = Arc::new(Memory::new(options));
    let local = Arc::new(Local::default());
    let services = Services {
        plane: InProcess::default(),
        discovery: Arc::clone(&memory) as Arc<dyn Discovery>,
        events: Arc::clone(&local) as Arc<dyn EventPlane>,
        metrics: Metrics::new(&registry).unwrap(),
        tracer: Tracer::off(),
    };
    let common_series = registry.series_count();
    Fleet { services, memory, local, registry, clock: ManualClock::new(), common_series }
}

impl Fleet {
    /// Series of workers.
    pub(super) fn series_count(&self) -> usize {
        self.registry.series_count() - self.common_series
    }

    async fn start<E>(&self, id: u64, build: impl FnOnce(Arc<dyn StepObserver>) -> E) -> Result<Worker, Error>
    where
        E: Engine + 'static,
    {
        let build = |observer| -> Built { Ok(Arc::new(build(observer))) };
        Worker::start(build, WorkerOptions::new(InstanceId(id), 1), &self.services).await
    }

    async fn mock(&self, id: u64, block_size: u32) -> Result<Worker, Error> {
        let (card, options) = mock::card("mock", small(block_size));
        self.start(id, |observer| Mock::new(card, options, &self.clock, observer).unwrap()).await
    }

    pub(super) async fn call(&self, worker: &Worker, request: Request) -> Result<DeltaStream> {
        self.services.plane.call(&worker.record.instance, Arc::new(request)).await
    }
}

pub(super) fn small(block_size: u32) -> mock::Options {
    mock::Options {
        block_size,
        num_gpu_blocks: 64,
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        context_length: 256,
        timing: Timing::Fixed { prefill_tokens_per_s: 10_000.0, decode_step_ms: 1.0 },
        ..mock::Options::default()
    }
}

pub(super) fn request(name: &str, tokens: Vec<u32>, max_tokens: u32) -> Request {
    Request {
        id: name.into(),
        model: "mock".into(),
        tokens: tokens.into(),
        resumed: 0,
        task: Default::default(),
        sampling: dynamo_types::Sampling { temperature: 0.0, ..Default::default() },
        stopping: Stopping { max_tokens, ..Default::default() },
        guide: None,
        thinking: None,
        output: Default::default(),
        routing: Default::default(),
        trace: None,
    }
}

/// Reads to the end.
pub(super) async fn fold(mut stream: DeltaStream) -> Result<Delta> {
    let mut all = Delta::default();
    while let Some(delta) = stream.next().await {
        all.merge(delta?);
    }
    Ok(all)
}

#[tokio::test]
async fn r28_what_is_listed_can_be_called() {
    let fleet = fleet();
    let mut watch: Watch = fleet.memory.watch().await;
    assert_eq!(watch.next().await, Some(Event::List(vec![])));
    for round in 0..50 {
        let worker = fleet.mock(round, 16).await.unwrap();
        let Some(Event::Put(record)) = watch.next().await else { panic!("not listed") };
        let request = Arc::new(request("r", vec![1, 2, 3], 2));
        let stream = fleet.services.plane.call(&record.instance, request).await.unwrap();
        fleet.clock.advance_ms(10);
        assert_eq!(fold(stream).await.unwrap().tokens.len(), 2);
        drop(worker);
        assert_eq!(watch.next().await, Some(Event::Delete(InstanceId(round))));
        let again = Arc::new(self::request("r", vec![1], 1));
        assert!(fleet.services.plane.call(&record.instance, again).await.err().unwrap().retryable());
    }
    assert_eq!((fleet.series_count(), fleet.local.source_count()), (0, 0));
}

#[tokio::test]
async fn r35_a_worker_with_other_blocks_is_refused_and_leaves_nothing() {
    let fleet = fleet();
    let first = fleet.mock(1, 16).await.unwrap();
    let series = fleet.series_count();
    let refused = fleet.mock(2, 32).await.err().unwrap().to_string();
    assert!(refused.contains("16") && refused.contains("32"), "{refused}");
    assert_eq!(fleet.memory.list().len(), 1);
    assert_eq!((fleet.series_count(), fleet.local.source_count()), (series, 1));
    assert!(fleet.call(&first, request("r", vec![1], 1)).await.is_ok());
}

#[tokio::test]
async fn r29_a_drain_finishes_what_runs_and_refuses_the_rest() {
    let fleet = fleet();
    let script = Script::new([Step::DelayMs(30_000), Step::Text("done".into())]);
    let clock = Arc::new(fleet.clock.clone());
    let build = |observer| Scripted::new(Book::new([script]), clock, observer).unwrap();
    let worker = fleet.start(1, build).await.unwrap();
    let mut streams = Vec::new();
    for _ in 0..20 {
        streams.push(fleet.call(&worker, request("r", vec![65], 9)).await.unwrap());
    }
    fleet.clock.advance_ms(5_000);
    assert_eq!(worker.drain(Duration::ZERO).await, Drained::Deadline { in_flight: 20 });
    assert!(fleet.memory.list()[0].instance.draining);
    let refused = fleet.call(&worker, request("r", vec![65], 9)).await.err().unwrap();
    assert_eq!((refused.class(), refused.retryable()), (Class::Unavailable, true));
    assert!(refused.retry_after_s().is_some());
    let clock = fleet.clock.clone();
    let (drained, ()) = tokio::join!(worker.drain(Duration::from_secs(3600)), async move {
        clock.advance_ms(25_000);
    });
    assert_eq!(drained, Drained::Finished);
    assert!(worker.engine().is_drained());
    for stream in streams {
        assert_eq!(fold(stream).await.unwrap().finish, Some(FinishReason::Stop));
    }
}

#[tokio::test]
async fn r29_what_is_left_at_the_deadline_breaks_off_retryably() {
    let fleet = fleet();
    let clock = Arc::new(fleet.clock.clone());
    let build = |observer| Scripted::new(Book::new([Script::new([Step::Stall])]), clock, observer).unwrap();
    let worker = fleet.start(1, build).await.unwrap();
    let stream = fleet.call(&worker, request("r", vec![65], 9)).await.unwrap();
    drop(worker);
    assert!(fold(stream).await.unwrap_err().retryable());
}

/// Applies what the plane has to say now.
fn hear(subscription: &mut events::Subscription, mirror: &mut Mirror) -> Option<Load> {
    let mut load = None;
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        let next = std::pin::pin!(subscription.next()).poll(&mut context);
        match next {
            std::task::Poll::Ready(Some(events::Event::Load(_, latest))) => load = Some(latest),
            std::task::Poll::Ready(Some(events::Event::Kv(batch) | events::Event::Snapshot(batch))) => {
                batch.events.iter().for_each(|event| mirror.apply(event));
            }
            _ => return load,
        }
    }
}

#[tokio::test]
async fn events_and_load_tell_what_the_engine_holds() {
    let fleet = fleet();
    let mut subscription = fleet.local.subscribe();
    let worker = fleet.mock(1, 16).await.unwrap();
    let mut mirror = Mirror::new(1000);
    for i in 0..40u32 {
        let prompt = (0..100).map(|token| token + i * 1000).collect();
        let stream = fleet.call(&worker, request("r", prompt, 3)).await.unwrap();
        fleet.clock.advance_ms(30);
        fold(stream).await.unwrap();
        if i % 3 == 1 {
            hear(&mut subscription, &mut mirror);
        }
    }
    let load = hear(&mut subscription, &mut mirror).unwrap();
    assert_eq!(load, worker.engine().load());
    assert_eq!((load.running, load.active_blocks), (0, 0));
    assert!(mirror.len() > 50, "40 prompts of 6 blocks fill a pool of 64");
    assert_eq!(mirror.len(), load.cached_blocks as usize);
    let mut late = Mirror::new(1000);
    hear(&mut fleet.local.subscribe(), &mut late);
    assert_eq!(late.len(), mirror.len());
}

#[tokio::test]
async fn metrics_have_their_names_and_values() {
    let fleet = fleet();
    let worker = fleet.mock(0xAB, 16).await.unwrap();
    for _ in 0..2 {
        let stream = fleet.call(&worker, request("r", (0..33).collect(), 2)).await.unwrap();
        fleet.clock.advance_ms(30);
        fold(stream).await.unwrap();
    }
    drop(fleet.call(&worker, request("gone", (0..40).collect(), 50)).await.unwrap());
    fleet.clock.advance_ms(100);
    fleet.call(&worker, request("long", vec![1; 300], 2)).await.err().unwrap();
    let text = fleet.registry.text().unwrap();
    let labels = "dynamo_component=\"backend\",dynamo_endpoint=\"generate\",dynamo_namespace=\"dynamo\"";
    let lines = [
        ("requests_total", "", "4"),
        ("inflight_requests", "", "0"),
        ("request_duration_seconds_count", "", "4"),
        ("cancellation_total", "", "1"),
        ("errors_total", "error_type=\"validation\",", "1"),
        ("total_blocks", "", "64"),
        ("gpu_cache_usage_percent", "", "0"),
        ("model_load_time_seconds", "", "0"),
    ];
    for (name, extra, value) in lines {
        let start =
            format!("dynamo_component_{name}{{{labels},{extra}model=\"mock\",worker_id=\"ab\"}} {value}");
        assert!(text.lines().any(|line| line == start), "{start}\nnot in\n{text}");
    }
    let value = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(&format!("dynamo_component_{name}{{"))).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(value("kv_cache_hit_rate"), 32.0 / 66.0);
    assert!(value("uptime_seconds") > 0.0);
}

/// Starts, reads, leaves and drains in a random order; afterwards every count is where it began.
#[tokio::test]
async fn r22_a_storm_leaves_the_ledger_balanced() {
    for seed in 0..20u64 {
        let fleet = fleet();
        let workers = [fleet.mock(1, 16).await.unwrap(), fleet.mock(2, 16).await.unwrap()];
        let mut streams: Vec<DeltaStream> = Vec::new();
        for turn in 0..150u64 {
            let pick = |salt: u64, len: usize| draw::index(seed, turn * 8 + salt, len);
            let worker = &workers[pick(1, 2)];
            match pick(0, 5) {
                0 | 1 => {
                    let salt = pick(2, 4) as u32 * 500;
                    let prompt = (0..1 + pick(3, 120) as u32).map(|token| token + salt).collect();
                    let request = request("r", prompt, 1 + pick(4, 60) as u32);
                    streams.extend(fleet.call(worker, request).await);
                }
                2 if !streams.is_empty() => drop(streams.swap_remove(pick(5, streams.len()))),
                _ => fleet.clock.advance_ms(pick(6, 12) as u64),
            }
        }
        let half = streams.len() / 2;
        streams.truncate(half);
        fleet.clock.advance_ms(60_000);
        for stream in streams {
            assert!(fold(stream).await.unwrap().finish.is_some());
        }
        for worker in &workers {
            let load = worker.engine().load();
            assert_eq!((load.running, load.waiting, load.active_blocks, load.prefill_tokens), (0, 0, 0, 0));
            assert_eq!((worker.in_flight(), fleet.services.plane.in_flight(worker.id())), (0, 0));
        }
        let text = fleet.registry.text().unwrap();
        let busy = text.lines().filter(|line| line.starts_with("dynamo_component_inflight_requests{"));
        assert!(busy.clone().all(|line| line.ends_with(" 0")) && busy.count() == 2, "{text}");
        drop(workers);
        assert_eq!((fleet.series_count(), fleet.local.source_count()), (0, 0));
        assert!(fleet.memory.list().is_empty());
    }
}

#[tokio::test]
async fn a_mock_on_the_wall_clock_answers_and_stops() {
    let fleet = fleet();
    let (card, options) = mock::card("mock", mock::Options { speedup_ratio: 0.0, ..small(16) });
    let clock = crate::RealClock::new();
    let worker =
        fleet.start(1, |observer| Mock::new(card, options, &clock, observer).unwrap()).await.unwrap();
    let mut streams = Vec::new();
    for i in 0..20 {
        streams.push(fleet.call(&worker, request("r", vec![i; 30], 50)).await.unwrap());
    }
    let stuck = fleet.call(&worker, request("left", vec![1], 200)).await.unwrap();
    drop(stuck);
    for stream in streams {
        assert_eq!(fold(stream).await.unwrap().tokens.len(), 50);
    }
    assert_eq!(worker.drain(Duration::from_secs(60)).await, Drained::Finished);
    assert!(worker.engine().is_drained());
}

/// Two engines over the same weights, with threads of their own: same answers, and nothing left behind.
#[tokio::test]
async fn embedded_workers_share_weights_and_balance_their_ledger() {
    let fleet = fleet();
    let loaded = embedded::fixture::tiny();
    let options = EngineOptions {
        kv: KvMemory::Bytes(loaded.kv_block_bytes(16) * 40),
        max_num_seqs: 4,
        ..EngineOptions::default()
    };
    let mut workers = Vec::new();
    for id in [1, 2] {
        workers.push(fleet.start(id, |observer| loaded.engine(&options, observer).unwrap()).await.unwrap());
    }
    let card = workers[0].card();
    assert_eq!((card.total_kv_blocks, card.context_length), (40, 512));
    assert_eq!(card.layout.as_ref().unwrap().block_bytes, loaded.kv_block_bytes(16));
    let mut answers = Vec::new();
    for worker in &workers {
        let stream = fleet.call(worker, request("r", (0..50).collect(), 12)).await.unwrap();
        answers.push(fold(stream).await.unwrap().tokens);
    }
    assert_eq!((answers[0].len(), &answers[0]), (12, &answers[1]));

    let mut streams = Vec::new();
    for i in 0..60u32 {
        let prompt = (0..20 + i % 30).map(|token| (token + i % 5) % 300).collect();
        let worker = &workers[i as usize % 2];
        streams.push(fleet.call(worker, request("r", prompt, 5 + i % 40)).await.unwrap());
        if i % 3 == 0 {
            drop(streams.swap_remove(draw::index(1, i.into(), streams.len())));
        }
    }
    for stream in streams {
        assert!(fold(stream).await.unwrap().finish.is_some());
    }
    for worker in &workers {
        assert_eq!(worker.drain(Duration::from_secs(60)).await, Drained::Finished);
        while !worker.engine().is_drained() {
            tokio::task::yield_now().await;
        }
        let load = worker.engine().load();
        assert_eq!((load.running, load.waiting, load.active_blocks), (0, 0, 0));
    }
    drop(workers);
    assert_eq!((fleet.series_count(), fleet.local.source_count()), (0, 0));
}
