//! TLS of either side: certificates, keys and authorities out of files, which may change while we run, and what goes
//! wrong in a handshake, in words.

mod load;
mod reason;

pub use reason::reason;

use crate::follow::{self, Change, LOOK_EVERY, Verdict};
use crate::sync::{read, write};
use rustls::{ClientConfig, ServerConfig};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use tokio::task::AbortHandle;

/// Far above any chain of certificates: a larger file is some other file.
const FILE_MAX_BYTES: u64 = 1024 * 1024;

/// The settings that name the files, so that a fault names its setting.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    pub cert: &'static str,
    pub key: &'static str,
    pub authorities: &'static str,
}

/// Where one side's part of TLS is kept, as PEM.
#[derive(Clone, Debug)]
pub struct Files {
    pub names: Names,
    /// This side's certificate with its chain, and the key of it.
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// Who signs the certificates of the other side.
    pub authorities: Option<PathBuf>,
}

/// A setting and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub key: &'static str,
    pub reason: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.reason)
    }
}

impl std::error::Error for Fault {}

impl Fault {
    fn of(key: &'static str) -> impl Fn(String) -> Self {
        move |reason| Self { key, reason }
    }
}

/// What the files hold.
#[derive(PartialEq)]
struct Material {
    cert: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
    authorities: Option<Vec<u8>>,
}

impl Files {
    fn is_empty(&self) -> bool {
        self.cert.is_none() && self.key.is_none() && self.authorities.is_none()
    }

    fn read(&self) -> Result<Material, Fault> {
        let content = |key: &'static str, path: Option<&Path>| {
            path.map(|path| follow::content(path, FILE_MAX_BYTES).map_err(Fault::of(key))).transpose()
        };
        Ok(Material {
            cert: content(self.names.cert, self.cert.as_deref())?,
            key: content(self.names.key, self.key.as_deref())?,
            authorities: content(self.names.authorities, self.authorities.as_deref())?,
        })
    }
}

/// Which side it is, and what its users make of the configuration.
enum Side<C> {
    Accepts(fn(ServerConfig) -> C),
    Connects(fn(ClientConfig) -> C),
}

struct Loaded<C> {
    material: Arc<Material>,
    config: C,
}

impl<C: Clone> Clone for Loaded<C> {
    fn clone(&self) -> Self {
        Self { material: Arc::clone(&self.material), config: self.config.clone() }
    }
}

impl<C> PartialEq for Loaded<C> {
    fn eq(&self, other: &Self) -> bool {
        self.material == other.material
    }
}

struct State<C> {
    files: Files,
    side: Side<C>,
    current: RwLock<Loaded<C>>,
}

/// The configuration that the files make, now: they are read again when they change, until this is dropped. Connections
/// that are open stay as they are.
pub struct Live<C> {
    state: Arc<State<C>>,
    following: AbortHandle,
}

impl<C> Drop for Live<C> {
    fn drop(&mut self) {
        self.following.abort();
    }
}

impl<C> fmt::Debug for Live<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Live").field(&self.state.files).finish()
    }
}

impl<C: Clone + Send + Sync + 'static> Live<C> {
    /// The side that accepts; with `authorities` it asks for certificates of theirs. None: no file is named.
    ///
    /// # Errors
    /// The setting: one of two files is not named, cannot be read, has nothing of its kind in it, or does not fit the
    /// other.
    pub fn accepting(files: Files, make: fn(ServerConfig) -> C) -> Result<Option<Self>, Fault> {
        Self::open(files, Side::Accepts(make))
    }

    /// The side that connects, and takes what `authorities` signed; with a certificate of its own it shows it when it is
    /// asked to. None: no file is named.
    ///
    /// # Errors
    /// As for [`Live::accepting`].
    pub fn connecting(files: Files, make: fn(ClientConfig) -> C) -> Result<Option<Self>, Fault> {
        Self::open(files, Side::Connects(make))
    }

    fn open(files: Files, side: Side<C>) -> Result<Option<Self>, Fault> {
        if files.is_empty() {
            return Ok(None);
        }
        let loaded = side.load(&files, files.read()?)?;
        let state = Arc::new(State { files, side, current: RwLock::new(loaded) });
        let following = tokio::spawn(follow(Arc::clone(&state))).abort_handle();
        Ok(Some(Self { state, following }))
    }

    pub fn current(&self) -> C {
        read(&self.state.current).config.clone()
    }
}

impl<C: Clone> Side<C> {
    fn load(&self, files: &Files, material: Material) -> Result<Loaded<C>, Fault> {
        let config = match self {
            Self::Accepts(make) => make(files.server(&material)?),
            Self::Connects(make) => make(files.client(&material)?),
        };
        Ok(Loaded { material: Arc::new(material), config })
    }
}

impl<C: Clone> State<C> {
    /// What the files say now; `before` if nothing has changed.
    fn look(&self, before: Loaded<C>) -> Result<Loaded<C>, String> {
        let loaded = self.files.read().and_then(|material| {
            if material == *before.material { Ok(before) } else { self.side.load(&self.files, material) }
        });
        loaded.map_err(|fault| fault.to_string())
    }
}

async fn follow<C: Clone + Send + Sync + 'static>(state: Arc<State<C>>) {
    let mut change = Change::default();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let valid = read(&state.current).clone();
        let (looking, before) = (Arc::clone(&state), valid.clone());
        let Ok(found) = tokio::task::spawn_blocking(move || looking.look(before)).await else { continue };
        match change.seen(found, &valid) {
            Verdict::Nothing => {}
            Verdict::Take(loaded) => {
                tracing::info!("the TLS certificates have changed");
                *write(&state.current) = loaded;
            }
            Verdict::Complain(reason) => {
                tracing::warn!("the TLS certificates stay as they were: {reason}");
            }
        }
    }
}
