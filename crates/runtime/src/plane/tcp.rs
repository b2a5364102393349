//! The TCP transport, the default between processes (DESIGN 3.4; `docs/request-plane.md` is its wire format).
//!
//! The caller connects, so only one direction must be reachable.

#[cfg(test)]
mod tests;

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

/// Pause after a failed accept, which is the machine's trouble (no file descriptors) and would come again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Connects to `host:port`.
#[derive(Default)]
pub struct Dialer {}

impl Dial for Dialer {
    fn reaches(&self, transport: &Transport) -> bool {
        matches!(transport, Transport::Tcp(_))
    }

    fn dial<'a>(&'a self, transport: &'a Transport) -> BoxFuture<'a, Result<Streams, Error>> {
        Box::pin(async move {
            let Transport::Tcp(address) = transport else { return Err(Error::unreached(transport)) };
            let socket = TcpStream::connect(address).await.map_err(|error| Error::Io(error.to_string()))?;
            streams(socket).map_err(|error| Error::Io(error.to_string()))
        })
    }
}

fn streams(socket: TcpStream) -> std::io::Result<Streams> {
    socket.set_nodelay(true)?;
    let (read, write) = socket.into_split();
    Ok((Box::new(read), Box::new(write)))
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
    ) -> std::io::Result<Self> {
        let address = listener.local_addr()?;
        let hub = Hub::new(plane, events, options);
        let accepting = tokio::spawn(accept(listener, Arc::clone(&hub))).abort_handle();
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

async fn accept(listener: TcpListener, hub: Arc<Hub>) {
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
                connections.spawn(connection(socket, peer, Arc::clone(&hub)));
            }
            Err(error) => {
                tracing::warn!(%error, "a caller could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(socket: TcpStream, peer: SocketAddr, hub: Arc<Hub>) {
    match streams(socket) {
        Ok(streams) => hub.serve(streams, &peer.to_string()).await,
        Err(error) => tracing::debug!(%peer, %error, "a caller left at once"),
    }
}
