//! The router: the pure parts behind two locks.
//!
//! One short mutex around candidates and books, one reader-writer lock around the prefix index; hashing happens
//! outside both, the walk through the index outside the mutex. Where both are held, the mutex was taken first.

use crate::booking::{Booking, Output};
use crate::config::{Config, Mode};
use crate::contract::check_contract;
use crate::cost::credit;
use crate::outlier::{Outcome, Outlier};
use crate::peers::Teller;
use crate::query::{BookedLoad, IndexSize, Lap, PotentialLoad, Query, Selection};
use crate::state::State;
use crate::thresholds::Thresholds;
use dynamo_kv_index::{Applied, Index, Lengths, Overlap};
use dynamo_types::hash::{self, Scope};
use dynamo_types::{Error, InstanceId, KvEventBatch, Load, ModelRecord, Placements, Result, WorkerRank};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A worker with more data-parallel ranks than this is a mistake in its record.
const MAX_RANKS_PER_WORKER: u32 = 1024;

/// Work buffers kept for reuse: as many as selections run at once on a large host.
const MAX_SPARE_BUFFERS: usize = 64;

/// Chooses a rank for each request to one model, and keeps the books. All methods take `&self`.
#[derive(Debug)]
pub struct Router {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    config: Config,
    /// Block size of the model's workers; 0 while there are none.
    block_size: AtomicU32,
    index: RwLock<Index>,
    state: Mutex<State>,
    spare: Mutex<Vec<Buffers>>,
    /// None: nobody is told.
    teller: Option<Teller>,
}

/// What a selection works in.
#[derive(Debug, Default)]
struct Buffers {
    sequences: Vec<u64>,
    cached: Lengths,
}

/// What a panic elsewhere leaves behind a lock is plain data in a state that every method can go on from.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn block_size(&self) -> u32 {
        self.block_size.load(Ordering::Acquire)
    }

    /// Runs `then` with the sequence hashes to book and with what each slot has cached of the prompt; both empty in
    /// modes that do not look at blocks.
    fn with_cached<T>(&self, query: &Query<'_>, then: impl FnOnce(&[u64], &Lengths) -> T) -> T {
        let block_size = self.block_size();
        if self.config.mode != Mode::Kv || block_size == 0 {
            return then(&[], &Lengths::default());
        }
        let mut buffers = lock(&self.spare).pop().unwrap_or_default();
        let Buffers { sequences, cached } = &mut buffers;
        sequences.clear();
        let mut chain = |local| {
            let hash = hash::sequence_hash(sequences.last().copied(), local);
            sequences.push(hash);
        };
        match (query.sequence_hashes, query.local_hashes) {
            (Some(given), _) => sequences.extend_from_slice(given),
            (None, Some(locals)) => locals.iter().copied().for_each(&mut chain),
            (None, None) => {
                let seed = Scope::default().seed();
                let blocks = query.tokens.chunks_exact(block_size as usize);
                blocks.map(|block| hash::local_hash(block, seed)).for_each(&mut chain);
            }
        }
        query.laps.tell(Lap::Hashed);
        self.index().lookup(sequences, cached);
        query.laps.tell(Lap::Matched);
        let result = then(if self.config.assume_kv_reuse { sequences } else { &[] }, cached);
        let mut spare = lock(&self.spare);
        if spare.len() < MAX_SPARE_BUFFERS {
            spare.push(buffers);
        }
        result
    }
}

impl Router {
    /// `seed` decides all ties and draws: the same calls with the same seed choose the same workers.
    pub fn new(config: Config, seed: u64) -> Self {
        Self::with_peers(config, seed, None)
    }

    /// The same; `placements` is told of all that is booked.
    pub fn with_peers(config: Config, seed: u64, placements: Option<Arc<dyn Placements>>) -> Self {
        let state = State::new(seed, config.thresholds());
        Self {
            shared: Arc::new(Shared {
                config,
                block_size: AtomicU32::new(0),
                index: RwLock::new(Index::new()),
                state: Mutex::new(state),
                spare: Mutex::new(Vec::new()),
                teller: placements.map(Teller),
            }),
        }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub fn mode(&self) -> Mode {
        self.shared.config.mode
    }

    /// Blocks of prefill that an overlap is worth on an idle worker.
    pub fn credit(&self, overlap: Overlap) -> f64 {
        credit(&self.shared.config, overlap, 0, 1.0)
    }

    /// Workers that are passed over for their faults at the moment.
    pub fn suspended(&self, now_ms: u64) -> Vec<InstanceId> {
        let state = self.shared.state();
        let suspended = state.candidates.iter().filter(|candidate| state.is_suspended(candidate, now_ms));
        let mut workers: Vec<_> = suspended.map(|candidate| candidate.target.worker).collect();
        workers.dedup();
        workers
    }

    /// Tokens per block that the model's workers agreed on; None while there are no workers.
    pub fn block_size(&self) -> Option<u32> {
        Some(self.shared.block_size()).filter(|size| *size > 0)
    }

    /// Makes ranks `0..ranks` of a worker candidates, or updates them; their books stay.
    ///
    /// # Errors
    /// [`check_contract`] against the other workers (R35), no ranks or too many, or a block size of 0.
    pub fn upsert_worker(&self, record: &ModelRecord, ranks: u32) -> Result<()> {
        let worker = record.instance.id;
        if !(1..=MAX_RANKS_PER_WORKER).contains(&ranks) {
            return Err(Error::invalid(format!(
                "worker {worker} must have 1 to {MAX_RANKS_PER_WORKER} ranks, found {ranks}"
            ))
            .with_param("data_parallel_size"));
        }
        if record.card.blocks.block_size == 0 {
            return Err(
                Error::invalid(format!("worker {worker} has block size 0")).with_param("blocks.block_size")
            );
        }
        let mut state = self.shared.state();
        let mut index = self.shared.index_mut();
        let contract = state.card.as_ref().map_or(Ok(()), |card| check_contract(card, &record.card));
        if contract.is_err() {
            if state.candidates.iter().any(|candidate| candidate.target.worker != worker) {
                return contract;
            }
            // It came back with another contract, and nobody else holds to the old one.
            state.remove(worker, 0);
            index.remove_worker(worker);
        }
        let surplus = state.ranks_of(worker).map(|candidate| candidate.target).filter(|it| it.rank >= ranks);
        surplus.collect::<Vec<_>>().into_iter().for_each(|source| index.remove_rank(source));
        state.remove(worker, ranks);
        for rank in 0..ranks {
            let target = WorkerRank::new(worker, rank);
            let Some(slot) = index.register(target) else {
                return Err(Error::overloaded(format!("worker {worker} refused: too many ranks are known")));
            };
            state.put(target, slot, !record.instance.takes_new());
        }
        self.shared.block_size.store(record.card.blocks.block_size, Ordering::Release);
        state.card = Some(Arc::clone(&record.card));
        Ok(())
    }

    /// Forgets a worker. Bookings on it stay valid guards that give back nothing.
    pub fn remove_worker(&self, worker: InstanceId) {
        let mut state = self.shared.state();
        state.remove(worker, 0);
        if state.candidates.is_empty() {
            self.shared.block_size.store(0, Ordering::Release);
        }
        self.shared.index_mut().remove_worker(worker);
    }

    /// A draining worker keeps what it has and is not chosen (R27).
    pub fn set_draining(&self, worker: InstanceId, draining: bool) {
        self.shared.state().ranks_of(worker).for_each(|candidate| candidate.draining = draining);
    }

    /// Not chosen until then, unless nothing else could be (R30).
    pub fn suspend(&self, worker: InstanceId, until_ms: u64) {
        self.shared.state().ranks_of(worker).for_each(|candidate| candidate.health.suspend(until_ms));
    }

    /// How a dispatch to the worker ended; None is success. `breaker_failures` faults in a row suspend it for
    /// `breaker_open_ms`; what does not count against a worker is neutral (R31). Returns workers that are suspended from
    /// now on for being much worse than the others.
    pub fn report(&self, worker: InstanceId, error: Option<&Error>, now_ms: u64) -> Vec<Outlier> {
        let outcome = match error {
            None => Some(Outcome { fault: false, pace_ms: None }),
            Some(error) => error.counts_against_worker().then_some(Outcome { fault: true, pace_ms: None }),
        };
        self.observe(worker, error, outcome, now_ms)
    }

    /// A whole answer came, at so many milliseconds per token after the first.
    pub fn report_pace(&self, worker: InstanceId, pace_ms: f64, now_ms: u64) -> Vec<Outlier> {
        self.observe(worker, None, Some(Outcome { fault: false, pace_ms: Some(pace_ms) }), now_ms)
    }

    fn observe(
        &self,
        worker: InstanceId,
        error: Option<&Error>,
        outcome: Option<Outcome>,
        now_ms: u64,
    ) -> Vec<Outlier> {
        let config = &self.shared.config;
        let mut state = self.shared.state();
        for candidate in state.ranks_of(worker) {
            candidate.health.observe(error, now_ms, config.breaker_failures, config.breaker_open_ms);
        }
        state.compare(worker, outcome, now_ms, config)
    }

    /// Feeds the prefix index. Sources that are no candidates are refused ([`Applied::unknown_source`]); what they said
    /// shows up as a gap once they are. In modes that do not look at the cache nothing is kept.
    pub fn apply_events(&self, batch: &KvEventBatch) -> Applied {
        self.apply_with(batch, Index::apply)
    }

    /// As [`Router::apply_events`], but accepts that batches before this one are lost for good.
    pub fn apply_events_past_gap(&self, batch: &KvEventBatch) -> Applied {
        self.apply_with(batch, Index::apply_past_gap)
    }

    fn apply_with(
        &self,
        batch: &KvEventBatch,
        apply: impl FnOnce(&mut Index, &KvEventBatch) -> Applied,
    ) -> Applied {
        if self.mode() != Mode::Kv {
            return Applied::default();
        }
        let mut index = self.shared.index_mut();
        if !index.is_registered(batch.source) {
            return Applied { unknown_source: true, ..Applied::default() };
        }
        apply(&mut index, batch)
    }

    /// What a rank's engine says of itself.
    pub fn update_load(&self, source: WorkerRank, load: Load) {
        let mut state = self.shared.state();
        if let Ok(at) = state.find(source) {
            state.candidates[at].reported = Some(load);
        }
    }

    /// The limits above which ranks are passed over.
    pub fn thresholds(&self) -> Thresholds {
        self.shared.state().thresholds
    }

    /// Puts others in their place, from the next selection on.
    pub fn set_thresholds(&self, thresholds: Thresholds) {
        self.shared.state().thresholds = thresholds;
    }

    /// Chooses a rank and books the request there.
    ///
    /// # Errors
    /// Unavailable if nobody takes new requests; overloaded if all who would are busy by [`Router::thresholds`]; invalid
    /// if the pinned worker or rank does not exist.
    pub fn select(&self, query: &Query<'_>) -> Result<Selection> {
        let shared = &self.shared;
        let (chosen, told) = shared.with_cached(query, |sequences, cached| {
            let chosen = shared.state().select(&shared.config, query, sequences, cached)?;
            let told =
                shared.teller.as_ref().map(|it| it.tell(chosen.target, &chosen.charge, sequences.into()));
            Ok::<_, Error>((chosen, told))
        })?;
        let block_size = shared.block_size().max(1);
        let output = shared.config.track_output_blocks.then(|| Output {
            block_size,
            prompt_rest: (query.prompt_tokens() % u64::from(block_size)) as u32,
            expected_tokens: query.expected_output_tokens,
            generated: 0,
        });
        let booking =
            Booking::new(Arc::clone(shared), chosen.target, chosen.incarnation, chosen.charge, output, told);
        Ok(Selection {
            target: chosen.target,
            overlap_blocks: chosen.overlap_blocks,
            best_overlap_blocks: chosen.best_overlap_blocks,
            candidates: chosen.candidates,
            explain: chosen.explain,
            booking,
        })
    }

    /// What each eligible rank would carry with this request. Books nothing.
    ///
    /// # Errors
    /// As [`Router::select`].
    pub fn potential_loads(&self, query: &Query<'_>) -> Result<Vec<PotentialLoad>> {
        let shared = &self.shared;
        shared.with_cached(query, |sequences, cached| {
            shared.state().potential_loads(&shared.config, query, sequences, cached)
        })
    }

    /// What each rank is known to have cached of the prompt, in the order of ranks; nothing in modes that do not look
    /// at the cache.
    pub fn overlaps(&self, query: &Query<'_>) -> Vec<(WorkerRank, Overlap)> {
        self.shared.with_cached(query, |_, cached| {
            let state = self.shared.state();
            let candidates = state.candidates.iter();
            candidates.map(|candidate| (candidate.target, cached.of(candidate.slot))).collect()
        })
    }

    /// The books, in the order of ranks.
    pub fn loads(&self) -> Vec<(WorkerRank, BookedLoad)> {
        let state = self.shared.state();
        state.candidates.iter().map(|candidate| (candidate.target, state.load(candidate))).collect()
    }

    /// Size of the prefix index.
    pub fn index_size(&self) -> IndexSize {
        let index = self.shared.index();
        IndexSize { nodes: index.node_count(), bytes: index.memory_bytes() }
    }
}
