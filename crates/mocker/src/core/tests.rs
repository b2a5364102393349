use super::*;
use crate::timing::Timing;
use crate::vocabulary::Vocabulary;
use dynamo_types::{FinishReason, KvEvent, Stopping, draw};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn request(tokens: Vec<u32>, max_tokens: u32) -> Request {
    Request {
        id: "r".into(),
        model: "m".into(),
        tokens: tokens.into(),
        resumed: 0,
        task: Default::default(),
        sampling: dynamo_types::Sampling { seed: 7, ..Default::default() },
        stopping: Stopping { max_tokens, ..Default::default() },
        guide: None,
        thinking: None,
        output: Default::default(),
        routing: Default::default(),
        trace: None,
    }
}

fn prompt(len: usize, salt: u32) -> Vec<u32> {
    (0..len as u32).map(|i| i * 31 + salt * 7919).collect()
}

/// Runs until nothing is left to do; times in microseconds of each sequence's deltas.
fn run(core: &mut MockCore, now: &mut u64) -> BTreeMap<SequenceId, Vec<(u64, Delta)>> {
    let mut seen: BTreeMap<_, Vec<_>> = BTreeMap::new();
    loop {
        let outcome = core.step(*now);
        for (id, delta) in outcome.deltas {
            seen.entry(id).or_default().push((*now, delta));
        }
        match outcome.next_wake_us {
            Some(wake) => *now = wake.max(*now),
            None => return seen,
        }
    }
}

fn submit(core: &mut MockCore, request: Request) -> SequenceId {
    core.submit(Arc::new(request)).unwrap()
}

/// Time to first token of prompts of these lengths that arrive together and want one token each.
fn first_tokens_ms(options: Options, lens: &[usize]) -> Vec<f64> {
    let mut core = MockCore::new(options);
    let ids: Vec<_> = lens
        .iter()
        .enumerate()
        .map(|(i, &len)| submit(&mut core, request(prompt(len, i as u32), 1)))
        .collect();
    let seen = run(&mut core, &mut 0);
    ids.iter().map(|id| seen[id][0].0 as f64 / 1000.0).collect()
}

fn assert_close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    // Wakes are rounded up to whole microseconds.
    let close = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 0.0021);
    assert!(close, "{found:?} is not {expected:?}");
}

#[test]
fn prefill_takes_as_long_as_the_reference_system_takes() {
    let ms = |lens: &[usize]| first_tokens_ms(Options::default(), lens);
    assert_close(&ms(&[1]), &[16.516604]);
    assert_close(&ms(&[4000]), &[83.971162]);
    assert_close(&ms(&[8193]), &[185.653522]);
    assert_close(&ms(&[16384]), &[338.273836]);
    assert_close(&ms(&[1000, 1000]), &[48.552296, 48.552296]);
    assert_close(&ms(&[6000, 6000]), &[169.136918, 249.561725]);
    let twice = Options { speedup_ratio: 2.0, ..Options::default() };
    assert_close(&first_tokens_ms(twice, &[1000]), &[16.05293]);
}

#[test]
fn an_arrival_waits_for_the_next_step_which_then_does_both() {
    let mut core = MockCore::new(Options::default());
    let first = submit(&mut core, request(prompt(1000, 0), 5));
    let mut seen = BTreeMap::new();
    let mut second = None;
    let mut now = 0;
    loop {
        let outcome = core.step(now);
        for (id, delta) in outcome.deltas {
            seen.entry(id).or_insert_with(Vec::new).push((now as f64 / 1000.0, delta));
        }
        let Some(wake) = outcome.next_wake_us else { break };
        if wake > 35_000 && second.is_none() {
            core.step(35_000);
            second = Some(submit(&mut core, request(prompt(1000, 1), 2)));
            assert_eq!(core.step(35_000).next_wake_us, Some(wake));
        }
        now = wake;
    }
    let times = |id: SequenceId| seen[&id].iter().map(|(ms, _)| *ms).collect::<Vec<_>>();
    assert_close(&times(first)[..3], &[32.105859, 37.897395, 75.794841]);
    assert_close(&times(second.unwrap())[..1], &[75.794841]);
}

#[test]
fn a_cached_prefix_is_not_computed_again() {
    let mut core = MockCore::new(Options::default());
    let mut now = 0;
    submit(&mut core, request(prompt(512, 0), 1));
    run(&mut core, &mut now);
    let mut longer = prompt(512, 0);
    longer.extend(prompt(512, 9));
    let (id, begin) = (submit(&mut core, request(longer, 1)), now);
    let seen = run(&mut core, &mut now);
    assert_close(&[(seen[&id][0].0 - begin) as f64 / 1000.0], &[24.385704]);
    assert_eq!(seen[&id][0].1.cached_tokens, Some(512));

    let mut core = MockCore::new(Options { block_size: 16, ..Options::default() });
    submit(&mut core, request(prompt(640, 0), 1));
    run(&mut core, &mut now);
    let again = submit(&mut core, request(prompt(640, 0), 1));
    assert_eq!(run(&mut core, &mut now)[&again][0].1.cached_tokens, Some(624));
}

fn quick() -> Options {
    Options {
        block_size: 4,
        num_gpu_blocks: 24,
        max_num_seqs: 6,
        max_num_batched_tokens: 16,
        context_length: 64,
        max_waiting: 50,
        timing: Timing::Fixed { prefill_tokens_per_s: 1e6, decode_step_ms: 0.01 },
        vocabulary: Vocabulary { first: 10, len: 20, eos: vec![12], end_probability: 0.0 },
        ..Options::default()
    }
}

fn answer(core: &mut MockCore, request: Request) -> Delta {
    let id = submit(core, request);
    let mut merged = Delta::default();
    for (_, delta) in run(core, &mut 0).remove(&id).unwrap() {
        merged.merge(delta);
    }
    merged
}

#[test]
fn answers_keep_within_the_vocabulary_and_the_rules() {
    let whole = answer(&mut MockCore::new(quick()), request(prompt(5, 0), 30));
    assert_eq!(whole.tokens.len(), 30);
    assert_eq!(whole.finish, Some(FinishReason::Length));
    assert!(whole.tokens.iter().all(|token| (10..30).contains(token) && *token != 12));

    let stop = whole.tokens[9];
    let first = whole.tokens.iter().position(|token| *token == stop).unwrap();
    let mut stopping = request(prompt(5, 0), 30);
    stopping.stopping.stop_token_ids = vec![stop];
    let stopped = answer(&mut MockCore::new(quick()), stopping.clone());
    assert_eq!(stopped.tokens, whole.tokens[..=first]);
    assert_eq!(stopped.finish, Some(FinishReason::Stop));
    stopping.stopping.min_tokens = 30;
    assert!(!answer(&mut MockCore::new(quick()), stopping).tokens[..29].contains(&stop));

    let mut ending = quick();
    ending.vocabulary.end_probability = 0.5;
    let ended = answer(&mut MockCore::new(ending.clone()), request(prompt(5, 0), 30));
    assert_eq!((ended.tokens.last(), ended.finish), (Some(&12), Some(FinishReason::Stop)));
    let mut ignoring = request(prompt(5, 0), 30);
    ignoring.stopping.ignore_eos = true;
    assert_eq!(answer(&mut MockCore::new(ending), ignoring).tokens, whole.tokens);
}

/// Wherever a stream is cut, another worker goes on with the same tokens.
#[test]
fn r06_a_moved_stream_goes_on_alike() {
    let whole = answer(&mut MockCore::new(quick()), request(prompt(5, 0), 30)).tokens;
    for cut in 1..30 {
        let mut tokens = prompt(5, 0);
        tokens.extend(&whole[..cut]);
        let moved = Request { resumed: cut as u32, ..request(tokens, 30 - cut as u32) };
        assert_eq!(answer(&mut MockCore::new(quick()), moved).tokens, whole[cut..], "cut at {cut}");
    }
}

/// Ids spell themselves, in hexadecimal.
#[test]
fn thinking_ends_where_it_is_limited_also_of_a_stream_that_moved() {
    let spell = |token, bytes: &mut Vec<u8>| bytes.extend(format!("{token:x}.").into_bytes());
    let core =
        || MockCore::new(quick()).with_spelling(Some(Arc::new(dynamo_types::Spelling::new(5000, spell))));
    let limit = dynamo_types::ThinkingLimit {
        tokens: 4,
        is_open: true,
        openers: vec![],
        closers: vec!["fff.".into()],
        calls: vec![],
        ends: vec![vec![7, 0xFFF]],
    };
    let asked = |tokens, len| Request { thinking: Some(limit.clone()), ..request(tokens, len) };
    let free = answer(&mut core(), request(prompt(5, 0), 12)).tokens;
    let whole = answer(&mut core(), asked(prompt(5, 0), 12)).tokens;
    assert_eq!(whole, [&free[..4], &[7, 0xFFF], &free[6..]].concat());
    for cut in 1..12 {
        let tokens = [prompt(5, 0), whole[..cut].to_vec()].concat();
        let moved = Request { resumed: cut as u32, ..asked(tokens, 12 - cut as u32) };
        assert_eq!(answer(&mut core(), moved).tokens, whole[cut..], "cut at {cut}");
    }
    // Without a spelling nothing is known of markers.
    assert_eq!(answer(&mut MockCore::new(quick()), asked(prompt(5, 0), 12)).tokens, free);
    // What is put in ends the answer, if it is asked to.
    let mut stopping = asked(prompt(5, 0), 12);
    stopping.stopping.stop_token_ids = vec![7];
    let stopped = answer(&mut core(), stopping);
    assert_eq!((stopped.tokens.len(), stopped.finish), (5, Some(FinishReason::Stop)));
}

#[test]
fn log_probabilities_come_when_asked_for() {
    let mut wanting = request(vec![10, 11, 12], 2);
    wanting.output = dynamo_types::OutputOptions { logprobs: Some(2), prompt_logprobs: Some(1) };
    let delta = answer(&mut MockCore::new(quick()), wanting);
    assert_eq!(delta.prompt_logprobs.len(), 3);
    assert_eq!((delta.prompt_logprobs[0].logprob, delta.prompt_logprobs[0].top.len()), (0.0, 0));
    assert_eq!(delta.logprobs.iter().map(|item| item.token).collect::<Vec<_>>(), delta.tokens);
    assert!(delta.logprobs.iter().all(|item| item.top.len() == 2 && item.logprob < 0.0));
    let mut echo = request(vec![10, 11, 12], 0);
    echo.output.prompt_logprobs = Some(0);
    let delta = answer(&mut MockCore::new(quick()), echo);
    assert_eq!((delta.tokens.len(), delta.prompt_logprobs.len()), (0, 3));
    assert_eq!(delta.finish, Some(FinishReason::Length));
}

/// A late caller is caught up with, a stopped one is not.
#[test]
fn lateness_does_not_add_up() {
    let mut core = MockCore::new(Options {
        timing: Timing::Fixed { prefill_tokens_per_s: 1e6, decode_step_ms: 1.0 },
        ..quick()
    });
    submit(&mut core, request(vec![1], 50));
    assert_eq!(core.step(0).next_wake_us, Some(1));
    assert_eq!(core.step(1).next_wake_us, Some(1001));
    assert_eq!(core.step(1500).next_wake_us, Some(2001));
    assert_eq!(core.step(5_000_000).next_wake_us, Some(5_001_000));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever arrives and leaves, in whatever order: answers are what they are alone, and nothing is left behind.
    #[test]
    fn a_storm_leaves_nothing_behind(seed in any::<u64>()) {
        let mut core = MockCore::new(quick());
        let mut now = 0;
        let (mut open, mut answers) = (BTreeMap::new(), BTreeMap::new());
        let mut held = std::collections::BTreeSet::new();
        for turn in 0..200u64 {
            match draw::index(seed, turn * 4, 4) {
                0 | 1 if open.len() < 40 => {
                    let len = 1 + draw::index(seed, turn * 4 + 1, 30);
                    let salt = draw::index(seed, turn * 4 + 2, 3) as u32;
                    let max_tokens = 1 + draw::index(seed, turn * 4 + 3, 20) as u32;
                    let mut request = request(prompt(len, salt), max_tokens);
                    request.sampling.seed = turn;
                    let id = submit(&mut core, request.clone());
                    open.insert(id, request);
                }
                2 if !open.is_empty() => {
                    let index = draw::index(seed, turn * 4 + 1, open.len());
                    let id = *open.keys().nth(index).unwrap();
                    open.remove(&id);
                    answers.remove(&id);
                    prop_assert!(core.cancel(id));
                    prop_assert!(!core.cancel(id));
                }
                _ => {}
            }
            let outcome = core.step(now);
            for event in outcome.report.iter().flat_map(|report| &report.events) {
                match event {
                    KvEvent::Stored { blocks, .. } => held.extend(blocks.iter().map(|block| block.block_hash)),
                    KvEvent::Removed { hashes, .. } => hashes.iter().for_each(|hash| { held.remove(hash); }),
                    KvEvent::Cleared => held.clear(),
                }
            }
            for (id, delta) in outcome.deltas {
                let finished = delta.finish.is_some();
                answers.entry(id).or_insert_with(Delta::default).merge(delta);
                if finished {
                    let request = open.remove(&id).unwrap();
                    let alone = answer(&mut MockCore::new(quick()), request);
                    let found = answers.remove(&id).unwrap();
                    prop_assert_eq!(found.tokens, alone.tokens);
                    prop_assert_eq!(found.finish, alone.finish);
                }
            }
            now = outcome.next_wake_us.unwrap_or(now).max(now);
        }
        for id in open.into_keys() {
            core.cancel(id);
        }
        let last = core.step(now + 1_000_000);
        let load = core.load();
        prop_assert_eq!((load.running, load.waiting, load.prefill_tokens, load.active_blocks), (0, 0, 0, 0));
        prop_assert!(core.sequences.is_empty() && !core.has_work());
        prop_assert!(held.len() <= load.total_blocks as usize);
        prop_assert_eq!(last.next_wake_us, None);
        core.clear_cache();
        prop_assert_eq!(core.load().cached_blocks, 0);
    }
}
