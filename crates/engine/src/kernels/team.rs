//! Splitting work over threads, or not.

use crate::model::Error;
use rayon::prelude::*;

/// The threads of one model. With one thread nothing is handed over: work runs where it is asked for.
#[derive(Debug)]
pub(crate) struct Team {
    pool: Option<rayon::ThreadPool>,
}

impl Team {
    pub(crate) fn new(threads: usize) -> Result<Self, Error> {
        if threads <= 1 {
            return Ok(Self { pool: None });
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("dynamo-compute-{index}"))
            .build()
            .map_err(|error| Error::Threads { message: error.to_string() })?;
        Ok(Self { pool: Some(pool) })
    }

    pub(crate) fn threads(&self) -> usize {
        self.pool.as_ref().map_or(1, rayon::ThreadPool::current_num_threads)
    }

    /// Calls `work` for each piece of `chunk` elements of `data` (the last may be shorter) with the piece's number.
    pub(crate) fn chunks<T: Send>(
        &self,
        data: &mut [T],
        chunk: usize,
        work: impl Fn(usize, &mut [T]) + Sync,
    ) {
        match &self.pool {
            None => data.chunks_mut(chunk).enumerate().for_each(|(index, piece)| work(index, piece)),
            Some(pool) => pool.install(|| {
                data.par_chunks_mut(chunk).enumerate().for_each(|(index, piece)| work(index, piece));
            }),
        }
    }
}
