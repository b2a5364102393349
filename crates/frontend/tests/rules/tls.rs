//! TLS and mutual TLS, with certificates made for the test.

use crate::client::PATIENCE;
use crate::harness::{ALL_ROUTES, Behaviour, Ending, Harness, ask, card, config, eventually};
use dynamo_frontend::{Config, Frontend, Services};
use dynamo_runtime::discovery::{self, Memory};
use dynamo_runtime::events::{self, Local};
use dynamo_runtime::plane::InProcess;
use dynamo_types::FinishReason::Stop;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// An authority that signs.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its key, as PEM.
#[derive(Clone)]
struct Identity {
    cert: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    fn sign(&self, name: &str) -> Identity {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned(), "127.0.0.1".to_owned()]).unwrap();
        Identity { cert: params.signed_by(&key, &self.issuer).unwrap().pem(), key: key.serialize_pem() }
    }
}

/// Files that are gone after the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("dynamo-tls-{}-{count}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.0.join(name))
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }

    /// Settings of a server with this identity.
    fn settings(&self, identity: &Identity) -> Config {
        self.write("cert.pem", &identity.cert);
        self.write("key.pem", &identity.key);
        Config { tls_cert_path: self.path("cert.pem"), tls_key_path: self.path("key.pem"), ..config() }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn services() -> Services {
    Services {
        plane: Arc::new(InProcess::default()),
        discovery: Arc::new(Memory::new(discovery::Options::default())),
        events: Arc::new(Local::new(events::Options::default())),
        peers: None,
        router: dynamo_router::Config::default(),
        registry: dynamo_runtime::metrics::Registry::new(),
        tracer: dynamo_runtime::trace::Tracer::off(),
    }
}

async fn start(settings: Config) -> Harness {
    Harness::with(settings, dynamo_router::Config::default()).await
}

struct Peer<'a> {
    trusts: &'a Authority,
    shows: Option<&'a Identity>,
    protocols: &'a [&'a str],
}

impl Peer<'_> {
    async fn connect(&self, harness: &Harness) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.trusts.pem.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match self.shows {
            None => builder.with_no_client_auth(),
            Some(identity) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_slice(identity.cert.as_bytes()).unwrap()],
                    PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap(),
                )
                .unwrap(),
        };
        config.alpn_protocols = self.protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        let stream = TcpStream::connect(harness.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// Everything that comes for a request, up to the close.
    async fn ask(&self, harness: &Harness, request: &str) -> std::io::Result<String> {
        let mut stream = self.connect(harness).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut reply = Vec::new();
        let read = stream.read_to_end(&mut reply);
        match tokio::time::timeout(PATIENCE, read).await.expect("no answer") {
            // A server may close without a farewell.
            Ok(_) => {}
            Err(_) if !reply.is_empty() => {}
            Err(error) => return Err(error),
        }
        Ok(String::from_utf8(reply).unwrap())
    }
}

fn trusting(trusts: &Authority) -> Peer<'_> {
    Peer { trusts, shows: None, protocols: &["http/1.1"] }
}

fn request(method: &str, path: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_is_served_over_tls() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let harness = start(folder.settings(&authority.sign("localhost"))).await;
    assert!(harness.frontend.is_tls());
    let _worker = harness.script(&[b"Hel", b"lo"], Ending::Finish(Stop)).await;
    for (route, stream) in ALL_ROUTES {
        let body = ask(route, stream, "x", json!({})).to_string();
        let reply = trusting(&authority).ask(&harness, &request("POST", route, &body)).await.unwrap();
        assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{route}: {reply}");
        assert!(reply.contains("Hel"), "{route}: {reply}");
    }
    for protocols in [&[][..], &["h2", "http/1.1"][..]] {
        let peer = Peer { protocols, ..trusting(&authority) };
        let stream = peer.connect(&harness).await.unwrap();
        let agreed = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
        assert_eq!(agreed, (!protocols.is_empty()).then(|| b"http/1.1".to_vec()));
    }
    let other = Peer { protocols: &["spdy/1"], ..trusting(&authority) };
    assert!(other.connect(&harness).await.is_err(), "nothing in common");
    assert!(trusting(&Authority::new()).connect(&harness).await.is_err(), "another authority");
    eventually("the ledger balances", || harness.frontend.ledger().is_balanced()).await;
    eventually("all is closed", || harness.frontend.ledger().connections == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutual_tls_asks_for_a_certificate_of_the_right_authority() {
    let (authority, clients, folder) = (Authority::new(), Authority::new(), Folder::new());
    folder.write("clients.pem", &clients.pem);
    let settings = folder.settings(&authority.sign("localhost"));
    let harness = start(Config { tls_client_ca_cert_path: folder.path("clients.pem"), ..settings }).await;
    let (known, stranger) = (clients.sign("somebody"), authority.sign("stranger"));
    let live = request("GET", "/live", "");
    let peer = Peer { shows: Some(&known), ..trusting(&authority) };
    let reply = peer.ask(&harness, &live).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 OK"), "{reply}");
    for shows in [None, Some(&stranger)] {
        let peer = Peer { shows, ..trusting(&authority) };
        let refused = peer.ask(&harness, &live).await;
        assert!(refused.as_ref().map_or(true, String::is_empty), "{refused:?}");
    }
    eventually("all is closed", || harness.frontend.ledger().connections == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_speaks_plain_http_is_told_so_and_who_says_nothing_is_closed() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let settings = Config { tls_handshake_timeout_ms: 100, ..folder.settings(&authority.sign("localhost")) };
    let harness = start(settings).await;
    let mut client = crate::client::Client::connect(harness.address).await;
    let reply = client.ask("GET", "/live", &[], b"").await;
    assert_eq!(reply.status, 400);
    assert!(reply.error()["message"].as_str().unwrap().contains("https://"), "{}", reply.text());
    assert!(client.is_closed().await);
    for bytes in [&b""[..], b"\x16\x03\x01", b"\x16\x03\x01\x00\x05hello", b"\0\0\0\0"] {
        let mut client = crate::client::Client::connect(harness.address).await;
        client.write(bytes).await;
        while !client.is_closed().await {}
    }
    eventually("all is closed", || harness.frontend.ledger().connections == 0).await;
}

/// Before and after the first token, with and without unread bytes behind the request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r21_leaving_over_tls_reaches_the_engine() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let harness = start(folder.settings(&authority.sign("localhost"))).await;
    let worker = harness.script(&[b"begun"], Ending::Hang).await;
    let silent: Behaviour = Arc::new(|_| Ok((vec![], Ending::Hang)));
    let mute = harness.worker(2, card("mute", &[]), silent).await;
    for (route, stream) in ALL_ROUTES {
        for (model, engine) in [("m", &worker), ("mute", &mute)] {
            for behind in ["", "\r\n", "GET /live HTTP/1.1\r\nhost: t\r\n\r\n"] {
                let mut client = trusting(&authority).connect(&harness).await.unwrap();
                let body = ask(route, stream, "x", json!({"model": model})).to_string();
                let request = request("POST", route, &body).replace("connection: close\r\n", "");
                client.write_all(format!("{request}{behind}").as_bytes()).await.unwrap();
                eventually("the engine has the request", || engine.open() == 1).await;
                drop(client);
                eventually("the engine is told", || engine.open() == 0).await;
                eventually("the ledger balances", || harness.frontend.ledger().is_balanced()).await;
            }
        }
    }
}

/// The end of an answer may still be in the buffers of TLS when the server is told to stop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r29_a_drain_waits_for_answers_over_tls() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let harness = start(folder.settings(&authority.sign("localhost"))).await;
    let piece = vec![b'x'; 1 << 20];
    let pieces = vec![piece.as_slice(); 16];
    let worker = harness.script(&pieces, Ending::Finish(Stop)).await;
    let body = ask("/v1/completions", false, "x", json!({})).to_string();
    let mut client = trusting(&authority).connect(&harness).await.unwrap();
    client.write_all(request("POST", "/v1/completions", &body).as_bytes()).await.unwrap();
    eventually("the engine is done", || worker.requests().len() == 1 && worker.open() == 0).await;
    let drained = tokio::spawn(harness.frontend.drain());
    tokio::time::sleep(Duration::from_millis(1300)).await;
    let mut reply = Vec::new();
    let read = client.read_to_end(&mut reply);
    tokio::time::timeout(PATIENCE, read).await.expect("no answer").unwrap();
    assert!(reply.len() > 16 << 20, "{} bytes", reply.len());
    assert!(drained.await.unwrap(), "everything finished by itself");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_read_again_when_they_change() {
    let (old, new, folder) = (Authority::new(), Authority::new(), Folder::new());
    let harness = start(folder.settings(&old.sign("localhost"))).await;
    let live = request("GET", "/live", "");
    let mut kept = trusting(&old).connect(&harness).await.unwrap();
    // Half of a change, and nonsense: the old ones stay.
    let next = new.sign("localhost");
    folder.write("cert.pem", &next.cert);
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert!(trusting(&old).ask(&harness, &live).await.unwrap().starts_with("HTTP/1.1 200"));
    folder.write("key.pem", &next.key);
    let limit = tokio::time::Instant::now() + PATIENCE;
    while trusting(&new).ask(&harness, &live).await.is_err() {
        assert!(tokio::time::Instant::now() < limit, "the new certificate is not used");
    }
    assert!(trusting(&old).connect(&harness).await.is_err());
    kept.write_all(live.as_bytes()).await.unwrap();
    let mut reply = String::new();
    kept.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "connections that are open go on: {reply}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_cannot_work_are_one_clear_line() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let (one, two) = (authority.sign("localhost"), authority.sign("localhost"));
    let good = folder.settings(&one);
    folder.write("other-key.pem", &two.key);
    folder.write("nothing.pem", "nothing\n");
    folder.write(
        "encrypted.pem",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAA==\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    let path = |name: &str| folder.path(name);
    let cases = [
        (
            Config { tls_key_path: None, ..good.clone() },
            "tls_key_path: is needed together with tls_cert_path",
        ),
        (
            Config { tls_cert_path: None, ..good.clone() },
            "tls_cert_path: is needed together with tls_key_path",
        ),
        (Config { tls_client_ca_cert_path: path("cert.pem"), ..config() }, "tls_cert_path: is needed"),
        (Config { tls_cert_path: path("gone.pem"), ..good.clone() }, "gone.pem cannot be read: No such file"),
        (
            Config { tls_key_path: path("other-key.pem"), ..good.clone() },
            "does not belong to the certificate",
        ),
        (Config { tls_key_path: path("nothing.pem"), ..good.clone() }, "expected a private key"),
        (Config { tls_key_path: path("encrypted.pem"), ..good.clone() }, "without a passphrase"),
        (Config { tls_cert_path: path("key.pem"), ..good.clone() }, "expected certificates"),
        (
            Config { tls_client_ca_cert_path: path("nothing.pem"), ..good.clone() },
            "tls_client_ca_cert_path: ",
        ),
        (Config { tls_handshake_timeout_ms: 0, ..good.clone() }, "tls_handshake_timeout_ms: must be above 0"),
    ];
    for (settings, part) in cases {
        let error = Frontend::start(settings, services()).await.err().unwrap().to_string();
        assert!(error.contains(part), "expected {part:?}: {error}");
        assert_eq!(error.lines().count(), 1);
    }
}
