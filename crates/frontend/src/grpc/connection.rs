//! One HTTP/2 connection and the calls on it.

use super::flow::Pulse;
use super::service;
use crate::config::Config;
use crate::connection::{Order, next_order};
use crate::shared::Shared;
use crate::socket::Watch;
use dynamo_runtime::sync::lock;
use dynamo_runtime::{CancellationToken, TaskTracker};
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Calls at once on one connection; further ones wait at the client. As many as load tools keep open on one channel.
const CALLS_MAX: u32 = 256;
/// What a client may send ahead on one call, and on all calls of a connection together, before it is read.
const CALL_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// What is kept for a client that reads slowly, per call; beyond it deltas merge where they wait.
const CALL_BUFFER_BYTES: usize = 64 * 1024;

tokio::task_local! {
    /// Of the call whose task it is.
    static PULSE: Arc<Pulse>;
}

/// What the calls of one connection have in common.
pub(super) struct Calls {
    pub(super) shared: Arc<Shared>,
    /// Those that are not over.
    pub(super) open: TaskTracker,
    /// How many there ever were.
    count: AtomicU64,
    /// Calls that wait for their client only are to end.
    pub(super) finish: CancellationToken,
    /// All calls look at the server's phase again.
    pub(super) stop: CancellationToken,
}

/// Runs each call in a task of its own; all end with the connection. A call whose client takes nothing of its answer for
/// too long is given up, which the connection itself would not show: others on it may go on.
#[derive(Clone)]
struct Tasks {
    set: Arc<Mutex<JoinSet<()>>>,
    patience: Duration,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, call: F) {
        let pulse = Arc::new(Pulse::new());
        let (watched, patience) = (Arc::clone(&pulse), self.patience);
        let watched_call = async move {
            tokio::select! {
                biased;
                () = call => {}
                () = watched.lost(patience) => tracing::debug!("a gRPC client has stopped reading"),
            }
        };
        let mut set = lock(&self.set);
        while set.try_join_next().is_some() {}
        set.spawn(PULSE.scope(pulse, watched_call));
    }
}

fn settings(config: &Config, tasks: Tasks, keep_alive: Option<Duration>) -> http2::Builder<Tasks> {
    let mut builder = http2::Builder::new(tasks);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(CALLS_MAX)
        .initial_stream_window_size(CALL_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(CALL_BUFFER_BYTES)
        .max_header_list_size(u32::try_from(config.header_limit_bytes).unwrap_or(u32::MAX))
        .keep_alive_interval(keep_alive)
        .keep_alive_timeout(Duration::from_millis(config.write_timeout_ms));
    builder
}

/// gRPC over whatever carries it, until the connection is closed.
pub(crate) async fn speak<T>(
    transport: T,
    shared: &Arc<Shared>,
    watch: &Watch,
    orders: &mut watch::Receiver<Order>,
) where
    T: AsyncRead + AsyncWrite + Unpin + Send,
{
    let calls = Arc::new(Calls {
        shared: Arc::clone(shared),
        open: TaskTracker::new(),
        count: AtomicU64::new(0),
        finish: CancellationToken::new(),
        stop: CancellationToken::new(),
    });
    let patience = Duration::from_millis(shared.config.write_timeout_ms);
    let tasks = Tasks { set: Arc::default(), patience };
    let served = Arc::clone(&calls);
    let service = service_fn(move |request| {
        let calls = Arc::clone(&served);
        calls.count.fetch_add(1, Ordering::Relaxed);
        // Taken here, so that there is no moment in between.
        let open = calls.open.token();
        async move {
            let pulse = PULSE.try_with(Arc::clone).unwrap_or_default();
            Ok::<_, Infallible>(service::answer(calls, request, open, pulse).await)
        }
    });
    let builder = settings(&shared.config, tasks, shared.keep_alive());
    let mut connection = pin!(builder.serve_connection(TokioIo::new(transport), service));
    let mut hung_up = pin!(watch.hung_up());
    let mut obeyed = Order::Serve;
    let mut idle = Idle::new(&shared.config);
    loop {
        let order = tokio::select! {
            biased;
            done = connection.as_mut() => {
                if let Err(error) = done {
                    tracing::debug!(%error, "gRPC connection ended");
                }
                return;
            }
            () = hung_up.as_mut() => return,
            order = next_order(orders, obeyed) => order,
            () = sleep_until(idle.due) => {
                match idle.look(&calls) {
                    Verdict::Stay => {}
                    Verdict::Goodbye => connection.as_mut().graceful_shutdown(),
                    Verdict::Close => return,
                }
                continue;
            }
        };
        match order {
            Order::Serve => {}
            Order::Finish => calls.finish.cancel(),
            Order::Stop => {
                calls.finish.cancel();
                calls.stop.cancel();
            }
            Order::Abort => return,
        }
        connection.as_mut().graceful_shutdown();
        obeyed = order;
    }
}

/// Closes connections on which nothing is asked, as kept-alive ones of HTTP/1.1 are: first by saying so, which gRPC
/// clients take for "connect again when you need to".
struct Idle {
    limit: Duration,
    due: Instant,
    /// Calls there had been when it last looked.
    seen: u64,
    told: bool,
}

enum Verdict {
    Stay,
    Goodbye,
    Close,
}

impl Idle {
    fn new(config: &Config) -> Self {
        let limit = Duration::from_millis(config.header_timeout_ms);
        Self { limit, due: Instant::now() + limit, seen: 0, told: false }
    }

    fn look(&mut self, calls: &Calls) -> Verdict {
        self.due = Instant::now() + self.limit;
        let count = calls.count.load(Ordering::Relaxed);
        let is_idle = calls.open.is_empty() && count == self.seen;
        self.seen = count;
        match (is_idle, self.told) {
            (false, _) => Verdict::Stay,
            (true, false) => {
                self.told = true;
                Verdict::Goodbye
            }
            (true, true) => Verdict::Close,
        }
    }
}
