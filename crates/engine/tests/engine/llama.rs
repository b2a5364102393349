//! The same over real forward passes.

use crate::common::{Reader, finish, request, submit};
use dynamo_engine::core::{Core, Options};
use dynamo_engine::testing::tiny_weights;
use dynamo_engine::{KvOptions, Llama, Weights};
use dynamo_types::{Delta, Request, Sampling, Task};
use std::sync::Arc;

fn core(weights: &Arc<Weights>, scheduler: dynamo_scheduler::Options, threads: usize) -> Core<Llama> {
    let kv = KvOptions {
        block_size: scheduler.block_size as usize,
        total_blocks: scheduler.total_blocks as usize,
    };
    let model = Llama::new(Arc::clone(weights), kv, threads).unwrap();
    Core::new(model, Options { scheduler, ..Default::default() })
}

fn roomy() -> dynamo_scheduler::Options {
    dynamo_scheduler::Options {
        total_blocks: 64,
        max_num_batched_tokens: 512,
        context_length: 256,
        ..Default::default()
    }
}

fn alone(weights: &Arc<Weights>, request: &Request) -> Delta {
    let mut core = core(weights, roomy(), 1);
    let reader = submit(&mut core, request.clone());
    finish(&mut core);
    Delta { cached_tokens: None, ..reader.answer() }
}

/// Runs all at once, in two waves so that the second finds what the first left. Returns how many lost their blocks.
fn together(core: &mut Core<Llama>, requests: &[Request], expected: &[Delta]) -> u32 {
    let mut preempted = 0;
    for _ in 0..2 {
        let readers: Vec<Reader> = requests.iter().map(|request| submit(core, request.clone())).collect();
        preempted += finish(core);
        for (reader, expected) in readers.iter().zip(expected) {
            assert_eq!(&Delta { cached_tokens: None, ..reader.answer() }, expected);
        }
    }
    assert_eq!(core.load().active_blocks, 0);
    preempted
}

#[test]
fn answers_of_a_tiny_llama_do_not_depend_on_company() {
    let weights = tiny_weights(5).unwrap();
    let requests: Vec<Request> = (0..10u32)
        .flat_map(|i| {
            let shared = (0..(i % 3) * 17).map(|token| token * 7 % 300);
            let prompt: Vec<u32> = shared.chain((0..i + 1).map(|token| (token * 31 + i) % 300)).collect();
            let mut request = request(&prompt, 24);
            if i % 2 == 1 {
                request.sampling = Sampling { seed: i.into(), top_p: 0.9, ..Default::default() };
            }
            let embedded = Request { task: Task::Embed, ..request.clone() };
            std::iter::once(request).chain((i % 3 == 2).then_some(embedded))
        })
        .collect();
    let expected: Vec<_> = requests.iter().map(|request| alone(&weights, request)).collect();
    let mut preempted = 0;
    for (block_size, total_blocks, budget, prefix_caching, threads) in [
        (16, 64, 512, true, 1),
        (16, 9, 7, true, 2),
        (32, 5, 64, true, 1),
        (16, 8, 3, false, 2),
        (16, 7, 33, true, 1),
    ] {
        let options = dynamo_scheduler::Options {
            block_size,
            total_blocks,
            max_num_batched_tokens: budget,
            prefix_caching,
            ..roomy()
        };
        preempted += together(&mut core(&weights, options, threads), &requests, &expected);
    }
    assert!(preempted > 0, "some of the pools were meant to be too small");
}

/// Words to ids and back through the vocabulary alone: no tokenizer is needed for words that are one token each.
struct Words(serde_json::Map<String, serde_json::Value>);

impl Words {
    fn encode(&self, text: &str) -> Vec<u32> {
        let id = |piece: &str| self.0.get(piece).expect(piece);
        let first = text.split(' ').take(1).map(str::to_owned);
        let pieces = first.chain(text.split(' ').skip(1).map(|word| format!("Ġ{word}")));
        pieces.map(|piece| id(&piece).as_u64().unwrap() as u32).collect()
    }

    fn decode(&self, tokens: &[u32]) -> String {
        let piece = |token: &u32| {
            self.0
                .iter()
                .find(|(_, id)| id.as_u64() == Some((*token).into()))
                .map(|(piece, _)| piece.as_str())
        };
        tokens.iter().filter_map(piece).collect::<String>().replace('Ġ', " ")
    }
}

#[test]
fn answers_of_the_default_model_do_not_depend_on_company() {
    let files = dynamo_model_files::open(&dynamo_model_files::testing::model_path()).unwrap();
    let weights = Weights::load(&files, &mut |_, _| ()).unwrap();
    let tokenizer: serde_json::Value = serde_json::from_str(&files.tokenizer_json()).unwrap();
    let vocabulary = tokenizer["model"]["vocab"].as_object().expect("a vocabulary").clone();
    let words = Words(vocabulary);
    let requests: Vec<Request> = [
        "The capital of France is",
        "The capital of France is known for its food and its art . The capital of Italy is",
        "The capital of France is known for its food and its art . The capital of Spain is",
        "Once upon a time there was a little",
        "Water is made of",
        "The color of the sky is",
        "In the year of the great war the people of the town had",
        "One two three four five six",
    ]
    .into_iter()
    .flat_map(|text| {
        let request = request(&words.encode(text), 30);
        [request.clone(), Request { task: Task::Embed, ..request }]
    })
    .collect();
    let expected: Vec<_> = requests.iter().map(|request| alone(&weights, request)).collect();
    let answer = words.decode(&expected[0].tokens);
    assert!(answer.contains("Paris"), "{answer}");
    let small = dynamo_scheduler::Options {
        total_blocks: 6,
        max_num_batched_tokens: 11,
        context_length: 96,
        ..Default::default()
    };
    let preempted = together(&mut core(&weights, small, 2), &requests, &expected);
    assert!(preempted > 0, "the pool was meant to be too small");
}
