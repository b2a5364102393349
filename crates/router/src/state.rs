//! Candidates and their books: everything a selection reads and changes, without locks or guards.

use crate::choose::{Draws, better_of_two, by_temperature, cheapest};
use crate::config::{Config, Mode};
use crate::cost::{CostInputs, cost, uncached_tokens};
use crate::health::Health;
use crate::outlier::{Outcome, Outlier, Outliers};
use crate::peers::Foreign;
use crate::query::{BookedLoad, PotentialLoad, Query, Terms};
use crate::thresholds::{Pressure, Thresholds};
use dynamo_kv_index::{ActiveBlocks, Lengths, Slot, Ticket};
use dynamo_types::{Error, InstanceId, Load, ModelCard, Result, WorkerRank};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// As users of the reference system know it (behaviour.md 10.2).
const OVERLOADED: &str = "Service temporarily overloaded";
/// By then a prefill or a short answer is over.
const OVERLOADED_RETRY_AFTER_S: u32 = 1;

/// A rank that can be chosen.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) target: WorkerRank,
    pub(crate) slot: Slot,
    /// Tells this life of the rank from later ones, so that a late return of a booking changes nothing.
    pub(crate) incarnation: u64,
    pub(crate) draining: bool,
    pub(crate) health: Health,
    pub(crate) reported: Option<Load>,
    requests: u32,
    /// How many of them other routers placed.
    pub(crate) peer_requests: u32,
    prefill_tokens: u64,
    /// Prompt blocks that are not shared: counted, not named.
    anonymous_blocks: u64,
    /// Thousandths of output blocks: whole numbers come back to zero exactly.
    output_millis: u64,
    /// The last round of [`Mode::Random`] in which it was chosen.
    round: u64,
}

/// What one request put on the books of a candidate.
#[derive(Debug, Default)]
pub(crate) struct Charge {
    pub(crate) prefill_tokens: u64,
    pub(crate) blocks: Ticket,
    pub(crate) anonymous_blocks: u64,
    pub(crate) output_millis: u64,
}

/// Who was chosen.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) target: WorkerRank,
    pub(crate) incarnation: u64,
    pub(crate) overlap_blocks: u32,
    pub(crate) best_overlap_blocks: u32,
    pub(crate) candidates: u32,
    pub(crate) explain: Option<Vec<Terms>>,
    pub(crate) charge: Charge,
}

/// Memory that selections use in turn.
#[derive(Debug, Default)]
struct Scratch {
    eligible: Vec<u32>,
    costs: Vec<f64>,
    /// Prompt blocks active, by slot.
    active: Lengths,
}

#[derive(Debug)]
pub(crate) struct State {
    /// Sorted by target.
    pub(crate) candidates: Vec<Candidate>,
    /// Of the first worker; the others agree on its contract.
    pub(crate) card: Option<Arc<ModelCard>>,
    pub(crate) active: ActiveBlocks,
    pub(crate) thresholds: Thresholds,
    pub(crate) outliers: Outliers,
    /// What other routers placed, by the number that they have here.
    pub(crate) foreign: FxHashMap<u64, Foreign>,
    incarnations: u64,
    draws: Draws,
    /// Last choice of [`Mode::RoundRobin`].
    cursor: Option<WorkerRank>,
    /// Current round of [`Mode::Random`].
    round: u64,
    scratch: Scratch,
}

impl State {
    pub(crate) fn new(seed: u64, thresholds: Thresholds) -> Self {
        Self {
            candidates: Vec::new(),
            card: None,
            active: ActiveBlocks::new(),
            thresholds,
            outliers: Outliers::default(),
            foreign: FxHashMap::default(),
            incarnations: 0,
            draws: Draws::new(seed),
            cursor: None,
            round: 1,
            scratch: Scratch::default(),
        }
    }

    /// Adds a rank, or keeps it with its books.
    pub(crate) fn put(&mut self, target: WorkerRank, slot: Slot, draining: bool) {
        match self.find(target) {
            Ok(at) => self.candidates[at].draining = draining,
            Err(at) => {
                self.incarnations += 1;
                let candidate = Candidate {
                    target,
                    slot,
                    incarnation: self.incarnations,
                    draining,
                    health: Health::default(),
                    reported: None,
                    requests: 0,
                    peer_requests: 0,
                    prefill_tokens: 0,
                    anonymous_blocks: 0,
                    output_millis: 0,
                    round: 0,
                };
                self.candidates.insert(at, candidate);
            }
        }
    }

    /// Drops the ranks of a worker from `first_rank` on, with their books.
    pub(crate) fn remove(&mut self, worker: InstanceId, first_rank: u32) {
        let Self { candidates, active, outliers, .. } = self;
        if first_rank == 0 {
            outliers.forget(worker);
        }
        let before = candidates.len();
        candidates.retain(|candidate| {
            let gone = candidate.target.worker == worker && candidate.target.rank >= first_rank;
            if gone {
                active.clear(candidate.slot);
            }
            !gone
        });
        if candidates.is_empty() {
            self.card = None;
        }
        if self.candidates.len() != before {
            self.forget_foreign();
        }
    }

    pub(crate) fn ranks_of(&mut self, worker: InstanceId) -> impl Iterator<Item = &mut Candidate> {
        self.candidates.iter_mut().filter(move |candidate| candidate.target.worker == worker)
    }

    /// Not chosen while somebody else could be.
    pub(crate) fn is_suspended(&self, candidate: &Candidate, now_ms: u64) -> bool {
        candidate.health.is_suspended(now_ms) || self.outliers.is_suspended(candidate.target.worker, now_ms)
    }

    /// Takes down how an answer went, and compares the workers.
    pub(crate) fn compare(
        &mut self,
        worker: InstanceId,
        outcome: Option<Outcome>,
        now_ms: u64,
        config: &Config,
    ) -> Vec<Outlier> {
        if !self.candidates.iter().any(|candidate| candidate.target.worker == worker) {
            return Vec::new();
        }
        let Some(outcome) = outcome else {
            self.outliers.neutral(worker);
            return Vec::new();
        };
        let Self { candidates, outliers, .. } = self;
        outliers.observe(worker, outcome, now_ms, config);
        if !outliers.is_due(now_ms) {
            return Vec::new();
        }
        // Sorted by worker, so that ranks of one stand side by side.
        let mut workers: Vec<(InstanceId, bool)> = candidates
            .iter()
            .filter(|candidate| !candidate.draining)
            .map(|candidate| (candidate.target.worker, candidate.health.is_suspended(now_ms)))
            .collect();
        workers.dedup_by_key(|(worker, _)| *worker);
        outliers.look(&workers, now_ms, config)
    }

    pub(crate) fn find(&self, target: WorkerRank) -> Result<usize, usize> {
        self.candidates.binary_search_by_key(&target, |candidate| candidate.target)
    }

    /// The candidate in the life in which it was booked.
    pub(crate) fn booked(&mut self, target: WorkerRank, incarnation: u64) -> Option<&mut Candidate> {
        let at = self.find(target).ok()?;
        Some(&mut self.candidates[at]).filter(|candidate| candidate.incarnation == incarnation)
    }

    /// Chooses and books in one go. `sequences` are the prompt's sequence hashes if blocks are shared, `cached` the
    /// overlap by slot; both empty in modes that do not look at the cache.
    pub(crate) fn select(
        &mut self,
        config: &Config,
        query: &Query<'_>,
        sequences: &[u64],
        cached: &Lengths,
    ) -> Result<Chosen> {
        let block_size = self.block_size();
        let mut scratch = std::mem::take(&mut self.scratch);
        let found = self.collect_eligible(query, &mut scratch.eligible);
        self.active.overlap(sequences, &mut scratch.active);
        let mut explain = None;
        if found.is_ok() && (config.mode == Mode::Kv || query.explain) {
            let rows = self.costs(config, query, cached, &mut scratch);
            explain = query.explain.then_some(rows);
        }
        let chosen = found.map(|()| {
            let index = self.pick(config, query, &mut scratch);
            let at = scratch.eligible[index] as usize;
            let overlap = cached.of(self.candidates[at].slot);
            let device = |at: &u32| cached.of(self.candidates[*at as usize].slot).device;
            let best_overlap_blocks = scratch.eligible.iter().map(device).max().unwrap_or(0);
            let prompt_tokens = query.prompt_tokens();
            let anonymous_blocks =
                if sequences.is_empty() { prompt_tokens / u64::from(block_size) } else { 0 };
            let slot = self.candidates[at].slot;
            let charge = Charge {
                prefill_tokens: uncached_tokens(
                    config,
                    prompt_tokens,
                    block_size,
                    overlap,
                    query.shared_blocks,
                ),
                blocks: self.active.acquire(slot, sequences),
                anonymous_blocks,
                output_millis: 0,
            };
            self.charge(at, &charge);
            let Candidate { target, incarnation, .. } = self.candidates[at];
            self.outliers.chosen(target.worker, query.now_ms, config);
            let candidates = scratch.eligible.len() as u32;
            Chosen {
                target,
                incarnation,
                overlap_blocks: overlap.device,
                best_overlap_blocks,
                candidates,
                explain,
                charge,
            }
        });
        self.scratch = scratch;
        chosen
    }

    pub(crate) fn potential_loads(
        &mut self,
        config: &Config,
        query: &Query<'_>,
        sequences: &[u64],
        cached: &Lengths,
    ) -> Result<Vec<PotentialLoad>> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let found = self.collect_eligible(query, &mut scratch.eligible);
        self.active.overlap(sequences, &mut scratch.active);
        let block_size = self.block_size();
        let tokens = query.prompt_tokens();
        let request_blocks = tokens.div_ceil(u64::from(block_size));
        let loads = scratch.eligible.iter().map(|at| {
            let candidate = &self.candidates[*at as usize];
            let overlap = cached.of(candidate.slot);
            PotentialLoad {
                target: candidate.target,
                prefill_tokens: candidate.prefill_tokens
                    + uncached_tokens(config, tokens, block_size, overlap, query.shared_blocks),
                decode_blocks: self.potential_decode_blocks(candidate, request_blocks, &scratch.active),
            }
        });
        let loads = found.map(|()| loads.collect());
        self.scratch = scratch;
        loads
    }

    pub(crate) fn load(&self, candidate: &Candidate) -> BookedLoad {
        BookedLoad {
            requests: candidate.requests,
            peer_requests: candidate.peer_requests,
            prefill_tokens: candidate.prefill_tokens,
            decode_blocks: self.active.count(candidate.slot) + candidate.anonymous_blocks,
            output_blocks: candidate.output_millis as f64 / 1000.0,
            draining: candidate.draining,
            reported: candidate.reported,
        }
    }

    /// Puts a request on the books of a candidate, by its place. Its blocks are acquired already.
    pub(crate) fn charge(&mut self, at: usize, charge: &Charge) {
        let candidate = &mut self.candidates[at];
        candidate.requests += 1;
        candidate.prefill_tokens += charge.prefill_tokens;
        candidate.anonymous_blocks += charge.anonymous_blocks;
        candidate.output_millis += charge.output_millis;
    }

    /// Takes everything of a charge off the books.
    pub(crate) fn give_back(&mut self, target: WorkerRank, incarnation: u64, charge: Charge) {
        let Some(candidate) = self.booked(target, incarnation) else { return };
        candidate.requests = candidate.requests.saturating_sub(1);
        candidate.prefill_tokens = candidate.prefill_tokens.saturating_sub(charge.prefill_tokens);
        candidate.anonymous_blocks = candidate.anonymous_blocks.saturating_sub(charge.anonymous_blocks);
        candidate.output_millis = candidate.output_millis.saturating_sub(charge.output_millis);
        let slot = candidate.slot;
        self.active.release(slot, charge.blocks);
    }

    /// Takes `tokens` of prefill off the books: the first token is there.
    pub(crate) fn prefill_done(&mut self, target: WorkerRank, incarnation: u64, tokens: u64) {
        if let Some(candidate) = self.booked(target, incarnation) {
            candidate.prefill_tokens = candidate.prefill_tokens.saturating_sub(tokens);
        }
    }

    /// Replaces a request's share of output blocks.
    pub(crate) fn output(&mut self, target: WorkerRank, incarnation: u64, before: u64, after: u64) {
        if let Some(candidate) = self.booked(target, incarnation) {
            candidate.output_millis = candidate.output_millis.saturating_sub(before) + after;
        }
    }

    fn block_size(&self) -> u32 {
        self.card.as_ref().map_or(1, |card| card.blocks.block_size.max(1))
    }

    /// Fills `eligible` with positions in `candidates`. Suspended ones count only if nothing else does: trying one of
    /// them is better than failing for certain.
    fn collect_eligible(&self, query: &Query<'_>, eligible: &mut Vec<u32>) -> Result<()> {
        eligible.clear();
        if self.candidates.is_empty() {
            return Err(Error::unavailable("no worker serves this model at the moment").with_retry_after_s(1));
        }
        self.check_pin(query)?;
        let fits = |candidate: &Candidate| {
            let target = candidate.target;
            !candidate.draining
                && query.pinned.is_none_or(|(worker, rank)| {
                    target.worker == worker && rank.is_none_or(|rank| target.rank == rank)
                })
                && query.rank.is_none_or(|rank| target.rank == rank)
                && !query.excluded.contains(&target.worker)
        };
        let fitting = (0..).zip(&self.candidates).filter(|(_, candidate)| fits(candidate));
        eligible.extend(
            fitting
                .clone()
                .filter(|(_, candidate)| !self.is_suspended(candidate, query.now_ms))
                .map(|(at, _)| at),
        );
        if eligible.is_empty() {
            eligible.extend(fitting.map(|(at, _)| at));
        }
        if eligible.is_empty() {
            let what = if query.pinned.is_some() {
                "the requested worker takes no new requests at the moment"
            } else {
                "no worker of this model takes new requests at the moment"
            };
            return Err(Error::unavailable(what).with_retry_after_s(1));
        }
        self.pass_over_busy(query, eligible)
    }

    /// Ranks above a limit are passed over, whatever the mode. Who insists on a rank gets it as long as another of its
    /// worker's is not busy: limits are the worker's.
    fn pass_over_busy(&self, query: &Query<'_>, eligible: &mut Vec<u32>) -> Result<()> {
        if self.thresholds.is_empty() {
            return Ok(());
        }
        let card = self.card.as_deref();
        let is_busy = |candidate: &Candidate| self.thresholds.exceeded_by(&self.pressure(candidate, card));
        let passes = |at: &u32| {
            let candidate = &self.candidates[*at as usize];
            let worker = candidate.target.worker;
            match query.pinned {
                Some((_, Some(_))) => {
                    self.candidates.iter().any(|other| other.target.worker == worker && !is_busy(other))
                }
                Some((_, None)) | None => !is_busy(candidate),
            }
        };
        // Whoever has read half of an answer is not the one to be turned away.
        if query.begun && !eligible.iter().any(passes) {
            return Ok(());
        }
        eligible.retain(passes);
        if eligible.is_empty() {
            return Err(Error::overloaded(OVERLOADED).with_retry_after_s(OVERLOADED_RETRY_AFTER_S));
        }
        Ok(())
    }

    fn pressure(&self, candidate: &Candidate, card: Option<&ModelCard>) -> Pressure {
        let booked = self.load(candidate);
        let reported = candidate.reported.unwrap_or_default();
        let total_blocks = Some(reported.total_blocks).filter(|blocks| *blocks > 0);
        Pressure {
            decode_blocks: (booked.decode_blocks as f64 + booked.output_blocks)
                .max(f64::from(reported.active_blocks)),
            prefill_tokens: booked.prefill_tokens.max(u64::from(reported.prefill_tokens)),
            total_blocks: total_blocks.or(card.map(|card| card.total_kv_blocks)).unwrap_or(0),
            max_num_batched_tokens: card.map_or(0, |card| card.max_num_batched_tokens),
        }
    }

    fn check_pin(&self, query: &Query<'_>) -> Result<()> {
        const PARAM: &str = "nvext.backend_instance_id";
        if let Some(rank) = query.rank
            && !self.candidates.iter().any(|candidate| candidate.target.rank == rank)
        {
            let last = self.candidates.iter().map(|candidate| candidate.target.rank).max().unwrap_or(0);
            return Err(Error::invalid(format!("the ranks of this model are 0 to {last}, found {rank}"))
                .with_param("nvext.dp_rank"));
        }
        let Some((worker, rank)) = query.pinned else { return Ok(()) };
        let ranks = self.candidates.iter().filter(|candidate| candidate.target.worker == worker).count();
        if ranks == 0 {
            return Err(Error::invalid(format!("no worker {worker} serves this model")).with_param(PARAM));
        }
        match rank {
            Some(rank) if self.find(WorkerRank::new(worker, rank)).is_err() => {
                Err(Error::invalid(format!("worker {worker} has ranks 0 to {}, found {rank}", ranks - 1))
                    .with_param("nvext.dp_rank"))
            }
            _ => Ok(()),
        }
    }

    fn potential_decode_blocks(&self, candidate: &Candidate, request_blocks: u64, active: &Lengths) -> f64 {
        let new = request_blocks.saturating_sub(u64::from(active.of(candidate.slot).device));
        let held = self.active.count(candidate.slot) + candidate.anonymous_blocks;
        (held + new) as f64 + candidate.output_millis as f64 / 1000.0
    }

    /// Fills `scratch.costs`, in the order of `scratch.eligible`; the full terms only when they are to be shown.
    fn costs(
        &self,
        config: &Config,
        query: &Query<'_>,
        cached: &Lengths,
        scratch: &mut Scratch,
    ) -> Vec<Terms> {
        let Scratch { eligible, costs, active } = scratch;
        let block_size = self.block_size();
        let prompt_tokens = query.prompt_tokens();
        let request_blocks = prompt_tokens.div_ceil(u64::from(block_size));
        let candidates = eligible.iter().map(|at| &self.candidates[*at as usize]);
        let least_prefill_tokens =
            candidates.clone().map(|candidate| candidate.prefill_tokens).min().unwrap_or(0);
        let terms = candidates.map(|candidate| {
            let inputs = CostInputs {
                target: candidate.target,
                block_size,
                prompt_tokens,
                active_prefill_tokens: candidate.prefill_tokens,
                least_prefill_tokens,
                overlap: cached.of(candidate.slot),
                shared_blocks: query.shared_blocks,
                potential_decode_blocks: self.potential_decode_blocks(candidate, request_blocks, active),
                active_requests: candidate.requests,
            };
            cost(config, &inputs)
        });
        costs.clear();
        if query.explain {
            let rows: Vec<Terms> = terms.collect();
            costs.extend(rows.iter().map(|row| row.cost));
            return rows;
        }
        costs.extend(terms.map(|terms| terms.cost));
        Vec::new()
    }

    /// An index into `scratch.eligible`, which is not empty.
    fn pick(&mut self, config: &Config, query: &Query<'_>, scratch: &mut Scratch) -> usize {
        let eligible = &scratch.eligible;
        let Self { candidates, draws, .. } = self;
        let requests = |index: usize| candidates[eligible[index] as usize].requests;
        match config.mode {
            Mode::Kv => by_temperature(&scratch.costs, config.temperature, draws),
            Mode::LeastLoaded => {
                scratch.costs.clear();
                scratch.costs.extend((0..eligible.len()).map(|index| f64::from(requests(index))));
                cheapest(&scratch.costs, draws)
            }
            Mode::PowerOfTwo => better_of_two(eligible.len(), requests, draws),
            // A pin is no choice and must not shift the turn of others.
            Mode::RoundRobin | Mode::Random if query.pinned.is_some() => draws.index(eligible.len()),
            Mode::RoundRobin => self.next_in_turn(eligible),
            Mode::Random => self.next_in_round(eligible),
        }
    }

    fn next_in_turn(&mut self, eligible: &[u32]) -> usize {
        let target = |at: &u32| self.candidates[*at as usize].target;
        let next = match self.cursor {
            Some(cursor) => eligible.partition_point(|at| target(at) <= cursor) % eligible.len(),
            None => self.draws.index(eligible.len()),
        };
        self.cursor = Some(target(&eligible[next]));
        next
    }

    /// Uniform among those not chosen in this round; when all were, a new round begins. A plain uniform draw would put
    /// 14 of 40 requests on one of four workers every third time (R37).
    fn next_in_round(&mut self, eligible: &[u32]) -> usize {
        let fresh = |state: &Self| {
            let round = state.round;
            eligible.iter().filter(|at| state.candidates[**at as usize].round != round).count()
        };
        let mut left = fresh(self);
        if left == 0 {
            self.round += 1;
            left = eligible.len();
        }
        let nth = self.draws.index(left);
        let round = self.round;
        let mut unused =
            (0..eligible.len()).filter(|i| self.candidates[eligible[*i] as usize].round != round);
        let index = unused.nth(nth).unwrap_or(0);
        self.candidates[eligible[index] as usize].round = round;
        index
    }
}
