//! One hash contract per model (R35).

use dynamo_types::{Error, ModelCard, Result};

/// Compares what `new` publishes with what the model's workers agreed on. The error names the field and both values.
pub fn check_contract(existing: &ModelCard, new: &ModelCard) -> Result<()> {
    let (known, found) = (&existing.blocks, &new.blocks);
    let fields = [
        ("block_size", known.block_size.to_string(), found.block_size.to_string()),
        ("algorithm", known.algorithm.clone(), found.algorithm.clone()),
        ("version", known.version.to_string(), found.version.to_string()),
    ];
    match fields.into_iter().find(|(_, known, found)| known != found) {
        Some((field, known, found)) => Err(Error::invalid(format!(
            "worker refused: model '{}' is served with blocks.{field} {known}, this worker has {found}",
            existing.name
        ))
        .with_param(format!("blocks.{field}"))),
        None => Ok(()),
    }
}
