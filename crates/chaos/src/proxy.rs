//! The network in front of one process, which can be made to fail.

use crate::schedule::Weather;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

/// Where proxies are. Nobody else uses it, nor takes its ports for connections of its own.
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Where those are that proxies lead to.
pub(crate) const BEHIND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

/// Read at once. Frames of a step are smaller, those of snapshots larger.
const CHUNK_BYTES: usize = 4096;

/// How often a port that was given up is tried again.
const BIND_AGAIN: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, Default)]
struct State {
    weather: Weather,
    /// Times that connections were cut.
    cuts: u64,
}

/// Connections to it go on to a process. Ends when dropped.
pub(crate) struct Proxy {
    address: SocketAddrV4,
    state: watch::Sender<State>,
    task: AbortHandle,
}

impl Proxy {
    /// At a free port of `host`, in front of the same port of [`BEHIND`] or of somebody else.
    pub(crate) async fn start(host: Ipv4Addr, to: Option<SocketAddrV4>) -> io::Result<Self> {
        let listener = TcpListener::bind((host, 0)).await?;
        let address = SocketAddrV4::new(host, listener.local_addr()?.port());
        let to = to.unwrap_or(SocketAddrV4::new(BEHIND, address.port()));
        let (state, seen) = watch::channel(State::default());
        let task = tokio::spawn(serve(listener, address, to, seen)).abort_handle();
        Ok(Self { address, state, task })
    }

    pub(crate) fn address(&self) -> SocketAddrV4 {
        self.address
    }

    pub(crate) fn set(&self, weather: Weather) {
        self.state.send_modify(|state| state.weather = weather);
    }

    pub(crate) fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    listener: TcpListener,
    address: SocketAddrV4,
    to: SocketAddrV4,
    mut state: watch::Receiver<State>,
) {
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    loop {
        if state.borrow_and_update().weather == Weather::Refused {
            listener = None;
        } else if listener.is_none() {
            match TcpListener::bind(address).await {
                Ok(bound) => listener = Some(bound),
                Err(_) => sleep(BIND_AGAIN).await,
            }
            continue;
        }
        tokio::select! {
            changed = state.changed() => if changed.is_err() { return },
            Some(accepted) = accept(listener.as_ref()) => {
                connections.spawn(carry(accepted, to.into(), state.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Never, without a listener.
async fn accept(listener: Option<&TcpListener>) -> Option<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.ok().map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

async fn carry(near: TcpStream, to: SocketAddr, state: watch::Receiver<State>) {
    let Ok(far) = TcpStream::connect(to).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let cuts = state.borrow().cuts;
    let mut refused = state.clone();
    let (from_near, to_near) = near.into_split();
    let (from_far, to_far) = far.into_split();
    // Whichever ends first ends the connection, as the end of a process would.
    tokio::select! {
        () = pump(from_near, to_far, state.clone(), None) => {}
        () = pump(from_far, to_near, state, Some(cuts)) => {}
        _ = refused.wait_for(|state| state.weather == Weather::Refused) => {}
    }
}

/// `cuts`: half of what came last is passed on when there have been more. None: it is not cut.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<State>,
    cuts: Option<u64>,
) {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let Ok(count @ 1..) = from.read(&mut chunk).await else { return };
        // Nothing arrives, and what waits is not lost.
        let Ok(now) = state.wait_for(|state| state.weather != Weather::Silent).await.map(|state| *state)
        else {
            return;
        };
        if let Weather::Slow(late_ms) = now.weather {
            sleep(Duration::from_millis(late_ms)).await;
        }
        let is_cut = cuts.is_some_and(|cuts| now.cuts > cuts);
        let passed = if is_cut { count / 2 } else { count };
        if to.write_all(&chunk[..passed]).await.is_err() || is_cut {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    const LIMIT: Duration = Duration::from_secs(20);

    /// One that says everything again.
    async fn echo(port: u16) -> JoinSet<()> {
        let listener = TcpListener::bind((BEHIND, port)).await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut all = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (mut from, mut to) = stream.into_split();
                all.spawn(async move { tokio::io::copy(&mut from, &mut to).await });
            }
        });
        tasks
    }

    async fn say(stream: &mut TcpStream, words: &[u8]) -> io::Result<Vec<u8>> {
        stream.write_all(words).await?;
        let mut heard = vec![0; words.len()];
        stream.read_exact(&mut heard).await?;
        Ok(heard)
    }

    #[tokio::test]
    async fn weather_does_what_it_says() {
        let proxy = Proxy::start(HOST, None).await.unwrap();
        let address = proxy.address();
        let _behind = echo(address.port()).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        assert_eq!(say(&mut stream, b"fair").await.unwrap(), b"fair");
        // What was sent into the silence arrives after it.
        proxy.set(Weather::Silent);
        stream.write_all(b"silent").await.unwrap();
        proxy.set(Weather::Slow(1));
        let mut heard = [0; 6];
        timeout(LIMIT, stream.read_exact(&mut heard)).await.unwrap().unwrap();
        assert_eq!(&heard, b"silent");
        // Cut: half of what comes, then the end.
        proxy.cut();
        stream.write_all(b"cut!").await.unwrap();
        let mut rest = Vec::new();
        let _ = timeout(LIMIT, stream.read_to_end(&mut rest)).await.unwrap();
        assert_eq!(rest, b"cu");
        let mut again = TcpStream::connect(address).await.unwrap();
        assert_eq!(say(&mut again, b"again").await.unwrap(), b"again");
        // Refused: what is there ends, nothing new comes, and fair weather comes back.
        proxy.set(Weather::Refused);
        let ended = timeout(LIMIT, again.read(&mut [0])).await.unwrap();
        assert!(matches!(ended, Ok(0) | Err(_)));
        let refused = async { while TcpStream::connect(address).await.is_ok() {} };
        timeout(LIMIT, refused).await.unwrap();
        proxy.set(Weather::Fair);
        let back = async {
            loop {
                if let Ok(mut stream) = TcpStream::connect(address).await
                    && let Ok(heard) = say(&mut stream, b"back").await
                {
                    return heard;
                }
                sleep(BIND_AGAIN).await;
            }
        };
        assert_eq!(timeout(LIMIT, back).await.unwrap(), b"back");
    }
}
