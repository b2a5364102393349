use super::*;
use crate::openai::logprobs::TopLogprob;
use crate::sse;
use proptest::prelude::*;
use serde_json::{Value, json};

fn frames(out: &BytesMut) -> Vec<String> {
    let mut reader = sse::Reader::default();
    reader.push(out).unwrap();
    std::iter::from_fn(|| reader.next_event()).map(|event| event.data).collect()
}

fn one(write: impl FnOnce(&mut BytesMut)) -> Value {
    let mut out = BytesMut::new();
    write(&mut out);
    let frames = frames(&out);
    assert_eq!(frames.len(), 1, "{out:?}");
    serde_json::from_str(&frames[0]).unwrap()
}

fn chat() -> ChunkWriter {
    ChunkWriter::chat("chatcmpl-1", 17, "tiny \"model\"")
}

fn logprobs() -> Vec<TokenLogprob> {
    let top = vec![TopLogprob { token: "a".into(), bytes: b"a".to_vec(), logprob: f32::NEG_INFINITY }];
    vec![TokenLogprob { token: "b".into(), bytes: b"b".to_vec(), logprob: Some(-0.5), top, text_offset: 3 }]
}

#[test]
fn chat_chunks_have_the_official_shape() {
    let base = |choices: Value| json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 17, "model": "tiny \"model\"", "choices": choices});
    assert_eq!(
        one(|out| chat().role(out, 1, Extras::default())),
        base(
            json!([{"index": 1, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null}])
        )
    );
    assert_eq!(
        one(|out| chat().finish(out, 0, "", Extras::default(), FinishReason::Length)),
        base(json!([{"index": 0, "delta": {}, "logprobs": null, "finish_reason": "length"}]))
    );
    let logprobs = logprobs();
    let extras = Extras { logprobs: Some(&logprobs), usage: None, ..Extras::default() };
    assert_eq!(
        one(|out| chat().content(out, 12, "b\n", extras)),
        base(
            json!([{"index": 12, "delta": {"content": "b\n"}, "finish_reason": null, "logprobs": {"content": [
            {"token": "b", "bytes": [98], "logprob": -0.5, "top_logprobs": [
                {"token": "a", "bytes": [97], "logprob": -9999.0}]}], "refusal": null}}])
        )
    );
}

#[test]
fn completion_chunks_have_the_official_shape() {
    let writer = ChunkWriter::completion("cmpl-1", 17, "m");
    let logprobs = logprobs();
    let extras = Extras { logprobs: Some(&logprobs), usage: None, ..Extras::default() };
    assert_eq!(
        one(|out| writer.finish(out, 2, "b", extras, FinishReason::Stop)),
        json!({"id": "cmpl-1", "object": "text_completion", "created": 17, "model": "m", "choices": [
            {"index": 2, "text": "b", "finish_reason": "stop", "logprobs": {
                "tokens": ["b"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -9999.0}], "text_offset": [3]}}]})
    );
    let mut out = BytesMut::new();
    writer.role(&mut out, 0, Extras::default());
    assert!(out.is_empty());
}

#[test]
fn what_was_asked_for_besides_is_on_the_chunk() {
    let nvext = AnswerExtensions { completion_token_ids: Some(vec![1, 2]), ..AnswerExtensions::default() };
    let extras = Extras { nvext: Some(&nvext), ..Extras::default() };
    for writer in [chat(), ChunkWriter::completion("c", 1, "m").include_usage(true)] {
        let mut chunks = vec![one(|out| writer.content(out, 0, "a", extras))];
        chunks.push(one(|out| writer.finish(out, 0, "", extras, FinishReason::Stop)));
        for chunk in chunks {
            assert_eq!(chunk["nvext"], json!({"completion_token_ids": [1, 2]}));
        }
        assert_eq!(one(|out| writer.content(out, 0, "a", Extras::default())).get("nvext"), None);
    }
    assert_eq!(one(|out| chat().role(out, 0, extras))["nvext"]["completion_token_ids"], json!([1, 2]));
}

#[test]
fn an_annotation_is_an_event_with_a_comment() {
    let mut out = BytesMut::new();
    chat().annotation(&mut out, "request_id", &"a\"\nb");
    assert_eq!(&out[..], b"event: request_id\n: \"a\\\"\\nb\"\n\n");
    chat().done(&mut out);
    assert_eq!(frames(&out), ["[DONE]"], "readers that follow the standard see nothing of it");
}

#[test]
fn r05_usage_is_null_on_all_chunks_but_the_last() {
    for writer in [chat(), ChunkWriter::completion("c", 1, "m")] {
        for (include, expected) in [(false, None), (true, Some(Value::Null))] {
            let writer = writer.clone().include_usage(include);
            let mut out = BytesMut::new();
            writer.role(&mut out, 0, Extras::default());
            writer.content(&mut out, 0, "a", Extras::default());
            writer.content(&mut out, 11, "a", Extras::default());
            writer.finish(&mut out, 0, "", Extras::default(), FinishReason::Stop);
            for frame in frames(&out) {
                let value: Value = serde_json::from_str(&frame).unwrap();
                assert_eq!(value.get("usage").cloned(), expected);
            }
            let last = one(|out| writer.usage(out, &Usage::new(5, 3, 2)));
            assert_eq!(last["choices"], json!([]));
            assert_eq!(last["usage"], serde_json::to_value(Usage::new(5, 3, 2)).unwrap());
        }
        let extras = Extras { usage: Some(Usage::new(5, 1, 0)), ..Extras::default() };
        let chunk = one(|out| writer.content(out, 0, "a", extras));
        assert_eq!(chunk["usage"]["total_tokens"], 6);
    }
}

proptest! {
    #[test]
    fn r07_any_text_is_one_frame(text in any::<String>(), choice in 0u32..200, is_chat in any::<bool>()) {
        let writer = if is_chat { chat() } else { ChunkWriter::completion("c", 1, &text) };
        let chunk = one(|out| writer.content(out, choice, &text, Extras::default()));
        let choice_value = &chunk["choices"][0];
        prop_assert_eq!(choice_value["index"].as_u64(), Some(u64::from(choice)));
        let content = if is_chat { &choice_value["delta"]["content"] } else { &choice_value["text"] };
        prop_assert_eq!(content.as_str(), Some(text.as_str()));
    }

    #[test]
    fn r07_any_error_text_is_one_frame(text in any::<String>(), ends in prop::sample::select(vec!["", "\n", "\r", "\n\ndata: fake\r\n\r\n", "\u{0}", "\u{2028}"])) {
        let text = format!("{text}{ends}{text}");
        let error = Error::engine(text.as_str()).with_param(text.as_str()).with_code(text.as_str());
        let mut out = BytesMut::new();
        chat().error(&mut out, &error);
        chat().done(&mut out);
        let frames = frames(&out);
        prop_assert_eq!(frames.len(), 2);
        prop_assert_eq!(&frames[1], "[DONE]");
        let value: Value = serde_json::from_str(&frames[0]).unwrap();
        prop_assert_eq!(value["error"]["message"].as_str(), Some(text.as_str()));
    }

    #[test]
    fn the_short_way_writes_what_the_long_way_writes(text in any::<String>(), choice in 0u32..10) {
        for writer in [chat().include_usage(true), ChunkWriter::completion("c", 1, "m")] {
            let (mut short, mut long) = (BytesMut::new(), BytesMut::new());
            writer.content(&mut short, choice, &text, Extras::default());
            writer.full(&mut long, choice, &text, Extras::default(), None);
            prop_assert_eq!(short, long);
        }
    }
}

#[test]
fn r07_the_reported_case() {
    let error = Error::engine("line1\n\ndata: fake\r\nline3");
    let frame = one(|out| chat().error(out, &error));
    assert_eq!(
        frame,
        json!({"error": {"message": "line1\n\ndata: fake\r\nline3", "type": "server_error", "param": null, "code": "internal_error"}})
    );
}
