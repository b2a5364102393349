//! One vector for a whole prompt: the mean of its tokens' final hidden states, at length 1.

use crate::model::Model;
use dynamo_types::{Class, Error, Request, Task};

/// The sum so far. Rows are added one after the other in the order of their positions, so that it does not depend on how the
/// prompt was cut into chunks.
#[derive(Debug)]
pub(crate) struct Pool {
    sum: Vec<f64>,
    rows: usize,
}

impl Pool {
    pub(crate) fn new(hidden_size: usize) -> Self {
        Self { sum: vec![0.0; hidden_size], rows: 0 }
    }

    /// Positions that are in the sum.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Adds the states of the positions from `start` on, which is not beyond [`Pool::rows`]. Positions that are in the sum were
    /// computed again after a preemption: they are passed over.
    pub(crate) fn add(&mut self, start: usize, states: &[f32]) {
        for (row, state) in states.chunks_exact(self.sum.len().max(1)).enumerate() {
            if start + row == self.rows {
                self.sum.iter_mut().zip(state).for_each(|(sum, value)| *sum += f64::from(*value));
                self.rows += 1;
            }
        }
    }

    /// The vector. Its direction is that of the mean; the number of rows cancels out.
    ///
    /// # Errors
    /// `engine` where a state is not a number, or they add up to nothing.
    pub(crate) fn vector(&self) -> Result<Vec<f32>, Error> {
        let length = self.sum.iter().map(|sum| sum * sum).sum::<f64>().sqrt();
        if !length.is_normal() {
            return Err(Error::engine("the model's hidden states are not usable: they have no direction"));
        }
        Ok(self.sum.iter().map(|sum| (sum / length) as f32).collect())
    }
}

/// Can the model do what the request asks for?
///
/// # Errors
/// `NotImplemented` for embeddings of a model that gives no hidden states, `Invalid` for an embedding with a grammar.
pub(crate) fn check<M: Model>(model: &M, request: &Request) -> Result<(), Error> {
    match request.task {
        Task::Generate => Ok(()),
        Task::Embed if model.hidden_size() == 0 => {
            Err(Error::client(Class::NotImplemented, "the engine of this model makes no embeddings"))
        }
        Task::Embed => match &request.guide {
            Some(guide) => Err(Error::invalid(format!(
                "`{}` asks for structured output, and an embedding has no text to structure",
                guide.field()
            ))),
            None => Ok(()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_sum_does_not_depend_on_the_cut(
            states in prop::collection::vec(-1e3f32..1e3, 3..90),
            cuts in prop::collection::vec((0usize..30, 0usize..30), 0..8),
        ) {
            const SIZE: usize = 3;
            let states = &states[..states.len() / SIZE * SIZE];
            let mut whole = Pool::new(SIZE);
            whole.add(0, states);
            let mut cut = Pool::new(SIZE);
            // Chunks that repeat what is known, as after a preemption; never a gap.
            for (back, len) in cuts {
                let start = cut.rows() - back.min(cut.rows());
                let end = (start + len).min(states.len() / SIZE);
                cut.add(start, &states[start * SIZE..end * SIZE]);
            }
            cut.add(cut.rows(), &states[cut.rows() * SIZE..]);
            prop_assert_eq!(cut.rows(), states.len() / SIZE);
            prop_assert_eq!(&cut.sum, &whole.sum);
            if let Ok(vector) = whole.vector() {
                let length: f64 = vector.iter().map(|value| f64::from(*value).powi(2)).sum();
                prop_assert!((length - 1.0).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn what_has_no_direction_is_a_fault() {
        for state in [0.0, f32::NAN, f32::INFINITY] {
            let mut pool = Pool::new(2);
            pool.add(0, &[state, 0.0]);
            assert_eq!(pool.vector().unwrap_err().class(), Class::Internal);
        }
    }
}
