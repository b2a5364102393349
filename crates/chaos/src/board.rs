//! What clients and members know of one another.

use crate::log::Log;
use crate::schedule::Group;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a member must have been well before another of its group may break: it is found and connected to by then.
const SETTLED: Duration = Duration::from_secs(4);

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
    pub(crate) fn may_break(&self, member: usize) -> bool {
        let mut places = self.places();
        let group = places[member].group;
        let all: Vec<&Place> = places.iter().filter(|place| place.group == group).collect();
        let is_well = |place: &&&Place| place.well.is_some_and(|since| since.elapsed() >= SETTLED);
        let broken = all.len() - all.iter().filter(is_well).count();
        // One that has only just recovered may break again.
        let is_unsettled = places[member].well.is_some_and(|since| since.elapsed() < SETTLED);
        let others_broken = broken - usize::from(is_unsettled);
        let may = places[member].well.is_some() && others_broken < group.most_broken(all.len());
        if may {
            places[member].well = None;
        }
        may
    }

    pub(crate) fn is_well(&self, member: usize) {
        self.places()[member].well = Some(Instant::now());
    }

    pub(crate) fn set_life(&self, member: usize, life: Option<Arc<Life>>) {
        self.places()[member].life = life;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_group_is_left_alone_and_the_store_is_not() {
        let folder = std::env::temp_dir().join(format!("dynamo-chaos-board-{}", std::process::id()));
        let log = Log::new(&folder).unwrap();
        let groups = [Group::Frontends, Group::Frontends, Group::Frontends, Group::Stores];
        let board = Board::new(log, groups.into_iter());
        assert!(!board.may_break(0), "it has not started");
        board.is_well(0);
        board.is_well(3);
        assert!(!board.may_break(0), "the others have not");
        assert!(board.may_break(3));
        assert!(!board.may_break(3), "it is broken");
        let long_ago = Instant::now().checked_sub(SETTLED).unwrap();
        board.places().iter_mut().take(3).for_each(|place| place.well = Some(long_ago));
        assert!(board.may_break(1));
        assert!(!board.may_break(0) && !board.may_break(2));
        board.is_well(1);
        assert!(!board.may_break(0), "it is back, but only just");
        assert!(board.may_break(1));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
