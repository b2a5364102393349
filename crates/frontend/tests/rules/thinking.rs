//! Limits of thinking: what the engine is asked to hold, and what clients read of an answer that is held.

use crate::client::Reply;
use crate::harness::{Behaviour, Ending, Harness, Worker, ask, card};
use crate::said::{CONVERSATIONS, said, tools};
use dynamo_types::FinishReason::Stop;
use dynamo_types::{ChatTemplate, Delta, Request, Spelling, ThinkingLimit, ThinkingMeter};
use serde_json::{Value, json};
use std::sync::Arc;

const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}{% endfor %}";

/// Says `text`, a token for each byte, as an engine does that holds to limits.
fn holds(text: &str) -> Behaviour {
    let text = text.as_bytes().to_vec();
    let spelling = Arc::new(Spelling::new(256, |token, bytes| bytes.push(token as u8)));
    Arc::new(move |request| {
        let mut meter = ThinkingMeter::new(&Arc::new(request.clone()), &spelling);
        let (mut deltas, mut said) = (Vec::new(), text.iter().map(|&byte| u32::from(byte)));
        while let Some(token) = meter.as_ref().and_then(ThinkingMeter::due).or_else(|| said.next()) {
            meter.iter_mut().for_each(|meter| meter.take(token));
            deltas.push(Delta { tokens: vec![token], ..Delta::default() });
        }
        Ok((deltas, Ending::Finish(Stop)))
    })
}

async fn model(
    harness: &Harness,
    reasoning: Option<&str>,
    limits: bool,
    template: &str,
    text: &str,
) -> Worker {
    let mut card = card("m", &[]);
    card.chat_template = Some(ChatTemplate { source: template.into() });
    card.reasoning_parser = reasoning.map(Into::into);
    card.tool_parser = Some("hermes".into());
    card.limits_thinking = limits;
    harness.worker(1, card, holds(text)).await
}

async fn post(harness: &Harness, route: &str, stream: bool, fields: &Value) -> Reply {
    let reply = harness.post(route, &ask(route, stream, "x", fields.clone())).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply
}

fn limit(worker: &Worker) -> Option<ThinkingLimit> {
    let request: Arc<Request> = worker.requests().pop().unwrap();
    request.thinking.clone()
}

/// All ways to say it, and how many tokens that is. None: the template is told, and nobody else has a use for it.
fn wishes(route: &str) -> Vec<(Value, u32, Option<&'static str>)> {
    let budget = json!({"thinking": {"type": "enabled", "budget_tokens": 7}, "chat_template_kwargs": {"thinking": true}});
    let mut wishes = vec![
        (json!({"nvext": {"max_thinking_tokens": 7}}), 7, Some("nvext.max_thinking_tokens")),
        (json!({"nvext": {"max_thinking_tokens": 0}}), 0, None),
    ];
    match route {
        "/v1/chat/completions" => wishes.extend([
            (budget, 7, Some("thinking.budget_tokens")),
            (json!({"thinking": {"type": "disabled"}}), 0, None),
            (
                json!({"thinking_token_budget": 8, "nvext": {"max_thinking_tokens": 9}}),
                8,
                Some("thinking_token_budget"),
            ),
            (
                json!({"chat_template_kwargs": {"thinking_budget": 7}}),
                7,
                Some("chat_template_kwargs.thinking_budget"),
            ),
            (json!({"reasoning_effort": "low"}), 1024, Some("reasoning_effort")),
            (json!({"reasoning_effort": "none"}), 0, None),
            (json!({"reasoning_effort": "high", "thinking_token_budget": 9}), 9, Some("reasoning_effort")),
        ]),
        "/v1/messages" => wishes.extend([
            (budget, 7, Some("thinking.budget_tokens")),
            (json!({"output_config": {"effort": "medium"}}), 8192, Some("output_config.effort")),
        ]),
        _ => wishes.push((json!({"reasoning": {"effort": "minimal"}}), 512, Some("reasoning.effort"))),
    }
    wishes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thinking_is_as_long_as_the_client_allows() {
    let harness = Harness::new().await;
    // The characters are of three tokens, so a limit of 7 or 8 falls into one.
    let thought = "考えて考えて".repeat(400);
    let text = format!("<think>{thought}</think>Oslo");
    let worker = model(&harness, Some("qwen3"), true, TEMPLATE, &text).await;
    for route in CONVERSATIONS {
        for (fields, tokens, _) in wishes(route) {
            for stream in [false, true] {
                let reply = post(&harness, route, stream, &fields).await;
                let ignored = reply.header("x-dynamo-ignored-fields").unwrap_or_default();
                assert!(!ignored.contains("budget") && !ignored.contains("effort"), "{fields}: {ignored}");
                let said = said(route, &reply);
                let len = (tokens as usize).next_multiple_of(3).min(thought.len());
                assert_eq!(said.reasoning, thought[..len], "{route} {fields}");
                assert_eq!(said.content, format!("{}Oslo", &thought[len..]), "{route} {fields}");
                let limit = limit(&worker).unwrap();
                assert_eq!((limit.tokens, limit.is_open), (tokens, false), "{fields}");
            }
        }
        post(&harness, route, false, &json!({})).await;
        assert_eq!(limit(&worker), None);
    }
    harness.balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r10_limits_that_nobody_holds_are_named() {
    for (reasoning, limits) in [(None, true), (Some("qwen3"), false)] {
        let harness = Harness::new().await;
        let worker = model(&harness, reasoning, limits, TEMPLATE, "Oslo").await;
        for route in CONVERSATIONS {
            for (fields, tokens, named) in wishes(route) {
                let reply = post(&harness, route, false, &fields).await;
                let ignored = reply.header("x-dynamo-ignored-fields").unwrap_or_default();
                assert!(named.is_none_or(|named| ignored.contains(named)), "{fields}: {ignored}");
                assert!(tokens > 0 || ignored.is_empty(), "{fields}: {ignored}");
                assert_eq!(limit(&worker), None);
            }
        }
    }
    // A text has no reasoning that would be told apart.
    let harness = Harness::new().await;
    let worker = model(&harness, Some("qwen3"), true, TEMPLATE, "Oslo").await;
    let reply = post(&harness, "/v1/completions", false, &json!({"nvext": {"max_thinking_tokens": 7}})).await;
    assert_eq!(reply.header("x-dynamo-ignored-fields"), Some("nvext.max_thinking_tokens"));
    assert_eq!(limit(&worker), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_that_hears_of_it_decides_about_efforts_but_not_about_budgets() {
    let template = "{{ reasoning_effort }}{% if enable_thinking %}{% endif %}{{ thinking_budget }}x";
    let harness = Harness::new().await;
    let worker = model(&harness, Some("qwen3"), true, template, "Oslo").await;
    for (fields, tokens) in [
        (json!({"reasoning_effort": "low"}), None),
        (json!({"reasoning_effort": "none"}), None),
        (json!({"thinking": {"type": "disabled"}}), None),
        (json!({"chat_template_kwargs": {"thinking_budget": -1}}), None),
        (json!({"chat_template_kwargs": {"thinking_budget": 6}}), Some(6)),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 5}}), Some(5)),
        // The prompt is not the template's then.
        (json!({"reasoning_effort": "low", "nvext": {"token_data": [120]}}), Some(1024)),
    ] {
        let reply = post(&harness, "/v1/chat/completions", false, &fields).await;
        assert_eq!(reply.header("x-dynamo-ignored-fields"), None, "{fields}");
        assert_eq!(limit(&worker).map(|limit| limit.tokens), tokens, "{fields}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engine_is_told_the_familys_markers() {
    let fields = json!({"nvext": {"max_thinking_tokens": 7}, "tools": tools("/v1/chat/completions", &["f"])});
    let tokens = |texts: &[&str]| -> Vec<Vec<u32>> {
        texts.iter().map(|text| text.bytes().map(u32::from).collect()).collect()
    };
    for (family, template, is_open, ends) in [
        ("deepseek_r1", TEMPLATE, true, ["</think>"; 2]),
        ("qwen3", "{{ messages[0].content }}<think>\n", true, ["</think>"; 2]),
        ("qwen3", "{{ messages[0].content }}<think>\n</think>\n", false, ["</think>"; 2]),
        (
            "gpt_oss",
            TEMPLATE,
            false,
            ["<|end|><|start|>assistant", "<|end|><|start|>assistant<|channel|>final<|message|>"],
        ),
    ] {
        let harness = Harness::new().await;
        let worker = model(&harness, Some(family), true, template, "Oslo").await;
        post(&harness, "/v1/chat/completions", false, &fields).await;
        let limit = limit(&worker).unwrap();
        assert_eq!((limit.is_open, limit.ends), (is_open, tokens(&ends)), "{family}");
        assert_eq!(limit.calls.iter().map(|call| &**call).collect::<Vec<_>>(), ["<tool_call>"]);
    }
}
