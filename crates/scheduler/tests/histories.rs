//! Random requests, cancels, budgets and pools. A store that really keeps tokens per block shows whether every row
//! saw exactly its own sequence.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use dynamo_scheduler::{BlockId, Options, Plan, Sampled, Scheduler, Segment, SequenceId};
use dynamo_types::{FinishReason, KvEvent, OutputOptions, Request, RoutingHints, Stopping, Task, hash};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The "model": next token and whether it ends the answer, from all tokens so far.
fn next_token(tokens: &[u32]) -> (u32, bool) {
    let digest = hash::local_hash(tokens, 99);
    ((digest % 5) as u32, digest.is_multiple_of(37))
}

fn expected(request: &Request, context_length: usize) -> (Vec<u32>, FinishReason) {
    if request.task == Task::Embed {
        return (Vec::new(), FinishReason::Stop);
    }
    let mut tokens = request.tokens.to_vec();
    let mut answer = Vec::new();
    while answer.len() < request.stopping.max_tokens as usize && tokens.len() < context_length {
        let (token, end) = next_token(&tokens);
        tokens.push(token);
        answer.push(token);
        if end {
            return (answer, FinishReason::Stop);
        }
    }
    (answer, FinishReason::Length)
}

#[derive(Clone, Debug)]
struct Arrival {
    at_step: usize,
    cancel_after: Option<usize>,
    request: Arc<Request>,
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let request = (
        (0u32..3, 1usize..30),
        prop::collection::vec(0u32..5, 0..4),
        0u32..40,
        prop_oneof![2 => Just(0i32), 1 => -2i32..3],
        prop::option::weighted(0.2, prop_oneof![Just("a"), Just("b")]),
        prop_oneof![12 => Just((false, Task::Generate)), 2 => Just((true, Task::Generate)), 3 => Just((false, Task::Embed))],
    )
        .prop_map(|((family, shared), own, max_tokens, priority, salt, (prompt_logprobs, task))| {
            let mut tokens: Vec<u32> = (0..shared as u32).map(|i| (i * 7 + family) % 5).collect();
            tokens.extend(own);
            let resumed = (tokens.len() as u32 / 3).min(max_tokens % 3);
            Arc::new(Request {
                id: "r".into(),
                model: "m".into(),
                tokens: tokens.into(),
                resumed,
                task,
                sampling: Default::default(),
                stopping: Stopping { max_tokens, ..Default::default() },
                guide: None,
                thinking: None,
                output: OutputOptions { logprobs: None, prompt_logprobs: prompt_logprobs.then_some(0) },
                routing: RoutingHints { priority, salt: salt.map(Arc::from), ..Default::default() },
                trace: None,
            })
        });
    (0usize..25, prop::option::weighted(0.2, 0usize..15), request)
        .prop_map(|(at_step, cancel_after, request)| Arrival { at_step, cancel_after, request })
}

fn options() -> impl Strategy<Value = Options> {
    (1u32..5, 4u32..24, 1u32..9, 1u32..30, 20u32..60, prop::bool::weighted(0.8)).prop_map(
        |(block_size, total_blocks, max_num_seqs, max_num_batched_tokens, context_length, prefix_caching)| {
            Options {
                block_size,
                total_blocks,
                max_num_seqs,
                max_num_batched_tokens,
                context_length,
                max_waiting: 6,
                prefix_caching,
            }
        },
    )
}

struct Open {
    arrival: Arrival,
    number: usize,
    submitted_at: usize,
    started: bool,
    answer: Vec<u32>,
    /// Tokens known to be computed, for legality of the next segment.
    computed: usize,
}

/// A token and the salt it was computed under.
type Kept = (u32, Option<Arc<str>>);

struct World {
    scheduler: Scheduler,
    open: BTreeMap<SequenceId, Open>,
    /// Token and salt at each place of each block.
    store: BTreeMap<(BlockId, usize), Kept>,
    announced: BTreeSet<u64>,
}

impl World {
    fn submit(&mut self, arrival: Arrival, number: usize, step: usize) {
        let context = self.scheduler.options().context_length as usize;
        let limit = (self.scheduler.options().max_num_seqs + self.scheduler.options().max_waiting) as usize;
        let result = self.scheduler.submit(arrival.request.clone());
        let room = usize::from(arrival.request.task == Task::Generate);
        if arrival.request.tokens.len() + room > context {
            let error = result.unwrap_err();
            assert_eq!(error.code(), Some("context_length_exceeded"));
        } else if self.open.len() >= limit {
            assert_eq!(result.unwrap_err().class(), dynamo_types::Class::Overloaded);
        } else {
            let open =
                Open { arrival, number, submitted_at: step, started: false, answer: vec![], computed: 0 };
            self.open.insert(result.unwrap(), open);
        }
    }

    fn cancel_due(&mut self, step: usize) {
        let due: Vec<_> = self
            .open
            .iter()
            .filter(|(_, open)| {
                open.arrival.cancel_after.is_some_and(|after| open.submitted_at + after <= step)
            })
            .map(|(&id, _)| id)
            .collect();
        for id in due {
            assert!(self.scheduler.cancel(id));
            assert!(!self.scheduler.cancel(id));
            assert!(self.scheduler.block_table(id).is_empty());
            self.open.remove(&id);
        }
    }

    fn check_plan(&mut self, plan: &Plan) {
        let options = self.scheduler.options();
        assert!(plan.tokens() <= options.max_num_batched_tokens as usize, "budget");
        assert!(plan.segments.len() <= options.max_num_seqs as usize);
        assert!(!plan.is_empty() || self.open.is_empty(), "nothing advances");
        let unique: BTreeSet<_> = plan.segments.iter().map(|segment| segment.sequence).collect();
        assert_eq!(unique.len(), plan.segments.len(), "a sequence twice in one step");
        for id in &plan.preempted {
            assert!(!unique.contains(id));
            self.open.get_mut(id).unwrap().computed = 0;
        }
        let rank = |open: &Open| (std::cmp::Reverse(open.arrival.request.routing.priority), open.number);
        for segment in &plan.segments {
            let open = &self.open[&segment.sequence];
            if !open.started {
                let overtaken = self
                    .open
                    .iter()
                    .any(|(id, other)| !other.started && !unique.contains(id) && rank(other) < rank(open));
                assert!(!overtaken, "started before an earlier one");
            }
        }
    }

    fn compute(&mut self, segment: &Segment) -> Option<Sampled> {
        let id = segment.sequence;
        let block_size = self.scheduler.options().block_size as usize;
        let open = self.open.get_mut(&id).unwrap();
        let tokens = self.scheduler.tokens(id);
        let table = self.scheduler.block_table(id);
        let request = &open.arrival.request;
        assert!(segment.len > 0 && segment.end() <= tokens.len());
        assert!(table.len() * block_size >= segment.end(), "table too short");
        if open.started && open.computed > 0 {
            // Ahead of what it computed itself only onto blocks that others completed meanwhile.
            let adopted = segment.start > open.computed && segment.start.is_multiple_of(block_size);
            assert!(segment.start == open.computed || adopted, "a gap or a repetition");
        } else {
            assert_eq!(segment.start % block_size, 0, "starts inside a cached block");
        }
        assert!(
            self.scheduler.cached_tokens(id).unwrap() as usize <= request.prompt_len(),
            "more cached than asked"
        );
        if request.task == Task::Embed {
            assert_eq!(segment.start, open.computed, "a position that no row was computed for");
        }
        open.started = true;
        open.computed = segment.end();
        let wants_sample = segment.end() == tokens.len()
            && request.stopping.max_tokens > 0
            && request.task == Task::Generate;
        assert_eq!(segment.sample, wants_sample);
        for position in segment.start..segment.end() {
            let place = (table[position / block_size], position % block_size);
            self.store.insert(place, (tokens[position], request.routing.salt.clone()));
        }
        for (position, &token) in tokens[..segment.end()].iter().enumerate() {
            let place = (table[position / block_size], position % block_size);
            assert_eq!(
                self.store[&place],
                (token, request.routing.salt.clone()),
                "another's keys and values"
            );
        }
        segment.sample.then(|| {
            let (token, end) = next_token(tokens);
            open.answer.push(token);
            Sampled { sequence: id, token, end }
        })
    }

    fn step(&mut self) {
        let plan = self.scheduler.plan();
        self.check_plan(&plan);
        let sampled: Vec<_> = plan.segments.iter().filter_map(|segment| self.compute(segment)).collect();
        assert_eq!(sampled.len(), plan.samples());
        let context = self.scheduler.options().context_length as usize;
        for finished in self.scheduler.commit(&plan, &sampled) {
            let open = self.open.remove(&finished.sequence).unwrap();
            assert_eq!((open.answer, finished.reason), expected(&open.arrival.request, context));
        }
        for event in self.scheduler.drain_events() {
            match event {
                KvEvent::Stored { parent, blocks, .. } => {
                    assert!(parent.is_none_or(|parent| self.announced.contains(&parent)));
                    assert!(blocks.iter().all(|block| self.announced.insert(block.block_hash)));
                }
                KvEvent::Removed { hashes, .. } => {
                    assert!(hashes.iter().all(|hash| self.announced.remove(hash)));
                }
                KvEvent::Cleared => self.announced.clear(),
            }
        }
    }

    fn check_load(&self) {
        let load = self.scheduler.load();
        assert_eq!((load.running + load.waiting) as usize, self.open.len());
        let active: BTreeSet<_> = self.open.keys().flat_map(|&id| self.scheduler.block_table(id)).collect();
        assert_eq!(load.active_blocks as usize, active.len());
        if self.open.is_empty() {
            assert_eq!((load.active_blocks, load.prefill_tokens), (0, 0));
            assert_eq!(load.cached_blocks as usize, self.announced.len());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn every_request_gets_exactly_its_tokens(
        options in options(),
        arrivals in prop::collection::vec(arrival(), 1..25),
        clear_at in prop::option::weighted(0.2, 0usize..40),
    ) {
        let mut world = World {
            scheduler: Scheduler::new(options.clone()),
            open: BTreeMap::new(),
            store: BTreeMap::new(),
            announced: BTreeSet::new(),
        };
        // Every step advances the first in rank, or starts it: no history can need more than this.
        const MOST_STEPS: usize = 20_000;
        for step in 0.. {
            prop_assert!(step < MOST_STEPS, "does not end");
            for (number, arrival) in arrivals.iter().enumerate().filter(|(_, arrival)| arrival.at_step == step) {
                world.submit(arrival.clone(), number + step * 1000, step);
            }
            world.cancel_due(step);
            if clear_at == Some(step) {
                world.scheduler.clear_cache();
            }
            world.step();
            world.check_load();
            if world.open.is_empty() && arrivals.iter().all(|arrival| arrival.at_step <= step) {
                break;
            }
        }
        prop_assert!(!world.scheduler.has_work());
        prop_assert_eq!(world.scheduler.load().active_blocks, 0);
        if !options.prefix_caching {
            prop_assert!(world.announced.is_empty());
        }
    }
}
