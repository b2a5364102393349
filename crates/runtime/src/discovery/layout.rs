//! How records lie in a store of keys and values (behaviour.md 3.2): one entry for the endpoint, one for the model it
//! serves, and beside them what is too large to be written once per worker.
//!
//! A record is there when both of its entries are, and what the model's entry refers to. Writers put the model's entry last
//! and take it away first.

use dynamo_types::{Instance, InstanceId, ModelCard, ModelRecord, TokenizerSpec, Transport};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_128;

/// First part of the keys of endpoints.
pub(super) const INSTANCES: &str = "v1/instances/";
/// First part of the keys of models.
pub(super) const MODELS: &str = "v1/mdc/";
/// First part of the keys of large texts that cards refer to by hash.
pub(super) const BLOBS: &str = "v1/blobs/";

/// Texts of a card up to this size stay in it. A tokenizer has some millions of bytes, and a worker's entry is read by every
/// frontend whenever it changes.
const INLINE_BYTES: usize = 16 << 10;

/// A large text, named by its own hash, so that all workers of a model share one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blob {
    pub(super) hash: String,
    pub(super) content: Arc<str>,
}

impl Blob {
    fn new(content: Arc<str>) -> Self {
        Self { hash: hash_of(&content), content }
    }
}

/// The name of a text.
fn hash_of(content: &str) -> String {
    format!("{:032x}", xxh3_128(content.as_bytes()))
}

/// Is this the text of that name? A store may hold half of one, or another.
pub(super) fn is_named(content: &str, hash: &str) -> bool {
    hash_of(content) == hash
}

/// One record as entries.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entries {
    pub(super) instance: (String, String),
    pub(super) model: (String, String),
    pub(super) blob: Option<Blob>,
}

/// `{namespace}/{component}/{endpoint}/{instance hex}`.
fn path(instance: &Instance) -> String {
    format!("{}/{}/{}/{}", instance.namespace, instance.component, instance.endpoint, instance.id)
}

#[derive(Serialize, Deserialize)]
struct InstanceValue {
    r#type: String,
    namespace: String,
    component: String,
    endpoint: String,
    instance_id: InstanceId,
    transport: Transport,
    #[serde(default)]
    draining: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct ModelValue {
    r#type: String,
    namespace: String,
    component: String,
    endpoint: String,
    instance_id: InstanceId,
    card_json: Value,
}

impl Entries {
    /// # Errors
    /// The record cannot be written as JSON.
    pub(super) fn of(record: &ModelRecord) -> Result<Self, serde_json::Error> {
        let instance = &record.instance;
        let path = path(instance);
        let endpoint = InstanceValue {
            r#type: "Endpoint".into(),
            namespace: instance.namespace.clone(),
            component: instance.component.clone(),
            endpoint: instance.endpoint.clone(),
            instance_id: instance.id,
            transport: instance.transport.clone(),
            draining: instance.draining,
            fault: instance.fault.clone(),
        };
        let mut card = serde_json::to_value(&*record.card)?;
        let blob = detach(&mut card);
        let model = ModelValue {
            r#type: "Model".into(),
            namespace: instance.namespace.clone(),
            component: instance.component.clone(),
            endpoint: instance.endpoint.clone(),
            instance_id: instance.id,
            card_json: card,
        };
        Ok(Self {
            instance: (format!("{INSTANCES}{path}"), serde_json::to_string(&endpoint)?),
            model: (format!("{MODELS}{path}"), serde_json::to_string(&model)?),
            blob,
        })
    }
}

/// Takes the tokenizer out of a card, if it is large.
fn detach(card: &mut Value) -> Option<Blob> {
    let text = card.pointer_mut("/tokenizer/json")?;
    let blob = match text {
        Value::String(content) if content.len() > INLINE_BYTES => Blob::new(content.as_str().into()),
        _ => return None,
    };
    *text = json!({ "blob": blob.hash });
    Some(blob)
}

/// The large text that a model's entry refers to, if any.
pub(super) fn blob_of(model: &str) -> Option<String> {
    let value: Value = serde_json::from_str(model).ok()?;
    value.pointer("/card_json/tokenizer/json/blob")?.as_str().map(str::to_owned)
}

/// Puts records together from what a store holds. Whatever is not whole or not readable is left out and described.
pub(super) fn assemble<'a>(
    instances: impl IntoIterator<Item = (&'a str, &'a str)>,
    models: impl IntoIterator<Item = (&'a str, &'a str)>,
    blob: impl Fn(&str) -> Option<Arc<str>>,
) -> (Vec<ModelRecord>, Vec<String>) {
    let mut faults = Vec::new();
    let mut endpoints = BTreeMap::new();
    for (key, value) in instances {
        match serde_json::from_str::<InstanceValue>(value) {
            Ok(value) => {
                endpoints.insert(value.instance_id, value);
            }
            Err(error) => faults.push(format!("{key}: {error}")),
        }
    }
    let mut records = Vec::new();
    for (key, value) in models {
        match model(value, &mut endpoints, &blob) {
            Ok(Some(record)) => records.push(record),
            // Half of a record: the other half is on its way, or gone already.
            Ok(None) => {}
            Err(error) => faults.push(format!("{key}: {error}")),
        }
    }
    records.sort_by_key(|record| record.instance.id);
    (records, faults)
}

fn model(
    value: &str,
    endpoints: &mut BTreeMap<InstanceId, InstanceValue>,
    blob: &impl Fn(&str) -> Option<Arc<str>>,
) -> Result<Option<ModelRecord>, String> {
    let mut value: ModelValue = serde_json::from_str(value).map_err(|error| error.to_string())?;
    let mut shared = None;
    if let Some(text) = value.card_json.pointer_mut("/tokenizer/json")
        && let Some(hash) = text.get("blob").and_then(Value::as_str)
    {
        let Some(content) = blob(hash) else { return Ok(None) };
        shared = Some(content);
        *text = Value::String(String::new());
    }
    let mut card: ModelCard =
        serde_json::from_value(value.card_json).map_err(|error| format!("card: {error}"))?;
    if let (Some(content), TokenizerSpec::HuggingFace { json }) = (shared, &mut card.tokenizer) {
        // Not a copy: hundreds of workers of one model refer to one text.
        *json = content;
    }
    let Some(endpoint) = endpoints.remove(&value.instance_id) else { return Ok(None) };
    Ok(Some(ModelRecord {
        instance: Instance {
            namespace: endpoint.namespace,
            component: endpoint.component,
            endpoint: endpoint.endpoint,
            id: endpoint.instance_id,
            transport: endpoint.transport,
            draining: endpoint.draining,
            fault: endpoint.fault,
        },
        card: Arc::new(card),
    }))
}

/// A key as a file name: everything but letters and digits as `%XX`.
pub(super) fn file_name(key: &str) -> String {
    let mut name = String::with_capacity(key.len() + 16);
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() {
            name.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(name, "%{byte:02X}");
        }
    }
    name
}

/// The key of a file name; none if it is no name of ours.
pub(super) fn key_of(name: &str) -> Option<String> {
    let mut key = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte == b'%' {
            let (digits, after) = after.split_first_chunk::<2>()?;
            key.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else if byte.is_ascii_alphanumeric() {
            key.push(byte);
            rest = after;
        } else {
            return None;
        }
    }
    String::from_utf8(key).ok()
}

#[cfg(test)]
mod tests {
    use super::super::fixture::record;
    use super::*;

    fn large(id: u64) -> ModelRecord {
        let mut record = record(id, "a/b", 16);
        let mut card = (*record.card).clone();
        card.tokenizer = TokenizerSpec::HuggingFace { json: "é".repeat(INLINE_BYTES).into() };
        record.card = Arc::new(card);
        record.instance.transport = Transport::Tcp("10.0.0.1:9".into());
        record
    }

    fn put_together(all: &[Entries], with_blobs: bool) -> (Vec<ModelRecord>, Vec<String>) {
        assemble(
            all.iter().map(|entries| (entries.instance.0.as_str(), entries.instance.1.as_str())),
            all.iter().map(|entries| (entries.model.0.as_str(), entries.model.1.as_str())),
            |hash| {
                let blobs = all.iter().filter_map(|entries| entries.blob.as_ref());
                blobs
                    .filter(|_| with_blobs)
                    .find(|blob| blob.hash == hash)
                    .map(|blob| Arc::clone(&blob.content))
            },
        )
    }

    #[test]
    fn records_survive_and_large_texts_are_kept_once() {
        let records = vec![record(1, "m", 16), large(2), large(3)];
        let entries: Vec<Entries> = records.iter().map(|record| Entries::of(record).unwrap()).collect();
        assert_eq!(entries[0].instance.0, "v1/instances/dynamo/backend/generate/1");
        assert_eq!(entries[1].model.0, "v1/mdc/dynamo/backend/generate/2");
        assert_eq!(entries[1].blob, entries[2].blob);
        assert!(entries[1].model.1.len() < 2000);
        assert_eq!(blob_of(&entries[1].model.1), Some(entries[1].blob.clone().unwrap().hash));
        assert_eq!(put_together(&entries, true), (records.clone(), vec![]));
        let (whole, faults) = put_together(&entries, false);
        assert_eq!((whole, faults), (vec![records[0].clone()], vec![]), "its tokenizer is not there yet");
    }

    #[test]
    fn what_is_broken_or_half_is_left_out_and_the_rest_stays() {
        let good = Entries::of(&record(1, "m", 16)).unwrap();
        let half = Entries::of(&record(2, "m", 16)).unwrap();
        let (records, faults) = assemble(
            [("a", good.instance.1.as_str()), ("b", "{"), ("c", "{\"type\":\"Endpoint\"}")],
            [("d", good.model.1.as_str()), ("e", half.model.1.as_str()), ("f", "[]")],
            |_| None,
        );
        assert_eq!(records, [record(1, "m", 16)]);
        assert_eq!(faults.iter().map(|fault| &fault[..2]).collect::<Vec<_>>(), ["b:", "c:", "f:"]);
        let blob = Entries::of(&large(3)).unwrap().blob.unwrap();
        assert!(is_named(&blob.content, &blob.hash) && !is_named(&blob.content[2..], &blob.hash));
    }

    #[test]
    fn file_names_are_keys_and_back() {
        assert_eq!(file_name("v1/mdc/a-b_c"), "v1%2Fmdc%2Fa%2Db%5Fc");
        for key in ["", "v1/x", "ü/%2F", "a b\u{0}"] {
            assert_eq!(key_of(&file_name(key)).as_deref(), Some(key));
        }
        for name in ["a.tmp", "a%2", "a%zz", "%FF"] {
            assert_eq!(key_of(name), None, "{name}");
        }
    }
}
