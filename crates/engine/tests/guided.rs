//! Structured output with the default model: what it writes satisfies what was asked for.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../../guide/tests/guide/schema.rs"]
mod schema;

use dynamo_engine::{Core, Guides, Handle, KvOptions, Llama, Options, Weights};
use dynamo_guide::{Compiler, Limits, Vocabulary};
use dynamo_text::Tokenizer;
use dynamo_types::{
    Class, Delta, DeltaSink, Error, FinishReason, Guide, Request, Sampling, StepObserver, StepReport,
    Stopping, TokenizerSpec,
};
use serde::Deserialize;
use serde_json::Value;
use std::sync::{Arc, LazyLock, Mutex, mpsc};
use std::time::Duration;

/// Far more than a model this small takes on a busy machine.
const HANG: Duration = Duration::from_secs(300);

#[derive(Deserialize)]
struct Case {
    name: String,
    ask: String,
    schema: Value,
}

fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("../../guide/tests/data/schemas.json")).unwrap()
}

struct Loaded {
    weights: Arc<Weights>,
    tokenizer: Tokenizer,
    eos: Vec<u32>,
    compiler: Arc<Compiler>,
}

static LOADED: LazyLock<Loaded> = LazyLock::new(|| {
    let files = dynamo_model_files::open(&dynamo_model_files::testing::model_path()).unwrap();
    let weights = Weights::load(&files, &mut |_, _| {}).unwrap();
    let tokenizer =
        Tokenizer::from_spec(&TokenizerSpec::HuggingFace { json: files.tokenizer_json() }).unwrap();
    let eos = files.special().eos;
    let size = files.config().vocab_size as u32;
    let vocabulary = Vocabulary::new(size, &eos, |id| match tokenizer.is_special(id) {
        true => Vec::new(),
        false => tokenizer.token_bytes(id).to_vec(),
    });
    let compiler = Arc::new(Compiler::new(&vocabulary.unwrap(), Limits::default()).unwrap());
    Loaded { weights, tokenizer, eos, compiler }
});

struct Ignore;

impl StepObserver for Ignore {
    fn on_step(&self, _: StepReport) {}
}

fn engine(total_blocks: u32, guides: Option<Guides>) -> Handle {
    let kv = KvOptions { block_size: 16, total_blocks: total_blocks as usize };
    let model = Llama::new(Arc::clone(&LOADED.weights), kv, 2).unwrap();
    let mut options = Options { eos: LOADED.eos.clone(), ..Default::default() };
    options.scheduler.block_size = 16;
    options.scheduler.total_blocks = total_blocks;
    options.scheduler.max_num_seqs = 64;
    options.scheduler.max_num_batched_tokens = 512;
    options.scheduler.max_waiting = 1000;
    options.scheduler.context_length = 2048;
    options.scheduler.prefix_caching = true;
    let core = Core::new(model, options);
    match guides {
        Some(guides) => Handle::spawn_guided(core, Arc::new(Ignore), guides).unwrap(),
        None => Handle::spawn(core, Arc::new(Ignore)).unwrap(),
    }
}

fn guided(total_blocks: u32) -> Handle {
    engine(total_blocks, Some(Arc::new(|| Ok(Arc::clone(&LOADED.compiler)))))
}

struct Sink(Arc<Mutex<Delta>>, mpsc::Sender<Result<(), Error>>);

impl DeltaSink for Sink {
    fn push(&mut self, delta: Delta) {
        let over = delta.finish.is_some();
        self.0.lock().unwrap().merge(delta);
        if over {
            let _ = self.1.send(Ok(()));
        }
    }

    fn fail(&mut self, error: Error) {
        let _ = self.1.send(Err(error));
    }

    fn is_cancelled(&self) -> bool {
        false
    }
}

struct Answer(Arc<Mutex<Delta>>, mpsc::Receiver<Result<(), Error>>);

impl Answer {
    fn get(self) -> Result<Delta, Error> {
        self.1.recv_timeout(HANG).expect("an end")?;
        Ok(self.0.lock().unwrap().clone())
    }
}

fn submit(handle: &Handle, request: Request) -> Answer {
    let (delta, (sender, receiver)) = (Arc::new(Mutex::new(Delta::default())), mpsc::channel());
    // What is refused is told to the sink too.
    let _ = handle.submit(Arc::new(request), Box::new(Sink(Arc::clone(&delta), sender)));
    Answer(delta, receiver)
}

fn request(ask: &str, guide: Guide, temperature: f32, seed: u64) -> Request {
    let prompt = format!("<|im_start|>user\n{ask} Answer in JSON.<|im_end|>\n<|im_start|>assistant\n");
    Request {
        id: "r".into(),
        model: "m".into(),
        tokens: LOADED.tokenizer.encode(&prompt, false).unwrap().into(),
        resumed: 0,
        task: Default::default(),
        sampling: Sampling { temperature, seed, ..Default::default() },
        stopping: Stopping { max_tokens: 160, ..Default::default() },
        guide: Some(guide),
        thinking: None,
        output: Default::default(),
        routing: Default::default(),
        trace: None,
    }
}

fn json(case: &Case, temperature: f32, seed: u64) -> Request {
    request(&case.ask, Guide::JsonSchema(case.schema.to_string().into()), temperature, seed)
}

fn text(answer: &Delta) -> String {
    LOADED.tokenizer.decode(&answer.tokens, true)
}

#[test]
fn every_finished_answer_satisfies_its_schema() {
    let handle = guided(4000);
    let settings = [(0.0, 0), (1.0, 1), (1.0, 2), (1.0, 3)];
    let mut total = 0;
    for case in cases() {
        let answers: Vec<_> = settings
            .iter()
            .map(|&(temperature, seed)| submit(&handle, json(&case, temperature, seed)))
            .collect();
        for answer in answers {
            let answer = answer.get().unwrap_or_else(|error| panic!("{}: {error}", case.name));
            if answer.finish == Some(FinishReason::Stop) {
                total += 1;
                let text = text(&answer);
                let value = serde_json::from_str(&text)
                    .unwrap_or_else(|error| panic!("{}: {error}: {text}", case.name));
                schema::validate(&value, &case.schema, &case.schema)
                    .unwrap_or_else(|problem| panic!("{}: {problem}", case.name));
            }
        }
    }
    let asked = cases().len() * settings.len();
    assert!(total * 10 >= asked * 9, "only {total} of {asked} came to an end");
}

#[test]
fn answers_depend_on_the_seed_and_not_on_the_neighbours() {
    let cases = cases();
    let crowd = guided(4000);
    let together: Vec<_> = cases.iter().map(|case| submit(&crowd, json(case, 1.0, 11))).collect();
    let together: Vec<_> = together.into_iter().map(|answer| answer.get().unwrap()).collect();
    // So few blocks that sequences lose theirs and are computed again.
    let crowded = guided(30);
    let again: Vec<_> = cases.iter().map(|case| submit(&crowded, json(case, 1.0, 11))).collect();
    let mut other_seed = 0;
    for (case, (together, again)) in cases.iter().zip(together.into_iter().zip(again)) {
        let alone = submit(&crowd, json(case, 1.0, 11)).get().unwrap();
        assert_eq!(alone.tokens, together.tokens, "{}", case.name);
        assert_eq!(alone.tokens, again.get().unwrap().tokens, "{}", case.name);
        let other = submit(&crowd, json(case, 1.0, 12)).get().unwrap();
        other_seed += usize::from(other.tokens != alone.tokens);
    }
    assert!(other_seed > cases.len() / 2);
}

#[test]
fn an_answer_that_moves_goes_on_where_it_was() {
    let handle = guided(400);
    for case in cases().iter().step_by(4) {
        let whole = submit(&handle, json(case, 1.0, 5)).get().unwrap();
        let cut = whole.tokens.len() / 2;
        let mut moved = json(case, 1.0, 5);
        moved.tokens = moved.tokens.iter().chain(&whole.tokens[..cut]).copied().collect();
        moved.resumed = cut as u32;
        moved.stopping.max_tokens -= cut as u32;
        assert_eq!(submit(&handle, moved).get().unwrap().tokens, whole.tokens[cut..], "{}", case.name);
    }
    let mut strange = json(&cases()[0], 0.0, 0);
    strange.resumed = 2;
    assert_eq!(submit(&handle, strange).get().unwrap_err().class(), Class::Invalid);
}

#[test]
fn other_guides_hold_as_well() {
    let handle = guided(400);
    let choice = Guide::Choice(vec!["Paris".into(), "Rome".into()]);
    let answer = text(&submit(&handle, request("The capital of France?", choice, 1.0, 1)).get().unwrap());
    assert!(["Paris", "Rome"].contains(&answer.as_str()), "{answer}");
    let answer = text(
        &submit(&handle, request("A time?", Guide::Regex("[0-2][0-9]:[0-5][0-9]".into()), 1.0, 2))
            .get()
            .unwrap(),
    );
    assert!(answer.len() == 5 && answer.as_bytes()[2] == b':', "{answer}");
    let sum = "start: NUMBER (\"+\" NUMBER){2}\nNUMBER: /[0-9]{1,2}/";
    let answer = text(&submit(&handle, request("A sum?", Guide::Lark(sum.into()), 1.0, 3)).get().unwrap());
    assert_eq!(answer.split('+').filter(|part| part.parse::<u8>().is_ok()).count(), 3, "{answer}");
}

#[test]
fn a_complete_answer_ends_whatever_else_is_asked() {
    let handle = guided(400);
    let mut wanted = request("Yes or no?", Guide::Choice(vec!["yes".into(), "no".into()]), 0.0, 0);
    wanted.stopping.min_tokens = 50;
    wanted.stopping.ignore_eos = true;
    let answer = submit(&handle, wanted).get().unwrap();
    assert_eq!(answer.finish, Some(FinishReason::Stop));
    // Where the grammar can go on, it does.
    let mut longer = request("Count.", Guide::Regex("[0-9]+".into()), 0.0, 0);
    longer.stopping.min_tokens = 20;
    longer.stopping.max_tokens = 30;
    let answer = submit(&handle, longer).get().unwrap();
    assert!(answer.tokens.len() >= 20, "{}", text(&answer));
}

#[test]
fn masked_tokens_have_no_probability() {
    let handle = guided(400);
    let mut wanted = request("Yes or no?", Guide::Regex("[ab]{3}".into()), 1.0, 4);
    wanted.output.logprobs = Some(5);
    let answer = submit(&handle, wanted).get().unwrap();
    let first = &answer.logprobs[0];
    let sum: f32 = first.top.iter().map(|&(_, logprob)| logprob.exp()).sum();
    assert!(
        first.top.iter().all(|&(token, _)| LOADED
            .tokenizer
            .token_text(token)
            .chars()
            .all(|c| "ab".contains(c)))
    );
    assert!(sum > 0.5 && sum < 1.001 && answer.tokens.len() <= 3, "{answer:?}");
}

#[test]
fn grammars_that_cannot_be_used_are_told_to_the_client() {
    let handle = guided(400);
    let fault = submit(&handle, request("x", Guide::Regex("(".into()), 0.0, 0)).get().unwrap_err();
    assert_eq!((fault.class(), fault.param()), (Class::Invalid, Some("guided_regex")));
    let broken = engine(400, Some(Arc::new(|| panic!("told to panic"))));
    for _ in 0..2 {
        let fault = submit(&broken, request("x", Guide::JsonObject, 0.0, 0)).get().unwrap_err();
        assert_eq!((fault.class(), fault.message()), (Class::Internal, "the grammar's compiler broke down"));
    }
    let unable = engine(400, None);
    let fault = submit(&unable, request("x", Guide::JsonObject, 0.0, 0)).get().unwrap_err();
    assert_eq!((fault.class(), fault.param()), (Class::NotImplemented, Some("response_format")));
}

#[test]
fn draining_waits_for_guides_and_stopping_ends_them() {
    let (gate, opened) = mpsc::channel::<()>();
    let opened = Mutex::new(opened);
    let guides: Guides = Arc::new(move || {
        opened.lock().unwrap().recv().map_err(|_| Error::engine("closed"))?;
        Ok(Arc::clone(&LOADED.compiler))
    });
    let handle = engine(400, Some(guides));
    let choice = || Guide::Choice(vec!["yes".into()]);
    let answers: Vec<_> = (0..3).map(|_| submit(&handle, request("x", choice(), 0.0, 0))).collect();
    assert_eq!(handle.load().waiting, 3);
    handle.begin_drain();
    assert!(!handle.drained());
    let mut answers = answers.into_iter();
    gate.send(()).unwrap();
    assert!(answers.next().unwrap().get().is_ok());
    assert!(!handle.drained());
    handle.stop();
    gate.send(()).unwrap();
    drop(handle);
    for answer in answers {
        assert_eq!(answer.get().unwrap_err().class(), Class::Unavailable);
    }
}
