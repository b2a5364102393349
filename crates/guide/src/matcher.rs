//! One answer on its way through a grammar.

use crate::compiler::reason;
use crate::mask::Mask;
use dynamo_types::Error;

/// How `llguidance` says that no token goes on.
const NO_EXTENSION: &str = "NoExtension";

/// Where one answer stands in its grammar. Depends on the grammar and the accepted tokens only.
pub struct Matcher {
    inner: llguidance::Matcher,
    field: &'static str,
}

impl Matcher {
    pub(crate) fn new(inner: llguidance::Matcher, field: &'static str) -> Self {
        Self { inner, field }
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
            .with_param(self.field)
            .with_code("invalid_grammar")
    }
}

impl Clone for Matcher {
    /// The two share nothing.
    fn clone(&self) -> Self {
        Self { inner: self.inner.deep_clone(), field: self.field }
    }
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher").field("finished", &self.is_finished()).finish_non_exhaustive()
    }
}
