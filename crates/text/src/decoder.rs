//! Deltas of tokens become deltas of text (R01-R04).

use crate::{Detokenizer, StopCause, StopMatcher, TextDelta, TextLogprob, Tokenizer, TopLogprob};
use dynamo_types::{Delta, FinishReason, TokenLogprob};
use std::sync::Arc;

/// What a token's text takes, mostly: it is given room at once.
const TOKEN_BYTES: usize = 8;

/// How an answer is to be shown.
#[derive(Clone, Debug)]
pub struct DecoderOptions {
    /// Stop strings, already validated.
    pub stop: Vec<String>,
    /// The client's own stop ids.
    pub stop_token_ids: Vec<u32>,
    /// The model's end tokens; empty when the request ignores them.
    pub eos: Vec<u32>,
    /// No stop string ends the answer within its first `min_tokens` tokens.
    pub min_tokens: u32,
    /// Special tokens have no text.
    pub skip_special_tokens: bool,
    /// A parser reads the text: special tokens are its markers and keep their text, except the one that ends the answer.
    pub keep_markers: bool,
    /// What stopped the answer, string or id, belongs to its text.
    pub include_stop_str_in_output: bool,
    /// Pass log-probabilities on. Those of the prompt are, wherever they come.
    pub logprobs: bool,
    /// Where the prompt's text came from, for the places of its tokens in it.
    pub prompt: PromptText,
}

/// Which tokens of a prompt have text in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptText {
    /// The client gave the text; this many tokens were put in front of it.
    Given { added: usize },
    /// It was made from token ids: special ones have no text if they have none in the answer.
    Decoded,
}

impl Default for DecoderOptions {
    fn default() -> Self {
        Self {
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            eos: Vec::new(),
            min_tokens: 0,
            skip_special_tokens: true,
            keep_markers: false,
            include_stop_str_in_output: false,
            logprobs: false,
            prompt: PromptText::Given { added: 0 },
        }
    }
}

/// Turns one answer's deltas into text. However the answer is cut into deltas, the merged [`TextDelta`]s are the same.
#[derive(Debug)]
pub struct Decoder {
    detokenizer: Detokenizer,
    matcher: StopMatcher,
    options: DecoderOptions,
    /// Tokens so far.
    count: u32,
    /// Characters so far, withheld ones included; kept only for log-probabilities.
    characters: usize,
    /// An end token whose text waits: if the answer ends with it, it is hidden.
    held: Option<u32>,
    stopped: bool,
    ended: bool,
    /// Text on its way from the detokenizer to the matcher.
    piece: String,
}

impl Decoder {
    pub fn new(tokenizer: Arc<Tokenizer>, options: DecoderOptions) -> Self {
        let skip_special = options.skip_special_tokens && !options.keep_markers;
        Self {
            detokenizer: Detokenizer::new(tokenizer, skip_special),
            matcher: StopMatcher::new(&options.stop, options.include_stop_str_in_output),
            options,
            count: 0,
            characters: 0,
            held: None,
            stopped: false,
            ended: false,
            piece: String::new(),
        }
    }

    /// What `delta` made certain. After the answer's end, nothing.
    ///
    /// A stop string sets `finish` at the token that decided it, and tokens behind that one are dropped, so that the
    /// count does not depend on how far the engine ran ahead.
    pub fn push(&mut self, delta: Delta) -> TextDelta {
        let mut out = TextDelta::default();
        if self.ended {
            return out;
        }
        out.cached_tokens = delta.cached_tokens;
        out.embedding = delta.embedding;
        out.prompt_logprobs = self.prompt_logprobs(delta.prompt_logprobs);
        let tokens = delta.tokens;
        out.text = String::with_capacity(tokens.len() * TOKEN_BYTES);
        let mut logprobs = delta.logprobs.into_iter();
        let mut taken = 0;
        while let Some(&token) = tokens.get(taken) {
            if let Some(held) = self.held.take() {
                self.show(held, &mut out);
                if self.ended {
                    break;
                }
            }
            taken += 1;
            self.count = self.count.saturating_add(1);
            if let Some(logprob) = logprobs.next().filter(|_| self.options.logprobs) {
                out.logprobs.push(text_logprob(self.detokenizer.tokenizer(), logprob, self.characters));
            }
            if self.options.eos.contains(&token) || self.options.stop_token_ids.contains(&token) {
                self.held = Some(token);
            } else {
                self.show(token, &mut out);
                if self.ended {
                    break;
                }
            }
        }
        out.tokens = tokens;
        out.tokens.truncate(taken);
        if self.ended {
            return out;
        }
        if let Some(finish) = delta.finish {
            self.end(Some(finish), &mut out);
        }
        out
    }

    /// The answer ends without a finish reason (the stream broke): what was withheld.
    pub fn finish(&mut self) -> TextDelta {
        let mut out = TextDelta::default();
        if !self.ended {
            self.end(None, &mut out);
        }
        out
    }

    /// A stop string was met: the answer is complete, whatever the engine still sends; the caller cancels it.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Sends a token's text on its way; `ended` afterwards if it completed a stop string.
    fn show(&mut self, token: u32, out: &mut TextDelta) {
        let mut piece = std::mem::take(&mut self.piece);
        self.detokenizer.push(token, &mut piece);
        self.pass(&mut piece, out);
        self.piece = piece;
    }

    fn pass(&mut self, piece: &mut String, out: &mut TextDelta) {
        if self.options.logprobs {
            self.characters += piece.chars().count();
        }
        if self.count <= self.options.min_tokens {
            self.matcher.push_unmatched(piece, &mut out.text);
        } else if let Some(stop) = self.matcher.push(piece, &mut out.text) {
            self.stop_at(stop, out);
        }
        piece.clear();
    }

    fn stop_at(&mut self, stop: usize, out: &mut TextDelta) {
        self.stopped = true;
        self.ended = true;
        out.finish = Some(FinishReason::Stop);
        out.stop = self.options.stop.get(stop).cloned().map(StopCause::String);
    }

    fn end(&mut self, finish: Option<FinishReason>, out: &mut TextDelta) {
        let mut cause = None;
        if let Some(token) = self.held.take() {
            let stopped_by_it = finish == Some(FinishReason::Stop);
            if !stopped_by_it || self.end_token_is_shown(token) {
                self.show(token, out);
            }
            if stopped_by_it && self.options.stop_token_ids.contains(&token) {
                cause = Some(StopCause::Token(token));
            }
        }
        if !self.ended {
            let mut piece = std::mem::take(&mut self.piece);
            self.detokenizer.finish(&mut piece);
            self.pass(&mut piece, out);
        }
        if !self.ended
            && let Some(stop) = self.matcher.finish(&mut out.text)
        {
            self.stop_at(stop, out);
        }
        if !self.ended {
            self.ended = true;
            out.finish = finish;
            out.stop = cause;
        }
    }

    /// Does the token that stopped the answer belong to its text? (If so, `skip_special_tokens` still applies.)
    fn end_token_is_shown(&self, token: u32) -> bool {
        self.options.include_stop_str_in_output
            || (!self.options.skip_special_tokens && self.options.eos.contains(&token))
    }

    fn prompt_logprobs(&self, logprobs: Vec<TokenLogprob>) -> Vec<TextLogprob> {
        if logprobs.is_empty() {
            return Vec::new();
        }
        let tokenizer = self.detokenizer.tokenizer();
        let (added, skip_special) = match self.options.prompt {
            PromptText::Given { added } => (added, false),
            PromptText::Decoded => (0, self.options.skip_special_tokens),
        };
        let mut prompt = Detokenizer::new(Arc::clone(tokenizer), skip_special);
        let (mut text, mut offset) = (String::new(), 0);
        logprobs
            .into_iter()
            .enumerate()
            .map(|(place, logprob)| {
                let token = logprob.token;
                let entry = text_logprob(tokenizer, logprob, offset);
                if place >= added {
                    prompt.push(token, &mut text);
                }
                offset += text.chars().count();
                text.clear();
                entry
            })
            .collect()
    }
}

fn text_logprob(tokenizer: &Tokenizer, logprob: TokenLogprob, text_offset: usize) -> TextLogprob {
    let top = logprob
        .top
        .into_iter()
        .map(|(token, logprob)| TopLogprob {
            token,
            text: tokenizer.token_text(token),
            bytes: tokenizer.token_bytes(token).to_vec(),
            logprob,
        })
        .collect();
    TextLogprob {
        token: logprob.token,
        text: tokenizer.token_text(logprob.token),
        bytes: tokenizer.token_bytes(logprob.token).to_vec(),
        logprob: logprob.logprob,
        top,
        text_offset,
    }
}
