//! One answer on its way through a grammar.

use crate::compiler::reason;
use crate::mask::Mask;
use dynamo_types::Error;
use std::sync::{Arc, Mutex, PoisonError};

/// How `llguidance` says that no token goes on.
const NO_EXTENSION: &str = "NoExtension";

/// A compiled grammar. All answers that are to be held to it share it; each gets a matcher of its own, which takes more memory
/// the further the answer goes, when its first token is chosen.
#[derive(Clone)]
pub struct Grammar(Arc<Mutex<Matcher>>);

impl Grammar {
    /// `start` stands at the start. Its first mask is computed here, once for all answers, and with it what of the lexer that
    /// takes; it is the dearest of most answers.
    pub(crate) fn new(start: Matcher) -> Self {
        let mut warm = start.clone();
        let kept = if warm.mask().is_ok() { warm } else { start };
        Self(Arc::new(Mutex::new(kept)))
    }

    /// A matcher at the start of the grammar, which shares nothing.
    pub fn matcher(&self) -> Matcher {
        // Nothing is changed under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}

/// Where one answer stands in its grammar. Depends on the grammar and the accepted tokens only.
pub struct Matcher {
    inner: llguidance::Matcher,
    field: Arc<str>,
}

impl Matcher {
    pub(crate) fn new(inner: llguidance::Matcher, field: &str) -> Self {
        Self { inner, field: field.into() }
    }

    /// The tokens that may come next; end tokens among them if the answer may stop here.
    ///
    /// # Errors
    /// `Invalid` if the grammar takes more work per token than is allowed, `engine` if the vocabulary has no token that goes on.
    pub fn mask(&mut self) -> Result<Mask, Error> {
        let mask = self.inner.compute_mask_or_eos().map_err(|error| self.fault(&error.to_string()))?;
        // Only where an answer is complete in a model without end tokens.
        if mask.is_zero() {
            return Err(self.fault(NO_EXTENSION));
        }
        Ok(Mask::new(mask))
    }

    /// The token is the next of the answer.
    ///
    /// # Errors
    /// `Invalid` if the grammar does not have it here, or as for [`Matcher::mask`].
    pub fn accept(&mut self, token: u32) -> Result<(), Error> {
        if self.is_finished() {
            return Err(self.refuse(&format!("token {token} comes after the end of the answer")));
        }
        self.inner.consume_token(token).map_err(|error| self.fault(&error.to_string()))
    }

    /// The answer is complete, and nothing can be added.
    pub fn is_finished(&self) -> bool {
        self.inner.is_stopped()
    }

    fn fault(&self, text: &str) -> Error {
        let reason = reason(text);
        match reason.contains(NO_EXTENSION) {
            true => Error::engine("the grammar leaves no token to go on with").with_detail(reason),
            false => self.refuse(&reason),
        }
    }

    fn refuse(&self, problem: &str) -> Error {
        Error::invalid(format!("the grammar in `{}` cannot be used: {problem}", self.field))
            .with_param(&*self.field)
            .with_code("invalid_grammar")
    }
}

impl Clone for Matcher {
    /// The two share nothing.
    fn clone(&self) -> Self {
        Self { inner: self.inner.deep_clone(), field: Arc::clone(&self.field) }
    }
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher").field("finished", &self.is_finished()).finish_non_exhaustive()
    }
}
