//! Where the default model lies once `make model` has fetched it.

use std::path::PathBuf;

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// A variable that says something.
pub(crate) fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// `models/` in `DYNAMO_CACHE`, else in `dynamo/` of the user's cache, as `scripts/fetch-model.sh` has it. The file need not be
/// there.
pub fn default_model() -> PathBuf {
    let cache = variable("DYNAMO_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|cache| cache.join("dynamo")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache/dynamo")))
        .unwrap_or_else(|| PathBuf::from(".cache/dynamo"));
    cache.join("models").join(FILE)
}
