//! Stop strings against a search over the whole text.

use dynamo_text::StopMatcher;
use proptest::prelude::*;

/// The reference: offset and index of the match that wins, of those that end after `unmatched` bytes.
fn search(text: &str, stops: &[String], unmatched: usize) -> Option<(usize, usize)> {
    let mut best: Option<(usize, usize)> = None;
    for (index, stop) in stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty()) {
        let start = text
            .char_indices()
            .map(|(start, _)| start)
            .find(|&start| text[start..].starts_with(stop.as_str()) && start + stop.len() > unmatched);
        if let Some(start) = start
            && best.is_none_or(|best| (start, index) < best)
        {
            best = Some((start, index));
        }
    }
    best
}

/// The longest end of `text` that is a proper prefix of a stop string.
fn alive(text: &str, stops: &[String]) -> usize {
    stops
        .iter()
        .flat_map(|stop| stop.char_indices().map(|(len, _)| &stop[..len]))
        .filter(|prefix| text.ends_with(prefix))
        .map(str::len)
        .max()
        .unwrap_or(0)
}

fn run(pieces: &[String], stops: &[String], include: bool) -> (String, Option<usize>) {
    let mut matcher = StopMatcher::new(stops, include);
    let mut out = String::new();
    for piece in pieces {
        if let Some(stop) = matcher.push(piece, &mut out) {
            return (out, Some(stop));
        }
    }
    let stop = matcher.finish(&mut out);
    (out, stop)
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|&text| text.to_owned()).collect()
}

/// Few letters, so that stop strings overlap, nest and nearly match; with characters of every length.
fn text(max: usize) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!['a', 'b', 'c', 'é', '한', '😀']), 0..max)
        .prop_map(|chars| chars.into_iter().collect())
}

fn pieces() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(text(6), 0..24)
}

#[test]
fn r02_text_that_may_become_a_stop_string_is_withheld() {
    let stops = strings(&["DEFGH"]);
    assert_eq!(run(&strings(&["ABC", "DE", "FG", "H", "I"]), &stops, false), ("ABC".into(), Some(0)));
    assert_eq!(run(&strings(&["ABC", "DE", "X"]), &stops, false), ("ABCDEX".into(), None));
    assert_eq!(run(&strings(&["ABC", "DE"]), &stops, false), ("ABCDE".into(), None));
    assert_eq!(run(&strings(&["ABC", "DE", "FGHI"]), &stops, true), ("ABCDEFGH".into(), Some(0)));
    let mut matcher = StopMatcher::new(&stops, false);
    let mut out = String::new();
    assert_eq!(matcher.push("ABCDE", &mut out), None);
    assert_eq!(out, "ABC");
}

#[test]
fn r03_the_smallest_offset_wins_whatever_the_order() {
    for stops in [strings(&["re", "he"]), strings(&["he", "re"])] {
        assert_eq!(run(&strings(&["there"]), &stops, false).0, "t");
    }
    // A longer one that began earlier is waited for.
    let stops = strings(&["bc", "abcd"]);
    assert_eq!(run(&strings(&["xabc", "d"]), &stops, false), ("x".into(), Some(1)));
    assert_eq!(run(&strings(&["xabc", "e"]), &stops, false), ("xa".into(), Some(0)));
    assert_eq!(run(&strings(&["xabc"]), &stops, false), ("xa".into(), Some(0)));
    // At one offset the list decides.
    assert_eq!(run(&strings(&["abcd"]), &strings(&["ab", "abcd"]), true), ("ab".into(), Some(0)));
    assert_eq!(run(&strings(&["ab", "cd"]), &strings(&["abcd", "ab"]), true), ("abcd".into(), Some(0)));
}

#[test]
fn r02_nothing_to_stop_at_withholds_nothing() {
    for stops in [vec![], strings(&["", ""])] {
        let mut matcher = StopMatcher::new(&stops, false);
        let mut out = String::new();
        assert_eq!(matcher.push("anything", &mut out), None);
        assert_eq!(out, "anything");
    }
}

#[test]
fn r02_hard_repetitions_stay_linear() {
    // Quadratic matching would take minutes here.
    let stops = vec!["a".repeat(4000) + "b", "a".repeat(3999) + "c"];
    let text = "a".repeat(2_000_000);
    let (out, stop) = run(std::slice::from_ref(&text), &stops, false);
    assert_eq!((out.len(), stop), (text.len(), None));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn r03_equals_a_search_over_the_whole_text(
        pieces in pieces(),
        stops in prop::collection::vec(text(5), 0..6),
        include in any::<bool>(),
    ) {
        let whole = pieces.concat();
        let expected = match search(&whole, &stops, 0) {
            Some((start, stop)) => {
                let end = if include { start + stops[stop].len() } else { start };
                (whole[..end].to_owned(), Some(stop))
            }
            None => (whole, None),
        };
        prop_assert_eq!(run(&pieces, &stops, include), expected);
    }

    #[test]
    fn r02_withholds_exactly_what_may_still_match(
        pieces in pieces(),
        stops in prop::collection::vec(text(5), 0..6),
    ) {
        let mut matcher = StopMatcher::new(&stops, false);
        let (mut out, mut seen) = (String::new(), String::new());
        for piece in &pieces {
            seen.push_str(piece);
            if matcher.push(piece, &mut out).is_some() {
                break;
            }
            let waiting = search(&seen, &stops, 0).map_or(seen.len(), |(start, _)| start);
            let certain = waiting.min(seen.len() - alive(&seen, &stops));
            prop_assert_eq!(&out, &seen[..certain]);
        }
    }

    #[test]
    fn text_before_min_tokens_ends_no_match(
        before in text(12),
        after in pieces(),
        stops in prop::collection::vec(text(5), 0..6),
    ) {
        let whole = before.clone() + &after.concat();
        let mut matcher = StopMatcher::new(&stops, false);
        let mut out = String::new();
        matcher.push_unmatched(&before, &mut out);
        let mut stop = after.iter().find_map(|piece| matcher.push(piece, &mut out));
        if stop.is_none() {
            stop = matcher.finish(&mut out);
        }
        let expected = search(&whole, &stops, before.len());
        prop_assert_eq!(stop, expected.map(|(_, stop)| stop));
        prop_assert_eq!(&out, &whole[..expected.map_or(whole.len(), |(start, _)| start)]);
    }
}
