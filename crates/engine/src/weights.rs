//! A model's weights in memory, shared by all engines of a process.

use crate::kernels::Matrix;
use dynamo_model_files::{Config, Error, ModelFiles, Tensor};
use std::sync::Arc;

/// One decoder layer.
pub(crate) struct Layer {
    pub(crate) attention_norm: Vec<f32>,
    pub(crate) query: Matrix,
    pub(crate) key: Matrix,
    pub(crate) value: Matrix,
    pub(crate) attention_output: Matrix,
    pub(crate) feed_forward_norm: Vec<f32>,
    pub(crate) gate: Matrix,
    pub(crate) up: Matrix,
    pub(crate) down: Matrix,
}

/// All weights, in the quantisation of the file (see `kernels`), packed for the products.
pub struct Weights {
    config: Config,
    embedding: Matrix,
    output_norm: Vec<f32>,
    /// None: the embedding serves as output head too.
    output: Option<Matrix>,
    layers: Vec<Layer>,
}

impl std::fmt::Debug for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Weights").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Weights {
    /// Reads and packs all tensors, one at a time. `progress` is told the bytes done and the bytes in all.
    pub fn load(files: &ModelFiles, progress: &mut dyn FnMut(u64, u64)) -> Result<Arc<Self>, Error> {
        let total = files.weight_bytes();
        let mut done = 0;
        progress(0, total);
        Self::build(files.config(), &mut |name| {
            let tensor = files.tensor(name)?;
            done += tensor.bytes.len() as u64;
            progress(done, total);
            Ok(tensor)
        })
    }

    /// From any source of tensors by canonical name, in the shapes of `config`.
    pub(crate) fn build(
        config: &Config,
        tensor: &mut dyn FnMut(&str) -> Result<Tensor, Error>,
    ) -> Result<Arc<Self>, Error> {
        let head_dim = config.head_dim;
        let mut layers = Vec::with_capacity(config.layers);
        for layer in 0..config.layers {
            let mut get = |part: &str| tensor(&format!("blk.{layer}.{part}.weight"));
            let plain = |tensor: Tensor| Matrix::pack(&tensor, |row| row);
            let rotated = |tensor: Tensor| Matrix::pack(&tensor, |row| pair_apart(row, head_dim));
            layers.push(Layer {
                attention_norm: get("attn_norm")?.values(),
                query: rotated(get("attn_q")?),
                key: rotated(get("attn_k")?),
                value: plain(get("attn_v")?),
                attention_output: plain(get("attn_output")?),
                feed_forward_norm: get("ffn_norm")?.values(),
                gate: plain(get("ffn_gate")?),
                up: plain(get("ffn_up")?),
                down: plain(get("ffn_down")?),
            });
        }
        let embedding = Matrix::pack(&tensor("token_embd.weight")?, |row| row);
        let output_norm = tensor("output_norm.weight")?.values();
        let output = if config.tied_embeddings {
            None
        } else {
            Some(Matrix::pack(&tensor("output.weight")?, |row| row))
        };
        Ok(Arc::new(Self { config: config.clone(), embedding, output_norm, output, layers }))
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Bytes of the packed matrices.
    pub fn bytes(&self) -> usize {
        let layer = |layer: &Layer| {
            let Layer { query, key, value, attention_output, gate, up, down, .. } = layer;
            [query, key, value, attention_output, gate, up, down].map(Matrix::bytes).iter().sum::<usize>()
        };
        self.layers.iter().map(layer).sum::<usize>()
            + self.embedding.bytes()
            + self.output.as_ref().map_or(0, Matrix::bytes)
    }

    pub(crate) fn layers(&self) -> &[Layer] {
        &self.layers
    }

    pub(crate) fn embedding(&self) -> &Matrix {
        &self.embedding
    }

    pub(crate) fn output_norm(&self) -> &[f32] {
        &self.output_norm
    }

    pub(crate) fn output(&self) -> &Matrix {
        self.output.as_ref().unwrap_or(&self.embedding)
    }
}

/// Which row of the file becomes row `row` here. Rotary pairs, neighbours in the file, come to lie half a head apart,
/// so that vectors hold sixteen first or sixteen second parts. Queries and keys are permuted alike, so their products
/// stay what they are.
fn pair_apart(row: usize, head_dim: usize) -> usize {
    let (head, within, half) = (row / head_dim, row % head_dim, head_dim / 2);
    head * head_dim + if within < half { 2 * within } else { 2 * (within - half) + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_come_apart() {
        let order: Vec<usize> = (0..16).map(|row| pair_apart(row, 8)).collect();
        assert_eq!(order, [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]);
    }
}
