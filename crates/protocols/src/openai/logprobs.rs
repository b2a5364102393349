//! Log-probabilities: one neutral form, and the two shapes that OpenAI gives them.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// What stands for a probability of zero: JSON has no infinity, and this is what OpenAI sends.
const LEAST: f32 = -9999.0;

/// One token of an answer or a prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprob {
    /// The token as text; bytes that are not UTF-8 by themselves are replaced.
    pub token: String,
    pub bytes: Vec<u8>,
    /// Natural logarithm. None for the first token of a prompt, which nothing predicts.
    pub logprob: Option<f32>,
    /// Likeliest first.
    pub top: Vec<TopLogprob>,
    /// Where the token starts in the text of its choice, in characters.
    pub text_offset: u32,
}

/// A token that could have been.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopLogprob {
    pub token: String,
    pub bytes: Vec<u8>,
    pub logprob: f32,
}

/// Chat's shape: `{"content": [{"token", "bytes", "logprob", "top_logprobs"}], "refusal": null}`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatLogprobs(pub Vec<TokenLogprob>);

/// The older shape: `{"tokens", "token_logprobs", "top_logprobs", "text_offset"}`, lists of one length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CompletionLogprobs(pub Vec<TokenLogprob>);

pub(super) fn json_number(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { LEAST }
}

#[derive(Serialize)]
struct Entry<'a> {
    token: &'a str,
    bytes: &'a [u8],
    logprob: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<Entry<'a>>>,
}

/// [`ChatLogprobs`], borrowed.
pub(crate) struct ChatShape<'a>(pub(crate) &'a [TokenLogprob]);

impl Serialize for ChatShape<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rival = |top: &TopLogprob| json_number(top.logprob);
        let content: Vec<Entry<'_>> = self
            .0
            .iter()
            .map(|token| Entry {
                token: &token.token,
                bytes: &token.bytes,
                logprob: json_number(token.logprob.unwrap_or(0.0)),
                top_logprobs: Some(
                    token
                        .top
                        .iter()
                        .map(|top| Entry {
                            token: &top.token,
                            bytes: &top.bytes,
                            logprob: rival(top),
                            top_logprobs: None,
                        })
                        .collect(),
                ),
            })
            .collect();
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("content", &content)?;
        map.serialize_entry("refusal", &None::<()>)?;
        map.end()
    }
}

/// [`CompletionLogprobs`], borrowed.
pub(crate) struct CompletionShape<'a>(pub(crate) &'a [TokenLogprob]);

/// A map from token text to log-probability, in the order given. Of tokens with the same text the likelier stays.
struct TopMap<'a>(&'a [TopLogprob]);

impl Serialize for TopMap<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (i, top) in self.0.iter().enumerate() {
            if !self.0[..i].iter().any(|earlier| earlier.token == top.token) {
                map.serialize_entry(&top.token, &json_number(top.logprob))?;
            }
        }
        map.end()
    }
}

impl Serialize for CompletionShape<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let list = self.0;
        let tokens: Vec<&str> = list.iter().map(|token| token.token.as_str()).collect();
        let logprobs: Vec<Option<f32>> = list.iter().map(|token| token.logprob.map(json_number)).collect();
        let tops: Vec<Option<TopMap<'_>>> =
            list.iter().map(|token| token.logprob.map(|_| TopMap(&token.top))).collect();
        let offsets: Vec<u32> = list.iter().map(|token| token.text_offset).collect();
        let mut map = serializer.serialize_map(Some(4))?;
        map.serialize_entry("tokens", &tokens)?;
        map.serialize_entry("token_logprobs", &logprobs)?;
        map.serialize_entry("top_logprobs", &tops)?;
        map.serialize_entry("text_offset", &offsets)?;
        map.end()
    }
}

impl Serialize for ChatLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ChatShape(&self.0).serialize(serializer)
    }
}

impl Serialize for CompletionLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        CompletionShape(&self.0).serialize(serializer)
    }
}
