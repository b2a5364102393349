use super::board::{Board, Limits, News};
use super::*;
use dynamo_types::WorkerRank;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::task::{Context, Waker};

fn placement(worker: u64, prefill_tokens: u64, blocks: &[u64]) -> Placement {
    Placement {
        target: WorkerRank::new(InstanceId(worker), 0),
        prefill_tokens,
        blocks: blocks.into(),
        anonymous_blocks: 1,
        output_millis: 0,
    }
}

/// What one who listens believes, by the number under which it hears.
#[derive(Default)]
struct Belief(BTreeMap<u64, Placement>);

impl Belief {
    fn hear(&mut self, news: News) {
        self.0.extend(news.put);
        for change in news.changed {
            if let Some(known) = self.0.get_mut(&change.number) {
                assert_eq!(known.target, change.target);
                (known.prefill_tokens, known.output_millis) = (change.prefill_tokens, change.output_millis);
            }
        }
        news.ended.iter().for_each(|(number, _)| drop(self.0.remove(number)));
    }

    /// In an order that does not depend on numbers.
    fn placements(&self) -> Vec<Placement> {
        sorted(self.0.values().cloned())
    }
}

fn sorted(placements: impl Iterator<Item = Placement>) -> Vec<Placement> {
    let mut all: Vec<Placement> = placements.collect();
    all.sort_by_key(|it| (it.target, it.prefill_tokens, it.blocks.to_vec(), it.output_millis));
    all
}

#[derive(Clone, Debug)]
enum Act {
    Place {
        frontend: usize,
        worker: u64,
        tokens: u64,
        blocks: Vec<u64>,
    },
    Change {
        frontend: usize,
        nth: usize,
        tokens: u64,
    },
    End {
        frontend: usize,
        nth: usize,
    },
    /// The connection between the two carries what waits, in both directions, at most this much at once.
    Carry {
        frontend: usize,
        worker: u64,
        limit: usize,
    },
    /// It breaks and is made again; the worker notices only later.
    Reconnect {
        frontend: usize,
        worker: u64,
        noticed: bool,
    },
    /// The frontend dies, and another one takes its place.
    Die {
        frontend: usize,
    },
    /// The listener looks at what it heard.
    Look {
        frontend: usize,
        limit: usize,
    },
    Repeat {
        frontend: usize,
        worker: u64,
    },
}

const FRONTENDS: usize = 3;
const WORKERS: u64 = 2;

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let frontend = 0..FRONTENDS;
    let worker = 0..WORKERS;
    let blocks = prop::collection::vec(0u64..9, 0..4);
    let act = prop_oneof![
        4 => (frontend.clone(), worker.clone(), 0u64..99, blocks)
            .prop_map(|(frontend, worker, tokens, blocks)| Act::Place { frontend, worker, tokens, blocks }),
        2 => (frontend.clone(), 0usize..8, 0u64..99)
            .prop_map(|(frontend, nth, tokens)| Act::Change { frontend, nth, tokens }),
        3 => (frontend.clone(), 0usize..8).prop_map(|(frontend, nth)| Act::End { frontend, nth }),
        6 => (frontend.clone(), worker.clone(), 1usize..5)
            .prop_map(|(frontend, worker, limit)| Act::Carry { frontend, worker, limit }),
        1 => (frontend.clone(), worker.clone(), any::<bool>())
            .prop_map(|(frontend, worker, noticed)| Act::Reconnect { frontend, worker, noticed }),
        1 => frontend.clone().prop_map(|frontend| Act::Die { frontend }),
        2 => (frontend.clone(), 1usize..5).prop_map(|(frontend, limit)| Act::Look { frontend, limit }),
        1 => (frontend, worker).prop_map(|(frontend, worker)| Act::Repeat { frontend, worker }),
    ];
    prop::collection::vec(act, 0..120)
}

/// Both ends of a connection.
struct Wire {
    out: Reader,
    voice: Writer,
    back: Reader,
    heard: Writer,
}

struct Front {
    peers: Peers,
    live: Vec<(u64, Placement)>,
    listener: Reader,
    belief: Belief,
    wires: Vec<Wire>,
}

struct Fleet {
    boards: Vec<Exchange>,
    fronts: Vec<Front>,
    /// What workers did not notice the end of.
    stale: Vec<(Writer, Reader)>,
    origins: u64,
}

fn carry(from: &Reader, to: &Writer, limit: usize) -> bool {
    let news = from.take(limit, limit);
    let some = !news.is_empty();
    news.put.into_iter().for_each(|(number, placement)| to.put(number, placement));
    news.changed.into_iter().for_each(|it| to.change(it.number, it.prefill_tokens, it.output_millis));
    news.ended.into_iter().for_each(|(number, _)| to.end(number));
    some
}

impl Fleet {
    fn new() -> Self {
        let boards = (0..WORKERS).map(|_| Exchange::default()).collect();
        let mut fleet = Self { boards, fronts: Vec::new(), stale: Vec::new(), origins: 0 };
        (0..FRONTENDS).for_each(|_| {
            let front = fleet.front();
            fleet.fronts.push(front);
        });
        fleet
    }

    fn front(&mut self) -> Front {
        self.origins += 1;
        let peers = Peers::with_origin(self.origins);
        let wires = (0..WORKERS).map(|worker| self.wire(&peers, worker)).collect();
        let listener = peers.heard().reader(None, None);
        Front { peers, live: Vec::new(), listener, belief: Belief::default(), wires }
    }

    fn wire(&self, peers: &Peers, worker: u64) -> Wire {
        let board = &self.boards[worker as usize];
        Wire {
            out: peers.own().reader(None, Some(&[InstanceId(worker)])),
            voice: board.writer(Some(peers.origin())),
            back: board.reader(Some(peers.origin()), None),
            heard: peers.heard().writer(None),
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Place { frontend, worker, tokens, blocks } => {
                let front = &mut self.fronts[frontend];
                let placement = placement(worker, tokens, &blocks);
                let id = front.peers.placements().placed(placement.clone());
                front.live.push((id, placement));
            }
            Act::Change { frontend, nth, tokens } => {
                let Front { live, peers, .. } = &mut self.fronts[frontend];
                let len = live.len().max(1);
                if let Some((id, placement)) = live.get_mut(nth % len) {
                    placement.prefill_tokens = tokens;
                    placement.output_millis = tokens + 1;
                    peers.placements().changed(*id, tokens, tokens + 1);
                }
            }
            Act::End { frontend, nth } => {
                let Front { live, peers, .. } = &mut self.fronts[frontend];
                if !live.is_empty() {
                    let (id, _) = live.swap_remove(nth % live.len());
                    peers.placements().ended(id);
                }
            }
            Act::Carry { frontend, worker, limit } => {
                let wire = &self.fronts[frontend].wires[worker as usize];
                carry(&wire.out, &wire.voice, limit);
                carry(&wire.back, &wire.heard, limit);
            }
            Act::Reconnect { frontend, worker, noticed } => {
                let wire = self.wire(&self.fronts[frontend].peers, worker);
                let former = std::mem::replace(&mut self.fronts[frontend].wires[worker as usize], wire);
                let Wire { voice, back, .. } = former;
                if !noticed {
                    self.stale.push((voice, back));
                }
            }
            Act::Die { frontend } => {
                let front = self.front();
                self.fronts[frontend] = front;
            }
            Act::Look { frontend, limit } => {
                let Front { listener, belief, .. } = &mut self.fronts[frontend];
                belief.hear(listener.take(limit, limit));
            }
            Act::Repeat { frontend, worker } => self.fronts[frontend].listener.repeat(InstanceId(worker)),
        }
    }

    /// Everything that waits arrives.
    fn settle(&mut self) {
        loop {
            let mut moved = false;
            for front in &mut self.fronts {
                for wire in &front.wires {
                    moved |= carry(&wire.out, &wire.voice, 3);
                    moved |= carry(&wire.back, &wire.heard, 3);
                }
                let news = front.listener.take(3, 3);
                moved |= !news.is_empty();
                front.belief.hear(news);
            }
            if !moved {
                return;
            }
        }
    }
}

proptest! {
    #[test]
    fn whatever_happens_everyone_comes_to_know_what_the_others_placed(acts in acts()) {
        let mut fleet = Fleet::new();
        acts.into_iter().for_each(|act| fleet.act(act));
        fleet.settle();
        for (at, front) in fleet.fronts.iter().enumerate() {
            let others = fleet.fronts.iter().enumerate().filter(|(other, _)| *other != at);
            let truth = sorted(others.flat_map(|(_, other)| other.live.iter().map(|(_, it)| it.clone())));
            prop_assert_eq!(front.belief.placements(), truth, "frontend {}", at);
        }
        // What workers notice late takes nothing away that counts.
        fleet.stale.clear();
        fleet.settle();
        let live: usize = fleet.fronts.iter().map(|front| front.live.len()).sum();
        prop_assert_eq!(fleet.boards.iter().map(Exchange::len).sum::<usize>(), live);
        fleet.fronts.clear();
        prop_assert!(fleet.boards.iter().all(Exchange::is_empty));
    }

    #[test]
    fn what_waits_for_a_reader_is_bounded_by_what_is_there_and_what_it_was_told(
        acts in prop::collection::vec((0u64..3, 0u64..20, any::<bool>()), 0..400),
    ) {
        let mut board = Board::new(Limits { placements: 10, hashes: 30 });
        let (writer, reader) = (board.open_writer(None), board.open_reader(None, None));
        let mut told = 0;
        for (kind, id, look) in acts {
            match kind {
                0 => drop(board.put(writer, id, placement(0, id, &[id, id + 1, id + 2, id + 3]))),
                1 => board.change(writer, id, id + 1, 0),
                _ => board.end(writer, id),
            }
            let (placements, hashes, ..) = board.sizes();
            prop_assert!(placements <= 10 && hashes <= 30);
            prop_assert!(board.waiting(reader) <= placements + told);
            if look {
                board.take(reader, usize::MAX, usize::MAX);
                told = board.sizes().0;
            }
        }
        board.close_writer(writer);
        board.close_reader(reader);
        prop_assert_eq!(board.sizes(), (0, 0, 0, 0));
    }
}

#[test]
fn what_came_and_went_unheard_is_never_told() {
    let exchange = Exchange::default();
    let (writer, reader) = (exchange.writer(None), exchange.reader(None, None));
    writer.put(1, placement(1, 5, &[7]));
    writer.change(1, 0, 0);
    writer.end(1);
    assert!(reader.take(9, 9).is_empty());
    writer.put(2, placement(1, 5, &[7]));
    writer.change(2, 0, 3);
    let news = reader.take(9, 9);
    assert_eq!((news.put.len(), news.changed.len()), (1, 0), "what holds now, once");
    assert_eq!((news.put[0].1.prefill_tokens, news.put[0].1.output_millis), (0, 3));
    writer.end(2);
    assert_eq!(reader.take(9, 9).ended.len(), 1);
}

#[test]
fn beyond_the_limit_blocks_are_counted_and_not_named() {
    let exchange = Exchange::new(Limits { placements: 2, hashes: 3 });
    let (writer, reader) = (exchange.writer(None), exchange.reader(None, None));
    writer.put(1, placement(1, 0, &[1, 2]));
    writer.put(2, placement(1, 0, &[1, 2]));
    writer.put(3, placement(1, 0, &[]));
    let told = reader.take(usize::MAX, usize::MAX).put;
    let blocks: Vec<_> = told.iter().map(|(_, it)| (it.blocks.len(), it.anonymous_blocks)).collect();
    assert_eq!(blocks, [(2, 1), (0, 3)], "and the third is left out");
    writer.end(1);
    writer.put(3, placement(1, 0, &[4]));
    assert_eq!(reader.take(usize::MAX, usize::MAX).put[0].1.blocks.len(), 1, "there is room again");
}

#[test]
fn a_reader_that_waits_is_woken_by_what_it_wants_only() {
    struct Count(AtomicU64);
    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let count = Arc::new(Count(AtomicU64::new(0)));
    let waker = Waker::from(Arc::clone(&count));
    let mut board = Board::new(Limits::default());
    let (other, own) = (board.open_writer(None), board.open_writer(Some(7)));
    let reader = board.open_reader(Some(7), Some(&[InstanceId(1)]));
    assert!(!board.poll(reader, &Context::from_waker(&waker)));
    board.put(other, 1, placement(2, 0, &[]));
    board.put(own, 1, placement(1, 0, &[]));
    assert_eq!(count.0.load(Ordering::Relaxed), 0);
    board.put(other, 2, placement(1, 0, &[]));
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
    assert!(board.poll(reader, &Context::from_waker(&waker)));
    board.want(reader, InstanceId(2));
    assert_eq!(board.take(reader, usize::MAX, usize::MAX).put.len(), 2);
    board.close_writer(other);
    board.close_writer(own);
    board.close_reader(reader);
    assert_eq!(board.sizes(), (0, 0, 0, 0));
}
