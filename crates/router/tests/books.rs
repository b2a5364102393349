//! What is booked, and that it comes back.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{prompt, record, router, router_with, select, stored};
use dynamo_router::{BookedLoad, Config, Mode, Query, Router};
use dynamo_types::{InstanceId, Load, WorkerRank, draw};
use proptest::prelude::*;

fn load(router: &Router, worker: u64) -> BookedLoad {
    let target = WorkerRank::new(InstanceId(worker), 0);
    router.loads().into_iter().find(|(rank, _)| *rank == target).unwrap().1
}

fn pinned(worker: u64, tokens: &[u32]) -> Query<'_> {
    Query { tokens, pinned: Some((InstanceId(worker), None)), ..Query::default() }
}

/// The reference's selection service at block size 4 (behaviour.md 13.6), but for its choice of the lowest id on ties.
#[test]
fn golden_selection_service() {
    let router = router_with(Config::default(), 2, 4, 1);
    let eight: Vec<u32> = (1..9).collect();
    let nine: Vec<u32> = (1..10).collect();
    let potential = |tokens: &[u32]| -> Vec<(u64, u64, f64)> {
        let loads = router.potential_loads(&Query { tokens, ..Query::default() }).unwrap();
        loads.iter().map(|load| (load.target.worker.0, load.prefill_tokens, load.decode_blocks)).collect()
    };
    assert_eq!(potential(&eight), [(1, 8, 2.0), (2, 8, 2.0)]);
    let first = router.select(&pinned(1, &eight)).unwrap();
    let rows = router.select(&Query { explain: true, ..pinned(2, &nine) }).unwrap().explain.unwrap();
    assert_eq!(rows[0].potential_decode_blocks, 3.0);
    let (second, mut booking) = select(&router, &nine);
    assert_eq!(second, 2);
    assert_eq!((load(&router, 2).decode_blocks, load(&router, 2).prefill_tokens), (2, 9));
    drop(first);
    assert_eq!(potential(&[1, 2, 3, 4]), [(1, 4, 1.0), (2, 13, 2.0)]);
    booking.first_token();
    assert_eq!(load(&router, 2).prefill_tokens, 0);
    drop(booking);
    assert!(router.loads().iter().all(|(_, load)| load.is_idle()));
}

#[test]
fn r38_bookings_never_leak() {
    for mode in Mode::ALL {
        let config = Config { mode, track_output_blocks: true, ..Config::default() };
        let router = router_with(config, 4, 16, 5);
        let mut held = Vec::new();
        for n in 0..1000u32 {
            let tokens = prompt(n % 7, 40 + (n as usize % 5) * 16);
            let query = Query { tokens: &tokens, expected_output_tokens: Some(100), ..Query::default() };
            let mut booking = router.select(&query).unwrap().booking;
            // The send fails before anything, after the first token, in mid answer; or much later.
            let point = draw::index(9, u64::from(n), 4);
            if point >= 1 {
                booking.first_token();
            }
            if point >= 2 {
                (0..draw::index(10, u64::from(n), 60)).for_each(|_| booking.output_tokens(3));
            }
            if point == 3 {
                held.push(booking);
            }
        }
        assert_eq!(router.loads().iter().map(|(_, load)| load.requests as usize).sum::<usize>(), held.len());
        assert!(!held.is_empty());
        drop(held);
        assert!(router.loads().iter().all(|(_, load)| load.is_idle()), "{mode}: {:?}", router.loads());
    }
}

#[test]
fn prompts_share_their_common_blocks_on_a_worker() {
    let router = router(Mode::Kv, 1);
    let long = prompt(1, 160);
    let (_, whole) = select(&router, &long);
    let (_, half) = select(&router, &long[..80]);
    assert_eq!((load(&router, 1).decode_blocks, load(&router, 1).requests), (10, 2));
    drop(whole);
    assert_eq!(load(&router, 1).decode_blocks, 5);
    drop(half);
    let alone = router_with(Config { assume_kv_reuse: false, ..Config::default() }, 1, 16, 1);
    let _pair = [select(&alone, &long), select(&alone, &long)];
    assert_eq!(load(&alone, 1).decode_blocks, 20);
}

#[test]
fn only_what_is_not_cached_is_booked_as_prefill() {
    let router = router(Mode::Kv, 1);
    let tokens = prompt(1, 100);
    router.apply_events(&stored(1, 0, &tokens[..64], 16));
    let (_, mut booking) = select(&router, &tokens);
    assert_eq!(load(&router, 1).prefill_tokens, 36);
    booking.output_tokens(1);
    assert_eq!(load(&router, 1).prefill_tokens, 0);
    booking.first_token();
    drop(booking);
    assert!(load(&router, 1).is_idle());
}

#[test]
fn output_blocks_count_at_boundaries_and_fade_towards_the_expected_end() {
    let config = Config { track_output_blocks: true, ..Config::default() };
    let router = router_with(config, 1, 16, 1);
    let tokens = prompt(1, 40);
    let mut plain = router.select(&pinned(1, &tokens)).unwrap().booking;
    plain.output_tokens(7);
    assert_eq!(load(&router, 1).output_blocks, 0.0);
    plain.output_tokens(1);
    assert_eq!(load(&router, 1).output_blocks, 1.0);
    plain.output_tokens(32);
    assert_eq!(load(&router, 1).output_blocks, 3.0);
    drop(plain);
    let query = Query { expected_output_tokens: Some(80), ..pinned(1, &tokens) };
    let mut fading = router.select(&query).unwrap().booking;
    fading.output_tokens(40);
    assert_eq!(load(&router, 1).output_blocks, 1.5);
    fading.output_tokens(160);
    assert_eq!(load(&router, 1).output_blocks, 0.0);
    drop(fading);
    assert!(load(&router, 1).is_idle());
}

#[test]
fn a_booking_outlives_its_worker_and_never_touches_the_next_life() {
    let router = router(Mode::Kv, 1);
    let tokens = prompt(1, 64);
    let (_, mut old) = select(&router, &tokens);
    router.remove_worker(InstanceId(1));
    assert!(router.loads().is_empty());
    router.upsert_worker(&record(1, 16), 1).unwrap();
    assert!(load(&router, 1).is_idle());
    let (_, new) = select(&router, &tokens);
    let booked = load(&router, 1);
    old.first_token();
    drop(old);
    assert_eq!(load(&router, 1), booked);
    router.upsert_worker(&record(1, 16), 1).unwrap();
    assert_eq!(load(&router, 1), booked, "an update keeps the books");
    drop(new);
    assert!(load(&router, 1).is_idle());
}

#[test]
fn reported_load_is_kept_beside_the_books() {
    let router = router(Mode::Kv, 1);
    let reported = Load { running: 3, total_blocks: 9, ..Load::default() };
    router.update_load(WorkerRank::new(InstanceId(1), 0), reported);
    router.update_load(WorkerRank::new(InstanceId(2), 0), reported);
    assert_eq!(load(&router, 1).reported, Some(reported));
    assert_eq!(router.loads().len(), 1);
}

#[test]
fn selections_from_many_threads_balance() {
    let router = router(Mode::Kv, 4);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let router = &router;
            scope.spawn(move || {
                for n in 0..200 {
                    let tokens = prompt(n % 9, 96);
                    let (worker, mut booking) = select(router, &tokens);
                    router.apply_events(&stored(worker, u64::from(thread * 200 + n), &tokens, 16));
                    booking.first_token();
                }
            });
        }
    });
    assert!(router.loads().iter().all(|(_, load)| load.is_idle()));
}

proptest! {
    /// The books equal what the bookings held say, whatever the order of things.
    #[test]
    fn books_equal_the_sum_of_bookings(
        steps in prop::collection::vec((0u8..4, 0u32..5, 0usize..80), 1..80),
        seed in any::<u64>(),
    ) {
        let router = router_with(Config::default(), 3, 4, seed);
        let mut held: Vec<(u64, Vec<u32>, bool, dynamo_router::Booking)> = Vec::new();
        for (action, family, len) in steps {
            match action {
                0 | 1 => {
                    let tokens = prompt(family, len);
                    let (worker, booking) = select(&router, &tokens);
                    held.push((worker, tokens, false, booking));
                }
                2 if !held.is_empty() => {
                    let at = len % held.len();
                    held[at].3.first_token();
                    held[at].2 = true;
                }
                _ if !held.is_empty() => drop(held.swap_remove(len % held.len())),
                _ => {}
            }
            for worker in 1..=3 {
                let mine = held.iter().filter(|(on, ..)| *on == worker);
                let prefill: usize = mine.clone().filter(|(_, _, first, _)| !first).map(|(_, t, ..)| t.len()).sum();
                let blocks: std::collections::BTreeSet<&[u32]> = mine.clone()
                    .flat_map(|(_, tokens, ..)| (1..=tokens.len() / 4).map(move |end| &tokens[..end * 4]))
                    .collect();
                let found = load(&router, worker);
                prop_assert_eq!(found.requests as usize, mine.count());
                prop_assert_eq!(found.prefill_tokens as usize, prefill);
                prop_assert_eq!(found.decode_blocks as usize, blocks.len());
            }
        }
    }
}
