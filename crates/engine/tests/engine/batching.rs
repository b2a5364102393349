//! The same answer alone, in any batch, with any chunk size, with or without prefix hits and preemptions.

use crate::common::{
    FAILS, NOT_A_NUMBER, PANICS, Reader, alone, core, finish, limit, options, request, submit,
};
use dynamo_scheduler::Options;
use dynamo_types::{Class, Delta, FinishReason, KvEvent, OutputOptions, Request, Sampling, Stopping, Task};
use proptest::prelude::*;
use std::sync::Arc;

const EOS: u32 = 11;

fn any_request() -> impl Strategy<Value = Request> {
    let prompt =
        ((0u32..3, 0usize..40), prop::collection::vec(0u32..80, 1..6)).prop_map(|((family, len), own)| {
            (0..len as u32).map(|i| (i * 13 + family * 5) % 80).chain(own).collect::<Vec<_>>()
        });
    let sampling = prop_oneof![
        Just(Sampling { temperature: 0.0, ..Default::default() }),
        Just(Sampling {
            temperature: 0.0,
            repetition_penalty: 1.3,
            frequency_penalty: 0.4,
            ..Default::default()
        }),
        (any::<u64>(), 0u32..9, 0.3f32..1.0).prop_map(|(seed, top_k, top_p)| Sampling {
            seed,
            top_k,
            top_p,
            ..Default::default()
        }),
    ];
    let output = prop_oneof![
        3 => Just(OutputOptions::default()),
        1 => Just(OutputOptions { logprobs: Some(2), prompt_logprobs: None }),
        1 => Just(OutputOptions { logprobs: None, prompt_logprobs: Some(1) }),
    ];
    let task = prop_oneof![3 => Just(Task::Generate), 1 => Just(Task::Embed)];
    let limits = (0u32..12, any::<bool>(), any::<bool>());
    let limits = limits.prop_map(|(tokens, is_open, in_letters)| limit(tokens, is_open, in_letters));
    let limits = prop::option::of(limits);
    (prompt, 0u32..30, 0u32..4, any::<bool>(), sampling, output, 0u32..3, task, limits).prop_map(
        |(tokens, max_tokens, min_tokens, ignore_eos, sampling, output, resumed, task, thinking)| Request {
            resumed: resumed.min(tokens.len() as u32 - 1),
            task,
            sampling,
            stopping: Stopping { max_tokens, min_tokens, stop_token_ids: vec![23], ignore_eos },
            guide: None,
            thinking,
            output,
            ..request(&tokens, 0)
        },
    )
}

fn any_options() -> impl Strategy<Value = Options> {
    (1u32..6, 1u32..9, 1u32..40, 0u32..30, any::<bool>()).prop_map(
        |(block_size, max_num_seqs, max_num_batched_tokens, spare, prefix_caching)| Options {
            block_size,
            // The longest request needs 80 tokens.
            total_blocks: 80 / block_size + 1 + spare,
            max_num_seqs,
            max_num_batched_tokens,
            context_length: 80,
            max_waiting: 100,
            prefix_caching,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn answers_do_not_depend_on_company(
        options in any_options(),
        requests in prop::collection::vec((any_request(), 0u32..12, prop::option::weighted(0.15, 0u32..20)), 1..14),
    ) {
        let mut core = core(options, &[EOS]);
        let mut readers: Vec<(Reader, bool, &Request)> = Vec::new();
        let last = requests.iter().map(|(_, at, cancel)| at + cancel.unwrap_or(0)).max().unwrap();
        let mut step = 0;
        while step <= last || core.has_work() {
            for (request, at, cancel) in &requests {
                if *at == step {
                    readers.push((submit(&mut core, request.clone()), cancel.is_some(), request));
                }
            }
            for (request, at, cancel) in &requests {
                if cancel.is_some_and(|after| at + after == step) {
                    readers.iter().find(|(_, _, other)| std::ptr::eq(*other, request)).unwrap().0.cancel();
                }
            }
            core.step();
            step += 1;
        }
        for (reader, cancelled, request) in readers {
            let expected = alone(request, 80, &[EOS]);
            prop_assert!(reader.with(|told| told.over));
            if cancelled && reader.with(|told| told.error.is_some()) {
                prop_assert_eq!(reader.with(|told| told.error.as_ref().unwrap().class()), Class::Cancelled);
                prop_assert!(expected.tokens.starts_with(&reader.tokens()));
                continue;
            }
            let answer = reader.answer();
            prop_assert!(answer.cached_tokens.is_some());
            prop_assert_eq!(Delta { cached_tokens: expected.cached_tokens, ..answer }, expected);
        }
        let load = core.load();
        prop_assert_eq!((load.active_blocks, load.running, load.waiting, load.prefill_tokens), (0, 0, 0, 0));
    }
}

#[test]
fn preemption_in_a_tiny_pool_changes_nothing() {
    let requests: Vec<_> = (0..6u32).map(|i| request(&[i, 1, 2, 3, 4, 5 + i], 40)).collect();
    let mut core = core(Options { context_length: 64, ..options(17) }, &[]);
    let readers: Vec<_> = requests.iter().map(|request| submit(&mut core, request.clone())).collect();
    assert!(finish(&mut core) > 0, "the pool was meant to be too small");
    for (reader, request) in readers.iter().zip(&requests) {
        assert_eq!(reader.tokens(), alone(request, 64, &[]).tokens);
    }
    assert_eq!(core.load().active_blocks, 0);
}

#[test]
fn r22_a_cancel_storm_returns_every_block() {
    let mut core = core(options(60), &[]);
    let mut readers = Vec::new();
    for round in 0..200u32 {
        let prompt: Vec<u32> = (0..round % 50 + 1).map(|i| (i * round) % 80).collect();
        readers.push(submit(&mut core, request(&prompt, 50)));
        if round % 3 == 0 {
            core.step();
        }
        let gone = (round as usize * 7) % readers.len();
        readers[gone].cancel();
    }
    readers.iter().for_each(Reader::cancel);
    let load = core.step().load;
    assert_eq!((load.active_blocks, load.running, load.waiting, load.prefill_tokens), (0, 0, 0, 0));
    assert!(readers.iter().all(|reader| reader.with(|told| told.over)));
}

#[test]
fn a_shared_prefix_is_found_and_reported() {
    let mut core = core(options(100), &[]);
    let prompt: Vec<u32> = (0..41).collect();
    let first = submit(&mut core, request(&prompt, 3));
    finish(&mut core);
    let second = submit(&mut core, request(&prompt, 3));
    let report = core.step();
    assert_eq!((report.prefill_tokens, report.decode_tokens), (1, 1));
    finish(&mut core);
    assert_eq!((first.answer().cached_tokens, second.answer().cached_tokens), (Some(0), Some(40)));
    assert_eq!(first.tokens(), second.tokens());
}

#[test]
fn one_delta_per_token_and_the_last_says_why() {
    let mut core = core(options(100), &[]);
    let reader = submit(&mut core, request(&[1, 2, 3], 5));
    finish(&mut core);
    assert_eq!(reader.with(|told| told.deltas), 5);
    assert_eq!(reader.answer().finish, Some(FinishReason::Length));
}

#[test]
fn r04_the_stop_token_is_part_of_the_answer() {
    let free = alone(&request(&[1, 2, 3], 20), 512, &[]);
    let stop = free.tokens[7];
    let until = free.tokens.iter().position(|&token| token == stop).unwrap() + 1;
    let mut stopping = request(&[1, 2, 3], 20);
    stopping.stopping.stop_token_ids = vec![stop];
    let by_id = alone(&stopping, 512, &[]);
    assert_eq!((&by_id.tokens[..], by_id.finish), (&free.tokens[..until], Some(FinishReason::Stop)));
    assert_eq!(alone(&request(&[1, 2, 3], 20), 512, &[stop]), by_id);
    let mut ignoring = request(&[1, 2, 3], 20);
    ignoring.stopping.ignore_eos = true;
    assert_eq!(alone(&ignoring, 512, &[stop]).tokens, free.tokens);
}

/// Everything that looks at the answer so far, or at the position in it.
fn any_sampling() -> impl Strategy<Value = Sampling> {
    let penalties = (0.5f32..2.0, -1.0f32..1.0, -1.0f32..1.0);
    let filters = (0u32..9, 0.3f32..1.0, 0.0f32..0.3, prop_oneof![Just(0.0f32), 0.3f32..2.0]);
    let bias = prop::collection::vec((0u32..80, -3.0f32..3.0), 0..4);
    (penalties, filters, bias, any::<u64>()).prop_map(|(penalties, filters, logit_bias, seed)| {
        let (repetition_penalty, frequency_penalty, presence_penalty) = penalties;
        let (top_k, top_p, min_p, temperature) = filters;
        Sampling {
            temperature,
            top_p,
            top_k,
            min_p,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            seed,
            logit_bias,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// Wherever an answer is cut, an engine of other block size and batches, that is given the answer so far, says the
    /// same rest with the same log-probabilities, and ends it alike.
    #[test]
    fn r06_a_moved_answer_goes_on_alike(
        options in any_options(),
        prompt in prop::collection::vec(0u32..80, 1..20),
        max_tokens in 1u32..30,
        min_tokens in 0u32..12,
        sampling in any_sampling(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut whole = request(&prompt, max_tokens);
        whole.sampling = sampling;
        whole.stopping = Stopping { max_tokens, min_tokens, stop_token_ids: vec![23, 7], ignore_eos: false };
        whole.output.logprobs = Some(2);
        let answer = alone(&whole, 80, &[EOS]);
        let cut = cut.index(answer.tokens.len());
        let mut rest = whole;
        rest.tokens = prompt.iter().chain(&answer.tokens[..cut]).copied().collect();
        rest.resumed = cut as u32;
        rest.stopping.max_tokens -= cut as u32;
        let mut other = core(options, &[EOS]);
        let reader = submit(&mut other, rest);
        finish(&mut other);
        let moved = reader.answer();
        prop_assert_eq!(&moved.tokens[..], &answer.tokens[cut..]);
        prop_assert_eq!(&moved.logprobs[..], &answer.logprobs[cut..]);
        prop_assert_eq!(moved.finish, answer.finish);
    }
}

#[test]
fn prompt_log_probabilities_come_once_and_whole() {
    let mut echo = request(&(0..30).collect::<Vec<_>>(), 3);
    echo.output.prompt_logprobs = Some(2);
    let answer = alone(&echo, 512, &[]);
    assert_eq!(answer.prompt_logprobs.len(), 30);
    assert!(answer.prompt_logprobs.iter().zip(0..).all(|(entry, token)| entry.token == token));
    assert!(answer.prompt_logprobs[0].top.is_empty() && answer.prompt_logprobs[0].logprob == 0.0);
    assert!(answer.prompt_logprobs[1..].iter().all(|entry| entry.top.len() == 2 && entry.logprob < 0.0));
    // Also if no answer is wanted.
    echo.stopping.max_tokens = 0;
    let only = alone(&echo, 512, &[]);
    assert_eq!((only.tokens.len(), only.finish), (0, Some(FinishReason::Length)));
    assert_eq!(only.prompt_logprobs, answer.prompt_logprobs);
}

#[test]
fn unusable_scores_end_one_request_alone() {
    let mut core = core(options(100), &[]);
    let good = request(&[1, 2, 3], 10);
    let (before, broken) =
        (submit(&mut core, good.clone()), submit(&mut core, request(&[4, NOT_A_NUMBER], 10)));
    finish(&mut core);
    assert_eq!(broken.with(|told| told.error.as_ref().unwrap().class()), Class::Internal);
    assert_eq!(before.tokens(), alone(&good, 512, &[]).tokens);
    assert_eq!(core.load().active_blocks, 0);
}

#[test]
fn a_failing_or_panicking_model_fails_its_requests_and_lives_on() {
    for trigger in [FAILS, PANICS] {
        let mut core = core(options(100), &[]);
        let running = submit(&mut core, request(&(0..20).collect::<Vec<_>>(), 100));
        core.step();
        let culprit = submit(&mut core, request(&[1, trigger], 10));
        let report = core.step();
        for reader in [&running, &culprit] {
            let error = reader.with(|told| told.error.clone()).unwrap();
            assert!(error.class() == Class::Internal && error.detail().is_some(), "{error:?}");
        }
        assert_eq!(report.events, [KvEvent::Cleared]);
        assert_eq!((report.load.active_blocks, report.load.cached_blocks), (0, 0));
        let after = submit(&mut core, request(&[1, 2, 3], 4));
        finish(&mut core);
        assert_eq!(after.tokens(), alone(&request(&[1, 2, 3], 4), 512, &[]).tokens);
    }
}

#[test]
fn r08_refusals_reach_caller_and_reader() {
    let mut core = core(options(100), &[]);
    for (bad, param) in [(request(&[1, 90], 5), "prompt"), (request(&[1; 600], 5), "prompt")] {
        let reader = Reader::default();
        let error = core.submit(Arc::new(bad), reader.sink()).unwrap_err();
        assert_eq!((error.class(), error.param()), (Class::Invalid, Some(param)));
        assert_eq!(reader.with(|told| told.error.clone()), Some(error));
    }
    assert!(!core.has_work());
}

#[test]
fn an_embedding_is_one_vector_of_all_positions() {
    let mut request = request(&(0..50).collect::<Vec<u32>>(), 7);
    request.task = Task::Embed;
    // Left in the cache by a neighbour: positions of it must not be passed over.
    let mut core = core(Options { max_num_batched_tokens: 9, ..options(64) }, &[EOS]);
    let before = submit(&mut core, Request { task: Task::Generate, ..request.clone() });
    finish(&mut core);
    assert_eq!(before.answer().embedding, None);
    let reader = submit(&mut core, request.clone());
    finish(&mut core);
    let answer = reader.answer();
    assert_eq!(
        (answer.tokens.len(), answer.finish, answer.cached_tokens),
        (0, Some(FinishReason::Stop), Some(0))
    );
    let vector = answer.embedding.unwrap();
    let length: f64 = vector.iter().map(|value| f64::from(*value).powi(2)).sum();
    assert!((length - 1.0).abs() < 1e-6, "{vector:?}");
    assert_eq!(alone(&request, 80, &[EOS]).embedding, Some(vector));
}

#[test]
fn an_embedding_may_fill_the_context_and_faults_are_its_own() {
    let mut core = core(Options { context_length: 20, ..options(64) }, &[]);
    let embed = |tokens: &[u32]| Request { task: Task::Embed, ..request(tokens, 0) };
    let full = submit(&mut core, embed(&[1; 20]));
    let broken = submit(&mut core, embed(&[1, NOT_A_NUMBER, 2]));
    let reader = Reader::default();
    let error = core.submit(Arc::new(embed(&[1; 21])), reader.sink()).unwrap_err();
    assert_eq!(error.code(), Some("context_length_exceeded"));
    assert!(error.message().contains("21") && error.message().contains("20"), "{error}");
    finish(&mut core);
    assert!(full.answer().embedding.is_some());
    broken.with(|told| assert_eq!(told.error.as_ref().unwrap().class(), Class::Internal));
    assert_eq!(core.load().active_blocks, 0);
}
