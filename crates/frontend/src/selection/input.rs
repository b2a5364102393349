//! The bodies of all calls: one set of fields, of which each call uses some. Numbers of workers and hashes may be signed,
//! unsigned, or decimal texts, because JSON's numbers are too small for them in some languages.

use dynamo_protocols::{UnknownFields, echo};
use dynamo_types::{Error, InstanceId, Result};
use serde::de::{DeserializeOwned, Deserializer, Error as _, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, de};
use std::fmt;

/// Longest name of a model, reservation, adapter or salt, in bytes.
const NAME_MAX_BYTES: usize = 512;
/// Workers of `allowed_worker_ids`.
const MAX_ALLOWED: usize = 4096;
/// Unknown fields that are named in the answer.
const MAX_IGNORED: usize = 32;

/// What a body said. `null` is absent.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Input {
    pub(super) model_name: Option<String>,
    pub(super) token_ids: Option<Vec<u32>>,
    pub(super) block_hashes: Option<Vec<u64>>,
    pub(super) sequence_hashes: Option<Vec<u64>>,
    pub(super) isl_tokens: Option<u32>,
    pub(super) prompt: Option<String>,
    pub(super) lora_name: Option<String>,
    pub(super) cache_salt: Option<String>,
    pub(super) selection_id: Option<String>,
    pub(super) worker_id: Option<InstanceId>,
    pub(super) dp_rank: Option<u32>,
    pub(super) pinned_worker: Option<Pin>,
    pub(super) allowed_worker_ids: Option<Vec<InstanceId>>,
    pub(super) expected_output_tokens: Option<u32>,
    pub(super) decay_fraction: Option<f64>,
    pub(super) endpoint: Option<String>,
    pub(super) block_size: Option<u32>,
    pub(super) data_parallel_start_rank: Option<u32>,
    pub(super) data_parallel_size: Option<u32>,
    pub(super) max_num_batched_tokens: Option<u32>,
    pub(super) total_kv_blocks: Option<u32>,
    pub(super) schedulable: Option<bool>,
}

/// A worker, and a rank if it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pin {
    #[serde(deserialize_with = "worker")]
    pub(super) worker_id: InstanceId,
    pub(super) dp_rank: Option<u32>,
}

impl Input {
    /// Reads a body; an empty one says nothing. Also the names of the fields that nobody knows.
    ///
    /// # Errors
    /// 400 that names the field and what is wrong with it; unknown fields if they are to be refused.
    pub(super) fn parse(body: &[u8], unknown: UnknownFields) -> Result<(Self, Vec<String>)> {
        if body.is_empty() {
            return Ok((Self::default(), Vec::new()));
        }
        let Read { input, ignored } =
            serde_json::from_slice(body).map_err(|error| Error::invalid(error.to_string()))?;
        if unknown == UnknownFields::Reject
            && let Some(name) = ignored.first()
        {
            return Err(Error::invalid(format!("unknown field `{}`", echo(name))));
        }
        input.check()?;
        Ok((input, ignored))
    }

    fn check(&self) -> Result<()> {
        let names = [
            ("model_name", &self.model_name),
            ("lora_name", &self.lora_name),
            ("cache_salt", &self.cache_salt),
            ("selection_id", &self.selection_id),
            ("endpoint", &self.endpoint),
        ];
        for (field, name) in names {
            if let Some(found) = name.as_ref().map(String::len).filter(|len| *len > NAME_MAX_BYTES) {
                return Err(Error::invalid(format!(
                    "{field} must have at most {NAME_MAX_BYTES} bytes, found {found}"
                )));
            }
        }
        for (field, name) in [
            ("model_name", &self.model_name),
            ("selection_id", &self.selection_id),
            ("endpoint", &self.endpoint),
        ] {
            if name.as_ref().is_some_and(String::is_empty) {
                return Err(Error::invalid(format!("{field} must not be empty")));
            }
        }
        if let Some(found) = self.allowed_worker_ids.as_ref().map(Vec::len).filter(|len| *len > MAX_ALLOWED) {
            return Err(Error::invalid(format!(
                "allowed_worker_ids must have at most {MAX_ALLOWED} entries, found {found}"
            )));
        }
        match self.decay_fraction.filter(|share| !(0.0..=1.0).contains(share)) {
            Some(found) => {
                Err(Error::invalid(format!("decay_fraction must be between 0 and 1, found {found}")))
            }
            None => Ok(()),
        }
    }
}

/// A body and the names that had no place in it.
struct Read {
    input: Input,
    ignored: Vec<String>,
}

impl<'de> Deserialize<'de> for Read {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields)
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Read;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Read, A::Error> {
        let mut read = Read { input: Input::default(), ignored: Vec::new() };
        let input = &mut read.input;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "model_name" | "model" => input.model_name = value(&mut map, &key)?,
                "token_ids" => input.token_ids = value(&mut map, &key)?,
                "block_hashes" => input.block_hashes = value::<Wides, A>(&mut map, &key)?.map(Wides::plain),
                "sequence_hashes" => {
                    input.sequence_hashes = value::<Wides, A>(&mut map, &key)?.map(Wides::plain);
                }
                "isl_tokens" => input.isl_tokens = value(&mut map, &key)?,
                "prompt" => input.prompt = value(&mut map, &key)?,
                "lora_name" => input.lora_name = value(&mut map, &key)?,
                "cache_salt" | "cache_namespace" => input.cache_salt = value(&mut map, &key)?,
                "selection_id" | "request_id" => input.selection_id = value(&mut map, &key)?,
                "worker_id" => {
                    input.worker_id = value::<Wide, A>(&mut map, &key)?.map(|wide| InstanceId(wide.0));
                }
                "dp_rank" => input.dp_rank = value(&mut map, &key)?,
                "pinned_worker" => input.pinned_worker = value(&mut map, &key)?,
                "allowed_worker_ids" => {
                    let ids = value::<Wides, A>(&mut map, &key)?.map(Wides::plain);
                    input.allowed_worker_ids = ids.map(|ids| ids.into_iter().map(InstanceId).collect());
                }
                "expected_output_tokens" => input.expected_output_tokens = value(&mut map, &key)?,
                "decay_fraction" => input.decay_fraction = value(&mut map, &key)?,
                "endpoint" => input.endpoint = value(&mut map, &key)?,
                "block_size" => input.block_size = value(&mut map, &key)?,
                "data_parallel_start_rank" => input.data_parallel_start_rank = value(&mut map, &key)?,
                "data_parallel_size" => input.data_parallel_size = value(&mut map, &key)?,
                "max_num_batched_tokens" => input.max_num_batched_tokens = value(&mut map, &key)?,
                "total_kv_blocks" => input.total_kv_blocks = value(&mut map, &key)?,
                "schedulable" => input.schedulable = value(&mut map, &key)?,
                _ => {
                    map.next_value::<de::IgnoredAny>()?;
                    if read.ignored.len() < MAX_IGNORED {
                        read.ignored.push(key);
                    }
                }
            }
        }
        Ok(read)
    }
}

/// The value of a field; a fault in it names the field.
fn value<'de, T: DeserializeOwned, A: MapAccess<'de>>(map: &mut A, key: &str) -> Result<Option<T>, A::Error> {
    map.next_value().map_err(|error| A::Error::custom(format_args!("{key}: {error}")))
}

/// 64 bits, however they are written.
struct Wide(u64);

/// Many of them.
#[derive(Deserialize)]
struct Wides(Vec<Wide>);

impl Wides {
    fn plain(self) -> Vec<u64> {
        self.0.into_iter().map(|wide| wide.0).collect()
    }
}

impl<'de> Deserialize<'de> for Wide {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WideVisitor)
    }
}

struct WideVisitor;

impl Visitor<'_> for WideVisitor {
    type Value = Wide;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer of 64 bits, or one as a decimal text")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Wide, E> {
        Ok(Wide(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Wide, E> {
        Ok(Wide(value.cast_unsigned()))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Wide, E> {
        let signed = || text.parse::<i64>().map(i64::cast_unsigned);
        text.parse()
            .or_else(|_| signed())
            .map(Wide)
            .map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
    }
}

fn worker<'de, D: Deserializer<'de>>(deserializer: D) -> Result<InstanceId, D::Error> {
    Wide::deserialize(deserializer).map(|wide| InstanceId(wide.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(body: &serde_json::Value) -> Result<(Input, Vec<String>)> {
        Input::parse(body.to_string().as_bytes(), UnknownFields::Warn)
    }

    #[test]
    fn wide_numbers_come_in_three_ways() {
        let body = json!({ "block_hashes": [-1, u64::MAX, "18446744073709551615", "-1", 7],
            "worker_id": "12", "pinned_worker": { "worker_id": u64::MAX, "dp_rank": 3 } });
        let (input, ignored) = parse(&body).unwrap();
        assert_eq!(input.block_hashes.unwrap(), [u64::MAX, u64::MAX, u64::MAX, u64::MAX, 7]);
        assert_eq!(input.worker_id, Some(InstanceId(12)));
        assert_eq!(input.pinned_worker, Some(Pin { worker_id: InstanceId(u64::MAX), dp_rank: Some(3) }));
        assert!(ignored.is_empty());
    }

    #[test]
    fn null_is_absent_other_names_are_known_and_unknown_ones_are_told() {
        let body = json!({ "token_ids": null, "request_id": "r", "model": "m", "priority_jump": 2,
            "session_context": { "deep": [1] } });
        let (input, ignored) = parse(&body).unwrap();
        let expected =
            Input { model_name: Some("m".into()), selection_id: Some("r".into()), ..Input::default() };
        assert_eq!(input, expected);
        assert_eq!(ignored, ["priority_jump", "session_context"]);
        assert_eq!(Input::parse(b"", UnknownFields::Reject).unwrap().0, Input::default());
        let refused = Input::parse(body.to_string().as_bytes(), UnknownFields::Reject).unwrap_err();
        assert_eq!(refused.message(), "unknown field `priority_jump`");
    }

    #[test]
    fn faults_name_their_field() {
        for (body, field) in [
            (json!({ "token_ids": "x" }), "token_ids"),
            (json!({ "token_ids": [1, -1] }), "token_ids"),
            (json!({ "block_hashes": ["ff"] }), "block_hashes"),
            (json!({ "sequence_hashes": [1.5] }), "sequence_hashes"),
            (json!({ "worker_id": "18446744073709551616" }), "worker_id"),
            (json!({ "pinned_worker": { "worker": 1 } }), "pinned_worker"),
            (json!({ "decay_fraction": 1.01 }), "decay_fraction"),
            (json!({ "decay_fraction": -0.1 }), "decay_fraction"),
            (json!({ "selection_id": "" }), "selection_id"),
            (json!({ "selection_id": "x".repeat(513) }), "selection_id"),
            (json!({ "allowed_worker_ids": vec![1; 4097] }), "allowed_worker_ids"),
        ] {
            let error = parse(&body).unwrap_err();
            assert!(error.message().starts_with(field), "{}", error.message());
        }
        for body in ["[]", "7", "{", "{\"a\":}", "\"x\""] {
            assert!(Input::parse(body.as_bytes(), UnknownFields::Warn).is_err(), "{body}");
        }
    }
}
