//! Selections whose caller has the hashes of a prompt and not its tokens, and answers that are counted in blocks.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{prompt, router, router_with, select, stored};
use dynamo_router::{Config, Mode, Overlap, Query};
use dynamo_types::hash::{Scope, local_hashes, sequence_hashes};
use dynamo_types::{InstanceId, WorkerRank};

const BLOCK: usize = 16;

fn target(worker: u64) -> WorkerRank {
    WorkerRank::new(InstanceId(worker), 0)
}

#[test]
fn hashes_and_length_are_as_good_as_tokens() {
    let tokens = prompt(3, 5 * BLOCK + 7);
    let locals = local_hashes(&tokens, BLOCK, &Scope::default());
    let sequences = sequence_hashes(&locals);
    let length = Some(tokens.len() as u32);
    let ways = [
        Query { tokens: &tokens, ..Query::default() },
        Query { local_hashes: Some(&locals), length, ..Query::default() },
        Query { sequence_hashes: Some(&sequences), length, ..Query::default() },
    ];
    for query in ways {
        let router = router(Mode::Kv, 2);
        router.apply_events(&stored(2, 0, &tokens[..3 * BLOCK], BLOCK));
        let cached = Overlap { device: 3, host: 3, disk: 3 };
        assert_eq!(router.overlaps(&query), [(target(1), Overlap::default()), (target(2), cached)]);
        let selection = router.select(&query).unwrap();
        assert_eq!((selection.target, selection.overlap_blocks), (target(2), 3));
        assert_eq!(selection.booking.prefill_tokens(), (2 * BLOCK + 7) as u64);
        let load = router.loads()[1].1;
        assert_eq!((load.prefill_tokens, load.decode_blocks), ((2 * BLOCK + 7) as u64, 5));
        drop(selection);
        assert!(router.loads().iter().all(|(_, load)| load.is_idle()));
    }
}

#[test]
fn modes_that_do_not_look_at_the_cache_know_the_length_all_the_same() {
    let router = router(Mode::RoundRobin, 1);
    let query = Query { length: Some(100), sequence_hashes: Some(&[1, 2, 3]), ..Query::default() };
    assert_eq!(router.overlaps(&query), [(target(1), Overlap::default())]);
    let held = router.select(&query).unwrap();
    let load = router.loads()[0].1;
    assert_eq!((load.prefill_tokens, load.decode_blocks), (100, 100 / BLOCK as u64));
    drop(held);
    assert!(router.loads()[0].1.is_idle());
}

#[test]
fn blocks_of_an_answer_weigh_what_is_said_and_come_back() {
    let router = router_with(Config::default(), 1, BLOCK as u32, 1);
    let tokens = prompt(1, 40);
    let (_, mut booking) = select(&router, &tokens);
    let output = || router.loads()[0].1.output_blocks;
    booking.output_block(1.0);
    assert_eq!((output(), router.loads()[0].1.prefill_tokens), (1.0, 0));
    booking.output_block(1.0);
    assert_eq!(output(), 2.0);
    booking.output_block(0.5);
    assert_eq!(output(), 1.5, "three blocks at a half");
    booking.output_block(f64::NAN);
    booking.output_block(7.0);
    assert_eq!(output(), 5.0, "above the whole is the whole");
    drop(booking);
    assert!(router.loads()[0].1.is_idle());
}
