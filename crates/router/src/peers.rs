//! What other routers placed on our candidates (behaviour.md 2.8): on the same books as our own, so that a choice weighs
//! both alike, but with nobody's guard. Whoever hears of them says when they are over.

use crate::router::Router;
use crate::state::{Charge, State};
use dynamo_types::{Placement, Placements, WorkerRank};
use std::fmt;
use std::sync::Arc;

/// A placement on the books.
#[derive(Debug)]
pub(crate) struct Foreign {
    target: WorkerRank,
    incarnation: u64,
    charge: Charge,
}

/// Who is told of what is booked here.
#[derive(Clone)]
pub(crate) struct Teller(pub(crate) Arc<dyn Placements>);

impl fmt::Debug for Teller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Teller")
    }
}

/// One booking that was told.
#[derive(Debug)]
pub(crate) struct Told {
    teller: Teller,
    id: u64,
}

impl Teller {
    pub(crate) fn tell(&self, target: WorkerRank, charge: &Charge, blocks: Arc<[u64]>) -> Told {
        let id = self.0.placed(Placement {
            target,
            prefill_tokens: charge.prefill_tokens,
            blocks,
            anonymous_blocks: charge.anonymous_blocks,
            output_millis: charge.output_millis,
        });
        Told { teller: self.clone(), id }
    }
}

impl Told {
    pub(crate) fn changed(&self, charge: &Charge) {
        self.teller.0.changed(self.id, charge.prefill_tokens, charge.output_millis);
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.teller.0.ended(self.id);
    }
}

impl Router {
    /// Another router placed a request on one of our candidates. Under a `number` that is known it replaces what is
    /// known. On a rank that is no candidate nothing is kept: say it again once it is one. Numbers are the caller's and
    /// bounded by him.
    pub fn peer_placed(&self, number: u64, placement: &Placement) {
        self.shared().state().peer_placed(number, placement);
    }

    /// It takes this much now.
    pub fn peer_changed(&self, number: u64, prefill_tokens: u64, output_millis: u64) {
        self.shared().state().peer_changed(number, prefill_tokens, output_millis);
    }

    /// It is over.
    pub fn peer_ended(&self, number: u64) {
        self.shared().state().peer_ended(number);
    }
}

impl State {
    fn peer_placed(&mut self, number: u64, placement: &Placement) {
        self.peer_ended(number);
        let Ok(at) = self.find(placement.target) else { return };
        let (slot, incarnation) = (self.candidates[at].slot, self.candidates[at].incarnation);
        let charge = Charge {
            prefill_tokens: placement.prefill_tokens,
            blocks: self.active.acquire(slot, &placement.blocks),
            anonymous_blocks: placement.anonymous_blocks,
            output_millis: placement.output_millis,
        };
        self.charge(at, &charge);
        self.candidates[at].peer_requests += 1;
        self.foreign.insert(number, Foreign { target: placement.target, incarnation, charge });
    }

    fn peer_changed(&mut self, number: u64, prefill_tokens: u64, output_millis: u64) {
        let Some(mut foreign) = self.foreign.remove(&number) else { return };
        let (target, incarnation) = (foreign.target, foreign.incarnation);
        let before = std::mem::replace(&mut foreign.charge.prefill_tokens, prefill_tokens);
        self.prefill_done(target, incarnation, before.saturating_sub(prefill_tokens));
        let before = std::mem::replace(&mut foreign.charge.output_millis, output_millis);
        self.output(target, incarnation, before, output_millis);
        self.foreign.insert(number, foreign);
    }

    fn peer_ended(&mut self, number: u64) {
        let Some(Foreign { target, incarnation, charge }) = self.foreign.remove(&number) else { return };
        if let Some(candidate) = self.booked(target, incarnation) {
            candidate.peer_requests = candidate.peer_requests.saturating_sub(1);
        }
        self.give_back(target, incarnation, charge);
    }

    /// Forgets those whose rank is gone.
    pub(crate) fn forget_foreign(&mut self) {
        let Self { candidates, foreign, .. } = self;
        foreign.retain(|_, it| {
            candidates.binary_search_by_key(&it.target, |candidate| candidate.target).is_ok()
        });
    }
}
