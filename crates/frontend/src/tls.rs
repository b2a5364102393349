//! TLS and mutual TLS: the server's certificate, the authorities of its clients, and the files both come from, which
//! may change while we run.

use crate::config::Config;
use crate::connection::Protocol;
use crate::error::Error;
use crate::follow::{self, Change, LOOK_EVERY, Verdict};
use crate::socket::{Socket, Watch};
use dynamo_protocols::error_body;
use dynamo_runtime::sync::{read, write};
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Far above any chain of certificates: a larger file is some other file.
const FILE_MAX_BYTES: u64 = 1024 * 1024;
/// What we speak, most wanted first (ALPN). A client that names protocols, and not this one, is refused in the handshake.
const HTTP: [&[u8]; 1] = [b"http/1.1"];
/// The same of the gRPC port.
const GRPC: [&[u8]; 1] = [b"h2"];

const CERT: &str = "tls_cert_path";
const KEY: &str = "tls_key_path";
const CLIENT_CA: &str = "tls_client_ca_cert_path";

/// The side of TLS that accepts.
pub(crate) struct Tls {
    files: Files,
    current: RwLock<Loaded>,
    pub(crate) handshake_timeout: Duration,
}

#[derive(Clone)]
struct Files {
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

/// What the files said, and what became of it.
#[derive(Clone)]
struct Loaded {
    material: Arc<Material>,
    http: Arc<ServerConfig>,
    grpc: Arc<ServerConfig>,
}

#[derive(PartialEq)]
struct Material {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl PartialEq for Loaded {
    fn eq(&self, other: &Self) -> bool {
        self.material == other.material
    }
}

/// A setting and what is wrong with it.
struct Fault {
    key: &'static str,
    reason: String,
}

impl Fault {
    fn of(key: &'static str) -> impl Fn(String) -> Self {
        move |reason| Self { key, reason }
    }
}

impl Tls {
    /// None: the settings ask for none.
    ///
    /// # Errors
    /// One line with the setting: one of two files is not named, cannot be read, has nothing of its kind in it, or does
    /// not fit the other.
    pub(crate) fn open(config: &Config) -> Result<Option<Self>, Error> {
        let missing = |key: &'static str, other: &str, flag: &str| Error::Config {
            key,
            reason: format!("is needed together with {other} (--{flag} FILE)"),
        };
        let (cert, key) = match (&config.tls_cert_path, &config.tls_key_path) {
            (Some(cert), Some(key)) => (cert.clone(), key.clone()),
            (Some(_), None) => return Err(missing(KEY, CERT, "tls-key-path")),
            (None, Some(_)) => return Err(missing(CERT, KEY, "tls-cert-path")),
            (None, None) if config.tls_client_ca_cert_path.is_some() => {
                return Err(missing(CERT, CLIENT_CA, "tls-cert-path"));
            }
            (None, None) => return Ok(None),
        };
        let files = Files { cert, key, client_ca: config.tls_client_ca_cert_path.clone() };
        let loaded = files.read().and_then(|material| files.load(material));
        let loaded = loaded.map_err(|fault| Error::Config { key: fault.key, reason: fault.reason })?;
        Ok(Some(Self {
            files,
            current: RwLock::new(loaded),
            handshake_timeout: Duration::from_millis(config.tls_handshake_timeout_ms),
        }))
    }

    /// Looks at the files again and again, until dropped. Open connections stay as they are.
    pub(crate) async fn follow(self: Arc<Self>) {
        let mut change = Change::default();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let valid = read(&self.current).clone();
            let (files, before) = (self.files.clone(), valid.clone());
            let look = move || files.look(before);
            let Ok(found) = tokio::task::spawn_blocking(look).await else { continue };
            match change.seen(found, &valid) {
                Verdict::Nothing => {}
                Verdict::Take(loaded) => {
                    tracing::info!("the TLS certificates have changed");
                    *write(&self.current) = loaded;
                }
                Verdict::Complain(reason) => {
                    tracing::warn!("the TLS certificates stay as they were: {reason}");
                }
            }
        }
    }
}

impl Files {
    /// What the files say now; `before` if nothing has changed.
    fn look(&self, before: Loaded) -> Result<Loaded, String> {
        let loaded = self
            .read()
            .and_then(|material| if material == *before.material { Ok(before) } else { self.load(material) });
        loaded.map_err(|Fault { key, reason }| format!("{key}: {reason}"))
    }

    fn read(&self) -> Result<Material, Fault> {
        let content =
            |key: &'static str, path: &Path| follow::content(path, FILE_MAX_BYTES).map_err(Fault::of(key));
        let client_ca = self.client_ca.as_deref().map(|path| content(CLIENT_CA, path)).transpose()?;
        Ok(Material { cert: content(CERT, &self.cert)?, key: content(KEY, &self.key)?, client_ca })
    }

    fn load(&self, material: Material) -> Result<Loaded, Fault> {
        let chain = certificates(&material.cert, &self.cert).map_err(Fault::of(CERT))?;
        let key = private_key(&material.key, &self.key).map_err(Fault::of(KEY))?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| Fault { key: CERT, reason: error.to_string() })?;
        let builder = match (&material.client_ca, &self.client_ca) {
            (Some(bytes), Some(path)) => {
                let roots = Arc::new(roots(bytes, path).map_err(Fault::of(CLIENT_CA))?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| Fault {
                    key: CLIENT_CA,
                    reason: format!("{}: {error}", path.display()),
                })?)
            }
            _ => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| self.unfit(&error))?;
        config.alpn_protocols = HTTP.iter().map(|name| name.to_vec()).collect();
        let mut grpc = config.clone();
        grpc.alpn_protocols = GRPC.iter().map(|name| name.to_vec()).collect();
        Ok(Loaded { material: Arc::new(material), http: Arc::new(config), grpc: Arc::new(grpc) })
    }

    /// Certificate and key, each well-formed, cannot be used together.
    fn unfit(&self, error: &rustls::Error) -> Fault {
        let (cert, key) = (self.cert.display(), self.key.display());
        match error {
            rustls::Error::InconsistentKeys(_) => Fault {
                key: KEY,
                reason: format!("the key in {key} does not belong to the certificate in {cert}"),
            },
            error => Fault { key: CERT, reason: format!("{cert} with {key} cannot be used: {error}") },
        }
    }
}

fn certificates(bytes: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(bytes).collect();
    match found {
        Ok(found) if found.is_empty() => {
            Err(format!("{}: expected certificates in PEM form, found none", path.display()))
        }
        Ok(found) => Ok(found),
        Err(error) => Err(format!("{} is not in PEM form: {error}", path.display())),
    }
}

fn private_key(bytes: &[u8], path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    match PrivateKeyDer::from_pem_slice(bytes) {
        Ok(key) => Ok(key),
        Err(pem::Error::NoItemsFound) if bytes.windows(9).any(|word| word == b"ENCRYPTED") => {
            Err(format!("the key in {} is encrypted: expected one without a passphrase", path.display()))
        }
        Err(pem::Error::NoItemsFound) => {
            Err(format!("{}: expected a private key in PEM form, found none", path.display()))
        }
        Err(error) => Err(format!("{} is not in PEM form: {error}", path.display())),
    }
}

fn roots(bytes: &[u8], path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(bytes, path)? {
        roots.add(certificate).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(roots)
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
        let current = read(&self.current).clone();
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
