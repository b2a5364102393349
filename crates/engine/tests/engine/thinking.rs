//! Answers that may think only so much. That their company changes nothing is tested with all others.

use crate::common::{CLOSER, OPENER, Reader, alone, core, finish, limit, options, request, spell, submit};
use dynamo_guide::{Compiler, Limits, Vocabulary};
use dynamo_types::{FinishReason, Frame, Guide, OutputOptions, Reasoning, Request, Sampling, Stopping, draw};
use std::sync::Arc;

const CONTEXT: u32 = 120;

fn text(tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|&token| spell(token)).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Requests of all kinds, the model's own ends among them.
fn requests() -> impl Iterator<Item = Request> {
    (0..120u64).map(|case| {
        let drawn = |position, count| draw::index(case, position, count) as u32;
        let temperature = if case % 3 == 0 { 0.0 } else { 1.5 };
        Request {
            sampling: Sampling { temperature, seed: case, ..Default::default() },
            stopping: Stopping { max_tokens: 40, min_tokens: drawn(2, 30), ..Default::default() },
            thinking: Some(limit(drawn(0, 15), case % 4 != 0, case % 2 == 0)),
            // Sooner or later the model is made to open thinking of itself.
            ..request(&[drawn(3, 80), drawn(4, 80)], 0)
        }
    })
}

#[test]
fn thinking_is_as_long_as_the_limit_says() {
    let (mut ended, mut unchanged) = (0, 0);
    for request in requests() {
        let limit = request.thinking.clone().unwrap();
        let answer = alone(&request, CONTEXT, &[]).tokens;
        let free = alone(&Request { thinking: None, ..request.clone() }, CONTEXT, &[]).tokens;
        if !limit.is_open {
            continue;
        }
        let bytes: Vec<u8> = answer.iter().flat_map(|&token| spell(token)).collect();
        let at = bytes.windows(8).position(|window| window == b"</think>").unwrap();
        let thought = answer.iter().scan(0, |len, &token| {
            *len += spell(token).len();
            Some(*len)
        });
        let thought = thought.take_while(|end| *end <= at).count();
        assert!(thought <= (limit.tokens + 4) as usize, "{thought} {limit:?}");
        // Up to the end that is put in, the answer is what it would have been.
        assert_eq!(answer[..thought], free[..thought]);
        match answer == free {
            true => unchanged += 1,
            false => ended += 1,
        }
    }
    assert!(ended > 50, "{ended} {unchanged}");
}

#[test]
fn thinking_that_ends_sooner_is_unchanged() {
    let mut model_closed = 0;
    for seed in 0..60 {
        let sampling = Sampling { seed, logit_bias: vec![(CLOSER, 6.0)], ..Default::default() };
        let free = Request { sampling, ..request(&[seed as u32, 5], 40) };
        let expected = alone(&free, CONTEXT, &[]).tokens;
        let Some(at) = expected.iter().position(|&token| token == CLOSER) else { continue };
        // It could begin once more, behind the first end.
        let len = expected.iter().position(|&token| token == OPENER).unwrap_or(expected.len());
        model_closed += 1;
        let held = Request { thinking: Some(limit(at as u32, true, false)), ..free };
        assert_eq!(alone(&held, CONTEXT, &[]).tokens[..len], expected[..len]);
    }
    assert!(model_closed > 20, "{model_closed}");
}

#[test]
fn an_answer_that_moved_goes_on_alike() {
    for request in requests().take(40) {
        let whole = alone(&request, CONTEXT, &[]).tokens;
        for cut in (1..whole.len()).step_by(3) {
            let mut moved = request.clone();
            moved.tokens = request.tokens.iter().chain(&whole[..cut]).copied().collect();
            moved.resumed = cut as u32;
            moved.stopping.max_tokens -= cut as u32;
            assert_eq!(alone(&moved, CONTEXT, &[]).tokens, whole[cut..], "cut at {cut}");
        }
    }
}

/// What the model makes of a text that it is given is what it said when it wrote it.
#[test]
fn log_probabilities_of_what_is_put_in_are_the_models_own() {
    let mut request = Request { thinking: Some(limit(5, true, true)), ..request(&[1, 2, 3], 20) };
    request.output.logprobs = Some(3);
    let answer = alone(&request, CONTEXT, &[]);
    assert_eq!(text(&answer.tokens[5..13]), "</think>");
    let mut again = crate::common::request(&[&[1, 2, 3], &answer.tokens[..]].concat(), 0);
    again.output = OutputOptions { logprobs: None, prompt_logprobs: Some(3) };
    assert_eq!(alone(&again, CONTEXT, &[]).prompt_logprobs[3..], answer.logprobs);
    // It would have said something else.
    assert!(answer.logprobs[5..13].iter().any(|said| said.top[0].0 != said.token));
}

#[test]
fn ends_and_lengths_win() {
    let held = Request { thinking: Some(limit(3, true, false)), ..request(&[1, 2], 40) };
    // Its end is one of the answer's, and comes as soon as that may.
    let mut stopped = held.clone();
    stopped.stopping = Stopping { stop_token_ids: vec![CLOSER], min_tokens: 9, ..held.stopping };
    let answer = alone(&stopped, CONTEXT, &[]);
    assert_eq!((answer.tokens.len(), answer.finish), (10, Some(FinishReason::Stop)));
    assert_eq!(answer.tokens.iter().position(|&token| token == CLOSER), Some(9));
    // Cut in the middle of the marker.
    let mut cut = Request { thinking: Some(limit(3, true, true)), ..held };
    cut.stopping.max_tokens = 5;
    let answer = alone(&cut, CONTEXT, &[]);
    assert_eq!((&*text(&answer.tokens[3..]), answer.finish), ("</", Some(FinishReason::Length)));
    // Nobody could say an end that the model does not have.
    let mut broken = limit(1, true, false);
    broken.ends.push(vec![90]);
    let refused = core(options(64), &[])
        .submit(Arc::new(Request { thinking: Some(broken), ..cut }), Reader::default().sink())
        .unwrap_err();
    assert!(refused.message().contains("90, outside the vocabulary of 90"), "{refused}");
}

/// The grammar has a place for the end of reasoning; the answer behind it is of its form.
#[test]
fn an_answer_with_a_grammar_gets_to_its_form() {
    let special = [(OPENER, "<think>".to_owned()), (CLOSER, "</think>".to_owned())];
    let vocabulary = Vocabulary::new(87, &[], |id| match id {
        OPENER | CLOSER => Vec::new(),
        id => spell(id),
    });
    let compiler = Compiler::new(&vocabulary.unwrap().with_special(special), Limits::default()).unwrap();
    let frame = Frame {
        reasoning: Some(Reasoning {
            is_open: true,
            openers: vec!["<think>".into()],
            closers: vec!["</think>".into()],
            then: "".into(),
        }),
        ..Guide::Regex("[a-f]{5,9};".into()).into_frame()
    };
    let guide = Guide::Framed(Box::new(frame));
    let grammar = compiler.grammar(&guide).unwrap();
    let mut core = core(options(64), &[]);
    let readers: Vec<(u32, Reader)> = (0..20)
        .map(|tokens| {
            let request = Request {
                guide: Some(guide.clone()),
                thinking: Some(limit(tokens, true, false)),
                ..request(&[tokens, 3], 60)
            };
            let reader = Reader::default();
            core.submit_guided(Arc::new(request), Some(grammar.clone()), reader.sink()).unwrap();
            (tokens, reader)
        })
        .collect();
    // Beside one without.
    let other = submit(&mut core, request(&[7, 7], 30));
    finish(&mut core);
    assert_eq!(other.answer().tokens.len(), 30);
    for (tokens, reader) in readers {
        let answer = reader.answer();
        let thought = answer.tokens.iter().position(|&token| token == CLOSER).unwrap();
        assert!(thought <= tokens as usize + 4, "{thought} {tokens}");
        let text = text(&answer.tokens[thought + 1..]);
        let word = text.strip_suffix(';').unwrap();
        assert!((5..=9).contains(&word.len()) && word.bytes().all(|b| (b'a'..=b'f').contains(&b)), "{text}");
        assert_eq!(answer.finish, Some(FinishReason::Stop));
    }
}
