//! A frontend on a loopback socket, over workers that do exactly what a test says.

use crate::client::{self, PATIENCE, Reply};
use dynamo_frontend::{Config, Frontend, SelectionConfig, Services};
use dynamo_runtime::discovery::{Discovery, Memory, Options, Registration};
use dynamo_runtime::events::Local;
use dynamo_runtime::plane::{Handler, InProcess, ServeGuard};
use dynamo_types::{
    BlockContract, ChatTemplate, Delta, DeltaSink, Error, FinishReason, Instance, InstanceId, ModelCard,
    ModelRecord, Request, Result, SpecialTokens, TokenLogprob, TokenizerSpec, Transport, draw,
};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Id of the first piece of a bytes tokenizer.
pub(crate) const FIRST_PIECE: u32 = 256;

/// How a script ends.
#[derive(Clone, Debug)]
pub(crate) enum Ending {
    Finish(FinishReason),
    /// The worker breaks off.
    Reset,
    Fail(Error),
    /// Nothing more comes, ever.
    Hang,
}

/// What a worker does with a request.
pub(crate) type Behaviour = Arc<dyn Fn(&Request) -> Result<(Vec<Delta>, Ending)> + Send + Sync>;

/// Every piece of the vocabulary in order, one token each, then the end.
pub(crate) fn all_pieces(count: usize, ending: Ending) -> Behaviour {
    Arc::new(move |request| {
        let logprobs = request.output.logprobs.is_some();
        let ids = (FIRST_PIECE..).take(count);
        let mut deltas: Vec<Delta> = ids
            .map(|token| Delta {
                tokens: vec![token],
                logprobs: if logprobs {
                    vec![TokenLogprob { token, logprob: -0.5, top: vec![(token, -0.5), (65, -1.5)] }]
                } else {
                    vec![]
                },
                ..Delta::default()
            })
            .collect();
        let cached_tokens = Some(0);
        match deltas.first_mut() {
            Some(first) => first.cached_tokens = cached_tokens,
            None => deltas.push(Delta { cached_tokens, ..Delta::default() }),
        }
        if request.output.prompt_logprobs.is_some() {
            deltas[0].prompt_logprobs = request
                .tokens
                .iter()
                .map(|&token| TokenLogprob { token, logprob: -0.25, top: vec![] })
                .collect();
        }
        Ok((deltas, ending.clone()))
    })
}

pub(crate) fn card(name: &str, pieces: &[&[u8]]) -> ModelCard {
    ModelCard {
        name: name.into(),
        aliases: vec![],
        architecture: "scripted".into(),
        context_length: 1_000_000,
        vocab_size: FIRST_PIECE + pieces.len() as u32,
        tokenizer: TokenizerSpec::Bytes { pieces: pieces.iter().map(|piece| piece.to_vec()).collect() },
        chat_template: Some(ChatTemplate {
            source: "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}".into(),
        }),
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
        created_s: 1_700_000_000,
    }
}

pub(crate) struct Harness {
    pub(crate) frontend: Frontend,
    pub(crate) address: SocketAddr,
    pub(crate) plane: InProcess,
    pub(crate) discovery: Arc<Memory>,
    pub(crate) events: Arc<Local>,
}

pub(crate) fn config() -> Config {
    // Nobody joins later, but where a test says so.
    Config { port: 0, migration_wait_ms: 0, ..Config::default() }
}

impl Harness {
    pub(crate) async fn new() -> Self {
        Self::with(config(), dynamo_router::Config::default()).await
    }

    pub(crate) async fn with(config: Config, router: dynamo_router::Config) -> Self {
        Self::start(config, None, router).await
    }

    /// The selection service over the same.
    pub(crate) async fn router(
        config: Config,
        selection: SelectionConfig,
        router: dynamo_router::Config,
    ) -> Self {
        Self::start(config, Some(selection), router).await
    }

    async fn start(
        config: Config,
        selection: Option<SelectionConfig>,
        router: dynamo_router::Config,
    ) -> Self {
        let plane = InProcess::default();
        let discovery = Arc::new(Memory::new(Options { relist: None, ..Options::default() }));
        let events = Arc::new(Local::new(dynamo_runtime::events::Options::default()));
        let services = Services {
            plane: Arc::new(plane.clone()),
            discovery: discovery.clone(),
            events: events.clone(),
            peers: None,
            router,
            registry: dynamo_runtime::metrics::Registry::new(),
            tracer: dynamo_runtime::trace::Tracer::off(),
        };
        let frontend = match selection {
            None => Frontend::start(config, services).await,
            Some(selection) => Frontend::start_router(config, selection, services).await,
        };
        let frontend = frontend.unwrap();
        Self { address: frontend.local_addr(), frontend, plane, discovery, events }
    }

    /// A worker that is listed when this returns.
    pub(crate) async fn worker(&self, id: u64, card: ModelCard, behaviour: Behaviour) -> Worker {
        let model = card.name.to_string();
        let worker = self.start_worker(id, card, behaviour).await;
        eventually("the worker joins", || {
            self.frontend.models().contains(&model)
                && self.frontend.ledger().booked.iter().any(|(rank, _)| rank.worker == InstanceId(id))
        })
        .await;
        worker
    }

    /// A worker that has been announced.
    pub(crate) async fn start_worker(&self, id: u64, card: ModelCard, behaviour: Behaviour) -> Worker {
        let state = Arc::new(State {
            behaviour,
            id,
            requests: Mutex::default(),
            open: AtomicUsize::new(0),
            cancelled: AtomicUsize::new(0),
        });
        let guard = self.plane.serve(InstanceId(id), Arc::new(Player(Arc::clone(&state))));
        let record = ModelRecord {
            instance: Instance {
                namespace: "dynamo".into(),
                component: "backend".into(),
                endpoint: "generate".into(),
                id: InstanceId(id),
                transport: Transport::InProcess,
                draining: false,
                fault: None,
            },
            card: Arc::new(card),
        };
        let registration = self.discovery.register(record).await.unwrap();
        Worker { state, registration: Some(registration), _guard: guard }
    }

    /// A model `m` of one worker that answers with these pieces.
    pub(crate) async fn script(&self, pieces: &[&[u8]], ending: Ending) -> Worker {
        self.worker(1, card("m", pieces), all_pieces(pieces.len(), ending)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        client::post(self.address, path, body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        client::get(self.address, path).await
    }

    /// The value of a metric: the sum over the series whose name and labels contain all of `parts`.
    pub(crate) async fn metric(&self, name: &str, parts: &[&str]) -> f64 {
        let text = self.get("/metrics").await.text();
        text.lines()
            .filter(|line| line.starts_with(name) && matches!(line.as_bytes()[name.len()], b'{' | b' '))
            .filter(|line| parts.iter().all(|part| line.contains(part)))
            .map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap())
            .sum()
    }

    /// Nothing runs and nothing is booked.
    pub(crate) async fn balanced(&self) {
        eventually("the ledger balances", || self.frontend.ledger().is_balanced()).await;
        assert_eq!(self.metric("dynamo_frontend_active_requests", &[]).await, 0.0);
    }
}

/// Waits for something that is bound to happen.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(waited.await.is_ok(), "waited in vain: {what}");
}

pub(crate) struct Worker {
    pub(crate) state: Arc<State>,
    pub(crate) registration: Option<Registration>,
    _guard: ServeGuard,
}

impl Worker {
    /// Serves nothing any more, but stays listed as long as what is returned is held.
    pub(crate) fn die(mut self) -> Option<Registration> {
        self.registration.take()
    }

    pub(crate) fn requests(&self) -> Vec<Arc<Request>> {
        self.state.requests.lock().unwrap().clone()
    }

    pub(crate) fn open(&self) -> usize {
        self.state.open.load(Ordering::Acquire)
    }

    pub(crate) fn cancelled(&self) -> usize {
        self.state.cancelled.load(Ordering::Acquire)
    }
}

pub(crate) struct State {
    behaviour: Behaviour,
    id: u64,
    requests: Mutex<Vec<Arc<Request>>>,
    open: AtomicUsize,
    cancelled: AtomicUsize,
}

struct Play {
    state: Arc<State>,
    sink: Box<dyn DeltaSink>,
}

impl Drop for Play {
    fn drop(&mut self) {
        self.state.open.fetch_sub(1, Ordering::AcqRel);
        if self.sink.is_cancelled() {
            self.state.cancelled.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl State {
    fn play(self: &Arc<Self>, request: &Arc<Request>, sink: Box<dyn DeltaSink>) -> Result<()> {
        let (deltas, ending) = (self.behaviour)(request)?;
        let seed = draw::bits(self.id, request.sampling.seed);
        self.open.fetch_add(1, Ordering::AcqRel);
        let mut play = Play { state: Arc::clone(self), sink };
        tokio::spawn(async move {
            for (position, delta) in deltas.into_iter().enumerate() {
                play.sink.push(delta);
                // Any chunking may reach the reader; which one is drawn by the seed.
                for _ in 0..draw::index(seed, position as u64, 3) {
                    tokio::task::yield_now().await;
                }
                if play.sink.is_cancelled() {
                    return;
                }
            }
            match ending {
                Ending::Finish(reason) => play.sink.push(Delta { finish: Some(reason), ..Delta::default() }),
                Ending::Reset => {}
                Ending::Fail(error) => play.sink.fail(error),
                Ending::Hang => {
                    while !play.sink.is_cancelled() {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
            }
        });
        Ok(())
    }
}

struct Player(Arc<State>);

impl Handler for Player {
    fn handle(&self, request: Arc<Request>, sink: Box<dyn DeltaSink>) -> Result<()> {
        self.0.requests.lock().unwrap().push(Arc::clone(&request));
        self.0.play(&request, sink)
    }
}

/// The routes a prompt can be sent to, and how.
pub(crate) const ROUTES: [(&str, bool); 4] = [
    ("/v1/chat/completions", false),
    ("/v1/chat/completions", true),
    ("/v1/completions", false),
    ("/v1/completions", true),
];

/// All of them, with the APIs that show an answer as a row of blocks.
pub(crate) const ALL_ROUTES: [(&str, bool); 8] = [
    ROUTES[0],
    ROUTES[1],
    ROUTES[2],
    ROUTES[3],
    ("/v1/messages", false),
    ("/v1/messages", true),
    ("/v1/responses", false),
    ("/v1/responses", true),
];

/// A request for `route` that says `prompt`, with further fields.
#[expect(clippy::needless_pass_by_value, reason = "calls with a literal read better so")]
pub(crate) fn ask(route: &str, stream: bool, prompt: &str, fields: Value) -> Value {
    let mut body = json!({"model": "m", "stream": stream});
    if route.contains("chat") || route.contains("messages") {
        body["messages"] = json!([{"role": "user", "content": prompt}]);
        if route.contains("messages") && !route.contains("count") {
            body["max_tokens"] = json!(100_000);
        }
    } else if route.contains("responses") {
        body["input"] = json!(prompt);
    } else {
        body["prompt"] = json!(prompt);
    }
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// What a client makes of an answer, streamed or not: text and finish reason of choice `index`.
pub(crate) fn read(reply: &Reply, index: usize) -> (String, Option<String>) {
    let mut text = String::new();
    let mut finish = None;
    let chunks = if reply.header("content-type") == Some("text/event-stream") {
        reply.chunks()
    } else {
        assert_eq!(reply.status, 200, "{}", reply.text());
        vec![reply.json()]
    };
    for chunk in &chunks {
        for choice in chunk["choices"].as_array().unwrap() {
            if choice["index"] != json!(index) {
                continue;
            }
            for piece in [&choice["delta"]["content"], &choice["message"]["content"], &choice["text"]] {
                text.push_str(piece.as_str().unwrap_or(""));
            }
            if let Some(reason) = choice["finish_reason"].as_str() {
                assert_eq!(finish, None, "two finish reasons");
                finish = Some(reason.to_owned());
            }
        }
    }
    (text, finish)
}
