//! One process of the fleet through its lives, and what is done to it.

use crate::board::{Board, Life};
use crate::cases::{MOCK_MODEL, REAL_MODEL};
use crate::client::get;
use crate::log::Law;
use crate::network::{Kind, Link};
use crate::options::Options;
use crate::process::{Process, Signal};
use crate::proxy::Proxy;
use crate::schedule::{Action, Fleet, Group, Step};
use std::net::{SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// A start on a machine that does a lot else.
const START_LIMIT: Duration = Duration::from_secs(90);

/// A drain that takes longer ends answers, by the rules. On a machine that does a lot else it may take that long.
const DRAIN_LIMIT: Duration = Duration::from_secs(200);

/// Longer than a drain may take.
const STOP_LIMIT: Duration = Duration::from_secs(240);

const POLL: Duration = Duration::from_millis(25);

/// How processes find each other.
#[derive(Clone, Debug)]
pub(crate) enum Store {
    Folder(PathBuf),
    Etcd(SocketAddrV4),
}

/// A process that is started again and again at the same address.
pub(crate) struct Member {
    number: usize,
    name: String,
    group: Group,
    command: Vec<String>,
    /// What a store keeps.
    data: Option<PathBuf>,
    /// Of the whole fleet.
    models: Vec<&'static str>,
    /// From the others to it.
    link: Option<Link>,
    /// From it to the store.
    way: Option<Proxy>,
    process: Option<Process>,
    lives: u32,
    life: Option<Arc<Life>>,
    /// It was told to end.
    is_leaving: bool,
    is_broken: bool,
    board: Arc<Board>,
}

impl Member {
    /// A frontend or a worker.
    ///
    /// # Errors
    /// One line: no port is free, or there is no program.
    pub(crate) async fn new(
        number: usize,
        options: &Options,
        network: Kind,
        store: &Store,
        board: &Arc<Board>,
    ) -> Result<Self, String> {
        let fleet = options.fleet();
        let group = fleet.group(number);
        let link = match group.is_workers() {
            true => Some(Link::to_worker(number - fleet.frontends, network).await?),
            false => None,
        };
        let mut way = None;
        let mut flags = flags(group, options, link.as_ref());
        match store {
            Store::Folder(folder) => {
                flags.extend(["--discovery-backend".into(), "file".into()]);
                flags.extend(["--discovery-path".into(), folder.display().to_string()]);
            }
            Store::Etcd(address) => {
                let proxy = Link::way_to(link.as_ref(), *address).await?;
                flags.extend(["--discovery-backend".into(), "etcd".into(), "--set".into()]);
                flags.push(format!("discovery.etcd_endpoints=http://{}", proxy.address()));
                way = Some(proxy);
            }
        }
        flags.extend(options.set.iter().flat_map(|pair| ["--set".to_owned(), pair.clone()]));
        let mut command = link.as_ref().map(Link::prefix).unwrap_or_default();
        command.push(options.program()?.display().to_string());
        command.extend(flags);
        Ok(Self { link, way, ..Self::idle(number, &fleet, command, options, board) })
    }

    /// A store, reached by `link`.
    pub(crate) fn store(number: usize, options: &Options, link: Link, board: &Arc<Board>) -> Self {
        let data = board.log.folder().join("etcd");
        let (inner, outer) = (link.inner(), link.outer());
        // Nobody is told of a peer, so any port will do.
        let peer = format!("http://{}:0", inner.ip());
        let data_flag = data.display().to_string();
        let (listen, advertise) = (format!("http://{inner}"), format!("http://{outer}"));
        let pairs = [
            ("--data-dir", data_flag.as_str()),
            ("--listen-client-urls", &listen),
            ("--advertise-client-urls", &advertise),
            ("--listen-peer-urls", &peer),
        ];
        let flags = pairs.iter().flat_map(|(name, value)| [(*name).to_owned(), (*value).to_owned()]);
        let command = std::iter::once("etcd".to_owned()).chain(flags).collect();
        let idle = Self::idle(number, &options.fleet(), command, options, board);
        Self { link: Some(link), data: Some(data), ..idle }
    }

    fn idle(
        number: usize,
        fleet: &Fleet,
        command: Vec<String>,
        options: &Options,
        board: &Arc<Board>,
    ) -> Self {
        Self {
            number,
            name: fleet.name(number),
            group: fleet.group(number),
            command,
            data: None,
            models: options.models(),
            link: None,
            way: None,
            process: None,
            lives: 0,
            life: None,
            is_leaving: false,
            is_broken: false,
            board: Arc::clone(board),
        }
    }

    pub(crate) fn number(&self) -> usize {
        self.number
    }

    fn fault(&self, what: &str) {
        self.board.log.fault(Law::Processes, format!("{} (life {}): {what}", self.name, self.lives));
    }

    /// Starts it and waits until it says that it serves.
    pub(crate) async fn start(&mut self) {
        self.lives += 1;
        self.is_leaving = false;
        let log = self.board.log.folder().join(format!("{}.{}.log", self.name, self.lives));
        match Process::start(&self.command, log) {
            Ok(process) => self.process = Some(process),
            Err(error) => return self.fault(&format!("cannot be started: {error}")),
        }
        let mark = match self.group {
            Group::Frontends => "listening on http://",
            Group::MockWorkers | Group::ModelWorkers => "serving ",
            Group::Stores => "ready to serve client requests",
        };
        let begun = Instant::now();
        let said = loop {
            let Some(process) = &mut self.process else { return };
            if let Some(said) = process.said(mark) {
                break said;
            }
            if let Some(status) = process.ended() {
                return self.fault(&format!("ended while it started: {status}"));
            }
            if begun.elapsed() > START_LIMIT {
                return self.fault("does not say that it serves");
            }
            sleep(POLL).await;
        };
        if self.group == Group::Frontends {
            let Ok(address) = said.parse() else { return self.fault(&format!("listens on {said}")) };
            self.serves_models(address).await;
            let life = Life { address, killed: AtomicBool::new(false), leaving: AtomicBool::new(false) };
            self.life = Some(Arc::new(life));
            self.board.set_life(self.number, self.life.clone());
        }
        self.board.log.note(&format!("{} serves: {said}", self.name));
        self.board.is_well(self.number);
    }

    /// Waits until a new frontend has found its models, as whoever sends it clients would. The first ones start with the
    /// workers.
    async fn serves_models(&self, address: SocketAddr) {
        let begun = Instant::now();
        for model in self.models.iter().filter(|_| self.lives > 1) {
            while let Err(fault) = get(address, &format!("/v1/models/{model}/ready"), START_LIMIT).await {
                if begun.elapsed() > START_LIMIT {
                    return self.board.log.fault(Law::Found, fault);
                }
                sleep(POLL).await;
            }
        }
    }

    /// Lives through its steps, counted from `begun`.
    pub(crate) async fn live(mut self, steps: Vec<Step>, begun: Instant) -> Self {
        for step in steps {
            sleep_until(begun + Duration::from_millis(step.at_ms)).await;
            self.check();
            self.apply(step.action).await;
        }
        self
    }

    /// It runs, unless it was told to end.
    pub(crate) fn check(&mut self) {
        let Some(process) = &mut self.process else { return };
        if let Some(status) = process.ended()
            && !self.is_leaving
        {
            self.process = None;
            self.fault(&format!("died by itself: {status}"));
        }
    }

    async fn apply(&mut self, action: Action) {
        let is_end = action.is_end();
        if is_end && !std::mem::replace(&mut self.is_broken, false) {
            return;
        }
        if !is_end {
            if !self.board.may_break(self.number) {
                self.board.log.note(&format!("{} is spared: {action}", self.name));
                return;
            }
            self.is_broken = true;
        }
        self.board.log.note(&format!("{}: {action}", self.name));
        match action {
            Action::Kill => self.kill(),
            Action::Terminate => self.terminate(),
            Action::Stop => self.signal(Signal::Stop),
            Action::Resume => self.signal(Signal::Continue),
            Action::Start => {
                self.end().await;
                self.start().await;
            }
            Action::StartEmpty => {
                self.end().await;
                self.forget();
                self.start().await;
            }
            Action::Network(weather) => self.with_link(|link| link.set(weather)),
            Action::Store(weather) => {
                if let Some(way) = &self.way {
                    way.set(weather);
                }
            }
            Action::Cut => {
                self.with_link(Link::cut);
                self.is_broken = false;
            }
        }
        if !self.is_broken && self.process.is_some() {
            self.board.is_well(self.number);
        }
    }

    fn with_link(&self, does: impl FnOnce(&Link) -> Result<(), String>) {
        if let Some(Err(fault)) = self.link.as_ref().map(does) {
            self.fault(&fault);
        }
    }

    /// What it kept is put aside.
    fn forget(&self) {
        let Some(data) = &self.data else { return };
        if let Err(error) = std::fs::rename(data, data.with_extension(format!("lost-{}", self.lives))) {
            self.fault(&format!("{}: {error}", data.display()));
        }
    }

    fn signal(&mut self, signal: Signal) {
        if let Some(process) = &mut self.process {
            process.signal(signal);
        }
    }

    fn kill(&mut self) {
        // Said before it is done: who sees the connection break finds the reason.
        if let Some(life) = &self.life {
            life.killed.store(true, Ordering::Release);
        }
        self.process = None;
    }

    /// A store has no manners: it is killed.
    pub(crate) fn terminate(&mut self) {
        if self.group == Group::Stores {
            return self.kill();
        }
        self.is_leaving = true;
        if let Some(life) = &self.life {
            life.leaving.store(true, Ordering::Release);
        }
        self.signal(Signal::Terminate);
    }

    /// Waits until one that was told to end has done so.
    pub(crate) async fn end(&mut self) {
        let begun = Instant::now();
        while let Some(process) = &mut self.process {
            if let Some(status) = process.ended() {
                self.process = None;
                if !status.success() {
                    self.fault(&format!("ended with {status} when told to"));
                }
            } else if begun.elapsed() > STOP_LIMIT {
                self.fault("does not end when told to");
                self.kill();
            } else {
                sleep(POLL).await;
            }
        }
    }
}

/// What a process of this group is told.
fn flags(group: Group, options: &Options, link: Option<&Link>) -> Vec<String> {
    let words: &[&str] = match group {
        Group::Frontends => &["frontend", "--port", "0", "--set"],
        _ => &["worker", "--workers", "1"],
    };
    let mut flags: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    match group {
        Group::MockWorkers => {
            flags.extend(["--engine", "mock", "--served-model-name", MOCK_MODEL].map(str::to_owned));
        }
        Group::ModelWorkers => {
            flags.extend(options.model());
            flags.extend(["--served-model-name", REAL_MODEL, "--threads", "1"].map(str::to_owned));
        }
        Group::Frontends => flags.push(format!("frontend.drain_deadline_ms={}", DRAIN_LIMIT.as_millis())),
        Group::Stores => {}
    }
    if let Some(link) = link {
        let (inner, outer) = (link.inner(), link.outer());
        flags.extend(["--request-plane-port".into(), inner.port().to_string()]);
        for pair in [("host", inner.ip()), ("advertised_host", outer.ip())] {
            flags.extend(["--set".into(), format!("request_plane.{}={}", pair.0, pair.1)]);
        }
    }
    flags
}
