use super::*;
use crate::anthropic::{Body, error_body};
use crate::pieces::Fold;
use crate::pieces::tests::{Owned, any_pieces};
use crate::sse;
use dynamo_types::FinishReason;
use proptest::prelude::*;
use serde_json::{Value, json};

fn events(out: &BytesMut) -> Vec<Value> {
    let mut reader = sse::Reader::default();
    reader.push(out).unwrap();
    std::iter::from_fn(|| reader.next_event())
        .map(|event| {
            let data: Value = serde_json::from_str(&event.data).unwrap();
            assert_eq!(event.event.as_deref(), data["type"].as_str());
            data
        })
        .collect()
}

/// What a client makes of a stream, as the official SDKs do it. Asserts the order on the way (R19).
fn fold(events: &[Value]) -> Value {
    assert_eq!(events[0]["type"], "message_start");
    let mut message = events[0]["message"].clone();
    assert_eq!(message["content"], json!([]));
    let mut open: Option<(u64, String)> = None;
    let mut is_ended = false;
    for event in &events[1..] {
        let next = message["content"].as_array().unwrap().len() as u64;
        assert!(!is_ended);
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!((&open, event["index"].as_u64()), (&None, Some(next)));
                open = Some((next, String::new()));
                message["content"].as_array_mut().unwrap().push(event["content_block"].clone());
            }
            "content_block_delta" => {
                let (index, json) = open.as_mut().unwrap();
                assert_eq!(event["index"].as_u64(), Some(*index));
                let block = &mut message["content"][*index as usize];
                let delta = &event["delta"];
                let (field, kind) = match delta["type"].as_str().unwrap() {
                    "text_delta" => ("text", "text"),
                    "thinking_delta" => ("thinking", "thinking"),
                    "signature_delta" => ("signature", "thinking"),
                    "input_json_delta" => {
                        assert_eq!(block["type"], "tool_use");
                        json.push_str(delta["partial_json"].as_str().unwrap());
                        continue;
                    }
                    other => panic!("{other}"),
                };
                assert_eq!(block["type"], kind);
                let text = format!("{}{}", block[field].as_str().unwrap(), delta[field].as_str().unwrap());
                block[field] = text.into();
            }
            "content_block_stop" => {
                let (index, json) = open.take().unwrap();
                assert_eq!(event["index"].as_u64(), Some(index));
                if let Some(input) =
                    serde_json::from_str(&json).ok().or_else(|| crate::json::whole_part(&json))
                {
                    message["content"][index as usize]["input"] = input;
                }
            }
            "message_delta" => {
                assert_eq!(open, None, "a block stays open");
                for field in ["stop_reason", "stop_sequence"] {
                    message[field] = event["delta"][field].clone();
                }
                message["usage"] = event["usage"].clone();
            }
            "message_stop" => is_ended = true,
            other => panic!("{other}"),
        }
    }
    assert!(is_ended);
    message
}

fn stream(pieces: &[Owned], finish: &Finish<'_>, usage: openai::Usage) -> Vec<Value> {
    let mut out = BytesMut::new();
    let mut writer = EventWriter::new("msg_1", "tiny \"m\"");
    writer.start(&mut out, openai::Usage::new(7, 0, 4));
    for piece in pieces {
        writer.push(&mut out, piece.piece());
    }
    writer.finish(&mut out, finish, usage);
    // What comes after the end is not written.
    let len = out.len();
    writer.push(&mut out, Piece::Text("late"));
    writer.finish(&mut out, finish, usage);
    writer.fail(&mut out, &Error::engine("late"));
    assert_eq!(out.len(), len);
    events(&out)
}

fn unary(pieces: &[Owned], finish: &Finish<'_>, usage: openai::Usage) -> Value {
    let mut body = Body::new("msg_1", "tiny \"m\"");
    for piece in pieces {
        body.push(piece.piece());
    }
    serde_json::to_value(body.finish(finish, usage)).unwrap()
}

fn any_finish() -> impl Strategy<Value = (FinishReason, Option<String>)> {
    let reason = prop::sample::select(vec![
        FinishReason::Stop,
        FinishReason::Length,
        FinishReason::ToolCalls,
        FinishReason::ContentFilter,
    ]);
    (reason, prop::option::of(any::<String>()))
}

proptest! {
    #[test]
    fn r13_r19_any_pieces_make_an_orderly_stream_that_folds_to_the_unary_answer(
        pieces in any_pieces(),
        (reason, stop) in any_finish(),
    ) {
        let finish = Finish { reason, stop: stop.as_deref() };
        let usage = openai::Usage::new(7, 5, 4);
        prop_assert_eq!(fold(&stream(&pieces, &finish, usage)), unary(&pieces, &finish, usage));
    }

    #[test]
    fn r06_a_failed_stream_ends_with_one_error_event(pieces in any_pieces(), text in any::<String>()) {
        let mut out = BytesMut::new();
        let mut writer = EventWriter::new("msg_1", "m");
        for piece in &pieces {
            writer.push(&mut out, piece.piece());
        }
        let error = Error::engine(format!("{text}\r\n\r\nevent: x\ndata: fake\n\n"));
        writer.fail(&mut out, &error);
        writer.push(&mut out, Piece::Text("late"));
        let events = events(&out);
        let (last, before) = events.split_last().unwrap();
        prop_assert_eq!(&last["type"], "error");
        prop_assert_eq!(&last["error"]["type"], "api_error");
        prop_assert_eq!(last["error"]["message"].as_str(), Some(error.message()));
        let count = |kind: &str| before.iter().filter(|event| event["type"] == kind).count();
        prop_assert_eq!(count("content_block_start"), count("content_block_stop"));
        prop_assert_eq!(count("error"), 0);
    }
}

#[test]
fn r19_the_reported_case_has_the_official_events() {
    let owned = [
        Owned::Reasoning("hm".into()),
        Owned::Text("ok".into()),
        Owned::Start("a".into()),
        Owned::Arguments("{\"p\":".into()),
        Owned::Arguments("1}".into()),
        Owned::Text("\n".into()),
        Owned::Start("b".into()),
        Owned::Arguments("{}".into()),
    ];
    let finish = Finish::new(FinishReason::ToolCalls);
    let events: Vec<Value> = stream(&owned, &finish, openai::Usage::new(7, 5, 4))
        .into_iter()
        .filter(|event| event["type"] != "ping")
        .collect();
    let start = |index: u32, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let delta =
        |index: u32, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let stop = |index: u32| json!({"type": "content_block_stop", "index": index});
    let tool = |name: &str| json!({"type": "tool_use", "id": name, "name": name, "input": {}});
    let arguments = |text: &str| json!({"type": "input_json_delta", "partial_json": text});
    let usage = |output: u32| json!({"input_tokens": 3, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4, "output_tokens": output});
    let expected = [
        json!({"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant",
            "model": "tiny \"m\"", "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage(0)}}),
        start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
        delta(0, json!({"type": "thinking_delta", "thinking": "hm"})),
        delta(0, json!({"type": "signature_delta", "signature": "unsigned"})),
        stop(0),
        start(1, json!({"type": "text", "text": ""})),
        delta(1, json!({"type": "text_delta", "text": "ok"})),
        stop(1),
        start(2, tool("a")),
        delta(2, arguments("{\"p\":")),
        delta(2, arguments("1}")),
        stop(2),
        start(3, json!({"type": "text", "text": ""})),
        delta(3, json!({"type": "text_delta", "text": "\n"})),
        stop(3),
        start(4, tool("b")),
        delta(4, arguments("{}")),
        stop(4),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null}, "usage": usage(5)}),
        json!({"type": "message_stop"}),
    ];
    assert_eq!(events, expected);
}

#[test]
fn a_call_that_was_cut_off_keeps_what_is_whole_of_it() {
    let pieces = [Owned::Start("f".into()), Owned::Arguments("{\"city\":\"Oslo\",\"da".into())];
    let message = unary(&pieces, &Finish::new(FinishReason::Length), openai::Usage::default());
    assert_eq!(
        message["content"],
        json!([{"type": "tool_use", "id": "f", "name": "f", "input": {"city": "Oslo"}}])
    );
    assert_eq!(message["stop_reason"], "max_tokens");
}

#[test]
fn reasons_have_anthropics_names() {
    for (reason, stop, expected) in [
        (FinishReason::Stop, None, "end_turn"),
        (FinishReason::Stop, Some("END"), "stop_sequence"),
        (FinishReason::Length, None, "max_tokens"),
        (FinishReason::ToolCalls, None, "tool_use"),
        (FinishReason::ContentFilter, None, "refusal"),
    ] {
        let message = unary(&[], &Finish { reason, stop }, openai::Usage::default());
        assert_eq!(message["stop_reason"], expected);
        assert_eq!(message["stop_sequence"].as_str(), stop);
    }
}

#[test]
fn errors_have_anthropics_shape() {
    use dynamo_types::Class;
    for (error, kind) in [
        (Error::invalid("x"), "invalid_request_error"),
        (Error::client(Class::Unauthorized, "x"), "authentication_error"),
        (Error::not_found("x"), "not_found_error"),
        (Error::client(Class::TooLarge, "x"), "request_too_large"),
        (Error::client(Class::NotImplemented, "x"), "invalid_request_error"),
        (Error::overloaded("x"), "overloaded_error"),
        (Error::overloaded("x").with_code("rate_limit_exceeded"), "rate_limit_error"),
        (Error::timeout("x"), "timeout_error"),
        (Error::unavailable("x"), "api_error"),
        (Error::internal("secret"), "api_error"),
    ] {
        let body: Value = serde_json::from_slice(&error_body(&error)).unwrap();
        assert_eq!(body, json!({"type": "error", "error": {"type": kind, "message": error.message()}}));
    }
}
