//! The TCP transport, the default between processes (DESIGN 3.4; `docs/request-plane.md` is its wire format).
//!
//! The caller connects, so only one direction must be reachable.

#[cfg(test)]
mod by_hand;
#[cfg(test)]
mod foreign;
#[cfg(test)]
mod metered;
mod secure;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tls_tests;

pub use secure::{Connect, Tls};

use super::InProcess;
use super::wire::{Dial, Error, Hub, Options, Streams};
use crate::BoxFuture;
use crate::events::Local;
use dynamo_types::Transport;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

/// Pause after a failed accept, which is the machine's trouble (no file descriptors) and would come again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Connects to `host:port`, as the worker there wants it.
#[derive(Default)]
pub struct Dialer {
    connect: Option<Connect>,
}

impl Dialer {
    pub fn new(tls: &Tls) -> Self {
        Self { connect: tls.connect.clone() }
    }
}

impl Dial for Dialer {
    fn reaches(&self, transport: &Transport) -> bool {
        matches!(transport, Transport::Tcp(_))
    }

    fn dial<'a>(&'a self, transport: &'a Transport) -> BoxFuture<'a, Result<Streams, Error>> {
        Box::pin(async move {
            let Transport::Tcp(address) = transport else { return Err(Error::unreached(transport)) };
            secure::connect(address, self.connect.as_ref()).await
        })
    }
}

/// Accepts callers until it is dropped, which ends all connections.
pub struct Server {
    address: SocketAddr,
    hub: Arc<Hub>,
    accepting: AbortHandle,
}

impl Server {
    /// Serves what `plane` serves, and the sources of `events`.
    ///
    /// # Errors
    /// The listener has no address.
    pub fn start(
        listener: TcpListener,
        plane: &InProcess,
        events: Arc<Local>,
        options: Options,
        tls: Tls,
    ) -> std::io::Result<Self> {
        let address = listener.local_addr()?;
        let hub = Hub::new(plane, events, options);
        let accepting = tokio::spawn(accept(listener, Arc::clone(&hub), tls)).abort_handle();
        Ok(Self { address, hub, accepting })
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Streams of all connections that have not ended.
    pub fn stream_count(&self) -> usize {
        self.hub.stream_count()
    }

    /// Completes when everything that was said to callers is on its way to them. A worker that ends waits for it, with a
    /// limit of its own.
    pub async fn settled(&self) {
        self.hub.settled().await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, hub: Arc<Hub>, tls: Tls) {
    // Dropped with this task, and the connections with it.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= hub.max_accepted() {
            connections.join_next().await;
            continue;
        }
        match listener.accept().await {
            Ok((socket, peer)) => {
                connections.spawn(connection(socket, peer, Arc::clone(&hub), tls.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "a caller could not be accepted");
                hub.options().metrics.could_not_accept();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(socket: TcpStream, peer: SocketAddr, hub: Arc<Hub>, tls: Tls) {
    let limit = hub.options().connect_timeout;
    let deadline = Instant::now() + limit;
    let ended = match secure::accept(socket, tls.accept.as_ref(), limit, deadline).await {
        Ok(streams) => hub.serve(streams, deadline).await,
        Err(error) => Err(error),
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "the connection of a caller ended");
    }
}
