//! TLS and mutual TLS of the two ports: what each speaks, and what who speaks plain HTTP is told.

use crate::config::Config;
use crate::connection::Protocol;
use crate::error::Error;
use crate::socket::{Socket, Watch};
use dynamo_protocols::error_body;
use dynamo_runtime::tls::{Files, Live, Names};
use rustls::ServerConfig;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// What we speak, most wanted first (ALPN). A client that names protocols, and not this one, is refused in the handshake.
const HTTP: [&[u8]; 1] = [b"http/1.1"];
/// The same of the gRPC port.
const GRPC: [&[u8]; 1] = [b"h2"];

const NAMES: Names =
    Names { cert: "tls_cert_path", key: "tls_key_path", authorities: "tls_client_ca_cert_path" };

/// The side of TLS that accepts.
pub(crate) struct Tls {
    live: Live<Ports>,
    pub(crate) handshake_timeout: Duration,
}

#[derive(Clone)]
struct Ports {
    http: Arc<ServerConfig>,
    grpc: Arc<ServerConfig>,
}

impl From<ServerConfig> for Ports {
    fn from(mut http: ServerConfig) -> Self {
        http.alpn_protocols = HTTP.iter().map(|name| name.to_vec()).collect();
        let mut grpc = http.clone();
        grpc.alpn_protocols = GRPC.iter().map(|name| name.to_vec()).collect();
        Self { http: Arc::new(http), grpc: Arc::new(grpc) }
    }
}

impl Tls {
    /// None: the settings ask for none.
    ///
    /// # Errors
    /// One line with the setting: one of two files is not named, cannot be read, has nothing of its kind in it, or does
    /// not fit the other.
    pub(crate) fn open(config: &Config) -> Result<Option<Self>, Error> {
        let files = Files {
            names: NAMES,
            cert: config.tls_cert_path.clone(),
            key: config.tls_key_path.clone(),
            authorities: config.tls_client_ca_cert_path.clone(),
        };
        let live = Live::accepting(files, Ports::from)
            .map_err(|fault| Error::Config { key: fault.key, reason: fault.reason })?;
        let handshake_timeout = Duration::from_millis(config.tls_handshake_timeout_ms);
        Ok(live.map(|live| Self { live, handshake_timeout }))
    }
}

/// Why a connection did not come about.
pub(crate) enum Refused {
    /// The client speaks plain HTTP; it was told so.
    Plain,
    Handshake(io::Error),
}

impl Tls {
    /// Shakes hands.
    pub(crate) async fn accept(
        &self,
        mut socket: Socket,
        watch: &Watch,
        protocol: &Protocol,
    ) -> Result<TlsStream<Socket>, Refused> {
        // A handshake begins with a byte that no method of HTTP does.
        if let Ok(Some(first)) = watch.first_byte().await
            && first.is_ascii_alphabetic()
        {
            let _ = socket.write_all(&plain_answer()).await;
            return Err(Refused::Plain);
        }
        let current = self.live.current();
        let config = match protocol {
            Protocol::Http1(_) => current.http,
            Protocol::Grpc => current.grpc,
        };
        TlsAcceptor::from(config).accept(socket).await.map_err(Refused::Handshake)
    }
}

fn plain_answer() -> Vec<u8> {
    let error =
        dynamo_types::Error::invalid("this port speaks TLS only: ask for https:// instead of http://");
    let body = error_body(&error);
    let head = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), &body].concat()
}
