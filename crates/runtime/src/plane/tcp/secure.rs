//! TLS beneath the frames. Which side speaks it is seen from the first byte a caller sends, so that two that do not agree
//! are told so.

use super::super::wire::frame::{self, GoAway, Kind};
use super::super::wire::{Error, Streams};
use crate::tls::{Fault, Files, Live};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Before an address in discovery: whoever listens there speaks TLS.
const SCHEME: &str = "tls://";

/// The first byte of a handshake. Our frames begin with the upper byte of a length.
const HANDSHAKE: u8 = 0x16;

/// What a side that was refused may still send before the connection is closed over it.
const LINGER_BYTES: usize = 1 << 20;

/// TLS of both roles; None each: plain TCP.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// Callers of this process's workers must speak it.
    pub accept: Option<Accept>,
    /// Workers that are called must speak it.
    pub connect: Option<Connect>,
}

#[derive(Clone, Debug)]
pub struct Connect {
    pub config: Arc<Live<Arc<ClientConfig>>>,
    /// What the certificates of all workers are for; None: the host by which each is reached.
    pub server_name: Option<ServerName<'static>>,
}

impl Tls {
    /// What the files make; `server_name` is [`Connect::server_name`].
    ///
    /// # Errors
    /// The setting, and what is wrong with its file or value.
    pub fn open(
        accept: Files,
        connect: Files,
        server_name: Option<(&'static str, &str)>,
    ) -> Result<Self, Fault> {
        let server_name = server_name.map(|(key, name)| {
            ServerName::try_from(name.to_owned()).map_err(|_| Fault {
                key,
                reason: format!(
                    "expected a name or an address that a certificate can be for, found {name:?}"
                ),
            })
        });
        let server_name = server_name.transpose()?;
        let connect = Live::connecting(connect, Arc::new)?
            .map(|config| Connect { config: Arc::new(config), server_name });
        Ok(Self { accept: Live::accepting(accept, Arc::new)?.map(Arc::new), connect })
    }

    /// How discovery names `host:port` of this process.
    pub fn address(&self, host_port: String) -> String {
        match self.accept {
            Some(_) => format!("{SCHEME}{host_port}"),
            None => host_port,
        }
    }
}

fn plain(socket: TcpStream) -> Streams {
    let (read, write) = socket.into_split();
    (Box::new(read), Box::new(write))
}

fn secured<T>(stream: T) -> Streams
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (read, write) = tokio::io::split(stream);
    (Box::new(read), Box::new(write))
}

/// Calls the address, which is one of discovery.
pub(super) async fn connect(address: &str, connect: Option<&Connect>) -> Result<Streams, Error> {
    let (host_port, tls) = match address.strip_prefix(SCHEME) {
        Some(rest) => (rest, true),
        None => (address, false),
    };
    let connect = match (connect, tls) {
        (None, false) => None,
        (Some(connect), true) => Some((connect, connect.name(host_port)?)),
        (None, true) => {
            return Err(Error::Tls(format!(
                "the worker at {host_port} speaks TLS, this caller plain TCP: request_plane.tls_ca_cert_path is not set"
            )));
        }
        (Some(_), false) => {
            return Err(Error::Tls(format!(
                "the worker at {host_port} speaks plain TCP, this caller TLS: request_plane.tls_cert_path is not set \
                 at the worker"
            )));
        }
    };
    let socket = TcpStream::connect(host_port).await?;
    socket.set_nodelay(true)?;
    match connect {
        None => Ok(plain(socket)),
        Some((connect, name)) => {
            let connector = TlsConnector::from(connect.config.current());
            Ok(secured(Box::pin(connector.connect(name, socket)).await?))
        }
    }
}

impl Connect {
    fn name(&self, host_port: &str) -> Result<ServerName<'static>, Error> {
        if let Some(name) = &self.server_name {
            return Ok(name.clone());
        }
        let host = host_port.rsplit_once(':').map_or(host_port, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        ServerName::try_from(host.to_owned())
            .map_err(|_| Error::Tls(format!("{host:?} is no name that a certificate can be for")))
    }
}

/// The certificates with which callers are met.
type Accept = Arc<Live<Arc<ServerConfig>>>;

/// Shakes hands with a caller before `deadline`, which is `limit` after it came, or tells it what is spoken here.
pub(super) async fn accept(
    socket: TcpStream,
    accept: Option<&Accept>,
    limit: Duration,
    deadline: Instant,
) -> Result<Streams, Error> {
    socket.set_nodelay(true)?;
    let late = |_| Error::Timeout(limit);
    let mut first = [0];
    if timeout_at(deadline, socket.peek(&mut first)).await.map_err(late)?? == 0 {
        return Err(Error::Closed);
    }
    let refusal = match (accept, first == [HANDSHAKE]) {
        (None, false) => return Ok(plain(socket)),
        (Some(live), true) => {
            let handshake = Box::pin(TlsAcceptor::from(live.current()).accept(socket).into_fallible());
            return match timeout_at(deadline, handshake).await.map_err(late)? {
                Ok(stream) => Ok(secured(stream)),
                Err((error, socket)) => {
                    linger(socket, deadline).await;
                    Err(error.into())
                }
            };
        }
        (None, true) => "this worker speaks plain TCP, the caller TLS",
        (Some(_), false) => "this worker speaks TLS only, the caller plain TCP",
    };
    turn_away(socket, refusal, deadline).await?;
    Err(Error::Refused(refusal.to_owned()))
}

async fn turn_away(mut socket: TcpStream, reason: &str, deadline: Instant) -> Result<(), Error> {
    let mut bytes = Vec::new();
    frame::write(&mut bytes, Kind::GoAway, &GoAway { reason: reason.to_owned() }, usize::MAX)?;
    frame::send(&mut socket, &bytes, deadline.saturating_duration_since(Instant::now())).await?;
    linger(socket, deadline).await;
    Ok(())
}

/// Reads what the peer still sends: a connection closed over unread data is reset, and the peer may then never see what
/// it was told.
async fn linger(mut socket: TcpStream, deadline: Instant) {
    if socket.shutdown().await.is_err() {
        return;
    }
    let mut scratch = [0; 1024];
    let mut left = LINGER_BYTES;
    while let Ok(Ok(read @ 1..)) = timeout_at(deadline, socket.read(&mut scratch)).await {
        left = left.saturating_sub(read);
        if left == 0 {
            return;
        }
    }
}
