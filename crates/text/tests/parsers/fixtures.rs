//! Every family does what its fixtures say.

use crate::support::{Case, all_cases, cases, finish, parse};
use dynamo_text::parsers::{Message, reasoning_names, tool_names};
use serde_json::Value;
use std::collections::BTreeMap;

/// Differences between a message and what a case expects.
fn differences(case: &Case, message: &Message) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut compare = |what: &str, is: &dyn std::fmt::Debug, want: &dyn std::fmt::Debug| {
        let (is, want) = (format!("{is:?}"), format!("{want:?}"));
        if is != want {
            wrong.push(format!("{}: {what} is {is}, want {want}", case.title));
        }
    };
    compare("content", &Some(message.content.as_str()), &case.expected["content"].as_str());
    compare("reasoning", &Some(message.reasoning.as_str()), &case.expected["reasoning"].as_str());
    let calls = case.expected["tool_calls"].as_array().unwrap();
    compare("number of calls", &message.tool_calls.len(), &calls.len());
    for (call, want) in message.tool_calls.iter().zip(calls) {
        compare("name", &Some(call.name.as_str()), &want["name"].as_str());
        if let Some(text) = want["arguments_text"].as_str() {
            compare("cut arguments", &call.arguments.as_str(), &text);
            compare("completeness", &call.is_complete, &false);
        } else {
            compare(
                "arguments",
                &serde_json::from_str::<Value>(&call.arguments).ok(),
                &Some(&want["arguments"]),
            );
            compare("completeness", &call.is_complete, &true);
        }
        if let Some(id) = want["id"].as_str() {
            compare("id", &call.id.as_str(), &id);
        } else {
            compare("kind of id", &call.id.starts_with("call-"), &true);
        }
    }
    wrong
}

#[test]
fn r13_every_fixture_is_read_as_written() {
    let mut wrong = Vec::new();
    for case in all_cases() {
        let (message, reason) = parse(&case.setup, [case.text.as_str()]);
        wrong.extend(differences(&case, &message));
        if case.expected.get("finish_reason").is_some_and(|want| finish(want) != reason) {
            wrong.push(format!("{}: finish reason {reason:?}", case.title));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_name_has_at_least_four_fixtures() {
    for (kind, names) in
        [("tool", tool_names().collect::<Vec<_>>()), ("reasoning", reasoning_names().collect())]
    {
        let mut counts = BTreeMap::new();
        for case in cases(kind) {
            let name = case.title.split('/').nth(1).unwrap().to_owned();
            *counts.entry(name).or_insert(0) += 1;
        }
        for name in &names {
            assert!(counts.get(*name).is_some_and(|&count| count >= 4), "{kind} {name}: {counts:?}");
        }
        assert_eq!(counts.len(), names.len());
    }
}

/// `spec/behaviour.md` 1.9.
#[test]
fn every_documented_name_is_known() {
    let tools = "deepseek_v3 deepseek_v3_1 deepseek_v3_2 deepseek_v4 deepseek-v4 deepseekv4 deepseek_v41 default \
        gemma4 gemma-4 glm45 glm47 harmony hermes inkling jamba kimi_k2 kimi_k25 kimi_k3 kimi-k3 llama3_json \
        minimax_m2 minimax_m3 minimax-m3 minimax_m3_nom minimax-m3-nom mistral muse muse_glimmer nemotron_deci \
        nemotron_nano phi4 pythonic qwen25 qwen3 qwen3_coder";
    let reasoning = "basic deepseek_r1 deepseek_v3 deepseek_v3_1 deepseek_v3_2 deepseek_v4 deepseek-v4 deepseekv4 \
        deepseek_v41 gemma4 gemma-4 glm45 glm47 gpt_oss granite inkling kimi kimi_k2 kimi_k25 kimi_k3 kimi-k3 \
        minimax_append_think minimax_m2 minimax_m3 minimax-m3 mistral muse muse_glimmer nemotron3 nemotron_deci \
        nemotron_nano nemotron_v3 qwen3 qwen3_coder step3";
    for (known, documented) in
        [(tool_names().collect::<Vec<_>>(), tools), (reasoning_names().collect::<Vec<_>>(), reasoning)]
    {
        let mut known: Vec<_> = known;
        let mut documented: Vec<_> = documented.split_whitespace().collect();
        known.sort_unstable();
        documented.sort_unstable();
        assert_eq!(known, documented);
    }
}
