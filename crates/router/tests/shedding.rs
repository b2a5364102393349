//! Load shedding: busy workers are passed over, and when all are, the request is refused; in every mode.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{prompt, record, router, select, stored};
use dynamo_router::{Config, Mode, Query, Router, Thresholds};
use dynamo_types::{Class, Error, InstanceId, Load, WorkerRank};

const PREFILL: Thresholds = Thresholds {
    active_decode_blocks_threshold: None,
    active_prefill_tokens_threshold: Some(100),
    active_prefill_tokens_threshold_frac: None,
};
const DECODE: Thresholds = Thresholds {
    active_decode_blocks_threshold: Some(0.1),
    active_prefill_tokens_threshold: None,
    active_prefill_tokens_threshold_frac: None,
};
const SHARE: Thresholds = Thresholds {
    active_decode_blocks_threshold: None,
    active_prefill_tokens_threshold: None,
    active_prefill_tokens_threshold_frac: Some(0.5),
};

fn pinned(router: &Router, worker: u64, rank: Option<u32>) -> Result<WorkerRank, Error> {
    let query = Query { pinned: Some((InstanceId(worker), rank)), ..Query::default() };
    router.select(&query).map(|selection| selection.target)
}

#[test]
fn booked_load_sheds_in_every_mode_and_its_return_ends_it() {
    for mode in Mode::ALL {
        for (limits, tokens) in [(PREFILL, 101), (DECODE, 16_032), (SHARE, 4097)] {
            let router = router(mode, 3);
            router.set_thresholds(limits);
            assert_eq!(router.thresholds(), limits);
            // Each of these fills one worker, so no two may meet.
            let mut held: Vec<_> = (0..3).map(|n| select(&router, &prompt(n, tokens))).collect();
            let mut workers: Vec<u64> = held.iter().map(|(worker, _)| *worker).collect();
            workers.sort_unstable();
            assert_eq!(workers, [1, 2, 3], "{mode}");
            let error = router.select(&Query::default()).unwrap_err();
            assert_eq!(error.class(), Class::Overloaded, "{mode}");
            assert_eq!(error.message(), "Service temporarily overloaded");
            assert!(error.retry_after_s().is_some_and(|seconds| seconds > 0));
            let (freed, booking) = held.pop().unwrap();
            drop(booking);
            for _ in 0..10 {
                assert_eq!(select(&router, &[1]).0, freed, "{mode}");
            }
        }
    }
}

#[test]
fn the_first_token_ends_the_prefill_and_not_the_decode() {
    let router = router(Mode::Kv, 1);
    router.set_thresholds(PREFILL);
    let (_, mut booking) = select(&router, &prompt(1, 1600));
    assert!(router.select(&Query::default()).is_err());
    booking.first_token();
    assert!(router.select(&Query::default()).is_ok());
    router.set_thresholds(Thresholds { active_decode_blocks_threshold: Some(0.005), ..DECODE });
    assert!(router.select(&Query::default()).is_err());
}

#[test]
fn what_engines_report_sheds_in_every_mode() {
    for mode in Mode::ALL {
        for (limits, load) in [
            (PREFILL, Load { prefill_tokens: 101, ..Load::default() }),
            (DECODE, Load { active_blocks: 11, total_blocks: 100, ..Load::default() }),
            // Without a total of its own, the card's counts.
            (DECODE, Load { active_blocks: 1001, ..Load::default() }),
            (SHARE, Load { prefill_tokens: 4097, ..Load::default() }),
        ] {
            let router = router(mode, 2);
            router.set_thresholds(limits);
            router.update_load(WorkerRank::new(InstanceId(1), 0), load);
            for _ in 0..20 {
                assert_eq!(select(&router, &[1]).0, 2, "{mode}");
            }
            router.update_load(WorkerRank::new(InstanceId(2), 0), load);
            assert_eq!(router.select(&Query::default()).unwrap_err().class(), Class::Overloaded, "{mode}");
            router.update_load(WorkerRank::new(InstanceId(1), 0), Load::default());
            assert_eq!(select(&router, &[1]).0, 1, "{mode}");
        }
    }
}

#[test]
fn a_cached_prefix_does_not_outweigh_a_limit() {
    let router = router(Mode::Kv, 2);
    let tokens = prompt(1, 1600);
    router.apply_events(&stored(1, 0, &tokens, 16));
    assert_eq!(select(&router, &tokens).0, 1);
    router.set_thresholds(DECODE);
    let full = Load { active_blocks: 1001, ..Load::default() };
    router.update_load(WorkerRank::new(InstanceId(1), 0), full);
    assert_eq!(select(&router, &tokens).0, 2);
}

/// Half an answer is with the client: it goes where there is room, and where there is none it goes on all the same.
#[test]
fn an_answer_that_has_begun_is_not_shed() {
    for mode in Mode::ALL {
        let router = router(mode, 3);
        router.set_thresholds(PREFILL);
        let failed = [InstanceId(3)];
        let moved = Query { begun: true, excluded: &failed, ..Query::default() };
        let full = Load { prefill_tokens: 101, ..Load::default() };
        router.update_load(WorkerRank::new(InstanceId(1), 0), full);
        for _ in 0..10 {
            assert_eq!(router.select(&moved).unwrap().target.worker, InstanceId(2), "{mode}");
        }
        router.update_load(WorkerRank::new(InstanceId(2), 0), full);
        assert_ne!(router.select(&moved).unwrap().target.worker, InstanceId(3), "{mode}");
        let new = Query { begun: false, ..moved };
        assert_eq!(router.select(&new).unwrap_err().class(), Class::Overloaded, "{mode}");
    }
}

#[test]
fn without_limits_nothing_is_shed() {
    for mode in Mode::ALL {
        let router = router(mode, 2);
        let busy = Load { prefill_tokens: u32::MAX, active_blocks: u32::MAX, ..Load::default() };
        (1..=2).for_each(|id| router.update_load(WorkerRank::new(InstanceId(id), 0), busy));
        let held: Vec<_> = (0..50).map(|n| select(&router, &prompt(n, 32_768))).collect();
        assert_eq!(held.len(), 50, "{mode}");
    }
}

#[test]
fn a_worker_is_busy_when_all_its_ranks_are() {
    for mode in Mode::ALL {
        let router = router(mode, 1);
        router.upsert_worker(&record(2, 16), 2).unwrap();
        router.set_thresholds(PREFILL);
        let load = |worker, rank, prefill_tokens| {
            let source = WorkerRank::new(InstanceId(worker), rank);
            router.update_load(source, Load { prefill_tokens, ..Load::default() });
        };
        load(1, 0, 101);
        load(2, 0, 101);
        for _ in 0..10 {
            assert_eq!(router.select(&Query::default()).unwrap().target, WorkerRank::new(InstanceId(2), 1));
        }
        // A pin is followed as long as its worker is not busy, and refused like everything else when it is.
        assert_eq!(pinned(&router, 2, None).unwrap().rank, 1);
        assert_eq!(pinned(&router, 2, Some(0)).unwrap().rank, 0);
        assert_eq!(pinned(&router, 1, None).unwrap_err().class(), Class::Overloaded, "{mode}");
        load(2, 1, 101);
        assert_eq!(pinned(&router, 2, Some(1)).unwrap_err().class(), Class::Overloaded);
    }
}

#[test]
fn who_is_gone_drains_or_failed_is_unavailable_and_not_overloaded() {
    for mode in Mode::ALL {
        let router = router(mode, 2);
        router.set_thresholds(PREFILL);
        let excluded = [1, 2].map(InstanceId);
        let failed = Query { excluded: &excluded, ..Query::default() };
        assert_eq!(router.select(&failed).unwrap_err().class(), Class::Unavailable);
        router.set_draining(InstanceId(2), true);
        let (worker, _booking) = select(&router, &prompt(1, 101));
        assert_eq!(worker, 1);
        assert_eq!(router.select(&Query::default()).unwrap_err().class(), Class::Overloaded, "{mode}");
        router.set_draining(InstanceId(1), true);
        assert_eq!(router.select(&Query::default()).unwrap_err().class(), Class::Unavailable);
    }
}

#[test]
fn limits_of_the_configuration_hold_from_the_start() {
    let config = Config { active_prefill_tokens_threshold: Some(7), ..Config::default() };
    assert_eq!(config.validate(), Ok(()));
    let router = Router::new(config, 1);
    assert_eq!(router.thresholds().active_prefill_tokens_threshold, Some(7));
    let config = Config { active_decode_blocks_threshold: Some(2.0), ..Config::default() };
    assert!(config.validate().unwrap_err().contains("active_decode_blocks_threshold"));
}
