//! Grammars, compiled beside the step loop: a step must not wait for milliseconds of compiling, nor may the caller.

use dynamo_guide::{Compiler, Grammar, Matcher};
use dynamo_types::{Class, Error, Guide, Request};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Where a compiler comes from. Asked with the first guide, so that who uses none pays for none, and asked again with each
/// further one: it keeps what it made.
pub type Guides = Arc<dyn Fn() -> Result<Arc<Compiler>, Error> + Send + Sync>;

/// Of the thread that compiles. The compiler recurses into the grammar; only what is touched takes memory.
pub(crate) const STACK_BYTES: usize = 64 << 20;

/// What holds one answer to its grammar.
pub(crate) struct Held {
    grammar: Grammar,
    /// Made with the first token: it takes up to some MiB, and a request that waits for its turn has no use for it.
    matcher: Option<Matcher>,
}

impl Held {
    pub(crate) fn new(grammar: Grammar) -> Self {
        Self { grammar, matcher: None }
    }

    pub(crate) fn is_begun(&self) -> bool {
        self.matcher.is_some()
    }

    /// Where the answer stands.
    ///
    /// # Errors
    /// `Invalid` for `resumed` tokens that are not of the grammar.
    pub(crate) fn matcher(&mut self, request: &Request) -> Result<&mut Matcher, Error> {
        match &mut self.matcher {
            Some(matcher) => Ok(matcher),
            place => Ok(place.insert(begin(&self.grammar, request)?)),
        }
    }
}

/// A matcher behind the request's `resumed` tokens.
fn begin(grammar: &Grammar, request: &Request) -> Result<Matcher, Error> {
    let mut matcher = grammar.matcher();
    request.tokens.iter().skip(request.prompt_len()).try_for_each(|&token| matcher.accept(token))?;
    Ok(matcher)
}

/// The grammar of the request's guide, which its answer so far is of. None without a guide.
///
/// # Errors
/// `Invalid` for a grammar that cannot be used, or an answer so far that is not of it.
pub(crate) fn prepare(guides: &Guides, request: &Request) -> Result<Option<Grammar>, Error> {
    let Some(guide) = &request.guide else { return Ok(None) };
    let prepared = catch_unwind(AssertUnwindSafe(|| {
        let grammar = guides()?.grammar(guide)?;
        if request.resumed > 0 {
            begin(&grammar, request)?;
        }
        Ok(grammar)
    }));
    prepared.unwrap_or_else(|panic| Err(broken(panic.as_ref()))).map(Some)
}

fn broken(panic: &(dyn Any + Send)) -> Error {
    Error::engine("the grammar's compiler broke down").with_detail(crate::core::panic_text(panic))
}

/// 501 for a guide that this engine cannot hold an answer to.
pub(crate) fn unable(guide: &Guide) -> Error {
    let field = guide.field();
    let message =
        format!("`{field}` asks for structured output, which the engine of this model does not implement");
    Error::client(Class::NotImplemented, message).with_param(field).with_code("unsupported_parameter")
}
