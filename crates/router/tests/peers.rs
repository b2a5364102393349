//! Routers that know what the others booked.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{prompt, record, router, router_with, select, stored};
use dynamo_router::{BookedLoad, Booking, Config, Mode, Query, Router};
use dynamo_types::{InstanceId, Placement, Placements, WorkerRank};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Remembers what holds, as a peer that hears everything at once would.
#[derive(Default)]
struct Wire(Mutex<(u64, BTreeMap<u64, Placement>)>);

impl Placements for Wire {
    fn placed(&self, placement: Placement) -> u64 {
        let mut state = self.0.lock().unwrap();
        state.0 += 1;
        let id = state.0;
        state.1.insert(id, placement);
        id
    }

    fn changed(&self, id: u64, prefill_tokens: u64, output_millis: u64) {
        let mut state = self.0.lock().unwrap();
        let known = state.1.get_mut(&id).unwrap();
        (known.prefill_tokens, known.output_millis) = (prefill_tokens, output_millis);
    }

    fn ended(&self, id: u64) {
        assert!(self.0.lock().unwrap().1.remove(&id).is_some(), "ended twice");
    }
}

impl Wire {
    fn placements(&self) -> Vec<(u64, Placement)> {
        self.0.lock().unwrap().1.iter().map(|(id, placement)| (*id, placement.clone())).collect()
    }
}

fn config() -> Config {
    Config { track_output_blocks: true, ..Config::default() }
}

fn told_router(workers: u64) -> (Router, Arc<Wire>) {
    let wire = Arc::new(Wire::default());
    let router = Router::with_peers(config(), 3, Some(Arc::clone(&wire) as Arc<dyn Placements>));
    (1..=workers).for_each(|worker| router.upsert_worker(&record(worker, 16), 1).unwrap());
    (router, wire)
}

/// The books without whose they are.
fn books(router: &Router) -> Vec<(WorkerRank, BookedLoad)> {
    let loads = router.loads().into_iter();
    loads.map(|(rank, load)| (rank, BookedLoad { peer_requests: 0, ..load })).collect()
}

#[derive(Clone, Debug)]
enum Act {
    Select {
        of: u32,
        tokens: usize,
    },
    Output {
        nth: usize,
        tokens: u32,
    },
    Drop {
        nth: usize,
    },
    /// The peer hears it all once more.
    Repeat,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => (0u32..4, 1usize..200).prop_map(|(of, tokens)| Act::Select { of, tokens }),
        2 => (0usize..9, 1u32..40).prop_map(|(nth, tokens)| Act::Output { nth, tokens }),
        2 => (0usize..9).prop_map(|nth| Act::Drop { nth }),
        1 => Just(Act::Repeat),
    ];
    prop::collection::vec(act, 0..60)
}

/// Makes the peer's books those of the wire, as the watch of a frontend does.
fn hear(peer: &Router, known: &mut BTreeMap<u64, Placement>, wire: &Wire, all: bool) {
    let now: BTreeMap<u64, Placement> = wire.placements().into_iter().collect();
    known.keys().filter(|id| !now.contains_key(id)).for_each(|id| peer.peer_ended(*id));
    for (id, placement) in &now {
        match known.get(id) {
            Some(before) if before == placement && !all => {}
            Some(_) if !all => peer.peer_changed(*id, placement.prefill_tokens, placement.output_millis),
            _ => peer.peer_placed(*id, placement),
        }
    }
    *known = now;
}

proptest! {
    #[test]
    fn a_peer_has_the_same_books_and_none_when_all_is_over(acts in acts()) {
        let (router, wire) = told_router(3);
        let peer = router_with(config(), 3, 16, 9);
        let mut known = BTreeMap::new();
        let mut held: Vec<Booking> = Vec::new();
        for act in acts {
            let len = held.len().max(1);
            match act {
                Act::Select { of, tokens } => held.push(select(&router, &prompt(of, tokens)).1),
                Act::Output { nth, tokens } => {
                    if let Some(booking) = held.get_mut(nth % len) {
                        booking.output_tokens(tokens);
                    }
                }
                Act::Drop { nth } if !held.is_empty() => drop(held.swap_remove(nth % len)),
                Act::Drop { .. } => {}
                Act::Repeat => hear(&peer, &mut known, &wire, true),
            }
            hear(&peer, &mut known, &wire, false);
            prop_assert_eq!(books(&router), books(&peer));
            let peers: u32 = peer.loads().iter().map(|(_, load)| load.peer_requests).sum();
            prop_assert_eq!(peers as usize, held.len());
        }
        held.clear();
        hear(&peer, &mut known, &wire, false);
        prop_assert!(peer.loads().iter().all(|(_, load)| load.is_idle()));
        prop_assert!(wire.placements().is_empty());
    }
}

#[test]
fn two_routers_place_as_one_would() {
    for mode in [Mode::Kv, Mode::LeastLoaded] {
        let wires = [Arc::new(Wire::default()), Arc::new(Wire::default())];
        let routers: Vec<Router> = (0u64..)
            .zip(&wires)
            .map(|(seed, wire)| {
                let config = Config { mode, ..Config::default() };
                let wire = Arc::clone(wire) as Arc<dyn Placements>;
                let router = Router::with_peers(config, seed, Some(wire));
                (1..=4).for_each(|worker| router.upsert_worker(&record(worker, 16), 1).unwrap());
                router
            })
            .collect();
        let mut known = [BTreeMap::new(), BTreeMap::new()];
        let mut held = Vec::new();
        for n in 0..64u32 {
            // Unequal shares: what one knows by itself says little.
            let at = usize::from(n % 5 == 0);
            held.push(select(&routers[at], &prompt(n, 160)));
            (0..2).for_each(|of| hear(&routers[1 - of], &mut known[of], &wires[of], false));
        }
        let on = |worker| held.iter().filter(|(chosen, _)| *chosen == worker).count();
        assert_eq!([on(1), on(2), on(3), on(4)], [16; 4], "{mode}");
    }
}

#[test]
fn prompts_share_blocks_with_those_of_others_and_thresholds_count_them() {
    let (router, wire) = told_router(1);
    let peer = self::router(Mode::Kv, 1);
    let tokens = prompt(1, 160);
    let mut known = BTreeMap::new();
    router.apply_events(&stored(1, 0, &tokens[..64], 16));
    let (_, first) = select(&router, &tokens);
    hear(&peer, &mut known, &wire, false);
    assert_eq!(peer.loads()[0].1.prefill_tokens, 96, "as the one who placed it sees it");
    let (_, second) = select(&peer, &tokens);
    assert_eq!(peer.loads()[0].1.decode_blocks, 10, "not 20");
    drop(first);
    hear(&peer, &mut known, &wire, false);
    assert_eq!(peer.loads()[0].1.decode_blocks, 10);
    assert_eq!(peer.loads()[0].1.peer_requests, 0);
    drop(second);
    let (_, _busy) = select(&router, &prompt(2, 1600));
    hear(&peer, &mut known, &wire, false);
    let thresholds = dynamo_router::Thresholds {
        active_prefill_tokens_threshold: Some(1000),
        ..dynamo_router::Thresholds::default()
    };
    peer.set_thresholds(thresholds);
    let error = peer.select(&Query { tokens: &tokens, ..Query::default() }).unwrap_err();
    assert_eq!(error.class(), dynamo_types::Class::Overloaded);
}

#[test]
fn a_worker_that_comes_back_has_nothing_of_others_until_it_is_said_again() {
    let (router, wire) = told_router(2);
    let peer = router_with(config(), 2, 16, 1);
    let held: Vec<_> = (0..6).map(|n| select(&router, &prompt(n, 100)).1).collect();
    let mut known = BTreeMap::new();
    hear(&peer, &mut known, &wire, false);
    peer.remove_worker(InstanceId(2));
    peer.peer_placed(999, &Placement { target: WorkerRank::new(InstanceId(2), 0), ..known[&1].clone() });
    peer.upsert_worker(&record(2, 16), 1).unwrap();
    assert!(peer.loads()[1].1.is_idle());
    assert_eq!(peer.loads()[0].1.requests, 3);
    hear(&peer, &mut known, &wire, true);
    assert_eq!(peer.loads()[1].1.requests, 3);
    // What is said to end after its worker left and came back takes nothing from others.
    drop(held);
    peer.peer_ended(999);
    hear(&peer, &mut known, &wire, false);
    assert!(peer.loads().iter().all(|(_, load)| load.is_idle()));
}
