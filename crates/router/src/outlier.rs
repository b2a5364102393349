//! Workers that are much worse than the others of their model: by their share of faults, or by the time they take per
//! token. A pure function of what was reported, over the caller's clock. The breaker ([`crate::health`]) finds those that
//! fail every time; this finds those that fail, or crawl, more often than the others do.

use crate::config::Config;
use dynamo_types::InstanceId;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// Reports that are kept of one worker: enough for a median, little enough for hundreds of workers.
const KEPT: usize = 64;

/// How often the workers are compared. Reports come with every answer.
const LOOK_EVERY_MS: u64 = 1000;

/// A share of faults is an outlier's only if it is so many times that of the others: what fails everywhere is not a
/// worker's fault.
const WORSE_THAN_OTHERS: f64 = 3.0;

/// Differences below this are nothing that a reader would notice.
const NOTICEABLE_MS: f64 = 10.0;

/// Each suspension in a row is longer by one [`Config::breaker_open_ms`], up to this many.
const LONGEST: u32 = 6;

/// How an answer went, as far as its worker is to blame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) fault: bool,
    /// Milliseconds per token after the first, of answers long enough to tell.
    pub(crate) pace_ms: Option<f64>,
}

/// A worker that is passed over from now on, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Outlier {
    pub worker: InstanceId,
    pub reason: Reason,
    pub for_ms: u64,
}

/// What an outlier is worse in, and what is usual.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    Faults { share: f64, others: f64 },
    Pace { ms: f64, others_ms: f64 },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Faults { share, others } => write!(
                f,
                "{:.0} of 100 answers failed, {:.0} of 100 at the other workers",
                share * 100.0,
                others * 100.0
            ),
            Self::Pace { ms, others_ms } => {
                write!(f, "{ms:.1} ms per token, {others_ms:.1} ms at the other workers")
            }
        }
    }
}

/// What is known of one worker.
#[derive(Debug, Default)]
struct Record {
    outcomes: VecDeque<(u64, Outcome)>,
    suspension: Option<Suspension>,
    /// Suspensions since it last passed a trial.
    times: u32,
}

#[derive(Clone, Copy, Debug)]
struct Suspension {
    until_ms: u64,
    reason: Reason,
    /// The trial that is going on ends by then, whatever becomes of it.
    trial_until_ms: Option<u64>,
}

/// A worker in numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    answers: usize,
    faults: usize,
    /// The median, if there are enough to speak of one.
    pace_ms: Option<f64>,
}

/// The workers of one model. A map of those that have answered; workers that leave are taken out.
#[derive(Debug, Default)]
pub(crate) struct Outliers {
    records: BTreeMap<InstanceId, Record>,
    next_look_ms: u64,
}

impl Outliers {
    pub(crate) fn forget(&mut self, worker: InstanceId) {
        self.records.remove(&worker);
    }

    /// Passed over for now: suspended, or on a trial that has not ended.
    pub(crate) fn is_suspended(&self, worker: InstanceId, now_ms: u64) -> bool {
        self.records.get(&worker).and_then(|record| record.suspension).is_some_and(|suspension| {
            now_ms < suspension.until_ms || suspension.trial_until_ms.is_some_and(|until| now_ms < until)
        })
    }

    /// It was chosen. After a suspension this one request is its trial, and it gets no other meanwhile.
    pub(crate) fn chosen(&mut self, worker: InstanceId, now_ms: u64, config: &Config) {
        let suspension = self.records.get_mut(&worker).and_then(|record| record.suspension.as_mut());
        if let Some(suspension) = suspension
            && now_ms >= suspension.until_ms
            && suspension.trial_until_ms.is_none_or(|until| now_ms >= until)
        {
            suspension.trial_until_ms = Some(now_ms.saturating_add(config.breaker_open_ms));
        }
    }

    /// A request ended by its client's will, or was refused for its own faults: it says nothing of the worker, and if it
    /// was the trial, the next one is.
    pub(crate) fn neutral(&mut self, worker: InstanceId) {
        if let Some(suspension) = self.records.get_mut(&worker).and_then(|record| record.suspension.as_mut())
        {
            suspension.trial_until_ms = None;
        }
    }

    pub(crate) fn observe(&mut self, worker: InstanceId, outcome: Outcome, now_ms: u64, config: &Config) {
        let record = self.records.entry(worker).or_default();
        if let Some(suspension) = record.suspension {
            // Answers that began before the suspension say nothing new.
            if suspension.trial_until_ms.is_some() {
                record.judge(suspension, outcome, now_ms, config);
            }
            return;
        }
        if record.outcomes.len() >= KEPT {
            record.outcomes.pop_front();
        }
        record.outcomes.push_back((now_ms, outcome));
    }

    /// The workers are compared now and then, not after every answer.
    pub(crate) fn is_due(&self, now_ms: u64) -> bool {
        now_ms >= self.next_look_ms
    }

    /// Compares the workers that could be chosen, each with whether it is passed over for another reason. No more than half
    /// of them are suspended.
    pub(crate) fn look(
        &mut self,
        workers: &[(InstanceId, bool)],
        now_ms: u64,
        config: &Config,
    ) -> Vec<Outlier> {
        self.next_look_ms = now_ms.saturating_add(LOOK_EVERY_MS);
        let since = now_ms.saturating_sub(config.outlier_window_ms);
        let serving: Vec<InstanceId> = workers
            .iter()
            .filter(|(worker, is_out)| !is_out && !self.is_suspended(*worker, now_ms))
            .map(|(worker, _)| *worker)
            .collect();
        let room = (workers.len() / 2).saturating_sub(workers.len() - serving.len());
        let rated: Vec<(InstanceId, Tally)> = serving
            .into_iter()
            .filter_map(|worker| Some((worker, self.records.get_mut(&worker)?.tally(since, config))))
            .collect();
        let mut found = worst(&rated, config);
        found.truncate(room);
        let suspend = |(worker, reason): (InstanceId, Reason)| {
            let for_ms = self.records.entry(worker).or_default().suspend(reason, now_ms, config);
            Outlier { worker, reason, for_ms }
        };
        found.into_iter().map(suspend).collect()
    }
}

impl Record {
    fn tally(&mut self, since_ms: u64, config: &Config) -> Tally {
        while self.outcomes.front().is_some_and(|(at, _)| *at < since_ms) {
            self.outcomes.pop_front();
        }
        let outcomes = self.outcomes.iter().map(|(_, outcome)| outcome);
        let mut paces: Vec<f64> = outcomes.clone().filter_map(|outcome| outcome.pace_ms).collect();
        let enough = paces.len() >= config.outlier_min_requests as usize;
        let middle = paces.len() / 2;
        let pace_ms = enough.then(|| *paces.select_nth_unstable_by(middle, f64::total_cmp).1);
        Tally { answers: outcomes.len(), faults: outcomes.filter(|outcome| outcome.fault).count(), pace_ms }
    }

    fn suspend(&mut self, reason: Reason, now_ms: u64, config: &Config) -> u64 {
        self.times = (self.times + 1).min(LONGEST);
        let for_ms = config.breaker_open_ms.saturating_mul(self.times.into());
        let until_ms = now_ms.saturating_add(for_ms);
        self.suspension = Some(Suspension { until_ms, reason, trial_until_ms: None });
        self.outcomes.clear();
        for_ms
    }

    /// How the trial went.
    fn judge(&mut self, suspension: Suspension, outcome: Outcome, now_ms: u64, config: &Config) {
        let crawls = match suspension.reason {
            Reason::Pace { others_ms, .. } => {
                outcome.pace_ms.is_some_and(|pace| is_slow(pace, others_ms, config.outlier_latency_ratio))
            }
            Reason::Faults { .. } => false,
        };
        if outcome.fault || crawls {
            self.suspend(suspension.reason, now_ms, config);
        } else {
            *self = Self::default();
        }
    }
}

fn is_slow(pace_ms: f64, others_ms: f64, ratio: f64) -> bool {
    ratio > 0.0 && pace_ms >= others_ms * ratio && pace_ms - others_ms >= NOTICEABLE_MS
}

/// Who is an outlier, the worst first: faults before slowness.
fn worst(rated: &[(InstanceId, Tally)], config: &Config) -> Vec<(InstanceId, Reason)> {
    let faults: usize = rated.iter().map(|(_, tally)| tally.faults).sum();
    let answers: usize = rated.iter().map(|(_, tally)| tally.answers).sum();
    let by_faults = |tally: &Tally| {
        let others_answers = answers - tally.answers;
        if config.outlier_error_rate <= 0.0
            || tally.answers < config.outlier_min_requests as usize
            || others_answers == 0
        {
            return None;
        }
        let share = tally.faults as f64 / tally.answers as f64;
        let others = (faults - tally.faults) as f64 / others_answers as f64;
        (share >= config.outlier_error_rate && share >= others * WORSE_THAN_OTHERS)
            .then_some(Reason::Faults { share, others })
    };
    let mut paces: Vec<f64> = rated.iter().filter_map(|(_, tally)| tally.pace_ms).collect();
    paces.sort_unstable_by(f64::total_cmp);
    let by_pace = |tally: &Tally| {
        let ms = tally.pace_ms?;
        // The lower of two in the middle: one slow worker must not make another one usual.
        let middle = paces.len().checked_sub(2)? / 2;
        let own = paces.partition_point(|pace| *pace < ms);
        let others_ms = *paces.get(middle + usize::from(own <= middle))?;
        is_slow(ms, others_ms, config.outlier_latency_ratio).then_some(Reason::Pace { ms, others_ms })
    };
    let mut found: Vec<(InstanceId, Reason)> = rated
        .iter()
        .filter_map(|(worker, tally)| Some((*worker, by_faults(tally).or_else(|| by_pace(tally))?)))
        .collect();
    let badness = |reason: &Reason| match *reason {
        Reason::Faults { share, .. } => (1, share),
        Reason::Pace { ms, others_ms } => (0, ms / others_ms.max(f64::MIN_POSITIVE)),
    };
    found.sort_by(|(_, a), (_, b)| {
        let ((a_kind, a), (b_kind, b)) = (badness(a), badness(b));
        b_kind.cmp(&a_kind).then(b.total_cmp(&a))
    });
    found
}

#[cfg(test)]
#[path = "outlier_tests.rs"]
mod tests;
