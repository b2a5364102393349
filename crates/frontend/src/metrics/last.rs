//! What was last seen of each rank: the latest answer's times, shown when the metrics are read.

use dynamo_runtime::metrics::names::{frontend, label};
use dynamo_runtime::metrics::{Error, GaugeVec, Registry};
use dynamo_runtime::sync::lock;
use dynamo_types::WorkerRank;
use rustc_hash::FxHashMap;
use std::sync::Mutex;

/// Ranks that are remembered between two readings: many more than there are, or a rank that left with each answer.
const MAX_RANKS: usize = 65_536;

/// The latest answer of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) time_to_first_token_s: f64,
    /// Of the same answer.
    pub(crate) input_tokens: u32,
    /// None: it had one token, or all came at once.
    pub(crate) inter_token_latency_s: Option<f64>,
}

pub(crate) struct Last {
    ttft: GaugeVec,
    input_tokens: GaugeVec,
    itl: GaugeVec,
    ranks: Mutex<FxHashMap<WorkerRank, Answer>>,
}

impl Last {
    pub(crate) fn new(registry: &Registry) -> Result<Self, Error> {
        let labels = &[label::WORKER_ID, label::DP_RANK, "worker_type"];
        let gauges = |name, help| registry.float_gauges(name, help, labels);
        Ok(Self {
            ttft: gauges(frontend::WORKER_LAST_TTFT_SECONDS, "Time to first token of the latest answer.")?,
            input_tokens: gauges(frontend::WORKER_LAST_INPUT_TOKENS, "Prompt length of the same request.")?,
            itl: gauges(
                frontend::WORKER_LAST_ITL_SECONDS,
                "Last gap between tokens of the latest answer that had one.",
            )?,
            ranks: Mutex::default(),
        })
    }

    /// An answer of this rank is over.
    pub(crate) fn set(&self, rank: WorkerRank, answer: Answer) {
        let mut ranks = lock(&self.ranks);
        if ranks.len() >= MAX_RANKS && !ranks.contains_key(&rank) {
            return;
        }
        let before = ranks.get(&rank).and_then(|before| before.inter_token_latency_s);
        let inter_token_latency_s = answer.inter_token_latency_s.or(before);
        ranks.insert(rank, Answer { inter_token_latency_s, ..answer });
    }

    /// Shows those for which there are labels; others left, and are forgotten.
    pub(crate) fn show(&self, labels: &FxHashMap<WorkerRank, [String; 3]>) {
        [&self.ttft, &self.input_tokens, &self.itl].into_iter().for_each(GaugeVec::reset);
        let mut ranks = lock(&self.ranks);
        ranks.retain(|rank, answer| {
            let Some(labels) = labels.get(rank) else { return false };
            self.ttft.with_label_values(labels).set(answer.time_to_first_token_s);
            self.input_tokens.with_label_values(labels).set(f64::from(answer.input_tokens));
            if let Some(seconds) = answer.inter_token_latency_s {
                self.itl.with_label_values(labels).set(seconds);
            }
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dynamo_types::InstanceId;

    #[test]
    fn ranks_that_left_leave_no_series() {
        let registry = Registry::new();
        let last = Last::new(&registry).unwrap();
        let (one, two) = (WorkerRank::new(InstanceId(1), 0), WorkerRank::new(InstanceId(2), 0));
        let answer =
            Answer { time_to_first_token_s: 0.5, input_tokens: 7, inter_token_latency_s: Some(0.01) };
        last.set(one, answer);
        last.set(two, answer);
        last.set(two, Answer { time_to_first_token_s: 1.5, inter_token_latency_s: None, ..answer });
        let labels = |rank: WorkerRank| (rank, [rank.worker.0.to_string(), "0".into(), "aggregated".into()]);
        last.show(&[labels(one), labels(two)].into_iter().collect());
        let series = "dynamo_frontend_worker_last_inter_token_latency_seconds{dp_rank=\"0\",worker_id=\"2\",worker_type=\"aggregated\"} 0.01";
        assert!(registry.text().unwrap().contains(series), "an answer of one token takes nothing away");
        last.show(&[labels(two)].into_iter().collect());
        let text = registry.text().unwrap();
        assert!(!text.contains("worker_id=\"1\"") && text.contains("1.5"), "{text}");
        last.show(&[labels(one)].into_iter().collect());
        assert!(!registry.text().unwrap().contains("worker_id"), "what left is forgotten");
    }
}
