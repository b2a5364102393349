//! Masks over a small vocabulary of bytes and pieces, followed by a writer that chooses at random.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bound;
mod frame;
mod schema;

use dynamo_guide::{Compiler, Limits, Matcher, Vocabulary};
use dynamo_types::{Class, Guide, draw};
use proptest::prelude::{Strategy, prop_assert, proptest};
use serde::Deserialize;
use serde_json::{Value, json};

const PIECES: [&str; 16] = [
    "{\"", "\":", "\": \"", "\",", "\"}", "[[", "]]", "true", "false", "null", "name", "  ", ",\n", "12",
    "東京", "\\n",
];
const EOS: u32 = 256 + PIECES.len() as u32;
const OTHER_EOS: u32 = EOS + 1;
const SIZE: u32 = EOS + 2;

#[derive(Deserialize)]
struct Case {
    name: String,
    schema: Value,
}

fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("../data/schemas.json")).unwrap()
}

fn bytes(token: u32) -> Vec<u8> {
    match u8::try_from(token) {
        Ok(byte) => vec![byte],
        Err(_) => PIECES.get(token as usize - 256).map_or(Vec::new(), |piece| piece.as_bytes().to_vec()),
    }
}

fn compiler(limits: Limits) -> Compiler {
    Compiler::new(&Vocabulary::new(SIZE, &[EOS, OTHER_EOS], bytes).unwrap(), limits).unwrap()
}

fn schema(schema: &Value) -> Guide {
    Guide::JsonSchema(schema.to_string().into())
}

fn lark(text: &str) -> Guide {
    Guide::Lark(text.into())
}

/// Chooses among the allowed tokens; some way in, it ends the answer or closes strings and lists wherever it may.
fn write(mut matcher: Matcher, seed: u64, most: usize) -> (Vec<u32>, bool) {
    let mut tokens = Vec::new();
    while tokens.len() < most && !matcher.is_finished() {
        let mask = matcher.mask().unwrap();
        let allowed: Vec<u32> = (0..SIZE).filter(|&token| mask.allows(token)).collect();
        let closing = [EOS, u32::from(b'"'), u32::from(b']'), u32::from(b'}')];
        let close = closing.into_iter().find(|&token| tokens.len() > 30 && mask.allows(token));
        let random = (draw::unit(seed, tokens.len() as u64) * allowed.len() as f64) as usize;
        let token = close.unwrap_or(allowed[random]);
        matcher.accept(token).unwrap();
        tokens.push(token);
    }
    (tokens, matcher.is_finished())
}

fn text(tokens: &[u32]) -> String {
    String::from_utf8(tokens.iter().flat_map(|&token| bytes(token)).collect()).unwrap()
}

/// Does the grammar take this text, and can the answer end after it?
fn takes(compiler: &Compiler, guide: &Guide, text: &str) -> bool {
    let mut matcher = compiler.matcher(guide).unwrap();
    for byte in text.bytes() {
        if matcher.is_finished() || !matcher.mask().unwrap().allows(byte.into()) {
            return false;
        }
        matcher.accept(byte.into()).unwrap();
    }
    matcher.is_finished() || matcher.mask().unwrap().allows(EOS)
}

#[test]
fn whatever_is_chosen_from_the_masks_satisfies_the_schema() {
    let compiler = compiler(Limits::default());
    for case in cases() {
        let mut finished = 0;
        for seed in 0..40 {
            let (tokens, complete) = write(compiler.matcher(&schema(&case.schema)).unwrap(), seed, 400);
            if complete {
                finished += 1;
                let text = text(&tokens);
                let value =
                    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}: {text}", case.name));
                schema::validate(&value, &case.schema, &case.schema)
                    .unwrap_or_else(|problem| panic!("{}: {problem}", case.name));
            }
        }
        assert!(finished >= 20, "{}: only {finished} of 40 came to an end", case.name);
    }
}

#[test]
fn json_objects_are_objects() {
    let compiler = compiler(Limits::default());
    for (text, taken) in [("{}", true), ("{\"a\": [1, {}]}", true), ("[]", false), ("{", false), ("1", false)]
    {
        assert_eq!(takes(&compiler, &Guide::JsonObject, text), taken, "{text}");
    }
}

#[test]
fn white_space_is_that_of_pretty_printed_json_and_has_a_bound() {
    let compiler = compiler(Limits::default());
    let value = json!({"a": [1, {"b": "c"}], "d": {}});
    let pretty = serde_json::to_string_pretty(&value).unwrap();
    assert!(takes(&compiler, &Guide::JsonObject, &pretty));
    assert!(takes(&compiler, &Guide::JsonObject, &value.to_string()));
    assert!(!takes(&compiler, &Guide::JsonObject, "{\n\n\n}"));
    assert!(!takes(&compiler, &Guide::JsonObject, "{      }"));
}

#[test]
fn regular_expressions_match_as_a_whole() {
    let compiler = compiler(Limits::default());
    let guide = Guide::Regex("[a-z]+(/[0-9]{2})?".into());
    for (text, taken) in
        [("ab/12", true), ("ab", true), ("ab/1", false), ("", false), ("A", false), ("ab/123", false)]
    {
        assert_eq!(takes(&compiler, &guide, text), taken, "{text}");
    }
}

#[test]
fn lark_grammars_are_read() {
    let compiler = compiler(Limits::default());
    let guide = lark("start: sum\nsum: NUMBER | sum \"+\" NUMBER\nNUMBER: /[0-9]+/");
    for (text, taken) in [("1+22+3", true), ("1", true), ("1+", false), ("+1", false)] {
        assert_eq!(takes(&compiler, &guide, text), taken, "{text}");
    }
}

fn choices() -> impl Strategy<Value = Vec<String>> {
    proptest::collection::vec("[a-c/\\\\\"|.(){}\\n 京-]{1,5}", 1..5)
}

proptest! {
    #[test]
    fn a_choice_is_one_of_its_texts(texts in choices(), seed in 0u64..1000) {
        let compiler = compiler(Limits::default());
        let guide = Guide::Choice(texts.clone());
        let (tokens, complete) = write(compiler.matcher(&guide).unwrap(), seed, 40);
        prop_assert!(complete);
        prop_assert!(texts.contains(&text(&tokens)));
        for text in &texts {
            prop_assert!(takes(&compiler, &guide, text), "{:?}", text);
        }
    }

    #[test]
    fn no_text_breaks_the_compiler(garbage in ".{0,80}") {
        let compiler = compiler(Limits::default());
        for guide in [Guide::Regex(garbage.as_str().into()), lark(&garbage), Guide::JsonSchema(garbage.as_str().into())] {
            if let Err(error) = compiler.matcher(&guide) {
                prop_assert!(error.class() == Class::Invalid && error.param().is_some());
            }
        }
    }
}

#[test]
fn what_cannot_be_compiled_names_the_field_and_the_reason() {
    let compiler = compiler(Limits { text_bytes: 5000, ..Limits::default() });
    let deep = |open: &str, close: &str| format!("{}a{}", open.repeat(1000), close.repeat(1000));
    let faults = [
        (Guide::JsonSchema("{".into()), "response_format", "not JSON"),
        (Guide::JsonSchema("3".into()), "response_format", "a schema is an object"),
        (Guide::JsonSchema("false".into()), "response_format", "nothing satisfies"),
        (schema(&json!({"type": "nonsense"})), "response_format", "nonsense"),
        (schema(&json!({"$ref": "#/nowhere"})), "response_format", "nowhere"),
        (schema(&json!({"$ref": "https://example.com/s"})), "response_format", "example.com"),
        (schema(&json!({"not": {"type": "string"}})), "response_format", "not"),
        (schema(&json!({"type": "integer", "minimum": 5, "maximum": 4})), "response_format", "minimum"),
        (Guide::Regex("(".into()), "guided_regex", "unclosed"),
        (Guide::Regex(deep("(", ")").into()), "guided_regex", "1000 deep"),
        (Guide::Choice(vec![]), "guided_choice", "nothing to choose"),
        (Guide::Choice(vec!["x".repeat(6000)]), "guided_choice", "6000 bytes"),
        (lark("start: missing"), "guided_grammar", "missing"),
        (lark(""), "guided_grammar", ""),
    ];
    for (guide, field, says) in faults {
        for _ in 0..2 {
            let error = compiler.matcher(&guide).unwrap_err();
            assert_eq!((error.class(), error.param()), (Class::Invalid, Some(field)), "{error}");
            assert!(error.message().contains(field) && error.message().contains(says), "{error}");
            assert!(!error.message().contains('<') && error.message().len() < 1000, "{error}");
        }
    }
}

#[test]
fn what_costs_more_than_the_limits_is_refused() {
    let default = Limits::default;
    let guide = schema(&cases()[1].schema);
    for limits in [Limits { compile_fuel: 100, ..default() }, Limits { grammar_symbols: 10, ..default() }] {
        let error = compiler(limits).matcher(&guide).unwrap_err();
        assert_eq!((error.class(), error.code()), (Class::Invalid, Some("invalid_grammar")), "{error}");
    }
    for limits in [Limits { mask_items: 2, ..default() }, Limits { lexer_states: 8, ..default() }] {
        let walk = |mut matcher: Matcher| {
            for byte in b"{\"city\": {\"name\"" {
                matcher.mask()?;
                matcher.accept((*byte).into())?;
            }
            Ok(())
        };
        let error = compiler(limits).matcher(&guide).and_then(walk).unwrap_err();
        assert_eq!(error.class(), Class::Invalid, "{error}");
    }
}

#[test]
fn the_client_cannot_loosen_the_rules() {
    let compiler = compiler(Limits::default());
    let lenient = json!({"x-guidance": {"lenient": true}, "not": {"type": "string"}});
    assert!(compiler.matcher(&schema(&lenient)).is_err());
}

#[test]
fn every_end_token_is_allowed_where_the_answer_may_end_and_nowhere_else() {
    let compiler = compiler(Limits::default());
    let mut matcher = compiler.matcher(&Guide::Regex("ab*".into())).unwrap();
    let ends = |matcher: &mut Matcher| {
        let mask = matcher.mask().unwrap();
        [mask.allows(EOS), mask.allows(OTHER_EOS)]
    };
    assert_eq!(ends(&mut matcher), [false, false]);
    matcher.accept(b'a'.into()).unwrap();
    assert_eq!(ends(&mut matcher), [true, true]);
    let mut other = matcher.clone();
    other.accept(b'b'.into()).unwrap();
    assert!(!other.is_finished());
    other.accept(OTHER_EOS).unwrap();
    assert!(other.is_finished());
    assert!(!matcher.is_finished(), "a copy has its own state");
    assert!(other.accept(b'b'.into()).is_err());
    assert_eq!(ends(&mut other), [true, true]);
}

#[test]
fn a_token_that_does_not_fit_is_refused() {
    let compiler = compiler(Limits::default());
    for token in [u32::from(b'x'), EOS, SIZE, u32::MAX] {
        let mut matcher = compiler.matcher(&Guide::Regex("ab".into())).unwrap();
        assert!(matcher.accept(token).is_err(), "{token}");
    }
}

#[test]
fn a_complete_answer_ends_without_an_end_token() {
    let compiler = compiler(Limits::default());
    let mut matcher = compiler.matcher(&Guide::Regex("ab".into())).unwrap();
    matcher.accept(b'a'.into()).unwrap();
    matcher.accept(b'b'.into()).unwrap();
    assert!(matcher.is_finished());
}

#[test]
fn masks_do_not_depend_on_what_was_asked_before() {
    let guide = schema(&cases()[0].schema);
    let fresh = write(compiler(Limits::default()).matcher(&guide).unwrap(), 7, 200);
    let used = compiler(Limits { cached: 1, ..Limits::default() });
    for seed in 0..5 {
        write(used.matcher(&guide).unwrap(), seed, 200);
        used.matcher(&Guide::JsonObject).unwrap();
        assert_eq!(write(used.matcher(&guide).unwrap(), 7, 200), fresh);
    }
}

#[test]
fn a_mask_lowers_the_scores_of_all_other_tokens() {
    let compiler = compiler(Limits::default());
    let mut mask = compiler.matcher(&Guide::Regex("[ab]".into())).unwrap().mask().unwrap();
    let mut scores = vec![1.5; SIZE as usize];
    mask.apply(&mut scores);
    for (token, &score) in scores.iter().enumerate() {
        let allowed = token == usize::from(b'a') || token == usize::from(b'b');
        assert_eq!(score, if allowed { 1.5 } else { f32::NEG_INFINITY }, "{token}");
    }
    mask.take_out(&[b'a'.into(), SIZE + 100]);
    assert!(!mask.allows(b'a'.into()) && mask.allows(b'b'.into()));
    mask.take_out(&[b'b'.into()]);
    assert!(mask.allows(b'b'.into()), "the last one stays");
}

#[test]
fn end_tokens_outside_the_vocabulary_are_refused() {
    assert!(Vocabulary::new(10, &[10], |_| Vec::new()).is_err());
    assert!(Vocabulary::new(10, &[], |_| Vec::new()).is_ok());
}
