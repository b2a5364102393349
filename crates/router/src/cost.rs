//! The cost of one candidate (behaviour.md 2.2), a pure function. All loads in blocks.

use crate::config::Config;
use crate::query::Terms;
use dynamo_kv_index::Overlap;
use dynamo_types::WorkerRank;

/// What the cost of a candidate depends on besides the weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostInputs {
    pub target: WorkerRank,
    pub block_size: u32,
    /// Prompt length in tokens.
    pub prompt_tokens: u64,
    /// Prefill booked on the candidate, in tokens, and the least of it over all eligible candidates.
    pub active_prefill_tokens: u64,
    pub least_prefill_tokens: u64,
    pub overlap: Overlap,
    /// Length of the prefix in a cache that all workers share.
    pub shared_blocks: u32,
    /// Active blocks on the candidate plus those of the prompt that are not active there.
    pub potential_decode_blocks: f64,
    pub active_requests: u32,
}

/// The cost and all its terms.
#[inline]
pub fn cost(config: &Config, inputs: &CostInputs) -> Terms {
    let block_size = f64::from(inputs.block_size.max(1));
    let overlap = inputs.overlap;
    let raw_prefill_blocks = (inputs.active_prefill_tokens + inputs.prompt_tokens) as f64 / block_size;
    let decay = if config.overlap_score_credit_decay > 0.0 {
        let request_blocks = inputs.prompt_tokens.div_ceil(u64::from(inputs.block_size.max(1))).max(1) as f64;
        let excess =
            inputs.active_prefill_tokens.saturating_sub(inputs.least_prefill_tokens) as f64 / block_size;
        1.0 / (1.0 + config.overlap_score_credit_decay * excess / request_blocks)
    } else {
        1.0
    };
    let shared_beyond = inputs.shared_blocks.saturating_sub(overlap.device);
    let credit = credit(config, overlap, shared_beyond, decay);
    let adjusted_prefill_blocks = (raw_prefill_blocks - credit).max(0.0);
    Terms {
        target: inputs.target,
        raw_prefill_blocks,
        device_blocks: overlap.device,
        host_blocks: overlap.host_beyond(),
        disk_blocks: overlap.disk_beyond(),
        shared_blocks: shared_beyond,
        decay,
        credit,
        adjusted_prefill_blocks,
        potential_decode_blocks: inputs.potential_decode_blocks,
        active_requests: inputs.active_requests,
        cost: config.prefill_load_scale * adjusted_prefill_blocks
            + inputs.potential_decode_blocks
            + config.decode_active_request_weight * f64::from(inputs.active_requests),
    }
}

/// Blocks of prefill that what is cached is worth. `shared_beyond`: blocks in the cache that all share, beyond the device's.
#[inline]
pub(crate) fn credit(config: &Config, overlap: Overlap, shared_beyond: u32, decay: f64) -> f64 {
    config.overlap_score_credit * decay * f64::from(overlap.device)
        + config.host_weight * f64::from(overlap.host_beyond())
        + config.disk_weight * f64::from(overlap.disk_beyond())
        + config.shared_weight * f64::from(shared_beyond)
}

/// Prompt tokens left to compute on a worker with this overlap: what is booked as its prefill.
pub fn uncached_tokens(
    config: &Config,
    prompt_tokens: u64,
    block_size: u32,
    overlap: Overlap,
    shared_blocks: u32,
) -> u64 {
    // The credit is a preference and may be above one; a block cannot spare more than itself.
    let cached = config.overlap_score_credit.min(1.0) * f64::from(overlap.device)
        + config.host_weight.min(1.0) * f64::from(overlap.host_beyond())
        + config.disk_weight.min(1.0) * f64::from(overlap.disk_beyond())
        + config.shared_weight.min(1.0) * f64::from(shared_blocks.saturating_sub(overlap.device));
    prompt_tokens.saturating_sub((cached * f64::from(block_size)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dynamo_types::InstanceId;
    use proptest::prelude::*;

    fn inputs(device: u32, decode: f64) -> CostInputs {
        CostInputs {
            target: WorkerRank::new(InstanceId(1), 0),
            block_size: 16,
            prompt_tokens: 160,
            active_prefill_tokens: 0,
            least_prefill_tokens: 0,
            overlap: Overlap { device, host: device, disk: device },
            shared_blocks: 0,
            potential_decode_blocks: decode,
            active_requests: 0,
        }
    }

    #[test]
    fn worked_example_of_the_documentation() {
        let costs = [(2, 10.0), (5, 5.0), (8, 9.0)]
            .map(|(device, decode)| cost(&Config::default(), &inputs(device, decode)).cost);
        assert_eq!(costs, [18.0, 10.0, 11.0]);
    }

    #[test]
    fn every_term_counts_as_documented() {
        let config = Config {
            overlap_score_credit: 2.0,
            overlap_score_credit_decay: 0.5,
            prefill_load_scale: 3.0,
            decode_active_request_weight: 0.25,
            ..Config::default()
        };
        let terms = cost(
            &config,
            &CostInputs {
                active_prefill_tokens: 480,
                least_prefill_tokens: 160,
                overlap: Overlap { device: 2, host: 5, disk: 9 },
                shared_blocks: 4,
                active_requests: 8,
                ..inputs(0, 7.0)
            },
        );
        // excess 20 blocks over 10 of the request: 1 / (1 + 0.5 * 2)
        assert_eq!(terms.decay, 0.5);
        assert_eq!(terms.raw_prefill_blocks, 40.0);
        assert_eq!(
            (terms.device_blocks, terms.host_blocks, terms.disk_blocks, terms.shared_blocks),
            (2, 3, 4, 2)
        );
        assert_eq!(terms.credit, 2.0 * 0.5 * 2.0 + 0.75 * 3.0 + 0.25 * 4.0 + 0.5 * 2.0);
        assert_eq!(terms.adjusted_prefill_blocks, 40.0 - terms.credit);
        assert_eq!(terms.cost, 3.0 * terms.adjusted_prefill_blocks + 7.0 + 0.25 * 8.0);
    }

    #[test]
    fn credit_never_makes_prefill_negative() {
        let config = Config { overlap_score_credit: 5.0, ..Config::default() };
        assert_eq!(cost(&config, &inputs(10, 4.0)).cost, 4.0);
    }

    proptest! {
        #[test]
        fn more_cache_never_costs_more_and_more_load_never_less(
            device in 0u32..10, decode in 0u32..99, prefill in 0u64..9999, credit in 0.0f64..3.0,
        ) {
            let config = Config { overlap_score_credit: credit, ..Config::default() };
            let base = CostInputs { active_prefill_tokens: prefill, ..inputs(device, f64::from(decode)) };
            let base_cost = cost(&config, &base).cost;
            let cached = inputs(device + 1, 0.0).overlap;
            let warmer = CostInputs { overlap: cached, ..base };
            prop_assert!(cost(&config, &warmer).cost <= base_cost);
            let busier = CostInputs { active_prefill_tokens: prefill + 1, ..base };
            prop_assert!(cost(&config, &busier).cost >= base_cost);
            let tokens = uncached_tokens(&config, 160, 16, base.overlap, 0);
            prop_assert!(tokens <= 160 && uncached_tokens(&config, 160, 16, cached, 0) <= tokens);
        }
    }
}
