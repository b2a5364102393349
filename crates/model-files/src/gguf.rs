//! The GGUF container, versions 2 and 3, little-endian: a header of metadata and tensor descriptions, then the tensors.

use crate::error::quoted;
use crate::{Architecture, Config, Encoding, Error, Tensor};
use std::collections::HashMap;
use std::fs;
use std::io::{BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A header beyond this is not one: the largest vocabularies need about 20 MiB. Bounds the memory a corrupt file costs.
const MAX_HEADER_BYTES: u64 = 256 << 20;

/// Tensors start at multiples of this unless the metadata says otherwise.
const DEFAULT_ALIGNMENT: u64 = 32;

/// Dimensions a tensor may claim.
const MAX_DIMENSIONS: u32 = 4;

/// A metadata value, with all integer and float widths joined.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Integer(i128),
    Float(f64),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    Integers(Vec<i64>),
    Floats(Vec<f32>),
    /// An array of a kind nobody here reads; its content is dropped.
    Other,
}

#[derive(Clone, Debug)]
struct Description {
    encoding: Encoding,
    rows: usize,
    columns: usize,
    /// From the start of the file.
    offset: u64,
    bytes: usize,
}

/// An opened file: header in memory, tensors on disk.
#[derive(Debug)]
pub(crate) struct File {
    path: PathBuf,
    file: fs::File,
    metadata: HashMap<String, Value>,
    tensors: HashMap<String, Description>,
}

impl File {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let file = fs::File::open(path).map_err(|e| Error::io(path, "model", &e))?;
        let length = file.metadata().map_err(|e| Error::io(path, "model", &e))?.len();
        let reader = BufReader::with_capacity(1 << 18, &file);
        let mut header = Header { path, reader, position: 0, file_bytes: length };
        let (metadata, tensors) = header.parse()?;
        Ok(Self { path: path.to_owned(), file, metadata, tensors })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        match self.value(key) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// An optional non-negative integer.
    pub(crate) fn integer(&self, key: &str) -> Result<Option<usize>, Error> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Integer(value)) => usize::try_from(*value)
                .map(Some)
                .map_err(|_| Error::new(&self.path, key, "a non-negative integer", value)),
            Some(other) => Err(Error::new(&self.path, key, "an integer", kind_name(other))),
        }
    }

    fn required(&self, key: &str) -> Result<usize, Error> {
        self.integer(key)?.ok_or_else(|| self.missing(key))
    }

    fn float(&self, key: &str) -> Result<Option<f64>, Error> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Float(value)) => Ok(Some(*value)),
            Some(other) => Err(Error::new(&self.path, key, "a number", kind_name(other))),
        }
    }

    pub(crate) fn missing(&self, key: &str) -> Error {
        Error::new(&self.path, "metadata", format!("key {key}"), "no such key")
    }

    /// Sizes and constants out of `general.architecture` and the keys that start with it.
    pub(crate) fn config(&self) -> Result<Config, Error> {
        let name = self.text("general.architecture").ok_or_else(|| self.missing("general.architecture"))?;
        let architecture = Architecture::parse(name).ok_or_else(|| {
            Error::new(&self.path, "general.architecture", Architecture::SUPPORTED, quoted(name))
        })?;
        let key = |suffix: &str| format!("{name}.{suffix}");
        let heads = self.required(&key("attention.head_count"))?;
        let hidden = self.required(&key("embedding_length"))?;
        let head_dim = match self.integer(&key("attention.key_length"))? {
            Some(length) => length,
            None => hidden.checked_div(heads).unwrap_or(0),
        };
        self.refuse_unsupported(&key, head_dim)?;
        let epsilon_key = key("attention.layer_norm_rms_epsilon");
        let embedding = self.tensors.get("token_embd.weight");
        Ok(Config {
            architecture,
            layers: self.required(&key("block_count"))?,
            hidden,
            feed_forward: self.required(&key("feed_forward_length"))?,
            heads,
            kv_heads: self.integer(&key("attention.head_count_kv"))?.unwrap_or(heads),
            head_dim,
            rope_theta: self.float(&key("rope.freq_base"))?.unwrap_or(10_000.0),
            rope_factors: self.tensor("rope_freqs.weight")?.map(|tensor| tensor.values()),
            rope_interleaved: true,
            norm_epsilon: self.float(&epsilon_key)?.ok_or_else(|| self.missing(&epsilon_key))? as f32,
            vocab_size: embedding.map_or(0, |tensor| tensor.rows),
            context_length: self.required(&key("context_length"))?,
            tied_embeddings: !self.tensors.contains_key("output.weight"),
        })
    }

    /// Variants of the architecture whose arithmetic is another one.
    fn refuse_unsupported(&self, key: &dyn Fn(&str) -> String, head_dim: usize) -> Result<(), Error> {
        if let Some(scaling) = self.text(&key("rope.scaling.type")).filter(|scaling| *scaling != "none") {
            return Err(Error::new(&self.path, key("rope.scaling.type"), "none", quoted(scaling)));
        }
        let rotated = self.integer(&key("rope.dimension_count"))?.unwrap_or(head_dim);
        if rotated != head_dim {
            let expected = format!("the head dimension, {head_dim}");
            return Err(Error::new(&self.path, key("rope.dimension_count"), expected, rotated));
        }
        let value_length = self.integer(&key("attention.value_length"))?.unwrap_or(head_dim);
        if value_length != head_dim {
            let expected = format!("the key length, {head_dim}");
            return Err(Error::new(&self.path, key("attention.value_length"), expected, value_length));
        }
        let experts = self.integer(&key("expert_count"))?.unwrap_or(0);
        if experts != 0 {
            return Err(Error::new(&self.path, key("expert_count"), "0 (no mixture of experts)", experts));
        }
        match self.tensors.keys().find(|name| name.ends_with(".bias")) {
            Some(name) => {
                Err(Error::new(&self.path, "tensors", "no biases in this architecture", quoted(name)))
            }
            None => Ok(()),
        }
    }

    pub(crate) fn shape(&self, name: &str) -> Option<(usize, usize)> {
        self.tensors.get(name).map(|tensor| (tensor.rows, tensor.columns))
    }

    pub(crate) fn stored_bytes(&self, name: &str) -> Option<u64> {
        self.tensors.get(name).map(|tensor| tensor.bytes as u64)
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<Option<Tensor>, Error> {
        let Some(&Description { encoding, rows, columns, offset, bytes }) = self.tensors.get(name) else {
            return Ok(None);
        };
        let mut buffer = vec![0; bytes];
        self.file
            .read_exact_at(&mut buffer, offset)
            .map_err(|e| Error::io(&self.path, format!("tensor {}", quoted(name)), &e))?;
        Ok(Some(Tensor { encoding, rows, columns, bytes: buffer }))
    }
}

fn kind_name(value: &Value) -> &'static str {
    match value {
        Value::Integer(_) => "an integer",
        Value::Float(_) => "a float",
        Value::Bool(_) => "a truth value",
        Value::Text(_) => "a text",
        Value::Texts(_) | Value::Integers(_) | Value::Floats(_) | Value::Other => "an array",
    }
}

/// The header while it is read. No length is believed before it is compared with what is left of the file.
struct Header<'a> {
    path: &'a Path,
    reader: BufReader<&'a fs::File>,
    position: u64,
    file_bytes: u64,
}

type Parsed = (HashMap<String, Value>, HashMap<String, Description>);

impl Header<'_> {
    fn parse(&mut self) -> Result<Parsed, Error> {
        let magic: [u8; 4] = self.array("magic")?;
        if magic != *b"GGUF" {
            let found = quoted(&String::from_utf8_lossy(&magic));
            return Err(Error::new(self.path, "first 4 bytes", "\"GGUF\"", found));
        }
        let version = u32::from_le_bytes(self.array("version")?);
        if !(2..=3).contains(&version) {
            return Err(Error::new(self.path, "GGUF version", "2 or 3", version));
        }
        // The least a tensor description and a metadata entry can take.
        let tensor_count = self.count("tensor count", 24)?;
        let entry_count = self.count("metadata count", 13)?;
        let mut metadata = HashMap::new();
        for _ in 0..entry_count {
            let key = self.string("metadata key")?;
            let kind = u32::from_le_bytes(self.array("metadata kind")?);
            let value = self.value(kind, &key)?;
            metadata.insert(key, value);
        }
        let mut descriptions = Vec::new();
        for _ in 0..tensor_count {
            descriptions.push(self.description()?);
        }
        let alignment = match metadata.get("general.alignment") {
            None => DEFAULT_ALIGNMENT,
            Some(Value::Integer(value)) if (1..=1 << 20).contains(value) && value.count_ones() == 1 => {
                *value as u64
            }
            Some(other) => {
                let found = format!("{other:?}");
                return Err(Error::new(self.path, "general.alignment", "a power of two", quoted(&found)));
            }
        };
        let start = self.position.next_multiple_of(alignment);
        let mut tensors = HashMap::new();
        for (name, mut description) in descriptions {
            let found = format!("a file of {} bytes", self.file_bytes);
            let end = start
                .checked_add(description.offset)
                .and_then(|offset| {
                    description.offset = offset;
                    offset.checked_add(description.bytes as u64)
                })
                .ok_or_else(|| Error::new(self.path, tensor(&name), "an offset inside the file", &found))?;
            if end > self.file_bytes {
                let expected = format!("data up to byte {end}");
                return Err(Error::new(self.path, tensor(&name), expected, format!("{found} (cut short?)")));
            }
            tensors.insert(name, description);
        }
        Ok((metadata, tensors))
    }

    fn remaining(&self) -> u64 {
        self.file_bytes.min(MAX_HEADER_BYTES).saturating_sub(self.position)
    }

    fn need(&self, what: &str, bytes: u64) -> Result<(), Error> {
        if bytes <= self.remaining() {
            return Ok(());
        }
        let expected = format!("{bytes} bytes at byte {}", self.position);
        let found = if self.file_bytes <= MAX_HEADER_BYTES {
            format!("a file of {} bytes (cut short?)", self.file_bytes)
        } else {
            format!("a header beyond the limit of {MAX_HEADER_BYTES} bytes")
        };
        Err(Error::new(self.path, format!("GGUF header, {what}"), expected, found))
    }

    fn read(&mut self, what: &str, buffer: &mut [u8]) -> Result<(), Error> {
        self.need(what, buffer.len() as u64)?;
        self.reader
            .read_exact(buffer)
            .map_err(|e| Error::io(self.path, format!("GGUF header, {what}"), &e))?;
        self.position += buffer.len() as u64;
        Ok(())
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        self.read(what, &mut bytes)?;
        Ok(bytes)
    }

    /// A count of things that each take at least `least_bytes`.
    fn count(&mut self, what: &str, least_bytes: u64) -> Result<usize, Error> {
        let count = u64::from_le_bytes(self.array(what)?);
        self.need(what, count.saturating_mul(least_bytes))?;
        Ok(count as usize)
    }

    fn string(&mut self, what: &str) -> Result<String, Error> {
        let length = self.count(what, 1)?;
        let mut bytes = vec![0; length];
        self.read(what, &mut bytes)?;
        String::from_utf8(bytes).map_err(|_| {
            let what = format!("GGUF header, {what}");
            Error::new(self.path, what, "UTF-8 text", format!("other bytes before byte {}", self.position))
        })
    }

    fn value(&mut self, kind: u32, key: &str) -> Result<Value, Error> {
        match kind {
            8 => Ok(Value::Text(self.string(key)?)),
            9 => self.array_value(key),
            _ => self.scalar(kind, key),
        }
    }

    fn scalar(&mut self, kind: u32, key: &str) -> Result<Value, Error> {
        Ok(match kind {
            0 => Value::Integer(u8::from_le_bytes(self.array(key)?).into()),
            1 => Value::Integer(i8::from_le_bytes(self.array(key)?).into()),
            2 => Value::Integer(u16::from_le_bytes(self.array(key)?).into()),
            3 => Value::Integer(i16::from_le_bytes(self.array(key)?).into()),
            4 => Value::Integer(u32::from_le_bytes(self.array(key)?).into()),
            5 => Value::Integer(i32::from_le_bytes(self.array(key)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array(key)?).into()),
            7 => Value::Bool(u8::from_le_bytes(self.array(key)?) != 0),
            10 => Value::Integer(u64::from_le_bytes(self.array(key)?).into()),
            11 => Value::Integer(i64::from_le_bytes(self.array(key)?).into()),
            12 => Value::Float(f64::from_le_bytes(self.array(key)?)),
            _ => {
                let what = format!("metadata {}", quoted(key));
                return Err(Error::new(self.path, what, "a value kind 0..=12", kind));
            }
        })
    }

    fn array_value(&mut self, key: &str) -> Result<Value, Error> {
        let kind = u32::from_le_bytes(self.array(key)?);
        match kind {
            8 => {
                let count = self.count(key, 8)?;
                (0..count).map(|_| self.string(key)).collect::<Result<_, _>>().map(Value::Texts)
            }
            0..=5 | 10 | 11 => {
                let count = self.count(key, 1)?;
                let mut integers = Vec::new();
                for _ in 0..count {
                    if let Value::Integer(value) = self.scalar(kind, key)? {
                        integers.push(i64::try_from(value).unwrap_or(i64::MAX));
                    }
                }
                Ok(Value::Integers(integers))
            }
            6 => {
                let count = self.count(key, 4)?;
                (0..count)
                    .map(|_| self.array(key).map(f32::from_le_bytes))
                    .collect::<Result<_, _>>()
                    .map(Value::Floats)
            }
            7 | 12 => {
                let count = self.count(key, 1)?;
                for _ in 0..count {
                    self.scalar(kind, key)?;
                }
                Ok(Value::Other)
            }
            _ => {
                let what = format!("metadata {}", quoted(key));
                Err(Error::new(self.path, what, "an array of texts or numbers", format!("kind {kind}")))
            }
        }
    }

    /// Name, dimensions (innermost first), encoding and offset from the start of the data.
    fn description(&mut self) -> Result<(String, Description), Error> {
        let name = self.string("tensor name")?;
        let dimensions = u32::from_le_bytes(self.array("tensor dimensions")?);
        if dimensions == 0 || dimensions > MAX_DIMENSIONS {
            let expected = format!("1..={MAX_DIMENSIONS} dimensions");
            return Err(Error::new(self.path, tensor(&name), expected, dimensions));
        }
        let columns = u64::from_le_bytes(self.array("tensor shape")?) as usize;
        let mut rows = 1usize;
        let mut fits = true;
        for _ in 1..dimensions {
            let size = u64::from_le_bytes(self.array("tensor shape")?) as usize;
            let product = rows.checked_mul(size);
            fits &= product.is_some();
            rows = product.unwrap_or(0);
        }
        let kind = u32::from_le_bytes(self.array("tensor encoding")?);
        let offset = u64::from_le_bytes(self.array("tensor offset")?);
        let encoding = match kind {
            0 => Encoding::F32,
            1 => Encoding::F16,
            2 => Encoding::Q4_0,
            3 => Encoding::Q4_1,
            6 => Encoding::Q5_0,
            7 => Encoding::Q5_1,
            8 => Encoding::Q8_0,
            30 => Encoding::Bf16,
            _ => {
                let found = encoding_name(kind);
                return Err(Error::new(self.path, tensor(&name), Encoding::SUPPORTED, found));
            }
        };
        let bytes = encoding.row_bytes(columns).and_then(|row| row.checked_mul(rows)).filter(|_| fits);
        let bytes = bytes.ok_or_else(|| {
            let expected = format!("a shape of whole {encoding:?} blocks");
            Error::new(self.path, tensor(&name), expected, format!("{rows} x {columns}"))
        })?;
        Ok((name, Description { encoding, rows, columns, offset, bytes }))
    }
}

fn tensor(name: &str) -> String {
    format!("tensor {}", quoted(name))
}

/// Names of encodings that exist but are not read here.
fn encoding_name(kind: u32) -> String {
    let known = [(10, "Q2_K"), (11, "Q3_K"), (12, "Q4_K"), (13, "Q5_K"), (14, "Q6_K"), (15, "Q8_K")];
    known
        .iter()
        .find(|(number, _)| *number == kind)
        .map_or_else(|| format!("encoding number {kind}"), |(_, name)| (*name).to_owned())
}
