//! R23: a cancelled request gives back its blocks, whatever it was doing.
//!
//! Blocks are not handed from one worker to another yet. What there is today is one owner that queues, computes a prompt
//! in chunks, and decodes; each of these moments is cancelled here, also when prefixes are shared, blocks are short and
//! others go on.

use dynamo_mocker::{MockCore, Options, SequenceId};
use dynamo_types::{Request, Stopping, draw};
use std::sync::Arc;

const CASES: u64 = 1500;
/// Draws start here; a failing case prints its number.
const SEED: u64 = 0x23;

fn request(tokens: Vec<u32>, max_tokens: u32) -> Arc<Request> {
    Arc::new(Request {
        id: "r".into(),
        model: "m".into(),
        tokens: tokens.into(),
        resumed: 0,
        task: Default::default(),
        sampling: Default::default(),
        stopping: Stopping { max_tokens, ignore_eos: true, ..Default::default() },
        guide: None,
        thinking: None,
        output: Default::default(),
        routing: Default::default(),
        trace: None,
    })
}

/// When one request of a case is cancelled.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    /// Before any step.
    Queued,
    /// After so many steps, finished or not: in the middle of its prompt, at its first token, while it decodes.
    Steps(u64),
    Never,
}

/// Steps once and returns when to call again.
fn step(core: &mut MockCore, now_us: &mut u64, tokens: &mut u64) -> bool {
    let outcome = core.step(*now_us);
    *tokens += outcome.deltas.iter().map(|(_, delta)| delta.tokens.len() as u64).sum::<u64>();
    match outcome.next_wake_us {
        Some(wake) => *now_us = wake.max(*now_us + 1),
        None => return false,
    }
    true
}

#[test]
fn r23_cancelling_at_any_moment_returns_every_block() {
    let (mut in_prefill, mut in_decode) = (0, 0);
    for case in 0..CASES {
        let mut at = 0;
        let mut below = |len: usize| {
            at += 1;
            draw::index(SEED + case, at, len)
        };
        let options = Options {
            block_size: 4,
            num_gpu_blocks: 24 + below(40) as u32,
            max_num_seqs: 1 + below(6) as u32,
            max_num_batched_tokens: 8 + below(24) as u32,
            context_length: 96,
            enable_prefix_caching: below(2) == 0,
            ..Options::default()
        };
        let mut core = MockCore::new(options);
        let total = core.load().total_blocks;
        let (mut now_us, mut tokens, mut requests) = (0, 0, Vec::<(SequenceId, Moment)>::new());
        for _ in 0..1 + below(8) {
            // Few different beginnings, so that prefixes are shared.
            let (salt, len) = (below(2) as u32, 1 + below(50));
            let prompt: Vec<u32> = (0..len as u32).map(|index| index * 7 + salt).collect();
            let moment = match below(4) {
                0 => Moment::Queued,
                1 => Moment::Never,
                _ => Moment::Steps(1 + below(30) as u64),
            };
            requests.push((core.submit(request(prompt, 1 + below(40) as u32)).unwrap(), moment));
        }
        for (id, _) in requests.iter().filter(|(_, moment)| *moment == Moment::Queued) {
            assert!(core.cancel(*id), "case {case}");
        }
        let mut steps = 0;
        while step(&mut core, &mut now_us, &mut tokens) {
            steps += 1;
            for (id, _) in requests.iter().filter(|(_, moment)| *moment == Moment::Steps(steps)) {
                let before = core.load();
                if core.cancel(*id) {
                    let is_prefill = core.load().prefill_tokens < before.prefill_tokens;
                    *(if is_prefill { &mut in_prefill } else { &mut in_decode }) += 1;
                }
                assert!(!core.cancel(*id), "case {case}: cancelled twice");
            }
            assert!(steps < 10_000, "case {case}: no end");
        }
        let load = core.load();
        assert_eq!((load.running, load.waiting, load.active_blocks), (0, 0, 0), "case {case}: {load:?}");
        assert_eq!((load.prefill_tokens, load.total_blocks), (0, total), "case {case}: {load:?}");
        // What is kept for reuse is free to take: a request that needs the whole pool gets it.
        let whole = total.min(23) * 4;
        core.submit(request((1000..1000 + whole - 1).collect(), 1)).unwrap();
        tokens = 0;
        while step(&mut core, &mut now_us, &mut tokens) {}
        assert_eq!(tokens, 1, "case {case}: blocks are missing");
    }
    assert!(in_prefill > 100 && in_decode > 100, "{in_prefill} in prefill, {in_decode} later");
}
