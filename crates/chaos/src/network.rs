//! Where the processes of a campaign are, and what lies between them.

use crate::proxy::{self, Proxy};
use crate::schedule::Weather;
use crate::wire::{self, Wire};
use std::net::{Ipv4Addr, SocketAddrV4};

/// Of a worker that has a host of its own, where all ports are free.
const PORT: u16 = 7000;

/// How processes are kept apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Namespaces where there are any
    #[default]
    Auto,
    /// Every second worker has a network namespace, the others a proxy that can do more
    Namespaces,
    /// All workers have a proxy
    Proxies,
}

/// What lies in front of one process.
pub(crate) enum Link {
    Proxy(Proxy),
    Wire(Wire),
}

impl Link {
    /// In front of the `number`th worker.
    ///
    /// # Errors
    /// One line: what cannot be done.
    pub(crate) async fn to_worker(number: usize, kind: Kind) -> Result<Self, String> {
        if kind == Kind::Namespaces && number.is_multiple_of(2) {
            return Ok(Self::Wire(Wire::lay(number)?));
        }
        Ok(Self::Proxy(proxied(proxy::HOST, None).await?))
    }

    /// In front of a store, for everybody.
    ///
    /// # Errors
    /// One line: no port is free.
    pub(crate) async fn to_store() -> Result<Self, String> {
        Ok(Self::Proxy(proxied(proxy::HOST, None).await?))
    }

    /// Where the process that is reached by it listens.
    pub(crate) fn inner(&self) -> SocketAddrV4 {
        match self {
            Self::Proxy(proxy) => SocketAddrV4::new(proxy::BEHIND, proxy.address().port()),
            Self::Wire(wire) => SocketAddrV4::new(wire.address(), PORT),
        }
    }

    /// Where others find it.
    pub(crate) fn outer(&self) -> SocketAddrV4 {
        match self {
            Self::Proxy(proxy) => proxy.address(),
            Self::Wire(_) => self.inner(),
        }
    }

    /// What a command begins with that runs behind it.
    pub(crate) fn prefix(&self) -> Vec<String> {
        match self {
            Self::Proxy(_) => Vec::new(),
            Self::Wire(wire) => wire.prefix(),
        }
    }

    /// The process's own way to the store at `store`.
    ///
    /// # Errors
    /// One line: no port is free.
    pub(crate) async fn way_to(link: Option<&Self>, store: SocketAddrV4) -> Result<Proxy, String> {
        let host = if matches!(link, Some(Self::Wire(_))) { wire::HERE } else { proxy::HOST };
        proxied(host, Some(store)).await
    }

    /// A cable knows two kinds of weather.
    ///
    /// # Errors
    /// One line: what cannot be done.
    pub(crate) fn set(&self, weather: Weather) -> Result<(), String> {
        match self {
            Self::Proxy(proxy) => proxy.set(weather),
            Self::Wire(wire) => wire.plug(weather == Weather::Fair)?,
        }
        Ok(())
    }

    /// Connections end in the middle of a frame; a cable is out for a moment.
    ///
    /// # Errors
    /// One line: what cannot be done.
    pub(crate) fn cut(&self) -> Result<(), String> {
        match self {
            Self::Proxy(proxy) => proxy.cut(),
            Self::Wire(wire) => wire.plug(false).and_then(|()| wire.plug(true))?,
        }
        Ok(())
    }
}

async fn proxied(host: Ipv4Addr, to: Option<SocketAddrV4>) -> Result<Proxy, String> {
    Proxy::start(host, to).await.map_err(|error| format!("a proxy at {host}: {error}"))
}
