//! Grammars, compiled once and remembered.

use crate::cache::Cache;
use crate::grammar::grammar;
use crate::matcher::{Grammar, Matcher};
use crate::vocabulary::{Special, Vocabulary};
use dynamo_types::{Error, Guide};
use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use std::sync::{Mutex, PoisonError};

/// Characters of the compiler's own words that a client reads.
const MAX_REASON_CHARACTERS: usize = 400;

/// How much one grammar may cost. The defaults are those of `llguidance`, less where its are meant for offline use.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a grammar's text.
    pub text_bytes: usize,
    /// Grammars remembered; each takes up to a few MiB.
    pub cached: usize,
    /// Symbols of a compiled grammar.
    pub grammar_symbols: usize,
    /// Work on the regular expressions of a grammar; about 50,000 a millisecond.
    pub compile_fuel: u64,
    /// Work on the lexer for one mask; about 14,000 a millisecond.
    pub mask_fuel: u64,
    /// Parser items for one mask; about 20,000 a millisecond.
    pub mask_items: usize,
    /// States of one answer's lexer, 1 to 2 KiB each. Most answers take a few hundred; a string with a limit of its length takes
    /// five to ten for each of its characters.
    pub lexer_states: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            text_bytes: 128 * 1024,
            cached: 32,
            grammar_symbols: 100_000,
            compile_fuel: 1_000_000,
            mask_fuel: 200_000,
            mask_items: 50_000,
            lexer_states: 50_000,
        }
    }
}

/// Makes matchers for one vocabulary. Compiling takes milliseconds, for large grammars tens of them, and recurses into the
/// grammar: call it from a thread that has the time and the stack.
pub struct Compiler {
    factory: ParserFactory,
    special: Special,
    limits: Limits,
    /// Faults too, so that a client that repeats one costs nothing.
    cache: Mutex<Cache<Guide, Result<Grammar, Error>>>,
}

impl Compiler {
    /// # Errors
    /// `engine` if the vocabulary cannot be prepared.
    pub fn new(vocabulary: &Vocabulary, limits: Limits) -> Result<Self, Error> {
        let slices = SlicedBiasComputer::json_slices();
        let mut factory =
            ParserFactory::new(&vocabulary.environment, InferenceCapabilities::default(), &slices).map_err(
                |error| Error::engine("the vocabulary cannot be prepared").with_detail(error.to_string()),
            )?;
        factory.quiet();
        let theirs = factory.limits_mut();
        theirs.max_grammar_size = limits.grammar_symbols;
        theirs.initial_lexer_fuel = limits.compile_fuel;
        theirs.step_lexer_fuel = limits.mask_fuel;
        theirs.step_max_items = limits.mask_items;
        theirs.max_lexer_states = limits.lexer_states;
        // Errors are for the client, who may not read what others asked.
        theirs.verbose_errors = false;
        let cache = Mutex::new(Cache::new(limits.cached));
        Ok(Self { factory, special: vocabulary.special.clone(), limits, cache })
    }

    /// The guide's grammar.
    ///
    /// # Errors
    /// `Invalid`, naming the field the guide customarily comes in and what is wrong with it.
    pub fn grammar(&self, guide: &Guide) -> Result<Grammar, Error> {
        self.check_size(guide)?;
        if let Some(known) = self.lock().get(guide) {
            return known.clone();
        }
        let compiled = self.compile(guide).map_err(|problem| refuse(guide, &problem));
        self.lock().insert(guide, compiled.clone());
        compiled
    }

    /// A matcher at the start of the guide's grammar.
    ///
    /// # Errors
    /// As for [`Compiler::grammar`].
    pub fn matcher(&self, guide: &Guide) -> Result<Matcher, Error> {
        Ok(self.grammar(guide)?.matcher())
    }

    fn compile(&self, guide: &Guide) -> Result<Grammar, String> {
        let parser = self
            .factory
            .create_parser(grammar(guide, &self.special)?)
            .map_err(|error| reason(&error.to_string()))?;
        let matcher = llguidance::Matcher::new(Ok(parser));
        match matcher.get_error() {
            Some(error) => Err(reason(&error)),
            None => Ok(Grammar::new(Matcher::new(matcher, guide.field()))),
        }
    }

    fn check_size(&self, guide: &Guide) -> Result<(), Error> {
        let bytes = bytes(guide);
        let limit = self.limits.text_bytes;
        match bytes > limit {
            true => Err(refuse(guide, &format!("it has {bytes} bytes, at most {limit} are allowed"))),
            false => Ok(()),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Cache<Guide, Result<Grammar, Error>>> {
        // An entry is put in whole or not at all.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiler").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Of the grammars that a client gave; markers around them are the server's own.
fn bytes(guide: &Guide) -> usize {
    match guide {
        Guide::JsonSchema(text) | Guide::Regex(text) | Guide::Lark(text) => text.len(),
        Guide::Choice(texts) => texts.iter().map(String::len).sum(),
        Guide::JsonObject | Guide::Text => 0,
        Guide::Framed(frame) => {
            let calls = frame.bound.iter().flat_map(|bound| &bound.calls);
            bytes(&frame.answer) + calls.map(|call| call.head.len() + call.schema.len()).sum::<usize>()
        }
    }
}

fn refuse(guide: &Guide, problem: &str) -> Error {
    let field = guide.field();
    Error::invalid(format!("the grammar in `{field}` cannot be used: {problem}"))
        .with_param(field)
        .with_code("invalid_grammar")
}

/// What of the compiler's message is for the client: not its state, not its backtraces.
pub(crate) fn reason(message: &str) -> String {
    let end =
        ["\n<state>", "\n<non-verbose/>", "\n<backtrace>"].iter().filter_map(|mark| message.find(mark)).min();
    let message = &message[..end.unwrap_or(message.len())];
    if message.starts_with("panic: ") {
        return "its compiler fails on it".into();
    }
    let mut words = message.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((cut, _)) = words.char_indices().nth(MAX_REASON_CHARACTERS) {
        words.truncate(cut);
        words.push_str("...");
    }
    words
}
