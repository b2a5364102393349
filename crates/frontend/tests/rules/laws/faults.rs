//! R06 and R07 over random faults at random places.

use super::cases::{Draws, cases};
use super::stage::{GENERATE, Stage};
use crate::client::Reply;
use crate::harness::Ending;
use dynamo_protocols::sse;
use dynamo_types::Error;
use serde_json::Value;

/// Text with everything that ends a line, a frame or a string.
fn hostile(draws: &mut Draws) -> String {
    let mut text = draws.text(4);
    for _ in 0..draws.below(4) {
        let part = [
            "\n",
            "\r",
            "\n\n",
            "\ndata: fake\n\n",
            "\r\nevent: fake\r\n",
            "\0",
            "\"}",
            "data: [DONE]\n\n",
            ": ",
        ];
        text.push_str(draws.pick(&part));
        text.push_str(&draws.text(2));
    }
    // An error without words is given some elsewhere.
    if text.is_empty() { "fault".into() } else { text }
}

/// The stream as the standard reads it.
fn events(reply: &Reply) -> Vec<sse::Event> {
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/event-stream")));
    let mut reader = sse::Reader::default();
    reader.push(&reply.body).unwrap();
    let events: Vec<sse::Event> = std::iter::from_fn(|| reader.next_event()).collect();
    // Nothing is left over: the last frame is whole.
    assert!(reply.body.ends_with(b"\n\n"), "{}", reply.text());
    events
}

/// The message of the one error that a stream ends with, in its API's words.
fn told(route: &str, reply: &Reply) -> String {
    let mut events = events(reply);
    if route != "/v1/messages" {
        assert_eq!(events.pop().unwrap().data, "[DONE]", "{}", reply.text());
    }
    let parsed: Vec<Value> = events.iter().map(|event| serde_json::from_str(&event.data).unwrap()).collect();
    let message = |event: &Value| {
        let error = if route == "/v1/responses" { &event["response"]["error"] } else { &event["error"] };
        error["message"].as_str().map(str::to_owned)
    };
    let errors: Vec<String> = parsed.iter().filter_map(message).collect();
    assert_eq!(errors.len(), 1, "{}", reply.text());
    assert_eq!(message(parsed.last().unwrap()), Some(errors[0].clone()), "the error comes last");
    for (event, value) in events.iter().zip(&parsed) {
        if let Some(name) = &event.event {
            assert_eq!(value["type"], name.as_str());
        }
    }
    errors[0].clone()
}

#[tokio::test]
async fn r06_every_stream_ends_in_its_own_words_wherever_it_breaks() {
    let stage = Stage::new().await;
    let mut failed = 0.0;
    for mut draws in cases("r06", 800) {
        let (route, stream) = (draws.pick(&GENERATE), !draws.one_in(3));
        // A worker that has said something cannot be replaced; this one is the only one, too.
        let text = format!("x{}", draws.text(12));
        let ending = match draws.below(4) {
            0 => Ending::Reset,
            1 => Ending::Fail(Error::timeout("late")),
            2 => Ending::Fail(Error::overloaded("full")),
            _ => Ending::Fail(Error::engine("broken")),
        };
        stage.say(&mut draws, &text, ending);
        let reply = stage.ask(route, stream, serde_json::json!({})).await;
        failed += 1.0;
        if stream {
            assert!(!told(route, &reply).is_empty());
        } else {
            assert!(reply.status >= 500, "{}", reply.text());
            assert!(reply.error()["message"].is_string(), "{}", reply.text());
        }
    }
    stage.harness.balanced().await;
    for (status, expected) in [("status=\"error\"", failed), ("status=\"success\"", 0.0)] {
        assert_eq!(stage.harness.metric("dynamo_frontend_requests_total", &[status]).await, expected);
    }
}

#[tokio::test]
async fn r07_no_error_text_makes_or_breaks_a_frame() {
    let stage = Stage::new().await;
    for mut draws in cases("r07", 800) {
        let (route, stream) = (draws.pick(&GENERATE), !draws.one_in(3));
        let words = hostile(&mut draws);
        let text = format!("x{}", draws.text(3));
        stage.say(&mut draws, &text, Ending::Fail(Error::engine(words.as_str())));
        let reply = stage.ask(route, stream, serde_json::json!({})).await;
        let told = if stream {
            told(route, &reply)
        } else {
            assert_eq!(reply.status, 500);
            reply.error()["message"].as_str().unwrap().to_owned()
        };
        assert_eq!(told, words, "{route} {stream}");
    }
    stage.harness.balanced().await;
}
