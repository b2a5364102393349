use super::*;
use crate::Options;
use crate::pieces::Fold;
use crate::pieces::tests::{Owned, any_pieces};
use crate::responses::{Body, Request};
use crate::sse;
use dynamo_types::FinishReason;
use proptest::prelude::*;
use serde_json::Value;

fn settings() -> Arc<Settings> {
    let body = br#"{"model": "m", "input": "hi", "temperature": 0.5, "metadata": {"a": "b"}, "tools": [
        {"type": "function", "name": "f", "parameters": {"type": "object", "additionalProperties": false}, "strict": true}]}"#;
    Request::parse(body, &Options::default()).unwrap().request.settings
}

/// All events; the stream has to end with `[DONE]`, and the numbers have to be without a gap.
fn events(out: &BytesMut) -> Vec<Value> {
    let mut reader = sse::Reader::default();
    reader.push(out).unwrap();
    let mut all: Vec<sse::Event> = std::iter::from_fn(|| reader.next_event()).collect();
    assert_eq!(all.pop().unwrap().data, "[DONE]");
    all.iter()
        .enumerate()
        .map(|(number, event)| {
            let data: Value = serde_json::from_str(&event.data).unwrap();
            assert_eq!(event.event.as_deref(), data["type"].as_str());
            assert_eq!(data["sequence_number"].as_u64(), Some(number as u64));
            data
        })
        .collect()
}

/// What a client makes of a stream that adds things up by itself. Asserts the order on the way.
fn fold(events: &[Value]) -> Vec<Value> {
    let mut output: Vec<Value> = Vec::new();
    let mut open: Option<String> = None;
    for event in events {
        let kind = event["type"].as_str().unwrap();
        if kind == "response.output_item.added" {
            assert_eq!(open, None, "an item is added inside another");
            assert_eq!(event["output_index"].as_u64(), Some(output.len() as u64));
            assert_eq!(event["item"]["status"], "in_progress");
            open = event["item"]["id"].as_str().map(str::to_owned);
            output.push(event["item"].clone());
            continue;
        }
        let last = output.len() as u64 - 1;
        assert_eq!(event["output_index"].as_u64(), Some(last));
        let item = output.last_mut().unwrap();
        if kind == "response.output_item.done" {
            assert_eq!(event["item"]["id"].as_str(), open.take().as_deref());
            item["status"] = event["item"]["status"].clone();
            assert_eq!(&event["item"], item, "the end of an item is what was shown of it");
            continue;
        }
        assert_eq!(event["item_id"].as_str(), open.as_deref());
        let (place, of) = match kind {
            "response.content_part.added" => {
                assert_eq!(event["content_index"], 0);
                item["content"].as_array_mut().unwrap().push(event["part"].clone());
                continue;
            }
            "response.content_part.done" => {
                assert_eq!(item["content"][0], event["part"]);
                continue;
            }
            "response.output_text.delta" | "response.output_text.done" => ("/content/0/text", "output_text"),
            "response.reasoning_text.delta" | "response.reasoning_text.done" => {
                ("/content/0/text", "reasoning_text")
            }
            "response.function_call_arguments.delta" | "response.function_call_arguments.done" => {
                ("/arguments", "function_call")
            }
            other => panic!("{other}"),
        };
        assert!(item["type"] == of || item["content"][0]["type"] == of, "{kind}");
        let text = item.pointer_mut(place).unwrap();
        if kind.ends_with(".delta") {
            *text = format!("{}{}", text.as_str().unwrap(), event["delta"].as_str().unwrap()).into();
        } else {
            let whole = if of == "function_call" { &event["arguments"] } else { &event["text"] };
            assert_eq!(text, whole);
        }
    }
    assert_eq!(open, None, "an item stays open");
    output
}

fn writer() -> EventWriter {
    EventWriter::new("resp_1", 17, "m", settings())
}

fn unary(pieces: &[Owned], finish: &Finish<'_>, usage: openai::Usage) -> Value {
    let mut body = Body::new("resp_1", 17, "m", settings());
    for piece in pieces {
        body.push(piece.piece());
    }
    serde_json::to_value(body.finish(finish, usage)).unwrap()
}

proptest! {
    #[test]
    fn r13_any_pieces_make_an_orderly_stream_that_folds_to_the_unary_answer(
        pieces in any_pieces(),
        reason in prop::sample::select(vec![FinishReason::Stop, FinishReason::Length, FinishReason::ToolCalls, FinishReason::ContentFilter]),
    ) {
        let (mut writer, mut out) = (writer(), BytesMut::new());
        for piece in &pieces {
            writer.push(&mut out, piece.piece());
        }
        let (finish, usage) = (Finish::new(reason), openai::Usage::new(7, 5, 4));
        writer.finish(&mut out, &finish, usage);
        let len = out.len();
        writer.push(&mut out, Piece::Text("late"));
        writer.fail(&mut out, &Error::engine("late"));
        prop_assert_eq!(out.len(), len);

        let events = events(&out);
        let [created, in_progress, items @ .., last] = events.as_slice() else { panic!("{events:?}") };
        prop_assert_eq!(&created["type"], "response.created");
        prop_assert_eq!(&in_progress["type"], "response.in_progress");
        for begun in [created, in_progress] {
            prop_assert_eq!(&begun["response"]["status"], "in_progress");
            prop_assert_eq!(&begun["response"]["output"], &json!([]));
        }
        let status = if finish.is_cut() { "incomplete" } else { "completed" };
        prop_assert_eq!(last["type"].clone(), format!("response.{status}"));
        prop_assert_eq!(&last["response"]["status"], status);
        let unary = unary(&pieces, &finish, usage);
        prop_assert_eq!(&last["response"], &unary);
        prop_assert_eq!(&json!(fold(items)), &unary["output"]);
    }

    #[test]
    fn r06_a_failed_stream_says_so_and_ends(pieces in any_pieces(), text in any::<String>()) {
        let (mut writer, mut out) = (writer(), BytesMut::new());
        for piece in &pieces {
            writer.push(&mut out, piece.piece());
        }
        let error = Error::engine(format!("{text}\r\n\r\nevent: x\ndata: fake\n\n"));
        writer.fail(&mut out, &error);
        let events = events(&out);
        let (last, before) = events.split_last().unwrap();
        if pieces.is_empty() {
            prop_assert_eq!(&last["type"], "error");
            prop_assert_eq!(last["message"].as_str(), Some(error.message()));
        } else {
            prop_assert_eq!(&last["type"], "response.failed");
            prop_assert_eq!(&last["response"]["status"], "failed");
            prop_assert_eq!(&last["response"]["error"], &json!({"code": "server_error", "message": error.message()}));
            prop_assert_eq!(&json!(fold(&before[2..])), &last["response"]["output"]);
        }
    }
}

#[test]
fn events_have_the_official_shape() {
    let (mut writer, mut out) = (writer(), BytesMut::new());
    for piece in [
        Piece::Reasoning("hm"),
        Piece::Text("o\n"),
        Piece::Text("k"),
        Piece::ToolStart { id: "call_1", name: "f" },
        Piece::ToolArguments("{}"),
        Piece::ToolEnd,
    ] {
        writer.push(&mut out, piece);
    }
    writer.finish(&mut out, &Finish::new(FinishReason::ToolCalls), openai::Usage::new(7, 5, 4));
    let mut events = events(&out);
    for event in &mut events {
        event.as_object_mut().unwrap().remove("sequence_number");
    }
    let added = |index: u32, item: &Value| json!({"type": "response.output_item.added", "output_index": index, "item": item});
    let done = |index: u32, item: &Value| json!({"type": "response.output_item.done", "output_index": index, "item": item});
    let part = |event: &str, id: &str, index: u32, part: Value| json!({"type": format!("response.content_part.{event}"), "item_id": id, "output_index": index, "content_index": 0, "part": part});
    let thought = |text: &str| json!({"type": "reasoning_text", "text": text});
    let said = |text: &str| json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []});
    let reasoning = |status: &str, content: Value| json!({"type": "reasoning", "id": "rs_1_0", "summary": [], "content": content, "encrypted_content": null, "status": status});
    let message = |status: &str, content: Value| json!({"type": "message", "id": "msg_1_1", "status": status, "role": "assistant", "content": content});
    let call = |status: &str, arguments: &str| json!({"type": "function_call", "id": "fc_1_2", "status": status, "call_id": "call_1", "name": "f", "arguments": arguments});
    let output = [
        reasoning("completed", json!([thought("hm")])),
        message("completed", json!([said("o\nk")])),
        call("completed", "{}"),
    ];
    let expected = [
        added(0, &reasoning("in_progress", json!([]))),
        part("added", "rs_1_0", 0, thought("")),
        json!({"type": "response.reasoning_text.delta", "item_id": "rs_1_0", "output_index": 0, "content_index": 0, "delta": "hm"}),
        json!({"type": "response.reasoning_text.done", "item_id": "rs_1_0", "output_index": 0, "content_index": 0, "text": "hm"}),
        part("done", "rs_1_0", 0, thought("hm")),
        done(0, &output[0]),
        added(1, &message("in_progress", json!([]))),
        part("added", "msg_1_1", 1, said("")),
        json!({"type": "response.output_text.delta", "item_id": "msg_1_1", "output_index": 1, "content_index": 0, "logprobs": [], "delta": "o\n"}),
        json!({"type": "response.output_text.delta", "item_id": "msg_1_1", "output_index": 1, "content_index": 0, "logprobs": [], "delta": "k"}),
        json!({"type": "response.output_text.done", "item_id": "msg_1_1", "output_index": 1, "content_index": 0, "logprobs": [], "text": "o\nk"}),
        part("done", "msg_1_1", 1, said("o\nk")),
        done(1, &output[1]),
        added(2, &call("in_progress", "")),
        json!({"type": "response.function_call_arguments.delta", "item_id": "fc_1_2", "output_index": 2, "delta": "{}"}),
        json!({"type": "response.function_call_arguments.done", "item_id": "fc_1_2", "output_index": 2, "name": "f", "arguments": "{}"}),
        done(2, &output[2]),
    ];
    assert_eq!(events[2..events.len() - 1], expected);
    let response = &events[events.len() - 1]["response"];
    assert_eq!(response["output"], json!(output));
    assert_eq!(
        response["usage"],
        json!({"input_tokens": 7, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0}, "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 12})
    );
    assert_eq!(
        response["tools"],
        json!([{"type": "function", "name": "f", "description": null, "parameters": {"type": "object", "additionalProperties": false}, "strict": true}])
    );
    assert_eq!((&response["temperature"], &response["metadata"]), (&json!(0.5), &json!({"a": "b"})));
}
