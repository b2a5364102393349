//! One connection, from accept to close: handshake, requests, goodbye.
//!
//! What speaks a protocol is one function over any transport: another protocol is another such function, chosen where the
//! transport is known.

use crate::aside::Aside;
use crate::body::Upload;
use crate::config::Config;
use crate::grpc;
use crate::http::Unwritten;
use crate::routes;
use crate::shared::Shared;
use crate::socket::{self, Socket, Watch};
use crate::stall::Stall;
use crate::tls::{self, Tls};
use dynamo_runtime::metrics::Unit;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// hyper's own least buffer.
const MIN_BUFFER_BYTES: usize = 8192;

/// How connections are told where the server is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Order {
    Serve,
    /// Close when the request at hand is answered.
    Finish,
    /// Streams write their last frames now.
    Stop,
    /// Drop everything.
    Abort,
}

/// What connections of one listener have in common.
pub(crate) struct Serving {
    protocol: Protocol,
    shared: Arc<Shared>,
    /// None: plain.
    tls: Option<Arc<Tls>>,
}

/// What is spoken on a port.
pub(crate) enum Protocol {
    Http1(Box<http1::Builder>),
    /// HTTP/2, and gRPC in it.
    Grpc,
}

impl Serving {
    pub(crate) fn http1(shared: Arc<Shared>) -> Self {
        let protocol = Protocol::Http1(Box::new(http1_settings(&shared.config)));
        Self { protocol, tls: shared.tls.clone(), shared }
    }

    pub(crate) fn grpc(shared: Arc<Shared>) -> Self {
        Self { protocol: Protocol::Grpc, tls: shared.tls.clone(), shared }
    }
}

fn http1_settings(config: &Config) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(config.header_timeout_ms))
        .max_headers(config.header_count_limit)
        .max_header_size(config.header_limit_bytes)
        .max_buf_size(config.header_limit_bytes.max(MIN_BUFFER_BYTES))
        // A client that closes its sending half has left: there is no other way to say goodbye. `Watch` sees it, also
        // behind bytes that nobody reads; hyper would see it only by reading.
        .half_close(Watch::SEES_HANG_UPS)
        // The pieces of a token's chunk are put together and written as one: cheaper for the kernel, and for hyper.
        .writev(false);
    builder
}

/// How a connection ended, for those who clean up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// What was not read may still be on its way, and what was answered too.
    Answered,
    /// There is nobody to hear anything.
    Over,
}

/// Serves one connection until it is closed.
pub(crate) async fn serve(stream: TcpStream, serving: Arc<Serving>, mut orders: watch::Receiver<Order>) {
    // Without it the first token waits for the client's delayed acknowledgement: 40 ms.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY was refused");
    }
    let _open = Unit::of(&serving.shared.metrics.connections);
    let (socket, watch) = socket::split(stream);
    let end = match &serving.tls {
        None => {
            let transport = Stall::new(socket, write_timeout(&serving));
            speak(transport, &serving, &watch, &mut orders).await
        }
        Some(tls) => serve_tls(socket, &serving, tls, &watch, &mut orders).await,
    };
    if end == End::Answered {
        tokio::select! {
            biased;
            () = aborted(&mut orders) => {}
            () = watch.linger() => {}
        }
    }
}

fn write_timeout(serving: &Serving) -> Duration {
    Duration::from_millis(serving.shared.config.write_timeout_ms)
}

async fn serve_tls(
    socket: Socket,
    serving: &Arc<Serving>,
    tls: &Tls,
    watch: &Watch,
    orders: &mut watch::Receiver<Order>,
) -> End {
    let handshake = tokio::time::timeout(tls.handshake_timeout, tls.accept(socket, watch, &serving.protocol));
    let accepted = tokio::select! {
        biased;
        // No request has come yet.
        _ = next_order(orders, Order::Serve) => return End::Over,
        accepted = handshake => accepted,
    };
    match accepted {
        Ok(Ok(stream)) => {
            let running = serving.shared.answers.clone();
            let transport = Stall::new(Box::new(stream), write_timeout(serving)).counted(running);
            speak(transport, serving, watch, orders).await
        }
        Ok(Err(tls::Refused::Plain)) => End::Answered,
        Ok(Err(tls::Refused::Handshake(error))) => {
            tracing::debug!(%error, "the TLS handshake failed");
            End::Over
        }
        Err(_) => {
            tracing::debug!("the TLS handshake took too long");
            End::Over
        }
    }
}

/// The port's protocol over whatever carries it.
async fn speak<T>(
    transport: Stall<T>,
    serving: &Arc<Serving>,
    watch: &Watch,
    orders: &mut watch::Receiver<Order>,
) -> End
where
    T: AsyncRead + AsyncWrite + Unpin + Send,
{
    match &serving.protocol {
        Protocol::Http1(http1) => speak_http1(transport, http1, serving, watch, orders).await,
        Protocol::Grpc => {
            grpc::speak(transport, &serving.shared, watch, orders).await;
            End::Over
        }
    }
}

async fn speak_http1<T>(
    transport: Stall<T>,
    http1: &http1::Builder,
    serving: &Arc<Serving>,
    watch: &Watch,
    orders: &mut watch::Receiver<Order>,
) -> End
where
    T: AsyncRead + AsyncWrite + Unpin + Send,
{
    let left_unread = Arc::new(AtomicBool::new(false));
    let (shared, unread) = (Arc::clone(&serving.shared), Arc::clone(&left_unread));
    let unwritten = Arc::new(Unwritten::default());
    let transport = transport.telling(Arc::clone(&unwritten));
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let request = request.map(|body| Upload::new(body, Arc::clone(&unread)));
        let (shared, unwritten) = (Arc::clone(&shared), Arc::clone(&unwritten));
        async move {
            let mut response = routes::answer(shared, request).await;
            response.body_mut().go_over(unwritten);
            Ok::<_, Infallible>(response)
        }
    });
    let mut connection = pin!(http1.serve_connection(TokioIo::new(transport), service));
    // The connection is polled for every token; these two are only looked at when they have something to say.
    let mut hung_up = pin!(Aside::new(watch.hung_up()));
    let mut obeyed = Order::Serve;
    let done = loop {
        let order = tokio::select! {
            biased;
            done = connection.as_mut() => break done,
            () = hung_up.as_mut() => match last_requests(connection.as_mut(), watch).await {
                Some(done) => break done,
                None => return End::Over,
            },
            order = Aside::new(next_order(orders, obeyed)) => order,
        };
        match order {
            Order::Serve => {}
            // Being polled again is what lets the streams see that they are to stop.
            Order::Finish | Order::Stop => connection.as_mut().graceful_shutdown(),
            Order::Abort => return End::Over,
        }
        obeyed = order;
    };
    match done {
        Ok(()) if left_unread.load(Ordering::Relaxed) => End::Answered,
        Ok(()) => End::Over,
        Err(error) => {
            tracing::debug!(%error, "connection ended");
            if error.is_parse() { End::Answered } else { End::Over }
        }
    }
}

/// The client has hung up. What came before that and needs no waiting is still answered; None: the rest is of no use.
async fn last_requests<F: Future>(mut connection: std::pin::Pin<&mut F>, watch: &Watch) -> Option<F::Output> {
    loop {
        let before = watch.moves();
        let polled = std::future::poll_fn(|cx| Poll::Ready(connection.as_mut().poll(cx))).await;
        if let Poll::Ready(done) = polled {
            return Some(done);
        }
        if watch.moves() == before {
            return None;
        }
        tokio::task::yield_now().await;
    }
}

pub(crate) async fn next_order(orders: &mut watch::Receiver<Order>, obeyed: Order) -> Order {
    match orders.wait_for(|order| *order > obeyed).await {
        Ok(order) => *order,
        Err(_) => Order::Abort,
    }
}

async fn aborted(orders: &mut watch::Receiver<Order>) {
    // An error says that nobody gives orders any more.
    let _ = orders.wait_for(|order| *order == Order::Abort).await;
}
