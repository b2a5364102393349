//! What the service keeps: reservations, and selections that may become some.

use super::metrics::Metrics;
use super::prompt::Prompt;
use super::roster::Roster;
use super::table::{Limits, Refused, Table};
use dynamo_router::Booking;
use dynamo_runtime::events::EventPlane;
use dynamo_runtime::sync::lock;
use dynamo_types::{Class, Error, Result, WorkerRank};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex};

/// Settings of the selection service. What they do not name is set as for a frontend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// 0 takes any free port.
    pub port: u16,
    /// A reservation that nobody mentions for this long is given back: its caller is gone.
    pub expiry_ms: u64,
    /// Reservations at once; 529 above it.
    pub max_reservations: usize,
    /// A selection can be turned into a reservation for this long.
    pub selection_ttl_ms: u64,
    /// Selections that are remembered for that; the oldest make room.
    pub max_selections: usize,
    /// Memory of their prompts' hashes.
    pub max_selections_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            // As users of the reference system know it (behaviour.md 2.11), like the limits of selections.
            port: 8092,
            expiry_ms: 300_000,
            // Requests that run at once on a large fleet, several times over; some 300 bytes each, and their hashes.
            max_reservations: 262_144,
            selection_ttl_ms: 120_000,
            max_selections: 4096,
            max_selections_bytes: 256 << 20,
        }
    }
}

impl Config {
    /// # Errors
    /// The field that cannot work, and why.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        let positive = [
            ("selection.expiry_ms", self.expiry_ms),
            ("selection.max_reservations", self.max_reservations as u64),
            ("selection.selection_ttl_ms", self.selection_ttl_ms),
            ("selection.max_selections", self.max_selections as u64),
        ];
        match positive.into_iter().find(|(_, value)| *value == 0) {
            Some((key, _)) => Err((key, "must be above 0, found 0")),
            None => Ok(()),
        }
    }
}

/// Load that a caller holds on a worker.
#[derive(Debug)]
pub(super) struct Reservation {
    pub(super) model: Arc<str>,
    pub(super) booking: Booking,
}

/// A choice that was made without booking it.
#[derive(Clone, Debug)]
pub(super) struct Remembered {
    pub(super) model: Arc<str>,
    pub(super) target: WorkerRank,
    pub(super) prompt: Prompt,
    pub(super) expected_output_tokens: Option<u32>,
}

/// All of it.
pub(crate) struct Desk {
    reservations: Mutex<Table<Reservation>>,
    selections: Mutex<Table<Remembered>>,
    pub(crate) roster: Arc<Roster>,
    /// What the workers say.
    pub(super) events: Arc<dyn EventPlane>,
    pub(crate) metrics: Metrics,
    pub(super) config: Config,
}

impl Desk {
    pub(crate) fn new(config: Config, metrics: Metrics, events: Arc<dyn EventPlane>) -> Self {
        let reservations =
            Limits { entries: config.max_reservations, weight: usize::MAX, idle_ms: config.expiry_ms };
        let selections = Limits {
            entries: config.max_selections,
            weight: config.max_selections_bytes,
            idle_ms: config.selection_ttl_ms,
        };
        Self {
            reservations: Mutex::new(Table::new(reservations)),
            selections: Mutex::new(Table::new(selections)),
            roster: Arc::default(),
            events,
            metrics,
            config,
        }
    }

    pub(super) fn expire(&self, now_ms: u64) {
        let gone = lock(&self.reservations).expire(now_ms);
        self.show();
        for (id, reservation) in &gone {
            let target = reservation.booking.target();
            tracing::warn!(selection_id = ?id, model = %reservation.model, worker = %target, "reservation abandoned");
            self.metrics.expired.inc();
        }
        // The bookings end outside the lock.
        drop(gone);
        lock(&self.selections).expire(now_ms);
    }

    fn show(&self) {
        self.metrics.reservations.set(lock(&self.reservations).len() as i64);
    }

    /// # Errors
    /// 409 if the id is in use, 529 if there are too many. Before anything is chosen, so that nothing is chosen in vain.
    pub(super) fn admit(&self, id: &str) -> Result<()> {
        let reservations = lock(&self.reservations);
        if reservations.contains(id) {
            return Err(refused(Refused::Taken, id, &self.config));
        }
        if reservations.len() >= self.config.max_reservations {
            return Err(refused(Refused::Full, id, &self.config));
        }
        Ok(())
    }

    /// Takes the booking into its care.
    ///
    /// # Errors
    /// As [`Desk::admit`]; the booking is given back then.
    pub(super) fn hold(&self, id: &Arc<str>, reservation: Reservation, now_ms: u64) -> Result<()> {
        let held = lock(&self.reservations).insert(Arc::clone(id), reservation, now_ms);
        self.show();
        held.map_err(|reason| refused(reason, id, &self.config))
    }

    /// Does something with a reservation, which lives on for another while.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(super) fn with<T>(
        &self,
        id: &str,
        now_ms: u64,
        then: impl FnOnce(&mut Reservation) -> T,
    ) -> Result<T> {
        lock(&self.reservations).touch(id, now_ms).map(then).ok_or_else(|| unknown(id))
    }

    /// Ends a reservation; None if there is none.
    pub(super) fn release(&self, id: &str) -> Option<Reservation> {
        let gone = lock(&self.reservations).remove(id);
        self.show();
        gone
    }

    pub(super) fn remember(&self, id: Arc<str>, selection: Remembered, now_ms: u64) {
        let weight = selection.prompt.weight() + id.len();
        lock(&self.selections).replace(id, selection, weight, now_ms);
    }

    /// # Errors
    /// 404 if there is no such selection, or not any more.
    pub(super) fn recall(&self, id: &str) -> Result<Remembered> {
        let found = lock(&self.selections).get(id).cloned();
        found.ok_or_else(|| {
            Error::not_found(format!(
                "no selection {id:?} is remembered; select with this selection_id first, or name a worker_id"
            ))
        })
    }

    /// Forgets a selection that became a reservation.
    pub(super) fn forget(&self, id: &str) {
        lock(&self.selections).remove(id);
    }
}

pub(super) fn unknown(id: &str) -> Error {
    Error::not_found(format!("no reservation {id:?}: it was never made, has ended, or was abandoned"))
}

fn refused(reason: Refused, id: &str, config: &Config) -> Error {
    match reason {
        Refused::Taken => Error::client(Class::Conflict, format!("the reservation {id:?} exists already")),
        Refused::Full => Error::overloaded(format!(
            "there are {} reservations, which is the limit (selection.max_reservations)",
            config.max_reservations
        )),
    }
}
