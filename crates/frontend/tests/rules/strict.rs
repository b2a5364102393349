//! `strict: true` where the model may call by itself: what the engine is held to, by the family's own format.

use crate::harness::{Ending, Harness, Worker, all_pieces, ask, card};
use crate::said::{CONVERSATIONS, said};
use crate::split::{same, speaks};
use dynamo_types::FinishReason::Stop;
use dynamo_types::{BoundCalls, ChatTemplate, Frame, Guide};
use serde_json::{Value, json};

const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}{% endfor %}";
const TEXT: &str = "Hm.\n<tool_call>\n{\"name\": \"a\\\"b\", \"arguments\": {\"x\": 1}}\n</tool_call>";

async fn model(harness: &Harness, tool: &str, reasoning: Option<&str>, guided: bool) -> Worker {
    let mut card = card("m", &[]);
    card.guided = guided;
    card.chat_template = Some(ChatTemplate { source: TEMPLATE.into() });
    card.tool_parser = Some(tool.into());
    card.reasoning_parser = reasoning.map(Into::into);
    harness.worker(1, card, speaks(TEXT, Ending::Finish(Stop))).await
}

fn exact() -> Value {
    json!({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": false})
}

/// A strict tool of an odd name, and one whose schema no compiler has to know.
fn tools(route: &str, strict: bool) -> Value {
    let tool = |name: &str, schema: Value, strict: bool| match route {
        "/v1/messages" => json!({"name": name, "input_schema": schema, "strict": strict}),
        "/v1/responses" => json!({"type": "function", "name": name, "parameters": schema, "strict": strict}),
        _ => json!({"type": "function", "function": {"name": name, "parameters": schema, "strict": strict}}),
    };
    json!([tool("a\"b", exact(), strict), tool("free", json!({"type": "object", "not": {}}), false)])
}

async fn frame(harness: &Harness, worker: &Worker, route: &str, fields: Value) -> Option<Frame> {
    for stream in [false, true] {
        let reply = harness.post(route, &ask(route, stream, "x", fields.clone())).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    worker.requests().pop().unwrap().guide.clone().map(Guide::into_frame)
}

fn heads(bound: &BoundCalls) -> Vec<&str> {
    bound.calls.iter().map(|call| &*call.head).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_strict_tools_are_held_to_their_schemas() {
    let harness = Harness::new().await;
    let worker = model(&harness, "hermes", Some("qwen3"), true).await;
    for route in CONVERSATIONS {
        let fields = json!({"tools": tools(route, true)});
        let frame = frame(&harness, &worker, route, fields.clone()).await.unwrap();
        let bound = frame.bound.unwrap();
        assert_eq!((frame.answer, &*frame.field, frame.calls.len()), (Guide::Text, "tools", 0), "{route}");
        assert_eq!(frame.reasoning.unwrap().closers.len(), 1);
        assert_eq!(
            (&*bound.opener, &*bound.close, &*bound.calls[0].tail),
            ("<tool_call>", "</tool_call>", "}")
        );
        let names = ["{\"name\": \"a\\\"b\", \"arguments\": ", "{\"name\": \"free\", \"arguments\": "];
        assert_eq!(heads(&bound), names, "{route}");
        let schemas: Vec<Value> =
            bound.calls.iter().map(|call| serde_json::from_str(&call.schema).unwrap()).collect();
        assert_eq!(schemas, [exact(), json!({"type": "object"})], "{route}");
        // And it is read as the call it is.
        let reply = harness.post(route, &ask(route, true, "x", fields)).await;
        assert_eq!(same(&said(route, &reply)).2, [("a\"b".to_owned(), json!({"x": 1}))], "{route}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_held_to_where_nothing_asks_for_it_or_could_be() {
    let harness = Harness::new().await;
    let worker = model(&harness, "hermes", None, true).await;
    for route in CONVERSATIONS {
        let none = if route == "/v1/messages" { json!({"type": "none"}) } else { json!("none") };
        for fields in [
            json!({"tools": tools(route, false)}),
            json!({"tools": tools(route, true), "tool_choice": none}),
            json!({}),
        ] {
            assert_eq!(frame(&harness, &worker, route, fields.clone()).await, None, "{route} {fields}");
        }
    }
    // A family whose arguments are not JSON, and an engine without grammars: checked beforehand, and no more.
    for (tool, guided) in [("qwen3_coder", true), ("pythonic", true), ("hermes", false)] {
        let harness = Harness::new().await;
        let worker = model(&harness, tool, None, guided).await;
        for route in CONVERSATIONS {
            let fields = json!({"tools": tools(route, true)});
            assert_eq!(frame(&harness, &worker, route, fields).await, None, "{tool} {route}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_form_of_the_text_stands_beside_strict_calls() {
    let harness = Harness::new().await;
    let worker = model(&harness, "hermes", None, true).await;
    let route = "/v1/chat/completions";
    let fields = json!({"tools": tools(route, true), "guided_json": exact()});
    let frame = frame(&harness, &worker, route, fields).await.unwrap();
    assert_eq!((&*frame.field, frame.calls.len()), ("guided_json", 0));
    assert!(matches!(frame.answer, Guide::JsonSchema(_)) && frame.bound.is_some());
    // Markers that would lead around the form may not be written.
    let harness = Harness::new().await;
    let mut card = card("m", &[b"x"]);
    card.guided = true;
    card.chat_template = Some(ChatTemplate { source: TEMPLATE.into() });
    card.tool_parser = Some("deepseek_v3_1".into());
    let worker = harness.worker(1, card, all_pieces(1, Ending::Finish(Stop))).await;
    let fields = json!({"tools": tools(route, true)});
    let bound = self::frame(&harness, &worker, route, fields).await.unwrap().bound.unwrap();
    assert_eq!(bound.others, vec!["<｜tool▁call▁begin｜>".into()]);
    assert_eq!(heads(&bound)[0], "<｜tool▁call▁begin｜>a\"b<｜tool▁sep｜>");
}
