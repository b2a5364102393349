//! The default model against llama.cpp: stored tokens and log-probabilities (made by `scripts/reference-tokens.py`).
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use dynamo_blocks::BlockId;
use dynamo_engine::model::{Logits, Model, Segment};
use dynamo_engine::{KvOptions, Llama, Weights};
use serde::Deserialize;

/// Greatest difference of a log-probability from the exact one (f32 activations). llama.cpp on the same quantised file,
/// whose activations are quantised as ours are, is off by up to 0.4.
const LOGPROB_TOLERANCE: f64 = 0.4;

/// Tokens less likely than this are not compared: far down the tail the errors grow.
const LEAST_LOGPROB: f64 = -8.0;

/// Our root mean square error, in units of llama.cpp's own.
const RELATIVE_TOLERANCE: f64 = 1.25;

#[derive(Deserialize)]
struct Reference {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    /// Token, exact log-probability, and what llama.cpp makes of it on the quantised file.
    first: Vec<(u32, f64, f64)>,
}

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).expect("a vocabulary");
    best.0 as u32
}

fn logprob(logits: &[f32], token: u32) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::MIN, f32::max));
    let sum: f64 = logits.iter().map(|value| (f64::from(*value) - largest).exp()).sum();
    f64::from(logits[token as usize]) - largest - sum.ln()
}

#[test]
fn greedy_tokens_and_logprobs_are_those_of_llama_cpp() {
    let files = dynamo_model_files::open(&dynamo_model_files::testing::model_path()).unwrap();
    let weights = Weights::load(&files, &mut |_, _| {}).unwrap();
    let mut model = Llama::new(weights, KvOptions { block_size: 16, total_blocks: 64 }, 1).unwrap();
    let blocks: Vec<BlockId> = (0..64).map(BlockId).collect();
    let reference: Reference = serde_json::from_str(include_str!("data/reference.json")).unwrap();
    assert!(reference.cases.len() >= 6);
    let mut failures = Vec::new();
    let (mut ours, mut theirs) = (0.0, 0.0);
    for case in &reference.cases {
        let mut logits = Vec::new();
        let mut tokens = case.prompt.clone();
        let mut start = 0;
        let mut greedy = Vec::new();
        while greedy.len() < case.greedy.len() {
            let segment = Segment { tokens: &tokens[start..], start, blocks: &blocks, logits: Logits::Last };
            model.forward(&[segment], &mut logits).unwrap();
            if greedy.is_empty() {
                for (token, exact, shipped) in case.first.iter().filter(|entry| entry.1 > LEAST_LOGPROB) {
                    let found = logprob(&logits, *token);
                    if (found - exact).abs() > LOGPROB_TOLERANCE {
                        failures.push(format!("{:?}: token {token}: {found} for {exact}", case.text));
                    }
                    ours += (found - exact).powi(2);
                    theirs += (shipped - exact).powi(2);
                }
            }
            start = tokens.len();
            greedy.push(argmax(&logits));
            tokens.extend(greedy.last());
        }
        if greedy != case.greedy {
            failures.push(format!("{:?}: {greedy:?} for {:?}", case.text, case.greedy));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let ratio = f64::sqrt(ours / theirs);
    assert!(ratio < RELATIVE_TOLERANCE, "squared errors {ours} and {theirs} (llama.cpp), ratio {ratio}");
    eprintln!("error relative to llama.cpp's: {ratio:.2}");
}
