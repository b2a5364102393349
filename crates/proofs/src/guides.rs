//! Grammars that clients send.

use crate::input::Input;
use dynamo_guide::{Compiler, Limits, Matcher, Vocabulary};
use dynamo_types::{Class, Error, Guide, draw};
use std::sync::LazyLock;

const PIECES: [&str; 12] =
    ["{\"", "\":", "\",", "\"}", "[[", "true", "null", "name", "  ", ",\n", "12", "東京"];
const EOS: u32 = 256 + PIECES.len() as u32;
const SIZE: u32 = EOS + 1;

/// Tokens of an answer that are written under a grammar.
const MAX_TOKENS: u64 = 24;

fn spelled(token: u32) -> Vec<u8> {
    match u8::try_from(token) {
        Ok(byte) => vec![byte],
        Err(_) => PIECES.get(token as usize - 256).map_or(Vec::new(), |piece| piece.as_bytes().to_vec()),
    }
}

/// Little is remembered: memory is then what one grammar takes.
static COMPILER: LazyLock<Option<Compiler>> = LazyLock::new(|| {
    let vocabulary = Vocabulary::new(SIZE, &[EOS], spelled).ok()?;
    Compiler::new(&vocabulary, Limits { cached: 1, ..Limits::default() }).ok()
});

/// The grammar's fault is the client's, in the field it came in.
fn check(error: &Error, guide: &Guide) {
    assert_eq!(error.class(), Class::Invalid, "{error:?} for {guide:?}");
    assert_eq!(error.param(), Some(guide.field()), "{error:?}");
    assert!(error.message().len() < 4096, "{error:?}");
}

/// A writer that takes any allowed token: each mask has one, and what the mask allows is accepted.
fn write(matcher: &mut Matcher, seed: u8) -> Result<(), Error> {
    for position in 0..MAX_TOKENS {
        if matcher.is_finished() {
            return Ok(());
        }
        let mask = matcher.mask()?;
        let allowed: Vec<u32> = (0..SIZE).filter(|&token| mask.allows(token)).collect();
        assert!(!allowed.is_empty(), "a mask without a token");
        matcher.accept(allowed[draw::index(seed.into(), position, allowed.len())])?;
    }
    Ok(())
}

/// First byte: kind. Second: how the writer chooses. The rest: the grammar's text.
pub(crate) fn guides(data: &[u8]) {
    let mut input = Input::new(data);
    let (kind, seed) = (input.byte() % 4, input.byte());
    let text = input.text();
    let guide = match kind {
        0 => Guide::JsonSchema(text.into()),
        1 => Guide::Regex(text.into()),
        2 => Guide::Lark(text.into()),
        _ => Guide::Choice(text.split('\n').map(str::to_owned).collect()),
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
