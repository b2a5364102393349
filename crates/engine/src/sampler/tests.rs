use super::*;
use dynamo_types::{OutputOptions, Request, Sampling, Stopping};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

fn request(sampling: Sampling) -> Request {
    Request {
        id: "r".into(),
        model: "m".into(),
        tokens: vec![1, 2, 2, 3].into(),
        resumed: 0,
        task: Default::default(),
        sampling,
        stopping: Stopping { max_tokens: 10, ..Default::default() },
        guide: None,
        thinking: None,
        output: Default::default(),
        routing: Default::default(),
        trace: None,
    }
}

fn state(sampling: Sampling) -> State {
    State::new(Arc::new(request(sampling)), &[])
}

/// Scores without structure, deterministic.
fn scores(seed: u64, len: usize, spread: f32) -> Vec<f32> {
    (0..len as u64).map(|i| (draw::unit(seed, i) as f32 - 0.5) * spread).collect()
}

/// Every filter the slow way, in double precision. None if a limit is too close to call.
fn naive(scores: &[f32], sampling: &Sampling) -> Option<Vec<(u32, f64)>> {
    let maximum = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sorted: Vec<(u32, f64)> = scores
        .iter()
        .enumerate()
        .map(|(id, &score)| (id as u32, (f64::from(score - maximum) / f64::from(sampling.temperature)).exp()))
        .collect();
    sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if sampling.top_k > 0 {
        sorted.truncate(sampling.top_k as usize);
    }
    let total: f64 = sorted.iter().map(|&(_, weight)| weight).sum();
    if sampling.top_p < 1.0 {
        let (mut held, mut keep) = (0.0, 0);
        for &(_, weight) in &sorted {
            held += weight / total;
            keep += 1;
            if (held - f64::from(sampling.top_p)).abs() < 1e-5 {
                return None;
            }
            if held >= f64::from(sampling.top_p) {
                break;
            }
        }
        sorted.truncate(keep);
    }
    let min_p = f64::from(sampling.min_p);
    if min_p > 0.0 && sorted.iter().any(|&(_, weight)| (weight - min_p).abs() < 1e-5) {
        return None;
    }
    sorted.retain(|&(_, weight)| weight >= min_p);
    let total: f64 = sorted.iter().map(|&(_, weight)| weight).sum();
    sorted.iter_mut().for_each(|(_, weight)| *weight /= total);
    Some(sorted)
}

fn sampling() -> impl Strategy<Value = Sampling> {
    let top_k = prop_oneof![Just(0u32), 1u32..8, 8u32..200];
    let top_p = prop_oneof![Just(1.0f32), 0.0f32..1.0];
    let min_p = prop_oneof![2 => Just(0.0f32), 1 => 0.0f32..0.5];
    (0.2f32..3.0, top_k, top_p, min_p).prop_map(|(temperature, top_k, top_p, min_p)| Sampling {
        temperature,
        top_k,
        top_p,
        min_p,
        ..Default::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn the_same_tokens_are_in_the_running_as_the_slow_way(
        sampling in sampling(),
        seed in any::<u64>(),
        len in 1usize..700,
        spread in 1.0f32..30.0,
    ) {
        let scores = scores(seed, len, spread);
        let Some(expected) = naive(&scores, &sampling) else { return Ok(()) };
        let expected: BTreeSet<u32> = expected.into_iter().map(|(id, _)| id).collect();
        let mut sampler = Sampler::default();
        let mut last = None;
        for position in 0..300 {
            let sampling = Sampling { seed: position, ..sampling.clone() };
            let choice = sampler.sample(&mut scores.clone(), &state(sampling.clone()), None).unwrap();
            prop_assert!(expected.contains(&choice.token), "{} is not in the running", choice.token);
            let again = Sampler::default().sample(&mut scores.clone(), &state(sampling), None).unwrap();
            prop_assert_eq!(&choice, &again);
            last = Some(choice);
        }
        prop_assert!(last.is_some());
    }

    #[test]
    fn extremes_of_the_draw_reach_the_ends_of_the_set(
        sampling in sampling(),
        seed in any::<u64>(),
        len in 1usize..700,
    ) {
        let scores = scores(seed, len, 10.0);
        let Some(expected) = naive(&scores, &sampling) else { return Ok(()) };
        let mut sampler = Sampler::default();
        let maximum = vector::chunk_maxima(&scores, &mut sampler.maxima).unwrap();
        for random in [0.0, 0.25, 0.999_999, 1.0 - f64::EPSILON / 2.0] {
            let token = sampler.draw(&scores, maximum, &state(sampling.clone()), random).unwrap();
            // With top-k tokens are drawn best first, else in order of ids.
            let mut order = expected.clone();
            if sampling.top_k == 0 {
                order.sort_by_key(|&(id, _)| id);
            }
            let mut sum = 0.0;
            let near: BTreeSet<u32> = order
                .iter()
                .filter(|&&(_, share)| {
                    let range = (sum - 1e-5)..=(sum + share + 1e-5);
                    sum += share;
                    range.contains(&random)
                })
                .map(|&(id, _)| id)
                .collect();
            prop_assert!(near.contains(&token), "{token} for {random}, expected one of {near:?}");
        }
    }

    #[test]
    fn top_alternatives_are_the_best_in_order(
        seed in any::<u64>(),
        len in 1usize..5000,
        top in 0u32..70,
        levels in 2u32..1000,
    ) {
        // Few levels: many ties. Adding zero makes one zero of two, which equal each other as scores.
        let scores: Vec<f32> = scores(seed, len, 2.0).iter().map(|s| (s * levels as f32).round() + 0.0).collect();
        let mut order: Vec<u32> = (0..len as u32).collect();
        order.sort_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]).then(a.cmp(&b)));
        order.truncate(top as usize);
        let found = Sampler::default().logprob(&scores, 0, top).unwrap();
        prop_assert_eq!(found.top.iter().map(|&(id, _)| id).collect::<Vec<_>>(), order);
    }
}

#[test]
fn draws_follow_the_distribution() {
    let cases = [
        Sampling::default(),
        Sampling { temperature: 0.5, ..Default::default() },
        Sampling { top_k: 7, ..Default::default() },
        Sampling { top_p: 0.8, temperature: 1.7, ..Default::default() },
        Sampling { min_p: 0.1, ..Default::default() },
        Sampling { top_k: 20, top_p: 0.9, min_p: 0.02, temperature: 0.9, ..Default::default() },
    ];
    const DRAWS: u32 = 20_000;
    let scores = scores(3, 150, 6.0);
    for sampling in cases {
        let expected = naive(&scores, &sampling).unwrap();
        let mut sampler = Sampler::default();
        let mut counts = vec![0u32; scores.len()];
        let mut state = state(Sampling { seed: 11, ..sampling.clone() });
        for _ in 0..DRAWS {
            let token = sampler.sample(&mut scores.clone(), &state, None).unwrap().token;
            state.accept(token);
            counts[token as usize] += 1;
        }
        // Pearson's statistic over cells with at least 5 expected; its mean is the number of cells, its deviation sqrt(2 cells).
        let cells: Vec<f64> = expected
            .iter()
            .map(|&(id, share)| (share * f64::from(DRAWS), f64::from(counts[id as usize])))
            .filter(|&(mean, _)| mean >= 5.0)
            .map(|(mean, count)| (count - mean).powi(2) / mean)
            .collect();
        let (statistic, freedom) = (cells.iter().sum::<f64>(), cells.len() as f64);
        assert!(statistic < freedom + 5.0 * (2.0 * freedom).sqrt(), "{sampling:?}: {statistic} of {freedom}");
    }
}

#[test]
fn greedy_takes_the_lowest_of_equals() {
    let greedy = Sampling { temperature: 0.0, ..Default::default() };
    let mut row = vec![0.0; 500];
    (row[77], row[300]) = (2.0, 2.0);
    assert_eq!(Sampler::default().sample(&mut row.clone(), &state(greedy), None).unwrap().token, 77);
    let top = Sampler::default().logprob(&row, 300, 2).unwrap();
    assert_eq!((top.token, top.top[0].0, top.top[1].0), (300, 77, 300));
}

#[test]
fn penalties_count_as_documented() {
    let sampling = Sampling {
        temperature: 0.0,
        repetition_penalty: 2.0,
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
        logit_bias: vec![(6, 10.0)],
        ..Default::default()
    };
    // Prompt 1, 2, 2, 3; the answer is 3, 4, 4 and started on another worker.
    let mut moved = request(sampling);
    moved.tokens = vec![1, 2, 2, 3, 3].into();
    moved.resumed = 1;
    let mut state = State::new(Arc::new(moved), &[]);
    state.accept(4);
    state.accept(4);
    let mut row = vec![8.0, 8.0, -8.0, 8.0, 8.0, -8.0, 0.0];
    state.adjust(&mut row);
    state.mask_early_ends(&mut row);
    let once = 0.5 + 0.25;
    assert_eq!(row, [8.0, 4.0, -16.0, 4.0 - once, 4.0 - 2.0 * 0.5 - 0.25, -8.0, 10.0]);
    assert_eq!(state.answer_index(), 3);
}

#[test]
fn the_smallest_penalty_leaves_scores_finite() {
    let sampling = Sampling { repetition_penalty: f32::MIN_POSITIVE, ..Default::default() };
    let mut state = State::new(Arc::new(request(sampling)), &[]);
    state.accept(1);
    state.accept(2);
    let mut row = vec![1.0, 50.0, -50.0];
    state.adjust(&mut row);
    assert!(row.iter().all(|score| score.is_finite()) && row[1] > 1e30, "{row:?}");
}

#[test]
fn end_tokens_wait_for_min_tokens() {
    let mut short = request(Sampling { temperature: 0.0, ..Default::default() });
    short.stopping =
        Stopping { max_tokens: 9, min_tokens: 2, stop_token_ids: vec![5, 1_000_000], ignore_eos: false };
    let mut state = State::new(Arc::new(short.clone()), &[0]);
    let row = vec![9.0, 1.0, 1.0, 1.0, 1.0, 8.0];
    let mut sampler = Sampler::default();
    for expected in [1, 1, 0] {
        let token = sampler.sample(&mut row.clone(), &state, None).unwrap().token;
        assert_eq!(token, expected);
        state.accept(token);
    }
    assert!(state.is_end(0) && state.is_end(5) && !state.is_end(1));
    short.stopping.ignore_eos = true;
    assert!(!State::new(Arc::new(short), &[0]).is_end(0));
}

#[test]
fn log_probabilities_are_taken_before_temperature() {
    let mut wanted = request(Sampling { temperature: 5.0, top_k: 2, ..Default::default() });
    wanted.output = OutputOptions { logprobs: Some(3), prompt_logprobs: None };
    let row = vec![1.0f32, 3.0, 2.0, f32::NEG_INFINITY];
    let total: f64 = row.iter().map(|&score| f64::from(score).exp()).sum();
    let exact = |id: usize| (f64::from(row[id]) - total.ln()) as f32;
    let choice =
        Sampler::default().sample(&mut row.clone(), &State::new(Arc::new(wanted), &[]), None).unwrap();
    let logprob = choice.logprob.unwrap();
    assert!((logprob.logprob - exact(choice.token as usize)).abs() < 1e-5);
    assert_eq!(
        logprob.top.iter().map(|&(id, _)| id).collect::<Vec<_>>(),
        [1, 2, 0],
        "a masked one is no rival"
    );
    assert!(logprob.top.iter().all(|&(id, logprob)| (logprob - exact(id as usize)).abs() < 1e-5));
}

#[test]
fn unusable_scores_are_an_engine_fault() {
    for temperature in [0.0, 1.0] {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut row = vec![0.0; 200];
            row[130] = bad;
            let state = state(Sampling { temperature, ..Default::default() });
            let error = Sampler::default().sample(&mut row, &state, None).unwrap_err();
            assert_eq!(error.class(), dynamo_types::Class::Internal);
        }
    }
}

#[test]
fn r08_senseless_parameters_are_named() {
    let cases: [(Sampling, &str); 7] = [
        (Sampling { temperature: f32::NAN, ..Default::default() }, "temperature"),
        (Sampling { temperature: -1.0, ..Default::default() }, "temperature"),
        (Sampling { top_p: 1.5, ..Default::default() }, "top_p"),
        (Sampling { min_p: -0.5, ..Default::default() }, "min_p"),
        (Sampling { repetition_penalty: 0.0, ..Default::default() }, "repetition_penalty"),
        (Sampling { logit_bias: vec![(100, 1.0)], ..Default::default() }, "logit_bias"),
        (Sampling { logit_bias: vec![(1, f32::INFINITY)], ..Default::default() }, "logit_bias"),
    ];
    for (sampling, field) in cases {
        let error = State::check(&request(sampling), 100).unwrap_err();
        assert_eq!(error.param(), Some(field));
        assert!(error.message().contains(field), "{error}");
    }
    assert_eq!(State::check(&request(Sampling::default()), 3).unwrap_err().param(), Some("prompt"));
    assert!(State::check(&request(Sampling::default()), 4).is_ok());
}
