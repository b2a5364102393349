//! Long answers within the limits of memory.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use dynamo_guide::{Compiler, Limits, Vocabulary};
use dynamo_types::Guide;

/// Ids below 256 are bytes; then words of several letters, so that masks look ahead.
const WORDS: [&str; 6] = ["ab", "abc", "hello", " the", "\":", "\\n"];

fn compiler(limits: Limits) -> Compiler {
    let size = 256 + WORDS.len() as u32;
    let vocabulary =
        Vocabulary::new(size + 1, &[size], |id| match WORDS.get((id as usize).wrapping_sub(256)) {
            Some(word) => word.as_bytes().to_vec(),
            None if id < 256 => vec![id as u8],
            None => Vec::new(),
        });
    Compiler::new(&vocabulary.unwrap(), limits).unwrap()
}

/// Writes a string as long as `characters`.
fn write(compiler: &Compiler, schema: &str, characters: u32) -> Result<(), dynamo_types::Error> {
    let mut matcher = compiler.matcher(&Guide::JsonSchema(schema.into()))?;
    let text = (0..characters).map(|i| b'a' + (i * 7 % 26) as u8);
    for byte in std::iter::once(b'"').chain(text).chain([b'"']) {
        assert!(matcher.mask()?.allows(byte.into()));
        matcher.accept(byte.into())?;
    }
    Ok(())
}

#[test]
fn a_string_with_a_limit_may_be_long() {
    let compiler = compiler(Limits::default());
    write(&compiler, r#"{"type": "string", "maxLength": 9000}"#, 4000).unwrap();
    write(&compiler, r#"{"type": "string"}"#, 4000).unwrap();
}

#[test]
fn an_answer_that_takes_too_much_memory_is_refused() {
    let compiler = compiler(Limits { lexer_states: 2_000, ..Limits::default() });
    let error = write(&compiler, r#"{"type": "string", "maxLength": 9000}"#, 8000).unwrap_err();
    assert_eq!((error.class(), error.code()), (dynamo_types::Class::Invalid, Some("invalid_grammar")));
    // The next answer begins anew.
    write(&compiler, r#"{"type": "string", "maxLength": 9000}"#, 200).unwrap();
}
