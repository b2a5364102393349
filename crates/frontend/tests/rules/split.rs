//! R13-R19: text, reasoning and tool calls, apart and in order, over all APIs for conversations.

use crate::client::Client;
use crate::harness::{Behaviour, Ending, Harness, Worker, all_pieces, ask, card};
use crate::said::{CONVERSATIONS, Said, message_of, said, tools};
use dynamo_types::FinishReason::{Length, Stop};
use dynamo_types::{ChatTemplate, Delta, TokenLogprob, draw};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Ways to cut each text, for each API, streamed and not.
const CUTS: usize = 40;

const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>\
                        {% endif %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";

/// Says `text`, a token for each byte, cut into deltas in a new way for every request.
pub(crate) fn speaks(text: &str, ending: Ending) -> Behaviour {
    let (bytes, calls) = (text.as_bytes().to_vec(), AtomicU64::new(0));
    Arc::new(move |request| {
        let case = calls.fetch_add(1, Ordering::Relaxed);
        // Whole, byte by byte, and anything in between.
        let longest = [bytes.len(), 1, 3, 12, 60][(case % 5) as usize];
        let (mut deltas, mut rest) = (Vec::new(), bytes.as_slice());
        while !rest.is_empty() {
            let drawn =
                if case % 5 == 0 { longest } else { 1 + draw::index(case, rest.len() as u64, longest) };
            let (piece, left) = rest.split_at(drawn.min(rest.len()));
            let tokens: Vec<u32> = piece.iter().map(|&byte| u32::from(byte)).collect();
            let logprob = |&token: &u32| TokenLogprob { token, logprob: -0.5, top: vec![] };
            let logprobs =
                if request.output.logprobs.is_some() { tokens.iter().map(logprob).collect() } else { vec![] };
            deltas.push(Delta { tokens, logprobs, ..Delta::default() });
            rest = left;
        }
        Ok((deltas, ending.clone()))
    })
}

/// A model `m` that says `text` and has these parsers.
async fn model(
    harness: &Harness,
    tool: Option<&str>,
    reasoning: Option<&str>,
    text: &str,
    ending: Ending,
) -> Worker {
    let mut card = card("m", &[]);
    card.chat_template = Some(ChatTemplate { source: TEMPLATE.into() });
    card.tool_parser = tool.map(Into::into);
    card.reasoning_parser = reasoning.map(Into::into);
    harness.worker(1, card, speaks(text, ending)).await
}

/// Asks each API, streamed and not, with and without log-probabilities, `CUTS` times; all have to read the same.
async fn all_read(tool: Option<&str>, reasoning: Option<&str>, text: &str, ending: Ending, expected: &Said) {
    let harness = Harness::new().await;
    let _worker = model(&harness, tool, reasoning, text, ending).await;
    for case in 0..CUTS {
        for route in CONVERSATIONS {
            for stream in [false, true] {
                let mut fields = json!({"tools": tools(route, &["get_weather", "f", "a", "b"])});
                let logprobs = route.contains("chat") && case % 2 == 0;
                if logprobs {
                    fields["logprobs"] = json!(true);
                }
                let reply = harness.post(route, &ask(route, stream, "x", fields)).await;
                let said = said(route, &reply);
                // Whitespace around calls is nobody's, and Anthropic's arguments are values, not text.
                let said = Said { content: said.content.trim().into(), ..said };
                assert_eq!(same(&said), same(expected), "{route} {stream} {case}: {}", reply.text());
                if logprobs {
                    assert_eq!(logprob_count(&reply, stream), text.len(), "{}", reply.text());
                }
            }
        }
    }
    harness.balanced().await;
}

pub(crate) fn same(said: &Said) -> (String, String, Vec<(String, Value)>, String) {
    let calls = said.calls.iter().map(|(name, arguments)| {
        (name.clone(), serde_json::from_str(arguments).unwrap_or_else(|_| json!({})))
    });
    (said.content.clone(), said.reasoning.clone(), calls.collect(), said.finish.clone())
}

fn logprob_count(reply: &crate::client::Reply, stream: bool) -> usize {
    let chunks = if stream { reply.chunks() } else { vec![reply.json()] };
    let lists = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array());
    lists.map(Vec::len).sum()
}

fn call(name: &str, arguments: &str) -> (String, String) {
    (name.into(), arguments.into())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r13_streamed_and_unary_answers_agree_on_every_route() {
    let text = "<tool_call>\n{\"name\":\"get_weather\",\"arguments\":{\"city\":\"Oslo\"}}\n</tool_call>";
    let expected = Said {
        calls: vec![call("get_weather", "{\"city\":\"Oslo\"}")],
        finish: "tool_calls".into(),
        ..Said::default()
    };
    all_read(Some("hermes"), None, text, Ending::Finish(Stop), &expected).await;
    // With reasoning and text around, and characters of several bytes.
    let text = format!("<think>höre 😀</think>Gut. {text}");
    let expected = Said { content: "Gut.".into(), reasoning: "höre 😀".into(), ..expected };
    all_read(Some("hermes"), Some("qwen3"), &text, Ending::Finish(Stop), &expected).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r13_without_tools_nothing_is_a_call() {
    let text = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    let harness = Harness::new().await;
    let _worker = model(&harness, Some("hermes"), None, text, Ending::Finish(Stop)).await;
    let expected = Said { content: text.into(), finish: "stop".into(), ..Said::default() };
    for route in CONVERSATIONS {
        for stream in [false, true] {
            let reply = harness.post(route, &ask(route, stream, "x", json!({}))).await;
            assert_eq!(said(route, &reply), expected);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r14_adjacent_calls_are_all_calls() {
    let one = |number: u32| {
        format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {{\"p\": {number}}}}}\n</tool_call>")
    };
    let text = [one(0), one(1), one(2)].join("\n");
    let calls = (0..3).map(|number| call("f", &format!("{{\"p\": {number}}}"))).collect();
    let expected = Said { calls, finish: "tool_calls".into(), ..Said::default() };
    all_read(Some("hermes"), None, &text, Ending::Finish(Stop), &expected).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r15_a_cut_call_leaves_no_markup_and_stays_cut() {
    let expected = Said { content: "Sure.".into(), finish: "length".into(), ..Said::default() };
    let text = "Sure. <tool_call>{\"name\":\"f\",\"argu";
    all_read(Some("hermes"), None, text, Ending::Finish(Length), &expected).await;
    // A whole call and the beginning of another: what was told stays, and it is still a length.
    let text = "<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call><tool_call>{\"name\":\"b\"";
    let expected = Said { calls: vec![call("a", "{}")], finish: "length".into(), ..Said::default() };
    all_read(Some("hermes"), None, text, Ending::Finish(Length), &expected).await;
    // Cut inside the arguments: streamed and unary tell the same beginning.
    let text = "<tool_call>{\"name\":\"a\",\"arguments\":{\"city\": \"Os";
    let expected =
        Said { calls: vec![call("a", "{\"city\": \"Os")], finish: "length".into(), ..Said::default() };
    all_read(Some("hermes"), None, text, Ending::Finish(Length), &expected).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r16_arguments_flow_as_they_arrive() {
    let harness = Harness::new().await;
    let pieces: [&[u8]; 2] = [b"<tool_call>{\"name\":\"f\",\"arguments\":{\"city\": \"", b"Oslo and"];
    let mut card = card("m", &pieces);
    card.tool_parser = Some("hermes".into());
    let _worker = harness.worker(1, card, all_pieces(2, Ending::Hang)).await;
    for route in CONVERSATIONS {
        let mut client = Client::connect(harness.address).await;
        let body = ask(route, true, "x", json!({"tools": tools(route, &["f"])})).to_string();
        client.send("POST", route, &[], body.as_bytes()).await;
        client.read_until("Oslo and").await;
    }
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r17_split_markers_are_markers() {
    let expected =
        Said { content: "bd".into(), reasoning: "ac".into(), finish: "stop".into(), ..Said::default() };
    all_read(None, Some("qwen3"), "<think>a</think>b<think>c</think>d", Ending::Finish(Stop), &expected)
        .await;
}

/// What was answered goes back to the model as it was generated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r18_reasoning_is_split_once_and_kept() {
    let harness = Harness::new().await;
    let answer = "<think>mull</think>done";
    let worker = model(&harness, None, Some("qwen3"), answer, Ending::Finish(Stop)).await;
    let expected =
        Said { content: "done".into(), reasoning: "mull".into(), finish: "stop".into(), ..Said::default() };
    for route in CONVERSATIONS {
        let first = ask(route, false, "one", json!({}));
        let reply = harness.post(route, &first).await;
        assert_eq!(said(route, &reply), expected, "{route}");
        let (reply, question) = (reply.json(), json!({"role": "user", "content": "two"}));
        let mut second = first.clone();
        let turns = |answers: Vec<Value>| {
            let first = json!({"role": "user", "content": "one"});
            Value::Array([vec![first], answers, vec![question.clone()]].concat())
        };
        match route {
            "/v1/messages" => {
                let answer = json!({"role": "assistant", "content": reply["content"]});
                second["messages"] = turns(vec![answer]);
            }
            "/v1/responses" => second["input"] = turns(reply["output"].as_array().unwrap().clone()),
            _ => second["messages"] = turns(vec![reply["choices"][0]["message"].clone()]),
        }
        let reply = harness.post(route, &second).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let requests = worker.requests();
        let [.., before, after] = requests.as_slice() else { panic!("two requests") };
        let mut told = before.tokens.to_vec();
        told.extend(answer.bytes().map(u32::from));
        assert!(after.tokens.starts_with(&told), "{route}: {:?}", text_of(&after.tokens));
    }
}

fn text_of(tokens: &[u32]) -> String {
    String::from_utf8_lossy(&tokens.iter().map(|&token| token as u8).collect::<Vec<_>>()).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r19_blocks_come_in_order() {
    let harness = Harness::new().await;
    let text = "ok<tool_call>{\"name\":\"a\",\"arguments\":{\"p\":1}}</tool_call>and\
                <tool_call>{\"name\":\"b\",\"arguments\":{}}</tool_call>";
    let _worker = model(&harness, Some("hermes"), None, text, Ending::Finish(Stop)).await;
    for _ in 0..CUTS {
        let route = "/v1/messages";
        let mut blocks = Vec::new();
        for stream in [false, true] {
            let body = ask(route, stream, "x", json!({"tools": tools(route, &["a", "b"])}));
            let reply = harness.post(route, &body).await;
            let message = if stream { message_of(&reply) } else { reply.json() };
            assert_eq!(message["stop_reason"], "tool_use");
            let mut content = message["content"].clone();
            for block in content.as_array_mut().unwrap() {
                block.as_object_mut().unwrap().remove("id");
            }
            blocks.push(content);
        }
        let expected = json!([
            {"type": "text", "text": "ok"},
            {"type": "tool_use", "name": "a", "input": {"p": 1}},
            {"type": "text", "text": "and"},
            {"type": "tool_use", "name": "b", "input": {}},
        ]);
        assert_eq!(blocks, [expected.clone(), expected]);
    }
}
