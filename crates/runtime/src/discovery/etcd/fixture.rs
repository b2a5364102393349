//! An etcd of a test's own, and a way to it that can be disturbed.

use crate::sync::lock;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// The socket that etcd makes of `unix://client:0` in its working directory.
const SOCKET: &str = "client:0";

/// A process of its own, in a directory of its own, that listens on no port. Dropping it ends it.
pub(super) struct Server {
    directory: PathBuf,
    child: Option<Child>,
}

impl Server {
    pub(super) async fn start() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("dynamo-etcd-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(unique);
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory).unwrap();
        let mut server = Self { directory, child: None };
        server.run().await;
        server
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.directory.join(SOCKET)
    }

    pub(super) async fn run(&mut self) {
        let _ = std::fs::remove_file(self.socket());
        let peer = "unix://peer:0";
        let child = Command::new("etcd")
            .current_dir(&self.directory)
            .args(["--data-dir", "data", "--listen-client-urls", "unix://client:0"])
            .args(["--advertise-client-urls", "http://127.0.0.1:1", "--listen-peer-urls", peer])
            .args(["--initial-advertise-peer-urls", peer, "--initial-cluster", &format!("default={peer}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child =
            child.unwrap_or_else(|error| panic!("etcd cannot be started (Debian: etcd-server): {error}"));
        self.child = Some(child);
        let start = Instant::now();
        while UnixStream::connect(self.socket()).await.is_err() {
            assert!(start.elapsed() < Duration::from_secs(60), "etcd does not listen");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// What it held is lost.
    pub(super) fn empty(&self) {
        std::fs::remove_dir_all(self.directory.join("data")).unwrap();
    }

    pub(super) fn signal(&self, name: &str) {
        let id = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Open,
    /// Connections break, and new ones too.
    Cut,
    /// Calls are answered; but those that stay open, which are watches, say nothing any more.
    Mute,
}

/// A port that leads to a server. It stays bound, whatever becomes of the server.
pub(super) struct Proxy {
    pub(super) address: String,
    way: watch::Sender<Way>,
    task: AbortHandle,
}

impl Proxy {
    pub(super) async fn to(socket: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let way = watch::Sender::new(Way::Open);
        let task = tokio::spawn(accept(listener, socket.to_owned(), way.subscribe())).abort_handle();
        Self { address, way, task }
    }

    pub(super) fn set(&self, way: Way) {
        self.way.send_replace(way);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, socket: PathBuf, way: watch::Receiver<Way>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let (socket, mut until, way) = (socket.clone(), way.clone(), way.clone());
        connections.spawn(async move {
            let Ok(server) = UnixStream::connect(socket).await else { return };
            let (client, server) = (client.into_split(), server.into_split());
            let ended = Mutex::new(BTreeSet::new());
            tokio::select! {
                _ = until.wait_for(|way| *way == Way::Cut) => {}
                _ = up(client.0, server.1, &ended) => {}
                _ = down(server.0, client.1, &ended, way) => {}
            }
        });
    }
}

/// One frame of HTTP/2: head and content.
async fn frame(from: &mut (impl AsyncRead + Unpin)) -> io::Result<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    from.read_exact(&mut head).await?;
    let [l0, l1, l2, kind, flags, stream @ ..] = head;
    let mut frame = head.to_vec();
    frame.resize(9 + u32::from_be_bytes([0, l0, l1, l2]) as usize, 0);
    from.read_exact(&mut frame[9..]).await?;
    Ok((kind, flags, u32::from_be_bytes(stream), frame))
}

/// From the client; notes which of its calls have all been said.
async fn up(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    ended: &Mutex<BTreeSet<u32>>,
) -> io::Result<()> {
    let mut preface = [0; 24];
    from.read_exact(&mut preface).await?;
    to.write_all(&preface).await?;
    loop {
        let (kind, flags, stream, frame) = frame(&mut from).await?;
        // Of headers and data: the last of this side.
        if kind <= 1 && flags & 1 != 0 {
            lock(ended).insert(stream);
        }
        to.write_all(&frame).await?;
    }
}

async fn down(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    ended: &Mutex<BTreeSet<u32>>,
    way: watch::Receiver<Way>,
) -> io::Result<()> {
    loop {
        let (kind, _, stream, frame) = frame(&mut from).await?;
        let is_muted = kind == 0 && *way.borrow() == Way::Mute && !lock(ended).contains(&stream);
        if !is_muted {
            to.write_all(&frame).await?;
        }
    }
}

/// A server, and two ways to it: the one that tests disturb, and one that stays open.
pub(super) struct Store {
    pub(super) server: tokio::sync::Mutex<Server>,
    pub(super) proxy: Proxy,
    pub(super) undisturbed: Proxy,
}

impl Store {
    pub(super) async fn start() -> Arc<Self> {
        let server = Server::start().await;
        let (proxy, undisturbed) = (Proxy::to(&server.socket()).await, Proxy::to(&server.socket()).await);
        Arc::new(Self { server: server.into(), proxy, undisturbed })
    }
}
