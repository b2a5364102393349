//! R24 and R26 over random histories of a store, its owners and a reader, in virtual time.

use super::super::super::conformance::remote;
use super::super::super::layout::Entries;
use super::*;
use dynamo_types::draw;

const CASES: u64 = 600;
const LEASE_S: u64 = 30;
/// Owners look this often whether their entries are there.
const LOOK_S: u64 = LEASE_S / 3;
const OWNERS: u64 = 4;

struct Draws(u64, u64);

impl Draws {
    fn below(&mut self, len: usize) -> u64 {
        self.1 += 1;
        draw::index(self.0, self.1, len) as u64
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Owner {
    Lives,
    /// It has been dead since then; its lease ends later.
    Dead(u64),
    Withdrawn,
}

/// A store with leases, and those who write into it.
struct World {
    now_s: u64,
    revision: i64,
    identity: u64,
    owners: BTreeMap<u64, Owner>,
    /// Revision of each owner's entries.
    held: BTreeMap<u64, i64>,
    /// The reader hears nothing.
    cut: bool,
    /// It heard nothing for a moment at least since it last listed.
    unheard: bool,
    /// What it has not heard.
    pending: Changes,
    picture: Picture,
    shown: Vec<ModelRecord>,
    start: Instant,
}

fn pairs(owner: u64, revision: i64) -> [Pair; 2] {
    let entries = Entries::of(&remote(owner, "m", 16)).unwrap();
    [entries.instance, entries.model].map(|(key, value)| Pair { key, value: value.into(), revision })
}

impl World {
    fn new() -> Self {
        Self {
            now_s: 0,
            revision: 1,
            identity: 1,
            owners: BTreeMap::new(),
            held: BTreeMap::new(),
            cut: false,
            unheard: false,
            pending: Changes::default(),
            picture: Picture::default(),
            shown: Vec::new(),
            start: Instant::now(),
        }
    }

    fn write(&mut self, owner: u64) {
        self.revision += 1;
        self.held.insert(owner, self.revision);
        self.pending.events.extend(pairs(owner, self.revision).map(|pair| (true, pair)));
    }

    fn remove(&mut self, owner: u64) {
        if self.held.remove(&owner).is_some() {
            self.revision += 1;
            self.pending.events.extend(pairs(owner, 0).map(|pair| (false, pair)));
        }
    }

    /// The store holds nothing any more, and counts anew.
    fn lose_everything(&mut self, draws: &mut Draws) {
        self.held.clear();
        self.identity += 1;
        self.revision = 1 + draws.below(3) as i64;
        self.pending = Changes::default();
        // A watch on it ends with it.
        self.unheard = true;
    }

    /// It stood still for so long that leases ended; some are listed still when it goes on.
    fn freeze(&mut self, draws: &mut Draws) {
        self.now_s += LEASE_S + draws.below(10);
        self.unheard = true;
        for owner in self.held.keys().copied().collect::<Vec<_>>() {
            if draws.below(2) == 0 {
                self.remove(owner);
            }
        }
    }

    /// Leases of the dead end; owners that look find what is missing, and write it.
    fn pass(&mut self, seconds: u64, looks: bool) {
        self.now_s += seconds;
        for (owner, state) in self.owners.clone() {
            match state {
                Owner::Lives if looks && !self.held.contains_key(&owner) => self.write(owner),
                Owner::Dead(since) if self.now_s >= since + LEASE_S => self.remove(owner),
                _ => {}
            }
        }
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_secs(self.now_s)
    }

    /// The reader hears what there is to hear.
    fn read(&mut self) {
        if self.cut {
            self.unheard = true;
            return;
        }
        if self.unheard {
            let pairs = self.held.iter().flat_map(|(owner, revision)| pairs(*owner, *revision)).collect();
            let identity = self.identity.to_string().into_bytes();
            let snapshot = Snapshot { revision: self.revision, identity, pairs };
            let at = (self.now(), Duration::from_secs(LEASE_S));
            self.picture.list(snapshot, true, self.shown.clone(), at);
            self.unheard = false;
        } else {
            self.pending.revision = self.revision;
            self.picture.apply(std::mem::take(&mut self.pending));
        }
        self.pending = Changes::default();
        let now = self.now();
        self.shown = self.picture.records(now).0;
    }

    fn shows(&self, owner: u64) -> bool {
        self.shown.iter().any(|record| record.instance.id == InstanceId(owner))
    }

    /// Nobody who lives, and was seen, is taken away.
    fn check(&self, seen: &BTreeSet<u64>, case: u64, step: u64) {
        for (owner, state) in &self.owners {
            if *state == Owner::Lives && seen.contains(owner) {
                assert!(self.shows(*owner), "case {case} step {step}: {owner} lives and was taken away");
            }
        }
    }
}

#[test]
fn r24_r26_whatever_happens_to_the_store_the_living_stay_and_the_dead_go() {
    for case in 0..CASES {
        let mut draws = Draws(case ^ 0x24, 0);
        let mut world = World::new();
        let mut seen = BTreeSet::new();
        world.unheard = true;
        world.read();
        for step in 0..40 {
            let owner = 1 + draws.below(OWNERS as usize);
            match draws.below(12) {
                0..=3 if !matches!(world.owners.get(&owner), Some(Owner::Lives | Owner::Dead(_))) => {
                    world.owners.insert(owner, Owner::Lives);
                    world.write(owner);
                    seen.remove(&owner);
                }
                0..=3 => {}
                4 if world.owners.get(&owner) == Some(&Owner::Lives) => {
                    world.owners.insert(owner, Owner::Dead(world.now_s));
                    seen.remove(&owner);
                }
                5 if world.owners.get(&owner) == Some(&Owner::Lives) => {
                    world.owners.insert(owner, Owner::Withdrawn);
                    world.remove(owner);
                    seen.remove(&owner);
                }
                6 => world.lose_everything(&mut draws),
                7 => world.freeze(&mut draws),
                8 => world.cut = true,
                9 => world.cut = false,
                _ => {}
            }
            // The reader may look before or after those whose entries are missing.
            if draws.below(2) == 0 {
                world.read();
                world.check(&seen, case, step);
            }
            world.pass(1 + draws.below(LOOK_S as usize), true);
            world.read();
            world.check(&seen, case, step);
            if !world.cut {
                let owners = world.owners.keys().copied();
                seen = owners.filter(|owner| world.shows(*owner)).collect();
            }
            for (owner, state) in &world.owners {
                if matches!(state, Owner::Dead(_)) {
                    seen.remove(owner);
                }
            }
        }
        // Left in peace, it converges to what is there: the dead go, and so do those who withdrew unheard.
        world.cut = false;
        for _ in 0..3 * LEASE_S / LOOK_S {
            world.pass(LOOK_S, true);
            world.read();
        }
        let living =
            world.owners.iter().filter(|(_, state)| **state == Owner::Lives).map(|(owner, _)| *owner);
        let shown: BTreeSet<u64> = world.shown.iter().map(|record| record.instance.id.0).collect();
        assert_eq!(shown, living.collect::<BTreeSet<u64>>(), "case {case}");
    }
}
