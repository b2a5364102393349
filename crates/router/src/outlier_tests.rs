use super::*;
use proptest::prelude::*;

const OPEN_MS: u64 = 10_000;

fn config() -> Config {
    Config {
        breaker_open_ms: OPEN_MS,
        outlier_window_ms: 60_000,
        outlier_min_requests: 16,
        ..Config::default()
    }
}

fn good(pace_ms: f64) -> Outcome {
    Outcome { fault: false, pace_ms: Some(pace_ms) }
}

const FAULT: Outcome = Outcome { fault: true, pace_ms: None };

/// `count` workers, each of which gets `times` outcomes by its number.
fn fed(count: u64, times: u64, outcome: impl Fn(u64, u64) -> Outcome) -> (Outliers, Vec<(InstanceId, bool)>) {
    let mut outliers = Outliers::default();
    for worker in 0..count {
        (0..times).for_each(|time| {
            outliers.observe(InstanceId(worker), outcome(worker, time), time, &config());
        });
    }
    (outliers, (0..count).map(|worker| (InstanceId(worker), false)).collect())
}

fn names(found: &[Outlier]) -> Vec<u64> {
    found.iter().map(|outlier| outlier.worker.0).collect()
}

#[test]
fn the_one_that_fails_more_often_than_the_others_is_found() {
    // Every third answer of worker 2 fails, never five in a row.
    let third = |worker, time| if worker == 2 && time % 3 == 0 { FAULT } else { good(10.0) };
    let (mut outliers, workers) = fed(4, 30, third);
    let found = outliers.look(&workers, 100, &config());
    assert_eq!(names(&found), [2]);
    assert!(matches!(found[0].reason, Reason::Faults { share, others } if share > 0.3 && others == 0.0));
    assert_eq!(found[0].for_ms, OPEN_MS);
    assert!(outliers.is_suspended(InstanceId(2), 100 + OPEN_MS - 1));
    assert!(!outliers.is_suspended(InstanceId(2), 100 + OPEN_MS));
    assert!(!outliers.is_suspended(InstanceId(1), 100));
    // What fails everywhere is nobody's own fault, and a few answers say nothing.
    let everywhere = |_, time| if time % 3 == 0 { FAULT } else { good(10.0) };
    let (mut outliers, workers) = fed(4, 30, everywhere);
    assert_eq!(outliers.look(&workers, 100, &config()), []);
    let (mut outliers, workers) = fed(4, 15, third);
    assert_eq!(outliers.look(&workers, 100, &config()), []);
    // What lies far back is forgotten.
    let (mut outliers, workers) = fed(4, 30, third);
    assert_eq!(outliers.look(&workers, 90_000, &config()), []);
    // The settings can say never.
    let (mut outliers, workers) = fed(4, 30, third);
    assert_eq!(outliers.look(&workers, 100, &Config { outlier_error_rate: 0.0, ..config() }), []);
}

#[test]
fn the_one_that_crawls_is_found() {
    let slow = |worker, _| good(if worker == 1 { 90.0 } else { 20.0 });
    for count in [2, 3, 5] {
        let (mut outliers, workers) = fed(count, 16, slow);
        let found = outliers.look(&workers, 100, &config());
        assert_eq!(names(&found), [1], "{count} workers");
        assert_eq!(found[0].reason, Reason::Pace { ms: 90.0, others_ms: 20.0 });
        let (mut outliers, workers) = fed(count, 16, slow);
        assert_eq!(outliers.look(&workers, 100, &Config { outlier_latency_ratio: 0.0, ..config() }), []);
    }
    // A few slow readers say nothing of the worker, nor do differences that nobody notices.
    let readers = |worker, time| good(if worker == 1 && time % 3 == 0 { 5000.0 } else { 20.0 });
    let (mut outliers, workers) = fed(3, 30, readers);
    assert_eq!(outliers.look(&workers, 100, &config()), []);
    let (mut outliers, workers) = fed(3, 30, |worker, _| good(if worker == 1 { 5.0 } else { 0.1 }));
    assert_eq!(outliers.look(&workers, 100, &config()), []);
}

#[test]
fn a_suspension_ends_with_a_trial_of_one_request() {
    let slow = |worker, _| good(if worker == 1 { 90.0 } else { 20.0 });
    let (mut outliers, workers) = fed(3, 16, slow);
    let (bad, config) = (InstanceId(1), config());
    assert_eq!(outliers.look(&workers, 0, &config).len(), 1);
    // What had begun before says nothing new.
    outliers.observe(bad, good(20.0), 500, &config);
    outliers.observe(bad, FAULT, 500, &config);
    assert!(outliers.is_suspended(bad, OPEN_MS - 1));
    // The trial: no second request beside it.
    outliers.chosen(bad, OPEN_MS, &config);
    assert!(outliers.is_suspended(bad, OPEN_MS + 1));
    // Its client leaves: the next one is the trial.
    outliers.neutral(bad);
    assert!(!outliers.is_suspended(bad, OPEN_MS + 2));
    outliers.chosen(bad, OPEN_MS + 2, &config);
    outliers.observe(bad, good(85.0), OPEN_MS + 1000, &config);
    assert!(outliers.is_suspended(bad, OPEN_MS + 1000 + 2 * OPEN_MS - 1), "longer than the first time");
    let next = OPEN_MS + 1000 + 2 * OPEN_MS;
    assert!(!outliers.is_suspended(bad, next));
    // A trial of which nothing is heard does not last.
    outliers.chosen(bad, next, &config);
    assert!(outliers.is_suspended(bad, next + OPEN_MS - 1) && !outliers.is_suspended(bad, next + OPEN_MS));
    outliers.chosen(bad, next + OPEN_MS, &config);
    outliers.observe(bad, good(21.0), next + OPEN_MS + 5, &config);
    assert!(!outliers.is_suspended(bad, next + OPEN_MS + 5));
    outliers.chosen(bad, next + OPEN_MS + 6, &config);
    assert!(!outliers.is_suspended(bad, next + OPEN_MS + 7), "it is one of all again");
}

#[test]
fn comparisons_are_rare_and_those_who_left_are_forgotten() {
    let third = |worker, time| if worker == 2 && time % 3 == 0 { FAULT } else { good(10.0) };
    let (mut outliers, workers) = fed(4, 30, third);
    assert!(outliers.is_due(0));
    assert_eq!(outliers.look(&workers, 100, &config()).len(), 1);
    assert!(!outliers.is_due(100 + LOOK_EVERY_MS - 1) && outliers.is_due(100 + LOOK_EVERY_MS));
    outliers.forget(InstanceId(2));
    assert!(!outliers.is_suspended(InstanceId(2), 101));
}

proptest! {
    #[test]
    fn never_more_than_half_are_out(
        paces in prop::collection::vec((0.0..5000.0f64, 0.0..1.0f64, any::<bool>()), 1..12),
    ) {
        let count = paces.len() as u64;
        let (mut outliers, mut workers) = fed(count, 40, |worker, time| {
            let (pace, share, _) = paces[worker as usize];
            if (time as f64) < share * 40.0 { FAULT } else { good(pace) }
        });
        for (worker, (_, _, is_out)) in workers.iter_mut().zip(&paces) {
            worker.1 = *is_out;
        }
        let out = workers.iter().filter(|(_, is_out)| *is_out).count();
        let found = outliers.look(&workers, 100, &config());
        prop_assert!(found.is_empty() || out + found.len() <= workers.len() / 2);
        for outlier in &found {
            prop_assert!(outliers.is_suspended(outlier.worker, 100));
        }
    }
}
