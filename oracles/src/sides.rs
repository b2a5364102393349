//! Ours and theirs over one case, in one piece or character by character.

use crate::answer::Answer;
use crate::cases::{Case, Start, json, root};
use dynamo_parsers::tool_calling::ToolDefinition;
use dynamo_parsers::tool_calling::jail::{Annotated, JailedStream};
use dynamo_parsers::tool_calling::parsers::detect_and_parse_tool_call_with_recovery;
use dynamo_parsers::{ReasoningParser as _, ReasoningParserType};
use dynamo_protocols::types::{
    ChatChoiceStream, ChatCompletionMessageContent, ChatCompletionStreamResponseDelta,
    CreateChatCompletionStreamResponse, FinishReason, Role,
};
use dynamo_text::parsers as ours;
use futures::StreamExt;
use futures::executor::block_on;
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Read, or not: a family that a crate does not have, or an error or panic, as text.
pub type Outcome = Option<Result<Answer, String>>;

fn tools() -> Vec<Value> {
    json(&root().join("tools.json")).as_array().unwrap().clone()
}

fn pieces(text: &str, whole: bool) -> Vec<String> {
    if whole { vec![text.to_owned()] } else { text.chars().map(String::from).collect() }
}

fn guarded(run: impl FnOnce() -> Result<Answer, String>) -> Outcome {
    Some(catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err("it panicked".to_owned())))
}

pub fn ours(case: &Case, whole: bool) -> Answer {
    let options = ours::Options {
        tools: Arc::new(ours::Tools::new(&tools())),
        call_seed: 1,
        start: match case.start {
            Start::Default => ours::Start::Default,
            Start::Reasoning => ours::Start::Reasoning,
            Start::Content => ours::Start::Content,
        },
        ..ours::Options::default()
    };
    let mut splitter =
        ours::Splitter::new(case.reasoning.as_deref(), case.tool.as_deref(), &options).unwrap();
    let mut events = ours::Events::default();
    for piece in pieces(&case.text, whole) {
        splitter.push(&piece, &mut events);
    }
    splitter.finish(serde_json::from_value(Value::String(case.finish.clone())).unwrap(), &mut events);
    let message: ours::Message = events.drain().collect();
    let mut answer = Answer { content: message.content, reasoning: message.reasoning, calls: Vec::new() };
    for call in message.tool_calls {
        answer.call(call.name, &call.arguments);
    }
    answer
}

/// `dynamo-parsers`: reasoning first, tool calls in what it leaves.
pub fn dynamo(case: &Case, whole: bool) -> Outcome {
    const NO_TOOLS: [&str; 3] = ["deepseek_v41", "muse", "muse_glimmer"];
    const NO_REASONING: [&str; 4] = ["deepseek_v41", "muse", "muse_glimmer", "kimi_k2"];
    let lacks =
        |name: &Option<String>, list: &[&str]| name.as_deref().is_some_and(|name| list.contains(&name));
    if lacks(&case.tool, &NO_TOOLS) || lacks(&case.reasoning, &NO_REASONING) {
        return None;
    }
    guarded(|| {
        let mut answer = Answer::default();
        let mut text = case.text.clone();
        if let Some(name) = &case.reasoning {
            let mut parser = ReasoningParserType::get_reasoning_parser_from_name(name);
            match case.start {
                Start::Default => {}
                Start::Reasoning => parser.set_in_reasoning(true),
                Start::Content => parser.set_in_reasoning(false),
            }
            if whole {
                let result = parser.detect_and_parse_reasoning(&text, &[]);
                (answer.reasoning, text) = (result.reasoning_text, result.normal_text);
            } else {
                let mut rest = String::new();
                let mut results: Vec<_> = pieces(&text, false)
                    .iter()
                    .map(|piece| parser.parse_reasoning_streaming_incremental(piece, &[]))
                    .collect();
                results.push(parser.finish_reasoning_stream());
                for result in results {
                    answer.reasoning.push_str(&result.reasoning_text);
                    rest.push_str(&result.normal_text);
                }
                text = rest;
            }
        }
        let Some(tool) = &case.tool else {
            answer.content = text;
            return Ok(answer);
        };
        let definitions: Vec<ToolDefinition> = tools()
            .iter()
            .map(|tool| ToolDefinition {
                name: tool["function"]["name"].as_str().unwrap().to_owned(),
                parameters: Some(tool["function"]["parameters"].clone()),
                strict: None,
            })
            .collect();
        if whole {
            let parsed =
                block_on(detect_and_parse_tool_call_with_recovery(&text, Some(tool), Some(&definitions)));
            let (calls, content) = parsed.map_err(|error| error.to_string())?;
            calls.into_iter().for_each(|call| answer.call(call.function.name, &call.function.arguments));
            answer.content = content.unwrap_or_default();
        } else {
            jailed(&mut answer, &pieces(&text, false), tool, definitions, &case.finish);
        }
        Ok(answer)
    })
}

fn chunk(
    content: Option<String>,
    finish_reason: Option<FinishReason>,
) -> Annotated<CreateChatCompletionStreamResponse> {
    #[expect(deprecated, reason = "a field that has to be given")]
    let delta = ChatCompletionStreamResponseDelta {
        role: Some(Role::Assistant),
        content: content.map(ChatCompletionMessageContent::Text),
        tool_calls: None,
        function_call: None,
        refusal: None,
        reasoning_content: None,
    };
    let data = CreateChatCompletionStreamResponse {
        id: "x".to_owned(),
        choices: vec![ChatChoiceStream { index: 0, delta, finish_reason, logprobs: None }],
        created: 0,
        model: "x".to_owned(),
        system_fingerprint: None,
        object: "chat.completion.chunk".to_owned(),
        usage: None,
        service_tier: None,
    };
    Annotated { data: Some(data), id: None, event: None, comment: None, error: None }
}

/// Their stream: held back from a call's start on, and then parsed at once.
fn jailed(
    answer: &mut Answer,
    pieces: &[String],
    tool: &str,
    definitions: Vec<ToolDefinition>,
    finish: &str,
) {
    let reason = if finish == "length" { FinishReason::Length } else { FinishReason::Stop };
    let mut chunks: Vec<_> = pieces.iter().map(|piece| chunk(Some(piece.clone()), None)).collect();
    chunks.push(chunk(None, Some(reason)));
    let jail = JailedStream::builder().tool_call_parser(tool).tool_definitions(definitions).build();
    let mut calls: Vec<(String, String)> = Vec::new();
    let out: Vec<_> = block_on(jail.apply(futures::stream::iter(chunks)).collect());
    for choice in out.into_iter().filter_map(|chunk| chunk.data).flat_map(|data| data.choices) {
        if let Some(ChatCompletionMessageContent::Text(text)) = choice.delta.content {
            answer.content.push_str(&text);
        }
        for call in choice.delta.tool_calls.into_iter().flatten() {
            let at = call.index as usize;
            calls.resize(calls.len().max(at + 1), Default::default());
            let function = call.function.as_ref();
            calls[at].0.push_str(function.and_then(|function| function.name.as_deref()).unwrap_or_default());
            calls[at]
                .1
                .push_str(function.and_then(|function| function.arguments.as_deref()).unwrap_or_default());
        }
    }
    calls.into_iter().for_each(|(name, arguments)| answer.call(name, &arguments));
}

/// Our names of families, and those of `tool-parser`.
const TOOL_NAMES: [(&str, &str); 17] = [
    ("deepseek_v3", "deepseek"),
    ("deepseek_v3_1", "deepseek31"),
    ("deepseek_v3_2", "deepseek32"),
    ("deepseek_v4", "deepseek_v4"),
    ("deepseek_v41", "deepseek_v41"),
    ("gemma4", "gemma4"),
    ("glm45", "glm45_moe"),
    ("hermes", "qwen"),
    ("inkling", "inkling"),
    ("kimi_k2", "kimik2"),
    ("kimi_k3", "kimi_k3"),
    ("llama3_json", "llama"),
    ("minimax_m2", "minimax_m2"),
    ("minimax_m3", "minimax_m3"),
    ("mistral", "mistral"),
    ("pythonic", "pythonic"),
    ("qwen3_coder", "qwen_coder"),
];
/// Our names of families, and those of `reasoning-parser`.
const REASONING_NAMES: [(&str, &str); 10] = [
    ("basic", "base"),
    ("deepseek_r1", "deepseek_r1"),
    ("deepseek_v4", "deepseek_v4"),
    ("deepseek_v41", "deepseek_v41"),
    ("gemma4", "gemma4"),
    ("inkling", "inkling"),
    ("kimi", "kimi"),
    ("kimi_k3", "kimi_k3"),
    ("minimax_m2", "minimax"),
    ("minimax_m3", "minimax_m3"),
];

fn renamed(name: &Option<String>, names: &[(&str, &'static str)]) -> Result<Option<&'static str>, ()> {
    match name {
        None => Ok(None),
        Some(name) => names.iter().find(|(our, _)| our == name).map(|(_, their)| Some(*their)).ok_or(()),
    }
}

/// `reasoning-parser` and `tool-parser`.
pub fn smg(case: &Case, whole: bool) -> Outcome {
    let reasoning = renamed(&case.reasoning, &REASONING_NAMES).ok()?;
    let tool = renamed(&case.tool, &TOOL_NAMES).ok()?;
    guarded(|| {
        let mut answer = Answer { content: case.text.clone(), ..Answer::default() };
        if let Some(name) = reasoning {
            reason(&mut answer, name, case.start, whole)?;
        }
        if let Some(name) = tool {
            block_on(call(&mut answer, name, whole))?;
        }
        Ok(answer)
    })
}

fn reason(answer: &mut Answer, name: &str, start: Start, whole: bool) -> Result<(), String> {
    let factory = reasoning_parser::ParserFactory::new();
    let mut parser = factory.registry().create_parser(name).ok_or("no such parser")?;
    if start == Start::Reasoning {
        parser.mark_reasoning_started();
        parser.mark_think_start_stripped();
    }
    let text = std::mem::take(&mut answer.content);
    let mut results = Vec::new();
    if whole {
        results.push(parser.detect_and_parse_reasoning(&text));
    } else {
        for piece in pieces(&text, false) {
            results.push(parser.parse_reasoning_streaming_incremental(&piece));
        }
        results.push(parser.flush());
    }
    for result in results {
        let result = result.map_err(|error| error.to_string())?;
        answer.content.push_str(&result.normal_text);
        answer.reasoning.push_str(&result.reasoning_text);
    }
    Ok(())
}

async fn call(answer: &mut Answer, name: &str, whole: bool) -> Result<(), String> {
    let factory = tool_parser::ParserFactory::new();
    let mut parser = factory.registry().create_parser(name).ok_or("no such parser")?;
    let definitions =
        serde_json::from_value::<Vec<_>>(Value::Array(tools())).map_err(|error| error.to_string())?;
    let text = std::mem::take(&mut answer.content);
    if whole {
        let parsed =
            parser.parse_complete_with_tools(&text, &definitions).await.map_err(|error| error.to_string())?;
        answer.content = parsed.0;
        parsed.1.into_iter().for_each(|call| answer.call(call.function.name, &call.function.arguments));
        return Ok(());
    }
    let mut calls: Vec<(String, String)> = Vec::new();
    let mut take = |items: Vec<(usize, Option<String>, String)>| {
        for (at, name, arguments) in items {
            calls.resize(calls.len().max(at + 1), Default::default());
            calls[at].0.push_str(&name.unwrap_or_default());
            calls[at].1.push_str(&arguments);
        }
    };
    for piece in pieces(&text, false) {
        let result =
            parser.parse_incremental(&piece, &definitions).await.map_err(|error| error.to_string())?;
        answer.content.push_str(&result.normal_text);
        take(result.calls.into_iter().map(|item| (item.tool_index, item.name, item.parameters)).collect());
    }
    let rest = parser.get_unstreamed_tool_args().unwrap_or_default();
    take(rest.into_iter().map(|item| (item.tool_index, item.name, item.parameters)).collect());
    answer.content.push_str(&parser.take_unstreamed_normal_text());
    calls.into_iter().for_each(|(name, arguments)| answer.call(name, &arguments));
    Ok(())
}
