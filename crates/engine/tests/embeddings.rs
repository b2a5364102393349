//! Embeddings of the default model against llama.cpp's (made by `scripts/reference-embeddings.py`).
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use dynamo_engine::{Core, KvOptions, Llama, Options, Weights};
use dynamo_types::{Delta, DeltaSink, Error, Request, Task};
use serde::Deserialize;
use std::sync::{Arc, Mutex};

/// Our distance (one minus the cosine) from the exact vector, in units of llama.cpp's own on the quantised file.
const RELATIVE_TOLERANCE: f64 = 2.0;
/// Below this, distances are those of the six digits that are stored.
const LEAST_DISTANCE: f64 = 1e-4;

#[derive(Deserialize)]
struct Reference {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    tokens: Vec<u32>,
    vector: Vec<f32>,
    shipped_cosine: f64,
}

struct Sink(Arc<Mutex<Delta>>);

impl DeltaSink for Sink {
    fn push(&mut self, delta: Delta) {
        self.0.lock().unwrap().merge(delta);
    }

    fn fail(&mut self, error: Error) {
        panic!("{error}");
    }

    fn is_cancelled(&self) -> bool {
        false
    }
}

fn request(tokens: &[u32]) -> Arc<Request> {
    Arc::new(Request {
        id: "r".into(),
        model: "m".into(),
        tokens: tokens.into(),
        resumed: 0,
        task: Task::Embed,
        sampling: Default::default(),
        stopping: Default::default(),
        guide: None,
        thinking: None,
        output: Default::default(),
        routing: Default::default(),
        trace: None,
    })
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

#[test]
fn embeddings_are_those_of_llama_cpp() {
    let files = dynamo_model_files::open(&dynamo_model_files::testing::model_path()).unwrap();
    let weights = Weights::load(&files, &mut |_, _| {}).unwrap();
    let model = Llama::new(weights, KvOptions { block_size: 16, total_blocks: 128 }, 2).unwrap();
    let mut options = Options::default();
    options.scheduler.total_blocks = 128;
    // Cuts the long prompt, and puts the short ones into the same steps.
    options.scheduler.max_num_batched_tokens = 100;
    let mut core = Core::new(model, options);
    let reference: Reference = serde_json::from_str(include_str!("data/embeddings.json")).unwrap();
    assert!(reference.cases.len() >= 6);
    let answers: Vec<_> = reference
        .cases
        .iter()
        .map(|case| {
            let answer = Arc::new(Mutex::new(Delta::default()));
            core.submit(request(&case.tokens), Box::new(Sink(Arc::clone(&answer)))).unwrap();
            answer
        })
        .collect();
    while core.has_work() {
        core.step();
    }
    let vectors: Vec<Vec<f32>> =
        answers.iter().map(|answer| answer.lock().unwrap().embedding.clone().expect("a vector")).collect();
    for (case, vector) in reference.cases.iter().zip(&vectors) {
        assert!((cosine(vector, vector) - 1.0).abs() < 1e-6, "length 1");
        let distance = 1.0 - cosine(vector, &case.vector);
        let theirs = (1.0 - case.shipped_cosine).max(LEAST_DISTANCE);
        eprintln!("{:.40?}: distance {distance:.6}, llama.cpp {:.6}", case.text, 1.0 - case.shipped_cosine);
        assert!(distance < RELATIVE_TOLERANCE * theirs, "{:?}: {distance} for {theirs}", case.text);
    }
    let near = |a: usize, b: usize| cosine(&vectors[a], &vectors[b]);
    assert!(near(1, 2) > near(1, 3) && near(1, 2) > near(1, 4), "a cat on a mat is a feline on a rug");
}
