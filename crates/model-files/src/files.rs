//! One model, whatever form its files have.

use crate::error::quoted;
use crate::{Config, Error, Tensor, gguf, gguf_tokenizer, huggingface};
use dynamo_types::SpecialTokens;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An opened model: everything but the tensors is in memory.
#[derive(Debug)]
pub struct ModelFiles {
    config: Config,
    tokenizer_json: Arc<str>,
    chat_template: Option<String>,
    special: SpecialTokens,
    name: String,
    tensors: Tensors,
}

#[derive(Debug)]
enum Tensors {
    Gguf(gguf::File),
    HuggingFace(huggingface::Checkpoint),
    /// Nobody asked for them.
    Absent(PathBuf),
}

/// What the readers of either form hand over.
#[derive(Debug)]
pub(crate) struct Description {
    pub(crate) tokenizer_json: Arc<str>,
    pub(crate) chat_template: Option<String>,
    pub(crate) special: SpecialTokens,
}

/// Opens a GGUF file or a Hugging Face directory (`config.json`, `tokenizer.json`, safetensors) and checks that every
/// tensor the decoder needs is there, in a known encoding, in the right shape, and inside its file.
pub fn open(path: &Path) -> Result<ModelFiles, Error> {
    let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            Error::new(path, "model", "a GGUF file or a Hugging Face directory", "nothing there")
        }
        _ => Error::io(path, "model", &error),
    })?;
    let files = if metadata.is_dir() { open_directory(path)? } else { open_gguf(path)? };
    files.config.check(path)?;
    for (name, rows, columns) in files.config.shapes() {
        let found = files.shape(&name).ok_or_else(|| {
            Error::new(path, format!("tensor {name}"), format!("{rows} x {columns} values"), "no such tensor")
        })?;
        if found != (rows, columns) {
            let expected = format!("{rows} x {columns} values");
            let found = format!("{} x {}", found.0, found.1);
            return Err(Error::new(path, format!("tensor {name}"), expected, found));
        }
    }
    Ok(files)
}

/// As [`open`], without the tensors: for engines that compute nothing. Directories need no weights.
pub fn describe(path: &Path) -> Result<ModelFiles, Error> {
    if !path.is_dir() {
        // The header of a GGUF file is all that is read of it.
        return open(path);
    }
    let (config, description) = huggingface::open_description(path)?;
    config.check(path)?;
    Ok(ModelFiles::new(config, description, served_name(path, false), Tensors::Absent(path.to_owned())))
}

fn open_gguf(path: &Path) -> Result<ModelFiles, Error> {
    let file = gguf::File::open(path)?;
    let config = file.config()?;
    let description = gguf_tokenizer::describe(&file, config.vocab_size)?;
    Ok(ModelFiles::new(config, description, served_name(path, true), Tensors::Gguf(file)))
}

fn open_directory(path: &Path) -> Result<ModelFiles, Error> {
    let (config, checkpoint, description) = huggingface::open(path)?;
    Ok(ModelFiles::new(config, description, served_name(path, false), Tensors::HuggingFace(checkpoint)))
}

/// The file's or directory's own name; a GGUF file loses its ending and its quantisation (`.Q4_1`, `-q8_0`).
fn served_name(path: &Path, is_file: bool) -> String {
    let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = if is_file { absolute.file_stem() } else { absolute.file_name() };
    let name = name.map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned());
    if !is_file {
        return name;
    }
    let is_quantisation = |tail: &str| {
        let tail = tail.to_ascii_uppercase();
        let bytes = tail.as_bytes();
        matches!(tail.as_str(), "F16" | "F32" | "BF16")
            || (bytes.len() >= 2 && bytes[0] == b'Q' && bytes[1].is_ascii_digit())
    };
    match name.rfind(['.', '-']) {
        Some(at) if at > 0 && is_quantisation(&name[at + 1..]) => name[..at].to_owned(),
        _ => name,
    }
}

impl ModelFiles {
    fn new(config: Config, description: Description, name: String, tensors: Tensors) -> Self {
        let Description { tokenizer_json, chat_template, special } = description;
        Self { config, tokenizer_json, chat_template, special, name, tensors }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The content of a Hugging Face `tokenizer.json`, made from the metadata if the model came as GGUF.
    pub fn tokenizer_json(&self) -> Arc<str> {
        Arc::clone(&self.tokenizer_json)
    }

    /// Jinja source. None: the model takes no chats.
    pub fn chat_template(&self) -> Option<String> {
        self.chat_template.clone()
    }

    pub fn special(&self) -> SpecialTokens {
        self.special.clone()
    }

    /// A name to serve it under if nobody gives one.
    pub fn name(&self) -> String {
        self.name.clone()
    }

    /// Bytes of all tensors the decoder needs, as stored.
    pub fn weight_bytes(&self) -> u64 {
        self.config.shapes().iter().filter_map(|(name, ..)| self.stored_bytes(name)).sum()
    }

    /// Reads a tensor. `name` is canonical, that is GGUF's (`blk.0.attn_q.weight`). Rows of `attn_q` and `attn_k` are
    /// in GGUF's order whatever the files have (see [`Config::rope_interleaved`]).
    pub fn tensor(&self, name: &str) -> Result<Tensor, Error> {
        let tensor = match &self.tensors {
            Tensors::Gguf(file) => file.tensor(name)?,
            Tensors::HuggingFace(checkpoint) => checkpoint.tensor(name, &self.config)?,
            Tensors::Absent(_) => None,
        };
        tensor.ok_or_else(|| {
            let path = match &self.tensors {
                Tensors::Gguf(file) => file.path(),
                Tensors::HuggingFace(checkpoint) => checkpoint.path(),
                Tensors::Absent(path) => path,
            };
            Error::new(path, format!("tensor {}", quoted(name)), "to be in the model", "no such tensor")
        })
    }

    fn shape(&self, name: &str) -> Option<(usize, usize)> {
        match &self.tensors {
            Tensors::Gguf(file) => file.shape(name),
            Tensors::HuggingFace(checkpoint) => checkpoint.shape(name),
            Tensors::Absent(_) => None,
        }
    }

    fn stored_bytes(&self, name: &str) -> Option<u64> {
        match &self.tensors {
            Tensors::Gguf(file) => file.stored_bytes(name),
            Tensors::HuggingFace(checkpoint) => checkpoint.stored_bytes(name),
            Tensors::Absent(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn served_names() {
        let name = |path: &str| served_name(Path::new(path), true);
        assert_eq!(name("/nowhere/SmolLM2-135M-Instruct.Q4_1.gguf"), "SmolLM2-135M-Instruct");
        assert_eq!(name("/nowhere/gemma-3-270m-q4_k_m.gguf"), "gemma-3-270m");
        assert_eq!(name("/nowhere/model.gguf"), "model");
        assert_eq!(name("/nowhere/Q8_0.gguf"), "Q8_0");
        assert_eq!(served_name(Path::new("/nowhere/smol-v1.Q8"), false), "smol-v1.Q8");
    }

    #[test]
    fn a_missing_path_is_one_line() {
        let error = open(Path::new("/nowhere/x.gguf")).map(|_| ()).unwrap_err().to_string();
        assert_eq!(
            error,
            "/nowhere/x.gguf: model: expected a GGUF file or a Hugging Face directory, found nothing there"
        );
    }
}
