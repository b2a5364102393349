//! A NATS server of a test's own, and ways to it that can be cut.

use super::{Login, Options};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// A process of its own on a free port, in a directory of its own. Dropping it ends it.
pub(super) struct Process {
    directory: PathBuf,
    /// Besides address and port.
    config: String,
    child: Option<Child>,
    /// 0: it does not run.
    port: Arc<AtomicU16>,
}

impl Process {
    pub(super) async fn start(config: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("dynamo-nats-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(unique);
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory).unwrap();
        let mut server = Self { directory, config: config.to_owned(), child: None, port: Arc::default() };
        server.run().await;
        server
    }

    pub(super) async fn run(&mut self) {
        let config = format!("host: 127.0.0.1\nport: -1\n{}", self.config);
        std::fs::write(self.directory.join("config"), config).unwrap();
        let child = Command::new("nats-server")
            .current_dir(&self.directory)
            .args(["-c", "config", "--ports_file_dir", "."])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("nats-server cannot be started (Debian: nats-server): {error}");
        });
        let ports = self.directory.join(format!("nats-server_{}.ports", child.id()));
        self.child = Some(child);
        let start = Instant::now();
        let port = loop {
            let text = std::fs::read_to_string(&ports).unwrap_or_default();
            let found = text.split("127.0.0.1:").nth(1).and_then(|rest| rest.split('"').next()?.parse().ok());
            if let Some(port) = found {
                break port;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "nats-server says no port: {text}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        self.port.store(port, Ordering::Release);
    }

    pub(super) fn kill(&mut self) {
        self.port.store(0, Ordering::Release);
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub(super) async fn way(&self) -> Way {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let open = watch::Sender::new(true);
        let task = tokio::spawn(accept(listener, Arc::clone(&self.port), open.subscribe())).abort_handle();
        Way { address, open, task }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// An address that leads to the server, on whatever port it is.
pub(super) struct Way {
    pub(super) address: String,
    open: watch::Sender<bool>,
    task: AbortHandle,
}

impl Way {
    /// While it is cut, connections break, and new ones too.
    pub(super) fn cut(&self) {
        self.open.send_replace(false);
    }

    pub(super) fn mend(&self) {
        self.open.send_replace(true);
    }

    /// Patient with a busy machine.
    pub(super) fn options(&self) -> Options {
        Options {
            servers: vec![self.address.clone()],
            login: Login::None,
            connect_timeout: Duration::from_secs(20),
            startup_timeout: Duration::from_secs(60),
            beat_every: Duration::from_secs(1),
            dead_after: Duration::from_secs(20),
        }
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, port: Arc<AtomicU16>, open: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    while let Ok((mut client, _)) = listener.accept().await {
        let (port, mut open) = (port.load(Ordering::Acquire), open.clone());
        connections.spawn(async move {
            if !*open.borrow() {
                return;
            }
            let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
            tokio::select! {
                _ = open.wait_for(|open| !*open) => {}
                _ = copy_bidirectional(&mut client, &mut server) => {}
            }
        });
    }
}
