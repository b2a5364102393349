//! R27, R30, R31, R35, R37 and R38 over random fleets and random histories.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "other tests use the rest of it")]
mod common;

use common::{prompt, record, router_with};
use dynamo_router::{Booking, Config, Mode, Query, Router};
use dynamo_types::{BlockContract, Class, Error, InstanceId, ModelRecord, Side, WorkerRank, draw};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const CASES: u64 = 400;

/// The random choices of one case.
struct Draws {
    seed: u64,
    at: u64,
}

impl Draws {
    fn new(rule: u64, case: u64) -> Self {
        Self { seed: draw::bits(rule, case), at: 0 }
    }

    fn below(&mut self, len: u64) -> u64 {
        self.at += 1;
        draw::index(self.seed, self.at, len as usize) as u64
    }

    fn mode(&mut self) -> Mode {
        Mode::ALL[self.below(Mode::ALL.len() as u64) as usize]
    }
}

fn of_mode(mode: Mode) -> Config {
    Config { mode, track_output_blocks: true, ..Config::default() }
}

/// Whoever drains gets nothing new, in no mode and at no moment, and keeps what it has.
#[test]
fn r27_whoever_drains_gets_nothing_new_at_any_moment() {
    for case in 0..CASES {
        let mut draws = Draws::new(27, case);
        let (mode, workers) = (draws.mode(), 1 + draws.below(5));
        let router = router_with(of_mode(mode), workers, 16, case);
        let mut draining = BTreeSet::new();
        let mut held: Vec<(u64, Booking)> = Vec::new();
        for step in 0..60 {
            let worker = 1 + draws.below(workers);
            match draws.below(6) {
                0 => {
                    router.set_draining(InstanceId(worker), true);
                    draining.insert(worker);
                }
                1 => {
                    router.set_draining(InstanceId(worker), false);
                    draining.remove(&worker);
                }
                2 if !held.is_empty() => {
                    held.swap_remove(draws.below(held.len() as u64) as usize);
                }
                _ => {
                    let tokens = prompt(step, 20 + draws.below(100) as usize);
                    // Also for an answer that moves, and for who insists.
                    let begun = draws.below(4) == 0;
                    let pinned = (draws.below(5) == 0).then_some((InstanceId(worker), None));
                    match router.select(&Query { tokens: &tokens, begun, pinned, ..Query::default() }) {
                        Ok(selection) => {
                            let chosen = selection.target.worker.0;
                            assert!(!draining.contains(&chosen), "case {case} {mode}: {chosen} drains");
                            held.push((chosen, selection.booking));
                        }
                        Err(error) => {
                            let nobody = draining.len() as u64 == workers
                                || (pinned.is_some() && draining.contains(&worker));
                            assert!(nobody, "case {case} {mode}: {error}");
                            assert_eq!(error.class(), Class::Unavailable, "case {case}");
                            assert!(error.retry_after_s().is_some(), "case {case}");
                        }
                    }
                }
            }
            for (rank, load) in router.loads() {
                let expected = held.iter().filter(|(worker, _)| *worker == rank.worker.0).count();
                assert_eq!(load.requests as usize, expected, "case {case}: running requests stay");
            }
        }
    }
}

/// A worker that failed a request is not tried again for it; one that is suspended only where nobody else is left.
#[test]
fn r30_the_next_try_goes_where_it_can_succeed() {
    for case in 0..CASES {
        let mut draws = Draws::new(30, case);
        let (mode, workers) = (draws.mode(), 2 + draws.below(5));
        let router = router_with(of_mode(mode), workers, 16, case);
        let suspended: BTreeSet<u64> = (1..=workers).filter(|_| draws.below(3) == 0).collect();
        for worker in &suspended {
            // By a connection that broke, or by whoever watches over the fleet.
            match draws.below(2) {
                0 => router.report(InstanceId(*worker), Some(&Error::disconnected("x")), 0),
                _ => router.suspend(InstanceId(*worker), 5000),
            }
        }
        let tokens = prompt(case as u32, 40);
        let mut failed: Vec<InstanceId> = Vec::new();
        for attempt in 0..workers {
            let query = Query { tokens: &tokens, excluded: &failed, now_ms: 10, ..Query::default() };
            let chosen = router.select(&query).expect("somebody is left").target.worker;
            assert!(!failed.contains(&chosen), "case {case} {mode}: tried twice");
            let healthy = workers - suspended.len() as u64;
            assert_eq!(
                suspended.contains(&chosen.0),
                attempt >= healthy,
                "case {case} {mode}: suspended ones come last"
            );
            failed.push(chosen);
        }
        let query = Query { tokens: &tokens, excluded: &failed, now_ms: 10, ..Query::default() };
        assert_eq!(router.select(&query).unwrap_err().class(), Class::Unavailable, "case {case}");
        // Suspensions end by themselves.
        assert!(router.suspended(10_000_000).is_empty());
    }
}

/// What a breaker may know of: faults since the last success, and until when it is open.
#[derive(Default)]
struct Breaker {
    faults: u32,
    until_ms: u64,
}

/// Whatever clients get wrong, and however often they leave: only faults of servers open a breaker, and only in a row.
#[test]
fn r31_only_server_faults_in_a_row_open_the_breaker() {
    for case in 0..CASES {
        let mut draws = Draws::new(31, case);
        let (failures, open_ms) = (1 + draws.below(6) as u32, 1 + draws.below(500));
        let config = Config { breaker_failures: failures, breaker_open_ms: open_ms, ..of_mode(draws.mode()) };
        let router = router_with(config, 3, 16, case);
        let mut models: BTreeMap<u64, Breaker> = (1..=3).map(|worker| (worker, Breaker::default())).collect();
        let mut now_ms = 0;
        for _ in 0..120 {
            now_ms += draws.below(60);
            let worker = 1 + draws.below(3);
            let model = models.get_mut(&worker).unwrap();
            let neutral = [
                Error::invalid("too long"),
                Error::not_found("model"),
                Error::client(Class::TooLarge, "large"),
                Error::client(Class::NotImplemented, "images"),
                Error::cancelled(),
                Error::overloaded("full"),
            ];
            let outcome = match draws.below(10) {
                0..=3 => Some(neutral[draws.below(6) as usize].clone()),
                4..=6 => Some(Error::engine("out of memory")),
                7 => Some(Error::disconnected("reset")),
                8 => Some(Error::timeout("silent")),
                _ => None,
            };
            router.report(InstanceId(worker), outcome.as_ref(), now_ms);
            match &outcome {
                None => *model = Breaker::default(),
                Some(error)
                    if matches!(error.side(), Side::Network) || error.message() == "out of memory" =>
                {
                    model.faults += 1;
                    if model.faults >= failures || error.message() != "out of memory" {
                        model.until_ms = model.until_ms.max(now_ms + open_ms);
                    }
                }
                Some(_) => {}
            }
            let open: Vec<InstanceId> =
                models.iter().filter(|(_, it)| now_ms < it.until_ms).map(|(id, _)| InstanceId(*id)).collect();
            assert_eq!(router.suspended(now_ms), open, "case {case} after {outcome:?}");
            let chosen = router.select(&Query { tokens: &[1], now_ms, ..Query::default() }).unwrap().target;
            assert!(open.len() == 3 || !open.contains(&chosen.worker), "case {case}");
        }
    }
}

fn with_contract(worker: u64, contract: &BlockContract) -> ModelRecord {
    let mut record = record(worker, 16);
    let mut card = (*record.card).clone();
    card.blocks = contract.clone();
    record.card = Arc::new(card);
    record
}

/// Two workers of a model agree on their blocks, or the second is refused with both values; whatever came before.
#[test]
fn r35_any_difference_of_contracts_is_refused_with_both_values() {
    for case in 0..CASES {
        let mut draws = Draws::new(35, case);
        let mut contract = || {
            let mut contract = BlockContract::xxh3([16, 32, 64][draws.below(3) as usize]);
            if draws.below(3) == 0 {
                contract.version += 1;
            }
            if draws.below(3) == 0 {
                contract.algorithm = "other".into();
            }
            contract
        };
        let (first, second) = (contract(), contract());
        let router = Router::new(Config::default(), case);
        router.upsert_worker(&with_contract(1, &first), 1).unwrap();
        let offered = router.upsert_worker(&with_contract(2, &second), 1);
        match offered {
            Ok(()) => assert_eq!(first, second, "case {case}"),
            Err(error) => {
                assert_ne!(first, second, "case {case}");
                let text = error.to_string();
                // Of several differences the first is named.
                let both = |(one, two): &(String, String)| {
                    one != two && text.contains(one.as_str()) && text.contains(two.as_str())
                };
                let fields = [
                    (first.block_size.to_string(), second.block_size.to_string()),
                    (first.version.to_string(), second.version.to_string()),
                    (first.algorithm.clone(), second.algorithm.clone()),
                ];
                assert!(fields.iter().any(both), "case {case}: {text}");
                // Nobody holds to the old one any more.
                router.remove_worker(InstanceId(1));
                router.upsert_worker(&with_contract(2, &second), 1).unwrap();
            }
        }
        let chosen = router.select(&Query { tokens: &[1], ..Query::default() }).unwrap();
        assert!([1, 2].contains(&chosen.target.worker.0));
    }
}

/// Idle workers get alike much of prompts that nobody has cached; requests that run are spread at once.
#[test]
fn r37_nobody_is_preferred_without_a_reason() {
    for case in 0..CASES {
        let mut draws = Draws::new(37, case);
        let (mode, workers) = (Mode::ALL[(case % Mode::ALL.len() as u64) as usize], 2 + draws.below(6));
        let router = router_with(of_mode(mode), workers, 16, case);
        let each = 60;
        let mut counts: BTreeMap<WorkerRank, u64> = BTreeMap::new();
        for n in 0..each * workers {
            let tokens = prompt(n as u32, 16 + draws.below(64) as usize);
            let selection = router.select(&Query { tokens: &tokens, ..Query::default() }).unwrap();
            *counts.entry(selection.target).or_default() += 1;
        }
        assert_eq!(counts.len() as u64, workers, "case {case} {mode}");
        // Five standard deviations of a fair draw.
        assert!(counts.values().all(|count| (21..=99).contains(count)), "case {case} {mode}: {counts:?}");
        let tokens = 512 + draws.below(4096) as usize;
        let held: Vec<_> = (0..10 * workers)
            .map(|n| {
                let tokens = prompt(1_000_000 + n as u32, tokens);
                router.select(&Query { tokens: &tokens, ..Query::default() }).unwrap()
            })
            .collect();
        let loads = router.loads();
        let most = loads.iter().map(|(_, load)| load.requests).max().unwrap();
        assert!(most <= 13, "case {case} {mode}: {most} of {} on one of {workers}", held.len());
    }
}

/// However requests end, and whoever leaves or comes back meanwhile: nothing stays on the books.
#[test]
fn r38_nothing_stays_booked_whatever_happens() {
    for case in 0..CASES {
        let mut draws = Draws::new(38, case);
        let (mode, workers) = (draws.mode(), 1 + draws.below(5));
        let router = router_with(of_mode(mode), workers, 16, case);
        let mut held: Vec<Booking> = Vec::new();
        for step in 0..80 {
            let worker = 1 + draws.below(workers);
            match draws.below(8) {
                0..=2 => {
                    let tokens = prompt(draws.below(9) as u32, 10 + draws.below(200) as usize);
                    let excluded = [InstanceId(worker)];
                    let query = Query {
                        tokens: &tokens,
                        expected_output_tokens: (draws.below(2) == 0).then_some(50),
                        excluded: if draws.below(3) == 0 { &excluded } else { &[] },
                        now_ms: step,
                        ..Query::default()
                    };
                    held.extend(router.select(&query).map(|selection| selection.booking));
                }
                3 if !held.is_empty() => {
                    let at = draws.below(held.len() as u64) as usize;
                    held[at].first_token();
                }
                4 if !held.is_empty() => {
                    let at = draws.below(held.len() as u64) as usize;
                    let tokens = draws.below(70) as u32;
                    held[at].output_tokens(tokens);
                }
                5 | 6 if !held.is_empty() => {
                    held.swap_remove(draws.below(held.len() as u64) as usize);
                }
                // Its bookings end with it; a later life owes nothing.
                _ => match draws.below(3) {
                    0 => router.remove_worker(InstanceId(worker)),
                    1 => router.set_draining(InstanceId(worker), true),
                    _ => router.upsert_worker(&record(worker, 16), 1).unwrap(),
                },
            }
            let booked: usize = router.loads().iter().map(|(_, load)| load.requests as usize).sum();
            assert!(booked <= held.len(), "case {case} {mode}: {booked} booked, {} held", held.len());
        }
        drop(held);
        assert!(
            router.loads().iter().all(|(_, load)| load.is_idle()),
            "case {case} {mode}: {:?}",
            router.loads()
        );
    }
}
