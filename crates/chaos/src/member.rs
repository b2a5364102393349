//! One process of the fleet through its lives, and what is done to it.

use crate::client::get;
use crate::log::{Law, Log};
use crate::options::Options;
use crate::process::{Process, Signal};
use crate::proxy::{self, Proxy};
use crate::schedule::{Action, Group, Step, Weather};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// A start on a machine that does a lot else.
const START_LIMIT: Duration = Duration::from_secs(90);

/// Longer than a drain may take.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// How long a member must have been well before another of its group may break: it is found and connected to by then.
const SETTLED: Duration = Duration::from_secs(4);

const POLL: Duration = Duration::from_millis(25);

/// One life of a frontend, as clients know it.
pub(crate) struct Life {
    pub(crate) address: SocketAddr,
    pub(crate) killed: AtomicBool,
    /// It was told to end: it finishes what it has.
    pub(crate) leaving: AtomicBool,
}

/// What clients and members know of one another.
pub(crate) struct Board {
    pub(crate) log: Log,
    places: Mutex<Vec<Place>>,
}

struct Place {
    group: Group,
    /// Since when it is well.
    well: Option<Instant>,
    life: Option<Arc<Life>>,
}

impl Board {
    pub(crate) fn new(log: Log, groups: impl Iterator<Item = Group>) -> Self {
        let places = groups.map(|group| Place { group, well: None, life: None }).collect();
        Self { log, places: Mutex::new(places) }
    }

    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The frontend's life, if it takes requests.
    pub(crate) fn door(&self, frontend: usize) -> Option<Arc<Life>> {
        let places = self.places();
        let life = places.get(frontend)?.life.clone()?;
        (!life.killed.load(Ordering::Acquire) && !life.leaving.load(Ordering::Acquire)).then_some(life)
    }

    /// Marks it as broken, if enough others of its group are well.
    fn may_break(&self, member: usize) -> bool {
        let mut places = self.places();
        let group = places[member].group;
        let mut others =
            places.iter().enumerate().filter(|(other, place)| *other != member && place.group == group);
        let enough = others.clone().count().div_ceil(2);
        let is_well = |place: &Place| place.well.is_some_and(|since| since.elapsed() >= SETTLED);
        let well = others.by_ref().filter(|(_, place)| is_well(place)).count();
        let may = enough > 0 && well >= enough && places[member].well.is_some();
        if may {
            places[member].well = None;
        }
        may
    }

    fn is_well(&self, member: usize) {
        self.places()[member].well = Some(Instant::now());
    }

    fn set_life(&self, member: usize, life: Option<Arc<Life>>) {
        self.places()[member].life = life;
    }
}

/// A process that is started again and again at the same address.
pub(crate) struct Member {
    number: usize,
    name: String,
    group: Group,
    program: PathBuf,
    flags: Vec<String>,
    /// Of the whole fleet.
    models: Vec<&'static str>,
    proxy: Option<Proxy>,
    process: Option<Process>,
    lives: u32,
    life: Option<Arc<Life>>,
    /// It was told to end.
    is_leaving: bool,
    is_broken: bool,
    board: Arc<Board>,
}

impl Member {
    /// # Errors
    /// One line: no port is free.
    pub(crate) async fn new(
        number: usize,
        group: Group,
        options: &Options,
        board: &Arc<Board>,
    ) -> Result<Self, String> {
        let is_worker = group != Group::Frontends;
        let proxy =
            if is_worker { Some(Proxy::start().await.map_err(|error| error.to_string())?) } else { None };
        let name = if is_worker { format!("worker-{number}") } else { format!("frontend-{number}") };
        let store = board.log.folder().join("store");
        let mut flags = flags(group, options, proxy.as_ref());
        flags.extend(["--discovery-backend".into(), "file".into()]);
        flags.extend(["--discovery-path".into(), store.display().to_string()]);
        flags.extend(options.set.iter().flat_map(|pair| ["--set".to_owned(), pair.clone()]));
        Ok(Self {
            number,
            name,
            group,
            program: options.program()?,
            flags,
            models: options.models(),
            proxy,
            process: None,
            lives: 0,
            life: None,
            is_leaving: false,
            is_broken: false,
            board: Arc::clone(board),
        })
    }

    fn fault(&self, what: &str) {
        self.board.log.fault(Law::Processes, format!("{} (life {}): {what}", self.name, self.lives));
    }

    /// Starts it and waits until it says that it serves.
    pub(crate) async fn start(&mut self) {
        self.lives += 1;
        self.is_leaving = false;
        let log = self.board.log.folder().join(format!("{}.{}.log", self.name, self.lives));
        match Process::start(&self.program, &self.flags, log) {
            Ok(process) => self.process = Some(process),
            Err(error) => return self.fault(&format!("cannot be started: {error}")),
        }
        let mark = if self.group == Group::Frontends { "listening on http://" } else { "serving " };
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
        let is_end = matches!(action, Action::Start | Action::Resume | Action::Network(Weather::Fair));
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
            Action::Network(weather) => {
                if let Some(proxy) = &self.proxy {
                    proxy.set(weather);
                }
            }
            Action::Cut => {
                if let Some(proxy) = &self.proxy {
                    proxy.cut();
                }
                self.is_broken = false;
            }
        }
        if !self.is_broken && self.process.is_some() {
            self.board.is_well(self.number);
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

    pub(crate) fn terminate(&mut self) {
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
fn flags(group: Group, options: &Options, proxy: Option<&Proxy>) -> Vec<String> {
    let mut flags: Vec<String> = match group {
        Group::Frontends => vec!["frontend".into(), "--port".into(), "0".into()],
        Group::MockWorkers => ["worker", "--engine", "mock", "--served-model-name", crate::cases::MOCK_MODEL]
            .map(str::to_owned)
            .to_vec(),
        Group::ModelWorkers => {
            let mut flags = vec!["worker".to_owned()];
            flags.extend(options.model());
            flags.extend(
                ["--served-model-name", crate::cases::REAL_MODEL, "--threads", "1"].map(str::to_owned),
            );
            flags
        }
    };
    if let Some(proxy) = proxy {
        flags.extend(["--workers".into(), "1".into()]);
        flags.extend(["--request-plane-port".into(), proxy.port().to_string()]);
        flags.extend(["--set".into(), format!("request_plane.advertised_host={}", proxy::HOST)]);
    }
    flags
}
