//! The payload of a message of KV events, in both forms: `[time, [event, ...], dp_rank]`, each event a map with its `type`, or an
//! array that begins with it (engines.md 3.1). Hashes are integers of either sign or bytes. Unknown keys and kinds are skipped.

use super::msgpack::{self, Value};
use dynamo_types::hash::{SEED, local_hash};
use dynamo_types::{KvEvent, StorageTier};
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

/// What an engine says. Hashes are the engine's own names, as 64 bits.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum EngineEvent {
    Stored(Stored),
    Removed { hashes: Vec<u64>, tier: StorageTier, group: Option<u64> },
    Cleared,
}

/// A chain of blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Stored {
    pub(super) hashes: Vec<u64>,
    pub(super) parent: Option<u64>,
    /// Of all blocks, one after another.
    pub(super) tokens: Vec<u32>,
    pub(super) block_size: u64,
    pub(super) tier: StorageTier,
    /// Name of the adapter, or its number if the engine gives no name.
    pub(super) lora: Option<String>,
    pub(super) salt: Option<String>,
    /// What besides the tokens decides the content of each block; may be shorter than `hashes`.
    pub(super) extra: Vec<Extra>,
    /// Of the engine's groups of layers, the one whose blocks these are.
    pub(super) group: Option<u64>,
    /// The group keeps whole prefixes. Others, such as sliding windows, keep what no prefix can be built on.
    pub(super) is_prefix: bool,
}

/// A block's entry of `extra_keys`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Extra {
    None,
    /// One text: the salt, if the block is the first of its prompt.
    Text(String),
    /// Media or anything else, as a digest.
    Other(u64),
}

/// A message.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Payload {
    pub(super) events: Vec<EngineEvent>,
    pub(super) dp_rank: Option<u32>,
    /// Events of a known kind that could not be understood.
    pub(super) skipped: u64,
}

/// None: this is no message of KV events.
pub(super) fn decode(bytes: &[u8]) -> Option<Payload> {
    let value = msgpack::read(bytes)?;
    let (events, rank) = match &value {
        Value::Array(parts) => (parts.get(1)?, parts.get(2)),
        Value::Map(_) => (value.named("events")?, value.named("data_parallel_rank")),
        _ => return None,
    };
    let mut payload = Payload {
        dp_rank: rank.and_then(Value::unsigned).and_then(|rank| u32::try_from(rank).ok()),
        ..Payload::default()
    };
    for event in events.array()? {
        match Fields::of(event).map(|fields| fields.event()) {
            Some(Ok(event)) => payload.events.push(event),
            Some(Err(Unknown::Kind)) => {}
            Some(Err(Unknown::Shape)) | None => payload.skipped += 1,
        }
    }
    Some(payload)
}

/// Why an event is not used.
enum Unknown {
    /// Of a kind that says nothing about blocks.
    Kind,
    Shape,
}

/// An event in either form.
struct Fields<'a> {
    kind: &'a str,
    value: &'a Value<'a>,
}

/// The places of the array form, after the kind.
const STORED: [&str; 8] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
];
const REMOVED: [&str; 2] = ["block_hashes", "medium"];

impl<'a> Fields<'a> {
    fn of(value: &'a Value<'a>) -> Option<Self> {
        let kind = match value {
            Value::Array(items) => items.first()?.text()?,
            _ => value.named("type")?.text()?,
        };
        Some(Self { kind, value })
    }

    /// The field, if it is there and not nil.
    fn get(&self, places: &[&str], name: &str) -> Option<&'a Value<'a>> {
        let found = match self.value {
            Value::Array(items) => {
                places.iter().position(|place| *place == name).and_then(|at| items.get(at + 1))
            }
            map => map.named(name),
        };
        found.filter(|value| **value != Value::Nil)
    }

    /// What stands behind the places of the array form: newer engines put there, in an order that changed, a number and a
    /// text that we know by their kind.
    fn tail(&self, places: &[&str]) -> &'a [Value<'a>] {
        match self.value {
            Value::Array(items) => items.get(places.len() + 1..).unwrap_or_default(),
            _ => &[],
        }
    }

    fn group(&self, places: &[&str]) -> Option<u64> {
        let named = self.get(places, "group_idx").and_then(Value::unsigned);
        named.or_else(|| self.tail(places).iter().find_map(Value::unsigned))
    }

    fn event(&self) -> Result<EngineEvent, Unknown> {
        match self.kind {
            "BlockStored" => self.stored().map(EngineEvent::Stored).ok_or(Unknown::Shape),
            "BlockRemoved" => {
                let hashes = self.get(&REMOVED, "block_hashes").and_then(hashes).ok_or(Unknown::Shape)?;
                let tier = tier(self.get(&REMOVED, "medium"));
                Ok(EngineEvent::Removed { hashes, tier, group: self.group(&REMOVED) })
            }
            "AllBlocksCleared" => Ok(EngineEvent::Cleared),
            _ => Err(Unknown::Kind),
        }
    }

    fn stored(&self) -> Option<Stored> {
        let get = |name| self.get(&STORED, name);
        let text = |name| get(name).and_then(Value::text).filter(|text| !text.is_empty()).map(str::to_owned);
        let number = get("lora_id").and_then(Value::unsigned).map(|id| id.to_string());
        let lora = text("lora_name").or(number);
        let tokens = get("token_ids")?.array()?.iter();
        let kind =
            get("kv_cache_spec_kind").or_else(|| self.tail(&STORED).iter().find(|v| v.text().is_some()));
        let extra = get("extra_keys").and_then(Value::array).unwrap_or_default();
        Some(Stored {
            hashes: hashes(get("block_hashes")?)?,
            parent: match get("parent_block_hash") {
                Some(parent) => Some(hash(parent)?),
                None => None,
            },
            tokens: tokens.map(|token| u32::try_from(token.unsigned()?).ok()).collect::<Option<_>>()?,
            block_size: get("block_size")?.unsigned()?,
            tier: tier(get("medium")),
            salt: text("cache_salt"),
            extra: extra.iter().map(|keys| extra_of(keys, lora.as_deref())).collect(),
            lora,
            group: self.group(&STORED),
            is_prefix: kind.and_then(Value::text).is_none_or(|kind| kind == "full_attention"),
        })
    }
}

fn hashes(value: &Value<'_>) -> Option<Vec<u64>> {
    value.array()?.iter().map(hash).collect()
}

/// Any name of a block as 64 bits: signed ones by their bits, long ones by their digest.
fn hash(value: &Value<'_>) -> Option<u64> {
    match value {
        Value::Int(number) => {
            u64::try_from(*number).ok().or_else(|| i64::try_from(*number).ok().map(i64::cast_unsigned))
        }
        Value::Bin(bytes) | Value::Str(bytes) => {
            Some(<[u8; 8]>::try_from(*bytes).map_or_else(|_| xxh3_64(bytes), u64::from_be_bytes))
        }
        _ => None,
    }
}

fn tier(medium: Option<&Value<'_>>) -> StorageTier {
    match medium.and_then(Value::text) {
        None | Some("GPU") => StorageTier::Device,
        Some("CPU" | "CPU_PINNED") => StorageTier::HostPinned,
        Some("DISK") => StorageTier::Disk,
        Some(_) => StorageTier::External,
    }
}

/// One block's keys; the adapter's name among them is known already.
fn extra_of(keys: &Value<'_>, lora: Option<&str>) -> Extra {
    let keys: Vec<&Value<'_>> = match keys {
        Value::Nil => return Extra::None,
        Value::Array(keys) => {
            keys.iter().filter(|key| **key != Value::Nil && (lora.is_none() || key.text() != lora)).collect()
        }
        key => vec![key],
    };
    match keys.as_slice() {
        [] => Extra::None,
        [Value::Str(text)] if std::str::from_utf8(text).is_ok() => {
            Extra::Text(String::from_utf8_lossy(text).into_owned())
        }
        // Only has to differ where the keys do, within one life of this process.
        keys => Extra::Other(xxh3_64(format!("{keys:?}").as_bytes())),
    }
}

/// An event as it is sent, in the form with names; what is at its default is left out.
#[derive(Serialize)]
#[serde(tag = "type")]
enum Sent<'a> {
    BlockStored {
        block_hashes: Vec<u64>,
        parent_block_hash: Option<u64>,
        token_ids: Vec<u32>,
        block_size: usize,
        medium: &'static str,
    },
    BlockRemoved {
        block_hashes: &'a [u64],
        medium: &'static str,
    },
    AllBlocksCleared {},
}

/// Our events as a payload; none if nothing is to be said. `tokens` are those of all stored blocks, in their order. Blocks whose
/// hash comes of more than their tokens are left out, with those that follow them: their salts are nobody else's business, and
/// without them the blocks would look like what they are not.
pub(super) fn encode(events: &[KvEvent], tokens: &[u32], time_s: f64, dp_rank: u32) -> Option<Vec<u8>> {
    let count: usize = events
        .iter()
        .map(|event| if let KvEvent::Stored { blocks, .. } = event { blocks.len() } else { 0 })
        .sum();
    let block_size = tokens.len().checked_div(count).unwrap_or_default();
    let mut tokens = tokens.chunks_exact(block_size.max(1));
    let mut sent = Vec::with_capacity(events.len());
    for event in events {
        match event {
            KvEvent::Stored { parent, blocks, tier } => {
                let (mut block_hashes, mut token_ids) = (Vec::new(), Vec::new());
                let mut plain = true;
                for block in blocks {
                    let tokens = tokens.next().unwrap_or_default();
                    plain &= !tokens.is_empty() && local_hash(tokens, SEED) == block.tokens_hash;
                    if plain {
                        block_hashes.push(block.block_hash);
                        token_ids.extend_from_slice(tokens);
                    }
                }
                if !block_hashes.is_empty() {
                    let (parent_block_hash, medium) = (*parent, medium(*tier));
                    sent.push(Sent::BlockStored {
                        block_hashes,
                        parent_block_hash,
                        token_ids,
                        block_size,
                        medium,
                    });
                }
            }
            KvEvent::Removed { hashes, tier } => {
                sent.push(Sent::BlockRemoved { block_hashes: hashes, medium: medium(*tier) });
            }
            KvEvent::Cleared => sent.push(Sent::AllBlocksCleared {}),
        }
    }
    if sent.is_empty() {
        return None;
    }
    rmp_serde::to_vec_named(&(time_s, sent, dp_rank)).ok()
}

fn medium(tier: StorageTier) -> &'static str {
    match tier {
        StorageTier::Device => "GPU",
        StorageTier::HostPinned => "CPU_PINNED",
        StorageTier::Disk => "DISK",
        StorageTier::External => "EXTERNAL",
    }
}
