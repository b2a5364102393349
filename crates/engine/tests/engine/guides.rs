//! What answers with a grammar take.

use crate::common::{Reader, core, finish, options, request};
use dynamo_guide::{Compiler, Limits, Vocabulary};
use dynamo_scheduler::Options;
use dynamo_types::{FinishReason, Guide, Request};
use std::sync::Arc;

/// The fake model's ids spell one letter each, in the order of ASCII, from `!` on.
fn letter(token: u32) -> u8 {
    b'!' + token as u8
}

#[test]
fn requests_that_wait_have_no_matcher() {
    const RUNNING: u32 = 3;
    let vocabulary = Vocabulary::new(87, &[], |id| vec![letter(id)]).unwrap();
    let compiler = Compiler::new(&vocabulary, Limits::default()).unwrap();
    let guide = Guide::Regex("[a-f]{5,9};".into());
    let grammar = compiler.grammar(&guide).unwrap();
    let mut core = core(Options { max_num_seqs: RUNNING, ..options(64) }, &[]);
    let readers: Vec<Reader> = (0..20)
        .map(|i| {
            let request = Request { guide: Some(guide.clone()), ..request(&[i, 2, 3], 30) };
            let reader = Reader::default();
            core.submit_guided(Arc::new(request), Some(grammar.clone()), reader.sink()).unwrap();
            reader
        })
        .collect();
    assert_eq!(core.matchers(), 0);
    let mut most = 0;
    while core.has_work() {
        core.step();
        most = most.max(core.matchers());
    }
    assert!((1..=RUNNING as usize).contains(&most), "{most}");
    finish(&mut core);
    for reader in readers {
        let answer = reader.answer();
        let text: String = answer.tokens.iter().map(|&token| char::from(letter(token))).collect();
        let word = text.strip_suffix(';').unwrap();
        assert!((5..=9).contains(&word.len()) && word.bytes().all(|b| (b'a'..=b'f').contains(&b)), "{text}");
        assert_eq!(answer.finish, Some(FinishReason::Stop));
    }
}
