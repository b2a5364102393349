//! Single behaviours, one by one.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use dynamo_scheduler::{Finished, Options, Plan, Sampled, Scheduler, SequenceId};
use dynamo_types::{Class, FinishReason, KvEvent, Request, RoutingHints, Stopping};
use std::sync::Arc;

fn request(tokens: impl IntoIterator<Item = u32>, max_tokens: u32) -> Request {
    Request {
        id: "r".into(),
        model: "m".into(),
        tokens: tokens.into_iter().collect(),
        resumed: 0,
        task: Default::default(),
        sampling: Default::default(),
        stopping: Stopping { max_tokens, ..Default::default() },
        guide: None,
        thinking: None,
        output: Default::default(),
        routing: Default::default(),
        trace: None,
    }
}

fn scheduler(total_blocks: u32) -> Scheduler {
    Scheduler::new(Options {
        block_size: 4,
        total_blocks,
        max_num_seqs: 4,
        max_num_batched_tokens: 16,
        context_length: 64,
        max_waiting: 2,
        prefix_caching: true,
    })
}

/// Computes one step; every sampled token is 9 and ends nothing.
fn step(scheduler: &mut Scheduler) -> (Plan, Vec<Finished>) {
    let plan = scheduler.plan();
    let rows = plan.segments.iter().filter(|segment| segment.sample);
    let sampled: Vec<_> = rows.map(|row| Sampled { sequence: row.sequence, token: 9, end: false }).collect();
    let finished = scheduler.commit(&plan, &sampled);
    (plan, finished)
}

fn submit(scheduler: &mut Scheduler, request: Request) -> SequenceId {
    scheduler.submit(Arc::new(request)).unwrap()
}

#[test]
fn r08_a_prompt_that_fills_the_context_is_the_clients_mistake() {
    let mut scheduler = scheduler(100);
    let error = scheduler.submit(Arc::new(request(0..64, 5))).unwrap_err();
    assert_eq!(
        (error.class(), error.param(), error.code()),
        (Class::Invalid, Some("prompt"), Some("context_length_exceeded"))
    );
    assert!(error.message().contains("64") && error.message().contains("63"), "{error}");
    let empty = scheduler.submit(Arc::new(request([], 5))).unwrap_err();
    assert_eq!((empty.class(), empty.param()), (Class::Invalid, Some("prompt")));
    assert!(!scheduler.has_work());
}

#[test]
fn a_pool_smaller_than_the_context_lowers_it() {
    let mut scheduler = scheduler(3);
    assert_eq!(scheduler.options().context_length, 12);
    submit(&mut scheduler, request(0..10, 100));
    step(&mut scheduler);
    let (_, finished) = step(&mut scheduler);
    assert_eq!(finished.len(), 1, "10 tokens and 2 more are 12");
    assert_eq!(finished[0].reason, FinishReason::Length);
}

#[test]
fn a_full_queue_refuses_as_overloaded() {
    let mut scheduler = scheduler(100);
    for _ in 0..6 {
        submit(&mut scheduler, request(0..5, 5));
    }
    let error = scheduler.submit(Arc::new(request(0..5, 5))).unwrap_err();
    assert!(error.class() == Class::Overloaded && error.retryable());
}

#[test]
fn no_answer_wanted_still_computes_the_prompt() {
    let mut scheduler = scheduler(100);
    submit(&mut scheduler, request(0..20, 0));
    let (plan, finished) = step(&mut scheduler);
    assert_eq!((plan.tokens(), plan.samples(), finished.len()), (16, 0, 0));
    let (plan, finished) = step(&mut scheduler);
    assert_eq!((plan.tokens(), plan.samples()), (4, 0));
    assert_eq!(finished[0].reason, FinishReason::Length);
}

#[test]
fn decode_rows_come_first_and_prefill_takes_the_rest() {
    let mut scheduler = scheduler(100);
    submit(&mut scheduler, request(0..4, 9));
    step(&mut scheduler);
    submit(&mut scheduler, request(100..140, 9));
    let (plan, _) = step(&mut scheduler);
    assert!(plan.segments[0].decode && plan.segments[0].len == 1);
    assert_eq!((plan.segments[1].start, plan.segments[1].len, plan.segments[1].sample), (0, 15, false));
    assert_eq!(plan.prefill_tokens(), 15);
    let (plan, _) = step(&mut scheduler);
    assert_eq!((plan.segments[1].start, plan.segments[1].len), (15, 15));
}

#[test]
fn the_next_turn_finds_prompt_and_answer() {
    let mut scheduler = scheduler(100);
    let first = submit(&mut scheduler, request(0..6, 7));
    while scheduler.has_work() {
        step(&mut scheduler);
    }
    assert!(scheduler.tokens(first).is_empty());
    // 6 given and 7 sampled tokens, the last of which was never computed: 12 are, in 3 blocks.
    let history = (0..6).chain([9; 7]).chain([1, 2, 3]);
    let second = submit(&mut scheduler, request(history.clone(), 1));
    scheduler.plan();
    assert_eq!(scheduler.cached_tokens(second), Some(12));
    // The same in another tenant's scope finds nothing (R36).
    let mut foreign = request(history, 1);
    foreign.routing = RoutingHints { salt: Some("other".into()), ..Default::default() };
    let third = submit(&mut scheduler, foreign);
    scheduler.plan();
    assert_eq!(scheduler.cached_tokens(third), Some(0));
}

#[test]
fn the_last_prompt_token_is_always_computed() {
    let mut scheduler = scheduler(100);
    submit(&mut scheduler, request(0..8, 1));
    step(&mut scheduler);
    let again = submit(&mut scheduler, request(0..8, 1));
    let (plan, _) = step(&mut scheduler);
    assert_eq!((plan.segments[0].sequence, plan.segments[0].start, plan.segments[0].len), (again, 4, 4));
}

#[test]
fn cancel_gives_blocks_back_at_once_in_every_state() {
    let mut scheduler = scheduler(100);
    let ids: Vec<_> = (0..6).map(|i| submit(&mut scheduler, request(i * 100..i * 100 + 20, 9))).collect();
    step(&mut scheduler);
    step(&mut scheduler);
    assert!(scheduler.load().active_blocks > 0 && scheduler.load().waiting > 0);
    let plan = scheduler.plan();
    for id in ids {
        assert!(scheduler.cancel(id));
    }
    let load = scheduler.load();
    assert_eq!((load.active_blocks, load.running, load.waiting, load.prefill_tokens), (0, 0, 0, 0));
    assert!(scheduler.commit(&plan, &[]).is_empty());
    assert!(!scheduler.has_work() && scheduler.plan().is_empty());
}

#[test]
fn the_latest_loses_its_blocks_and_comes_back_without_repeating() {
    let mut scheduler = scheduler(6);
    let early = submit(&mut scheduler, request(0..7, 12));
    let late = submit(&mut scheduler, request(50..57, 12));
    let mut preempted = Vec::new();
    let mut samples = [0, 0];
    let mut finished = Vec::new();
    while scheduler.has_work() {
        let (plan, done) = step(&mut scheduler);
        for row in plan.segments.iter().filter(|segment| segment.sample) {
            samples[usize::from(row.sequence == late)] += 1;
        }
        preempted.extend(plan.preempted);
        finished.extend(done.into_iter().map(|end| end.sequence));
    }
    assert!(!preempted.is_empty() && preempted.iter().all(|&id| id == late));
    assert_eq!((samples, finished), ([12, 12], vec![early, late]));
}

#[test]
fn higher_priority_starts_first_and_is_preempted_last() {
    let mut scheduler = scheduler(100);
    let ids: Vec<_> = [(0, 0), (0, 0), (0, 5), (0, 0), (1, -7)]
        .into_iter()
        .map(|(tier, priority)| {
            let mut urgent = request(0..3, 2);
            urgent.routing.strict_priority = tier;
            urgent.routing.priority = priority;
            submit(&mut scheduler, urgent)
        })
        .collect();
    let order: Vec<_> = scheduler.plan().segments.iter().map(|segment| segment.sequence).collect();
    assert_eq!(order, [ids[4], ids[2], ids[0], ids[1]], "a tier goes before any priority");
}

#[test]
fn a_planned_row_is_withdrawn_when_its_blocks_go_to_a_higher_rank() {
    let mut scheduler = Scheduler::new(Options {
        block_size: 1,
        total_blocks: 24,
        context_length: 24,
        max_num_batched_tokens: 3,
        max_num_seqs: 2,
        ..scheduler(1).options().clone()
    });
    let low = submit(&mut scheduler, request([1, 2], 20));
    step(&mut scheduler);
    let mut urgent = request(100..118, 2);
    urgent.routing.priority = 1;
    let high = submit(&mut scheduler, urgent);
    // The lower one decodes a token, and takes a block, in each step of the other's long prefill.
    let (plan, _) = loop {
        let (plan, finished) = step(&mut scheduler);
        assert!(finished.is_empty() && plan.tokens() <= 3);
        if !plan.preempted.is_empty() {
            break (plan, finished);
        }
    };
    assert_eq!(plan.preempted, [low]);
    assert!(matches!(&plan.segments[..], [row] if row.sequence == high && row.len > 1), "{plan:?}");
    assert_eq!(plan.tokens(), 3, "the withdrawn row's budget is used");
    assert!(scheduler.block_table(low).is_empty());
}

#[test]
fn without_prefix_caching_nothing_is_shared_or_said() {
    let mut scheduler = Scheduler::new(Options { prefix_caching: false, ..scheduler(100).options().clone() });
    for _ in 0..2 {
        submit(&mut scheduler, request(0..12, 2));
        while scheduler.has_work() {
            step(&mut scheduler);
        }
    }
    assert!(scheduler.drain_events().is_empty());
    assert_eq!(scheduler.load().cached_blocks, 0);
}

#[test]
fn blocks_are_announced_when_they_are_complete() {
    let mut scheduler = scheduler(100);
    submit(&mut scheduler, request(0..7, 3));
    let mut announced = Vec::new();
    while scheduler.has_work() {
        step(&mut scheduler);
        announced.push(scheduler.drain_events().iter().fold(0, |sum, event| match event {
            KvEvent::Stored { blocks, .. } => sum + blocks.len(),
            _ => sum,
        }));
    }
    assert_eq!(announced, [1, 1, 0], "7 tokens are 1 block, the first sampled one completes the second");
}

#[test]
fn prompt_logits_are_bounded_per_step() {
    let mut scheduler = Scheduler::new(Options {
        max_num_batched_tokens: 4096,
        total_blocks: 4096,
        context_length: 4096,
        ..scheduler(1).options().clone()
    });
    for _ in 0..3 {
        let mut echo = request((0..1000).map(|i| i % 7), 1);
        echo.output.prompt_logprobs = Some(0);
        submit(&mut scheduler, echo);
    }
    while scheduler.has_work() {
        let (plan, _) = step(&mut scheduler);
        assert!(plan.prefill_tokens() <= 64 && !plan.is_empty());
    }
}

#[test]
fn prompts_that_begin_alike_and_come_together_are_computed_once() {
    let mut scheduler = Scheduler::new(Options {
        block_size: 4,
        total_blocks: 400,
        max_num_seqs: 8,
        max_num_batched_tokens: 220,
        context_length: 1000,
        max_waiting: 100,
        prefix_caching: true,
    });
    for last in 0..3 {
        submit(&mut scheduler, request((0..400).chain([1000 + last]), 1));
    }
    let mut computed = 0;
    while scheduler.has_work() {
        let (plan, _) = step(&mut scheduler);
        computed += plan.segments.iter().map(|segment| segment.len).sum::<usize>();
    }
    // Of 401 tokens the first step computes 220. The second computes 181 and has 39 left for the next sequence, which
    // finds the rest computed afterwards: one token is left for it, and for the third.
    assert_eq!(computed, 220 + 181 + 39 + 1 + 1);
    assert_eq!(scheduler.load().active_blocks, 0);
}
