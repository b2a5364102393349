//! `POST /v1/embeddings`.

use super::common::{self, missing};
use super::completions::{self, Prompt};
use crate::json::{self, Reader, echo};
use crate::limits::{self, Routes};
use crate::options::{Options, Parsed};
use dynamo_types::{Error, RoutingHints};
use serde::Serialize;

/// How vectors are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    #[default]
    Float,
    /// The bytes of little-endian 32-bit floats.
    Base64,
}

/// A validated request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Name or alias of the model, as the client wrote it.
    pub model: String,
    pub input: Prompt,
    pub encoding: Encoding,
    /// See [`check_dimensions`].
    pub dimensions: Option<u32>,
    /// Put around texts what the model wants around them.
    pub add_special_tokens: bool,
    pub user: Option<String>,
    pub routing: RoutingHints,
}

#[derive(Default)]
struct Draft {
    common: common::Draft,
    input: Option<Prompt>,
    encoding: Encoding,
    dimensions: Option<u32>,
    add_special_tokens: Option<bool>,
}

impl Request {
    /// # Errors
    /// 400 or 501 that name the field, the limit and what was found.
    pub fn parse(body: &[u8], options: &Options) -> Result<Parsed<Self>, Error> {
        let mut draft = Draft::default();
        let dropped = json::document(body, |reader, key| draft.field(reader, key, options))?;
        Parsed::under(draft.finish()?, dropped, options.unknown_fields)
    }
}

/// Vectors are not shortened, because that only makes sense for models that were trained for it.
///
/// # Errors
/// 400 when `dimensions` asks for another size than `of_model`.
pub fn check_dimensions(asked: Option<u32>, of_model: u32) -> Result<(), Error> {
    match asked.filter(|&asked| asked != of_model) {
        Some(asked) => Err(common::conflict(
            "dimensions",
            format_args!("must be {of_model}, the size that this model has, got {asked}"),
        )),
        None => Ok(()),
    }
}

impl Draft {
    fn field(&mut self, reader: &mut Reader<'_>, key: &str, options: &Options) -> Result<(), Error> {
        match key {
            "input" => self.input = Some(completions::read_prompt(reader, &limits::EMBEDDING_INPUT)?),
            "encoding_format" => {
                self.encoding = match &*reader.string()? {
                    "float" => Encoding::Float,
                    "base64" => Encoding::Base64,
                    other => {
                        let problem = format!("must be `float` or `base64`, got `{}`", echo(other));
                        return Err(reader.refuse(problem));
                    }
                };
            }
            "dimensions" => self.dimensions = Some(reader.whole(&limits::DIMENSIONS)?),
            "add_special_tokens" => self.add_special_tokens = Some(reader.boolean()?),
            _ if limits::is_used(Routes::EMBEDDINGS, key) => {
                self.common.field(reader, key, Routes::EMBEDDINGS, options)?;
            }
            _ => common::other(reader, key, Routes::EMBEDDINGS)?,
        }
        Ok(())
    }

    fn finish(self) -> Result<Request, Error> {
        let input = self.input.ok_or_else(|| missing("input"))?;
        let common = self.common.finish(None)?;
        Ok(Request {
            routing: common.routing(),
            model: common.model,
            user: common.user,
            input,
            encoding: self.encoding,
            dimensions: self.dimensions,
            add_special_tokens: self.add_special_tokens.unwrap_or(true),
        })
    }
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Response {
    pub object: &'static str,
    pub data: Vec<Embedding>,
    pub model: String,
    pub usage: Usage,
}

/// One vector.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Embedding {
    pub object: &'static str,
    pub index: u32,
    pub embedding: Vector,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Vector {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub total_tokens: u32,
}

impl Response {
    /// `vectors` in the order of the input.
    pub fn new(model: &str, encoding: Encoding, vectors: Vec<Vec<f32>>, prompt_tokens: u32) -> Self {
        let data = vectors
            .into_iter()
            .zip(0..)
            .map(|(vector, index)| Embedding {
                object: "embedding",
                index,
                embedding: match encoding {
                    Encoding::Float => Vector::Float(vector),
                    Encoding::Base64 => Vector::Base64(base64(&vector)),
                },
            })
            .collect();
        let usage = Usage { prompt_tokens, total_tokens: prompt_tokens };
        Self { object: "list", data, model: model.to_owned(), usage }
    }
}

/// The little-endian bytes of `vector` in base64 (RFC 4648, section 4), padded.
fn base64(vector: &[f32]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        for digit in 0..4 {
            if digit <= chunk.len() {
                text.push(char::from(DIGITS[((bits >> (18 - 6 * digit)) & 63) as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn vectors_come_in_two_forms() {
        let response = |encoding| {
            serde_json::to_value(Response::new("m", encoding, vec![vec![1.0, -0.5], vec![0.25]], 7)).unwrap()
        };
        let expected = serde_json::json!({"object": "list", "model": "m", "usage": {"prompt_tokens": 7, "total_tokens": 7},
            "data": [{"object": "embedding", "index": 0, "embedding": [1.0, -0.5]},
                     {"object": "embedding", "index": 1, "embedding": [0.25]}]});
        assert_eq!(response(Encoding::Float), expected);
        let base64 = response(Encoding::Base64);
        // Computed with Python's base64 and struct modules.
        assert_eq!(base64["data"][0]["embedding"], "AACAPwAAAL8=");
        assert_eq!(base64["data"][1]["embedding"], "AACAPg==");
    }

    fn decode(text: &str) -> Vec<u8> {
        let value = |c: u8| match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            _ => 63,
        };
        let digits: Vec<u8> = text.bytes().filter(|&c| c != b'=').map(value).collect();
        let bits: Vec<u8> =
            digits.iter().flat_map(|digit| (0..6).rev().map(move |bit| (digit >> bit) & 1)).collect();
        bits.chunks_exact(8).map(|byte| byte.iter().fold(0, |byte, bit| (byte << 1) | bit)).collect()
    }

    proptest! {
        #[test]
        fn base64_comes_back(vector in prop::collection::vec(any::<f32>(), 0..20)) {
            let text = base64(&vector);
            prop_assert_eq!(text.len() % 4, 0);
            let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
            prop_assert_eq!(decode(&text), bytes);
        }
    }
}
