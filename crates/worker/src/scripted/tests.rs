use super::*;
use crate::clock::ManualClock;
use dynamo_runtime::mailbox::{self, Receiver};
use dynamo_types::{Class, Delta, FinishReason, OutputOptions, Stopping, TokenizerSpec};
use std::task::{Context, Poll, Waker};

struct Silent;

impl StepObserver for Silent {
    fn on_step(&self, _: StepReport) {}
}

fn engine(book: Book) -> (ManualClock, Scripted) {
    let clock = ManualClock::new();
    let engine = Scripted::new(book, Arc::new(clock.clone()), Arc::new(Silent)).unwrap();
    (clock, engine)
}

fn request(prompt: &str) -> Request {
    Request {
        id: prompt.into(),
        model: "scripted".into(),
        tokens: prompt.bytes().map(u32::from).collect(),
        resumed: 0,
        task: Default::default(),
        sampling: Default::default(),
        stopping: Stopping { max_tokens: 100, ..Default::default() },
        guide: None,
        thinking: None,
        output: Default::default(),
        routing: Default::default(),
        trace: None,
    }
}

fn open(engine: &Scripted, request: Request) -> Receiver {
    let (sender, receiver) = mailbox::channel();
    engine.submit(Arc::new(request), Box::new(sender)).unwrap();
    receiver
}

/// What is there now.
fn poll(receiver: &mut Receiver) -> Option<Result<Delta, Error>> {
    match receiver.poll_recv(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(item) => item,
        Poll::Pending => None,
    }
}

fn spell(engine: &Scripted, tokens: &[u32]) -> Vec<u8> {
    let TokenizerSpec::Bytes { pieces } = &engine.card().tokenizer else { panic!("no byte tokenizer") };
    tokens
        .iter()
        .flat_map(|&token| match u8::try_from(token) {
            Ok(byte) => vec![byte],
            Err(_) => pieces[token as usize - 256].clone(),
        })
        .collect()
}

#[test]
fn pieces_come_when_the_script_says() {
    let script = Script::new([
        Step::Text("Hel".into()),
        Step::DelayMs(10),
        Step::Pieces(vec!["lo".into(), "!".into()]),
        Step::Bytes(vec![vec![0xE2, 0x82], vec![0xAC]]),
        Step::DelayMs(5),
        Step::Tokens(vec![65, 66]),
        Step::Finish(FinishReason::ContentFilter),
    ]);
    let (clock, engine) = engine(Book::new([script]));
    let mut stream = open(&engine, request("hi"));
    let first = poll(&mut stream).unwrap().unwrap();
    assert_eq!((first.tokens.len(), first.cached_tokens), (1, Some(0)));
    clock.advance_ms(9);
    assert_eq!(poll(&mut stream), None);
    clock.advance_ms(1);
    let second = poll(&mut stream).unwrap().unwrap();
    assert_eq!(spell(&engine, &second.tokens), "lo!€".as_bytes());
    assert_eq!(second.tokens.len(), 4, "one piece is one token");
    assert_eq!(engine.load().running, 1);
    clock.advance_ms(100);
    let last = poll(&mut stream).unwrap().unwrap();
    assert_eq!((&*last.tokens, last.finish), (&[65, 66][..], Some(FinishReason::ContentFilter)));
    let end = End { at_us: 15_000, request: "hi".into(), cancelled: false, tokens: 7 };
    assert_eq!(engine.ends(), [end]);
    assert_eq!(engine.load().running, 0);
}

#[test]
fn streams_end_as_the_script_says() {
    let scripts = [
        Script::new([Step::Text("a".into()), Step::Error(Error::engine("boom"))]).when_contains("error"),
        Script::new([Step::Text("a".into()), Step::Reset]).when_contains("reset"),
        Script::new([Step::Text("a".into()), Step::Stall]).when_contains("stall"),
        Script::pieces(["a"]),
    ];
    let (clock, engine) = engine(Book::new(scripts));
    let ending = |prompt: &str| {
        let mut stream = open(&engine, request(prompt));
        assert!(poll(&mut stream).unwrap().is_ok());
        clock.advance_ms(60_000);
        (poll(&mut stream), stream)
    };
    assert_eq!(ending("an error").0, Some(Err(Error::engine("boom"))));
    assert!(ending("a reset").0.unwrap().unwrap_err().retryable());
    let (nothing, stalled) = ending("a stall");
    assert_eq!(nothing, None);
    assert_eq!(engine.load().running, 1);
    drop(stalled);
    clock.advance_ms(60);
    assert_eq!(engine.load().running, 0);
    assert_eq!(engine.cancels().len(), 1);
    assert_eq!(ending("plain").0, None, "a script that just ends stops");
}

/// 10 s to the first token; the client leaves after 1 s.
#[test]
fn r21_leaving_before_the_first_token_reaches_the_engine() {
    let script = Script::new([Step::DelayMs(10_000), Step::Text("late".into())]);
    let (clock, engine) = engine(Book::new([script]));
    let stream = open(&engine, request("slow"));
    clock.advance_ms(1_000);
    drop(stream);
    clock.advance_ms(500);
    let cancels = engine.cancels();
    assert_eq!(cancels.len(), 1);
    assert!(cancels[0].at_us <= 1_500_000, "{cancels:?}");
    assert_eq!((engine.load().running, cancels[0].tokens), (0, 0));
}

#[test]
fn limits_are_obeyed_unless_told_otherwise() {
    let script = Script::new([Step::Tokens(vec![65, 66]), Step::Tokens(vec![67, 68, 69])]);
    let (_, engine) = engine(Book::new([script.clone()]));
    let run = |engine: &Scripted, stopping: Stopping| {
        let mut stream = open(engine, Request { stopping, ..request("x") });
        poll(&mut stream).unwrap().unwrap()
    };
    let limited = run(&engine, Stopping { max_tokens: 3, ..Default::default() });
    assert_eq!((&*limited.tokens, limited.finish), (&[65, 66, 67][..], Some(FinishReason::Length)));
    let stop = Stopping { max_tokens: 100, stop_token_ids: vec![66, 68], ..Default::default() };
    let stopped = run(&engine, stop.clone());
    assert_eq!((&*stopped.tokens, stopped.finish), (&[65, 66][..], Some(FinishReason::Stop)));
    let later = run(&engine, Stopping { min_tokens: 2, ..stop });
    assert_eq!(later.tokens, [65, 66, 67, 68]);
    engine.push(Script { obey_limits: false, ..script }).unwrap();
    let whole = run(&engine, Stopping { max_tokens: 3, ..Default::default() });
    assert_eq!((whole.tokens.len(), whole.finish), (5, Some(FinishReason::Stop)));
}

#[test]
fn r06_a_moved_stream_goes_on_where_it_was() {
    let pieces = ["one", "two", "three", "four"];
    let (_, engine) = engine(Book::new([Script::pieces(pieces)]));
    let whole = poll(&mut open(&engine, request("p"))).unwrap().unwrap().tokens;
    for cut in 0..=pieces.len() {
        let mut tokens: Vec<u32> = vec![112];
        tokens.extend(&whole[..cut]);
        let moved = Request { tokens: tokens.into(), resumed: cut as u32, ..request("p") };
        let rest = poll(&mut open(&engine, moved)).unwrap().unwrap();
        assert_eq!((&*rest.tokens, rest.finish), (&whole[cut..], Some(FinishReason::Stop)));
    }
}

#[test]
fn scripts_are_chosen_in_order_and_used_up() {
    let book = Book { extra_pieces: vec!["third".into()], ..Book::new([Script::pieces(["first"]).once()]) };
    let (_, engine) = engine(book);
    engine.push(Script::pieces(["third"]).once().when_contains("3")).unwrap();
    assert_eq!(engine.push(Script::pieces(["unknown"])), Err(ScriptError::Piece("unknown".into())));
    let said = |prompt: &str| {
        let delta = poll(&mut open(&engine, request(prompt))).unwrap().unwrap();
        String::from_utf8(spell(&engine, &delta.tokens)).unwrap()
    };
    assert_eq!([said("3"), said("3")], ["third", "first"]);
    let (sender, _receiver) = mailbox::channel();
    let refused = engine.submit(Arc::new(request("3")), Box::new(sender)).unwrap_err();
    assert_eq!(refused.class(), Class::Internal);
    assert_eq!(engine.calls().len(), 3);
    assert_eq!(engine.load().running, 0);
}

#[test]
fn log_probabilities_too_long_prompts_and_draining() {
    let (_, engine) = engine(Book { context_length: 8, ..Book::new([Script::pieces(["a", "b"])]) });
    let output = OutputOptions { logprobs: Some(2), prompt_logprobs: Some(0) };
    let delta = poll(&mut open(&engine, Request { output, ..request("abc") })).unwrap().unwrap();
    assert_eq!((delta.logprobs.len(), delta.prompt_logprobs.len()), (2, 3));
    assert_eq!(delta.logprobs[1].top.len(), 2);
    let refused = |prompt: &str| {
        let (sender, _receiver) = mailbox::channel();
        engine.submit(Arc::new(request(prompt)), Box::new(sender)).unwrap_err()
    };
    assert_eq!(refused("12345678").code(), Some("context_length_exceeded"));
    assert!(!engine.is_drained());
    engine.begin_drain();
    assert!(engine.is_drained());
    assert!(refused("x").retry_after_s().is_some());
}

#[test]
fn books_are_read_from_json() {
    let text = r#"{
        "model": "toy", "context_length": 100,
        "scripts": [
            {"when": {"contains": "hello"}, "times": 2, "steps": [
                {"delay_ms": 20}, {"text": "Hi"}, {"pieces": [" there", "!"]}, {"bytes": [[226, 130], [172]]},
                {"tokens": [65]}, "stall", "reset", {"finish": "length"},
                {"error": {"class": "overloaded", "side": "worker", "retryable": true, "message": "full"}}
            ]},
            {"steps": [{"text": "?"}], "obey_limits": false}
        ]
    }"#;
    let book: Book = serde_json::from_str(text).unwrap();
    assert_eq!((&*book.model, book.scripts.len(), book.scripts[0].steps.len()), ("toy", 2, 9));
    assert_eq!(book.scripts[0].steps[8], Step::Error(Error::overloaded("full")));
    let again: Book = serde_json::from_str(&serde_json::to_string(&book).unwrap()).unwrap();
    assert_eq!(again, book);
    let missing = Book::read(std::path::Path::new("/nowhere/book.json")).unwrap_err().to_string();
    assert!(missing.contains("/nowhere/book.json"), "{missing}");
    assert!(serde_json::from_str::<Book>(r#"{"scriptz": []}"#).is_err());
}
