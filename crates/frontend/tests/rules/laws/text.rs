//! R01-R05 over random texts, cuts and stops.

use super::cases::{Draws, cases};
use super::stage::{GENERATE, Stage, answer, usage};
use crate::harness::Ending;
use dynamo_types::FinishReason::{Length, Stop};
use serde_json::{Value, json};

const STOPPED: Ending = Ending::Finish(Stop);

#[tokio::test]
async fn r01_any_bytes_in_any_pieces_are_the_text_they_spell() {
    let stage = Stage::new().await;
    for mut draws in cases("r01", 1200) {
        let (route, stream) = (draws.pick(&GENERATE), draws.one_in(2));
        let mut bytes = draws.text(40).into_bytes();
        // Broken text is shown as broken, once, and nothing around it is.
        while draws.one_in(3) && !bytes.is_empty() {
            let at = draws.below(bytes.len());
            bytes[at] = draws.bits() as u8;
        }
        stage.say(&mut draws, &bytes, STOPPED);
        let said = answer(route, &stage.ask(route, stream, json!({})).await);
        let expected = String::from_utf8_lossy(&bytes);
        assert_eq!((said.content, &*said.finish), (expected.into_owned(), "stop"), "{route} {stream}");
    }
    stage.harness.balanced().await;
}

/// Where stops come in, and in which field.
const STOPS: [(&str, &str); 3] =
    [("/v1/chat/completions", "stop"), ("/v1/completions", "stop"), ("/v1/messages", "stop_sequences")];

/// Text over few letters, so that stops overlap and repeat.
fn letters(draws: &mut Draws, from: usize, to: usize) -> String {
    let count = draws.between(from, to);
    (0..count).map(|_| draws.pick(&["a", "b", "é", "😀"])).collect()
}

/// The stop at the smallest offset; list order breaks ties.
fn first<'a>(text: &str, stops: &'a [String]) -> Option<(usize, &'a str)> {
    let found = stops.iter().filter_map(|stop| Some((text.find(stop.as_str())?, stop.as_str())));
    found.min_by_key(|(at, _)| *at)
}

#[tokio::test]
async fn r02_what_belongs_to_a_stop_is_never_shown() {
    let stage = Stage::new().await;
    for mut draws in cases("r02", 900) {
        let ((route, field), stream) = (draws.pick(&STOPS), draws.one_in(2));
        let stop = letters(&mut draws, 2, 6);
        // The beginning of the stop, again and again, and now and then all of it.
        let mut text = letters(&mut draws, 0, 4);
        for _ in 0..draws.between(1, 4) {
            let end = draws.below(stop.chars().count() + 1);
            text.extend(stop.chars().take(end));
            text.push_str(&letters(&mut draws, 0, 2));
        }
        let found = text.find(&stop);
        let reason = draws.pick(&[Stop, Length]);
        // A stop ends the answer though the engine would go on.
        let ending = if found.is_some() && draws.one_in(2) { Ending::Hang } else { Ending::Finish(reason) };
        stage.say(&mut draws, &text, ending);
        let said = answer(route, &stage.ask(route, stream, json!({field: [stop]})).await);
        let finish = if found.is_some() || reason == Stop { "stop" } else { "length" };
        let expected = &text[..found.unwrap_or(text.len())];
        assert_eq!((&*said.content, &*said.finish), (expected, finish), "{stop:?} in {text:?}");
    }
    stage.harness.balanced().await;
}

#[tokio::test]
async fn r03_the_smallest_offset_wins_in_any_order() {
    let stage = Stage::new().await;
    for mut draws in cases("r03", 900) {
        let ((route, field), stream) = (draws.pick(&STOPS), draws.one_in(2));
        let mut stops: Vec<String> = (0..draws.between(2, 4)).map(|_| letters(&mut draws, 1, 5)).collect();
        let text = letters(&mut draws, 0, 30);
        stage.say(&mut draws, &text, STOPPED);
        let found = first(&text, &stops);
        let shown = &text[..found.map_or(text.len(), |(at, _)| at)];
        for _ in 0..2 {
            let said = answer(route, &stage.ask(route, stream, json!({field: stops})).await);
            assert_eq!((&*said.content, &*said.finish), (shown, "stop"), "{stops:?} in {text:?}");
            stops.reverse();
        }
        // With its text, where it may be shown, the earlier in the list wins a tie.
        if let (Some((at, stop)), true) = (first(&text, &stops), field == "stop") {
            let fields = json!({field: stops, "include_stop_str_in_output": true});
            let said = answer(route, &stage.ask(route, stream, fields).await);
            assert_eq!(said.content, text[..at + stop.len()], "{stops:?} in {text:?}");
        }
    }
    stage.harness.balanced().await;
}

#[tokio::test]
async fn r04_hidden_stops_count_and_the_end_is_told() {
    let stage = Stage::new().await;
    for mut draws in cases("r04", 900) {
        let (route, stream) = (draws.pick(&GENERATE), draws.one_in(2));
        let text = draws.text(12);
        let stop = draws.pick(&["é", "STOP", "7!"]);
        let (fields, shown, tokens) = match STOPS.iter().find(|(path, _)| *path == route) {
            Some((_, field)) if draws.one_in(2) => {
                // Text behind the stop is nobody's; what was sampled for the stop is counted.
                let all = format!("{text}{stop}{}", draws.text(3));
                stage.say(&mut draws, &all, Ending::Hang);
                let at = all.find(stop).unwrap();
                (json!({*field: [stop]}), all[..at].to_owned(), at + stop.len())
            }
            _ => {
                stage.say(&mut draws, format!("{text}\u{3}"), STOPPED);
                (json!({"stop_token_ids": [3]}), text.clone(), text.len() + 1)
            }
        };
        let mut fields = fields;
        if stream && route.contains("completions") {
            fields["stream_options"] = json!({"include_usage": true});
        }
        let reply = stage.ask(route, stream, fields).await;
        let said = answer(route, &reply);
        assert_eq!((said.content, &*said.finish), (shown, "stop"), "{route} {stream}");
        assert_eq!(usage(route, &reply).1, tokens as u64, "{route} {stream} {text:?} {stop:?}");
    }
    // No stop text reaches an engine: its request has no place for one. Token ids do.
    assert!(stage.workers[0].requests().iter().any(|request| request.stopping.stop_token_ids == [3]));
    stage.harness.balanced().await;
}

#[tokio::test]
async fn r05_usage_is_told_once_where_it_was_asked_for() {
    let stage = Stage::new().await;
    for mut draws in cases("r05", 800) {
        let (route, stream) = (draws.pick(&GENERATE), draws.one_in(3));
        let n = if route.contains("completions") { draws.between(1, 3) } else { 1 };
        let text = draws.text(10);
        stage.say(&mut draws, &text, STOPPED);
        let mut fields = json!({});
        if n > 1 {
            fields["n"] = json!(n);
        }
        let wish = draws.pick(&[None, Some(Value::Null), Some(json!(false)), Some(json!(true))]);
        let asked = wish == Some(json!(true));
        if stream && route.contains("completions") {
            if let Some(wish) = &wish {
                fields["stream_options"] = json!({"include_usage": wish});
            }
            let reply = stage.ask(route, true, fields).await;
            let chunks = reply.chunks();
            let told: Vec<&Value> = chunks.iter().filter(|chunk| !chunk["usage"].is_null()).collect();
            assert_eq!(told.len(), usize::from(asked), "{}", reply.text());
            if !asked {
                continue;
            }
            assert_eq!(chunks.last().unwrap()["choices"], json!([]));
            assert!(chunks.iter().all(|chunk| chunk.as_object().unwrap().contains_key("usage")));
            assert_eq!(usage(route, &reply).1, (text.len() * n) as u64);
        } else {
            let reply = stage.ask(route, stream, fields).await;
            let prompt = if route == "/v1/completions" { 1 } else { "user: x\n".len() as u64 };
            assert_eq!(usage(route, &reply), (prompt, (text.len() * n) as u64), "{}", reply.text());
        }
    }
    stage.harness.balanced().await;
}
