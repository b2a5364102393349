//! Deltas of text: what is shown, what is hidden, and that no chunking changes either.

use crate::support::{byte_level_json, bytes, hugging_face};
use dynamo_text::{Decoder, DecoderOptions, PromptText, StopCause, TextDelta, Tokenizer};
use dynamo_types::{Delta, FinishReason, TokenLogprob};
use proptest::prelude::*;
use std::sync::{Arc, LazyLock};

static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| hugging_face(&byte_level_json(None, None)));

fn end() -> u32 {
    TOKENIZER.token_id("<|end|>").unwrap()
}

fn delta(tokens: &[u32]) -> Delta {
    Delta { tokens: tokens.to_vec(), ..Delta::default() }
}

fn finished(tokens: &[u32], finish: FinishReason) -> Delta {
    Delta { finish: Some(finish), ..delta(tokens) }
}

/// What a client sees in the end; the caller stops reading when a stop string was met.
fn fold(
    tokenizer: &Arc<Tokenizer>,
    options: DecoderOptions,
    deltas: impl IntoIterator<Item = Delta>,
) -> TextDelta {
    let mut decoder = Decoder::new(Arc::clone(tokenizer), options);
    let mut all = TextDelta::default();
    for delta in deltas {
        all.merge(decoder.push(delta));
        if decoder.stopped() {
            break;
        }
    }
    all.merge(decoder.finish());
    all
}

fn stops(list: &[&str]) -> DecoderOptions {
    DecoderOptions { stop: list.iter().map(|&stop| stop.to_owned()).collect(), ..DecoderOptions::default() }
}

#[test]
fn r04_hidden_stop_text_still_counts() {
    let tokenizer = bytes(&[b"4, ", b"5"]);
    let mut decoder = Decoder::new(Arc::clone(&tokenizer), stops(&["5"]));
    assert_eq!(decoder.push(delta(&[256])).text, "4, ");
    let last = decoder.push(delta(&[257]));
    assert_eq!(last.text, "");
    assert_eq!(last.tokens, [257]);
    assert_eq!(last.finish, Some(FinishReason::Stop));
    assert_eq!(last.stop, Some(StopCause::String("5".into())));
    assert!(decoder.stopped());
    assert_eq!(decoder.push(delta(&[256])), TextDelta::default());
    assert_eq!(decoder.finish(), TextDelta::default());
}

#[test]
fn r04_tokens_behind_the_stop_are_dropped_whatever_the_chunking() {
    let tokenizer = bytes(&[b"ab", b"STOP", b"cd"]);
    let at_once = fold(&tokenizer, stops(&["STOP"]), [finished(&[256, 257, 258, 258], FinishReason::Length)]);
    let singly = fold(&tokenizer, stops(&["STOP"]), [256, 257, 258].map(|token| delta(&[token])));
    assert_eq!(at_once, singly);
    assert_eq!((at_once.text.as_str(), at_once.tokens.len()), ("ab", 2));
    assert_eq!(at_once.finish, Some(FinishReason::Stop));
}

#[test]
fn r02_withheld_text_is_released_at_the_end() {
    let tokenizer = bytes(&[b"ABC", b"DE"]);
    let answer = fold(&tokenizer, stops(&["DEFGH"]), [delta(&[256]), finished(&[257], FinishReason::Length)]);
    assert_eq!(answer.text, "ABCDE");
    assert_eq!(answer.finish, Some(FinishReason::Length));
    // Also when the stream breaks off.
    assert_eq!(fold(&tokenizer, stops(&["DEFGH"]), [delta(&[256, 257])]).text, "ABCDE");
}

#[test]
fn r01_an_unfinished_character_at_the_end_is_shown_as_broken() {
    let tokenizer = bytes(&[]);
    let answer = fold(&tokenizer, stops(&[]), [finished(&[0x41, 0xF0, 0x9F], FinishReason::Length)]);
    assert_eq!(answer.text, "A\u{FFFD}");
}

#[test]
fn r04_end_tokens_are_hidden_but_counted() {
    let hi = TOKENIZER.encode("hi", false).unwrap();
    let tokens: Vec<u32> = hi.iter().copied().chain([end()]).collect();
    let options = |skip_special_tokens, include_stop_str_in_output| DecoderOptions {
        eos: vec![end()],
        skip_special_tokens,
        include_stop_str_in_output,
        ..DecoderOptions::default()
    };
    for (skip, include, text) in
        [(true, false, "hi"), (false, false, "hi<|end|>"), (false, true, "hi<|end|>"), (true, true, "hi")]
    {
        let answer = fold(&TOKENIZER, options(skip, include), [finished(&tokens, FinishReason::Stop)]);
        assert_eq!(answer.text, text, "skip {skip}, include {include}");
        assert_eq!(answer.tokens, tokens);
        assert_eq!(answer.stop, None);
        assert_eq!(answer.finish, Some(FinishReason::Stop));
    }
}

#[test]
fn r04_stop_ids_are_told_and_hidden_unless_asked_for() {
    let tokenizer = bytes(&[b"yes", b"END"]);
    for (include, text) in [(false, "yes"), (true, "yesEND")] {
        let options = DecoderOptions {
            stop_token_ids: vec![257],
            include_stop_str_in_output: include,
            ..DecoderOptions::default()
        };
        let answer = fold(&tokenizer, options, [finished(&[256, 257], FinishReason::Stop)]);
        assert_eq!((answer.text.as_str(), answer.stop), (text, Some(StopCause::Token(257))));
    }
    // An answer that merely contains the id (the engine went on, or ran into its limit) shows it.
    for finish in [FinishReason::Length, FinishReason::Stop] {
        let options = DecoderOptions { stop_token_ids: vec![257], ..DecoderOptions::default() };
        let answer = fold(&tokenizer, options, [delta(&[257]), finished(&[256], finish)]);
        assert_eq!((answer.text.as_str(), answer.stop), ("ENDyes", None));
    }
}

#[test]
fn min_tokens_keeps_stop_strings_from_ending_the_answer() {
    let tokenizer = bytes(&[b"a.", b"b."]);
    let options = |min_tokens| DecoderOptions { min_tokens, ..stops(&["."]) };
    for (min_tokens, text, count) in [(0, "a", 1), (1, "a.b", 2), (2, "a.b.a", 3), (9, "a.b.a.", 3)] {
        let answer = fold(&tokenizer, options(min_tokens), [256, 257, 256].map(|token| delta(&[token])));
        assert_eq!((answer.text.as_str(), answer.tokens.len()), (text, count), "min_tokens {min_tokens}");
    }
}

#[test]
fn logprobs_carry_exact_bytes_and_character_offsets() {
    let tokenizer = bytes(&["한".as_bytes(), b"\xF0\x9F", b"\x98\x80", b"x"]);
    let logprob = |token| TokenLogprob { token, logprob: -0.5, top: vec![(token, -0.5), (259, -2.0)] };
    let options = DecoderOptions { logprobs: true, ..DecoderOptions::default() };
    let answer = fold(
        &tokenizer,
        options,
        [Delta {
            tokens: vec![256, 257, 258, 259],
            logprobs: (256..260).map(logprob).collect(),
            prompt_logprobs: vec![logprob(259), logprob(256), logprob(259)],
            finish: Some(FinishReason::Length),
            ..Delta::default()
        }],
    );
    assert_eq!(answer.text, "한😀x");
    let offsets: Vec<usize> = answer.logprobs.iter().map(|entry| entry.text_offset).collect();
    assert_eq!(offsets, [0, 1, 1, 2]);
    assert_eq!(answer.logprobs[1].bytes, b"\xF0\x9F");
    assert_eq!(answer.logprobs[1].text, "\u{FFFD}");
    assert_eq!(answer.logprobs[0].top[1].text, "x");
    let offsets: Vec<usize> = answer.prompt_logprobs.iter().map(|entry| entry.text_offset).collect();
    assert_eq!(offsets, [0, 1, 2]);
}

#[test]
fn tokens_in_front_of_a_prompt_have_no_place_in_its_text() {
    let tokenizer = hugging_face(&byte_level_json(None, None));
    let (begin, end) = (tokenizer.token_id("<|begin|>").unwrap(), tokenizer.token_id("<|end|>").unwrap());
    let word = |text: &str| tokenizer.encode(text, false).unwrap();
    let mut prompt = vec![begin, end];
    prompt.extend(word("é"));
    prompt.push(end);
    prompt.extend(word("x"));
    let offsets = |prompt_text, skip_special_tokens| {
        let options =
            DecoderOptions { prompt: prompt_text, skip_special_tokens, ..DecoderOptions::default() };
        let prompt_logprobs =
            prompt.iter().map(|&token| TokenLogprob { token, logprob: -1.0, top: vec![] }).collect();
        let answer = fold(&tokenizer, options, [Delta { prompt_logprobs, ..Delta::default() }]);
        answer.prompt_logprobs.iter().map(|entry| entry.text_offset).collect::<Vec<_>>()
    };
    let bytes = prompt.len() - 4;
    // Begin was added; what follows was spelled in the text, whatever the answer shows.
    for skip in [true, false] {
        let given = offsets(PromptText::Given { added: 1 }, skip);
        assert_eq!(
            (given[0], given[1], given[2], given[2 + bytes], *given.last().unwrap()),
            (0, 0, 7, 8, 15)
        );
    }
    assert_eq!(*offsets(PromptText::Given { added: 2 }, true).last().unwrap(), 8);
    // Of ids, special ones have text if the answer shows theirs.
    assert_eq!(*offsets(PromptText::Decoded, true).last().unwrap(), 1);
    assert_eq!(*offsets(PromptText::Decoded, false).last().unwrap(), 9 + 7 + 1 + 7);
}

/// A token list cut at the given places, the finish reason on the last delta or on one of its own.
fn cut(tokens: &[u32], cuts: &[usize], finish: Option<FinishReason>, apart: bool) -> Vec<Delta> {
    let mut deltas: Vec<Delta> = Vec::new();
    let mut bounds: Vec<usize> = cuts.iter().map(|cut| cut % (tokens.len() + 1)).collect();
    bounds.extend([0, tokens.len()]);
    bounds.sort_unstable();
    for pair in bounds.windows(2) {
        let tokens = &tokens[pair[0]..pair[1]];
        let logprobs =
            tokens.iter().map(|&token| TokenLogprob { token, logprob: -1.0, top: vec![] }).collect();
        deltas.push(Delta { logprobs, ..delta(tokens) });
    }
    match deltas.last_mut() {
        Some(last) if !apart => last.finish = finish,
        _ => deltas.push(Delta { finish, ..Delta::default() }),
    }
    deltas
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn r04_unary_equals_the_fold_of_any_stream(
        tokens in prop::collection::vec(prop_oneof![8 => 256u32..264, 2 => 0u32..256], 0..24),
        cuts in prop::collection::vec(any::<usize>(), 0..12),
        apart in any::<bool>(),
        finish in prop::option::of(prop_oneof![Just(FinishReason::Stop), Just(FinishReason::Length)]),
        stop in prop::collection::vec(prop::sample::select(vec!["ab", "b", "aba", "한", "é\u{FFFD}", "bEND"]), 0..4),
        min_tokens in 0u32..6,
        include_stop_str_in_output in any::<bool>(),
        skip_special_tokens in any::<bool>(),
    ) {
        let tokenizer = bytes(&[b"a", b"b", "한".as_bytes(), b"\xED\x95", b"\x9C", "é".as_bytes(), b"END", b"EOS"]);
        let options = DecoderOptions {
            keep_markers: false,
            stop: stop.iter().map(|&stop| stop.to_owned()).collect(),
            stop_token_ids: vec![262],
            eos: vec![263],
            min_tokens,
            skip_special_tokens,
            include_stop_str_in_output,
            logprobs: true,
            ..DecoderOptions::default()
        };
        let unary = fold(&tokenizer, options.clone(), cut(&tokens, &[], finish, false));
        let stream = fold(&tokenizer, options, cut(&tokens, &cuts, finish, apart));
        prop_assert_eq!(&unary, &stream);
        prop_assert_eq!(&unary.tokens, &tokens[..unary.tokens.len()]);
        prop_assert_eq!(unary.logprobs.len(), unary.tokens.len());
        if !matches!(unary.stop, Some(StopCause::String(_))) {
            prop_assert_eq!(unary.tokens.len(), tokens.len());
            prop_assert_eq!(unary.finish, finish);
        }
    }
}
