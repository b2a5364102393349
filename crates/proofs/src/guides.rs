//! Grammars that clients send, and those that are put around them.

use crate::input::Input;
use dynamo_guide::{Compiler, Limits, Matcher, Vocabulary};
use dynamo_types::{BoundCall, BoundCalls, Class, Error, Frame, Guide, Reasoning, draw};
use std::sync::LazyLock;

const PIECES: [&str; 12] =
    ["{\"", "\":", "\",", "\"}", "[[", "true", "null", "name", "  ", ",\n", "12", "東京"];
/// Tokens that are markers, and no text.
const SPECIALS: [&str; 5] = ["<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]"];
const FIRST_SPECIAL: u32 = 256 + PIECES.len() as u32;
const EOS: u32 = FIRST_SPECIAL + SPECIALS.len() as u32;
const SIZE: u32 = EOS + 1;

/// Tokens of an answer that are written under a grammar.
const MAX_TOKENS: u64 = 24;

/// Markers: of one token, of text, of both, and of none.
const MARKERS: [&str; 8] =
    ["<tool_call>", "[TOOL_CALLS]", "<calls>", "<｜call｜>", "<think>[", "functools", "</tool_call>\n", ""];

fn spelled(token: u32) -> Vec<u8> {
    match u8::try_from(token) {
        Ok(byte) => vec![byte],
        Err(_) => PIECES.get(token as usize - 256).map_or(Vec::new(), |piece| piece.as_bytes().to_vec()),
    }
}

/// Little is remembered: memory is then what one grammar takes.
static COMPILER: LazyLock<Option<Compiler>> = LazyLock::new(|| {
    let specials = (FIRST_SPECIAL..).zip(SPECIALS.map(str::to_owned));
    let vocabulary = Vocabulary::new(SIZE, &[EOS], spelled).ok()?.with_special(specials);
    Compiler::new(&vocabulary, Limits { cached: 1, ..Limits::default() }).ok()
});

/// The grammar's fault is the client's, in the field it came in.
fn check(error: &Error, guide: &Guide) {
    assert_eq!(error.class(), Class::Invalid, "{error:?} for {guide:?}");
    assert_eq!(error.param(), Some(guide.field()), "{error:?}");
    assert!(error.message().len() < 4096, "{error:?}");
}

/// A writer that takes any allowed token: each mask has one, and what the mask allows is accepted. Markers are rare among all
/// tokens, so every other time one is taken if there is one.
fn write(matcher: &mut Matcher, seed: u8) -> Result<(), Error> {
    for position in 0..MAX_TOKENS {
        if matcher.is_finished() {
            return Ok(());
        }
        let mask = matcher.mask()?;
        let mut allowed: Vec<u32> = (0..SIZE).filter(|&token| mask.allows(token)).collect();
        assert!(!allowed.is_empty(), "a mask without a token");
        let first = allowed.partition_point(|&token| token < FIRST_SPECIAL);
        if draw::index(seed.into(), MAX_TOKENS + position, 2) == 0 && first < allowed.len() {
            allowed.drain(..first);
        }
        matcher.accept(allowed[draw::index(seed.into(), position, allowed.len())])?;
    }
    Ok(())
}

/// What stands around an answer, with calls that are held to schemas, or free ones. A line of the text each: the name of the
/// tools, the answer's schema, and one for each tool's arguments.
fn frame(input: &mut Input<'_>) -> Guide {
    let flags = input.byte();
    let is = |bit: u8| flags & (1 << bit) != 0;
    let mut marker = || -> std::sync::Arc<str> { input.pick(&MARKERS).into() };
    let (opener, other, open, between, close) = (marker(), marker(), marker(), marker(), marker());
    let (head, then, closer) = (marker(), marker(), marker());
    let text = input.text();
    let mut lines = text.split('\n');
    let name = lines.next().unwrap_or_default();
    let schema = lines.next().unwrap_or_default();
    let calls: Vec<BoundCall> = lines
        .take(3)
        .map(|schema| BoundCall {
            head: format!("{{\"name\": \"{name}\", \"arguments\": ").into(),
            schema: schema.into(),
            tail: "}".into(),
        })
        .collect();
    let bound = BoundCalls {
        opener: opener.clone(),
        others: vec![other.clone()],
        open,
        calls,
        between: is(0).then_some(between),
        close,
    };
    let reasoning = Reasoning {
        is_open: is(1),
        openers: vec!["<think>".into()],
        closers: if is(2) { vec!["</think>".into()] } else { vec!["</think>".into(), closer] },
        then: if is(3) { then } else { "".into() },
    };
    Guide::Framed(Box::new(Frame {
        field: "tools".into(),
        answer: if is(4) { Guide::Text } else { Guide::JsonSchema(schema.into()) },
        is_lenient: is(5),
        reasoning: is(6).then_some(reasoning),
        head: if is(7) { head } else { "".into() },
        calls: if is(0) { vec![opener, other] } else { Vec::new() },
        bound: (!bound.calls.is_empty()).then_some(bound),
    }))
}

/// First byte: kind. Second: how the writer chooses. The rest: the grammar's text, behind choices for what is around it.
pub(crate) fn guides(data: &[u8]) {
    let mut input = Input::new(data);
    let (kind, seed) = (input.byte() % 6, input.byte());
    let guide = match kind {
        0 => Guide::JsonSchema(input.text().into()),
        1 => Guide::Regex(input.text().into()),
        2 => Guide::Lark(input.text().into()),
        3 => Guide::Choice(input.text().split('\n').map(str::to_owned).collect()),
        _ => frame(&mut input),
    };
    let Some(compiler) = COMPILER.as_ref() else { return };
    match compiler.matcher(&guide) {
        Ok(mut matcher) => {
            // The engine's fault is allowed here alone: this vocabulary may have no token that goes on.
            if let Err(error) = write(&mut matcher, seed)
                && error.class() != Class::Internal
            {
                check(&error, &guide);
            }
            let again = compiler.matcher(&guide);
            assert!(again.is_ok(), "a grammar that was good is remembered as good");
        }
        Err(error) => check(&error, &guide),
    }
}
