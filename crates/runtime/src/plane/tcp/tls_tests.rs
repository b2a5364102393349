//! The transport over TLS: the whole suite, and every way in which two sides do not come together.

use super::super::conformance::{self, Holder, last, request};
use super::super::wire::{Caller, Options};
use super::super::{Handler, RequestPlane};
use super::tests::{Answer, Pair, listener};
use super::{Dialer, Tls};
use crate::events::Local;
use crate::tls::{Files, Names};
use dynamo_types::{Delta, InstanceId, Transport};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// An authority that signs.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }
}

/// Files that are gone after the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("dynamo-plane-tls-{}-{count}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> Option<PathBuf> {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        Some(path)
    }

    /// `name-cert.pem` and `name-key.pem`, for this host.
    fn identity(&self, name: &str, authority: &Authority, host: &str) -> (Option<PathBuf>, Option<PathBuf>) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        let cert = params.signed_by(&key, &authority.issuer).unwrap().pem();
        (
            self.write(&format!("{name}-cert.pem"), &cert),
            self.write(&format!("{name}-key.pem"), &key.serialize_pem()),
        )
    }

    fn authority(&self, name: &str, authority: &Authority) -> Option<PathBuf> {
        self.write(&format!("{name}-ca.pem"), &authority.pem)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn files(identity: (Option<PathBuf>, Option<PathBuf>), authorities: Option<PathBuf>) -> Files {
    let names = Names { cert: "cert", key: "key", authorities: "ca" };
    Files { names, cert: identity.0, key: identity.1, authorities }
}

fn none() -> Files {
    files((None, None), None)
}

fn options() -> Options {
    // A handshake is work, and the machine of the tests may be busy.
    Options { connect_timeout: Duration::from_secs(20), ..Options::default() }
}

async fn over(tls: Tls) -> Pair {
    Pair::over(tls, options()).await
}

fn caller(tls: &Tls, options: Options) -> Caller {
    Caller::new(options, Arc::new(Local::default()), Arc::new(Dialer::new(tls)))
}

/// How the caller's request ends at this address, whether the connection was found out about before or after it began.
async fn ask(caller: &Caller, address: &str) -> dynamo_types::Result<Delta> {
    let instance = conformance::instance(1, &Transport::Tcp(address.to_owned()));
    caller.call(&instance, request(&[1])).await?.next().await.unwrap()
}

/// What the caller is told when it calls this address.
async fn fault(tls: Tls, address: &str) -> String {
    let caller = caller(&tls, options());
    let error = ask(&caller, address).await.expect_err("it is refused");
    assert!(error.retryable(), "another worker may do: {error}");
    error.detail().unwrap().to_owned()
}

fn address(pair: &Pair) -> String {
    let Transport::Tcp(address) = &pair.setup.transport else { panic!("not over TCP") };
    address.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms_over_tls_and_over_mutual_tls() {
    let (workers, callers, folder) = (Authority::new("one"), Authority::new("two"), Folder::new());
    for mutual in [false, true] {
        let (asked, shown) = if mutual {
            (folder.authority("callers", &callers), folder.identity("caller", &callers, "frontend"))
        } else {
            (None, (None, None))
        };
        let accept = files(folder.identity("worker", &workers, "127.0.0.1"), asked);
        let connect = files(shown, folder.authority("workers", &workers));
        let pair = over(Tls::open(accept, connect, None).unwrap()).await;
        assert!(address(&pair).starts_with("tls://127.0.0.1:"), "{}", address(&pair));
        conformance::suite(&pair.setup).await;
        assert_eq!(pair.caller.connection_count(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_larger_than_any_buffer_cross_whole() {
    let (authority, folder) = (Authority::new("one"), Folder::new());
    let accept = files(folder.identity("worker", &authority, "127.0.0.1"), None);
    let connect = files((None, None), folder.authority("workers", &authority));
    let pair = over(Tls::open(accept, connect, None).unwrap()).await;
    let holder = Arc::new(Holder::default());
    let _guard = pair.setup.served.serve(InstanceId(1), holder.clone());
    let long: Vec<u32> = (0..500_000).collect();
    let mut prompt = long.clone();
    prompt[0] = 1;
    let mut stream = pair.caller.call(&pair.setup.instance(1), request(&prompt)).await.unwrap();
    holder.has(1).await;
    holder.push(1, last(&long));
    assert_eq!(stream.next().await, Some(Ok(last(&long))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sides_that_do_not_agree_on_tls_are_told_so() {
    let (authority, folder) = (Authority::new("one"), Folder::new());
    let ca = || folder.authority("workers", &authority);
    let accept = files(folder.identity("worker", &authority, "127.0.0.1"), None);
    let secure = over(Tls::open(accept, none(), None).unwrap()).await;
    let plain = over(Tls::default()).await;
    let trusting = || Tls::open(none(), files((None, None), ca()), None).unwrap();
    let (tls_address, plain_address) = (address(&secure), address(&plain));

    // What discovery says is known before anything is sent.
    let told = fault(Tls::default(), &tls_address).await;
    assert!(told.contains("speaks TLS, this caller plain TCP"), "{told}");
    let told = fault(trusting(), &plain_address).await;
    assert!(told.contains("speaks plain TCP, this caller TLS"), "{told}");
    // What discovery says is wrong: the other side tells.
    let told = fault(Tls::default(), tls_address.strip_prefix("tls://").unwrap()).await;
    assert!(told.contains("this worker speaks TLS only, the caller plain TCP"), "{told}");
    let told = fault(trusting(), &format!("tls://{plain_address}")).await;
    assert!(told.contains("the other side does not speak TLS"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_do_not_fit_are_named() {
    let (workers, callers, folder) = (Authority::new("one"), Authority::new("two"), Folder::new());
    let (workers_ca, callers_ca) =
        (folder.authority("workers", &workers), folder.authority("callers", &callers));
    let accept = files(folder.identity("worker", &workers, "127.0.0.1"), None);
    let pair = over(Tls::open(accept, none(), None).unwrap()).await;
    let accept = files(folder.identity("mutual", &workers, "127.0.0.1"), callers_ca.clone());
    let mutual = over(Tls::open(accept, none(), None).unwrap()).await;
    let trusting = |authorities, shown, name| {
        let name = Some(("name", name));
        Tls::open(none(), files(shown, authorities), name).unwrap()
    };
    let nothing = (None, None);

    let told = fault(trusting(callers_ca, nothing.clone(), "127.0.0.1"), &address(&pair)).await;
    assert!(told.contains("no authority that is trusted here"), "{told}");
    let told = fault(trusting(workers_ca.clone(), nothing.clone(), "else.where"), &address(&pair)).await;
    assert!(told.contains("certificate of the other side") && told.contains("else.where"), "{told}");
    let told = fault(trusting(workers_ca.clone(), nothing, "127.0.0.1"), &address(&mutual)).await;
    assert!(told.contains("asks for a certificate, and none is set here"), "{told}");
    let stranger = folder.identity("stranger", &workers, "frontend");
    let told = fault(trusting(workers_ca, stranger, "127.0.0.1"), &address(&mutual)).await;
    assert!(told.contains("does not trust the authority of the certificate that is shown here"), "{told}");
}

#[tokio::test]
async fn a_handshake_without_an_end_ends_with_the_time_for_connecting() {
    let (authority, folder) = (Authority::new("one"), Folder::new());
    let mute = listener().await;
    let connect = files((None, None), folder.authority("workers", &authority));
    let tls = Tls::open(none(), connect, None).unwrap();
    let caller = caller(&tls, Options { connect_timeout: Duration::from_millis(200), ..options() });
    let address = format!("tls://{}", mute.local_addr().unwrap());
    let error = ask(&caller, &address).await.unwrap_err();
    assert!(error.detail().unwrap().contains("no connection within 200 ms"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_read_again_when_they_change() {
    let (old, new, folder) = (Authority::new("one"), Authority::new("two"), Folder::new());
    let accept = files(folder.identity("worker", &old, "127.0.0.1"), None);
    let connect = files((None, None), folder.authority("workers", &old));
    let pair = over(Tls::open(accept, connect, None).unwrap()).await;
    let handler: Arc<dyn Handler> = Arc::new(Answer);
    let _guard = pair.setup.served.serve(InstanceId(1), handler);
    assert_eq!(pair.setup.fold(1, &[1]).await, Ok(last(&[1])));
    folder.identity("worker", &new, "127.0.0.1");
    // Somebody who knows the new authority only is a caller from when the worker has the new certificate.
    let other = folder.authority("new", &new);
    let connect = || Tls::open(none(), files((None, None), other.clone()), None).unwrap();
    let limit = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let caller = caller(&connect(), options());
        match ask(&caller, &address(&pair)).await {
            Ok(delta) => {
                assert_eq!(delta, last(&[1]));
                break;
            }
            Err(error) => assert!(tokio::time::Instant::now() < limit, "{error}: the old one is still used"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(pair.setup.fold(1, &[3]).await, Ok(last(&[3])), "connections that are open go on");
}
