use super::*;
use crate::request::{Sampling, Stopping};
use crate::{Task, draw};
use proptest::prelude::*;

/// Ids below this spell themselves.
const PIECES: [&[u8]; 8] =
    ["<think>".as_bytes(), b"</think>", b"word ", b"</", b"think>", &[0xE2, 0x82], &[0xAC], b"<call>"];
const OPENER: u32 = 256;
const CLOSER: u32 = 257;

fn spelling() -> Arc<Spelling> {
    Arc::new(Spelling::new(256 + PIECES.len() as u32, |token, bytes| match u8::try_from(token) {
        Ok(byte) => bytes.push(byte),
        Err(_) => bytes.extend_from_slice(PIECES[token as usize - 256]),
    }))
}

fn limit(tokens: u32, is_open: bool, end: &[u32]) -> ThinkingLimit {
    ThinkingLimit {
        tokens,
        is_open,
        openers: vec!["<think>".into()],
        closers: vec!["</think>".into()],
        calls: vec!["<call>".into()],
        ends: vec![end.to_vec()],
    }
}

fn request(limit: Option<ThinkingLimit>, prompt: &[u32], answer: &[u32]) -> Arc<Request> {
    Arc::new(Request {
        id: "r".into(),
        model: "m".into(),
        tokens: prompt.iter().chain(answer).copied().collect(),
        resumed: answer.len() as u32,
        task: Task::Generate,
        sampling: Sampling::default(),
        stopping: Stopping { max_tokens: 100, ..Stopping::default() },
        guide: None,
        thinking: limit,
        output: Default::default(),
        routing: Default::default(),
        trace: None,
    })
}

/// What comes of a model that would say `said`, and which of it was put in.
fn run(limit: &ThinkingLimit, said: &[u32], len: usize) -> (Vec<u32>, Vec<bool>) {
    let mut meter = ThinkingMeter::new(&request(Some(limit.clone()), &[1], &[]), &spelling()).unwrap();
    let mut said = said.iter().copied();
    let (mut answer, mut put) = (Vec::new(), Vec::new());
    while answer.len() < len {
        let due = meter.due();
        let Some(token) = due.or_else(|| said.next()) else { break };
        meter.take(token);
        answer.push(token);
        put.push(due.is_some());
    }
    (answer, put)
}

/// Tokens whose bytes all lie in reasoning, found in the whole text, as its reader does. `beyond`: so many bytes behind its end
/// belong to it.
fn thought(answer: &[u32], is_open: bool, beyond: usize) -> Vec<usize> {
    let spelling = spelling();
    let (mut text, mut ends) = (Vec::new(), Vec::new());
    for &token in answer {
        text.extend_from_slice(spelling.of(token));
        ends.push(text.len());
    }
    let find = |needle: &str, from: usize| {
        let found = text[from..].windows(needle.len()).position(|window| window == needle.as_bytes());
        found.map_or(text.len(), |at| from + at)
    };
    let (mut inside, mut at, mut spans) = (is_open, 0, Vec::new());
    while at < text.len() {
        if inside {
            let end = find("</think>", at);
            spans.push((at, end + beyond));
            at = end + "</think>".len();
        } else if find("<call>", at) < find("<think>", at) {
            break;
        } else {
            at = find("<think>", at) + "<think>".len();
        }
        inside = !inside;
    }
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let tokens = starts.zip(&ends).enumerate();
    tokens
        .filter(|(_, (start, end))| spans.iter().any(|(from, to)| from <= start && *end <= to))
        .map(|(index, _)| index)
        .collect()
}

#[test]
fn the_end_is_put_in_when_all_is_used() {
    let words = [258; 9];
    for tokens in 0..5 {
        let (answer, put) = run(&limit(tokens, true, &[CLOSER]), &words, 9);
        let at = tokens as usize;
        assert_eq!(answer[at], CLOSER);
        assert_eq!(put.iter().filter(|put| **put).count(), 1);
        assert_eq!(answer.iter().position(|token| *token == CLOSER), Some(at));
        // Behind the model's own opener, too, and once more where it begins again.
        let said = [&[258, OPENER], &words[..3], &[OPENER, 258]].concat();
        let (answer, _) = run(&limit(tokens.min(2), false, &[97, CLOSER]), &said, 12);
        let at = 2 + tokens.min(2) as usize;
        assert_eq!(answer[at..at + 2], [97, CLOSER], "{answer:?}");
        assert_eq!(answer[answer.len() - 4..answer.len() - 1], [OPENER, 97, CLOSER], "{answer:?}");
    }
}

#[test]
fn nothing_is_cut_in_the_middle() {
    let euro = [261, 262];
    // The limit falls behind the first part of a character, of the model's own marker, and of what never becomes one.
    for (said, expected) in [
        ([&[258][..], &euro, &[258]].concat(), vec![258, 261, 262, CLOSER, 258]),
        (vec![258, 259, 260, 258], vec![258, 259, 260, 258]),
        (vec![258, 259, 258, 258], vec![258, 259, 258, CLOSER, 258]),
        (vec![258, 261, 261, 261, 261, 261, 261, 261], vec![258, 261, 261, 261, 261, 261, CLOSER, 261, 261]),
    ] {
        let (answer, _) = run(&limit(2, true, &[CLOSER]), &said, expected.len());
        assert_eq!(answer, expected);
    }
}

#[test]
fn markers_in_arguments_and_outside_of_a_limit_mean_nothing() {
    let said = [258, 263, OPENER, 258, 258, 258];
    assert_eq!(run(&limit(1, false, &[CLOSER]), &said, 6).0, said);
    assert!(ThinkingMeter::new(&request(None, &[1], &[]), &spelling()).is_none());
    let endless = ThinkingLimit { ends: vec![vec![]], ..limit(1, true, &[]) };
    assert!(ThinkingMeter::new(&request(Some(endless), &[1], &[]), &spelling()).is_none());
}

#[test]
fn the_second_end_may_be_another() {
    let mut limit = limit(0, true, &[CLOSER]);
    limit.ends.push(vec![CLOSER, 98]);
    let (answer, _) = run(&limit, &[OPENER, OPENER, 258], 9);
    assert_eq!(answer, [CLOSER, OPENER, CLOSER, 98, OPENER, CLOSER, 98, 258]);
}

#[test]
fn who_cannot_put_it_in_is_asked_again() {
    let mut meter =
        ThinkingMeter::new(&request(Some(limit(1, true, &[97, CLOSER])), &[1], &[]), &spelling()).unwrap();
    for (token, due) in [(258, None), (258, Some(97)), (97, Some(97)), (258, Some(CLOSER)), (97, Some(97))] {
        assert_eq!(meter.due(), due);
        meter.take(token);
    }
    assert_eq!(meter.due(), Some(CLOSER));
}

#[test]
fn characters_are_whole_or_not() {
    for (bytes, cut) in [
        (&b""[..], false),
        (b"a", false),
        ("aé".as_bytes(), false),
        (&[b'a', 0xC3], true),
        (&[0xE2, 0x82], true),
        (&[0xF0, 0x9F, 0x98], true),
        ("😀".as_bytes(), false),
        // None that could become one.
        (&[0x82, 0xAC], false),
        (&[0xFF], false),
        (&[0xC3, b'a'], false),
    ] {
        assert_eq!(is_cut(bytes), cut, "{bytes:?}");
    }
}

#[test]
fn a_request_from_before_there_were_limits_is_read() {
    let request = request(Some(limit(3, true, &[CLOSER])), &[1], &[2]);
    let mut json = serde_json::to_value(&*request).unwrap();
    assert_eq!(serde_json::from_value::<Request>(json.clone()).unwrap(), *request);
    json.as_object_mut().unwrap().remove("thinking");
    json.as_object_mut().unwrap().insert("later".into(), 1.into());
    assert_eq!(serde_json::from_value::<Request>(json).unwrap().thinking, None);
}

/// A word, and now and then something else.
fn said() -> impl Strategy<Value = Vec<u32>> {
    (any::<u64>(), 0usize..60).prop_map(|(seed, len)| {
        let one = |index: u64| match draw::index(seed, 2 * index, 4) {
            0 => 256 + draw::index(seed, 2 * index + 1, PIECES.len()) as u32,
            1 => 97 + draw::index(seed, 2 * index + 1, 3) as u32,
            _ => 258,
        };
        (0..len as u64).map(one).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Whatever a model says: no more than the limit, the grace and the marker.
    #[test]
    fn thinking_has_an_end(said in said(), tokens in 0u32..20, is_open: bool, text_marker: bool) {
        // The marker as one token, or as text in pieces.
        let end: &[u32] = if text_marker { &[259, 260] } else { &[CLOSER] };
        let limit = limit(tokens, is_open, end);
        let (answer, put) = run(&limit, &said, 100);
        let thought = thought(&answer, is_open, 0);
        prop_assert!(thought.len() <= tokens as usize + GRACE_TOKENS as usize + end.len(), "{answer:?}");
        // What is put in is the marker, whole, and nothing of what the model says is lost.
        let rest: Vec<u32> = answer.iter().zip(&put).filter(|(_, put)| !**put).map(|(token, _)| *token).collect();
        prop_assert_eq!(&rest[..], &said[..rest.len()]);
        let put: Vec<u32> = answer.iter().zip(&put).filter(|(_, put)| **put).map(|(token, _)| *token).collect();
        prop_assert!(put.chunks(end.len()).all(|chunk| end.starts_with(chunk)));
    }

    /// Who stays below the limit does not notice it.
    #[test]
    fn shorter_thinking_is_unchanged(said in said(), is_open: bool) {
        let used = thought(&said, is_open, "</think>".len()).len() as u32;
        let (answer, put) = run(&limit(used + 1, is_open, &[CLOSER]), &said, 100);
        prop_assert!(put.iter().all(|put| !put), "{answer:?}");
        prop_assert_eq!(answer, said);
    }

    /// Wherever it is taken up, the same comes next.
    #[test]
    fn an_answer_that_moves_goes_on_alike(said in said(), tokens in 0u32..20, is_open: bool) {
        let limit = limit(tokens, is_open, &[259, 260]);
        let (answer, put) = run(&limit, &said, 100);
        for cut in 0..answer.len() {
            let moved = request(Some(limit.clone()), &[1, OPENER], &answer[..cut]);
            let due = ThinkingMeter::new(&moved, &spelling()).unwrap().due();
            prop_assert_eq!(due, put[cut].then_some(answer[cut]), "{} of {:?}", cut, answer);
        }
    }
}
