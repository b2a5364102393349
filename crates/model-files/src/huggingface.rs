//! A Hugging Face directory: `config.json`, `tokenizer.json`, `tokenizer_config.json`, `generation_config.json`,
//! `chat_template.jinja`, and safetensors in one file or in several with an index.

use crate::config::MAX_WIDTH;
use crate::error::quoted;
use crate::files::Description;
use crate::{Architecture, Config, Encoding, Error, Tensor};
use dynamo_types::SpecialTokens;
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest JSON or template file that is read: the largest tokenizers have about 35 MB.
const MAX_TEXT_BYTES: u64 = 256 << 20;

/// Longest safetensors header; the format itself says 100 MB.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The fields of `config.json` that matter, those that must have one value included.
#[derive(Deserialize)]
struct ConfigJson {
    model_type: String,
    num_hidden_layers: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    rms_norm_eps: f64,
    vocab_size: usize,
    max_position_embeddings: usize,
    #[serde(default)]
    tie_word_embeddings: bool,
    rope_theta: Option<f64>,
    rope_scaling: Option<Rope>,
    rope_parameters: Option<Rope>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    hidden_act: Option<String>,
    bos_token_id: Option<u32>,
    eos_token_id: Option<Ids>,
}

/// `rope_scaling` of older files, `rope_parameters` of newer ones.
#[derive(Deserialize)]
struct Rope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u32),
    Many(Vec<u32>),
}

impl Ids {
    fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        }
    }
}

#[derive(Deserialize)]
struct GenerationJson {
    eos_token_id: Option<Ids>,
}

/// One tensor inside a safetensors file.
#[derive(Deserialize)]
struct HeaderEntry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

#[derive(Debug)]
struct Location {
    file: usize,
    encoding: Encoding,
    rows: usize,
    columns: usize,
    offset: u64,
    bytes: usize,
}

/// The weights of a directory: headers in memory, tensors on disk.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    path: PathBuf,
    files: Vec<(PathBuf, fs::File)>,
    /// By canonical name.
    tensors: HashMap<String, Location>,
}

pub(crate) fn open(path: &Path) -> Result<(Config, Checkpoint, Description), Error> {
    let (config, description) = open_description(path)?;
    Ok((config, Checkpoint::open(path)?, description))
}

/// All but the weights.
pub(crate) fn open_description(path: &Path) -> Result<(Config, Description), Error> {
    let raw: ConfigJson = json_file(&path.join("config.json"))?;
    let config = config(&path.join("config.json"), &raw)?;
    let config = Config { tied_embeddings: raw.tie_word_embeddings, ..config };
    let description = describe(path, &raw)?;
    Ok((config, description))
}

/// The content of a text file; None if it is not there.
fn text_file(path: &Path) -> Result<Option<String>, Error> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(path, "file", &error)),
        Ok(metadata) if metadata.len() > MAX_TEXT_BYTES => {
            let expected = format!("at most {MAX_TEXT_BYTES} bytes");
            return Err(Error::new(path, "file", expected, metadata.len()));
        }
        Ok(_) => {}
    }
    fs::read_to_string(path).map(Some).map_err(|error| Error::io(path, "file", &error))
}

fn required_text(path: &Path) -> Result<String, Error> {
    text_file(path)?.ok_or_else(|| Error::new(path, "file", "a file of the model", "nothing there"))
}

fn parse_json<T: serde::de::DeserializeOwned>(path: &Path, text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| Error::new(path, "JSON", "the known fields", error))
}

fn json_file<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, Error> {
    parse_json(path, &required_text(path)?)
}

fn config(path: &Path, raw: &ConfigJson) -> Result<Config, Error> {
    let architecture = Architecture::parse(&raw.model_type)
        .ok_or_else(|| Error::new(path, "model_type", Architecture::SUPPORTED, quoted(&raw.model_type)))?;
    for (field, set) in [("attention_bias", raw.attention_bias), ("mlp_bias", raw.mlp_bias)] {
        if set {
            return Err(Error::new(path, field, "false", "true"));
        }
    }
    match raw.hidden_act.as_deref() {
        None | Some("silu" | "swish") => {}
        Some(other) => return Err(Error::new(path, "hidden_act", "silu", quoted(other))),
    }
    let heads = raw.num_attention_heads;
    let head_dim = raw.head_dim.unwrap_or(raw.hidden_size.checked_div(heads).unwrap_or(0));
    let rope = raw.rope_parameters.as_ref().or(raw.rope_scaling.as_ref());
    let theta = rope.and_then(|rope| rope.rope_theta).or(raw.rope_theta).unwrap_or(10_000.0);
    Ok(Config {
        architecture,
        layers: raw.num_hidden_layers,
        hidden: raw.hidden_size,
        feed_forward: raw.intermediate_size,
        heads,
        kv_heads: raw.num_key_value_heads.unwrap_or(heads),
        head_dim,
        rope_theta: theta,
        rope_factors: rope.map(|rope| rope_factors(path, rope, theta, head_dim)).transpose()?.flatten(),
        rope_interleaved: true,
        norm_epsilon: raw.rms_norm_eps as f32,
        vocab_size: raw.vocab_size,
        context_length: raw.max_position_embeddings,
        tied_embeddings: raw.tie_word_embeddings,
    })
}

/// The divisors of the frequencies, by the rule Llama 3.1 published: long waves are stretched by `factor`, short ones
/// stay, those between are blended.
fn rope_factors(path: &Path, rope: &Rope, theta: f64, head_dim: usize) -> Result<Option<Vec<f32>>, Error> {
    match rope.rope_type.as_deref() {
        None | Some("default") => return Ok(None),
        Some("llama3") => {}
        Some(other) => {
            return Err(Error::new(path, "rope_type", "one of: default, llama3", quoted(other)));
        }
    }
    if head_dim > MAX_WIDTH {
        return Err(Error::new(path, "head dimension", format!("at most {MAX_WIDTH}"), head_dim.to_string()));
    }
    let field = |name: &str, value: Option<f64>| {
        value
            .filter(|value| value.is_finite() && *value > 0.0)
            .ok_or_else(|| Error::new(path, format!("rope {name}"), "a positive number", "none"))
    };
    let factor = field("factor", rope.factor)?;
    let low = field("low_freq_factor", rope.low_freq_factor)?;
    let high = field("high_freq_factor", rope.high_freq_factor)?;
    let context = field("original_max_position_embeddings", rope.original_max_position_embeddings)?;
    let divisor = |pair: usize| {
        let wave = 2.0 * std::f64::consts::PI * theta.powf(2.0 * pair as f64 / head_dim as f64);
        if wave < context / high {
            1.0
        } else if wave > context / low {
            factor
        } else {
            let smooth = (context / wave - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    Ok(Some((0..head_dim / 2).map(|pair| divisor(pair) as f32).collect()))
}

/// A token in `tokenizer_config.json`: a text, or an object with `content`.
fn token_text(fields: &Map<String, Json>, name: &str) -> Option<String> {
    let value = fields.get(name)?;
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

/// The template itself, or the one called `default` of several.
fn template(fields: &Map<String, Json>) -> Option<String> {
    let value = fields.get("chat_template")?;
    if let Some(text) = value.as_str() {
        return Some(text.to_owned());
    }
    let named =
        value.as_array()?.iter().find(|entry| entry.get("name").and_then(Json::as_str) == Some("default"))?;
    named.get("template")?.as_str().map(str::to_owned)
}

/// What a `tokenizer.json` says besides the vocabulary and its merges, which are nearly all of it: some megabytes that would
/// become many more, and most of them would stay with the process.
#[derive(Deserialize)]
struct TokenizerJson {
    #[serde(default)]
    added_tokens: Json,
    #[serde(default)]
    post_processor: Json,
}

impl TokenizerJson {
    fn added_id(&self, text: &str) -> Option<u32> {
        let entry = |entry: &&Json| entry.get("content").and_then(Json::as_str) == Some(text);
        as_id(self.added_tokens.as_array()?.iter().find(entry)?.get("id")?)
    }
}

/// The id of a special token that is an ordinary entry of the vocabulary, which is rare.
fn vocabulary_id(tokenizer_json: &str, text: &str) -> Option<u32> {
    #[derive(Deserialize)]
    struct Whole {
        model: Model,
    }
    #[derive(Deserialize)]
    struct Model {
        vocab: Json,
    }
    as_id(serde_json::from_str::<Whole>(tokenizer_json).ok()?.model.vocab.get(text)?)
}

fn as_id(id: &Json) -> Option<u32> {
    id.as_u64().and_then(|id| u32::try_from(id).ok())
}

fn describe(path: &Path, raw: &ConfigJson) -> Result<Description, Error> {
    let tokenizer_path = path.join("tokenizer.json");
    let tokenizer_json = required_text(&tokenizer_path)?;
    let tokenizer: TokenizerJson = parse_json(&tokenizer_path, &tokenizer_json)?;
    let id_of = |text: &str| tokenizer.added_id(text).or_else(|| vocabulary_id(&tokenizer_json, text));
    let config_path = path.join("tokenizer_config.json");
    let fields: Map<String, Json> = match text_file(&config_path)? {
        Some(text) => parse_json(&config_path, &text)?,
        None => Map::new(),
    };
    let bos_text = token_text(&fields, "bos_token");
    let eos_text = token_text(&fields, "eos_token");
    let bos = bos_text.as_deref().and_then(id_of).or(raw.bos_token_id);
    let mut eos: Vec<u32> = eos_text.as_deref().and_then(id_of).into_iter().collect();
    let generation_path = path.join("generation_config.json");
    if let Some(text) = text_file(&generation_path)? {
        let generation: GenerationJson = parse_json(&generation_path, &text)?;
        eos.extend(generation.eos_token_id.map(Ids::into_vec).unwrap_or_default());
    }
    eos.extend(raw.eos_token_id.clone().map(Ids::into_vec).unwrap_or_default());
    let mut seen = BTreeSet::new();
    // Files of larger siblings are copied around: an id that the model cannot sample ends nothing.
    eos.retain(|id| (*id as usize) < raw.vocab_size && seen.insert(*id));
    let add_bos = fields.get("add_bos_token").and_then(Json::as_bool).unwrap_or_else(|| {
        let processor = tokenizer.post_processor.to_string();
        bos_text.as_ref().is_some_and(|text| processor.contains(text.as_str()))
    });
    let chat_template = match text_file(&path.join("chat_template.jinja"))? {
        Some(text) => Some(text),
        None => template(&fields),
    };
    let special = SpecialTokens { bos, eos, bos_text, eos_text, add_bos: add_bos && bos.is_some() };
    Ok(Description { tokenizer_json: Arc::from(tokenizer_json), chat_template, special })
}

/// The canonical name of a tensor of the transformers library. None: not needed.
fn canonical(name: &str) -> Option<String> {
    match name {
        "model.embed_tokens.weight" => return Some("token_embd.weight".into()),
        "model.norm.weight" => return Some("output_norm.weight".into()),
        "lm_head.weight" => return Some("output.weight".into()),
        _ => {}
    }
    let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let part = match part {
        "input_layernorm.weight" => "attn_norm",
        "self_attn.q_proj.weight" => "attn_q",
        "self_attn.k_proj.weight" => "attn_k",
        "self_attn.v_proj.weight" => "attn_v",
        "self_attn.o_proj.weight" => "attn_output",
        "post_attention_layernorm.weight" => "ffn_norm",
        "mlp.gate_proj.weight" => "ffn_gate",
        "mlp.up_proj.weight" => "ffn_up",
        "mlp.down_proj.weight" => "ffn_down",
        _ => return None,
    };
    Some(format!("blk.{layer}.{part}.weight"))
}

#[derive(Deserialize)]
struct IndexJson {
    weight_map: HashMap<String, String>,
}

impl Checkpoint {
    fn open(path: &Path) -> Result<Self, Error> {
        let mut checkpoint = Self { path: path.to_owned(), files: Vec::new(), tensors: HashMap::new() };
        let index_path = path.join("model.safetensors.index.json");
        let names: BTreeSet<String> = match text_file(&index_path)? {
            Some(text) => parse_json::<IndexJson>(&index_path, &text)?.weight_map.into_values().collect(),
            None => BTreeSet::from(["model.safetensors".to_owned()]),
        };
        for name in names {
            if name.contains(['/', '\\']) || name.starts_with('.') {
                return Err(Error::new(
                    &index_path,
                    "weight_map",
                    "file names of this directory",
                    quoted(&name),
                ));
            }
            checkpoint.add(&path.join(name))?;
        }
        Ok(checkpoint)
    }

    fn add(&mut self, path: &Path) -> Result<(), Error> {
        let file = fs::File::open(path).map_err(|error| Error::io(path, "weights", &error))?;
        let file_bytes = file.metadata().map_err(|error| Error::io(path, "weights", &error))?.len();
        let cut = |expected: String| {
            Error::new(path, "safetensors", expected, format!("a file of {file_bytes} bytes (cut short?)"))
        };
        let mut length = [0; 8];
        file.read_exact_at(&mut length, 0).map_err(|_| cut("a header length of 8 bytes".into()))?;
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER_BYTES {
            let expected = format!("a header of at most {MAX_HEADER_BYTES} bytes");
            return Err(Error::new(path, "safetensors", expected, format!("length {length}")));
        }
        if 8 + length > file_bytes {
            return Err(cut(format!("a header of {length} bytes")));
        }
        let mut header = vec![0; length as usize];
        file.read_exact_at(&mut header, 8).map_err(|error| Error::io(path, "safetensors header", &error))?;
        let entries: Map<String, Json> = serde_json::from_slice(&header)
            .map_err(|error| Error::new(path, "safetensors header", "a JSON object", error))?;
        for (name, entry) in entries {
            let Some(canonical) = canonical(&name) else { continue };
            let entry: HeaderEntry = serde_json::from_value(entry).map_err(|error| {
                Error::new(path, format!("tensor {}", quoted(&name)), "dtype, shape, data_offsets", error)
            })?;
            let location = locate(path, &name, &entry, self.files.len(), 8 + length)?;
            if location.offset + location.bytes as u64 > file_bytes {
                return Err(cut(format!(
                    "data of {name} up to byte {}",
                    location.offset + location.bytes as u64
                )));
            }
            self.tensors.insert(canonical, location);
        }
        self.files.push((path.to_owned(), file));
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn shape(&self, name: &str) -> Option<(usize, usize)> {
        self.tensors.get(name).map(|tensor| (tensor.rows, tensor.columns))
    }

    pub(crate) fn stored_bytes(&self, name: &str) -> Option<u64> {
        self.tensors.get(name).map(|tensor| tensor.bytes as u64)
    }

    pub(crate) fn tensor(&self, name: &str, config: &Config) -> Result<Option<Tensor>, Error> {
        let Some(location) = self.tensors.get(name) else { return Ok(None) };
        let Some((path, file)) = self.files.get(location.file) else { return Ok(None) };
        let mut bytes = vec![0; location.bytes];
        file.read_exact_at(&mut bytes, location.offset)
            .map_err(|error| Error::io(path, format!("tensor {}", quoted(name)), &error))?;
        if name.ends_with(".attn_q.weight") || name.ends_with(".attn_k.weight") {
            bytes = neighbouring_pairs(&bytes, location.rows, config.head_dim);
        }
        let Location { encoding, rows, columns, .. } = *location;
        Ok(Some(Tensor { encoding, rows, columns, bytes }))
    }
}

fn locate(path: &Path, name: &str, entry: &HeaderEntry, file: usize, data: u64) -> Result<Location, Error> {
    let what = || format!("tensor {}", quoted(name));
    let encoding = match entry.dtype.as_str() {
        "F32" => Encoding::F32,
        "F16" => Encoding::F16,
        "BF16" => Encoding::Bf16,
        other => return Err(Error::new(path, what(), "one of: F32, F16, BF16", quoted(other))),
    };
    let (rows, columns) = match entry.shape[..] {
        [columns] => (1, columns),
        [rows, columns] => (rows, columns),
        _ => return Err(Error::new(path, what(), "1 or 2 dimensions", entry.shape.len())),
    };
    let bytes = encoding.row_bytes(columns).and_then(|row| row.checked_mul(rows));
    let [start, end] = entry.data_offsets;
    let offset =
        data.checked_add(start).filter(|offset| offset.checked_add(end.saturating_sub(start)).is_some());
    match (bytes, offset) {
        (Some(bytes), Some(offset)) if end.checked_sub(start) == Some(bytes as u64) => {
            Ok(Location { file, encoding, rows, columns, offset, bytes })
        }
        _ => {
            let expected = format!("data_offsets that hold {rows} x {columns} values");
            Err(Error::new(path, what(), expected, format!("{start}..{end}")))
        }
    }
}

/// Rows of a head with rotary pairs half a head apart (i, i + d/2), reordered so that pairs are neighbours (2i, 2i+1).
/// The same permutation of queries and keys leaves their products as they were.
fn neighbouring_pairs(bytes: &[u8], rows: usize, head_dim: usize) -> Vec<u8> {
    let row_bytes = bytes.len() / rows.max(1);
    let mut result = Vec::with_capacity(bytes.len());
    for row in 0..rows {
        let (head, within) = (row / head_dim, row % head_dim);
        let source = head * head_dim + within / 2 + (within % 2) * (head_dim / 2);
        result.extend_from_slice(&bytes[source * row_bytes..(source + 1) * row_bytes]);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_become_neighbours() {
        let rows: Vec<u8> = (0..16).collect();
        let permuted = neighbouring_pairs(&rows, 16, 8);
        assert_eq!(permuted, [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]);
    }

    #[test]
    fn special_tokens_are_found_among_the_added_ones_or_in_the_vocabulary() {
        let json = r#"{"added_tokens": [{"id": 7, "content": "<s>"}, {"content": "odd"}], "post_processor": null,
            "model": {"type": "BPE", "vocab": {"a": 0, "</s>": 3, "<s>": 9, "big": 99999999999}, "merges": []}}"#;
        let tokenizer: TokenizerJson = parse_json(Path::new("x"), json).unwrap();
        assert_eq!(["<s>", "</s>", "odd"].map(|text| tokenizer.added_id(text)), [Some(7), None, None]);
        assert_eq!(
            ["</s>", "<s>", "big", "b"].map(|text| vocabulary_id(json, text)),
            [Some(3), Some(9), None, None]
        );
        for bare in ["{}", r#"{"added_tokens": 5}"#] {
            let tokenizer: TokenizerJson = parse_json(Path::new("x"), bare).unwrap();
            assert_eq!((tokenizer.added_id("<s>"), vocabulary_id(bare, "<s>")), (None, None));
        }
    }

    #[test]
    fn long_waves_are_stretched() {
        let rope = Rope {
            rope_type: Some("llama3".into()),
            rope_theta: None,
            factor: Some(32.0),
            low_freq_factor: Some(1.0),
            high_freq_factor: Some(4.0),
            original_max_position_embeddings: Some(8192.0),
        };
        let factors = rope_factors(Path::new("x"), &rope, 500_000.0, 64).unwrap().unwrap();
        assert_eq!(factors.len(), 32);
        assert_eq!((factors[0], factors[31]), (1.0, 32.0));
        assert!(factors.windows(2).all(|pair| pair[0] <= pair[1]), "{factors:?}");
    }
}
