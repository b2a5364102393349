//! Everything that can become of one registration between its worker, the store and a reader, walked through in every
//! order: ways to the store break, the store is frozen, dies, comes back with or without its data or is emptied, answers get
//! lost, leases end, and the worker drains, leaves, comes back or dies. What the worker holds for written and what readers
//! make of what they hear are the functions that [`keep`](super::keep) and [`follow`](super::follow) call.

use super::super::layout::Entries;
use super::wire::Pair;
use dynamo_explore::{Counterexample, Explored, Model, explore};
use dynamo_types::ModelRecord;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use system::{LEASE, Process, Server, Store, Wrong, offer, record};

mod system;

/// Far above what is found.
const LIMIT: usize = 2_000_000;

/// How often each kind of trouble happens at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Troubles {
    cuts: u8,
    freezes: u8,
    crashes: u8,
    wipes: u8,
    lost: u8,
    drains: u8,
    withdrawals: u8,
    deaths: u8,
}

struct Registering {
    troubles: Troubles,
    wrong: Option<Wrong>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Worker,
    Reader,
}

#[derive(Clone)]
struct State {
    left: Troubles,
    now: u32,
    server: Server,
    /// None: it died.
    worker: Option<Process>,
    held: Option<i64>,
    /// When it was last renewed.
    asked: u32,
    reader: Process,
    /// Ticks since the lease was renewed, but for those in which only the store was away.
    unrenewed: u32,
    /// That was a whole lease, or the worker left, or has just come: the reader has not heard of it since.
    lapsed: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Cut(Who),
    Join(Who),
    Freeze,
    Crash,
    /// The store is back.
    Rise {
        empty: bool,
    },
    /// Somebody removes everything in it.
    Wipe,
    Drain,
    Withdraw,
    Register,
    Die,
    Tick,
    Expire,
    Remove {
        lost: bool,
    },
    Renew,
    Write {
        lost: bool,
    },
    List(Who),
    Hear(Who),
    Probe(Who),
}

impl State {
    fn process(&mut self, who: Who) -> Option<&mut Process> {
        match who {
            Who::Worker => self.worker.as_mut(),
            Who::Reader => Some(&mut self.reader),
        }
    }

    /// What the reader should show.
    fn truth(&self) -> Vec<ModelRecord> {
        self.worker.iter().flat_map(|worker| worker.own.records().cloned()).collect()
    }

    fn worker_has_work(&self) -> bool {
        self.worker.as_ref().is_some_and(|worker| {
            worker.own.next_removal().is_some() || worker.own.clone().next_unwritten(0).is_some()
        })
    }

    fn worker_is_busy(&self) -> bool {
        let Some(worker) = self.worker.as_ref().filter(|worker| worker.connected) else { return false };
        let is_renewed = self.held.is_some_and(|held| self.server.leases.get(&held) == Some(&LEASE));
        let is_due = if worker.own.is_idle() { self.held.is_some() } else { !is_renewed };
        is_due || self.worker_has_work()
    }

    fn is_busy(&self) -> bool {
        let processes = self.worker.iter().chain([&self.reader]);
        self.server.state == Store::Up
            && (self.server.expired().is_some()
                || self.worker_is_busy()
                || processes.clone().any(|process| process.is_busy(&self.server)))
    }

    /// As `keep::renew`.
    fn renew(&mut self) {
        let Some(worker) = &mut self.worker else { return };
        if worker.own.is_idle() {
            if let Some(held) = self.held.take() {
                self.server.leases.remove(&held);
            }
            return;
        }
        (self.unrenewed, self.asked) = (0, self.now);
        if let Some(left) =
            self.held.and_then(|held| self.server.leases.get_mut(&held)).filter(|left| **left > 0)
        {
            *left = LEASE;
            return;
        }
        self.held = Some(self.server.next_lease);
        self.server.leases.insert(self.server.next_lease, LEASE);
        self.server.next_lease += 1;
    }

    fn rise(&mut self, empty: bool) {
        let server = &mut self.server;
        if server.state == Store::Down {
            server.leases.values_mut().for_each(|left| *left = LEASE);
        }
        if empty {
            (server.identity, server.revision, server.entries) = (None, 1, None);
            server.leases.clear();
            server.log.clear();
        }
        server.state = Store::Up;
    }

    fn tick(&mut self, wrong: Option<Wrong>) -> Result<(), String> {
        self.now += 1;
        if self.server.state != Store::Down {
            self.server.leases.values_mut().for_each(|left| *left = left.saturating_sub(1));
        }
        let is_late =
            |worker: &Process| !worker.own.is_idle() && (self.server.state == Store::Up || !worker.connected);
        if self.worker.as_ref().is_some_and(is_late) {
            self.unrenewed = (self.unrenewed + 1).min(LEASE);
            self.lapsed |= self.unrenewed == LEASE;
        }
        let now = self.now;
        for process in self.worker.iter_mut().chain([&mut self.reader]).filter(|process| process.watching) {
            process.publish(now, wrong)?;
        }
        Ok(())
    }

    /// What watches have heard is forgotten.
    fn forget(&mut self) {
        let mut watching = self.worker.iter().chain([&self.reader]).filter(|process| process.watching);
        let heard = watching.clone().map(|process| process.picture.revision).min();
        let any = watching.next().is_some();
        self.server.log.retain(|changes| any && heard.is_some_and(|heard| changes.revision > heard));
    }
}

impl Registering {
    fn troubles(&self, state: &State) -> Vec<Step> {
        let (left, server) = (&state.left, &state.server);
        let mut steps = Vec::new();
        let mut may = |count: u8, step: Step| steps.extend((count > 0).then_some(step));
        if state.worker.as_ref().is_some_and(|worker| worker.connected) {
            may(left.cuts, Step::Cut(Who::Worker));
        }
        if state.reader.connected {
            may(left.cuts, Step::Cut(Who::Reader));
        }
        if server.state == Store::Up {
            may(left.freezes, Step::Freeze);
            may(left.crashes, Step::Crash);
            may(left.wipes, Step::Wipe);
        }
        if let Some(worker) = &state.worker {
            may(left.deaths, Step::Die);
            let draining = worker.own.records().next().map(|record| record.instance.draining);
            may(if draining == Some(false) { left.drains } else { 0 }, Step::Drain);
            may(if draining.is_some() { left.withdrawals } else { 0 }, Step::Withdraw);
        }
        steps
    }

    fn change(&self, next: &mut State, step: Step) -> Result<(), String> {
        let now = next.now;
        match step {
            Step::Drain => {
                next.left.drains -= 1;
                let Some(worker) = &mut next.worker else { return Ok(()) };
                worker.shown = vec![record(true)];
                if let Some(owned) = worker.own.get_mut(record(true).instance.id) {
                    owned.record = record(true);
                    owned.change(Entries::of(&owned.record).unwrap());
                }
            }
            Step::Withdraw => {
                next.left.withdrawals -= 1;
                next.lapsed = true;
                if let Some(worker) = &mut next.worker {
                    worker.own.withdraw(record(false).instance.id);
                    worker.shown.clear();
                }
            }
            Step::Register => {
                if let Some(worker) = &mut next.worker {
                    worker.shown = vec![record(false)];
                    worker.own.admit(offer());
                }
            }
            Step::Die => {
                next.left.deaths -= 1;
                (next.worker, next.held) = (None, None);
            }
            Step::Remove { lost } => {
                next.left.lost -= u8::from(lost);
                let State { worker: Some(worker), server, .. } = next else { return Ok(()) };
                let Some(removal) = worker.own.next_removal() else { return Ok(()) };
                let revision = server.remove(removal.lease);
                if !lost {
                    worker.own.removed(revision);
                }
            }
            Step::Renew => {
                let before = next.held;
                next.renew();
                if next.held != before
                    && self.wrong != Some(Wrong::ForgetsWhatALeaseHeld)
                    && let Some(worker) = &mut next.worker
                {
                    worker.own.all_unwritten();
                }
            }
            Step::Write { lost } => {
                next.left.lost -= u8::from(lost);
                let State { worker: Some(worker), held, server, .. } = next else { return Ok(()) };
                let Some(lease) = *held else { return Ok(()) };
                let Some((id, entries)) = worker.own.next_unwritten(lease) else { return Ok(()) };
                if !server.leases.contains_key(&lease) {
                    *held = None;
                    return Ok(());
                }
                let revision = server.write(&entries, lease);
                if !lost {
                    worker.own.wrote(id, &entries, revision);
                }
            }
            Step::List(who) => {
                let mut server = next.server.clone();
                if let Some(process) = next.process(who) {
                    process.list(&mut server, now, self.wrong)?;
                }
                next.server = server;
            }
            Step::Hear(who) => {
                let server = next.server.clone();
                if let Some(process) = next.process(who) {
                    process.hear(&server, now, self.wrong)?;
                }
            }
            Step::Probe(who) => {
                if let Some(process) = next.process(who) {
                    process.watching = false;
                }
            }
            _ => self.disturb(next, step)?,
        }
        Ok(())
    }

    fn disturb(&self, next: &mut State, step: Step) -> Result<(), String> {
        let disconnect = |next: &mut State| {
            next.worker.iter_mut().chain([&mut next.reader]).for_each(Process::disconnect);
        };
        match step {
            Step::Cut(who) => {
                next.left.cuts -= 1;
                if let Some(process) = next.process(who) {
                    process.connected = false;
                    process.disconnect();
                }
            }
            Step::Join(who) => {
                if let Some(process) = next.process(who) {
                    process.connected = true;
                }
            }
            Step::Freeze => {
                next.left.freezes -= 1;
                next.server.state = Store::Frozen;
                disconnect(next);
            }
            Step::Crash => {
                next.left.crashes -= 1;
                next.server.state = Store::Down;
                disconnect(next);
            }
            Step::Rise { empty } => next.rise(empty),
            Step::Wipe => {
                next.left.wipes -= 1;
                next.server.identity = None;
                next.server.revision += 1;
                if let Some((pairs, _)) = next.server.entries.take() {
                    next.server.tell(false, pairs);
                }
            }
            Step::Tick => next.tick(self.wrong)?,
            Step::Expire => {
                if let Some(lease) = next.server.expired() {
                    next.server.leases.remove(&lease);
                    next.server.remove(lease);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Model for Registering {
    type State = State;
    type Key = String;
    type Step = Step;

    fn initial(&self) -> State {
        let mut worker = Process { connected: true, ..Process::default() };
        worker.own.admit(offer());
        worker.shown = vec![record(false)];
        State {
            left: self.troubles,
            now: 0,
            server: Server {
                state: Store::Up,
                identity: None,
                identities: 0,
                revision: 1,
                entries: None,
                leases: BTreeMap::new(),
                next_lease: 1,
                log: Vec::new(),
            },
            worker: Some(worker),
            held: None,
            asked: 0,
            reader: Process { connected: true, ..Process::default() },
            unrenewed: 0,
            lapsed: true,
        }
    }

    fn key(&self, state: &State) -> String {
        let Server { state: up, identity, identities, revision, entries, leases, next_lease, log } =
            &state.server;
        let mut key =
            format!("{:?} {up:?} {identity:?} {identities} {revision} {leases:?} {next_lease};", state.left);
        let of = |pairs: &[Pair]| pairs.first().map(|pair| (pair.revision, pair.value.len()));
        let log = log.iter().map(|changes| {
            let is_put =
                changes.events.first().map(|(is_put, pair)| (*is_put, pair.revision, pair.value.len()));
            (changes.revision, is_put)
        });
        let entries = entries.as_ref().map(|(pairs, lease)| (of(pairs), lease));
        let _ = write!(
            key,
            "{entries:?} {:?} {:?} {} {} {};",
            log.collect::<Vec<_>>(),
            state.held,
            state.asked == state.now,
            state.unrenewed,
            state.lapsed
        );
        state.worker.iter().chain([&state.reader]).for_each(|process| process.key(state.now, &mut key));
        key
    }

    fn steps(&self, state: &State) -> Vec<Step> {
        let mut steps = self.troubles(state);
        let server = &state.server;
        if !state.is_busy() {
            steps.push(Step::Tick);
        }
        match server.state {
            Store::Up => {}
            Store::Frozen => steps.push(Step::Rise { empty: false }),
            Store::Down => steps.extend([false, true].map(|empty| Step::Rise { empty })),
        }
        let processes = [(Who::Worker, state.worker.as_ref()), (Who::Reader, Some(&state.reader))];
        for (who, process) in processes.into_iter().filter_map(|(who, process)| Some((who, process?))) {
            if !process.connected {
                steps.push(Step::Join(who));
                continue;
            }
            if server.state == Store::Up {
                steps.push(Step::List(who));
                steps.extend(process.next(server).map(|_| Step::Hear(who)));
                steps.extend(
                    (process.watching && !server.is_of(&process.picture)).then_some(Step::Probe(who)),
                );
            }
        }
        if server.state != Store::Up {
            return steps;
        }
        steps.extend(server.expired().map(|_| Step::Expire));
        let Some(worker) = state.worker.as_ref().filter(|worker| worker.connected) else { return steps };
        let lost = [false, true].into_iter().filter(|lost| !lost || state.left.lost > 0);
        // In the order of a round.
        if worker.own.next_removal().is_some() {
            steps.extend(lost.map(|lost| Step::Remove { lost }));
        } else {
            steps.push(Step::Renew);
            if worker.own.is_idle() {
                steps.push(Step::Register);
            }
            // Between two renewals there is less than a tick.
            if state.held.is_some()
                && state.asked == state.now
                && worker.own.clone().next_unwritten(0).is_some()
            {
                steps.extend(lost.map(|lost| Step::Write { lost }));
            }
        }
        steps
    }

    fn take(&self, state: &State, step: Step) -> Result<State, String> {
        let mut next = state.clone();
        self.change(&mut next, step)?;
        next.forget();
        let is_there = !next.truth().is_empty();
        let vanished = !state.reader.shown.is_empty() && next.reader.shown.is_empty();
        if vanished && is_there && !next.lapsed {
            return Err("a worker that lives is taken away".into());
        }
        if let Some((pairs, lease)) = &next.server.entries
            && next.held == Some(*lease)
            && pairs.iter().all(|pair| pair.revision <= next.reader.picture.revision)
            && next.server.is_of(&next.reader.picture)
            && !next.reader.shown.is_empty()
            && next.server.leases.get(lease).is_some_and(|left| left + next.unrenewed >= LEASE)
            && next.unrenewed < LEASE
            && !next.worker_has_work()
        {
            next.lapsed = false;
        }
        Ok(next)
    }

    fn check(&self, state: &State) -> Result<(), String> {
        if let Some(worker) = &state.worker
            && worker.shown != state.truth()
        {
            return Err("a process does not show what is its own".into());
        }
        if self.is_settled(state) && state.reader.shown != state.truth() {
            let (shown, truth) = (&state.reader.shown, state.truth());
            return Err(format!("{} shown, {} there, or in another state", shown.len(), truth.len()));
        }
        Ok(())
    }

    /// Everybody is connected, and has done all there is to do; what may still come again has come, or was given up.
    fn is_settled(&self, state: &State) -> bool {
        let mut processes = state.worker.iter().chain([&state.reader]);
        state.server.state == Store::Up
            && !state.is_busy()
            && (state.worker.is_some() || state.server.leases.is_empty())
            && processes.all(|process| process.connected && process.picture.due().is_none())
    }
}

fn run(troubles: Troubles, wrong: Option<Wrong>) -> Result<Explored, Box<Counterexample>> {
    explore(&Registering { troubles, wrong }, LIMIT)
}

#[test]
fn r24_nobody_who_lives_is_taken_away_and_everybody_is_found_in_every_order() {
    let none = Troubles::default();
    for troubles in [
        Troubles { cuts: 2, drains: 1, ..none },
        Troubles { cuts: 1, freezes: 1, deaths: 1, ..none },
        Troubles { freezes: 1, crashes: 1, ..none },
        Troubles { crashes: 2, lost: 1, ..none },
        Troubles { cuts: 1, withdrawals: 1, ..none },
        Troubles { cuts: 1, wipes: 1, ..none },
        Troubles { wipes: 1, lost: 1, withdrawals: 1, ..none },
    ] {
        match run(troubles, None) {
            Ok(explored) => {
                assert!(explored.states > 1000 && explored.settled > 10, "{explored:?}");
            }
            Err(found) => panic!("{troubles:?}: {found}"),
        }
    }
}

#[test]
fn wrong_rules_are_found() {
    let troubles = Troubles { cuts: 1, freezes: 1, wipes: 1, withdrawals: 1, ..Troubles::default() };
    for (wrong, says) in [
        (Wrong::HeardAllTheWhile, "taken away"),
        (Wrong::ForgetsWhatALeaseHeld, "taken away"),
        (Wrong::BelievesRemovals, "taken away"),
        (Wrong::ShowsWhatWasWithdrawn, "its own"),
        (Wrong::NeverCompares, "0 shown, 1 there"),
        (Wrong::RemembersItsOwn, "its own"),
    ] {
        let found = run(troubles, Some(wrong)).unwrap_err();
        assert!(found.fault.contains(says), "{wrong:?}: {found}");
    }
}
