//! What structured output costs per decode step, with the default model (`DYNAMO_MODEL`, or where `make model` puts it).
//!
//! Eight streams decode together, once held to a JSON schema and once free, in turns; the figure is the ratio of the step
//! times of the same round, so that a busy machine changes little. Below it what single masks cost where they are computed
//! one after the other.
#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::panic,
    reason = "a bench prints its result and fails by panicking"
)]

use dynamo_engine::{Core, Handle, KvOptions, Llama, Options, Weights};
use dynamo_guide::{Compiler, Limits, Vocabulary};
use dynamo_text::Tokenizer;
use dynamo_types::{
    Delta, DeltaSink, Error, Guide, Request, Sampling, StepObserver, StepReport, Stopping, TokenizerSpec,
};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

const ROUNDS: usize = 7;
const STREAMS: usize = 8;
const ANSWER_TOKENS: u32 = 64;

/// Ordinary ones: none of them can end early.
const SCHEMAS: [(&str, &str); 4] = [
    (
        "people",
        r#"{"type":"array","minItems":6,"maxItems":9,"items":{"type":"object","properties":{"name":{"type":"string","minLength":3},
        "age":{"type":"integer","minimum":0,"maximum":120},"email":{"type":"string"}},"required":["name","age","email"],"additionalProperties":false}}"#,
    ),
    (
        "order",
        r#"{"type":"object","properties":{"id":{"type":"string","minLength":60},"total":{"type":"number"},"paid":{"type":"boolean"},
        "lines":{"type":"array","minItems":8,"items":{"type":"object","properties":{"sku":{"type":"string","pattern":"^[A-Z]{3}-[0-9]{4}$"},
        "quantity":{"type":"integer"}},"required":["sku","quantity"],"additionalProperties":false}}},"required":["id","total","paid","lines"],"additionalProperties":false}"#,
    ),
    (
        "verdict",
        r#"{"type":"object","properties":{"verdict":{"enum":["yes","no","unsure"]},"reason":{"type":"string","minLength":400}},
        "required":["verdict","reason"],"additionalProperties":false}"#,
    ),
    ("any object", r#"{"type":"object","minProperties":12}"#),
];

/// Times of the steps in which every stream decodes and nothing is prefilled.
#[derive(Default)]
struct Steps(Mutex<Vec<f64>>);

impl StepObserver for Steps {
    fn on_step(&self, report: StepReport) {
        if report.decode_tokens == STREAMS as u32 && report.prefill_tokens == 0 {
            self.0.lock().expect("a lock").push(f64::from(report.step_us));
        }
    }
}

struct Sink(Vec<u32>, mpsc::Sender<Vec<u32>>);

impl DeltaSink for Sink {
    fn push(&mut self, delta: Delta) {
        self.0.extend(&delta.tokens);
        if delta.finish.is_some() {
            let _ = self.1.send(std::mem::take(&mut self.0));
        }
    }

    fn fail(&mut self, error: Error) {
        panic!("{error}");
    }

    fn is_cancelled(&self) -> bool {
        false
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn request(tokenizer: &Tokenizer, stream: usize, guide: Option<Guide>) -> Request {
    let prompt = format!(
        "<|im_start|>user\nExample {stream}: describe something in JSON.<|im_end|>\n<|im_start|>assistant\n"
    );
    Request {
        id: "r".into(),
        model: "m".into(),
        tokens: tokenizer.encode(&prompt, false).expect("tokens").into(),
        resumed: 0,
        task: Default::default(),
        sampling: Sampling { temperature: 0.8, seed: stream as u64, ..Default::default() },
        stopping: Stopping { max_tokens: ANSWER_TOKENS, ignore_eos: guide.is_none(), ..Default::default() },
        guide,
        thinking: None,
        output: Default::default(),
        routing: Default::default(),
        trace: None,
    }
}

#[derive(serde::Deserialize)]
struct Case {
    name: String,
    schema: serde_json::Value,
}

fn main() {
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("../../guide/tests/data/schemas.json")).expect("cases");
    let files = dynamo_model_files::open(&dynamo_model_files::testing::model_path())
        .expect("the default model: run `make model`");
    let weights = Weights::load(&files, &mut |_, _| {}).expect("weights");
    let tokenizer = Tokenizer::from_spec(&TokenizerSpec::HuggingFace { json: files.tokenizer_json() });
    let tokenizer = tokenizer.expect("a tokenizer");
    let eos = files.special().eos;
    let vocabulary =
        Vocabulary::new(files.config().vocab_size as u32, &eos, |id| match tokenizer.is_special(id) {
            true => Vec::new(),
            false => tokenizer.token_bytes(id).to_vec(),
        });
    let compiler = Compiler::new(&vocabulary.expect("a vocabulary"), Limits::default()).expect("a compiler");
    let compiler = Arc::new(compiler);
    let steps = Arc::new(Steps::default());
    let kv = KvOptions { block_size: 16, total_blocks: 512 };
    let threads = std::env::var("BENCH_THREADS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let model = Llama::new(weights, kv, threads).expect("a model");
    let mut options = Options { eos, ..Default::default() };
    options.scheduler.total_blocks = 512;
    let guides = Arc::clone(&compiler);
    let core = Core::new(model, options);
    let handle =
        Handle::spawn_guided(core, Arc::clone(&steps) as _, Arc::new(move || Ok(Arc::clone(&guides))));
    let handle = handle.expect("a thread");
    let run = |guide: Option<&Guide>| {
        let (sender, receiver) = mpsc::channel();
        for stream in 0..STREAMS {
            let request = request(&tokenizer, stream, guide.cloned());
            handle.submit(Arc::new(request), Box::new(Sink(Vec::new(), sender.clone()))).expect("room");
        }
        let answers: Vec<Vec<u32>> = (0..STREAMS).map(|_| receiver.recv().expect("an answer")).collect();
        let times = std::mem::take(&mut *steps.0.lock().expect("a lock"));
        let mean = times.iter().sum::<f64>() / times.len().max(1) as f64;
        (answers, median(times), mean)
    };
    println!("batch {STREAMS}, {threads} compute threads, µs per decode step");
    for (name, schema) in SCHEMAS {
        let guide = Guide::JsonSchema(schema.into());
        let begun = Instant::now();
        compiler.matcher(&guide).expect("a grammar");
        let compiled = begun.elapsed();
        let (mut free, mut held, mut ratios, mut means) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut answer = Vec::new();
        for _ in 0..ROUNDS {
            let (_, middle, mean) = run(None);
            let (answers, guided, guided_mean) = run(Some(&guide));
            free.push(middle);
            held.push(guided);
            ratios.push(guided / middle);
            means.push(guided_mean / mean);
            answer = answers.into_iter().max_by_key(Vec::len).unwrap_or_default();
        }
        println!(
            "{name}: free {:.0}, guided {:.0}; ratio of medians {:.2}, of means {:.2}; compiled in {compiled:.1?}",
            median(free),
            median(held),
            median(ratios),
            median(means)
        );
        println!("  {}", masks(&compiler, &guide, &answer));
    }
    println!("single masks, µs, where they are computed one after the other");
    for case in cases {
        let guide = Guide::JsonSchema(case.schema.to_string().into());
        let (answers, _, _) = run(Some(&guide));
        let answer = answers.into_iter().max_by_key(Vec::len).unwrap_or_default();
        println!("{}: {}", case.name, masks(&compiler, &guide, &answer));
    }
}

/// What the masks of one answer take, with a new matcher.
fn masks(compiler: &Compiler, guide: &Guide, answer: &[u32]) -> String {
    let mut matcher = compiler.matcher(guide).expect("a grammar");
    let mut times = Vec::new();
    for &token in answer {
        let begun = Instant::now();
        matcher.mask().expect("a mask");
        matcher.accept(token).expect("of the grammar");
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    let most = times.iter().copied().fold(0.0, f64::max);
    format!("{} masks: mean {mean:.0}, median {:.0}, most {most:.0}", times.len(), median(times))
}
