//! Token ids become text as they come (R01).

use crate::Tokenizer;
use std::sync::Arc;

/// Incremental detokenization. Whatever the chunking, the joined output equals `String::from_utf8_lossy` over the
/// bytes of all tokens: the bytes of an unfinished character are held back, broken ones become U+FFFD.
///
/// The cost of a token is the length of its bytes; nothing is decoded twice.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    /// An unfinished character (at most three bytes), only for a moment with the bytes that follow it.
    pending: Vec<u8>,
    /// Leading spaces still to be taken off the very start of the answer (sentencepiece).
    strip: usize,
}

impl Detokenizer {
    /// With `skip_special`, special tokens have no text.
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        let strip = tokenizer.leading_spaces_stripped();
        Self { tokenizer, skip_special, pending: Vec::new(), strip }
    }

    /// Appends the text that `token` made certain. Ids outside the vocabulary have no text.
    pub fn push(&mut self, token: u32, text: &mut String) {
        if self.skip_special && self.tokenizer.is_special(token) {
            return;
        }
        let mut bytes = self.tokenizer.token_bytes(token);
        if self.strip > 0 && !bytes.is_empty() {
            while self.strip > 0 && bytes.first() == Some(&b' ') {
                bytes = &bytes[1..];
                self.strip -= 1;
            }
            if !bytes.is_empty() {
                self.strip = 0;
            }
        }
        if self.pending.is_empty() {
            let whole = append_lossy(bytes, text);
            self.pending.extend_from_slice(&bytes[whole..]);
        } else {
            self.pending.extend_from_slice(bytes);
            let whole = append_lossy(&self.pending, text);
            self.pending.drain(..whole);
        }
    }

    /// Ends the answer: an unfinished character becomes U+FFFD.
    pub fn finish(&mut self, text: &mut String) {
        if !self.pending.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
            self.pending.clear();
        }
    }

    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }
}

/// Appends `bytes` up to a last character that more bytes could complete; returns how many bytes that was.
fn append_lossy(bytes: &[u8], text: &mut String) -> usize {
    let mut done = 0;
    loop {
        let error = match std::str::from_utf8(&bytes[done..]) {
            Ok(valid) => {
                text.push_str(valid);
                return bytes.len();
            }
            Err(error) => error,
        };
        let valid = done + error.valid_up_to();
        text.push_str(std::str::from_utf8(&bytes[done..valid]).unwrap_or_default());
        match error.error_len() {
            Some(len) => {
                text.push(char::REPLACEMENT_CHARACTER);
                done = valid + len;
            }
            None => return valid,
        }
    }
}
