//! Everything that can become of a source's batches on their way to another process, walked through in every order: the
//! subscriber starts late, the connection breaks, a second subscription doubles what is on its way, the publisher outruns
//! its ring or begins a new life. What is kept, sent, taken and shown are the functions that the planes call.

use super::super::continues;
use super::{Event, Mirror, Options, Position, Source};
use dynamo_explore::{Counterexample, Explored, Model, explore};
use dynamo_types::{InstanceId, KvEvent, KvEventBatch, StorageTier, StoredBlock, WorkerRank};
use std::collections::{BTreeSet, VecDeque};

const SOURCE: WorkerRank = WorkerRank::new(InstanceId(1), 0);
/// Events on their way at once.
const WIRE: usize = 2;
/// Far above what is found.
const LIMIT: usize = 2_000_000;

/// A rule that is not ours, to see that it would be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// Batches are taken before the snapshot.
    TakesAnything,
    /// A subscriber of another life goes on by its sequence.
    ForgetsEpochs,
    /// What was replaced is still replayed.
    KeepsTheRing,
    /// What comes twice is taken for new.
    TakesTwice,
}

#[derive(Clone, Copy)]
struct Replay {
    publishes: u8,
    restarts: u8,
    breaks: u8,
    resubscribes: u8,
    refollows: u8,
    /// Batches that either side keeps: fewer than what is published, so that they are outrun.
    ring: usize,
    wrong: Option<Wrong>,
}

#[derive(Clone)]
struct State {
    left: [u8; 5],
    /// What the publisher holds.
    truth: BTreeSet<u64>,
    next: Position,
    ring: usize,
    far: Source,
    wire: Option<Wire>,
    near: Source,
    /// The router's own picture, and where it stands with `near`.
    router: Mirror,
    router_at: Option<Position>,
}

/// A connection with a subscription.
#[derive(Clone)]
struct Wire {
    at: Option<Position>,
    events: VecDeque<Event>,
    /// A new subscription is on its way to the publisher, from there.
    asked: Option<Option<Position>>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Stores the block, or removes it.
    Publish(u64),
    Restart,
    Connect,
    Break,
    Resubscribe,
    /// The worker left discovery and came back, and the connection lasted.
    Refollow,
    Subscribed,
    Send,
    Arrive,
    Route,
}

fn options(ring_batches: usize) -> Options {
    Options { ring_batches, ..Options::default() }
}

fn hashes(mirror: &Mirror) -> BTreeSet<u64> {
    let blocks = |event: KvEvent| match event {
        KvEvent::Stored { blocks, .. } => blocks,
        _ => Vec::new(),
    };
    mirror.snapshot().into_iter().flat_map(blocks).map(|block| block.block_hash).collect()
}

impl State {
    fn publish(&mut self, events: Vec<KvEvent>) {
        let Position { epoch, sequence } = self.next;
        self.next.sequence += 1;
        self.far.append(KvEventBatch { source: SOURCE, epoch, sequence, events }, &options(self.ring));
    }

    fn toggle(&mut self, hash: u64) {
        let tier = StorageTier::Device;
        let event = if self.truth.remove(&hash) {
            KvEvent::Removed { hashes: vec![hash], tier }
        } else {
            self.truth.insert(hash);
            let blocks = vec![StoredBlock { block_hash: hash, tokens_hash: hash }];
            KvEvent::Stored { parent: None, blocks, tier }
        };
        self.publish(vec![event]);
    }
}

impl Replay {
    fn sent(&self, state: &State) -> Option<(Event, Position)> {
        let mut at = state.wire.as_ref()?.at;
        if self.wrong == Some(Wrong::ForgetsEpochs) {
            at = at.zip(state.far.position).map(|(at, last)| Position { epoch: last.epoch, ..at });
        }
        state.far.next(SOURCE, at)
    }

    /// As the caller's side of a connection takes it.
    fn arrive(&self, near: &mut Source, event: Event) {
        match event {
            Event::Snapshot(batch) => {
                let ring = near.ring.clone();
                near.replace(&batch, &options(self.ring));
                if self.wrong == Some(Wrong::KeepsTheRing) {
                    near.ring = ring;
                }
            }
            Event::Kv(batch) => {
                let takes_anything = self.wrong == Some(Wrong::TakesAnything);
                if !takes_anything && !continues(near.position, batch.epoch) {
                    return;
                }
                if self.wrong == Some(Wrong::TakesTwice) {
                    batch.events.iter().for_each(|event| near.mirror.apply(event));
                }
                near.append(KvEventBatch::clone(&batch), &options(self.ring));
            }
            Event::Load(..) => {}
        }
    }
}

impl Model for Replay {
    type State = State;
    type Key = String;
    type Step = Step;

    fn initial(&self) -> State {
        let mut state = State {
            left: [self.publishes, self.restarts, self.breaks, self.resubscribes, self.refollows],
            truth: BTreeSet::new(),
            next: Position { epoch: 1, sequence: 0 },
            ring: self.ring,
            far: Source::new(&options(self.ring)),
            wire: None,
            near: Source::new(&options(self.ring)),
            router: Mirror::new(100),
            router_at: None,
        };
        state.publish(Vec::new());
        state
    }

    fn key(&self, state: &State) -> String {
        let source =
            |source: &Source| format!("{:?} {:?} {:?}", source.position, source.ring, hashes(&source.mirror));
        let wire = state.wire.as_ref().map(|wire| (wire.at, wire.asked, &wire.events));
        format!(
            "{:?} {:?} {:?} {} {wire:?} {} {:?} {:?}",
            state.left,
            state.truth,
            state.next,
            source(&state.far),
            source(&state.near),
            hashes(&state.router),
            state.router_at
        )
    }

    fn steps(&self, state: &State) -> Vec<Step> {
        let [publishes, restarts, breaks, resubscribes, refollows] = state.left;
        let mut steps = Vec::new();
        if publishes > 0 {
            steps.extend([Step::Publish(1), Step::Publish(2)]);
        }
        if restarts > 0 {
            steps.push(Step::Restart);
        }
        match &state.wire {
            None => steps.push(Step::Connect),
            Some(wire) => {
                if breaks > 0 {
                    steps.push(Step::Break);
                }
                if resubscribes > 0 {
                    steps.push(Step::Resubscribe);
                }
                if refollows > 0 {
                    steps.push(Step::Refollow);
                }
                if wire.asked.is_some() {
                    steps.push(Step::Subscribed);
                }
                if wire.events.len() < WIRE && self.sent(state).is_some() {
                    steps.push(Step::Send);
                }
                if !wire.events.is_empty() {
                    steps.push(Step::Arrive);
                }
            }
        }
        if state.near.next(SOURCE, state.router_at).is_some() {
            steps.push(Step::Route);
        }
        steps
    }

    fn take(&self, state: &State, step: Step) -> Result<State, String> {
        let mut next = state.clone();
        match step {
            Step::Publish(hash) => {
                next.left[0] -= 1;
                next.toggle(hash);
            }
            Step::Restart => {
                next.left[1] -= 1;
                next.truth.clear();
                next.next = Position { epoch: next.next.epoch + 1, sequence: 0 };
                next.far = Source::new(&options(self.ring));
                next.wire = None;
                // Its first words: it holds nothing.
                next.publish(Vec::new());
            }
            Step::Connect => {
                let at = next.near.position;
                next.wire = Some(Wire { at, events: VecDeque::new(), asked: None });
            }
            Step::Break => {
                next.left[2] -= 1;
                next.wire = None;
            }
            Step::Resubscribe => {
                next.left[3] -= 1;
                let at = next.near.position;
                next.wire.iter_mut().for_each(|wire| wire.asked = Some(at));
            }
            Step::Refollow => {
                next.left[4] -= 1;
                next.near = Source::new(&options(self.ring));
                (next.router, next.router_at) = (Mirror::new(100), None);
                next.wire.iter_mut().for_each(|wire| wire.asked = Some(None));
            }
            Step::Subscribed => {
                let answer = |wire: &mut Wire| wire.at = wire.asked.take().unwrap_or(wire.at);
                next.wire.iter_mut().for_each(answer);
            }
            Step::Send => {
                if let Some(((event, at), wire)) = self.sent(state).zip(next.wire.as_mut()) {
                    wire.events.push_back(event);
                    wire.at = Some(at);
                }
            }
            Step::Arrive => {
                if let Some(event) = next.wire.as_mut().and_then(|wire| wire.events.pop_front()) {
                    self.arrive(&mut next.near, event);
                }
            }
            Step::Route => {
                if let Some((Event::Snapshot(batch) | Event::Kv(batch), at)) =
                    state.near.next(SOURCE, state.router_at)
                {
                    batch.events.iter().for_each(|event| next.router.apply(event));
                    next.router_at = Some(at);
                }
            }
        }
        Ok(next)
    }

    /// What the router knows when all is said is what the publisher holds.
    fn check(&self, state: &State) -> Result<(), String> {
        let known = hashes(&state.router);
        if self.is_settled(state) && known != state.truth {
            return Err(format!("the router knows {known:?}, the publisher holds {:?}", state.truth));
        }
        Ok(())
    }

    fn is_settled(&self, state: &State) -> bool {
        let wire_is_quiet =
            state.wire.as_ref().is_some_and(|wire| wire.events.is_empty() && wire.asked.is_none());
        wire_is_quiet && self.sent(state).is_none() && state.near.next(SOURCE, state.router_at).is_none()
    }
}

const ALL: Replay =
    Replay { publishes: 2, restarts: 1, breaks: 1, resubscribes: 1, refollows: 1, ring: 1, wrong: None };

fn run(replay: Replay) -> Result<Explored, Box<Counterexample>> {
    explore(&replay, LIMIT)
}

#[test]
fn r32_r33_routers_know_what_publishers_hold_in_every_order() {
    let longer = Replay { publishes: 4, breaks: 0, refollows: 0, ..ALL };
    for replay in [ALL, Replay { publishes: 1, restarts: 2, ..ALL }, longer] {
        match run(replay) {
            Ok(explored) => assert!(explored.states > 1000 && explored.settled > 100, "{explored:?}"),
            Err(found) => panic!("{found}"),
        }
    }
}

#[test]
fn wrong_rules_are_found() {
    // What comes twice from a ring of one is the last batch, and taking that again changes nothing.
    let wrongs = [
        (Wrong::TakesAnything, 1),
        (Wrong::ForgetsEpochs, 1),
        (Wrong::KeepsTheRing, 1),
        (Wrong::TakesTwice, 2),
    ];
    for (wrong, ring) in wrongs {
        let Err(found) = run(Replay { wrong: Some(wrong), publishes: 3, ring, ..ALL }) else {
            panic!("{wrong:?} is not found");
        };
        let is_seen =
            ["the router knows", "it never comes to rest"].iter().any(|says| found.fault.contains(says));
        assert!(is_seen, "{wrong:?}: {found}");
    }
}
