use super::*;
use dynamo_types::{Guide, InstanceId, OutputOptions, Stopping};
use proptest::prelude::*;

fn request(prompt: &[u32], max_tokens: u32) -> Request {
    Request {
        id: "r".into(),
        model: "m".into(),
        tokens: prompt.into(),
        resumed: 0,
        task: Default::default(),
        sampling: Default::default(),
        stopping: Stopping { max_tokens, ..Stopping::default() },
        guide: None,
        thinking: None,
        output: OutputOptions { logprobs: Some(1), prompt_logprobs: Some(2) },
        routing: Default::default(),
        trace: None,
    }
}

const RULES: Rules = Rules { limit: 3, max_seq_len: None };

#[test]
fn faults_that_another_worker_would_repeat_do_not_move() {
    let plain = request(&[1, 2, 3], 10);
    for error in
        [Error::disconnected("x"), Error::timeout("x"), Error::overloaded("x"), Error::unavailable("x")]
    {
        for generated in [0, 1, 9] {
            assert_eq!(RULES.judge(&plain, generated, 1, &error), Verdict::Move, "{error:?}");
        }
    }
    for error in [Error::invalid("x"), Error::cancelled(), Error::engine("x"), Error::internal("x")] {
        for generated in [0, 1] {
            assert_eq!(RULES.judge(&plain, generated, 1, &error), Verdict::End, "{error:?}");
        }
    }
}

#[test]
fn a_worker_is_back_when_it_was_heard_of_well_after_it_failed() {
    let at = Instant::now();
    let failure = Failure { worker: InstanceId(1), at };
    let ms = Duration::from_millis;
    for (quiet, now, is_over) in
        [(0, 0, false), (0, 100, false), (0, 101, true), (1, 101, false), (900, 950, false)]
    {
        assert_eq!(failure.is_over(ms(quiet), at + ms(now)), is_over, "quiet for {quiet} ms after {now} ms");
    }
}

#[test]
fn a_limit_of_n_is_n_more_attempts() {
    let (plain, error) = (request(&[1], 10), Error::disconnected("x"));
    for limit in 0..5 {
        let rules = Rules { limit, max_seq_len: None };
        let moves = (1..10).take_while(|&failed| rules.judge(&plain, 1, failed, &error) == Verdict::Move);
        assert_eq!(moves.count(), limit as usize);
    }
}

#[test]
fn pinned_and_guided_answers_end_and_long_ones_are_told_apart() {
    let error = Error::disconnected("x");
    let mut pinned = request(&[1, 2, 3], 10);
    pinned.routing.worker = Some(InstanceId(7));
    assert_eq!(RULES.judge(&pinned, 0, 1, &error), Verdict::End);
    let mut guided = request(&[1, 2, 3], 10);
    guided.guide = Some(Guide::JsonObject);
    assert_eq!(RULES.judge(&guided, 0, 1, &error), Verdict::Move);
    assert_eq!(RULES.judge(&guided, 1, 1, &error), Verdict::End);
    let rules = Rules { max_seq_len: Some(5), ..RULES };
    let plain = request(&[1, 2, 3], 10);
    assert_eq!(rules.judge(&plain, 2, 1, &error), Verdict::Move);
    assert_eq!(rules.judge(&plain, 3, 1, &error), Verdict::TooLong);
    assert_eq!(rules.judge(&plain, 3, 1, &Error::engine("x")), Verdict::End);
}

#[test]
fn an_answer_whose_end_was_said_is_over() {
    let mut plain = request(&[1], 3);
    plain.stopping.stop_token_ids = vec![9];
    assert_eq!(ended(&plain, &[], &[2]), None);
    assert_eq!(ended(&plain, &[5], &[2]), None);
    assert_eq!(ended(&plain, &[5, 9], &[2]), Some(FinishReason::Stop));
    assert_eq!(ended(&plain, &[5, 2], &[2]), Some(FinishReason::Stop));
    assert_eq!(ended(&plain, &[5, 6, 7], &[2]), Some(FinishReason::Length));
    plain.stopping.min_tokens = 2;
    assert_eq!(ended(&plain, &[5, 9], &[2]), None);
    assert_eq!(ended(&plain, &[5, 6, 9], &[2]), Some(FinishReason::Stop));
    plain.stopping.ignore_eos = true;
    assert_eq!(ended(&plain, &[5, 6, 2], &[2]), Some(FinishReason::Length));
}

proptest! {
    /// However often it moves, what the last worker is asked depends on the client's request and the answer so far only.
    #[test]
    fn a_continuation_is_the_request_with_its_answer(
        prompt in prop::collection::vec(0u32..50, 1..20),
        generated in prop::collection::vec(0u32..50, 0..20),
        left in 1u32..20,
        told in any::<bool>(),
    ) {
        let count = generated.len() as u32;
        let original = request(&prompt, count + left);
        let moved = continuation(&original, &generated, told);
        prop_assert_eq!(&moved.tokens[..moved.prompt_len()], &prompt[..]);
        prop_assert_eq!(&moved.tokens[moved.prompt_len()..], &generated[..]);
        prop_assert_eq!((moved.resumed, moved.stopping.max_tokens), (count, left));
        prop_assert_eq!(moved.output.prompt_logprobs.is_none(), told);
        prop_assert_eq!(&moved.sampling, &original.sampling);
        prop_assert_eq!(moved.stopping.min_tokens, original.stopping.min_tokens);
    }
}
