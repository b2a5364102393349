//! Answers that have to be calls, or of a form: what the engine is held to, and what clients read of it, on every route.

use crate::client::Reply;
use crate::harness::{Ending, Harness, Worker, all_pieces, ask, card};
use crate::said::{CONVERSATIONS, Said, said, tools};
use crate::split::{same, speaks};
use dynamo_types::FinishReason::{Length, Stop};
use dynamo_types::{ChatTemplate, Frame, Guide, Request};
use serde_json::{Value, json};
use std::sync::Arc;

/// Ways to cut each text, for each API, streamed and not.
const CUTS: usize = 25;

const TEMPLATE: &str = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}";

/// A model `m` whose engine is guided, and says `text`.
async fn model(
    harness: &Harness,
    tool: Option<&str>,
    reasoning: Option<&str>,
    text: &str,
    ending: Ending,
) -> Worker {
    let mut card = card("m", &[]);
    card.guided = true;
    card.chat_template = Some(ChatTemplate { source: TEMPLATE.into() });
    card.tool_parser = tool.map(Into::into);
    card.reasoning_parser = reasoning.map(Into::into);
    harness.worker(1, card, speaks(text, ending)).await
}

/// The fields of a request for calls: of any tool, or of the named one; at most one, if it is `single`.
fn forced(route: &str, name: Option<&str>, single: bool) -> Value {
    let mut fields = json!({"tools": tools(route, &["get_weather", "f"])});
    fields["tool_choice"] = match (route, name) {
        ("/v1/messages", None) => json!({"type": "any"}),
        ("/v1/messages", Some(name)) => json!({"type": "tool", "name": name}),
        (_, None) => json!("required"),
        ("/v1/responses", Some(name)) => json!({"type": "function", "name": name}),
        (_, Some(name)) => json!({"type": "function", "function": {"name": name}}),
    };
    if single {
        match route {
            "/v1/messages" => fields["tool_choice"]["disable_parallel_tool_use"] = json!(true),
            _ => fields["parallel_tool_calls"] = json!(false),
        }
    }
    fields
}

async fn post(harness: &Harness, route: &str, stream: bool, fields: Value) -> Reply {
    harness.post(route, &ask(route, stream, "x", fields)).await
}

/// The frame that the engine got for the last request.
fn frame(worker: &Worker) -> Frame {
    let request: Arc<Request> = worker.requests().pop().unwrap();
    request.guide.clone().unwrap().into_frame()
}

fn schema(frame: &Frame) -> Value {
    let Guide::JsonSchema(text) = &frame.answer else { panic!("{frame:?}") };
    serde_json::from_str(text).unwrap()
}

fn calls(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|&(name, arguments)| (name.to_owned(), arguments.to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r13_forced_calls_are_read_the_same_whatever_the_route_and_the_cuts() {
    let list = "[{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Öslo <think>\"}},\n {\"name\":\"f\",\"parameters\":{}}]";
    let both = calls(&[("get_weather", "{\"city\": \"Öslo <think>\"}"), ("f", "{}")]);
    let arguments = "{\"city\": \"Oslo\", \"near\": [1, {\"a\": null}]}";
    let one = calls(&[("get_weather", arguments)]);
    for (name, single, reasoning, text, expected) in [
        (None, false, None, list.to_owned(), &both),
        (None, true, None, list.to_owned(), &both[..1].to_vec()),
        (None, false, Some("qwen3"), format!("<think>hm [{{\"name\": </think>\n\n{list}"), &both),
        (None, false, Some("qwen3"), list.to_owned(), &both),
        (Some("get_weather"), false, None, arguments.to_owned(), &one),
        (
            Some("get_weather"),
            false,
            Some("deepseek_r1"),
            format!("hm [{{\"name\": </think>{arguments}\n"),
            &one,
        ),
    ] {
        let harness = Harness::new().await;
        let _worker = model(&harness, Some("hermes"), reasoning, &text, Ending::Finish(Stop)).await;
        for case in 0..CUTS {
            for route in CONVERSATIONS {
                for stream in [false, true] {
                    let reply = post(&harness, route, stream, forced(route, name, single)).await;
                    let is_named = name.is_some() && route.contains("chat");
                    let expected = Said {
                        reasoning: if text.contains("hm") { "hm [{\"name\": ".into() } else { String::new() },
                        calls: expected.clone(),
                        finish: if is_named { "stop" } else { "tool_calls" }.into(),
                        ..Said::default()
                    };
                    let heard = said(route, &reply);
                    assert_eq!(same(&heard), same(&expected), "{route} {stream} {case}: {}", reply.text());
                }
            }
        }
        harness.balanced().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r15_a_cut_forced_call_leaves_no_markup_and_stays_cut() {
    for (name, text, told) in [
        (None, "[{\"name\": \"get_w", vec![]),
        (None, "[{\"name\": \"f\", \"parameters\": {}}, {\"na", calls(&[("f", "{}")])),
        (None, "[{\"name\": \"f\", \"parameters\": {\"a\": \"b", calls(&[("f", "{\"a\": \"b")])),
        (Some("f"), "{\"a\": \"b", calls(&[("f", "{\"a\": \"b")])),
        (Some("f"), " ", vec![]),
    ] {
        let harness = Harness::new().await;
        let _worker = model(&harness, None, None, text, Ending::Finish(Length)).await;
        let expected = Said { calls: told, finish: "length".into(), ..Said::default() };
        for route in CONVERSATIONS {
            for stream in [false, true] {
                let reply = post(&harness, route, stream, forced(route, name, false)).await;
                assert_eq!(same(&said(route, &reply)), same(&expected), "{route} {stream}: {}", reply.text());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r16_forced_arguments_flow_as_they_arrive() {
    use crate::client::Client;
    for (name, pieces) in [
        (None, [b"[{\"name\": \"f\", \"parameters\": {\"a\": \"".as_slice(), b"Oslo and"]),
        (Some("f"), [b"{\"a\": \"", b"Oslo and"]),
    ] {
        let harness = Harness::new().await;
        let mut card = card("m", &pieces);
        card.guided = true;
        let _worker = harness.worker(1, card, all_pieces(2, Ending::Hang)).await;
        for route in CONVERSATIONS {
            let mut client = Client::connect(harness.address).await;
            let body = ask(route, true, "x", forced(route, name, false)).to_string();
            client.send("POST", route, &[], body.as_bytes()).await;
            client.read_until("Oslo and").await;
        }
        harness.balanced().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engine_is_held_to_calls_of_the_tools_that_may_be_called() {
    let harness = Harness::new().await;
    let worker = model(&harness, Some("hermes"), Some("qwen3"), "[]", Ending::Finish(Stop)).await;
    for route in CONVERSATIONS {
        for single in [false, true] {
            post(&harness, route, false, forced(route, None, single)).await;
            let frame = frame(&worker);
            let schema = schema(&frame);
            let named = |index: usize| schema["items"]["anyOf"][index]["properties"]["name"]["const"].clone();
            assert_eq!((named(0), named(1)), (json!("get_weather"), json!("f")), "{schema}");
            assert_eq!((&schema["minItems"], schema["maxItems"] == 1), (&json!(1), single), "{schema}");
            let reasoning = frame.reasoning.unwrap();
            assert_eq!((reasoning.is_open, &*reasoning.closers[0]), (false, "</think>"), "{route}");
            assert_eq!((&*frame.field, frame.calls.len()), ("tools", 0), "calls are forced to be JSON");
        }
        post(&harness, route, false, forced(route, Some("f"), false)).await;
        assert_eq!(schema(&frame(&worker)), json!({"type": "object"}));
    }
    let allowed =
        json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]});
    let fields = json!({"tools": tools("/v1/responses", &["get_weather", "f"]), "tool_choice": allowed});
    let reply = post(&harness, "/v1/responses", false, fields).await.json();
    assert_eq!((&reply["tool_choice"], reply["tools"].as_array().unwrap().len()), (&allowed, 2), "{reply}");
    assert_eq!(schema(&frame(&worker))["items"]["anyOf"].as_array().unwrap().len(), 1);
    assert_eq!(prompt(&worker), "[f]x");
}

fn prompt(worker: &Worker) -> String {
    let tokens = worker.requests().pop().unwrap().tokens.to_vec();
    String::from_utf8(tokens.iter().map(|&token| token as u8).collect()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_engine_cannot_be_held_to_is_501_and_can_be_counted() {
    let harness = Harness::new().await;
    let worker = harness.script(&[b"ok"], Ending::Finish(Stop)).await;
    let form = json!({"type": "json_schema", "name": "a", "schema": {"type": "object"}});
    for (route, fields, param) in [
        ("/v1/chat/completions", forced("", None, false), "tool_choice"),
        ("/v1/messages", forced("/v1/messages", None, false), "tool_choice"),
        ("/v1/messages", json!({"output_config": {"format": form}}), "output_config.format"),
        ("/v1/messages", json!({"output_format": form}), "output_format"),
        ("/v1/responses", forced("/v1/responses", Some("f"), false), "tool_choice"),
        ("/v1/responses", json!({"text": {"format": form}}), "text.format"),
        ("/v1/chat/completions", json!({"guided_json": {}}), "guided_json"),
    ] {
        for stream in [false, true] {
            let reply = post(&harness, route, stream, fields.clone()).await;
            assert_eq!(reply.status, 501, "{}", reply.text());
            assert!(reply.error()["message"].as_str().unwrap().contains(param), "{}", reply.text());
        }
        let count = match route {
            "/v1/messages" => "/v1/messages/count_tokens",
            "/v1/responses" => "/v1/responses/input_tokens",
            _ => continue,
        };
        let mut body = ask(count, false, "x", fields);
        body.as_object_mut().unwrap().remove("stream");
        assert_eq!(harness.post(count, &body).await.status, 200);
    }
    assert_eq!(worker.requests().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_most_one_call_where_the_client_wants_no_more() {
    let harness = Harness::new().await;
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call><tool_call>{\"name\": \"get_weather\", \"arguments\": {}}</tool_call>";
    let _worker = model(&harness, Some("hermes"), None, text, Ending::Finish(Stop)).await;
    let expected = Said { calls: calls(&[("f", "{}")]), finish: "tool_calls".into(), ..Said::default() };
    for _ in 0..CUTS {
        for route in CONVERSATIONS {
            for stream in [false, true] {
                let mut fields = forced(route, None, true);
                match route {
                    "/v1/messages" => fields["tool_choice"]["type"] = json!("auto"),
                    _ => fields["tool_choice"] = json!("auto"),
                }
                let reply = post(&harness, route, stream, fields).await;
                assert_eq!(said(route, &reply), expected, "{route} {stream}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_tools_are_offered_and_no_calls_are_read_where_the_choice_is_none() {
    let harness = Harness::new().await;
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let worker = model(&harness, Some("hermes"), None, text, Ending::Finish(Stop)).await;
    let expected = Said { content: text.into(), finish: "stop".into(), ..Said::default() };
    for route in CONVERSATIONS {
        for stream in [false, true] {
            let mut fields = forced(route, None, false);
            fields["tool_choice"] =
                if route.contains("messages") { json!({"type": "none"}) } else { json!("none") };
            let reply = post(&harness, route, stream, fields).await;
            assert_eq!(said(route, &reply), expected, "{route} {stream}");
            assert_eq!(prompt(&worker), "x");
        }
    }
}

/// A form is that of the text: a model that may call can still do so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_form_is_asked_for_under_its_own_name_and_leaves_room_for_calls() {
    let harness = Harness::new().await;
    let worker = model(&harness, Some("hermes"), None, "{}", Ending::Finish(Stop)).await;
    let form = json!({"type": "json_schema", "name": "a", "schema": {"type": "object", "title": "T"}});
    for (route, fields, field) in [
        ("/v1/messages", json!({"output_config": {"format": form}}), "output_config.format"),
        ("/v1/messages", json!({"output_format": form}), "output_format"),
        ("/v1/responses", json!({"text": {"format": form}}), "text.format"),
        ("/v1/chat/completions", json!({"guided_json": form["schema"]}), "guided_json"),
    ] {
        let mut with_tools = fields.clone();
        with_tools["tools"] = tools(route, &["f"]);
        for (fields, markers) in [(fields, vec![]), (with_tools, vec!["<tool_call>"])] {
            let reply = post(&harness, route, false, fields).await;
            assert_eq!(said(route, &reply).content, "{}");
            if route == "/v1/responses" {
                assert_eq!(reply.json()["text"]["format"], form);
            }
            let frame = frame(&worker);
            assert_eq!((&*frame.field, &schema(&frame)), (field, &form["schema"]));
            assert_eq!(frame.calls.iter().map(|marker| &**marker).collect::<Vec<_>>(), markers);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r10_wishes_that_the_template_cannot_hear_are_named() {
    let harness = Harness::new().await;
    let _deaf = model(&harness, None, None, "ok", Ending::Finish(Stop)).await;
    let mut hears = card("hears", &[b"ok"]);
    let source = "{{ reasoning_effort }}{% if enable_thinking %}!{% endif %}{{ messages[0].content }}";
    hears.chat_template = Some(ChatTemplate { source: source.into() });
    let hears = harness.worker(2, hears, all_pieces(1, Ending::Finish(Stop))).await;
    for (route, fields, named, heard) in [
        ("/v1/chat/completions", json!({"reasoning_effort": "low"}), Some("reasoning_effort"), "lowx"),
        ("/v1/chat/completions", json!({"reasoning_effort": "none"}), None, "nonex"),
        ("/v1/chat/completions", json!({"thinking": {"type": "enabled"}}), Some("thinking"), "!x"),
        ("/v1/chat/completions", json!({"thinking": {"type": "disabled"}}), None, "x"),
        ("/v1/messages", json!({"output_config": {"effort": "high"}}), Some("output_config.effort"), "highx"),
        ("/v1/messages", json!({"thinking": {"type": "enabled"}}), Some("thinking"), "!x"),
        ("/v1/responses", json!({"reasoning": {"effort": "low"}}), Some("reasoning.effort"), "lowx"),
    ] {
        let reply = post(&harness, route, false, fields.clone()).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.header("x-dynamo-ignored-fields"), named, "{fields}");
        let mut to_hearer = ask(route, false, "x", fields);
        to_hearer["model"] = json!("hears");
        let reply = harness.post(route, &to_hearer).await;
        assert_eq!(reply.header("x-dynamo-ignored-fields"), None);
        assert_eq!(prompt(&hears), heard, "{to_hearer}");
    }
}
