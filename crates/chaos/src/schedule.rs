//! What breaks when, as a function of a seed. Of each group some are left alone at any time, so that every answer can go on.

use crate::dice::Dice;
use std::fmt;

/// What the members of a fleet are. Their numbers count on over the groups, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Frontends,
    MockWorkers,
    ModelWorkers,
    /// Through which the others find each other. All of it may be broken.
    Stores,
}

impl Group {
    pub(crate) fn is_workers(self) -> bool {
        matches!(self, Self::MockWorkers | Self::ModelWorkers)
    }

    /// How many of so many may be broken at a time.
    pub(crate) fn most_broken(self, size: usize) -> usize {
        if self == Self::Stores { size } else { size / 2 }
    }
}

/// How the network is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Weather {
    #[default]
    Fair,
    /// Connections end, and new ones are refused.
    Refused,
    /// Nothing arrives, nothing ends.
    Silent,
    /// Everything is late by this many milliseconds.
    Slow(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Kill,
    Terminate,
    Stop,
    Resume,
    Start,
    /// With nothing of what it held before.
    StartEmpty,
    /// Between a worker and all frontends, or between a store and everybody.
    Network(Weather),
    /// Between one process and the store.
    Store(Weather),
    /// Connections end in the middle of a frame; new ones are fine.
    Cut,
}

impl Action {
    /// It ends a trouble that another one began.
    pub(crate) fn is_end(self) -> bool {
        matches!(
            self,
            Self::Start
                | Self::StartEmpty
                | Self::Resume
                | Self::Network(Weather::Fair)
                | Self::Store(Weather::Fair)
        )
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// One thing that happens to one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) at_ms: u64,
    pub(crate) member: usize,
    pub(crate) action: Action,
}

/// A fleet's members by group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fleet {
    pub(crate) frontends: usize,
    pub(crate) mock_workers: usize,
    pub(crate) model_workers: usize,
    pub(crate) stores: usize,
}

/// Nothing breaks before: every process has work.
const CALM_FIRST_MS: u64 = 2_000;

/// How long a member counts as broken after its trouble ended: it starts, is found, and is connected to.
const RECOVERY_MS: u64 = 8_000;

impl Fleet {
    fn groups(&self) -> [(Group, usize); 4] {
        [
            (Group::Frontends, self.frontends),
            (Group::MockWorkers, self.mock_workers),
            (Group::ModelWorkers, self.model_workers),
            (Group::Stores, self.stores),
        ]
    }

    pub(crate) fn workers(&self) -> usize {
        self.mock_workers + self.model_workers
    }

    pub(crate) fn members(&self) -> usize {
        self.groups().iter().map(|(_, count)| count).sum()
    }

    pub(crate) fn group(&self, member: usize) -> Group {
        let mut first = 0;
        for (group, count) in self.groups() {
            if member < first + count {
                return group;
            }
            first += count;
        }
        Group::Stores
    }

    pub(crate) fn name(&self, member: usize) -> String {
        let group = match self.group(member) {
            Group::Frontends => "frontend",
            Group::MockWorkers => "mock",
            Group::ModelWorkers => "model",
            Group::Stores => "etcd",
        };
        format!("{group}-{member}")
    }

    fn size(&self, group: Group) -> usize {
        self.groups().iter().find(|(found, _)| *found == group).map_or(0, |(_, count)| *count)
    }
}

/// All that happens within `duration_ms`, in order; each trouble ends within it.
pub(crate) fn plan(seed: u64, fleet: &Fleet, duration_ms: u64) -> Vec<Step> {
    let mut dice = Dice::new(seed, 1);
    let mut steps = Vec::new();
    // Until when each member counts as broken.
    let mut broken = vec![0u64; fleet.members()];
    let mut now = CALM_FIRST_MS;
    while now < duration_ms {
        let member = dice.index(fleet.members());
        let group = fleet.group(member);
        let trouble = trouble(&mut dice, group, fleet.stores > 0);
        let others = broken
            .iter()
            .enumerate()
            .filter(|(other, until)| *other != member && fleet.group(*other) == group && **until > now)
            .count();
        let ends = now + trouble.lasts_ms;
        if broken[member] <= now && others < group.most_broken(fleet.size(group)) && ends < duration_ms {
            steps.push(Step { at_ms: now, member, action: trouble.action });
            steps.extend(trouble.end.map(|action| Step { at_ms: ends, member, action }));
            broken[member] = ends + RECOVERY_MS;
        }
        now += dice.between(300, 2_200);
    }
    steps.sort_by_key(|step| step.at_ms);
    steps
}

struct Trouble {
    action: Action,
    lasts_ms: u64,
    /// What ends it. None: it is over at once.
    end: Option<Action>,
}

fn trouble(dice: &mut Dice, group: Group, has_store: bool) -> Trouble {
    let kind = match group {
        Group::Frontends => dice.index(if has_store { 4 } else { 3 }),
        Group::Stores => dice.index(5) + 10,
        Group::MockWorkers | Group::ModelWorkers => match dice.index(if has_store { 8 } else { 7 }) {
            kind @ 0..3 => kind,
            7 => 3,
            kind => kind + 1,
        },
    };
    // A frontend that is stopped longer than this is given up by its clients, not by us.
    let longest_stop_ms = if group == Group::Frontends { 8_000 } else { 15_000 };
    let (action, lasts_ms, end) = match kind {
        0 => (Action::Kill, dice.between(200, 6_000), Some(Action::Start)),
        1 => (Action::Terminate, dice.between(200, 6_000), Some(Action::Start)),
        2 => (Action::Stop, dice.between(300, longest_stop_ms), Some(Action::Resume)),
        3 => {
            let weather = if dice.one_in(2) { Weather::Refused } else { Weather::Silent };
            // Some are longer than a lease.
            (Action::Store(weather), dice.between(1_000, 20_000), Some(Action::Store(Weather::Fair)))
        }
        4 | 13 => (Action::Network(Weather::Refused), dice.between(500, 8_000), Some(FAIR)),
        5 | 14 => (Action::Network(Weather::Silent), dice.between(500, 12_000), Some(FAIR)),
        6 => {
            let late_ms = dice.between(20, 300);
            (Action::Network(Weather::Slow(late_ms)), dice.between(1_000, 8_000), Some(FAIR))
        }
        7 => (Action::Cut, 0, None),
        10 => (Action::Kill, dice.between(200, 8_000), Some(Action::Start)),
        11 => (Action::Kill, dice.between(200, 8_000), Some(Action::StartEmpty)),
        _ => (Action::Stop, dice.between(300, 12_000), Some(Action::Resume)),
    };
    Trouble { action, lasts_ms, end }
}

const FAIR: Action = Action::Network(Weather::Fair);

#[cfg(test)]
mod tests {
    use super::*;

    const FLEET: Fleet = Fleet { frontends: 3, mock_workers: 4, model_workers: 2, stores: 1 };

    #[test]
    fn a_seed_is_a_schedule_and_everything_happens() {
        let steps = plan(7, &FLEET, 3_600_000);
        assert_eq!(steps, plan(7, &FLEET, 3_600_000));
        assert_ne!(steps, plan(8, &FLEET, 3_600_000));
        for member in 0..FLEET.members() {
            let has = |wanted: fn(&Action) -> bool| {
                steps.iter().any(|step| step.member == member && wanted(&step.action))
            };
            let group = FLEET.group(member);
            assert!(has(|action| *action == Action::Kill) && has(|action| *action == Action::Stop));
            assert_eq!(has(|action| *action == Action::Terminate), group != Group::Stores);
            assert_eq!(has(|action| *action == Action::Store(Weather::Silent)), group != Group::Stores);
            assert_eq!(has(|action| *action == Action::Network(Weather::Silent)), group != Group::Frontends);
            assert_eq!(has(|action| *action == Action::Network(Weather::Refused)), group != Group::Frontends);
            assert_eq!(has(|action| *action == Action::StartEmpty), group == Group::Stores);
            assert_eq!(has(|action| *action == Action::Cut), group.is_workers());
            assert_eq!(has(|action| matches!(action, Action::Network(Weather::Slow(_)))), group.is_workers());
        }
    }

    #[test]
    fn some_of_each_group_are_left_alone_and_all_is_well_at_the_end() {
        for seed in 0..50 {
            let mut broken = vec![None; FLEET.members()];
            for step in plan(seed, &FLEET, 300_000) {
                let is_end = step.action.is_end();
                if step.action == Action::Cut {
                    assert_eq!(broken[step.member], None);
                } else {
                    assert_eq!(broken[step.member].is_some(), is_end, "{step:?}");
                    broken[step.member] = (!is_end).then_some(step.action);
                }
                for (group, count) in FLEET.groups() {
                    let members = (0..FLEET.members()).filter(|member| FLEET.group(*member) == group);
                    let now = members.filter(|member| broken[*member].is_some()).count();
                    assert!(now <= group.most_broken(count), "{group:?}: {now} of {count}");
                }
            }
            assert!(broken.iter().all(Option::is_none), "{broken:?}");
        }
    }

    #[test]
    fn a_group_of_one_is_left_alone() {
        let alone = Fleet { frontends: 1, mock_workers: 1, model_workers: 0, stores: 0 };
        assert_eq!(plan(1, &alone, 600_000), []);
    }
}
